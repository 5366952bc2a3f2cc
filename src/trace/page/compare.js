/*
 * compare.js - several traces beside each other: a tab for each, and a table of what differs.
 *
 * Tensors and ops are the same in two traces if they have the same name: a tensor's is its name, an
 * op's the module's call that it is in, and which op of its kind it is there.
 */

/* The same number, but for rounding; null: there is none. */
function alike(a, b) {
    if (a === null || b === null || Number.isNaN(a)) return Object.is(a, b);
    return a === b || Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b));
}

const norm = (value) => (value ? number(value.norm) : null);

/* Rows: { group, title, texts: one for each trace, differ }. `same` compares two of a list. */
function row(group, title, list, textOf, same) {
    const texts = list.map((x) => (x === null || x === undefined ? 'not there' : textOf(x)));
    const first = list[0];
    const equal = (x, i) => (same && x && first ? same(x, first) : texts[i] === texts[0]);
    return { group, title, texts, differs: list.map((x, i) => !equal(x, i)) };
}

function stepRows(graphs) {
    const steps = graphs.map((g) => g && g.step);
    const movedBy = (who) => (step) =>
        String(step.ledger.filter((line) => line.moved === who).length);
    const add = (title, textOf, same) => row('The step', title, steps, textOf, same);
    return [
        add('mode', (step) => (step.training === false ? 'eval' : 'training')),
        add('loss', (step) => digits(step.loss),
            (a, b) => alike(number(a.loss), number(b.loss))),
        add('ops in forward', (step) => String(step.nodes.length)),
        add('ops in backward', (step) => String(step.backward.length)),
        add('moved by the optimizer', movedBy('by the optimizer')),
        add('moved by forward', movedBy('by forward')),
    ];
}

/* By name: what the ledger says of a tensor. */
function linesByName(g) {
    const lines = new Map();
    for (const line of g ? g.step.ledger : []) {
        const t = g.trace.byId.get(line.tensor);
        lines.set(tensorName(t), { ...line, t });
    }
    return lines;
}

function lineText({ t, grad, start, step, moved: by }) {
    const gradient = grad ? `gradient ${summaryText(grad, t.shape)}` : 'no gradient';
    const values = `${summaryText(start, t.shape)} → ${summaryText(step, t.shape)}`;
    return `${gradient}; ${values}, ${by === 'no' ? 'not moved' : by ?? 'moved by something unknown'}`;
}

const sameLine = (a, b) => a.moved === b.moved &&
    ['grad', 'start', 'step'].every((k) => alike(norm(a[k]), norm(b[k])));

/* By name: an op with the norms of its result and of the gradient that came to it. */
function opsByName(g) {
    const seen = new Map(), ops = new Map();
    for (const node of g ? g.step.nodes : []) {
        const call = g.call.get(node.call), base = `${call ? foldName(call) : ''} ${node.op}`;
        const n = (seen.get(base) || 0) + 1, k = (g.backwardOf.get(node.id) || [])[0];
        const back = k !== undefined && g.step.backward[k].incoming[0];
        const where = nodeTitle(g, node);
        seen.set(base, n);
        ops.set(`${base} ${n}`, { title: n > 1 ? `${where}, number ${n}` : where,
            result: norm(node.out[0].value), gradient: back ? norm(back.value) : null });
    }
    return ops;
}

const opText = ({ result, gradient }) => `result ${digits(result)}, ` +
    (gradient === null ? 'no gradient' : `gradient ${digits(gradient)}`);
const sameOp = (a, b) => alike(a.result, b.result) && alike(a.gradient, b.gradient);

/* A row for each name that one of the maps has. */
function rowsOf(group, maps, titleOf, textOf, same) {
    const names = new Set(maps.flatMap((map) => [...map.keys()]));
    return [...names].map((name) => {
        const found = maps.map((map) => map.get(name));
        return row(group, titleOf(name, found.find((x) => x)), found, textOf, same);
    });
}

function differences(graphs) {
    return [...stepRows(graphs),
        ...rowsOf('Parameters and buffers', graphs.map(linesByName), (name) => name, lineText,
            sameLine),
        ...rowsOf('Ops (norms)', graphs.map(opsByName), (_, op) => op.title, opText, sameOp)];
}

/* ---- the table ------------------------------------------------------------------------------- */

const DIFFERENCES_MOST = 500;

function differenceRow({ title, texts, differs }) {
    return make('tr', {}, make('th', { scope: 'row' }, title),
        texts.map((text, i) => make('td', { class: differs[i] ? 'other' : null }, text)));
}

function renderCompare() {
    const s = position().s;
    const rows = differences(traces.map((t) => (t.steps[s] ? graphOf(t, s) : null)));
    const different = rows.filter((r) => r.differs.some((x) => x));
    const shown = ($('compare-all').checked ? rows : different).slice(0, DIFFERENCES_MOST);
    const title = (r, i) => (!i || shown[i - 1].group !== r.group) && make('tr', { class: 'group' },
        make('th', { colspan: traces.length + 1, scope: 'colgroup' }, r.group));
    const head = traces.map((t) => make('th', { scope: 'col' }, t.title));
    $('compare-table').replaceChildren(make('thead', {}, make('tr', {}, make('td', {}), head)),
        make('tbody', {}, shown.map((r, i) => [title(r, i), differenceRow(r)])));
    $('compare-note').textContent = `Step ${s + 1}: ${different.length} of ${rows.length} rows ` +
        'differ' + (shown.length === DIFFERENCES_MOST ? `; ${shown.length} are shown` : '') +
        '. Marked: what differs from the first column.';
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
    })), tab('Differences', on, () => comparing(true)));
    $('tabs').hidden = false;
}
