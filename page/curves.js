/* curves.js - rows of numbers that grow for ever, and their chart. */

/* Points of a curve. When there are too many, every second goes and later ones are means of more. */
class Curve {
    constructor(most = 600) {
        this.most = most;
        this.x = [];
        this.y = [];
        this.every = 1; /* numbers to a point */
        this.sum = this.n = 0;
    }

    add(x, y) {
        this.last = y;
        this.sum += y;
        if (++this.n < this.every) return;
        this.x.push(x);
        this.y.push(this.sum / this.n);
        this.sum = this.n = 0;
        if (this.x.length >= this.most) this.halve();
    }

    halve() {
        const odd = (_, i) => i % 2 === 1, { x, y } = this;
        this.y = y.map((v, i) => (i % 2 ? (v + y[i - 1]) / 2 : v)).filter(odd);
        this.x = x.filter(odd);
        this.every *= 2;
    }
}

/* What is judged now and then, by the engine's names; the curves of a model. */
const JUDGED = { train: 'train_loss', test: 'test_loss', trainRight: 'train_accuracy', testRight: 'test_accuracy' };
const newCurves = () => Object.fromEntries(['batch', ...Object.keys(JUDGED)].map((key) => [key, new Curve()]));

function readCurves() {
    for (const [key, name] of Object.entries(JUDGED)) app.curves[key].add(number('step'), number(name));
}

/* A CSS variable's colour, resolved; canvases know no variables. */
const colours = {};

function colour(name) {
    if (!colours[name]) {
        $('size').style.color = `var(--${name})`;
        colours[name] = getComputedStyle($('size')).color;
        $('size').style.color = '';
    }
    return colours[name];
}

/* The size of a canvas, asked only after what may have changed it: asking makes the browser lay out. */
const sizes = { known: new WeakMap() };

function sizeOf(canvas) {
    const known = sizes.known.get(canvas);
    if (known && known.w > 0) return known;
    const size = { w: canvas.clientWidth, h: canvas.clientHeight };
    sizes.known.set(canvas, size);
    return size;
}

const forgetSizes = () => (sizes.known = new WeakMap());

function setPixels(canvas, width, height) {
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
}

/* A canvas's context, as many pixels as the screen has for it. */
function context(canvas) {
    const dpr = Math.min(2, devicePixelRatio || 1), { w, h } = sizeOf(canvas);
    setPixels(canvas, Math.round(w * dpr), Math.round(h * dpr));
    const c = canvas.getContext('2d');
    c.setTransform(dpr, 0, 0, dpr, 0, 0);
    c.clearRect(0, 0, w, h);
    c.font = '11px system-ui, "Liberation Sans", sans-serif';
    return { c, w, h };
}

/* Four round places or fewer from low to high. */
function ticks(low, high) {
    const raw = (high - low) / 3 || 1, unit = 10 ** Math.floor(Math.log10(raw));
    const by = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= raw) || unit;
    const out = [];
    for (let t = Math.ceil(low / by) * by; t <= high + by * 1e-6; t += by) out.push(t);
    return out;
}

/* The least and greatest that a chart shows; far outliers are cut off. */
function span(series) {
    const all = series.flatMap((s) => s.curve.y).filter(Number.isFinite).sort((a, b) => a - b);
    if (!all.length) return [0, 1];
    const most = all[Math.min(all.length - 1, Math.floor(all.length * 0.995))];
    return [0, Math.max(1e-6, most * 1.08)];
}

const short = (x) => (x >= 1000 ? `${digits(x / 1000)}k` : digits(x));

/* The frame of a chart: places of x and y, and the lines behind. */
function frame(c, w, h, mostX, [low, high], asText) {
    const left = 42, right = w - 8, top = 8, bottom = h - 18;
    const px = (x) => left + (right - left) * x / mostX;
    const py = (y) => bottom - (bottom - top) * (Math.min(Math.max(y, low), high) - low) / (high - low);
    c.strokeStyle = colour('rule');
    c.fillStyle = colour('muted');
    c.lineWidth = 1;
    c.textAlign = 'right';
    for (const t of ticks(low, high)) {
        c.stroke(new Path2D(`M${left},${Math.round(py(t)) + 0.5}H${right}`));
        c.fillText(asText(t), left - 5, py(t) + 4);
    }
    c.textAlign = 'center';
    for (const t of ticks(0, mostX)) if (px(t) < right - 64) c.fillText(short(t), px(t), h - 4);
    c.textAlign = 'right';
    c.fillText(`step ${short(mostX)}`, right, h - 4);
    return { px, py };
}

/* series: [{ curve, colour, faint, dashed }]. range: [low, high], or null to follow the curves. */
function drawChart(canvas, series, range, asText = short) {
    const { c, w, h } = context(canvas);
    const mostX = Math.max(10, ...series.map((s) => s.curve.x.at(-1) || 0));
    const { px, py } = frame(c, w, h, mostX, range || span(series), asText);
    c.lineJoin = 'round';
    for (const { curve, colour: name, faint, dashed } of series) {
        c.strokeStyle = colour(name);
        c.globalAlpha = faint ? 0.35 : 1;
        c.lineWidth = faint ? 1 : 2;
        c.setLineDash(dashed ? [5, 3] : []);
        c.beginPath();
        curve.x.forEach((x, i) => Number.isFinite(curve.y[i]) && c.lineTo(px(x), py(curve.y[i])));
        c.stroke();
    }
    c.globalAlpha = 1;
    c.setLineDash([]);
}

/* What a chart's lines are called, with their latest numbers. */
const chartNote = (series, asText) => series.map((s) => make('span.key',
    make(s.dashed ? 'i.line.dashed' : s.faint ? 'i.line.faint' : 'i.line', { style: `--line:var(--${s.colour})` }),
    `${s.label} `, make('b', asText(s.curve.last))));

const LOW = -9, HIGH = 1; /* powers of ten that are shown */

/* The norm of each parameter's gradient, first layer first. */
const gradientNorms = () => model.slots.filter((s) => s.kind === 'parameter')
    .map((s) => ({ name: s.name, matrix: s.shape.length > 1, norm: number('grad ' + s.name) })).filter((g) => !Number.isNaN(g.norm));

/* Rows of gradients, [{ colour, label, gradients }]: a line through those of matrices, dots for the rest. */
function drawGradients(canvas, series) {
    const { c, w, h } = context(canvas), most = Math.max(2, ...series.map((s) => s.gradients.length));
    const px = (i) => 50 + (w - 66) * (i + 0.5) / most;
    const py = (v) => 12 + (h - 62) * (HIGH - Math.max(LOW, Math.min(HIGH, Math.log10(v) || LOW))) / (HIGH - LOW);
    c.fillStyle = colour('muted');
    c.strokeStyle = colour('rule');
    c.textAlign = 'right';
    for (let power = LOW; power <= HIGH; power += 2) {
        c.fillRect(50, Math.round(py(10 ** power)), w - 58, 0.5);
        c.fillText(power ? `1e${power}`.replace('-', '−') : '1', 44, py(10 ** power) + 4);
    }
    const longest = series.reduce((a, s) => (s.gradients.length > a.length ? s.gradients : a), []);
    longest.forEach(({ name }, i) => {
        c.save();
        c.translate(px(i) + 3, h - 44);
        c.rotate(-Math.PI / 4);
        c.fillText(name.length > 10 ? '…' + name.slice(-9) : name, 0, 0);
        c.restore();
    });
    for (const { colour: name, gradients } of series) {
        c.strokeStyle = c.fillStyle = colour(name);
        c.lineWidth = 2;
        c.beginPath();
        const x = (i) => px(i * (longest.length - 1) / (gradients.length - 1 || 1));
        gradients.forEach((g, i) => g.matrix && c.lineTo(x(i), py(g.norm)));
        c.stroke();
        gradients.forEach((g, i) => {
            c.beginPath();
            if (g.matrix) c.rect(x(i) - 4, py(g.norm) - 4, 8, 8);
            else c.arc(x(i), py(g.norm), 2.5, 0, 7);
            c.fill();
        });
    }
}

/* The tab "gradients": of the last batch, or of each part of a lesson. */
function gradientsPanel() {
    const canvas = make('canvas.wide-chart', { role: 'img', 'aria-label': 'Norm of each parameter’s gradient' }), told = make('p.note');
    const draw = () => {
        const parts = app.series.filter((s) => s.gradients?.length);
        const series = parts.length ? parts : [{ colour: 'backward', label: 'last batch', gradients: gradientNorms() }];
        drawGradients(canvas, series);
        fill(told, series.map((s) => make('span.key', make('i.line', { style: `--line:var(--${s.colour})` }), s.label)),
            make('span', 'norm of each parameter’s gradient, first layer at the left: squares are weights, dots biases and norms'));
    };
    return { nodes: [canvas, told], draw };
}
