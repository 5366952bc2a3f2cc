/* pictures.js - the plane with its decision surface and points; the two modes side by side. */

const SIDE = 48;    /* places of the surface each way */
const EDGE = 1.2;   /* what it shows: [-1.2, 1.2] */
const cursor = { x: 0, y: 0, shown: false, group: 1 };

const rgb = (name) => colour(name).match(/[\d.]+/g).slice(0, 3).map(Number);

/* Numbers as a small picture: of share 0 one colour, of 1 another, of a half the paper's. */
function tinted(canvas, x, columns, low, high, share) {
    const rows = Math.ceil(x.length / columns);
    setPixels(canvas, columns, rows);
    const c = canvas.getContext('2d'), image = c.createImageData(columns, rows);
    const a = rgb(low), b = rgb(high), paper = rgb('surface'), bad = rgb('bad');
    for (let i = 0; i < x.length; i++) {
        const s = share(x[i]), k = Math.min(1, Math.abs(s)), to = s < 0 ? a : b, at = 4 * i;
        const wrong = !Number.isFinite(x[i]);
        for (let j = 0; j < 3; j++)
            image.data[at + j] = wrong ? bad[j] : paper[j] + (to[j] - paper[j]) * k;
        image.data[at + 3] = 255;
    }
    c.putImageData(image, 0, 0);
}

/* Blue below zero, orange above, stronger the farther, as on the recorded page. */
function heat(canvas, x, columns, most) {
    const largest = most || x.reduce((m, v) => Math.max(m, Math.abs(v) || 0), 0) || 1;
    tinted(canvas, x, columns, 'below', 'above', (v) => v / largest);
}

const plane = { sheet: document.createElement('canvas'), train: null, test: null };

/* Points and classes, asked once for each model. */
const readPoints = (part) => ({ at: kept(part + '_x') || [], group: kept(part + '_y') || [] });

function drawPoints(c, part, size, radius, hollow) {
    for (let i = 0; i < part.group.length; i++) {
        const x = (part.at[2 * i] + EDGE) / (2 * EDGE) * size, y = (EDGE - part.at[2 * i + 1]) / (2 * EDGE) * size;
        c.beginPath();
        c.arc(x, y, radius, 0, 7);
        c.fillStyle = c.strokeStyle = colour(part.group[i] ? 'second' : 'first');
        c.lineWidth = hollow ? 1.6 : 1;
        if (hollow) c.stroke();
        else {
            c.fill();
            c.strokeStyle = colour('surface');
            c.stroke();
        }
    }
}

function drawCursor(c, size) {
    const x = (cursor.x + EDGE) / (2 * EDGE) * size, y = (EDGE - cursor.y) / (2 * EDGE) * size;
    c.strokeStyle = colour('ink');
    c.lineWidth = 1.5;
    c.stroke(new Path2D(`M${x - 9},${y}h18M${x},${y - 9}v18`));
}

/* The surface and the points on a canvas. */
function drawPlane(canvas) {
    const { c, w } = context(canvas), surface = values(`surface ${SIDE}`);
    if (surface) {
        tinted(plane.sheet, surface, SIDE, 'first', 'second', (p) => 1.3 * (p - 0.5));
        c.imageSmoothingEnabled = true;
        c.drawImage(plane.sheet, 0, 0, w, w);
    }
    if (!plane.train) Object.assign(plane, { train: readPoints('train'), test: readPoints('test') });
    const radius = Math.max(2.2, w / 130);
    drawPoints(c, plane.train, w, radius, false);
    drawPoints(c, plane.test, w, radius, true);
    if (cursor.shown && setup.data === 'points') drawCursor(c, w);
}

function addPoint(x, y, group) {
    const place = (v) => Math.max(-1, Math.min(1, v)).toFixed(3);
    trouble(tell(`point ${place(x)} ${place(y)} ${group}`));
    plane.train = null;
    redraw();
}

function planeKeys(event) {
    if (setup.data !== 'points') return;
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    const group = { a: 0, b: 1, Enter: cursor.group }[event.key];
    if (!by && group === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (by) {
        cursor.x = Math.max(-1, Math.min(1, cursor.x + 0.1 * by[0]));
        cursor.y = Math.max(-1, Math.min(1, cursor.y + 0.1 * by[1]));
        redraw();
    } else addPoint(cursor.x, cursor.y, group);
}

function planeClick(event) {
    if (setup.data !== 'points') return;
    const box = event.target.getBoundingClientRect(), at = (v, size) => (v / size * 2 - 1) * EDGE;
    addPoint(at(event.clientX - box.x, box.width), -at(event.clientY - box.y, box.height),
        event.shiftKey ? 1 - cursor.group : cursor.group);
}

function showCursor(shown) {
    cursor.shown = shown;
    redraw();
}

/* The tab "surface" of the data in the plane. */
function planePanel() {
    const own = setup.data === 'points';
    const canvas = make('canvas.plane', { id: 'plane', tabindex: own ? 0 : -1, role: 'img',
        'aria-label': 'Decision surface and points', onclick: planeClick, onkeydown: planeKeys,
        onfocus: () => showCursor(true), onblur: () => showCursor(false) });
    const pick = (group, name) => make('label', make('input', { type: 'radio', name: 'group', checked: cursor.group === group,
        onchange: () => (cursor.group = group) }), make('i.dot', { style: `--dot:var(--${name})` }), ` class ${group}`);
    const note = own ? make('p.note.row', 'A click adds a point of ', pick(0, 'first'), pick(1, 'second'),
        make('span', 'Keys: arrows, ', make('kbd', 'a'), ' ', make('kbd', 'b')))
        : make('p.note.row', make('span', make('i.dot', { style: '--dot:var(--first)' }), ' class 0'),
            make('span', make('i.dot', { style: '--dot:var(--second)' }), ' class 1'),
            make('span', 'filled: to train, hollow: to test'), make('span', 'background: what the model says'));
    return { nodes: [canvas, note], draw: () => drawPlane(canvas) };
}

/* What the modes put out for the same inputs: surfaces, or classes of the drawn digit, and losses. */
function bothPanel() {
    const sides = ['train', 'eval'].map((mode) => ({ mode, told: make('p.note'), picture: isPlane()
        ? make('canvas.plane', { role: 'img', 'aria-label': `Surface in ${mode} mode` }) : make('div.bars') }));
    const draw = () => {
        const before = setup.judge;
        for (const { mode, picture, told } of sides) {
            tell(`judge ${mode}`);
            if (isPlane()) drawPlane(picture);
            else if (setup.data === 'digits') drawBars(picture);
            tell(evaluateLine());
            fill(told, 'test loss ', make('b', digits(number('test_loss'))),
                ', accuracy ', make('b', percent(number('test_accuracy'))));
        }
        tell(`judge ${before}`);
    };
    const what = { train: 'norms take the batch’s own mean and variance; dropout drops',
        eval: 'norms take the running ones; dropout does nothing' };
    return {
        nodes: [make('div.sides', sides.map(({ mode, picture, told }) => make('div',
            make('h3', `${mode} mode`), make('p.note', what[mode]), picture, told)))],
        draw, slow: true,
    };
}
