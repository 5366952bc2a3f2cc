/*
 * data.js - the traces that the page was given, indexed for the other files.
 *
 * A trace is an account of training steps, as tn_trace_json writes it. The page plays it as a row
 * of positions: each training step as a whole, then each op of forward, each op of backward, the
 * clipping of gradients, if any, and the optimizer. Whatever is drawn or told depends on the
 * position alone, so going back is the same as going forward.
 *
 * A key names what can be drawn: "n5" is the op with id 5, "t2" a tensor, "c3" a call of a module.
 */

/* ---- reading --------------------------------------------------------------------------------- */

/* A number of an account; those that are not finite are the strings "nan", "inf" and "-inf". */
const number = (x) => (typeof x === 'string' ? Number(x.replace('inf', 'Infinity')) : x);

/* Makes numbers of all that stand for one in what JSON gave, and puts what was told before, `all`
 * so far, in the place of { same }; a function for JSON.parse takes thrice the time. */
function revive(x, all) {
    if ('loss' in x) x.loss = number(x.loss);
    if ('limit' in x) x.norm = number(x.norm), x.factor = number(x.factor);
    for (const key in x) {
        const child = x[key];
        if (child === null || typeof child !== 'object' || typeof child[0] === 'number') continue;
        if (child.same !== undefined) x[key] = all[child.same];
        else if (child.zeros !== undefined) all.push(reviveNumbers(child));
        else revive(child, all);
    }
}

function reviveNumbers(x) {
    for (const key of ['norm', 'min', 'max', 'mean']) x[key] = number(x[key]);
    if (x.values && (x.nan || x.inf)) x.values = x.values.map(number);
    if (x.picture?.values && (x.nan || x.inf)) x.picture.values = x.picture.values.map(number);
    return x;
}

/* The traces of the page, which are compressed. */
async function readTraces() {
    const packed = new Blob([bytesOf('traces')]).stream();
    const unpacked = packed.pipeThrough(new DecompressionStream('deflate'));
    const found = await new Response(unpacked).json();
    for (const trace of found) revive(trace, []);
    return found;
}

const traces = await readTraces();

/* Whether numbers of a tensor are the same; unknown ones are. */
const sameNumbers = (a, b) => a?.hash === b?.hash;

/* ---- numbers and words ----------------------------------------------------------------------- */

/* That many digits, with a true minus sign. */
const digits = (x, many = 4) =>
    (!isThere(x) ? '–' : Object.is(x, -0) ? '−0' : rounded(x, many));

const plural = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;
const shapeText = (shape) => `[${shape.join(',')}]`;
const elements = (shape) => shape.reduce((n, size) => n * size, 1);

/* A tensor in one number: its only element, else its norm. */
function summary(value, shape) {
    if (!value) return null;
    return elements(shape) === 1 ? value.values?.[0] ?? value.mean : value.norm;
}

const summaryText = (value, shape, many) => (value ? digits(summary(value, shape), many) : '–');

function bytesText(n) {
    if (n < 1024) return `${n} B`;
    return n < 1048576 ? `${digits(n / 1024)} KiB` : `${digits(n / 1048576)} MiB`;
}

/* ---- a trace --------------------------------------------------------------------------------- */

/* Adds to a trace: tensors by id, and all positions. A trace of nothing has an empty step. */
for (const trace of traces) {
    if (!trace.steps.length)
        trace.steps.push({ training: true, loss: null, calls: [], nodes: [], root: null,
            backward: [], passes: [], clip: null, updates: null, ledger: [], findings: [] });
    trace.byId = new Map(trace.tensors.map((t) => [t.id, t]));
    const phase = (s, phase, n) => Array.from({ length: n }, (_, i) => ({ s, phase, i }));
    trace.positions = trace.steps.flatMap((step, s) => [...phase(s, 'whole', 1),
        ...phase(s, 'forward', step.nodes.length), ...phase(s, 'backward', step.backward.length),
        ...phase(s, 'clip', step.clip ? 1 : 0), ...phase(s, 'optimizer', step.updates ? 1 : 0)]);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Lists by key; that of a key without any is empty. */
class Lists extends Map {
    get = (key) => super.get(key) ?? [];
    add = (key, item) => (this.has(key) ? this.get(key).push(item) : this.set(key, [item]));
}

/* The key of what an input comes from or a gradient goes to. */
const keyOf = (from) => (typeof from === 'string' ? from : 'n' + from);

/* How many registered tensors moved in a step, and who moved them: "by forward". */
const movedBy = (step, who) =>
    step.ledger.filter((line) => (line.moved || '').includes(who)).length;

/* Where each tensor stands: in the call of the first op that reads it, else in that which writes
 * it; data with a name outside of all. A tensor that no op of the step touches is in the ledger
 * only. */
function placeTensors(step, g) {
    step.nodes.forEach((node, at) =>
        node.in.forEach((input, i) => {
            if (!input) return;
            g.readers.add(keyOf(input.from), { node, i });
            if (typeof input.from !== 'string' || g.home.has(input.from)) return;
            const t = g.trace.byId.get(input.from), outside = t.kind === 'tensor' && t.name;
            g.home.set(t.id, { call: outside ? null : node.call, at: at - 0.5 });
        }));
    for (const call of step.calls)
        for (const t of call.writes) {
            const last = g.ops.get(call.id).at(-1) ?? -1;
            g.writes.push({ tensor: t, at: last });
            g.writtenAt.set(t, last);
            if (!g.home.has(t)) g.home.set(t, { call: call.id, at: last + 0.5 });
        }
}

/* What backward did, by node and by tensor. */
function indexBackward(step, g) {
    step.backward.forEach((entry, k) => {
        g.backwardOf.add(entry.node, k);
        for (const a of entry.accumulated) g.grads.add(a.tensor, { k, value: a.after });
        for (const share of entry.shares) g.shares.add(`${entry.node}.${share.in}`, k);
    });
    for (const line of step.ledger) g.ledger.set(line.tensor, line);
    for (const u of step.updates || []) g.updates.set(u.tensor, u);
    for (const f of step.findings) if (Number.isInteger(f.node)) g.findings.add(f.node, f);
}

/* The index of a step of a trace, made when first asked for. */
function graphOf(trace, s) {
    const step = trace.steps[s];
    if (step.graph) return step.graph;
    const g = {
        step, trace,
        node: new Map(step.nodes.map((n) => [n.id, n])),
        call: new Map(step.calls.map((c) => [c.id, c])),
        ops: new Lists(), /* where in forward a call's ops are, those of inner calls included */
        readers: new Lists(), home: new Map(), writes: [], writtenAt: new Map(),
        backwardOf: new Lists(), grads: new Lists(), shares: new Lists(), findings: new Lists(),
        ledger: new Map(), updates: new Map(),
    };
    step.nodes.forEach((node, at) => {
        for (let c = g.call.get(node.call); c; c = g.call.get(c.outer)) g.ops.add(c.id, at);
    });
    placeTensors(step, g);
    indexBackward(step, g);
    step.graph = g;
    return g;
}

/* The same box in every step and in every trace: the module's path, and which call of it. */
const foldName = (call) => `${call.module}#${call.time}`;

/* A full name; within the box of a call of the module that it begins with, the rest of it. */
const nameIn = (call, name) => (call?.module && name.startsWith(call.module + '.')
    ? name.slice(call.module.length + 1) : name);

/* "blocks.0.norm (LayerNorm)"; within the box of another call, "norm (LayerNorm)". */
function callTitle(call, outer) {
    const time = call.time > 1 ? `, call ${call.time}` : '', path = nameIn(outer, call.module);
    return (path ? `${path} (${call.type})` : call.type) + time;
}

/* Both ends of a long name: "blocks.0….in_proj_weight". */
const shortened = (text, head = 8, tail = 15) =>
    (text.length > head + tail + 1 ? `${text.slice(0, head)}…${text.slice(-tail)}` : text);

const tensorName = (t) => t.name || (t.requires_grad ? 'a leaf' : 'data');
const KIND = { parameter: 'parameter', buffer: 'buffer', tensor: 'data' };

/* "linear in 0 (Linear)" */
function nodeTitle(g, node) {
    const call = g.call.get(node.call);
    return call ? `${node.op} in ${callTitle(call)}` : node.op;
}

/* What the formula calls an input; "" if it is only "input 2" to us. */
const nameInFormula = (input) => /^[A-Za-z]\S*$/.exec(input.name)?.[0] || '';

/* What the formula calls the result: "y". */
const resultName = (node) => (/^\s*([A-Za-z]+)/.exec(node.formula || '') || ['', 'y'])[1];

/* The value that an input of an op had. */
function inputValue(g, input) {
    if (input.value) return input.value;
    if (typeof input.from === 'string') return g.ledger.get(input.from)?.start ?? null;
    return g.node.get(input.from)?.out[input.output].value ?? null;
}

/* The value of a tensor as the first op that reads it did. */
function readValue(g, id) {
    const [use] = g.readers.get(id);
    return use ? inputValue(g, use.node.in[use.i]) : null;
}

/* The gradients of a tensor up to a step of backward. */
const gradientsOf = (g, id, until) => g.grads.get(id).filter((a) => a.k <= until);
