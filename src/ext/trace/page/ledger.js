/* ledger.js - the state ledger: every registered tensor, who may move it and who did. */

const LEDGER_MOST = 400; /* rows; the search finds the rest */

/* Columns: the title, what it means, its phases, the cell of a line; of what changes with the
 * position instead its text so far, and a class. */
const COLUMNS = [
    ['name', '', '', (g, t) => make('th', { scope: 'row', title: tensorName(t) },
        linkTo(t.id, shortened(tensorName(t), 5, 13)))],
    ['kind', '', '', (g, t) => make('td', make(`span.swatch ${t.kind}`), t.role || KIND[t.kind])],
    ['file', 'whether it is saved with the model', '', (g, t) =>
        make('td', t.persistent ? 'yes' : 'no')],
    ['optimizer', 'whether the optimizer holds it', '', (g, t) => make('td', t.optimizer || '–')],
    ['gradient', 'the gradient so far', 'backward clip', null, (g, t, line, done) => {
        const now = gradientSoFar(g, t.id, done), none = !line.grad && (done.taken || done.moved);
        return [now ? summaryText(now, t.shape) : none ? '–' : '', 'num'];
    }],
    ['start', 'before forward', 'whole', (g, t, line) =>
        make('td.num', summaryText(line.start, t.shape))],
    ['after forward', '', 'forward', null, (g, t, line, done) =>
        changed(line.start, line.forward, t, 'by-forward', isForwardOver(g, t, done))],
    ['after step', 'after the optimizer', 'optimizer', null, (g, t, line, done) =>
        changed(line.forward, line.step, t, '', done.moved)],
    ['moved by', 'who changed it in this step', '', null, (g, t, { moved }, done) => {
        const known = moved === 'by forward' ? isForwardOver(g, t, done) : done.moved;
        return !known ? ['', ''] : moved === 'no' ? ['nobody', 'muted']
            : [(moved ?? 'not known').replace(/by (the )?/g, ''), ''];
    }],
];

/* Whether forward has written a tensor, or is over. */
const isForwardOver = (g, t, done) =>
    (g.writtenAt.get(t.id) ?? g.step.nodes.length - 1) <= done.forward;

/* The text of a value once it is there, and a class that stands out where it changed. */
const changed = (before, after, t, by, there) => (!there ? ['', 'num']
    : [summaryText(after, t.shape),
        sameNumbers(before, after) ? 'num' : `num changed ${by}`.trim()]);

function ledgerTable(g, lines) {
    const head = COLUMNS.map(([title, help, when]) =>
        make('th', { scope: 'col', 'data-when': when, title: help || null }, title));
    const row = (line) => make('tr', { 'data-tensor': line.tensor }, COLUMNS.map(([, , , cellOf]) =>
        (cellOf ? cellOf(g, g.trace.byId.get(line.tensor), line) : make('td'))));
    const rest = lines.length - LEDGER_MOST;
    return [make('thead', lines.length > 0 && make('tr', head)),
        make('tbody', lines.slice(0, LEDGER_MOST).map(row), rest > 0 && make('tr',
            make('td', { colspan: COLUMNS.length }, `and ${rest} more`)))];
}

let ledgerOf = null; /* the graph whose ledger is shown */

/* Made anew for another step; what changes with the position is written into its cells. */
function renderLedger() {
    const g = graph(), { phase } = position(), lines = g.step.ledger, done = progress();
    if (ledgerOf !== g) {
        fill($('ledger-table'), ledgerTable(g, lines));
        $('ledger-note').textContent = !lines.length ? 'No registered tensors.'
            : 'Registered tensors, as far as the step has come: single numbers, norms of the rest.';
    }
    ledgerOf = g;
    const rows = [...$('ledger-table').querySelectorAll('[data-tensor]')];
    rows.forEach((row, i) => COLUMNS.forEach(([, , , , textOf], k) => {
        if (!textOf) return;
        const [text, cls] = textOf(g, g.trace.byId.get(lines[i].tensor), lines[i], done);
        const cell = row.children[k], shown = `${cls} ${text}`;
        if (cell.shown === shown) return; /* asking the page is slower */
        Object.assign(cell, { shown, textContent: text, className: cls });
    }));
    for (const th of $('ledger-table').querySelectorAll('[data-when]'))
        mark(th, { now: th.dataset.when.split(' ').includes(phase) });
    markLedger(rows);
}

/* The rows that the position is about. */
function markLedger(rows) {
    const g = graph(), p = position(), node = currentNode(), touched = new Set();
    if (node) for (const input of node.in) if (input) touched.add(input.from);
    if (node && p.phase === 'forward')
        for (const w of g.writes) if (w.at === p.i) touched.add(w.tensor);
    if (['clip', 'optimizer'].includes(p.phase)) for (const id of g.updates.keys()) touched.add(id);
    if (state.chosen) touched.add(state.chosen);
    for (const row of rows) mark(row, { touched: touched.has(row.dataset.tensor) });
    const first = node && $('ledger-table').querySelector('.touched');
    if (!first) return;
    const box = $('ledger-scroll'), head = 30, row = 24, y = first.offsetTop - box.scrollTop;
    if (y < head || y + row > box.clientHeight) box.scrollTop = first.offsetTop - head - 10;
}
