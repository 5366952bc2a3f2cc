/*
 * elements.js - elements and numbers, for this page and the live one (page/).
 */
'use strict';

const SVG = 'http://www.w3.org/2000/svg';
const $ = (id) => document.getElementById(id);
const isThere = (x) => x !== null && x !== undefined && x !== false;

/* An element, make('p.note', { id: 'a' }, ...children); class and attributes may be left out. Texts
 * become text, so nothing that is told is markup. */
function make(kind, ...parts) {
    const [tag, ...classes] = kind.split('.'), svg = tag.startsWith('svg:');
    const e = svg ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    if (classes.length) e.setAttribute('class', classes.join(' '));
    for (const part of parts.flat(Infinity))
        if (part?.constructor !== Object) {
            if (isThere(part) && part !== '') e.append(part);
        } else for (const [name, value] of Object.entries(part))
            if (name.startsWith('on')) e.addEventListener(name.slice(2), value);
            else if (isThere(value)) e.setAttribute(name, value);
    return e;
}

/* The children, in lists of any depth, take the place of those that were there. */
function fill(e, ...children) {
    e.replaceChildren(...children.flat(Infinity).filter((x) => isThere(x) && x !== ''));
    return e;
}

/* A number to so many digits, with a real minus. */
function rounded(x, many) {
    const size = Math.abs(x), plain = size === 0 || (size >= 1e-3 && size < 1e5);
    const text = plain ? String(Number(x.toPrecision(many)))
        : x.toExponential(Math.min(2, many - 1)).replace(/\.?0+e/, 'e').replace('e+', 'e');
    return text.replace(/-/g, '−').replace('Infinity', '∞');
}
