/*
 * engine.js - what the page asks of the engine (live.h), and the set-up as lines: every knob and
 * every lesson says a line, and the page's own copy of the set-up follows from the lines said.
 */

/* A number in three digits, a count whole; what there is none of is a dash. */
const digits = (x, many = 3) => (!isThere(x) || Number.isNaN(x) ? '–'
    : Number.isInteger(x) && Math.abs(x) < 1e6 ? String(x).replace('-', '−') : rounded(x, many));

const percent = (x) => (Number.isNaN(x) || x === undefined ? '–' : `${Number((100 * x).toFixed(1))} %`);
const norm = (x) => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0));

let engine = null; /* null until it is there; the page is drawn before */

const number = (what) => (engine ? engine.number(what) : NaN);
const text = (what) => (engine ? engine.text(what) : '');

/* Numbers of the engine, where they lie in its memory: true until the next call. */
function values(what) {
    if (!engine) return null;
    const at = engine.values(what) >> 2, n = engine.count();
    return at && n > 0 ? engine.module.HEAPF32.subarray(at, at + n) : null;
}

const kept = (what) => values(what)?.slice() || null;

/* Puts the digits or the text where the engine reads them. */
function give(bytes) {
    const at = engine.module._live_room(bytes.length);
    if (at) engine.module.HEAPU8.set(bytes, at);
    return at !== 0;
}

async function startEngine() {
    const module = await Live();
    const wrap = (name, returns, ...takes) => (...given) => module.ccall('live_' + name, returns, takes, given);
    engine = {
        module, tell: wrap('do', 'string', 'string'), number: wrap('number', 'number', 'string'),
        values: wrap('values', 'number', 'string'), count: wrap('count', 'number'),
        text: wrap('text', 'string', 'string'),
    };
}

const PRESETS = {
    spirals: ['linear 16', 'batch_norm', 'tanh', 'linear 16', 'batch_norm', 'tanh'],
    circles: ['linear 8', 'batch_norm', 'tanh'],
    xor: ['linear 8', 'batch_norm', 'tanh'],
    points: ['linear 16', 'tanh', 'linear 16', 'tanh'],
    digits: ['conv 8', 'batch_norm', 'relu', 'pool', 'conv 16', 'batch_norm', 'relu', 'flatten'],
    text: ['embedding 32', 'table', 'block 4', 'layer_norm'],
};

const RATES = { points: 0.02, digits: 0.005, text: 0.005 };

const fresh = () => ({
    data: 'spirals', noise: '', seed: 1, layers: [], tie: false, optimizer: 'adam', rate: 0.01,
    decay: 0, clip: 0, warmup: 0, batch: 32, norms: false, mode: 'train', judge: 'eval',
    frozen: [], points: [],
});

let setup = fresh();
let model = { layers: [], slots: [] }; /* what the engine says that it built */
let roomFor = '';                      /* what lies in the engine's room */

const isPlane = () => !['digits', 'text'].includes(setup.data);

/* How the set-up changes by a line: what the word is followed by. */
const FOLLOWS = {
    data: (d, noise = '') => Object.assign(setup, { data: d, noise, points: [] }),
    model: () => Object.assign(setup, { layers: [], tie: false, frozen: [] }),
    layer: (...words) => setup.layers.push(words.join(' ')),
    tie: () => (setup.tie = true),
    optimizer: (kind, rate, decay) => Object.assign(setup, { optimizer: kind },
        rate && { rate: Number(rate) }, decay && { decay: Number(decay) }),
    ...Object.fromEntries(['seed', 'rate', 'decay', 'clip', 'warmup', 'batch'].map((key) => [key, (x) => (setup[key] = Number(x))])),
    no_decay_on_norms: (x) => (setup.norms = x === 'on'),
    mode: (x) => (setup.mode = x),
    judge: (x) => (setup.judge = x),
    point: (x, y, c) => setup.points.push([Number(x), Number(y), Number(c)]),
    freeze: (layer, x) => (setup.frozen = setup.frozen.filter((f) => f !== Number(layer))
        .concat(x === 'on' ? [Number(layer)] : [])),
    build: () => (model = JSON.parse(text('model'))),
};

/* Says a line to the engine. "" or what was wrong with it. */
function tell(line) {
    const [word, ...rest] = line.trim().split(/\s+/);
    if (!engine) return 'the engine is not there yet';
    if (word === 'data' && ['digits', 'text'].includes(rest[0]) && roomFor !== rest[0]) {
        if (!give(bytesOf(rest[0]))) return 'no memory for the data';
        roomFor = rest[0];
    }
    const wrong = engine.tell(line);
    if (!wrong) FOLLOWS[word]?.(...rest);
    return wrong;
}

/* The lines that make a set-up from nothing. */
const linesOf = (s) => [
    `seed ${s.seed}`, `data ${s.data} ${s.noise}`.trim(), ...s.points.map((p) => `point ${p.join(' ')}`), 'model', ...s.layers.map((l) => `layer ${l}`), ...(s.tie ? ['tie'] : []),
    `optimizer ${s.optimizer} ${s.rate} ${s.decay}`, `clip ${s.clip}`, `warmup ${s.warmup}`,
    `batch ${s.batch}`, `no_decay_on_norms ${s.norms ? 'on' : 'off'}`, `mode ${s.mode}`,
    `judge ${s.judge}`, 'build', ...s.frozen.map((l) => `freeze ${l} on`),
];

/* Says lines until one is refused; what was wrong with that one. */
function tellAll(lines) {
    for (const line of lines) {
        const wrong = tell(line);
        if (wrong) return `${line}: ${wrong}`;
    }
    return '';
}

const slotsOf = (layer) => model.slots.filter((s) => s.layer === layer);
const layersOf = (kind) => model.layers.flatMap((l, i) => (l.kind === kind ? [i] : []));
