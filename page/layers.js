/*
 * layers.js - the model as rows: knobs of each layer, its values and gradients over time, its
 * parameters (boxes) and buffers (cylinders).
 */

const ACTIVATIONS = ['relu', 'tanh', 'sigmoid', 'gelu', 'leaky_relu', 'silu', 'identity'];
const SIZES = { linear: ['outputs', 16], conv: ['channels', 8], embedding: ['numbers', 32],
    block: ['heads', 4], dropout: ['share', 0.2], batch_norm: ['momentum', 0.1] };
const STRIP_COLUMNS = 120, STRIP_BINS = 24;

const kindOf = (layer) => layer.split(' ')[0];

/* Where a layer's outputs lie: from low to high of a strip. */
const RANGES = { relu: [0, 4], sigmoid: [0, 1], tanh: [-1, 1] };
const linearBin = ([low, high]) => (v) => (v - low) / (high - low);
const powerBin = (v) => (Math.log10(Math.abs(v)) + 9) / 9; /* of 10: -9 to 0 */

/* A histogram over time: one column each time, the newest at the right. */
class Strip {
    constructor(name, bin, label) {
        this.canvas = make('canvas.strip', { width: STRIP_COLUMNS, height: STRIP_BINS, role: 'img', 'aria-label': label });
        Object.assign(this, { name, bin });
    }

    add(x) {
        const c = this.canvas.getContext('2d'), counts = new Float32Array(STRIP_BINS);
        const skip = Math.max(1, Math.floor(x.length / 400)), ink = rgb(this.name);
        let most = 1;
        for (let i = 0; i < x.length; i += skip) {
            const at = Math.floor(this.bin(x[i]) * STRIP_BINS);
            const n = ++counts[Math.max(0, Math.min(STRIP_BINS - 1, at || 0))];
            if (n > most) most = n;
        }
        c.drawImage(this.canvas, -1, 0);
        const image = c.createImageData(1, STRIP_BINS);
        for (let i = 0; i < STRIP_BINS; i++) {
            const at = 4 * (STRIP_BINS - 1 - i);
            image.data.set(ink, at);
            image.data[at + 3] = counts[i] ? 40 + 215 * (counts[i] / most) ** 0.6 : 0;
        }
        c.clearRect(STRIP_COLUMNS - 1, 0, 1, STRIP_BINS);
        c.putImageData(image, STRIP_COLUMNS - 1, 0);
    }
}

/* Columns of a picture of a tensor: its last axis; small images (3 x 3 weights) in rows of 9. */
function columnsOf(shape) {
    const n = shape.reduce((a, b) => a * b, 1);
    if (shape.length === 4) return shape[1] * shape[2] * shape[3];
    return shape.length < 2 ? Math.min(n, 32) : shape.at(-1);
}

const IMAGE_MOST = 8192;

/* A parameter as a box, a buffer as a cylinder; the picture of its numbers. */
function slotChip(slot) {
    const isParameter = slot.kind === 'parameter', image = make('canvas.weights', { role: 'img', 'aria-label': slot.name });
    const told = make('span.note', make('span'), make('span.slope')), columns = columnsOf(slot.shape);
    const give = !isParameter && button('hand it to the optimizer', () => handOver(slot.name),
        { 'aria-label': `Hand ${slot.name} to the optimizer` });
    const draw = () => {
        const x = values('slot ' + slot.name);
        if (!x) return;
        heat(image, x.length > IMAGE_MOST ? x.subarray(0, IMAGE_MOST - IMAGE_MOST % columns) : x, columns);
        const size = number('norm ' + slot.name), grad = number('grad ' + slot.name);
        put(told.firstChild, `${slot.shape.length ? 'norm' : 'value'} ${digits(size)}`);
        if (isParameter) put(told.lastChild, ` ∇ ${digits(grad)}`);
    };
    return { draw, node: make(`div.chip.${isParameter ? 'parameter' : 'buffer'}`, image,
        make('div', make('b', slot.name.split(/(?<=[._])/).flatMap((part) => [part, make('wbr')])), make('span.shape', `[${slot.shape}]`), make('br'), told), give) };
}

/* What the library says to an optimizer that is given a buffer. */
function handOver(name) {
    const wrong = tell('give ' + name), refusal = text('refusal') || wrong;
    $('said-title').textContent = `The optimizer is given ${name}`;
    fill($('said-text'), make('p.formula', make('code', refusal)),
        make('p', 'That is the library’s own answer. A buffer is saved, loaded and moved with the model, ',
            'and forward may update it; an optimizer only takes what the model lists as parameters.'));
    $('said').showModal();
}

/* Bars are the running statistics, dots the last batch's: dots jump, bars follow. */
function channelPlot(layer) {
    const canvas = make('canvas.channels', { role: 'img', 'aria-label': 'Each channel: running statistics and the batch’s' });
    const slots = slotsOf(layer).filter((s) => s.kind === 'buffer');
    const mean = slots.find((s) => s.name.endsWith('mean')), variance = slots.find((s) => s.name.endsWith('var'));
    const rows = [[mean, 'batch_mean', 'mean'], [variance, 'batch_var', 'variance']].filter((r) => r[0]);
    const most = rows.map(() => 1e-3);
    const draw = () => {
        const { c, w, h } = context(canvas), wide = w / rows.length;
        rows.forEach(([slot, batch, name], i) => {
            const running = kept('slot ' + slot.name), now = kept(`${batch} ${layer}`);
            if (!running) return;
            most[i] *= 0.97; /* the scale follows */
            for (const x of [running, now || []]) for (const v of x) most[i] = Math.max(most[i], Math.abs(v) || 0);
            drawChannels(c, { left: i * wide + (i ? 6 : 0), wide: wide - 6, h, most: most[i], signed: i === 0 }, running, now, name);
        });
    };
    return { draw, node: make('div', canvas, make('p.note', make('i.barkey'), 'running, moved by forward ',
        make('i.dot', { style: '--dot:var(--forward)' }), ' this batch')) };
}

function drawChannels(c, { left, wide, h, most, signed }, running, now, name) {
    const top = 14, zero = signed ? (top + h) / 2 : h - 1, scale = (signed ? (h - top) / 2 : h - top) / most * 0.95;
    const each = wide / running.length;
    c.fillStyle = colour('muted');
    c.textAlign = 'left';
    c.fillText(`${name}, up to ${digits(most, 2)}`, left, 10);
    c.fillRect(left, zero, wide, 1);
    for (let i = 0; i < running.length; i++) {
        const x = left + i * each, y = running[i] * scale;
        c.fillStyle = colour('buffer-edge');
        c.fillRect(x + each * 0.15, Math.min(zero, zero - y), each * 0.7, Math.max(1, Math.abs(y)));
        if (!now) continue;
        c.fillStyle = colour('forward');
        c.beginPath();
        c.arc(x + each / 2, zero - now[i] * scale, Math.min(3.5, Math.max(1.5, each / 4)), 0, 7);
        c.fill();
    }
}

const relayer = (i, line) => changeLayers((l) => (l[i] = line));

/* The knobs of a layer that is the reader's; the output layer has none. */
function layerKnobs(line, i) {
    const [kind, size, bias] = line.split(' '), out = [], name = `layer ${i}, ${kind}`;
    if (ACTIVATIONS.includes(kind))
        out.push(choice(ACTIVATIONS, kind, `${name}: activation`, (v) => relayer(i, v)));
    if (SIZES[kind]) {
        const whole = SIZES[kind][1] >= 1;
        out.push(make('label.note', SIZES[kind][0], ' ', make('input', { type: 'number', value: size || SIZES[kind][1],
            min: whole ? 1 : 0, max: whole ? 256 : 1, step: whole ? 1 : 0.05, 'aria-label': `${name}: ${SIZES[kind][0]}`,
            onchange: (e) => relayer(i, [kind, e.target.value, bias].filter(Boolean).join(' ')) })));
    }
    if (kind === 'linear' || kind === 'conv')
        out.push(make('label.note', make('input', { type: 'checkbox', checked: bias !== 'nobias', 'aria-label': `${name}: bias`,
            onchange: (e) => relayer(i, `${kind} ${size}${e.target.checked ? '' : ' nobias'}`) }), 'bias'));
    return out;
}

const iconButton = (sign, label, action) =>
    make('button.icon', { type: 'button', 'aria-label': label, title: label, onclick: action }, sign);

function layerTools(line, i) {
    const frozen = setup.frozen.includes(i), has = slotsOf(i).some((s) => s.kind === 'parameter');
    const freeze = has && make('label.note', make('input', { type: 'checkbox', checked: frozen, 'aria-label': `freeze layer ${i}`,
        onchange: (e) => trouble(tell(`freeze ${i} ${e.target.checked ? 'on' : 'off'}`)) }), 'freeze');
    if (line === undefined) return [freeze];
    const up = i > 0 && iconButton('↑', `Layer ${i} one up`, () =>
        changeLayers((l) => l.splice(i - 1, 2, l[i], l[i - 1])));
    return [freeze, up, iconButton('✕', `Remove layer ${i}`, () => changeLayers((l) => l.splice(i, 1)))];
}

function layerRow(layer, i) {
    const line = setup.layers[i], range = RANGES[layer.kind] || [-4, 4], shape = make('span.shape');
    const act = new Strip('forward', linearBin(range), `Outputs of layer ${i} over time`);
    const grad = new Strip('backward', powerBin, `Gradients of layer ${i} over time`);
    const toldAct = make('span.note'), toldGrad = make('span.note');
    const slots = slotsOf(i), parts = slots.map(slotChip);
    const plot = layer.kind === 'batch_norm' && channelPlot(i);
    const few = slots.length > 6, chips = parts.map((p) => p.node);
    const node = make('li.layer', { 'data-kind': layer.kind },
        make('div.head', make('b', make('span.index', String(i)), line === undefined ? `${layer.kind}, output` : layer.kind),
            shape, line !== undefined && layerKnobs(line, i), make('span.tools', layerTools(line, i))),
        make('div.strips', make('div', { title: `Outputs, from ${range[0]} to ${range[1]}` }, act.canvas, toldAct),
            make('div', { title: 'Sizes of gradients, from 1e-9 to 1 (powers of ten)' }, grad.canvas, toldGrad)),
        plot && plot.node,
        few ? make('details', make('summary', `${slots.length} tensors`), make('div.chips', chips)) : make('div.chips', chips));
    const draw = (fresh) => {
        const x = values(`act ${i}`);
        if (x && fresh) act.add(x);
        const zeros = number(`act ${i} zeros`);
        put(toldAct, x ? `out ${digits(number(`act ${i} mean`), 2)} ± ${digits(number(`act ${i} std`), 2)}` +
            (zeros > 0.01 ? `, ${percent(zeros)} zeros` : '') : 'out –');
        const g = values(`act_grad ${i}`);
        if (g && fresh) grad.add(g);
        put(toldGrad, g ? `gradient norm ${digits(norm(g))}` : 'gradient –');
        put(shape, model.layers[i]?.shape?.length ? `[${model.layers[i].shape}]` : '');
        if (plot) plot.draw();
        if (!few || node.querySelector('details').open) parts.forEach((p) => p.draw());
    };
    return { node, draw };
}

let rows = [];

function renderLayers() {
    rows = model.layers.map(layerRow);
    fill($('layers'), rows.map((r) => r.node));
    $('size').textContent = engine ? `${digits(number('parameters'))} parameters` : '';
    const kinds = setup.data === 'text' ? ['embedding', 'table', 'block', 'layer_norm', 'dropout', 'linear', 'gelu']
        : setup.data === 'digits' ? ['linear', 'conv', 'pool', 'flatten', 'relu', 'batch_norm', 'layer_norm', 'dropout']
        : ['linear', 'tanh', 'relu', 'batch_norm', 'layer_norm', 'dropout'];
    const norms = setup.data === 'text' ? 'layer_norm' : 'batch_norm', has = setup.layers.some((l) => kindOf(l) === norms);
    const used = setup.layers.map(kindOf).find((k) => ACTIVATIONS.includes(k));
    fill($('adding'), make('label', 'add ', choice(['', ...kinds], '', 'Add a layer', (kind) =>
        changeLayers((l) => l.push(SIZES[kind] ? `${kind} ${SIZES[kind][1]}` : kind)))),
    make('label', make('input', { type: 'checkbox', id: 'norms', checked: has, onchange: (e) => switchNorms(norms, e.target.checked) }),
        norms.replace('_', ' ')),
    used && make('label', 'activation ', choice(ACTIVATIONS, used, 'Activation of all layers', (kind) =>
        changeLayers((l) => l.forEach((x, i) => ACTIVATIONS.includes(kindOf(x)) && (l[i] = kind))))),
    setup.data === 'text' && make('label', make('input', { type: 'checkbox', checked: setup.tie,
        onchange: (e) => restart(() => (setup.tie = e.target.checked)) }), 'tie output to embedding'));
}

/* Norms go, or come before each activation (for text: at the end). */
function switchNorms(kind, on) {
    changeLayers((l) => {
        const without = l.filter((x) => kindOf(x) !== kind);
        const withThem = kind === 'layer_norm' ? [...without, kind]
            : without.flatMap((x, i) => (ACTIVATIONS.includes(kindOf(x)) && i ? [kind, x] : [x]));
        l.splice(0, l.length, ...(on ? withThem : without));
    });
}
