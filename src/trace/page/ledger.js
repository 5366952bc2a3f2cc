/*
 * ledger.js - the state ledger: every registered tensor, who may move it and who did; and the table
 * of differences between traces.
 */

/* ---- the ledger ------------------------------------------------------------------------------ */

const LEDGER_MOST = 400; /* rows; the search finds the rest */

/* Columns: the title, its phase, the cell of a line. */
const COLUMNS = [
    ['name', null,
        (g, t) => make('th', { scope: 'row', title: tensorName(t) },
        linkTo(t.id, shortened(tensorName(t))))],
    ['kind', null,
        (g, t) => make('td', {}, make('span', { class: `swatch ${t.kind}` }), KIND[t.kind])],
    ['file', null, (g, t) => make('td', {}, t.persistent ? 'yes' : 'no')],
    ['optimizer', null, (g, t) => make('td', {}, t.optimizer || '–')],
    ['gradient', 'backward',
        (g, t, line) => make('td', { class: 'num' }, ledgerGradient(g, t, line))],
    ['start', 'whole',
        (g, t, line) => make('td', { class: 'num' }, summaryText(line.start, t.shape))],
    ['forward', 'forward', (g, t, line) => moved(line.start, line.forward, t, 'by-forward')],
    ['step', 'optimizer', (g, t, line) => moved(line.forward, line.step, t, '')],
    ['moved by', null,
        (g, t, line) => make('td', { class: `moved ${line.moved === 'no' ? 'muted' : ''}` },
        line.moved === 'no' ? 'nobody' : line.moved.replace(/by (the )?/, ''))],
];

const COLUMN_HELP = { gradient: 'the gradient after backward', start: 'before forward',
    forward: 'after forward',
    step: 'after the optimizer', 'moved by': 'who changed it in this step',
        optimizer: 'whether the optimizer holds it',
    file: 'whether it is saved with the model' };

/* A cell that stands out where the value changed. */
function moved(before, after, t, by) {
    const same = JSON.stringify(before) === JSON.stringify(after);
    return make('td', { class: same ? 'num' : `num changed ${by}` }, summaryText(after, t.shape));
}

/* In predict mode the gradient as far as it is shown. */
function ledgerGradient(g, t, line) {
    if (!line.grad) return '–';
    const { backward } = progress();
    if (!state.predict || backward === Infinity) return summaryText(line.grad, t.shape);
    const arrived = (g.grads.get(t.id) || []).filter((a) => a.k <= backward).pop();
    return arrived ? summaryText(arrived.value, t.shape) : '?';
}

function ledgerRow(g, line) {
    const t = g.trace.byId.get(line.tensor);
    return make('tr', { 'data-tensor': line.tensor },
        COLUMNS.map(([, , cell]) => cell(g, t, line)));
}

let ledgerOf = null; /* the graph whose ledger is shown */

/* Made anew for another step; in predict mode its gradients change with each position. */
function renderLedger() {
    const g = graph(), phase = position().phase, lines = g.step.ledger || [];
    if (ledgerOf !== g || state.predict) {
        const head =
            make('tr', {},
            COLUMNS.map(([title, when]) => make('th', { scope: 'col', 'data-when': when,
            title: COLUMN_HELP[title] || null },
                title === 'forward' || title === 'step' ? `after ${title}` : title)));
        const rows = lines.slice(0, LEDGER_MOST).map((line) => ledgerRow(g, line));
        const rest = lines.length - rows.length;
        $('ledger-table').replaceChildren(make('thead', {}, lines.length ? head : null),
            make('tbody', {}, rows,
            rest > 0 ? make('tr', {}, make('td', { colspan: COLUMNS.length }, `and ${rest} more`))
                : null));
        $('ledger-note').textContent = lines.length
            ? 'Every registered tensor: its value if it is one number, else its norm.'
                : 'No registered tensors.';
    }
    ledgerOf = state.predict ? null : g;
    for (const th of $('ledger-table').querySelectorAll('[data-when]'))
        th.classList.toggle('now', th.dataset.when === phase);
    markLedger();
}

/* The rows that the position is about. */
function markLedger() {
    const g = graph(), p = position(), touched = new Set();
    const node = currentKey() && g.node.get(Number(currentKey().slice(1)));
    if (node) for (const input of node.in) if (input) touched.add(input.from);
    if (node && p.phase === 'forward')
        for (const w of g.writes) if (w.at === p.i) touched.add(w.tensor);
    if (p.phase === 'optimizer') for (const id of g.updates.keys()) touched.add(id);
    if (state.chosen) touched.add(state.chosen);
    for (const row of $('ledger-table').querySelectorAll('[data-tensor]'))
        row.classList.toggle('touched', touched.has(row.dataset.tensor));
    const first = node && p.phase !== 'optimizer' && $('ledger-table').querySelector('.touched');
    const box = $('ledger-scroll');
    if (first &&
        (first.offsetTop < box.scrollTop + 30 || first.offsetTop + 24 > box.scrollTop +
        box.clientHeight))
        box.scrollTop = first.offsetTop - 40;
}

/* ---- differences between traces -------------------------------------------------------------- */

/* The same number, but for rounding. */
const alike = (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b)) ||
    Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b));

/* An op that has a name of its own in each trace: module, call, op, and which of those it is. */
function opsByName(g) {
    const seen = new Map(), out = new Map();
    for (const node of g.step.nodes) {
        const call = g.call.get(node.call), base = `${call ? foldName(call) : ''} ${node.op}`;
        const n = (seen.get(base) || 0) + 1;
        seen.set(base, n);
        const where = call && call.module ? `${node.op} in ${callTitle(call)}` : node.op;
        out.set(`${base} ${n}`, { node, title: n > 1 ? `${where}, number ${n}` : where });
    }
    return out;
}

/* Rows: a title, what it links to, a text for each trace, and whether they differ. */
function differences(graphs) {
    const rows = [], add = (group, title, texts, differ) =>
        rows.push({ group, title, texts, differ: differ ?? texts.some((x) => x !== texts[0]) });
    const each = (f) => graphs.map((g) => (g ? f(g) : 'no such step'));
    add('The step', 'mode', each((g) => (g.step.training === false ? 'eval' : 'training')));
    add('The step', 'loss', each((g) => digits(g.step.loss)),
        graphs.some((g) => g && !alike(number(g.step.loss), number(graphs[0].step.loss))));
    add('The step', 'ops in forward', each((g) => String(g.step.nodes.length)));
    add('The step', 'ops in backward', each((g) => String(g.step.backward.length)));
    add('The step', 'moved by the optimizer', each((g) => String((g.step.updates || []).length)));
    add('The step', 'moved by forward',
        each((g) => String(g.step.ledger.filter((l) => l.moved === 'by forward').length)));

    const names =
        new Set(graphs.flatMap((g) =>
        (g ? g.step.ledger.map((l) => tensorName(g.trace.byId.get(l.tensor))) : [])));
    const lines =
        graphs.map((g) =>
        new Map(g ? g.step.ledger.map((l) => [tensorName(g.trace.byId.get(l.tensor)), { g, l }])
        : []));
    for (const name of names) {
        const found = lines.map((map) => map.get(name));
        const text = (x) => {
            if (!x) return 'not there';
            const t = x.g.trace.byId.get(x.l.tensor);
            return `${x.l.grad ? `gradient ${summaryText(x.l.grad, t.shape)}` : 'no gradient'}; ` +
                `${summaryText(x.l.start, t.shape)} → ${summaryText(x.l.step, t.shape)}` +
                (x.l.moved === 'no' ? ', not moved' : `, ${x.l.moved}`);
        };
        const same = (x) => x && found[0] && x.l.moved === found[0].l.moved &&
            !x.l.grad === !found[0].l.grad &&
            ['grad', 'start',
                'step'].every((k) => !x.l[k] || alike(number(x.l[k].norm),
                number(found[0].l[k].norm)));
        add('Parameters and buffers', name, found.map(text), !found.every(same));
    }
    const ops = graphs.map((g) => (g ? opsByName(g) : new Map()));
    for (const name of new Set(ops.flatMap((map) => [...map.keys()]))) {
        const found = ops.map((map, i) => map.get(name) && { g: graphs[i], ...map.get(name) });
        const sizes = (x) => {
            const k = (x.g.backwardOf.get(x.node.id) || [])[0];
            const back = k === undefined ? null : x.g.step.backward[k].incoming[0];
            return [x.node.out[0].value && number(x.node.out[0].value.norm),
                back && back.value && number(back.value.norm)];
        };
        const text =
            (x) => (x ? `result ${digits(sizes(x)[0])}, ` + (sizes(x)[1] === null ? 'no gradient'
            : `gradient ${digits(sizes(x)[1])}`) : 'not there');
        const same = (x) => x && found[0] && sizes(x).every((v, i) => alike(v, sizes(found[0])[i]));
        add('Ops (norms)', found.find((x) => x).title, found.map(text), !found.every(same));
    }
    return rows;
}

const DIFFERENCES_MOST = 500;

function renderCompare() {
    const s = position().s, all = $('compare-all').checked;
    const graphs = traces.map((t, i) => (t.steps[s] ? graphOf(traces[i], s) : null));
    const rows = differences(graphs), shown = rows.filter((r) => all || r.differ);
    const body = [];
    let group = '';
    for (const row of shown.slice(0, DIFFERENCES_MOST)) {
        if (row.group !== group)
            body.push(make('tr', { class: 'group' },
                make('th', { colspan: traces.length + 1, scope: 'colgroup' },
                (group = row.group))));
        body.push(make('tr', { class: row.differ ? 'differs' : null },
            make('th', { scope: 'row' }, row.title),
            row.texts.map((text) => make('td',
                { class: row.differ && text !== row.texts[0] ? 'other' : null }, text))));
    }
    $('compare-table').replaceChildren(
        make('thead', {},
            make('tr', {}, make('td', {}),
            traces.map((t) => make('th', { scope: 'col' }, t.title)))),
        make('tbody', {}, body));
    const rest = shown.length - Math.min(shown.length, DIFFERENCES_MOST);
    $('compare-note').textContent =
        `Step ${s + 1}: ${rows.filter((r) => r.differ).length} of ${rows.length} rows differ` +
        (rest ? `; ${rest} are not shown` : '') + '. Marked: what differs from the first column.';
}
