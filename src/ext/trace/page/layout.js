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

const NODE = { height: 44, least: 122, gapX: 20, gapY: 22, pad: 12, head: 24, gapSide: 30 };

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

function boxItem(g, call, folded) {
    const title = callTitle(call, g.call.get(call.outer));
    const item = { key: 'c' + call.id, call, kind: 'box', t: g.firstIn.get(call.id), title,
        parent: call.outer ?? null, folded: folded.has(foldName(call)) };
    item.note = plural(g.ops.get(call.id), 'op');
    if (call.writes.length) item.note += `, writes ${plural(call.writes.length, 'buffer')}`;
    item.w = Math.max(NODE.least, textWidth(title, 13) + 44, textWidth(item.note, 12) + 20);
    item.h = NODE.height;
    return item;
}

function opItem(node, at) {
    const shape = shapeText(node.out[0].shape);
    return { key: 'n' + node.id, node, kind: 'op', t: at, title: node.op, note: shape,
        parent: node.call ?? null, h: NODE.height,
        w: Math.max(NODE.least, textWidth(node.op, 14) + textWidth(shape, 11) + 34) };
}

/* In its module's box a tensor has its short name. */
function tensorItem(g, t) {
    const home = g.home.get(t.id), call = g.call.get(home.call);
    const inside = call && call.module && t.name && t.name.startsWith(call.module + '.');
    let title = inside ? t.name.slice(call.module.length + 1) : tensorName(t);
    if (title.length > 24) title = '…' + title.slice(-23);
    const note = shapeText(t.shape);
    return { key: t.id, tensor: t, kind: t.kind, t: home.at, title, note,
        parent: home.call ?? null, h: NODE.height,
        w: Math.max(NODE.least, textWidth(title, 13) + textWidth(note, 11) + 34) };
}

/* All items, by key, with the lists of what is in each box; "" is the page. */
function visibleItems(g, folded) {
    const items = new Map(), inside = new Map([['', []]]);
    const add = (item) => {
        if (foldedAround(g, folded, item.parent)) return;
        item.parent = item.parent === null ? '' : 'c' + item.parent;
        items.set(item.key, item);
        addTo(inside, item.parent, item);
    };
    for (const call of g.step.calls) if (g.ops.get(call.id)) add(boxItem(g, call, folded));
    g.step.nodes.forEach((node, at) => add(opItem(node, at)));
    for (const t of g.trace.tensors) if (g.home.has(t.id)) add(tensorItem(g, t));
    for (const list of inside.values()) list.sort((a, b) => a.t - b.t);
    return { items, inside };
}

/* Lines between items: one for each pair, with the inputs it stands for. */
function visibleEdges(g, folded) {
    const edges = new Map();
    const add = (from, to, more) => {
        if (from === to) return;
        const key = `${from}>${to}${more.writes ? '!' : ''}`;
        let e = edges.get(key);
        if (!e) edges.set(key, (e = { key, from, to, parts: [], gradient: false, writes: false }));
        if (more.part) e.parts.push(more.part);
        e.gradient = e.gradient || more.gradient === true;
        e.writes = more.writes === true;
    };
    for (const node of g.step.nodes) {
        const to = shownKey(g, folded, 'n' + node.id);
        node.in.forEach((input, i) => {
            if (!input) return;
            const from = keyOf(input.from);
            if (from[0] === 'n' && !g.node.has(input.from)) return;
            add(shownKey(g, folded, from), to, { part: { node, i }, gradient: input.gradient });
        });
    }
    for (const w of g.writes) {
        const last = g.step.nodes[w.at];
        if (last && g.trace.byId.has(w.tensor))
            add(shownKey(g, folded, 'n' + last.id), shownKey(g, folded, w.tensor),
                { writes: true });
    }
    return [...edges.values()];
}

/* ---- long lines ------------------------------------------------------------------------------ */

const FAR = { tensor: 12, op: 40 }; /* items that a line may pass */

/* The boxes around an item, from the inside out: [box, which item of it]. */
function boxesAround(items, key) {
    const boxes = [];
    for (let k = key; k !== ''; k = items.get(k).parent) boxes.push([items.get(k).parent, k]);
    return boxes;
}

/* Replaces a line from far above by a short one, from a reference to its source. */
function shortenLines(view) {
    for (const list of view.inside.values()) list.forEach((item, i) => (item.index = i));
    for (const e of view.edges) {
        if (e.writes) continue;
        const side = new Map(boxesAround(view.items, e.to));
        const [box, key] = boxesAround(view.items, e.from).find(([b]) => side.has(b));
        const from = view.items.get(e.from), to = view.items.get(e.to);
        const passed = view.items.get(side.get(box)).index - view.items.get(key).index;
        if (passed <= (from.tensor ? FAR.tensor : FAR.op)) continue;
        const title = from.tensor ? shortened(tensorName(from.tensor))
            : `${from.title} ${from.note}`;
        const item = { key: '~' + e.key, kind: 'ghost', of: e.from, t: to.t - 0.5,
            parent: to.parent, title,
            note: '', w: textWidth(title, 12) + 34, h: 28 };
        view.items.set(item.key, item);
        view.inside.get(to.parent).push(item);
        e.from = item.key;
    }
    for (const list of view.inside.values()) list.sort((a, b) => a.t - b.t);
}

/* ---- tensors beside ops ---------------------------------------------------------------------- */

/* Finds the tensors with lines to one op alone, in the same box: they go to its sides, in turn. */
function findSides(view) {
    const touching = new Map();
    for (const e of view.edges)
        for (const [key, other] of [[e.from, e.to], [e.to, e.from]]) addTo(touching, key, other);
    for (const item of view.items.values()) {
        const may = item.kind === 'parameter' || item.kind === 'buffer' || item.kind === 'ghost';
        const others = new Set(may ? touching.get(item.key) : []);
        const op = others.size === 1 && view.items.get([...others][0]);
        if (!op || !op.node || op.parent !== item.parent) continue;
        op.left = op.left || [];
        op.right = op.right || [];
        const side = op.left.length <= op.right.length ? op.left : op.right;
        side.push(item);
        item.beside = op;
    }
    for (const e of view.edges)
        e.side = !!(view.items.get(e.from).beside || view.items.get(e.to).beside);
}

const widest = (list) => list.reduce((w, x) => Math.max(w, x.w), 0);
const stackHeight = (list) => (list.length ? list.length * (NODE.height + 8) - 8 : 0);

/* What is laid out for an item: with the tensors beside it, if it has any. */
function unitOf(item) {
    const sides = (item.left || []).length > 0;
    const left = sides ? widest(item.left) + NODE.gapSide : 0;
    const right = sides && item.right.length ? widest(item.right) + NODE.gapSide : 0;
    const h = sides ? Math.max(item.h, stackHeight(item.left), stackHeight(item.right)) : item.h;
    return { key: item.key, item, tensor: item.tensor, t: item.t, w: left + item.w + right, h,
        mid: left + item.w / 2, up: [], down: [] };
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
    stack(item.left || [], (t) => item.x - NODE.gapSide - t.w);
    stack(item.right || [], () => item.x + item.w + NODE.gapSide);
}

/* ---- one box --------------------------------------------------------------------------------- */

/* Cuts each line into its parts in the boxes that it passes: in the box of `from` and those around
 * it up to the common one, then down to `to`. */
function cutEdges(items, edges) {
    const local = new Map(); /* box -> parts */
    for (const e of edges) {
        e.cuts = [];
        if (e.side) continue;
        const up = boxesAround(items, e.from), down = boxesAround(items, e.to),
            side = new Map(down);
        const add = (box, from, to) => {
            const part = { from, to };
            addTo(local, box, part);
            e.cuts.push({ box, part });
        };
        let meet = null;
        for (const [box, key] of up) {
            if (side.has(box)) {
                meet = box;
                add(box, key, side.get(box));
                break;
            }
            add(box, key, 'out:' + e.from);
        }
        const rest = down.slice(0, down.findIndex(([box]) => box === meet)).reverse();
        for (const [box, key] of rest) add(box, 'in:' + e.from, key);
    }
    return local;
}

/* Layers of a box's items: the longest path, but tensors just above their first reader. */
function layer(list, parts, byKey) {
    const out = new Map(), ins = list.some((x) => x.port === 'in') ? 1 : 0;
    let most = 0;
    for (const x of list) x.layer = x.port === 'in' ? 0 : ins;
    for (const p of parts) addTo(out, p.from, p.to);
    for (const x of list) {
        if (x.port !== 'in') most = Math.max(most, x.layer);
        for (const key of out.get(x.key) || []) {
            const y = byKey.get(key);
            if (y.t > x.t) y.layer = Math.max(y.layer, x.layer + 1);
        }
    }
    for (const x of list) if (x.port === 'out') x.layer = most + 1;
    for (const x of list) {
        if (!x.tensor) continue;
        const readers = (out.get(x.key) || []).map((k) => byKey.get(k)).filter((y) => y.t > x.t);
        if (readers.length) x.layer =
            Math.max(x.layer, Math.min(...readers.map((y) => y.layer)) - 1);
    }
}

/* Bends: one item of no width for each source and each layer that its lines cross. */
function addBends(parts, byKey, layers) {
    const bends = new Map(), links = new Set();
    for (const p of parts) {
        const a = byKey.get(p.from), b = byKey.get(p.to);
        p.via = [];
        if (a.layer >= b.layer) continue;
        let last = a;
        for (let l = a.layer + 1; l < b.layer; l++) {
            const key = `${p.from}@${l}`;
            let bend = bends.get(key);
            if (!bend) {
                bend = { key, bend: true, t: a.t, layer: l, w: 8, h: 0, mid: 4, up: [], down: [] };
                bends.set(key, bend);
                layers[l].push(bend);
            }
            p.via.push(bend);
            link(last, bend, links);
            last = bend;
        }
        link(last, b, links);
    }
}

function link(a, b, links) {
    const key = `${a.key} ${b.key}`;
    if (links.has(key)) return;
    links.add(key);
    a.down.push(b);
    b.up.push(a);
}

const center = (x) => x.x + x.mid;
const mean = (list) => list.reduce((sum, x) => sum + center(x), 0) / list.length;

/* Side by side from the left, in the list's order. */
function pack(row) {
    let x = 0;
    for (const item of row) {
        item.x = x;
        x += item.w + NODE.gapX;
    }
}

/* Puts each row in the order of its neighbours' middles. */
function reorder(layers, turns) {
    layers.forEach(pack);
    for (let turn = 0; turn < turns; turn++) {
        const side = turn % 2 ? 'down' : 'up';
        const rows = turn % 2 ? [...layers].reverse() : layers;
        for (const row of rows) {
            for (const item of row) item.want = item[side].length ? mean(item[side]) : center(item);
            row.sort((a, b) => a.want - b.want || a.t - b.t);
            pack(row);
        }
    }
}

/* Moves the items of a row towards their wanted positions. Of two placements that keep the
 * distances, one pushed to the right and one to the left, the middle keeps them too. */
function settle(row, sides) {
    const left = [], right = [];
    row.forEach((item, i) => {
        const near = sides.flatMap((side) => item[side]);
        item.want = near.length ? mean(near) - item.mid : item.x;
        const before = i ? left[i - 1] + row[i - 1].w + NODE.gapX : -Infinity;
        left.push(Math.max(item.want, before));
    });
    for (let i = row.length - 1; i >= 0; i--) {
        const after = i + 1 < row.length ? right[i + 1] - row[i].w - NODE.gapX : Infinity;
        right[i] = Math.min(row[i].want, after);
    }
    row.forEach((item, i) => (item.x = (left[i] + right[i]) / 2));
}

/* Ports of a box: where lines come in at its top and go out at its bottom. */
function addPorts(list, parts) {
    const seen = new Map();
    for (const p of parts)
        for (const key of [p.from, p.to]) {
            const port = /^(in|out):/.exec(key);
            if (!port || seen.has(key)) continue;
            const t = port[1] === 'in' ? -Infinity : Infinity;
            seen.set(key, { key, port: port[1], t, w: 8, h: 0, mid: 4, up: [], down: [] });
        }
    const ports = [...seen.values()];
    return [...ports.filter((p) => p.port === 'in'), ...list,
        ...ports.filter((p) => p.port === 'out')];
}

/* Lays out what is in a box; gives its size. Positions are relative to the box. */
function layoutBox(key, view, local) {
    const parts = local.get(key) || [];
    for (const item of view.inside.get(key) || [])
        if (item.kind === 'box' && !item.folded) Object.assign(item,
            layoutBox(item.key, view, local));
    const units = (view.inside.get(key) || []).filter((item) => !item.beside).map(unitOf);
    const list = addPorts(units, parts);
    const byKey = new Map(list.map((x) => [x.key, x]));
    layer(list, parts, byKey);
    const layers = [];
    for (const x of list) (layers[x.layer] = layers[x.layer] || []).push(x);
    for (let l = 0; l < layers.length; l++) layers[l] = layers[l] || [];
    addBends(parts, byKey, layers);

    const large = list.length > 1500;
    reorder(layers, large ? 2 : 8);
    for (let turn = 0; turn < (large ? 4 : 12); turn++)
        (turn % 2 ? [...layers].reverse() : layers).forEach((row) =>
            settle(row, turn > 7 ? ['up', 'down'] : [turn % 2 ? 'down' : 'up']));

    const all = layers.flat();
    if (!all.length) return { w: 2 * NODE.pad, h: 2 * NODE.pad };
    const from = all.reduce((x, item) => Math.min(x, item.x), Infinity);
    const to = all.reduce((x, item) => Math.max(x, item.x + item.w), -Infinity);
    let y = key === '' ? NODE.pad : NODE.head + NODE.pad;
    for (const row of layers) {
        const high = row.reduce((h, item) => Math.max(h, item.h), 0);
        for (const item of row) {
            item.x += NODE.pad - from;
            item.y = item.bend ? y : y + (item.tensor ? high - item.h : (high - item.h) / 2);
            if (item.bend) item.h = high;
        }
        y += high + (high ? NODE.gapY : NODE.gapY / 3);
    }
    for (const x of list) if (x.port) x.y = x.port === 'in' ? NODE.head : y - NODE.gapY + NODE.pad;
    units.forEach(placeUnit);
    view.placed.set(key, byKey);
    const title = key === '' ? 0 : textWidth(view.items.get(key).title, 12) + 60;
    return { w: Math.max(to - from + 2 * NODE.pad, title), h: y - NODE.gapY + NODE.pad };
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Relative positions become absolute, from the outside in. */
function makeAbsolute(view) {
    const walk = (key, x0, y0) => {
        view.origin.set(key, [x0, y0]);
        for (const item of view.inside.get(key) || []) {
            item.x += x0;
            item.y += y0;
            if (item.kind === 'box' && !item.folded) walk(item.key, item.x, item.y);
        }
    };
    walk('', 0, 0);
}

/* The points of each line: out of the bottom of an item, through bends and ports, into the top. */
function route(view) {
    const leaving = new Map(), arriving = new Map();
    for (const e of view.edges) {
        e.points = [];
        if (e.side) continue;
        for (const { box, part } of e.cuts) {
            const [x0, y0] = view.origin.get(box), at = view.placed.get(box);
            const point = (x, y) => e.points.push([x0 + x, y0 + y]);
            const port = at.get(part.from);
            if (port.port) point(port.x + 4, port.y);
            for (const bend of part.via)
                point(bend.x + 4, bend.y), bend.h && point(bend.x + 4, bend.y + bend.h);
            const end = at.get(part.to);
            if (end.port) point(end.x + 4, end.y);
        }
        addTo(leaving, e.from, e);
        addTo(arriving, e.to, e);
    }
    const middle = (key) => view.items.get(key).x + view.items.get(key).w / 2;
    const spread = (lists, side, towards) => {
        for (const [key, list] of lists) {
            const item = view.items.get(key);
            const x = (e) => (e.points.length ? e.points[side ? 0 : e.points.length - 1][0]
                : middle(towards(e)));
            list.sort((a, b) => x(a) - x(b));
            list.forEach((e, i) => {
                const at = item.x + (item.w * (i + 1)) / (list.length + 1);
                if (side) e.start = [at, item.y + item.h];
                else e.end = [at, item.y];
            });
        }
    };
    spread(leaving, true, (e) => e.to);
    spread(arriving, false, (e) => e.from);
    for (const e of view.edges) {
        const above = e.side || e.start[1] > e.end[1]; /* or a buffer above what writes it */
        e.points = above ? sideways(view, e) : [e.start, ...e.points, e.end];
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

/* The path of a line: curves with vertical ends. dx moves it aside. */
function pathOf(e, dx) {
    const [first, ...rest] = e.points;
    let d = `M${first[0] + dx},${first[1]}`, [x, y] = first;
    if (e.sideways) {
        const [bx, by] = rest[0];
        const bow = Math.max(12, Math.abs(bx - x) / 2) * e.sideways;
        return `M${x},${y + dx}C${x + bow},${y + dx} ${bx - bow},${by + dx} ${bx},${by + dx}`;
    }
    for (const [px, py] of rest) {
        const m = (y + py) / 2;
        d += Math.abs(px - x) < 0.5 ? `L${px + dx},${py}`
            : `C${x + dx},${m} ${px + dx},${m} ${px + dx},${py}`;
        [x, y] = [px, py];
    }
    return d;
}

/* What is drawn of a step with these boxes folded, and where. */
function layoutGraph(g, folded) {
    const view = visibleItems(g, folded);
    view.placed = new Map();
    view.origin = new Map();
    view.edges = visibleEdges(g, folded);
    shortenLines(view);
    findSides(view);
    const local = cutEdges(view.items, view.edges);
    Object.assign(view, layoutBox('', view, local));
    makeAbsolute(view);
    route(view);
    return view;
}

/* The boxes to fold at first: unfolds from the outside in as long as there are at most so many ops
 * and boxes to be seen, some more where a box holds a single op; the outermost nearly always. */
function foldAtFirst(g, most) {
    const folded = new Set(g.step.calls.map(foldName)), inner = new Map(), ops = new Map();
    for (const call of g.step.calls) if (g.ops.get(call.id)) addTo(inner, call.outer ?? null, call);
    for (const node of g.step.nodes) addTo(ops, node.call ?? null, node);
    const size = (id) => (ops.get(id) || []).length + (inner.get(id) || []).length;
    let seen = size(null);
    const queue = [...(inner.get(null) || [])];
    for (let i = 0; i < queue.length; i++) {
        const call = queue[i], more = size(call.id) - 1;
        const room = i === 0 ? 4 * most : more ? most : 1.3 * most;
        if (seen + more > room) continue;
        seen += more;
        folded.delete(foldName(call));
        queue.push(...(inner.get(call.id) || []));
    }
    return folded;
}
