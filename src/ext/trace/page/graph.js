/*
 * graph.js - draws the graph: only what is in view, so that its size does not matter.
 *
 * The drawing is as large as the layout says and is scrolled as any text is. What is new in view is
 * added, what is out of view is taken away. Colours and numbers follow the position (paint).
 */

const SVG = 'http://www.w3.org/2000/svg';
const $ = (id) => document.getElementById(id);

/* An element with attributes and children; texts become text, so nothing in a trace is markup. */
function make(tag, attributes, ...children) {
    const svg = tag.startsWith('svg:');
    const e = svg ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
        if (value === null || value === undefined || value === false) continue;
        if (name.startsWith('on')) e.addEventListener(name.slice(2), value);
        else e.setAttribute(name, value === true ? '' : value);
    }
    for (const child of children.flat(Infinity))
        if (child !== null && child !== undefined && child !== false) e.append(child);
    return e;
}

/* What the page shows; everything drawn follows from it. */
const state = {
    trace: 0, at: 0,   /* which trace, which of its positions */
    chosen: null,      /* a key, if something other than the current op was chosen */
    folded: new Set(), /* names of folded boxes */
    zoom: 1, fitted: false, /* whether the zoom follows the window's size */
    predict: null,     /* the predict mode: null is off */
};

const trace = () => traces[state.trace];
const position = () => trace().positions[state.at];
const graph = () => graphOf(trace(), position().s);

/* The key of the op that the position is about; null: the step as a whole, or the optimizer. */
function currentKey() {
    const p = position(), step = trace().steps[p.s];
    if (p.phase === 'forward') return 'n' + step.nodes[p.i].id;
    if (p.phase === 'backward') return 'n' + step.backward[p.i].node;
    return null;
}

/* How far forward and backward have come: the last index that is shown. In predict mode the step as
 * a whole shows no gradients, and an op of backward shows its own once it was answered. */
function progress() {
    const p = position();
    if (p.phase === 'forward') return { forward: p.i, backward: -1, optimizer: false };
    if (p.phase === 'backward')
        return { forward: Infinity, backward: question() ? p.i - 1 : p.i, optimizer: false };
    const optimizer = p.phase === 'optimizer';
    return { forward: Infinity, backward: state.predict && !optimizer ? -1 : Infinity, optimizer };
}

/* The value of an item so far, as text; "" if it is not there yet. */
function valueText(g, item, done) {
    if (item.node) {
        if (g.at.get(item.node.id) > done.forward) return '';
        return summaryText(item.node.out[0].value, item.node.out[0].shape, 3);
    }
    if (!item.tensor) return '';
    const line = g.ledger.get(item.key), t = item.tensor;
    if (!line) return summaryText(readValue(g, item.key), t.shape, 3);
    const written = g.writtenAt.has(item.key) && g.writtenAt.get(item.key) <= done.forward;
    const value = done.optimizer ? line.step : written ? line.forward : line.start;
    return summaryText(value, t.shape, 3);
}

/* The gradient of an item so far. */
function gradientText(g, item, done) {
    if (item.node) {
        const k = (g.backwardOf.get(item.node.id) || []).filter((i) => i <= done.backward).pop();
        if (k === undefined) return '';
        const incoming = g.step.backward[k].incoming[0];
        return incoming ? summaryText(incoming.value, item.node.out[incoming.output].shape, 3) : '';
    }
    const arrived = gradientSoFar(g, item.key, done.backward);
    return arrived ? summaryText(arrived.value, item.tensor.shape, 3) : '';
}

/* ---- the drawing ----------------------------------------------------------------------------- */

let view = null;          /* the result of layoutGraph */
let viewOf = null;        /* the graph that it shows */
const drawn = new Map();  /* elements in the drawing, by key */
const titles = new Map(); /* those of unfolded boxes, which stand over the lines */

/* Lays out again, after folding or in another step; keeps the place of the key's item on screen. */
function relayout(keep) {
    const scroll = $('scroll'), before = keep && view && view.items.get(keep);
    const offset = before && [before.x * state.zoom - scroll.scrollLeft,
        before.y * state.zoom - scroll.scrollTop];
    viewOf = graph();
    view = layoutGraph(viewOf, state.folded);
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
    const svg = $('drawing'), pad = svg.offsetLeft || 0;
    const left = scroll.scrollLeft - pad, top = scroll.scrollTop;
    const all = { top: -Infinity, bottom: Infinity, left: -Infinity, right: Infinity };
    const box = everything ? all : {
        top: top / z - more, bottom: (top + scroll.clientHeight) / z + more,
        left: left / z - more, right: (left + scroll.clientWidth) / z + more,
    };
    const seen = new Set();
    for (const item of view.items.values())
        if (item.y < box.bottom && item.y + item.h > box.top && item.x < box.right &&
            item.x + item.w > box.left) {
            seen.add(item.key);
            if (!drawn.has(item.key)) addItem(item);
        }
    for (const e of view.edges)
        if (e.top < box.bottom && e.bottom > box.top) {
            seen.add(e.key);
            if (!drawn.has(e.key)) addEdge(e);
        }
    for (const key of [...drawn.keys()]) if (!seen.has(key)) erase(key);
    paint();
}

/* Takes an item or a line out of the drawing. */
function erase(key) {
    for (const e of [drawn.get(key), titles.get(key)]) if (e) e.remove();
    drawn.delete(key);
    titles.delete(key);
}

function addEdge(e) {
    const group = make('svg:g', { class: e.writes ? 'edge writes' : 'edge' },
        make('svg:path', { class: 'flow', d: pathOf(e, 0), 'marker-end': e.writes
            ? 'url(#to-buffer)' : 'url(#to-value)' }));
    if (e.gradient)
        group.append(make('svg:path', { class: 'gradient', d: pathOf(e, 6),
            'marker-start': 'url(#to-gradient)' }));
    drawn.set(e.key, group);
    $('edges').append(group);
}

/* The outline: rounded boxes, for parameters filled, for buffers a cylinder, for data an oval. */
function outline(item) {
    const { w, h } = item;
    if (item.kind === 'buffer') {
        const r = 5;
        const d = `M0,${r}A${w / 2},${r} 0 0 1 ${w},${r}V${h - r}A${w / 2},${r} 0 0 1 0,${h - r}Z`;
        const lid = `M0,${r}A${w / 2},${r} 0 0 0 ${w},${r}`;
        return [make('svg:path', { class: 'shape', d }),
            make('svg:path', { class: 'lid', d: lid })];
    }
    const rx = item.kind === 'tensor' ? h / 2 : item.kind === 'parameter' ? 2 : 8;
    return [make('svg:rect', { class: 'shape', width: w, height: h, rx })];
}

function label(item) {
    const g = viewOf;
    if (item.kind === 'ghost') return `${item.title}, from above`;
    if (item.kind === 'box')
        return `module ${callTitle(item.call)}, ${item.note}, ` +
            (item.folded ? 'folded' : 'unfolded');
    const what = item.node ? nodeTitle(g, item.node)
        : `${KIND[item.kind]} ${tensorName(item.tensor)}`;
    const shape = item.node ? item.node.out[0].shape : item.tensor.shape;
    return `${what}, ${shape.length ? shape.join(' by ') : 'one number'}` +
        (item.node && item.node.id === g.step.root ? ', the loss' : '');
}

function addItem(item) {
    const open = item.kind === 'box' && !item.folded;
    const inset = item.kind === 'tensor' ? 14 : 9, y1 = item.kind === 'buffer' ? 22 : 18;
    const group = make('svg:g', {
        class: `item ${item.kind}${open ? ' open' : ''}`, 'data-key': item.key, role: 'button',
        tabindex: -1, 'aria-label': label(item), transform: `translate(${item.x},${item.y})`,
        'aria-expanded': item.kind === 'box' ? String(open) : null }, outline(item));
    const hint = item.node && item.node.formula ? '\n' + item.node.formula : '';
    const name = make('svg:text', { class: 'name', x: inset, y: y1 }, item.title);
    group.append(make('svg:title', {}, label(item) + hint), name);
    if (open) {
        titles.set(item.key, name);
        name.setAttribute('transform', `translate(${item.x},${item.y})`);
        $('titles').append(name);
    }
    if (item.kind === 'box') {
        const sign = open ? '−' : '+';
        group.append(make('svg:text', { class: 'fold', x: item.w - 14, y: 18 }, sign));
        if (!open) group.append(make('svg:text', { class: 'note', x: inset, y: 35 }, item.note));
    } else if (item.kind === 'ghost') {
        group.append(make('svg:text', { class: 'fold', x: item.w - 14, y: 18 }, '↑'));
    } else {
        group.append(
            make('svg:text', { class: 'note end', x: item.w - inset, y: y1 }, item.note),
            make('svg:text', { class: 'value', x: inset, y: y1 + 16 }),
            make('svg:text', { class: 'slope', x: item.w - inset, y: y1 + 16 }));
    }
    if (item.node) {
        const g = viewOf, shares = sharesInto(g, item.node.id);
        if (shares > 1)
            group.append(make('svg:g',
                { class: 'sum', transform: `translate(${item.w - 4},${item.h})` },
                make('svg:circle', { r: 8 }), make('svg:text', { y: 4 }, '+'),
                make('svg:title', {}, `${shares} gradients are added here`)));
        if (item.node.id === g.step.root)
            group.append(make('svg:text', { class: 'tag', x: item.w + 12, y: 28 }, 'the loss'));
    }
    const findings = findingsIn(viewOf, item);
    if (findings.length)
        group.append(make('svg:g', { class: 'finding', transform: 'translate(0,0)' },
            make('svg:circle', { r: 9 }), make('svg:text', { y: 4.5 }, '!'),
            make('svg:title', {}, findings.map((f) => f.text).join('\n'))));
    drawn.set(item.key, group);
    $(open ? 'boxes' : 'items').append(group);
}

/* The largest number of shares that were added for an op in one pass. */
function sharesInto(g, id) {
    return Math.max(0, ...(g.backwardOf.get(id) || []).flatMap((k) =>
        g.step.backward[k].incoming.map((x) => x.sum.length)));
}

function findingsIn(g, item) {
    if (item.node) return g.findings.get(item.node.id) || [];
    if (item.kind !== 'box' || !item.folded) return [];
    const found = [];
    for (const [id, list] of g.findings)
        if (shownKey(g, state.folded, 'n' + id) === item.key) found.push(...list);
    return found;
}

/* ---- what follows the position --------------------------------------------------------------- */

/* Whether the value has gone along a line, and whether this is happening now. */
function edgeFlow(g, e, done, p) {
    const at = e.writes ? g.writes.filter((w) => shownKey(g, state.folded, w.tensor) === e.to)
        .map((w) => w.at) : e.parts.map(({ node }) => g.at.get(node.id));
    return { passed: at.some((i) => i <= done.forward),
        now: p.phase === 'forward' && at.includes(p.i) };
}

function gradientFlow(g, e, done, p) {
    const at = e.parts.flatMap(({ node, i }) => g.shares.get(`${node.id}.${i}`) || []);
    return { passed: at.some((k) => k <= done.backward),
        now: p.phase === 'backward' && p.i <= done.backward && at.includes(p.i) };
}

/* Gives an element the classes that are true, and takes the others away. */
function mark(element, classes) {
    for (const name in classes) element.classList.toggle(name, classes[name]);
}

/* Colours and numbers of what is drawn. */
function paint() {
    const g = viewOf, done = progress(), p = position();
    const current = currentKey() && shownKey(g, state.folded, currentKey());
    const chosen = state.chosen, entry = chosen || current || firstKey(); /* of Tab */
    const moved = p.phase === 'optimizer' ? [...g.updates.keys()] : [];
    const updated = new Set(moved.filter((id) => g.home.has(id))
        .map((id) => shownKey(g, state.folded, id)));
    for (const e of view.edges) {
        const group = drawn.get(e.key);
        if (!group) continue;
        mark(group.firstChild, edgeFlow(g, e, done, p));
        if (e.gradient) mark(group.lastChild, gradientFlow(g, e, done, p));
    }
    for (const item of view.items.values()) {
        const group = drawn.get(item.key);
        if (!group) continue;
        mark(group, { current: item.key === current, chosen: item.key === chosen,
            backward: item.key === current && p.phase === 'backward',
            updated: updated.has(item.key),
            ahead: !!item.node && g.at.get(item.node.id) > done.forward });
        group.setAttribute('tabindex', item.key === entry ? 0 : -1);
        if (item.kind === 'box' || item.kind === 'ghost') continue;
        const value = valueText(g, item, done), slope = gradientText(g, item, done);
        setText(group.querySelector('.value'), value);
        setText(group.querySelector('.slope'), slope && `∂ ${slope}`);
    }
}

function setText(e, text) {
    if (e && e.textContent !== text) e.textContent = text;
}

/* Where Tab enters the graph when nothing is current: the loss. */
function firstKey() {
    const { root } = viewOf.step;
    return viewOf.node.has(root) ? shownKey(viewOf, state.folded, 'n' + root) : null;
}

/* Scrolls as little as needed to have the item in view, with something around it. Who calls draws
   afterwards: the event of scrolling comes a frame late. */
function reveal(key, always) {
    const item = view.items.get(key), scroll = $('scroll'), z = state.zoom;
    if (!item) return;
    const pad = $('drawing').offsetLeft || 0, room = 70;
    const x = item.x * z + pad, y = item.y * z, w = item.w * z, h = Math.min(item.h * z, 200);
    const sees = (at, size, from, length) => at >= from && at + size <= from + length;
    let left = scroll.scrollLeft, top = scroll.scrollTop;
    if (always || !sees(x, w, left + 10, scroll.clientWidth - 20))
        left = x + w / 2 - scroll.clientWidth / 2;
    if (always || !sees(y, h, top + room, scroll.clientHeight - 2 * room))
        top = y + h / 2 - scroll.clientHeight / 2;
    scroll.scrollTo(left, top);
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
    const g = viewOf;
    for (const call of g.step.calls)
        if (fold && g.call.has(call.outer)) state.folded.add(foldName(call));
        else state.folded.delete(foldName(call));
    relayout();
    fit();
}

/* Unfolds all boxes around an op or tensor. */
function unfoldTo(key) {
    const g = viewOf;
    let changed = false;
    for (let c = g.call.get(callAround(g, key)); c; c = g.call.get(c.outer))
        changed = state.folded.delete(foldName(c)) || changed;
    if (changed) relayout();
}

function focusItem(key) {
    const e = drawn.get(key);
    if (e) e.focus({ preventScroll: true });
}

function zoomTo(zoom) {
    const scroll = $('scroll'), before = state.zoom;
    const y = (scroll.scrollTop + scroll.clientHeight / 2) / before;
    const x = (scroll.scrollLeft + scroll.clientWidth / 2) / before;
    state.zoom = Math.min(2, Math.max(0.15, zoom));
    state.fitted = false;
    resize();
    scroll.scrollTo(x * state.zoom - scroll.clientWidth / 2,
        y * state.zoom - scroll.clientHeight / 2);
    draw();
}

/* As large as the width allows, but readable; then the loss in view. */
function fit() {
    const scroll = $('scroll');
    const z = Math.min((scroll.clientWidth - 24) / view.w, (scroll.clientHeight - 24) / view.h);
    zoomTo(Math.min(1.1, Math.max(0.7, z)));
    state.fitted = true;
    if (state.chosen || currentKey())
        reveal(shownKey(viewOf, state.folded, state.chosen || currentKey()), true);
    else {
        const loss = view.items.get(firstKey());
        const x = loss ? loss.x + loss.w / 2 : view.w / 2;
        scroll.scrollTo(x * state.zoom - scroll.clientWidth / 2, view.h * state.zoom);
    }
    draw();
}
