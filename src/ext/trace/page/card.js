/*
 * card.js - the card of what is chosen: an op, a tensor, a module's call, the optimizer, or the
 * step as a whole.
 */

/* ---- parts of a card ------------------------------------------------------------------------- */

const shapeTag = (shape, dtype) =>
    make('span.shape', dtype ? `${shapeText(shape)} ${dtype}` : shapeText(shape));
const numberTag = (value, shape) => make('span.num', summaryText(value, shape));
/* "0.5 → 0.25"; the second alone if there was nothing before */
const changeTags = (before, after, shape) =>
    [before && [numberTag(before, shape), ' → '], numberTag(after, shape)];
const note = (...content) => make('div.note', content);
const paragraph = (...content) => make('p', content);
const section = (cls, title, ...content) =>
    make('section', { class: cls }, make('h3', title), content);
/* "a, b, c" of elements */
const listed = (parts) => parts.map((part, i) => [i ? ', ' : '', part]);

const linkTo = (key, text) => button(text, () => choose(key), { class: 'link', 'data-to': key });

/* What an input comes from or a gradient goes to: "0.weight", "linear #4". */
const sourceName = (g, from) => (typeof from === 'string' ? tensorName(g.trace.byId.get(from))
    : `${g.node.get(from).op} #${from}`);
const linkToSource = (g, from) => linkTo(keyOf(from), sourceName(g, from));

/* One tensor in a card: what it is, a line with its numbers, more, and the grid. */
const entry = (head, value, shape, what, more, mark) =>
    make('li', make('div.entry', head), valueLine(value, shape), more,
        grid(value, shape, what, mark));

/* Of rows of cells, with heads if given. */
function table(caption, rows, head) {
    const line = (tag) => (cells) => make('tr', cells.map((cell) => make(tag, cell)));
    return make('table', make('caption', caption), head && make('thead', line('th')(head)),
        make('tbody', rows.map(line('td'))));
}

/* Whether something may be wrong; else it is only told. */
const isAlarm = (finding) => finding.kind !== 'no effect';

function findingList(findings, linked) {
    if (!findings.length) return null;
    const link = (f) => linked && Number.isInteger(f.node) && [' ', linkTo('n' + f.node, 'show')];
    return make('ul.findings',
        findings.map((f) => make(isAlarm(f) ? 'li.alarm' : 'li', make('b', f.kind), ' ', f.text,
            link(f))));
}

/* ---- an op: forward -------------------------------------------------------------------------- */

function inputEntry(g, input) {
    const head = [nameInFormula(input) ? make('i', input.name) : input.name, ' from ',
        linkToSource(g, input.from), shapeTag(input.shape, input.dtype),
        !input.gradient && make('span.note', 'no gradient goes back')];
    return entry(head, inputValue(g, input), input.shape, input.name);
}

function resultEntry(node, i) {
    const out = node.out[i], what = resultName(node) + (node.out.length > 1 ? i : '');
    const head = [make('i', what), ' the result', shapeTag(out.shape, out.dtype)];
    return entry(head, out.value, out.shape, what);
}

/* What ops keep beside their inputs and results: "saved 1" in the account. */
const SAVED = { batch_norm: 'mean,r', layer_norm: 'r,mean', group_norm: 'r,mean', rms_norm: 'r',
    max_pool2d: 'where each maximum is', cross_entropy: 'max x,sum e^(x - max)',
    scaled_dot_product_attention: 'max of each row,sum of each row' };
const keptName = (node, what) => what.replace(/^saved (\d)$/, (_, at) =>
    SAVED[node.op]?.split(',')[at] ?? `intermediate result ${Number(at) + 1}`);

function forwardPart(g, node) {
    const kept = node.kept.filter((k) => k.bytes);
    const names = kept.map((k) => `${keptName(node, k.what)} (${bytesText(k.bytes)})`).join(', ');
    const again = node.kept.filter((k) => k.again)
        .map((k) => ` Backward computes ${k.what} again where it reads it.`).join('');
    return section('forward', 'Forward',
        make('ul.tensors', node.in.map((input) => input && inputEntry(g, input)),
            node.out.map((_, i) => resultEntry(node, i))),
        note(kept.length ? `Keeps for backward: ${names}.` : 'Keeps nothing for backward.', again));
}

/* ---- an op: backward ------------------------------------------------------------------------- */

/* The gradient share that an op sent to one of its inputs. */
function shareValue(g, { from, in: input }) {
    const [k] = g.shares.get(`${from}.${input}`);
    return g.step.backward[k]?.shares.find((x) => x.in === input).value;
}

/* The sum at a fan-out: of single numbers in numbers, else in norms. */
function sumNote(g, incoming, shape) {
    const parts = incoming.sum.map((s) => shareValue(g, s));
    if (parts.length < 2 || parts.some((v) => !v)) return null;
    const [sum, ...texts] = [incoming.value, ...parts].map((v) => summaryText(v, shape));
    return note(elements(shape) === 1 ? `${texts.join(' + ')} = ${sum}`
        : `norms ${texts.join(', ')}; of the sum ${sum}`);
}

/* "hook 1 of 2: 0.5 → 0.25" */
const hookNotes = (hooks, shape) => hooks?.map((h) => note(`hook ${h.number} of ${h.of}: `,
    sameNumbers(h.before, h.after) ? 'leaves it as it is' : changeTags(h.before, h.after, shape)));

/* "averaged over 4 ranks: 0.31 → 0.28" */
function averageNote(g, pass, tensor, shape) {
    const a = g.step.passes.find((p) => p.pass === pass)?.averaged
        ?.find((x) => x.tensor === tensor);
    return a && note(`averaged over ${a.ranks} ranks: `, changeTags(a.before, a.after, shape));
}

/* The incoming gradient; a sum if the result was used several times. */
function incomingEntry(g, node, incoming) {
    const shape = node.out[incoming.output].shape;
    const from = incoming.sum.map((s, i) => [i ? ' + ' : '',
        Number.isInteger(s.from) ? ['share of ', linkToSource(g, s.from)] : 'the seed, 1']);
    const head = [make('i', 'dy'), from.length > 1 ? ' comes in, a sum: ' : ' comes in: ', from,
        shapeTag(shape)];
    return entry(head, incoming.value, shape, 'dy',
        [sumNote(g, incoming, shape), hookNotes(incoming.hooks, shape)]);
}

/* "grad = 0.1 + dw → 0.3 (2 of 2)"; after the last share the ranks' average */
function addedNotes(g, back, added, what, shape) {
    const before = added.before ? summaryText(added.before, shape) : '0';
    return [note(`grad = ${before} + ${what} → `, numberTag(added.after, shape),
        added.of > 1 && ` (${added.part} of ${added.of})`),
    added.part === added.of && averageNote(g, back.pass, added.tensor, shape)];
}

function shareEntry(g, node, share, back, mark) {
    const { shape } = node.in[share.in], name = nameInFormula(node.in[share.in]);
    const what = name ? 'd' + name : `share ${share.in}`, from = share.reduced_from;
    const added = back.accumulated.find((a) => a.in === share.in);
    const head = [make('i', what), ' goes to ', linkToSource(g, share.to), shapeTag(shape)];
    return entry(head, share.value, shape, what, [
        from && note(`summed over what was broadcast: ${shapeText(from)} → ${shapeText(shape)}`),
        hookNotes(share.hooks, shape), added && addedNotes(g, back, added, what, shape),
    ], mark?.in === share.in ? mark.element : null);
}

/* One pass of backward through an op. mark: { in, element } to be marked. */
function backwardPart(g, node, k, mark) {
    const back = g.step.backward[k];
    return section('backward', `Backward, ${k + 1} of ${g.step.backward.length}`,
        node.gradient && make('p.formula', formula(node.gradient)),
        make('ul.tensors', back.incoming.map((x) => incomingEntry(g, node, x)),
            back.shares.map((x) => shareEntry(g, node, x, back, mark))),
        note(`Frees ${back.freed ? bytesText(back.freed) : 'nothing'}; ` +
            `${bytesText(back.kept)} still kept.`));
}

/* ---- cards ----------------------------------------------------------------------------------- */

function opCard(g, node) {
    const p = position(), call = g.call.get(node.call), asked = question();
    const backs = g.backwardOf.get(node.id), forward = forwardPart(g, node);
    const told = asked && node.id === g.step.backward[p.i].node ? questionPart(g, node, asked)
        : backs.filter((k) => k <= toldUntil()).map((k) => backwardPart(g, node, k, lastAsked(k)));
    const none = !backs.length && g.step.backward.length > 0 && note('No gradient comes here.');
    return [make('h2', node.op, ' ', make('span.muted', `#${node.id}`)),
        make('p.where',
            call ? ['in ', linkTo('c' + call.id, callTitle(call))] : 'outside of all modules',
            node.line && [' · ', make('code', node.line)],
            node.id === g.step.root && ' · the loss'),
        findingList(g.findings.get(node.id)), formulas(g, node),
        p.phase === 'backward' ? [told, none, forward] : [forward, told, none], jumps(g, node)];
}

/* Buttons that go to an op's turn in forward and backward. */
function jumps(g, node) {
    const [back] = g.backwardOf.get(node.id);
    const to = (phase, i) =>
        button(`Go to its ${phase}`, () => go(placeOf({ s: position().s, phase, i })));
    return make('p.jumps', to('forward', node.id), back !== undefined && to('backward', back));
}

const FACTS = {
    parameter: 'A parameter: an optimizer may move it.',
    buffer: 'A buffer: forward may move it, no optimizer does.',
    held: 'The optimizer holds it.',
    'not held': 'The optimizer does not hold it.',
    refused: 'An optimizer refuses it, by design.',
};

function factsOf(t) {
    if (t.kind === 'tensor')
        return t.requires_grad ? 'A tensor of your own: a gradient ends here.'
            : 'Data: it takes no gradient.';
    const file = t.persistent ? 'It is in the file.' : 'It is not in the file.';
    const frozen = t.kind === 'parameter' && !t.requires_grad && 'Frozen: it takes no gradient.';
    const role = t.role && `Its role: ${t.role}.`;
    return [FACTS[t.kind], role, file, frozen, FACTS[t.optimizer]].filter((x) => x).join(' ');
}

/* A tensor's values: at three moments if it is registered, else as an op read it. */
function tensorCard(g, t) {
    const line = g.ledger.get(t.id), grads = gradientsOf(g, t.id, toldUntil());
    const values = line ? [['start', line.start], ['after forward', line.forward],
        ['after the step', line.step]] : [['value', readValue(g, t.id)]];
    const readers = g.readers.get(t.id).map(({ node }) => linkToSource(g, node.id));
    const gradient = (a, i) => entry([make('i', 'gradient'),
        grads.length > 1 && `, ${i + 1} of ${grads.length}`, ' from ',
        linkToSource(g, g.step.backward[a.k].node)], a.value, t.shape, 'gradient');
    return [make('h2', tensorName(t)),
        make('p.where', KIND[t.kind], ' ', shapeTag(t.shape, t.dtype)), paragraph(factsOf(t)),
        paragraph('Read by ', readers.length ? listed(readers) : 'no op of this step', '.'),
        make('ul.tensors', values.filter(([, value]) => value)
            .map(([name, value]) => entry([name], value, t.shape, name)), grads.map(gradient)),
        line && paragraph(`Moved in this step: ${line.moved ?? 'not known'}.`)];
}

const NAMES_MOST = 40, UPDATES_MOST = 60;
const andMore = (n, most) => n > most && make('li', `and ${n - most} more`);

function boxCard(g, call) {
    const prefix = call.module ? call.module + '.' : '';
    const own = g.trace.tensors.filter((t) =>
        t.kind !== 'tensor' && (t.name || '').startsWith(prefix));
    const parameters = own.filter((t) => t.kind === 'parameter');
    const numbers = parameters.reduce((n, t) => n + elements(t.shape), 0);
    const written = call.writes.map((id) => linkToSource(g, id));
    const fold = () => toggleFold('c' + call.id);
    return [make('h2', callTitle(call)),
        paragraph(`A module. In this call: ${plural(g.ops.get(call.id).length, 'op')}. It holds `,
            `${plural(parameters.length, 'parameter')} with ${plural(numbers, 'number')}, `,
            `and ${plural(own.length - parameters.length, 'buffer')}.`),
        written.length > 0 && paragraph('Forward changed ', listed(written), '.'),
        make('p.jumps', button(state.folded.has(foldName(call)) ? 'Unfold' : 'Fold', fold)),
        make('ul.names', own.slice(0, NAMES_MOST).map((t) =>
            make('li', linkTo(t.id, tensorName(t)), ' ', shapeTag(t.shape))),
        andMore(own.length, NAMES_MOST))];
}

/* A list of tensors, each with its new value and a note. */
function changesCard(g, title, text, list, changeOf) {
    const item = (x) => {
        const t = g.trace.byId.get(x.tensor), [value, more] = changeOf(x, t.shape);
        return entry([linkTo(t.id, tensorName(t)), shapeTag(t.shape)], value, t.shape,
            tensorName(t), note(more));
    };
    return [make('h2', title), paragraph(text), make('ul.tensors',
        list.slice(0, UPDATES_MOST).map(item), andMore(list.length, UPDATES_MOST))];
}

function optimizerCard(g) {
    const updates = g.step.updates || [];
    return changesCard(g, 'The optimizer', `It moved ${plural(updates.length, 'tensor')} by their ` +
        'gradients. Buffers it never sees.', updates, (u, shape) => [u.after,
        ['from ', numberTag(u.before, shape), ' with gradient ', numberTag(u.gradient, shape)]]);
}

/* "multiplied by 1 / 1.195 = 0.8367" */
function clipText({ norm, limit, factor }) {
    const all = `The norm of all gradients is ${digits(norm)}, the limit ${digits(limit)}: `;
    return all + (factor === 1 ? 'clipping leaves them as they are.'
        : `clipping multiplies each by ${digits(limit)} / ${digits(norm)} = ${digits(factor)}.`);
}

const clipCard = (g) =>
    changesCard(g, 'Clipping', clipText(g.step.clip), g.step.ledger.filter((x) => x.grad),
        ({ tensor, grad }, shape) => [grad, ['before clipping ',
            numberTag(gradientsOf(g, tensor, Infinity).pop()?.value, shape)]]);

/* What happened in a step, in a few sentences. */
function storyOf(step) {
    const mode = step.training ? 'training' : 'eval';
    return [`In ${mode} mode, forward ran ${plural(step.nodes.length, 'op')} to the loss, `,
        make('b.num', digits(step.loss)), '. ',
        step.backward.length ? `Backward sent gradients through ${step.backward.length} of them. `
            : 'There was no backward. ',
        step.clip && `Clipping multiplied them by ${digits(step.clip.factor)}. `,
        step.updates
            ? `The optimizer moved ${plural(movedBy(step, 'by the optimizer'), 'parameter')}; `
            : 'No optimizer step was taken; ',
        `forward moved ${plural(movedBy(step, 'by forward'), 'buffer')}.`];
}

/* The losses of all steps, with links to them. */
function lossTable(steps) {
    if (steps.length < 2) return null;
    const link = (s) => button(`step ${s + 1}`, () => go(placeOf({ s, phase: 'whole', i: 0 })),
        { class: 'link' });
    return table('Losses', steps.slice(0, 50).map((step, s) => [link(s), digits(step.loss)]));
}

function wholeCard(g) {
    const steps = trace().steps;
    return [make('h2', `Step ${position().s + 1} of ${steps.length}, as a whole`),
        paragraph(storyOf(g.step)), findingList(g.step.findings, true),
        paragraph('Press ', make('kbd', '→'),
            ' to go op by op: forward computes values (blue), backward sends gradients the other ',
            'way (red), then the optimizer moves the parameters (green).'),
        lossTable(steps)];
}

/* What the position or the chosen item is about, in one line. */
function gistOf(g, key) {
    const { phase, i } = position(), node = g.node.get(Number(key?.slice(1))), asked = question();
    if (!key)
        return phase === 'clip' ? clipText(g.step.clip) : phase === 'whole' ? storyOf(g.step)
            : `The optimizer moved ${plural(g.step.updates.length, 'tensor')} by their gradients.`;
    if (key[0] !== 'n') return $('card').querySelector('p:not(.where)').textContent;
    if (asked && !state.chosen) return askText(g, node, asked);
    const { shape, value } = node.out[0], told = (what, ...x) => [what, ': ', valueLine(...x)];
    return phase !== 'backward' || state.chosen
        ? [make('span.formula', formulaOf(node)), ` gives ${shapeText(shape)}, `,
            valueLine(value, shape)]
        : ['Sends gradients to ', listed(g.step.backward[i].shares.map((x) =>
            told(sourceName(g, x.to), x.value, node.in[x.in].shape))), '.'];
}

function cardOf(g, key) {
    const cards = { clip: clipCard, optimizer: optimizerCard };
    if (!key) return (cards[position().phase] || wholeCard)(g);
    if (key[0] === 'n') return opCard(g, g.node.get(Number(key.slice(1))));
    if (key[0] === 't') return tensorCard(g, g.trace.byId.get(key));
    return boxCard(g, g.call.get(Number(key.slice(1))));
}

function renderCard() {
    const about = cardOf(graph(), state.chosen || currentKey());
    fill($('card'), predictNote(), about).scrollTop = 0;
}
