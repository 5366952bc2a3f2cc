/*
 * layout.js - where everything of the graph stands.
 *
 * Boxes are laid out from the inside to the outside: what is in an unfolded box is laid out by
 * itself, and then stands in the box around it as one large item; a folded box is a small item.
 * Within a box it is the layered layout of directed graphs: an item's layer is the longest path to
 * it, lines over several layers get a bend in each, bends and items of a layer are put into an
 * order with few crossings (each at the mean of its neighbours, several times up and down), and
 * then moved towards their neighbours as far as the others of the layer let them.
 * (Sugiyama, Tagawa, Toda 1981.)
 *
 * A line between two boxes is cut where it passes the border of a box: a port there, one for each
 * source, is an item of no size. A tensor that only one op uses, as most parameters and buffers
 * are, stands beside it; op and tensors then are laid out as one item. A line that would pass very
 * many items is replaced by a reference beside the reader.
 */

const NODE = { height: 44, least: 158, gapX: 20, gapY: 22, pad: 12, head: 24, gapSide: 30 };

/* Approximate width of a text of that many characters: nothing is measured during layout. */
const textWidth = (text, size) => text.length * size * 0.6;

/* ---- what is drawn --------------------------------------------------------------------------- */

/* The outermost folded box around a call's inside, else null. */
function foldedAround(g, folded, callId) {
    let found = null;
    for (let c = g.call.get(callId); c; c = g.call.get(c.outer))
        if (folded.has(foldName(c))) found = c;
    return found;
}

/* The id of the call that an op, a tensor or another call is in. */
function callAround(g, key) {
    const id = Number(key.slice(1));
    return key[0] === 'n' ? g.node.get(id)?.call
        : key[0] === 't' ? g.home.get(key)?.call : g.call.get(id)?.outer;
}

/* The key of the item shown for an op or a tensor: itself, or the folded box around it. */
function shownKey(g, folded, key) {
    const box = foldedAround(g, folded, callAround(g, key));
    return box ? 'c' + box.id : key;
}

/* An item with its title, and a note at its right; t: its place in the order of forward. */
function newItem(kind, key, call, t, title, note, more) {
    const w = Math.max(NODE.least, textWidth(title, 14) + textWidth(note, 11) + 34);
    return { kind, key, parent: call ?? null, t, title, note, w, h: NODE.height,
        left: [], right: [], ...more }; /* left, right: tensors beside it */
}

function boxItem(g, call, folded) {
    const title = callTitle(call, g.call.get(call.outer)), writes = call.writes.length;
    const note = plural(g.ops.get(call.id).length, 'op') +
        (writes ? `, writes ${plural(writes, 'buffer')}` : '');
    return newItem('box', 'c' + call.id, call.outer, g.ops.get(call.id)[0], title, note,
        { call, open: !folded.has(foldName(call)),
            w: Math.max(NODE.least, textWidth(title, 13) + 44, textWidth(note, 12) + 20) });
}

/* In its module's box a tensor has its short name. */
function tensorItem(g, t) {
    const home = g.home.get(t.id), call = g.call.get(home.call);
    let title = nameIn(call, tensorName(t));
    if (title.length > 24) title = '…' + title.slice(-23);
    return newItem(t.kind, t.id, home.call, home.at, title, shapeText(t.shape), { tensor: t });
}

/* All items, by key, with the lists of what is in each box; "" is the page. */
function visibleItems(g, folded) {
    const items = new Map(), inside = new Lists([['', []]]);
    const add = (item) => {
        if (foldedAround(g, folded, item.parent)) return;
        item.parent = item.parent === null ? '' : 'c' + item.parent;
        items.set(item.key, item);
        inside.add(item.parent, item);
    };
    for (const call of g.step.calls) if (g.ops.has(call.id)) add(boxItem(g, call, folded));
    g.step.nodes.forEach((node, at) => add(newItem('op', 'n' + node.id, node.call, at, node.op,
        shapeText(node.out[0].shape), { node })));
    for (const t of g.trace.tensors) if (g.home.has(t.id)) add(tensorItem(g, t));
    for (const list of inside.values()) list.sort((a, b) => a.t - b.t);
    return { items, inside };
}

/* Lines between items: one for each pair, with the inputs it stands for; and one for what is written,
 * of which part is null. */
function visibleEdges(g, folded) {
    const edges = new Map();
    const add = (source, target, part, gradient) => {
        const from = shownKey(g, folded, source), to = shownKey(g, folded, target);
        const key = `${from}>${to}${part ? '' : '!'}`;
        if (from === to) return;
        if (!edges.has(key)) edges.set(key, { key, from, to, parts: [], writes: !part });
        const e = edges.get(key);
        if (part) e.parts.push(part);
        e.gradient ||= gradient;
    };
    for (const node of g.step.nodes)
        node.in.forEach((input, i) => input &&
            add(keyOf(input.from), 'n' + node.id, { node, i }, input.gradient));
    for (const { at, tensor } of g.writes)
        if (g.step.nodes[at]) add('n' + g.step.nodes[at].id, tensor, null, false);
    return [...edges.values()];
}

/* ---- long lines ------------------------------------------------------------------------------ */

const FAR = { tensor: 12, op: 40 }; /* items that a line may pass */

/* The boxes around an item, from the inside out, each with which item of it. */
function boxesAround(items, key) {
    const boxes = new Map();
    for (let k = key; k !== ''; k = items.get(k).parent) boxes.set(items.get(k).parent, k);
    return boxes;
}

/* The way of a line: up through the boxes around `from`, across the innermost that holds both, and
 * down to `to`. For each box, from which item in it to which; ports are keys of their own. */
function wayOf(items, { from, to }) {
    const up = boxesAround(items, from), down = boxesAround(items, to), below = [...down];
    const outer = below.splice(below.findIndex(([box]) => up.has(box)));
    const [box, key] = outer[0], above = [...up].filter(([b]) => !down.has(b));
    return { up: above.map(([b, k]) => ({ box: b, from: k, to: 'out:' + from })),
        across: { box, from: up.get(box), to: key },
        down: below.reverse().map(([b, k]) => ({ box: b, from: 'in:' + from, to: k })) };
}

/* Replaces a line from far above by a short one, from a reference to its source. */
function shortenLines({ items, inside, edges }) {
    for (const list of inside.values()) list.forEach((item, i) => (item.index = i));
    for (const e of edges) {
        const { across } = wayOf(items, e), from = items.get(e.from), to = items.get(e.to);
        const passed = items.get(across.to).index - items.get(across.from).index;
        if (e.writes || passed <= (from.tensor ? FAR.tensor : FAR.op)) continue;
        const title = from.tensor ? shortened(tensorName(from.tensor))
            : `${from.title} ${from.note}`;
        const item = newItem('ghost', '~' + e.key, to.parent, to.t - 0.5, title, '',
            { of: e.from, w: textWidth(title, 12) + 34, h: 28 });
        items.set(item.key, item);
        inside.get(to.parent).push(item);
        e.from = item.key;
    }
    for (const list of inside.values()) list.sort((a, b) => a.t - b.t);
}

/* ---- tensors beside ops ---------------------------------------------------------------------- */

/* Finds the tensors with lines to one op alone, in the same box: they go to its sides, in turn. */
function findSides({ items, edges }) {
    const touching = new Lists();
    for (const e of edges)
        for (const [key, other] of [[e.from, e.to], [e.to, e.from]]) touching.add(key, other);
    for (const item of items.values()) {
        const may = ['parameter', 'buffer', 'ghost'].includes(item.kind);
        const others = new Set(may ? touching.get(item.key) : []);
        const op = others.size === 1 && items.get([...others][0]);
        if (!op || !op.node || op.parent !== item.parent) continue;
        (op.left.length <= op.right.length ? op.left : op.right).push(item);
        item.beside = op;
    }
    for (const e of edges) e.side = !!(items.get(e.from).beside || items.get(e.to).beside);
}

const largestOf = (list, of) => list.reduce((m, x) => Math.max(m, of(x)), 0);
const stackHeight = (list) => Math.max(0, list.length * (NODE.height + 8) - 8);
const stackWidth = (list) => (list.length ? largestOf(list, (t) => t.w) + NODE.gapSide : 0);

/* What has a place in a layer; mid: where its lines are, from its left end. */
const inLayer = (key, t, more) => ({ key, t, w: 8, h: 0, mid: 4, up: [], down: [], ...more });

/* What is laid out for an item: with the tensors beside it. */
function unitOf(item) {
    const { key, t, tensor, left, right } = item, mid = stackWidth(left) + item.w / 2;
    return inLayer(key, t, { item, tensor, mid, w: stackWidth(left) + item.w + stackWidth(right),
        h: Math.max(item.h, stackHeight(left), stackHeight(right)) });
}

/* The unit's place becomes that of the item and of the tensors beside it. */
function placeUnit(unit) {
    const { item } = unit;
    item.x = unit.x + unit.mid - item.w / 2;
    item.y = unit.y + (unit.h - item.h) / 2;
    const stack = (list, x) => list.forEach((t, i) => {
        t.x = x(t);
        t.y = unit.y + (unit.h - stackHeight(list)) / 2 + i * (NODE.height + 8) +
            (NODE.height - t.h) / 2;
    });
    stack(item.left, (t) => item.x - NODE.gapSide - t.w);
    stack(item.right, () => item.x + item.w + NODE.gapSide);
}

/* ---- one box --------------------------------------------------------------------------------- */

/* Cuts each line into its parts in the boxes that it passes: gives these, by box. */
function cutEdges({ items, edges }) {
    const local = new Lists();
    for (const e of edges) {
        const way = e.side ? null : wayOf(items, e);
        e.cuts = way ? [...way.up, way.across, ...way.down] : [];
        for (const part of e.cuts) local.add(part.box, part);
    }
    return local;
}

/* Ports of a box: where lines come in at its top and go out at its bottom. */
function portsOf(parts) {
    const ports = new Map();
    for (const key of parts.flatMap((p) => [p.from, p.to])) {
        const [, port] = /^(in|out):/.exec(key) || [];
        if (port) ports.set(key, inLayer(key, port === 'in' ? -Infinity : Infinity, { port }));
    }
    return [...ports.values()];
}

/* Layers of a box's items: the longest path, but tensors just above their first reader. */
function layer(list, parts, byKey) {
    const out = new Lists();
    for (const p of parts) out.add(p.from, byKey.get(p.to));
    const readers = (x) => out.get(x.key).filter((y) => y.t > x.t);
    const first = list.some((x) => x.port === 'in') ? 1 : 0; /* ports have a row of their own */
    for (const x of list) x.layer = x.port === 'in' ? 0 : first;
    for (const x of list) for (const y of readers(x)) y.layer = Math.max(y.layer, x.layer + 1);
    const last = largestOf(list, (x) => (x.port ? 0 : x.layer));
    for (const x of list) if (x.port === 'out') x.layer = last + 1;
    for (const x of list)
        if (x.tensor && readers(x).length)
            x.layer = Math.max(x.layer, Math.min(...readers(x).map((y) => y.layer)) - 1);
}

/* Bends: one item of no width for each source and each layer that its lines cross. The way of each
 * part is the items from its first to its last. */
function addBends(parts, byKey, layers) {
    const bends = new Map();
    for (const p of parts) {
        const from = byKey.get(p.from), to = byKey.get(p.to);
        p.way = [from];
        for (let l = from.layer + 1; l < to.layer; l++) {
            const key = `${p.from}@${l}`;
            if (!bends.has(key)) {
                bends.set(key, inLayer(key, from.t, { bend: true }));
                layers[l].push(bends.get(key));
            }
            p.way.push(bends.get(key));
        }
        p.way.push(to);
        if (from.layer < to.layer) p.way.slice(1).forEach((x, i) => link(p.way[i], x));
    }
}

function link(a, b) {
    if (a.down.includes(b)) return;
    a.down.push(b);
    b.up.push(a);
}

const mean = (list) => list.reduce((sum, x) => sum + (x.x + x.mid), 0) / list.length;

/* Side by side from the left, in the list's order. */
function pack(row) {
    let x = 0;
    for (const item of row) {
        item.x = x;
        x += item.w + NODE.gapX;
    }
}

/* Moves the items of a row towards the middles of their neighbours, and into that order if they may
 * be moved past each other. Of two placements that keep the distances, one pushed to the right and
 * one to the left, the middle keeps them too. */
function settle(row, sides, ordered) {
    for (const item of row) {
        const near = sides.flatMap((side) => item[side]);
        item.want = near.length ? mean(near) - item.mid : item.x;
    }
    if (ordered) row.sort((a, b) => a.want + a.mid - b.want - b.mid || a.t - b.t);
    const left = [], right = [];
    row.forEach((item, i) => {
        const before = i ? left[i - 1] + row[i - 1].w + NODE.gapX : -Infinity;
        left.push(Math.max(item.want, before));
    });
    for (let i = row.length - 1; i >= 0; i--) {
        const after = i + 1 < row.length ? right[i + 1] - row[i].w - NODE.gapX : Infinity;
        right[i] = Math.min(row[i].want, after);
    }
    row.forEach((item, i) => (item.x = (left[i] + right[i]) / 2));
}

/* Lays out what is in a box; gives its size. Positions are relative to the box. */
function layoutBox(key, view, local) {
    const parts = local.get(key), items = view.inside.get(key);
    for (const item of items)
        if (item.open) Object.assign(item, layoutBox(item.key, view, local));
    const units = items.filter((item) => !item.beside).map(unitOf);
    const list = [...portsOf(parts), ...units].sort((a, b) => a.t - b.t);
    if (!list.length) return { w: 2 * NODE.pad, h: 2 * NODE.pad };
    const byKey = new Map(list.map((x) => [x.key, x]));
    layer(list, parts, byKey);
    const layers = Array.from({ length: largestOf(list, (x) => x.layer) + 1 }, () => []);
    for (const x of list) layers[x.layer].push(x);
    addBends(parts, byKey, layers);
    const all = layers.flat();
    view.laid.set(key, all);

    const turns = list.length > 1500 ? 6 : 20, order = turns * 0.4;
    layers.forEach(pack);
    for (let turn = 0; turn < turns; turn++) {
        const sides = turn >= 2 * order ? ['up', 'down'] : [turn % 2 ? 'down' : 'up'];
        for (const row of turn % 2 ? [...layers].reverse() : layers)
            settle(row, sides, turn < order);
    }

    const left = all.reduce((x, item) => Math.min(x, item.x), Infinity);
    let y = key === '' ? NODE.pad : NODE.head + NODE.pad;
    for (const row of layers) {
        const high = largestOf(row, (x) => x.h);
        for (const x of row) {
            x.x += NODE.pad - left;
            x.y = x.bend ? y : y + (x.tensor ? high - x.h : (high - x.h) / 2);
            if (x.bend) x.h = high;
        }
        y += high + (high ? NODE.gapY : NODE.gapY / 3);
    }
    const w = largestOf(all, (x) => x.x + x.w) + NODE.pad, h = y - NODE.gapY + NODE.pad;
    for (const x of list) if (x.port) x.y = x.port === 'in' ? NODE.head : h;
    units.forEach(placeUnit);
    const title = key === '' ? 0 : textWidth(view.items.get(key).title, 12) + 60;
    return { w: Math.max(w, title), h };
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Relative positions become absolute, from the outside in. */
function makeAbsolute(view, key = '', x0 = 0, y0 = 0) {
    const items = view.inside.get(key);
    for (const x of [...items, ...view.laid.get(key)]) {
        x.x += x0;
        x.y += y0;
    }
    for (const item of items) if (item.open) makeAbsolute(view, item.key, item.x, item.y);
}

/* The points of a line between its ends: through bends and ports. */
const innerPoints = (e) => e.cuts.flatMap((part) => part.way).filter((x) => x.port || x.bend)
    .flatMap((x) => (x.h ? [x.y, x.y + x.h] : [x.y]).map((y) => [x.x + x.mid, y]));

/* Spreads the ends of lines ("from" or "to") over that edge of an item: in the order of where they
 * lead. */
function spread(view, end, other, edgeOf) {
    const ends = new Lists();
    for (const e of view.edges) if (!e.side) ends.add(e[end], e);
    for (const [key, list] of ends) {
        const item = view.items.get(key), middle = (x) => x.x + x.w / 2;
        const next = (e) => e.points.at(end === 'from' ? 0 : -1)?.[0] ??
            middle(view.items.get(e[other]));
        list.sort((a, b) => next(a) - next(b)).forEach((e, i) => (e.ends[end] =
            [item.x + (item.w * (i + 1)) / (list.length + 1), edgeOf(item)]));
    }
}

/* The points of each line: out of the bottom of an item, through bends and ports, into the top. */
function route(view) {
    for (const e of view.edges) Object.assign(e, { points: innerPoints(e), ends: {} });
    spread(view, 'from', 'to', (item) => item.y + item.h);
    spread(view, 'to', 'from', (item) => item.y);
    for (const e of view.edges) {
        const { from, to } = e.ends;
        const above = e.side || from[1] > to[1]; /* or a buffer above what writes it */
        e.points = above ? sideways(view, e) : [from, ...e.points, to];
        const ys = e.points.map((p) => p[1]);
        e.top = Math.min(...ys);
        e.bottom = Math.max(...ys);
    }
}

/* From the side of an item to the side of another one: beside it, or above it. */
function sideways(view, e) {
    const a = view.items.get(e.from), b = view.items.get(e.to), op = a.beside || b.beside;
    const toLeft = b.x + b.w / 2 < a.x + a.w / 2, y = (item) => item.y + item.h / 2;
    const aside = e.writes ? 9 : -4; /* what is read and written has two lines */
    const at = (item, other) => (item === op ? Math.min(item.y + item.h - 6, Math.max(item.y + 6,
        y(item) + (y(other) - y(item)) / 4)) : y(item)) + aside;
    e.sideways = toLeft ? -1 : 1;
    return [[toLeft ? a.x : a.x + a.w, at(a, b)], [toLeft ? b.x + b.w : b.x, at(b, a)]];
}

/* The path of a line: curves with vertical ends, or one with horizontal ends. */
function pathOf({ points: [[x, y], ...rest], sideways }) {
    let d = `M${x},${y}`;
    for (const [px, py] of rest) {
        const m = (y + py) / 2, bow = Math.max(12, Math.abs(px - x) / 2) * sideways;
        d += sideways ? `C${x + bow},${y} ${px - bow},${py} ${px},${py}`
            : Math.abs(px - x) < 0.5 ? `L${px},${py}` : `C${x},${m} ${px},${m} ${px},${py}`;
        [x, y] = [px, py];
    }
    return d;
}

/* What is drawn of a step with these boxes folded, and where. */
function layoutGraph(g, folded) {
    const view = { g, ...visibleItems(g, folded), edges: visibleEdges(g, folded),
        laid: new Lists() };
    shortenLines(view);
    findSides(view);
    Object.assign(view, layoutBox('', view, cutEdges(view)));
    makeAbsolute(view);
    route(view);
    return view;
}

/* The boxes to fold at first: unfolds from the outside in as long as there are at most so many ops
 * and boxes to be seen, some more where a box holds a single op; the outermost nearly always. */
function foldAtFirst(g, most) {
    const folded = new Set(g.step.calls.map(foldName)), inside = new Lists();
    for (const call of g.step.calls)
        if (g.ops.has(call.id)) inside.add(call.outer ?? null, call);
    for (const node of g.step.nodes) inside.add(node.call ?? null, node);
    const isCall = (x) => x === g.call.get(x.id), queue = inside.get(null).filter(isCall);
    let seen = inside.get(null).length;
    for (const [i, call] of queue.entries()) { /* it grows meanwhile */
        const more = inside.get(call.id).length - 1;
        const room = i === 0 ? 4 * most : more ? most : 1.3 * most;
        if (seen + more > room) continue;
        seen += more;
        folded.delete(foldName(call));
        queue.push(...inside.get(call.id).filter(isCall));
    }
    return folded;
}
