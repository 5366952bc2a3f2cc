/*
 * compare.js - several traces: a tab for each, and one in which they stand side by side, a column
 * each, with what differs marked.
 *
 * Tensors and ops are the same in two traces if they have the same name: a tensor's is its name, an
 * op's the module's call that it is in, and which op of its kind it is there. Each is one row;
 * where a trace has none, its place stays empty.
 */

/* Whether the numbers are equal except for rounding; null: there is no number. */
function alike(a, b) {
    if (!Number.isFinite(a) || !Number.isFinite(b)) return Object.is(a, b);
    return Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b));
}

/* ---- what is compared ------------------------------------------------------------------------ */

/* Part of a cell: a text, and the numbers behind it; without numbers the texts are compared. */
const part = (cls, text, ...numbers) => ({ cls, text, numbers });
const samePart = (a, b) => a.numbers.length === b.numbers.length && (a.numbers.length
    ? a.numbers.every((x, i) => alike(x, b.numbers[i])) : a.text === b.text);

const facts = ({ step }) => new Map([
    ['mode', step.training ? 'training' : 'eval'], ['ops in forward', step.nodes.length],
    ['ops in backward', step.backward.length],
    ...['by the optimizer', 'by forward'].map((who) => [`moved ${who}`, movedBy(step, who)]),
    ['loss', digits(step.loss), step.loss],
].map(([head, ...fact]) => [head, { head, parts: [part('fact', ...fact)] }]));

/* The parts for values and for gradients; each is [value, shape]. */
const valueParts = ([values, grads], between, none) => {
    const text = (list) => list.map((x) => summaryText(...x)).join(between);
    const told = (cls, before, list) =>
        part(cls, before + text(list), ...list.map((x) => summary(...x)));
    return [told('value', '', values),
        grads.length ? told('slope', '∂ ', grads) : part('slope', none)];
};

/* By name: what the ledger says about tensors, and the leaves that are not registered. */
function linesByName(g) {
    const lines = new Map();
    const add = (name, t, values, grad, by) => {
        const none = t.kind === 'parameter' && !t.requires_grad ? 'frozen' : 'no gradient';
        const all = [values, grad ? [grad] : []].map((list) => list.map((v) => [v, t.shape]));
        lines.set(name, { key: t.id, kind: t.kind, head: name, shape: t.shape,
            parts: [...valueParts(all, ' → ', none), part('by', by)] });
    };
    for (const line of g.step.ledger) {
        const t = g.trace.byId.get(line.tensor);
        const by = line.moved === 'no' ? 'not moved'
            : line.moved === null ? 'moved, not known by whom' : `moved ${line.moved}`;
        add(tensorName(t), t, [line.start, line.step], line.grad, by);
    }
    let nameless = 0;
    for (const t of g.trace.tensors) {
        if (g.ledger.has(t.id) || !t.requires_grad || !g.readers.has(t.id)) continue;
        add(t.name || `leaf ${++nameless}`, t, [readValue(g, t.id)],
            gradientsOf(g, t.id, Infinity).at(-1)?.value, 'not registered');
    }
    return lines;
}

/* By name: ops with their first result, other results that got a gradient, and the gradients. */
function opsByName(g) {
    const seen = new Map(), ops = new Map();
    for (const node of g.step.nodes) {
        const call = g.call.get(node.call), base = `${call ? foldName(call) : ''} ${node.op}`;
        const n = (seen.get(base) || 0) + 1;
        const back = g.backwardOf.get(node.id).flatMap((k) => g.step.backward[k].incoming);
        const outputs = new Set([0, ...back.map((x) => x.output)]);
        const all = [[...outputs].map((k) => [node.out[k].value, node.out[k].shape]),
            back.map((x) => [x.value, node.out[x.output].shape])];
        seen.set(base, n);
        ops.set(`${base} ${n}`, { key: 'n' + node.id, kind: 'op', head: node.op,
            shape: node.out[0].shape, within: call ? callTitle(call) : 'outside of all modules',
            parts: valueParts(all, ', ', 'no gradient') });
    }
    return ops;
}

/* All names, in an order that follows each of the maps. */
function mergedNames(maps) {
    let names = [];
    for (const map of maps) {
        const known = new Set(names), after = new Lists();
        let last = null;
        for (const name of map.keys())
            if (known.has(name)) last = name;
            else after.add(last, name);
        names = [null, ...names].flatMap((n) => [n, ...after.get(n)]).slice(1);
    }
    return names;
}

/* Rows: { group, name, items: one for each trace, or undefined; differs }. */
function rowsOf(group, graphs, mapOf) {
    const maps = graphs.map((g) => (g ? mapOf(g) : new Map()));
    return mergedNames(maps).map((name) => {
        const items = maps.map((map) => map.get(name)), first = items.find((x) => x);
        const differs = items.some((x) => !x?.parts.every((p, i) => samePart(p, first.parts[i])));
        return { group, name, items, first, differs };
    });
}

const GROUPS = [['The step', facts],
    ['Ops: results, and the gradients that come to them', opsByName],
    ['Parameters, buffers and leaves: before and after the step, gradients', linesByName]];

/* ---- the columns ----------------------------------------------------------------------------- */

const ROWS_MOST = 200; /* of a group: those around the current op */

/* Which rows of a group are shown: from, to. They do not change with each step. */
function windowOf(rows, current) {
    const at = rows.findIndex((r) => isCurrent(r, current)), part = ROWS_MOST / 2;
    const from = Math.floor((at - part / 2) / part) * part;
    const first = Math.max(0, Math.min(from, rows.length - ROWS_MOST));
    return [first, Math.min(rows.length, first + ROWS_MOST)];
}

const isCurrent = (row, current) => current && row.items[state.trace]?.key === current;

/* A row's cell for one trace; a click goes there. */
function comparedCell(item, first, i) {
    if (!item) return make('td.absent', 'not there');
    const parts = item.parts.map((p, k) =>
        make(`span.${p.cls} ${samePart(p, first.parts[k]) ? '' : 'other'}`, p.text));
    if (!item.kind) return make('td.fact', make('b', item.head), parts);
    const there = () => {
        showTrace(i);
        choose(item.key);
    };
    const head = make('span.head', make('b', item.head), ' ', shapeTag(item.shape));
    return make('td', button([head, parts], there,
        { class: `same ${item.kind}`, title: item.key }));
}

/* The rows of a group, with headings, and how many are not shown above and below. */
function comparedGroup(rows, [from, to]) {
    const wide = (cls, text) =>
        make(`tr.${cls}`, make('th', { colspan: traces.length, scope: 'rowgroup' }, text));
    const hidden = (n, where) =>
        n > 0 && wide('within', `${plural(n, 'row')} ${where} are not shown`);
    const lines = rows.slice(from, to).map((r, i) => {
        const { within } = r.first, line = make('tr', { 'data-name': r.name },
            r.items.map((item, k) => comparedCell(item, r.first, k)));
        const same = i > 0 && rows[from + i - 1].first.within === within;
        return [within && !same && wide('within', within), Object.assign(line, { row: r })];
    });
    return [rows.length > 0 && wide('group', rows[0].group), hidden(from, 'above'), lines,
        hidden(rows.length - to, 'below')];
}

/* The rows of a step, made when first asked for. */
const comparedAt = new Map();
let comparedShown = ''; /* which rows the table shows */

function renderCompare() {
    const { s } = position(), current = currentKey(), only = $('compare-only').checked;
    const graphs = traces.map((t) => t.steps[s] && graphOf(t, s));
    if (!comparedAt.has(s))
        comparedAt.set(s, GROUPS.map(([title, mapOf]) => rowsOf(title, graphs, mapOf)));
    const groups = comparedAt.get(s).map((rows) => (only ? rows.filter((r) => r.differs) : rows));
    const windows = groups.map((rows) => windowOf(rows, current));
    const shown = [s, only, ...windows].join(' ');
    if (shown !== comparedShown) fillCompare(comparedAt.get(s).flat(), groups, windows);
    comparedShown = shown;
    for (const line of $('compare-table').querySelectorAll('tr[data-name]'))
        mark(line, { now: isCurrent(line.row, current) });
    $('compare-table').querySelector('.now')?.scrollIntoView({ block: 'nearest' });
}

function fillCompare(all, groups, windows) {
    const head = (t) => make('th', { scope: 'col' }, t.title);
    fill($('compare-table'), make('thead', make('tr', traces.map(head))),
        make('tbody', groups.map((rows, i) => comparedGroup(rows, windows[i]))));
    const differ = all.filter((r) => r.differs).length;
    $('compare-note').textContent = `Step ${position().s + 1}: ${differ} of ${all.length} rows ` +
        'differ. Marked: what differs from the first column that has it.';
}

/* ---- tabs ------------------------------------------------------------------------------------ */

function showTrace(i) {
    const p = position(), other = trace() !== traces[i];
    state.trace = i;
    comparing(false);
    state.chosen = null;
    const s = Math.min(p.s, trace().steps.length - 1), at = placeOf({ ...p, s });
    state.at = at >= 0 ? at : placeOf({ s, phase: 'whole', i: 0 });
    renderBar();
    relayout();
    if (other) fit();
}

function comparing(on) {
    $('compare').hidden = !on;
    $('main').hidden = on;
    renderTabs();
    if (on) renderCompare();
}

function renderTabs() {
    if (traces.length < 2) return;
    const on = !$('compare').hidden;
    const tab = (text, selected, action) => button(text, action, { role: 'tab',
        'aria-selected': String(selected), tabindex: selected ? 0 : -1 });
    const there = (i) => {
        showTrace(i);
        render();
    };
    fill($('tabs'), traces.map((t, i) => tab(t.title, !on && i === state.trace, () => there(i))),
        tab('Side by side', on, () => comparing(true))).hidden = false;
}
