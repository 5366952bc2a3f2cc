/*
 * inputs.js - the digit that the reader draws, and the text: what the model writes, and where its
 * attention looks.
 */

const INK = 16;
const pad = { ink: new Float32Array(64), at: 27, down: false, example: 0, digits: null };

/* Puts the next digit of the data on the pad. */
function nextExample() {
    pad.digits ||= bytesOf('digits');
    const count = Math.floor(pad.digits.length / 65);
    pad.example = (pad.example + 97) % count;
    pad.ink.set(pad.digits.subarray(pad.example * 65, pad.example * 65 + 64));
    redraw();
}

function drawPad(canvas) {
    const { c, w } = context(canvas), each = w / 8;
    const ink = rgb('ink'), paper = rgb('surface');
    for (let i = 0; i < 64; i++) {
        const k = pad.ink[i] / INK, mix = ink.map((v, j) => Math.round(paper[j] + (v - paper[j]) * k));
        c.fillStyle = `rgb(${mix})`;
        c.fillRect(i % 8 * each, Math.floor(i / 8) * each, each - 1, each - 1);
    }
    if (document.activeElement !== canvas) return;
    c.strokeStyle = colour('focus');
    c.lineWidth = 3;
    c.strokeRect(pad.at % 8 * each + 1, Math.floor(pad.at / 8) * each + 1, each - 3, each - 3);
}

/* A pen that is wider than one place, as the data's digits are. */
function ink(x, y) {
    for (let i = 0; i < 64; i++) {
        const far = Math.hypot(i % 8 + 0.5 - x, Math.floor(i / 8) + 0.5 - y);
        pad.ink[i] = Math.max(pad.ink[i], Math.min(INK, Math.round(INK * (1.25 - far))));
    }
    redraw();
}

function padPointer(event) {
    if (event.type === 'pointerdown') {
        pad.down = true;
        event.target.setPointerCapture(event.pointerId);
    }
    if (event.type === 'pointerup') pad.down = false;
    const box = event.target.getBoundingClientRect();
    if (pad.down) ink((event.clientX - box.x) / box.width * 8, (event.clientY - box.y) / box.height * 8);
}

function padKeys(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -8, ArrowDown: 8 }[event.key];
    if (!by && event.key !== 'Enter') return;
    event.preventDefault();
    event.stopPropagation();
    if (by) pad.at = (pad.at + by + 64) % 64;
    else pad.ink[pad.at] = pad.ink[pad.at] > 0 ? 0 : INK;
    redraw();
}

/* How likely each class is, as bars. */
function drawBars(node) {
    const p = values(`draw ${[...pad.ink].join(' ')}`);
    const best = p ? p.indexOf(Math.max(...p)) : -1;
    if (node.children.length !== 10) fill(node, Array.from({ length: 10 }, (_, i) =>
        make('div.bar', make('b', String(i)), make('i'), make('span.note'))));
    [...node.children].forEach((bar, i) => {
        bar.classList.toggle('best', i === best);
        bar.children[1].style.setProperty('--part', p ? p[i] : 0);
        bar.children[2].textContent = p ? percent(p[i]) : '';
    });
}

function digitPanel() {
    const canvas = make('canvas.pad', { id: 'pad', tabindex: 0, role: 'img', onkeydown: padKeys,
        'aria-label': 'A pad of 8 by 8: arrows move, Enter puts ink', onfocus: redraw, onblur: redraw,
        ...Object.fromEntries(['pointerdown', 'pointermove', 'pointerup'].map((e) => ['on' + e, padPointer])) });
    const bars = make('div.bars', { 'aria-label': 'Probability of each class' });
    if (!pad.ink.some((v) => v)) nextExample();
    return {
        nodes: [make('div.sides', make('div', canvas, make('p.row', button('Clear', () => (pad.ink.fill(0), redraw())),
            button('A digit of the data', nextExample))), make('div', make('h3', 'The model says'), bars))],
        draw: () => {
            drawPad(canvas);
            drawBars(bars);
        },
    };
}

let alphabet = ''; /* the character of each id */

/* As the engine numbers them: the different bytes of the text, in order. */
function readAlphabet() {
    const told = text('alphabet');
    const seen = told ? null : [...new Set(bytesOf('text'))].sort((a, b) => a - b);
    alphabet = told || String.fromCharCode(...seen);
}

const seen = (c) => (c === '\n' ? '⏎' : c === ' ' ? '·' : c ?? '');

/* The weights of a head over the last batch's first text; rows look at columns. */
function drawAttention(canvas, { layer, head }, letters) {
    const x = kept(`attention ${layer} ${head}`), ids = letters && kept('act -1');
    const { c, w, h } = context(canvas);
    if (!x) {
        c.fillStyle = colour('muted');
        if (letters) c.fillText('shown after the first step', 12, 24);
        return;
    }
    const side = Math.round(Math.sqrt(x.length));
    const from = letters ? 14 : 0, each = (Math.min(w, h) - from) / side;
    tinted(plane.sheet, x, side, 'forward', 'forward', (v) => v);
    c.imageSmoothingEnabled = false;
    c.drawImage(plane.sheet, from, from, each * side, each * side);
    c.font = '8.5px ui-monospace, "DejaVu Sans Mono", monospace';
    c.fillStyle = colour('muted');
    c.textAlign = 'center';
    for (let i = 0; i < side && ids; i++) {
        c.fillText(seen(alphabet[ids[i]]), from + (i + 0.5) * each, 9);
        c.fillText(seen(alphabet[ids[i]]), 5, from + (i + 0.8) * each);
    }
}

const SAMPLE = 160;

function textPanel() {
    if (!alphabet) readAlphabet();
    const out = make('p.sample', { id: 'sample', 'aria-live': 'off' });
    const large = make('canvas.attention', { role: 'img', 'aria-label': 'Attention of the chosen head' });
    const heads = layersOf('block').flatMap((layer) => Array.from({ length: Number(setup.layers[layer]?.split(' ')[1]) || 1 },
        (_, head) => ({ layer, head, canvas: make('canvas.attention') })));
    let written = 0, chosen = 0;
    const choose = (i) => {
        chosen = i;
        buttons.forEach((b, k) => b.setAttribute('aria-pressed', String(k === i)));
        redraw();
    };
    const buttons = heads.map(({ canvas, layer, head }, i) => button([canvas, `head ${head}`], () => choose(i),
        { 'aria-pressed': String(i === 0), 'aria-label': `Layer ${layer}, head ${head}` }));
    const write = () => {
        written = performance.now();
        out.textContent = text(`sample ${SAMPLE}`) || '–';
    };
    return {
        nodes: [make('h3', 'The model writes ', button('again', write)), out,
            make('h3', 'Attention: each row’s character looks back at the columns’'),
            make('div.sides', large, make('div.heads', buttons))],
        draw: () => {
            if (performance.now() - written > 3000 || !written) write();
            for (const head of heads) drawAttention(head.canvas, head, false);
            if (heads.length) drawAttention(large, heads[chosen], true);
        },
        slow: true,
    };
}
