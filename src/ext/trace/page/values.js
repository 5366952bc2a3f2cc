/*
 * values.js - formulas, and the numbers of a tensor, as elements of a card.
 */

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
        else if (token[0] === '^') out.push(make('sup', inner));
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
    const line = (cls, text) => lines.push(make('p.formula with', formula(node.formula, (name) =>
        known.has(name) && make(`span.${cls}`, { 'data-put': 1 }, text(known.get(name))))));
    line('shape', (x) => shapeText(x.shape));
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

/* The arrow keys move the focus from cell to cell. */
function gridKeys(event, cells, columns) {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (!by) return;
    const from = event.target.closest('td'), to = cells[cells.indexOf(from) + by];
    event.preventDefault();
    event.stopPropagation();
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
}

const CELLS_MOST = 1024;

/* The values of a tensor, rows of its last axis (of at most 16), a gap between matrices. Each cell
 * tells its number when the mouse is on it or it has the focus. mark: an element to be marked. */
function grid(value, shape, what, mark) {
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
    const told = make('output.told');
    const tell = (event) => {
        const cell = event.target.closest('td');
        if (cell) told.textContent = what + cell.title;
    };
    const table = make('table', {
        class: wide ? 'grid wide' : 'grid', role: 'grid', 'aria-label': what,
        onmouseover: tell, onfocusin: tell, onkeydown: (event) => gridKeys(event, cells, columns),
    }, make('tbody', lines));
    return make('div.values', table, told,
        left > 0 && note(`and ${plural(left, 'element')} more`));
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
