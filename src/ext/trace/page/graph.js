/*
 * graph.js - draws the graph: only what is in view, so that its size does not matter.
 *
 * The drawing is as large as the layout says and is scrolled as any text is. What is new in view is
 * added, what is out of view is taken away. Colours and numbers follow the position (paint).
 */

/* What the page shows; everything drawn follows from it. */
const state = {
    trace: 0, at: 0,   /* which trace, which of its positions */
    chosen: null,      /* a key, if something other than the current op was chosen */
    folded: new Set(), /* names of folded boxes */
    zoom: 1, fitted: null, /* the least zoom, if the zoom follows the window's size */
    predict: null,     /* the predict mode: null is off */
};

const trace = () => traces[state.trace];
const position = () => trace().positions[state.at];
const placeOf = ({ s, phase, i }) =>
    trace().positions.findIndex((p) => p.s === s && p.phase === phase && p.i === i);
const graph = () => graphOf(trace(), position().s);

/* The op that the position is about; undefined: the step as a whole, or the optimizer. */
function currentNode() {
    const { phase, i } = position(), { step, node } = graph();
    if (phase === 'forward') return step.nodes[i];
    return phase === 'backward' ? node.get(step.backward[i].node) : undefined;
}

const currentKey = () => currentNode() && 'n' + currentNode().id;

/* How far forward and backward have come: the last index that is shown; whether the gradients are
 * as the optimizer takes them, and whether it has moved the parameters, or there is none. In predict
 * mode the step as a whole shows no gradients, and an op of backward its own once it was answered. */
function progress() {
    const { phase, i, s } = position(), optimizer = phase === 'optimizer';
    const none = phase === 'forward' || (phase === 'whole' && !!state.predict);
    const last = phase !== 'backward' ? Infinity : question() ? i - 1 : i;
    const over = trace().positions[state.at + 1]?.s !== s;
    return { forward: phase === 'forward' ? i : Infinity, backward: none ? -1 : last, optimizer,
        taken: phase !== 'backward' && !none, moved: over || (phase === 'whole' && !none) };
}

/* The last step of backward whose gradients are told. */
const toldUntil = () => (state.predict ? progress().backward : Infinity);

/* The value of an item so far, as text; "" if it is not there yet. */
function valueText(g, { key, node, tensor }, done) {
    const [out] = node?.out || [], line = g.ledger.get(key);
    if (node) return node.id <= done.forward ? summaryText(out.value, out.shape, 3) : '';
    const moment = done.optimizer ? 'step'
        : g.writtenAt.get(key) <= done.forward ? 'forward' : 'start';
    return summaryText(line ? line[moment] : readValue(g, key), tensor.shape, 3);
}

/* The gradient of an item so far. */
function gradientText(g, { key, node, tensor }, done) {
    const k = g.backwardOf.get(node?.id).filter((i) => i <= done.backward).pop();
    const arrived = node ? g.step.backward[k]?.incoming[0] : { value: gradientSoFar(g, key, done) };
    const { shape } = tensor || node.out[arrived?.output ?? 0];
    return arrived?.value ? summaryText(arrived.value, shape, 3) : '';
}

/* The gradient of a tensor so far, which graph and ledger show: null if it has none yet. Clipping,
 * and whatever else changed it after backward, is in the ledger's. */
const gradientSoFar = (g, id, done) => (done.taken && g.ledger.get(id)?.grad) ||
    gradientsOf(g, id, done.backward).pop()?.value || null;

/* A number on a box: of more than one element it is a norm, and says so. */
const normText = (sign, text, shape) => (!text ? ''
    : elements(shape) !== 1 ? `‖${sign || '·'}‖ ${text}` : `${sign} ${text}`.trim());

/* ---- the drawing ----------------------------------------------------------------------------- */

let view = null;         /* the result of layoutGraph */
const drawn = new Map(); /* elements in the drawing, by key; what of one stands over the lines, the
                            title of an unfolded box, is its `over` */

/* The key of what is drawn for an op or a tensor. */
const shown = (key) => shownKey(view.g, state.folded, key);

/* Lays out again, after folding or in another step; keeps the place of the key's item on screen. */
function relayout(keep) {
    const scroll = $('scroll'), before = keep && view && view.items.get(keep);
    const offset = before && [before.x * state.zoom - scroll.scrollLeft,
        before.y * state.zoom - scroll.scrollTop];
    view = layoutGraph(graph(), state.folded);
    for (const key of [...drawn.keys()]) erase(key);
    resize();
    const after = keep && view.items.get(keep);
    if (before && after)
        scroll.scrollTo(after.x * state.zoom - offset[0], after.y * state.zoom - offset[1]);
    draw();
}

function resize() {
    const svg = $('drawing');
    svg.setAttribute('width', Math.ceil(view.w * state.zoom));
    svg.setAttribute('height', Math.ceil(view.h * state.zoom));
    svg.setAttribute('viewBox', `0 0 ${view.w} ${view.h}`);
}

/* Adds what has come into view, removes what has left it. */
function draw(everything) {
    const scroll = $('scroll'), z = state.zoom, more = 200;
    const left = scroll.scrollLeft - ($('drawing').offsetLeft || 0), top = scroll.scrollTop;
    const meets = (from, to, low, size) => everything ||
        (from < (low + size) / z + more && to > low / z - more);
    const inRows = (from, to) => meets(from, to, top, scroll.clientHeight);
    const inColumns = (from, to) => meets(from, to, left, scroll.clientWidth);
    const items = [...view.items.values()].filter((item) =>
        inRows(item.y, item.y + item.h) && inColumns(item.x, item.x + item.w));
    const edges = view.edges.filter((e) => inRows(e.top, e.bottom));
    const seen = new Set([...items, ...edges].map((x) => x.key));
    for (const key of [...drawn.keys()]) if (!seen.has(key)) erase(key);
    for (const item of items) if (!drawn.has(item.key)) addItem(item);
    for (const e of edges) if (!drawn.has(e.key)) addEdge(e);
    paint();
}

/* Takes an item or a line out of the drawing. */
function erase(key) {
    drawn.get(key).over?.remove();
    drawn.get(key).remove();
    drawn.delete(key);
}

function addEdge(e) {
    const d = pathOf(e), aside = `translate(${e.sideways ? '0,6' : '6,0'})`;
    const group = make(e.writes ? 'svg:g.edge writes' : 'svg:g.edge', make('svg:path.flow', { d }),
        e.gradient && make('svg:path.gradient', { d, transform: aside }));
    drawn.set(e.key, group);
    $('edges').append(group);
}

/* The outline: rounded boxes, for parameters filled, for buffers a cylinder, for data an oval. */
function outline({ kind, w, h }) {
    const r = 5, arc = `A${w / 2},${r} 0 0`;
    const can = `M0,${r}${arc} 1 ${w},${r}V${h - r}${arc} 1 0,${h - r}Z`;
    if (kind === 'buffer') return [make('svg:path.shape', { d: can }),
        make('svg:path.lid', { d: `M0,${r}${arc} 0 ${w},${r}` })];
    const rx = { tensor: h / 2, parameter: 2 }[kind] || 8;
    return make('svg:rect.shape', { width: w, height: h, rx });
}

const isLoss = (item) => item.node?.id === view.g.step.root;

function label(item) {
    const { kind, node, tensor, call } = item, { shape } = tensor || node?.out[0] || {};
    if (kind === 'ghost') return `${item.title}, from above`;
    if (kind === 'box')
        return `module ${callTitle(call)}, ${item.note}, ${item.open ? 'unfolded' : 'folded'}`;
    const what = node ? nodeTitle(view.g, node) : `${KIND[kind]} ${tensorName(tensor)}`;
    return `${what}, ${shape.join(' by ') || 'one number'}${isLoss(item) ? ', the loss' : ''}`;
}

const svgText = (cls, x, y, text) => make(`svg:text.${cls}`, { x, y }, text);

/* A small disc with a sign, which says more when the mouse is on it. */
const badge = (cls, sign, x, y, text) =>
    make(`svg:g.badge ${cls}`, { transform: `translate(${x},${y})` }, make('svg:title', text),
        make('svg:circle', { r: 8.5 }), make('svg:text', { y: 4.5 }, sign));

function addItem(item) {
    const { kind, node, w, open } = item, box = kind === 'box';
    const transform = `translate(${item.x},${item.y})`;
    const inset = kind === 'tensor' ? 14 : 9, y1 = kind === 'buffer' ? 22 : 18;
    const shares = node ? sharesInto(view.g, node.id) : 0;
    const findings = findingsIn(view.g, item).filter(isAlarm);
    const hint = node?.formula ? '\n' + plainFormula(node.formula) : '';
    const name = svgText('name', inset, y1, item.title);
    const sign = kind === 'ghost' ? '↑' : box && (open ? '−' : '+');
    const group = make('svg:g', {
        class: `item ${kind}${open ? ' open' : ''}`, 'data-key': item.key, role: 'button',
        tabindex: -1, 'aria-label': label(item), transform,
        'aria-expanded': box ? String(open) : null,
    }, outline(item), make('svg:title', label(item) + hint), name,
    sign ? svgText('fold', w - 14, 18, sign) : [svgText('note end', w - inset, y1, item.note),
        svgText('value', inset, y1 + 16), svgText('slope', w - inset, y1 + 16)],
    box && !open && svgText('note', inset, 35, item.note),
    shares > 1 && badge('sum', '+', w - 4, item.h, `${shares} gradients are added here`),
    isLoss(item) && svgText('tag', w + 12, 28, 'the loss'),
    findings.length > 0 && badge('finding', '!', 0, 0, findings.map((f) => f.text).join('\n')));
    if (open) {
        group.over = name;
        name.setAttribute('transform', transform);
        $('titles').append(name);
    }
    drawn.set(item.key, group);
    $(open ? 'boxes' : 'items').append(group);
}

/* The largest number of shares that were added for an op in one pass. */
const sharesInto = (g, id) => Math.max(0, ...g.backwardOf.get(id).flatMap((k) =>
    g.step.backward[k].incoming.map((x) => x.sum.length)));

function findingsIn(g, item) {
    if (item.node) return g.findings.get(item.node.id);
    if (item.kind !== 'box' || item.open) return [];
    return [...g.findings].flatMap(([id, list]) => (shown('n' + id) === item.key ? list : []));
}

/* ---- what follows the position --------------------------------------------------------------- */

/* Whether something that happens at these indices has happened, and whether it happens now. */
const flow = (at, reached, now) =>
    ({ passed: at.some((i) => i <= reached), now: at.includes(now) });

/* The indices of forward at which a value goes along a line; those of backward for the gradient. */
const forwardAt = (g, e) => (e.writes
    ? g.writes.filter((w) => shown(w.tensor) === e.to).map((w) => w.at)
    : e.parts.map(({ node }) => node.id));
const backwardAt = (g, e) => e.parts.flatMap(({ node, i }) => g.shares.get(`${node.id}.${i}`));

/* Gives an element the classes that are true, and takes the others away. */
function mark(element, classes) {
    for (const name in classes) element.classList.toggle(name, !!classes[name]);
}

/* Colours and numbers of what is drawn. */
function paint() {
    const { g } = view, done = progress(), p = position();
    const current = currentKey() && shown(currentKey()), entry = heldKey(); /* of Tab */
    const moved = p.phase === 'optimizer' ? [...g.updates.keys()] : [];
    const updated = new Set(moved.filter((id) => g.home.has(id)).map(shown));
    const now = (phase) => p.phase === phase && p.i <= done[phase] && p.i;
    for (const e of view.edges) {
        const group = drawn.get(e.key);
        if (!group) continue;
        mark(group.firstChild, flow(forwardAt(g, e), done.forward, now('forward')));
        if (e.gradient)
            mark(group.lastChild, flow(backwardAt(g, e), done.backward, now('backward')));
    }
    for (const item of view.items.values()) {
        const group = drawn.get(item.key);
        if (!group) continue;
        mark(group, { current: item.key === current, chosen: item.key === state.chosen,
            backward: item.key === current && p.phase === 'backward',
            updated: updated.has(item.key),
            ahead: item.node && item.node.id > done.forward });
        group.setAttribute('tabindex', item.key === entry ? 0 : -1);
        if (!item.node && !item.tensor) continue;
        const { shape } = item.tensor || item.node.out[0];
        put(group.querySelector('.value'), normText('', valueText(g, item, done), shape));
        put(group.querySelector('.slope'), normText('∂', gradientText(g, item, done), shape));
    }
}

/* The item in the drawing that is chosen, else current, else the first op. */
function heldKey() {
    const key = state.chosen || currentKey() || (view.g.node.has(0) && 'n0');
    return key ? shown(key) : null;
}

/* Scrolls as little as needed to have the item in view, with something around it. Who calls draws
   afterwards: the event of scrolling comes a frame late. */
function reveal(key, always) {
    const item = view.items.get(key), scroll = $('scroll'), z = state.zoom;
    if (!item) return;
    const x = item.x * z + ($('drawing').offsetLeft || 0), y = item.y * z;
    const w = item.w * z, h = Math.min(item.h * z, 200);
    const along = (at, size, from, length, room) =>
        (!always && at >= from + room && at + size <= from + length - room ? from
            : at + size / 2 - length / 2);
    scroll.scrollTo(along(x, w, scroll.scrollLeft, scroll.clientWidth, 10),
        along(y, h, scroll.scrollTop, scroll.clientHeight, 70));
}

/* ---- folding --------------------------------------------------------------------------------- */

function toggleFold(key) {
    const item = view.items.get(key);
    if (!item || item.kind !== 'box') return;
    const name = foldName(item.call);
    if (!state.folded.delete(name)) state.folded.add(name);
    relayout(key);
    reveal(key);
    render();
    focusItem(key);
}

function foldAll(fold) {
    const { g } = view;
    for (const call of g.step.calls)
        if (fold && g.call.has(call.outer)) state.folded.add(foldName(call));
        else state.folded.delete(foldName(call));
    relayout();
    fit(READABLE);
}

/* Unfolds all boxes around an op or tensor. */
function unfoldTo(key) {
    const { g } = view;
    let changed = false;
    for (let c = g.call.get(callAround(g, key)); c; c = g.call.get(c.outer))
        changed = state.folded.delete(foldName(c)) || changed;
    if (changed) relayout();
}

const focusItem = (key) => drawn.get(key)?.focus({ preventScroll: true });

function zoomTo(zoom) {
    const scroll = $('scroll'), before = state.zoom;
    const y = (scroll.scrollTop + scroll.clientHeight / 2) / before;
    const x = (scroll.scrollLeft + scroll.clientWidth / 2) / before;
    state.zoom = Math.min(2, Math.max(0.05, zoom));
    state.fitted = null;
    resize();
    scroll.scrollTo(x * state.zoom - scroll.clientWidth / 2,
        y * state.zoom - scroll.clientHeight / 2);
    draw();
}

/* As large as the window allows, all of it in view; but not below a least zoom, READABLE to read
 * it: then with the chosen or current item, or the input, in view. */
const READABLE = 0.7;
function fit(least = 0) {
    const scroll = $('scroll');
    const z = Math.min((scroll.clientWidth - 24) / view.w, (scroll.clientHeight - 24) / view.h);
    zoomTo(Math.min(1.1, Math.max(least, z)));
    state.fitted = least;
    reveal(heldKey(), true);
    draw();
}
