/* values.js - formulas, and the numbers of a tensor, as elements of a card. */

/* ---- formulas -------------------------------------------------------------------------------- */

/* x^T, x^(1/2); x_i; a name, with an index; anything else. */
const TOKEN = /[\^_](?:\([^)]*\)|-?[A-Za-z0-9]+)|[A-Za-z]+(?:\[[^\]]*\])?|[^A-Za-z^_]+|./g;

/* A formula as elements: x^T raised, x_i lowered, letters in italics. put(name) may give something
 * else for a name: its shape, its numbers. */
function formula(text, put) {
    const out = [];
    for (const token of text.match(TOKEN) || []) {
        const inner = token.slice(1).replace(/^\((.*)\)$/, '$1');
        const letter = /^d?[A-Za-z](\[|$)/.test(token);
        const other = put && /^[A-Za-z]/.test(token) && put(token.replace(/\[.*/, ''));
        const last = out[out.length - 1];
        if (other) out.push(other);
        else if (token[0] === '^') out.push(make('sup', formula(inner, put)));
        else if (token[0] === '_' && !last?.dataset?.put) out.push(make('sub', inner));
        else if (token[0] !== '_')
            out.push(letter ? make('i', token) : token.replace(/ - /g, ' − '));
    }
    return out;
}

/* That of an op; of one without its name. */
const formulaOf = (node) => (node.formula ? formula(node.formula) : node.op);

/* Where there are no small letters, a formula without its indices: "y = sum x W + b". */
const plainFormula = (text) => text.replace(/_(\([^)]*\)|-?[A-Za-z0-9]+)/g, '');

/* Up to four numbers in a formula; a single one below zero in brackets. */
function numbersText({ values }) {
    const text = values.map((x) => digits(x)).join(' ');
    return values.length > 1 ? `[${text}]` : values[0] < 0 ? `(${text})` : text;
}

/* The formulas of one op: in letters, with shapes, with numbers if there are few. */
function formulas(g, node) {
    const lines = [make('p.formula', formulaOf(node))];
    const known = new Map(node.in.filter((x) => x && nameInFormula(x)).map((x) =>
        [x.name, { shape: x.shape, value: inputValue(g, x) }]));
    if (!node.formula || !known.size) return lines;
    known.set(resultName(node), node.out[0]);
    const number = (name, x) => known.set(name, { value: { values: [x] } });
    node.constants?.split(' ').forEach((names, k) => number(names.split('|').find((name) =>
        new RegExp(`\\b${name}\\b`).test(node.formula)), node.numbers[k]));
    if (node.op === 'mean') number('n', elements(node.in[0].shape) / elements(node.out[0].shape));
    const line = (cls, text) => lines.push(make('p.formula with', formula(node.formula, (name) =>
        known.has(name) && make(`span.${cls}`, { 'data-put': 1 }, text(known.get(name))))));
    line('shape', (x) => (x.shape ? shapeText(x.shape) : numbersText(x.value)));
    const few = ({ value }) => value?.values?.length <= 4;
    if ([...known.values()].every(few)) line('num', (x) => numbersText(x.value));
    return lines;
}

/* ---- numbers as a grid of colours ------------------------------------------------------------ */

/* Index of an element in a shape: "[1,0,2]". */
function indexText(i, shape) {
    const index = [];
    for (const size of shape.toReversed()) {
        index.unshift(i % size);
        i = Math.floor(i / size);
    }
    return shape.length ? shapeText(index) : '';
}

/* A cell's colour: blue below zero, orange above, stronger the farther. */
function cellColour(x, largest) {
    if (!Number.isFinite(x)) return 'var(--bad)';
    const strength = largest > 0 ? Math.round(70 * Math.abs(x) / largest) : 0;
    return `color-mix(in srgb, var(${x < 0 ? '--below' : '--above'}) ${strength}%, var(--surface))`;
}

/* The arrow keys move the focus from cell to cell; of a picture, tell says the next one. */
function gridKeys(event, cells, columns, tell, at) {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    if (tell) return tell(at + by);
    const from = event.target.closest('td'), to = cells[cells.indexOf(from) + by];
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
}

const CELLS_MOST = 1024;

/* The values of a tensor, rows of its last axis (of at most 16), a gap between matrices. Each cell
 * tells its number when the mouse is on it or it has the focus. mark: an element to be marked. */
function grid(value, shape, what, mark) {
    if (value?.picture)
        return value.picture.size[0] ? picture(value, shape, what) : histogram(value, what);
    if (!value?.values || value.values.length < 2) return null;
    const x = value.values.slice(0, CELLS_MOST), left = value.values.length - x.length;
    const largest = largestOf(x, (v) => (Number.isFinite(v) ? Math.abs(v) : 0));
    const columns = Math.min(shape.length ? shape[shape.length - 1] : 1, 16) || 1;
    const rows = shape.length > 2 ? shape[shape.length - 2] : Infinity;
    const wide = columns <= 8; /* room for numbers */
    const cells = x.map((v, i) => make('td', {
        tabindex: i ? -1 : 0, class: i === mark ? 'marked' : null,
        style: `background:${cellColour(v, largest)}`,
        title: `${indexText(i, shape)} = ${digits(v)}`,
        'aria-label': `${indexText(i, shape)} ${digits(v)}` }, wide && digits(v)));
    const lines = Array.from({ length: Math.ceil(x.length / columns) }, (_, i) =>
        make(i && i % rows === 0 ? 'tr.slice' : 'tr', cells.slice(i * columns, (i + 1) * columns)));
    return toldTable(wide ? 'table.grid wide' : 'table.grid', what, what, lines, cells, columns,
        left > 0 && note(`and ${plural(left, 'element')} more`));
}

/* Cells, each of which tells its title under them when the mouse is on it or it has the focus. */
function toldTable(kind, label, what, lines, cells, columns, ...more) {
    const told = make('output.told');
    const tell = (event) => {
        const cell = event.target.closest('td');
        if (cell) told.textContent = what + cell.title;
    };
    return make('div.values', make(kind, { role: 'grid', 'aria-label': label, onmouseover: tell,
        onfocusin: tell, onkeydown: (event) => gridKeys(event, cells, columns) },
    make('tbody', lines)), told, more);
}

/* ---- pictures of large tensors --------------------------------------------------------------- */

/* A histogram: how many elements are in each part of the range. */
function histogram({ picture: { values: bins }, min, max }, what) {
    const most = Math.max(...bins), at = (i) => digits(min + (max - min) * i / bins.length, 3);
    const cells = bins.map((n, i) => make('td', { tabindex: i ? -1 : 0, style:
        `background:linear-gradient(to top, var(--below) ${100 * n / most}%, transparent 0)`,
    title: `: ${plural(n, 'element')} from ${at(i)} to ${at(i + 1)}` }));
    return toldTable('table.histogram', `Histogram of ${what}`, what, [make('tr', cells)], cells);
}

/* Matrices and channels side by side as colours, blue below zero, orange above. The mouse and the
 * arrow keys read single elements. */
function picture({ picture: { size: [slices, rows, columns], every, values } }, shape, what) {
    const largest = largestOf(values, (v) => (Number.isFinite(v) ? Math.abs(v) : 0));
    const each = columns + 1, width = slices * each - 1, told = make('output.told');
    const canvas = make('canvas.picture', { width, height: rows, tabindex: 0, role: 'img',
        'aria-label': what, style: `width:${width * Math.max(2, Math.min(8, 330 / width | 0))}px`,
        onfocus: () => tell(at), onkeydown: (event) => gridKeys(event, null, columns, tell, at),
        onmousemove: ({ offsetX, offsetY }) => {
            const cell = canvas.clientWidth / width, x = offsetX / cell | 0, y = offsetY / cell | 0;
            if (x % each < columns) tell(((x / each | 0) * rows + y) * columns + x % each);
        } });
    const context = canvas.getContext('2d');
    values.forEach((v, i) => {
        const x = (i / (rows * columns) | 0) * each + i % columns, y = (i / columns | 0) % rows;
        context.fillStyle = !Number.isFinite(v) ? '#c2185b'
            : `rgb(${v < 0 ? '74 137 220' : '230 126 40'} / ${100 * Math.abs(v) / (largest || 1)}%)`;
        context.fillRect(x, y, 1, 1);
    });
    let at = 0;
    function tell(i) {
        if (i < 0 || i >= values.length) return;
        const [h, w] = shape.slice(-2), row = (i / columns | 0) % rows * every[0];
        const place = ((i / (rows * columns) | 0) * h + row) * w + i % columns * every[1];
        at = i;
        told.textContent = `${what}${indexText(place, shape)} = ${digits(values[i], 3)}`;
        canvas.setAttribute('aria-label', told.textContent);
    }
    const all = elements(shape) / (shape.at(-1) * shape.at(-2));
    return make('div.values', canvas, told,
        slices < all && note(`the first ${slices} of ${all} matrices`),
        every[0] * every[1] > 1 && note(`one element of every ${every[0]} by ${every[1]}`));
}

/* "norm 0.31 from −1 to 1, 3 zeros of 8"; of one number: itself. */
function valueLine(value, shape) {
    if (!value) return make('span.muted', 'not known');
    const n = elements(shape);
    return make('span.stats',
        n === 0 ? 'no elements' : [n > 1 && 'norm ', make('b.num', summaryText(value, shape))],
        n > 1 && ` from ${digits(value.min)} to ${digits(value.max)}`,
        n > 1 && value.zeros > 0 && `, ${plural(value.zeros, 'zero')} of ${n}`,
        value.nan > 0 && make('b.bad', `, ${value.nan} NaN`),
        value.inf > 0 && make('b.bad', `, ${value.inf} infinite`));
}
