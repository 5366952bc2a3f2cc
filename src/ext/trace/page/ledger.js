/*
 * ledger.js - the state ledger: every registered tensor, who may move it and who did.
 */

const LEDGER_MOST = 400; /* rows; the search finds the rest */

/* Columns: the title, what it means, its phase, the cell of a line. */
const COLUMNS = [
    ['name', '', null, (g, t) => make('th', { scope: 'row', title: tensorName(t) },
        linkTo(t.id, shortened(tensorName(t))))],
    ['kind', '', null, (g, t) =>
        make('td', make(`span.swatch ${t.kind}`), t.role || KIND[t.kind])],
    ['file', 'whether it is saved with the model', null, (g, t) =>
        make('td', t.persistent ? 'yes' : 'no')],
    ['optimizer', 'whether the optimizer holds it', null, (g, t) =>
        make('td', t.optimizer || '–')],
    ['gradient', 'the gradient after backward', 'backward', (g, t, line) =>
        make('td.num', ledgerGradient(g, t, line))],
    ['start', 'before forward', 'whole', (g, t, line) =>
        make('td.num', summaryText(line.start, t.shape))],
    ['after forward', '', 'forward', (g, t, line) =>
        changed(line.start, line.forward, t, 'by-forward')],
    ['after step', 'after the optimizer', 'optimizer', (g, t, line) =>
        changed(line.forward, line.step, t, '')],
    ['moved by', 'who changed it in this step', null, (g, t, line) =>
        line.moved === 'no' ? make('td.muted', 'nobody')
            : make('td', (line.moved ?? 'not known').replace(/by (the )?/g, ''))],
];

/* A cell that stands out where the value changed. */
const changed = (before, after, t, by) => make(
    sameNumbers(before, after) ? 'td.num' : `td.num changed ${by}`, summaryText(after, t.shape));

/* In predict mode the gradient as far as it is shown. */
function ledgerGradient(g, t, line) {
    const until = toldUntil();
    if (!line.grad || until === Infinity) return summaryText(line.grad, t.shape);
    const arrived = gradientsOf(g, t.id, until).pop();
    return arrived ? summaryText(arrived.value, t.shape) : '?';
}

function ledgerTable(g, lines) {
    const head = COLUMNS.map(([title, help, when]) =>
        make('th', { scope: 'col', 'data-when': when, title: help || null }, title));
    const row = (line) => make('tr', { 'data-tensor': line.tensor },
        COLUMNS.map(([, , , cellOf]) => cellOf(g, g.trace.byId.get(line.tensor), line)));
    const rest = lines.length - LEDGER_MOST;
    return [make('thead', lines.length > 0 && make('tr', head)),
        make('tbody', lines.slice(0, LEDGER_MOST).map(row), rest > 0 && make('tr',
            make('td', { colspan: COLUMNS.length }, `and ${rest} more`)))];
}

let ledgerOf = null; /* the graph whose ledger is shown */

/* Made anew for another step; in predict mode its gradients change with each position. */
function renderLedger() {
    const g = graph(), phase = position().phase, lines = g.step.ledger;
    if (ledgerOf !== g || state.predict) {
        fill($('ledger-table'), ledgerTable(g, lines));
        $('ledger-note').textContent = !lines.length ? 'No registered tensors.'
            : 'Every registered tensor: its value if it is one number, else its norm.';
    }
    ledgerOf = state.predict ? null : g;
    for (const th of $('ledger-table').querySelectorAll('[data-when]'))
        mark(th, { now: th.dataset.when === phase });
    markLedger();
}

/* The rows that the position is about. */
function markLedger() {
    const g = graph(), p = position(), node = currentNode(), touched = new Set();
    if (node) for (const input of node.in) if (input) touched.add(input.from);
    if (node && p.phase === 'forward')
        for (const w of g.writes) if (w.at === p.i) touched.add(w.tensor);
    if (p.phase === 'optimizer') for (const id of g.updates.keys()) touched.add(id);
    if (state.chosen) touched.add(state.chosen);
    for (const row of $('ledger-table').querySelectorAll('[data-tensor]'))
        mark(row, { touched: touched.has(row.dataset.tensor) });
    const first = node && $('ledger-table').querySelector('.touched');
    if (!first) return;
    const box = $('ledger-scroll'), head = 30, row = 24, y = first.offsetTop - box.scrollTop;
    if (y < head || y + row > box.clientHeight) box.scrollTop = first.offsetTop - head - 10;
}
