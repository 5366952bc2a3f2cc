/* elements.js - elements, numbers, tabs and colours, for this page and the live one (page/). */
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

const button = (content, action, more) =>
    make('button', { type: 'button', onclick: action, ...more }, content);

/* Writes a text only where it is another one. */
function put(e, text) {
    if (e.textContent !== text) e.textContent = text;
}

/* What an element of the page holds in base64; Uint8Array.from is slower. */
function bytesOf(id) {
    const packed = atob($(id).textContent), bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
    return bytes;
}

/* The arrow keys move between tabs. */
function tabKeys(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], tabs = [...$('tabs').children];
    if (!step) return false;
    event.preventDefault();
    tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length].click();
    $('tabs').querySelector('[aria-selected=true]').focus();
    return true;
}

function switchTheme() {
    const { style } = document.documentElement;
    const preferred = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
    style.colorScheme = (style.colorScheme || preferred) === 'dark' ? 'light' : 'dark';
}

/* A number to so many digits, with a real minus. */
function rounded(x, many) {
    const size = Math.abs(x), plain = size === 0 || (size >= 1e-3 && size < 1e5);
    const text = plain ? String(Number(x.toPrecision(many)))
        : x.toExponential(Math.min(2, many - 1)).replace(/\.?0+e/, 'e').replace('e+', 'e');
    return text.replace(/-/g, '−').replace('Infinity', '∞');
}
