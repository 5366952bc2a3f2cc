/*
 * compare.js - several traces: a tab for each, and one in which they stand side by side, a column
 * each, with what differs marked.
 *
 * Tensors and ops are the same in two traces if they have the same name: a tensor's is its name, an
 * op's the module's call that it is in, and which op of its kind it is there. Each is one row; where
 * a trace has none, its place stays empty.
 */

/* The same number, but for rounding; null: there is none. */
function alike(a, b) {
    if (a === null || b === null || Number.isNaN(a)) return Object.is(a, b);
    return a === b || Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b));
}

/* ---- what is compared ------------------------------------------------------------------------ */

/* Part of a cell: a text, and the numbers that it stands for; without any the text counts. */
const part = (cls, text, ...numbers) => ({ cls, text, numbers });
const samePart = (a, b) => a.numbers.length === b.numbers.length && (a.numbers.length
    ? a.numbers.every((x, i) => alike(x, b.numbers[i])) : a.text === b.text);

function facts(g) {
    const { step } = g, movedBy = (who) =>
        String(step.ledger.filter((line) => (line.moved || '').includes(who)).length);
    return new Map([
        ['mode', step.training === false ? 'eval' : 'training'],
        ['ops in forward', String(step.nodes.length)],
        ['ops in backward', String(step.backward.length)],
        ['moved by the optimizer', movedBy('by the optimizer')],
        ['moved by forward', movedBy('by forward')],
    ].map(([name, text]) => [name, { head: name, parts: [part('fact', text)] }])
        .concat([['loss', { head: 'loss', parts: [part('fact', digits(step.loss), step.loss)] }]]));
}

/* By name: what the ledger says of a tensor. */
function linesByName(g) {
    const lines = new Map();
    for (const line of g.step.ledger) {
        const t = g.trace.byId.get(line.tensor), size = (value) => summary(value, t.shape);
        const frozen = t.kind === 'parameter' && !t.requires_grad ? 'frozen' : 'no gradient';
        const by = line.moved === 'no' ? 'not moved'
            : line.moved === null ? 'moved, not known by whom' : `moved ${line.moved}`;
        lines.set(tensorName(t), { key: t.id, kind: t.kind, head: tensorName(t), shape: t.shape,
            parts: [
                part('value', `${summaryText(line.start, t.shape)} → ${summaryText(line.step,
                    t.shape)}`, size(line.start), size(line.step)),
                part('slope', line.grad ? `∂ ${summaryText(line.grad, t.shape)}` : frozen,
                    ...(line.grad ? [size(line.grad)] : [])),
                part('by', by)] });
    }
    return lines;
}

/* By name: an op with its result and the gradient that came to it. */
function opsByName(g) {
    const seen = new Map(), ops = new Map();
    for (const node of g.step.nodes) {
        const call = g.call.get(node.call), base = `${call ? foldName(call) : ''} ${node.op}`;
        const n = (seen.get(base) || 0) + 1, k = (g.backwardOf.get(node.id) || [])[0];
        const back = k !== undefined && g.step.backward[k].incoming[0];
        const { value, shape } = node.out[0];
        seen.set(base, n);
        ops.set(`${base} ${n}`, { key: 'n' + node.id, kind: 'op', head: node.op, shape,
            within: call ? callTitle(call) : 'outside of all modules',
            parts: [part('value', summaryText(value, shape), summary(value, shape)),
                part('slope', back ? `∂ ${summaryText(back.value, shape)}` : 'no gradient',
                    ...(back ? [summary(back.value, shape)] : []))] });
    }
    return ops;
}

/* All names, in an order that follows each of the maps. */
function mergedNames(maps) {
    let names = [];
    for (const map of maps) {
        const known = new Set(names), after = new Map();
        let last = null;
        for (const name of map.keys())
            if (known.has(name)) last = name;
            else addTo(after, last, name);
        names = [null, ...names].flatMap((n) => [n, ...(after.get(n) || [])]).slice(1);
    }
    return names;
}

/* Rows: { group, name, items: one for each trace, or undefined; differs }. */
function rowsOf(group, graphs, mapOf) {
    const maps = graphs.map((g) => (g ? mapOf(g) : new Map()));
    return mergedNames(maps).map((name) => {
        const items = maps.map((map) => map.get(name)), first = items.find((x) => x);
        const differs = items.some((x) => !x || x.parts.some((p, i) => !samePart(p, first.parts[i])));
        return { group, name, items, first, differs };
    });
}

const comparedRows = (graphs) => [...rowsOf('The step', graphs, facts),
    ...rowsOf('Ops: results, and the gradients that come to them', graphs, opsByName),
    ...rowsOf('Parameters and buffers: before and after the step, gradients', graphs, linesByName)];

/* ---- the columns ----------------------------------------------------------------------------- */

const ROWS_MOST = 500;

/* What a trace has of a row; a click goes there. */
function comparedCell(item, first, i) {
    if (!item) return make('td', { class: 'absent' }, 'not there');
    const parts = item.parts.map((p, k) => make('span',
        { class: samePart(p, first.parts[k]) ? p.cls : `${p.cls} other` }, p.text));
    if (!item.kind) return make('td', { class: 'fact' }, make('b', {}, item.head), parts);
    const there = () => {
        comparing(false);
        showTrace(i);
        choose(item.key);
    };
    return make('td', {}, make('button', { type: 'button', class: `same ${item.kind}`,
        title: item.key, onclick: there }, make('span', { class: 'head' }, make('b', {}, item.head), ' ',
        make('span', { class: 'shape' }, shapeText(item.shape))), parts));
}

function comparedTable(rows, current) {
    const wide = (cls, text) => make('tr', { class: cls },
        make('th', { colspan: traces.length, scope: 'rowgroup' }, text));
    let group = '', within = '';
    return rows.map((r) => {
        const heads = [], place = r.first.within || '';
        if (r.group !== group) heads.push(wide('group', (group = r.group)));
        if (place !== within && place) heads.push(wide('within', place));
        within = place;
        const here = r.items[state.trace] && r.items[state.trace].key === current;
        return [heads, make('tr', { 'data-name': r.name, class: [r.differs ? 'differs' : '',
            here ? 'now' : ''].join(' ').trim() || null },
        r.items.map((item, i) => comparedCell(item, r.first, i)))];
    });
}

function renderCompare() {
    const { s } = position(), rows = comparedRows(traces.map((t) => t.steps[s] ? graphOf(t, s) : null));
    const different = rows.filter((r) => r.differs), only = $('compare-only').checked;
    const shown = (only ? different : rows).slice(0, ROWS_MOST);
    const head = (t) => make('th', { scope: 'col' }, t.title);
    $('compare-table').replaceChildren(
        make('thead', {}, make('tr', {}, traces.map(head))),
        make('tbody', {}, comparedTable(shown, currentKey())));
    $('compare-note').textContent = `Step ${s + 1}: ${different.length} of ${rows.length} rows ` +
        'differ' + (shown.length === ROWS_MOST ? `; ${shown.length} are shown` : '') +
        '. Marked: what differs from the first column that has it.';
    const now = $('compare-table').querySelector('.now');
    if (now) now.scrollIntoView({ block: 'nearest' });
}

/* ---- tabs ------------------------------------------------------------------------------------ */

function showTrace(i) {
    const p = position(), same = trace() !== traces[i];
    state.trace = i;
    state.chosen = null;
    const s = Math.min(p.s, trace().steps.length - 1);
    const within = trace().positions.findIndex((q) =>
        q.s === s && q.phase === p.phase && q.i === p.i);
    state.at = within >= 0 ? within : trace().firstPosition[s];
    renderBar();
    relayout();
    if (same) fit();
    renderTabs();
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
    const tab = (text, selected, action) => make('button', { type: 'button', role: 'tab',
        'aria-selected': String(selected), tabindex: selected ? 0 : -1, onclick: action }, text);
    $('tabs').replaceChildren(...traces.map((t, i) => tab(t.title, !on && i === state.trace, () => {
        comparing(false);
        showTrace(i);
        render();
    })), tab('Side by side', on, () => comparing(true)));
    $('tabs').hidden = false;
}
