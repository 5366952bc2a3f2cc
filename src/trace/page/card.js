/*
 * card.js - the card of what is chosen: an op, a tensor, a module's call, the optimizer, or the
 * step as a whole.
 */

/* ---- formulas -------------------------------------------------------------------------------- */

/* A formula as elements: x^T raised, x_i lowered, letters in italics. put(name) may give something
 * else for a name: its shape, its numbers. */
function formula(text, put) {
    const out = [];
    const tokens =
        text.match(/[\^_](?:\([^)]*\)|-?[A-Za-z0-9]+)|[A-Za-z]+(?:\[[^\]]*\])?|[^A-Za-z^_]+|./g) ||
        [];
    for (const token of tokens) {
        const inner = token.slice(1).replace(/^\((.*)\)$/, '$1');
        const bare = token.replace(/\[.*/, '');
        const other = put && /^[A-Za-z]/.test(token) && put(bare);
        if (other) out.push(other);
        else if (token[0] === '^') out.push(make('sup', {}, inner));
        else if (token[0] === '_') {
            if (!(out.length && out[out.length - 1].dataset?.put)) out.push(make('sub', {}, inner));
        } else if (/^d?[A-Za-z](\[|$)/.test(token) && token !== 'a[') out.push(make('i', {},
            token));
        else out.push(token.replace(/ - /g, ' − '));
    }
    return out;
}

/* The formulas of one op: in letters, with shapes, with numbers if there are few. */
function formulas(g, node) {
    const lines = [make('p', { class: 'formula' }, formula(node.formula || node.op))];
    const names = inputNames(node), out = node.out[0];
    const result = /^\s*([A-Za-z]+)/.exec(node.formula || '');
    if (!result || !names.some((x) => x)) return lines;
    const place = (name) => (name === result[1] ? -1 : names.indexOf(name));
    const known = (name) => name === result[1] || names.includes(name);
    const shaped = (name) => known(name) && make('span', { class: 'shape', 'data-put': 1 },
        shapeText(place(name) < 0 ? out.shape : node.in[place(name)].shape));
    lines.push(make('p', { class: 'formula with' }, formula(node.formula, shaped)));
    const few = (value) => value && value.values && value.values.length <= 4;
    const values = (name) => (place(name) < 0 ? out.value : inputValue(g, node.in[place(name)]));
    if ([result[1], ...names.filter((x) => x)].every((name) => few(values(name)))) {
        const put = (name) => known(name) && make('span', { class: 'num', 'data-put': 1 },
            values(name).values.length === 1 ? bracketed(values(name).values[0])
                : `[${values(name).values.map((x) => digits(x)).join(' ')}]`);
        lines.push(make('p', { class: 'formula with' }, formula(node.formula, put)));
    }
    return lines;
}

const bracketed = (x) => (number(x) < 0 ? `(${digits(x)})` : digits(x));

/* ---- numbers as a grid of colours ------------------------------------------------------------ */

/* Index of an element in a shape: "[1,0,2]". */
function indexText(i, shape) {
    const index = [];
    for (let d = shape.length - 1; d >= 0; d--) {
        index.unshift(i % shape[d]);
        i = Math.floor(i / shape[d]);
    }
    return shape.length ? `[${index.join(',')}]` : '';
}

/* A cell's colour: blue below zero, orange above, stronger the farther. */
function cellColour(x, most) {
    if (!Number.isFinite(x)) return 'var(--bad)';
    const strength = most > 0 ? Math.round(70 * Math.abs(x) / most) : 0;
    return `color-mix(in srgb, var(${x < 0 ? '--below' : '--above'}) ${strength}%, var(--surface))`;
}

/* The values of a tensor. Each cell tells its number when the mouse is on it or it has the focus;
 * the arrow keys move within the grid. mark: an element to be marked. */
function grid(value, shape, what, mark) {
    if (!value || !value.values || value.values.length < 2) return null;
    const x = value.values.map(number), n = x.length;
    const most = Math.max(...x.filter(Number.isFinite).map(Math.abs), 0);
    const columns = Math.min(shape.length ? shape[shape.length - 1] : 1, 16) || 1;
    const rows = shape.length > 2 ? shape[shape.length - 2] : Infinity;
    const wide = columns <= 8;
    const told = make('output', { class: 'told' });
    const tell = (i) => (told.textContent = `${what}${indexText(i, shape)} = ${digits(x[i])}`);
    const cells =
        x.map((v, i) => make('td',
        { tabindex: i ? -1 : 0, 'data-i': i, class: i === mark ? 'marked' : null,
        style: `background:${cellColour(v, most)}`,
            'aria-label': `${indexText(i, shape)} ${digits(v)}`,
        title: `${indexText(i, shape)} = ${digits(v)}` }, wide ? digits(v) : ''));
    const lines = [];
    for (let i = 0; i < n; i += columns)
        lines.push(make('tr', { class: i && (i / columns) % rows === 0 ? 'slice' : null },
            cells.slice(i, i + columns)));
    const table =
        make('table', { class: wide ? 'grid wide' : 'grid', role: 'grid', 'aria-label': what },
        make('tbody', {}, lines));
    const cell = (event) => event.target.closest('td');
    table.addEventListener('mouseover',
        (event) => cell(event) && tell(Number(cell(event).dataset.i)));
    table.addEventListener('focusin',
        (event) => cell(event) && tell(Number(cell(event).dataset.i)));
    table.addEventListener('keydown', (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns,
            ArrowDown: columns }[event.key];
        const to = move && cells[Number(cell(event).dataset.i) + move];
        if (!move) return;
        event.preventDefault();
        event.stopPropagation();
        if (!to) return;
        cell(event).tabIndex = -1;
        to.tabIndex = 0;
        to.focus();
    });
    return make('div', { class: 'values' }, table, told);
}

/* "norm 0.31, from −1 to 1, 3 zeros"; of one number: itself. */
function valueLine(value, shape) {
    if (!value) return make('span', { class: 'muted' }, 'not known');
    const out = make('span', { class: 'stats' }), n = elements(shape || []);
    if (n === 1) out.append(make('b', { class: 'num' }, summaryText(value, shape)));
    else {
        out.append('norm ', make('b', { class: 'num' }, digits(value.norm)),
            ` from ${digits(value.min)} to ${digits(value.max)}`);
        if (value.zeros) out.append(`, ${plural(value.zeros, 'zero')} of ${n}`);
    }
    if (value.nan) out.append(make('b', { class: 'bad' }, `, ${value.nan} NaN`));
    if (value.inf) out.append(make('b', { class: 'bad' }, `, ${value.inf} infinite`));
    return out;
}

/* ---- parts of a card ------------------------------------------------------------------------- */

function linkTo(key, text) {
    return make('button',
        { type: 'button', class: 'link', 'data-to': key, onclick: () => choose(key) },
        text);
}

/* A link to an op or a tensor, by what the trace calls it. */
function linkToSource(g, from) {
    if (typeof from === 'string') {
        const t = g.trace.byId.get(from);
        return linkTo(from, t ? tensorName(t) : from);
    }
    const node = g.node.get(from);
    return node ? linkTo('n' + from, `${node.op} #${from}`) : `#${from}`;
}

const section = (cls, title, ...content) =>
    make('section', { class: cls }, make('h3', {}, title), ...content);

/* One tensor in a card: a line with its numbers, and the grid below it. */
function entry(head, value, shape, what, more, mark) {
    return make('li', {}, make('div', { class: 'entry' }, head), valueLine(value, shape),
        more || null,
        grid(value, shape, what, mark));
}

/* "[2,8] → [8], summed over what was broadcast" */
function reduction(share, shape) {
    if (!share.reduced_from) return null;
    return make('div', { class: 'note' },
        `summed over what was broadcast: ${shapeText(share.reduced_from)} → ${shapeText(shape)}`);
}

function forwardPart(g, node) {
    const names = inputNames(node);
    const list = node.in.map((input, i) => {
        if (!input) return null;
        const head = [names[i] ? make('i', {}, names[i]) : `input ${i}`, ' from ',
            linkToSource(g, input.from),
            make('span', { class: 'shape' }, `${shapeText(input.shape)} ${input.dtype}`),
            input.gradient ? null : make('span', { class: 'note' }, 'no gradient goes back')];
        return entry(head, inputValue(g, input), input.shape, names[i] || `input ${i}`);
    });
    const result = (/^\s*([A-Za-z]+)/.exec(node.formula || '') || ['', 'y'])[1];
    const outs =
        node.out.map((out,
        i) => entry([make('i', {}, node.out.length > 1 ? `${result}${i}` : result),
        ' the result', make('span', { class: 'shape' }, `${shapeText(out.shape)} ${out.dtype}`)],
    out.value, out.shape, result));
    const kept = (node.kept || []).filter((k) => k.bytes);
    return section('forward', 'Forward', make('ul', { class: 'tensors' }, list, outs),
        make('p', { class: 'note' }, kept.length
            ? `Keeps for backward: ${kept.map((k) =>
                `${k.what} ${bytesText(k.bytes)}`).join(', ')}.`
            : 'Keeps nothing for backward.'));
}

/* The gradient that comes in; where the result was used several times, as a sum. */
function incomingPart(g, node, incoming) {
    const shape = node.out[incoming.output] ? node.out[incoming.output].shape : [];
    const from = incoming.sum.map((s, i) => [i ? ' + ' : '',
        s.from === null || s.from === undefined ? 'the seed, 1'
            : ['share of ', linkToSource(g, s.from)]]);
    const parts = incoming.sum.length > 1 ? incoming.sum.map((s) => shareValue(g, s)) : [];
    const numbers = parts.length && parts.every((v) => v)
        ? make('div', { class: 'note num' }, elements(shape) === 1
            ? `${parts.map((v) => summaryText(v,
                shape)).join(' + ')} = ${summaryText(incoming.value, shape)}`
            : `norms ${parts.map((v) =>
                digits(v.norm)).join(', ')}; of the sum ${digits(incoming.value.norm)}`)
        : null;
    const head =
        [make('i', {}, 'dy'), incoming.sum.length > 1 ? ' comes in, a sum: ' : ' comes in: ', from,
        make('span', { class: 'shape' }, shapeText(shape))];
    return entry(head, incoming.value, shape, 'dy', numbers);
}

function shareValue(g, part) {
    for (const k of g.shares.get(`${part.from}.${part.in}`) || [])
        for (const share of g.step.backward[k].shares) if (share.in === part.in) return share.value;
    return null;
}

function sharePart(g, node, share, step, mark) {
    const input = node.in[share.in], name = inputNames(node)[share.in];
    const what = name ? 'd' + name : `share ${share.in}`;
    const added = (step.accumulated || []).find((a) => a.tensor === share.to);
    const head = [make('i', {}, what), ' goes to ', linkToSource(g, share.to),
        make('span', { class: 'shape' }, shapeText(input.shape))];
    const more = [reduction(share, input.shape)];
    if (added) {
        const text = added.before ? `grad = ${summaryText(added.before, input.shape)} + ${what}`
            : `grad = 0 + ${what}`;
        more.push(make('div', { class: 'note' }, `${text} → `,
            make('span', { class: 'num' }, summaryText(added.after, input.shape)),
            added.of > 1 ? ` (${added.part} of ${added.of})` : ''));
    }
    return entry(head, share.value, input.shape, what, more, mark);
}

/* One pass of backward through an op. mark: { in, element } to be marked. */
function backwardPart(g, node, k, mark) {
    const step = g.step.backward[k];
    const shares = (step.shares || []).map((share) =>
        sharePart(g, node, share, step, mark && mark.in === share.in ? mark.element : undefined));
    return section('backward', `Backward, ${k + 1} of ${g.step.backward.length}`,
        node.gradient ? make('p', { class: 'formula' }, formula(node.gradient)) : null,
        make('ul', { class: 'tensors' }, step.incoming.map((x) => incomingPart(g, node, x)),
            shares),
        make('p', { class: 'note' },
            step.freed ? `Frees ${bytesText(step.freed)}; ` : 'Frees nothing; ',
            `${bytesText(step.kept || 0)} still kept.`));
}

function findingList(findings, link) {
    if (!findings.length) return null;
    return make('ul', { class: 'findings' }, findings.map((f) => make('li', {},
        make('b', {}, f.kind), ' ', f.text, link && Number.isInteger(f.node)
            ? [' ', linkTo('n' + f.node, 'show')] : null)));
}

/* ---- cards ----------------------------------------------------------------------------------- */

function opCard(g, node) {
    const p = position(), done = progress(), passes = g.backwardOf.get(node.id) || [];
    const limit = hidesGradients() && done.backward === Infinity ? -1 : done.backward;
    const call = g.call.get(node.call), asked = question();
    const back = passes.map((k) => (k <= limit ? backwardPart(g, node, k, lastAsked(k))
        : state.predict ? null : backwardPart(g, node, k)));
    if (!passes.length && g.step.backward.length)
        back.push(make('p', { class: 'note' }, 'No gradient comes here.'));
    const here = asked && node.id === g.step.backward[p.i].node;
    const parts = [here ? questionPart(g, node, asked) : null, forwardPart(g, node)];
    if (p.phase === 'backward' && !here) parts.unshift(...back);
    else parts.push(...(here ? [] : back));
    return [make('h2', {}, node.op, ' ', make('span', { class: 'muted' }, `#${node.id}`)),
        make('p', { class: 'where' },
            call ? ['in ', linkTo('c' + call.id, callTitle(call))] : 'outside of all modules',
            node.line ? [' · ', make('code', {}, node.line)] : null,
            node.id === g.step.root ? ' · the loss' : ''),
        findingList(g.findings.get(node.id) || []), formulas(g, node), parts, jumps(g, node)];
}

/* Buttons that go to an op's turn in forward and backward. */
function jumps(g, node) {
    const first = trace().firstPosition[position().s] + 1, at = g.at.get(node.id);
    const button = (text, to) => make('button', { type: 'button', onclick: () => go(to) }, text);
    return make('p', { class: 'jumps' }, button('Go to its forward', first + at),
        (g.backwardOf.get(node.id) || []).slice(0, 1).map((k) =>
            button('Go to its backward', first + g.step.nodes.length + k)));
}

function tensorCard(g, t) {
    const line = g.ledger.get(t.id), done = progress();
    const limit = hidesGradients() && done.backward === Infinity ? -1 : state.predict
        ? done.backward : Infinity;
    const grads = (g.grads.get(t.id) || []).filter((a) => a.k <= limit);
    const facts = [t.kind === 'parameter' ? 'A parameter: the optimizer moves it.'
        : t.kind === 'buffer' ? 'A buffer: forward may move it, no optimizer does.'
            : t.requires_grad ? 'A tensor of your own: a gradient ends here.'
                : 'Data: it takes no gradient.'];
    if (t.kind !== 'tensor') facts.push(t.persistent ? 'It is in the file.'
        : 'It is not in the file.');
    if (t.kind === 'parameter' && !t.requires_grad) facts.push('Frozen: it takes no gradient.');
    if (t.optimizer) facts.push({ held: 'The optimizer holds it.',
        'not held': 'The optimizer does not hold it.',
        refused: 'An optimizer refuses it, by design.' }[t.optimizer] || '');
    const readers =
        (g.readers.get(t.id) || []).map(({ node }, i) => [i ? ', ' : '', linkToSource(g, node.id)]);
    const values = line ? [['start', line.start], ['after forward', line.forward],
        ['after the step', line.step]]
        : (g.readers.get(t.id) || []).slice(0,
            1).map(({ node, i }) => ['value', inputValue(g, node.in[i])]);
    return [make('h2', {}, tensorName(t)),
        make('p', { class: 'where' }, `${KIND[t.kind]} `,
            make('span', { class: 'shape' }, `${shapeText(t.shape)} ${t.dtype}`)),
        make('p', {}, facts.join(' ')),
        make('p', {}, 'Read by ', readers.length ? readers : 'no op of this step', '.'),
        make('ul', { class: 'tensors' }, values.filter(([, v]) => v).map(([name, v]) =>
            entry([name], v, t.shape, name)),
        grads.map((a,
            i) => entry([make('i', {}, 'gradient'),
            grads.length > 1 ? `, ${i + 1} of ${grads.length}` : '',
            ' from ', linkToSource(g, g.step.backward[a.k].node)], a.value, t.shape, 'gradient'))),
        line ? make('p', {}, `Moved in this step: ${line.moved}.`) : null];
}

function boxCard(g, call) {
    const prefix = call.module ? call.module + '.' : '';
    const own =
        g.trace.tensors.filter((t) => t.kind !== 'tensor' && (t.name || '').startsWith(prefix));
    const count = (kind) => own.filter((t) => t.kind === kind);
    const numbers = count('parameter').reduce((n, t) => n + elements(t.shape), 0);
    const folded = state.folded.has(foldName(call));
    return [make('h2', {}, callTitle(call)),
        make('p', {}, `A module. In this call: ${plural(g.ops.get(call.id) || 0, 'op')}. It holds `,
            `${plural(count('parameter').length, 'parameter')} with ${plural(numbers, 'number')}, `,
            `and ${plural(count('buffer').length, 'buffer')}.`),
        (call.writes || []).length ? make('p', {}, 'Forward changed ', call.writes.map((id, i) =>
            [i ? ', ' : '', linkToSource(g, id)]), '.') : null,
        make('p', { class: 'jumps' }, make('button', { type: 'button', onclick: () => {
            toggleFold('c' + call.id);
            renderCard();
        } }, folded ? 'Unfold' : 'Fold')),
        make('ul', { class: 'names' },
            own.slice(0, 40).map((t) => make('li', {}, linkTo(t.id, tensorName(t)), ' ',
            make('span', { class: 'shape' }, shapeText(t.shape)))),
        own.length > 40 ? make('li', {}, `and ${own.length - 40} more`) : null)];
}

function optimizerCard(g) {
    const updates = g.step.updates || [];
    return [make('h2', {}, 'The optimizer'),
        make('p', {},
            `It moved ${plural(updates.length,
            'tensor')} by their gradients. Buffers it never sees.`),
        make('ul', { class: 'tensors' }, updates.slice(0, 60).map((u) => {
            const t = g.trace.byId.get(u.tensor);
            const more = make('div', { class: 'note' }, 'from ',
                make('span', { class: 'num' }, summaryText(u.before, t.shape)),
                ' with gradient ',
                    make('span', { class: 'num' }, summaryText(u.gradient, t.shape)));
            return entry([linkTo(t.id, tensorName(t)),
                make('span', { class: 'shape' }, shapeText(t.shape))],
                u.after, t.shape, tensorName(t), more);
        })), updates.length > 60 ? make('p', {}, `and ${updates.length - 60} more`) : null];
}

/* The step as a whole: what happened, what to look at, the other steps. */
function wholeCard(g) {
    const step = g.step, moved = (by) => step.ledger.filter((l) => l.moved === by).length;
    const s = position().s, all = trace().steps;
    const text =
        [`In ${step.training === false ? 'eval mode'
        : 'training mode'}, forward ran ${plural(step.nodes.length, 'op')} to the loss, `,
        make('b', { class: 'num' }, digits(step.loss)), '. ',
        step.backward.length ? `Backward sent gradients through ${step.backward.length} of them. `
            : 'There was no backward. ',
        step.updates ? `The optimizer moved ${plural(moved('by the optimizer'), 'parameter')}; `
            : 'No optimizer step was taken; ',
        `forward moved ${plural(moved('by forward'), 'buffer')}.`];
    return [make('h2', {}, `Step ${s + 1} of ${all.length}, as a whole`), make('p', {}, text),
        findingList(step.findings || [], true),
        make('p', {}, 'Press ', make('kbd', {}, '→'),
            ' to go op by op: forward computes values (blue), backward sends ',
            'gradients the other way (red), then the optimizer moves the parameters (green).'),
        all.length > 1 ? make('table', { class: 'losses' }, make('caption', {}, 'Losses'),
            make('tbody', {}, all.slice(0, 50).map((x, i) =>
            make('tr', {}, make('td', {}, make('button', { type: 'button', class: 'link',
                onclick: () => go(trace().firstPosition[i]) }, `step ${i + 1}`)),
            make('td', { class: 'num' }, digits(x.loss)))))) : null];
}

function cardOf(g, key) {
    if (!key) return position().phase === 'optimizer' ? optimizerCard(g) : wholeCard(g);
    if (key[0] === 'n') return opCard(g, g.node.get(Number(key.slice(1))));
    if (key[0] === 't') return tensorCard(g, g.trace.byId.get(key));
    return boxCard(g, g.call.get(Number(key.slice(1))));
}

function renderCard() {
    const card = $('card');
    const parts = [predictNote(), cardOf(graph(), state.chosen || currentKey())];
    card.replaceChildren(...parts.flat(Infinity).filter((x) => x));
    card.scrollTop = 0;
}
