/*
 * predict.js - the predict mode: at each op of backward it asks for a gradient before showing it.
 *
 * An answer is right within 1 % of the true number. What has been answered, or passed, is shown
 * from then on.
 */

/* The question at the position: which share of the op, which element of it (null: its norm); null
 * when there is nothing to ask. */
function question() {
    const p = position();
    if (!state.predict || p.phase !== 'backward' || state.predict.told.has(askedKey())) return null;
    const { shares } = trace().steps[p.s].backward[p.i];
    const share = shares.find((x) => x.value?.values) || shares.find((x) => x.value);
    return share ? { share, ...chooseElement(share.value, p.i) } : null;
}

const askedKey = () => `${state.trace}.${state.at}`;

/* An element that is not zero if there is one; not always the first. */
function chooseElement(value, seed) {
    if (!value.values) return { element: null, truth: value.norm };
    const x = value.values, turned = x.map((_, k) => (seed * 5 + 3 + k) % x.length);
    const element = turned.find((i) => x[i] !== 0) ?? 0;
    return { element, truth: x[element] };
}

/* What was asked at backward's step k, to be marked in the card. */
function lastAsked(k) {
    const p = position(), told = state.predict && p.phase === 'backward' && p.i === k
        && state.predict.told.get(askedKey());
    return told ? { in: told.share.in, element: told.element ?? undefined } : null;
}

/* "0.25", "-1e-3", "1/4"; NaN if it is no number. */
function readNumber(text) {
    const parts = text.trim().replace(/−/g, '-').replace(',', '.').split('/');
    if (parts.length > 2 || parts.some((x) => x.trim() === '')) return NaN;
    const [a, b] = parts.map(Number);
    return parts.length === 2 ? a / b : a;
}

/* Within 1 %; of 0, within 1 % of the largest element. */
function isRight(answer, truth, value) {
    if (Number.isNaN(truth)) return Number.isNaN(answer);
    if (!Number.isFinite(truth)) return answer === truth;
    const most = Math.max(Math.abs(value.max), Math.abs(value.min));
    return Math.abs(answer - truth) <= 0.01 * (truth === 0 ? most : Math.abs(truth));
}

function askText(g, node, { share, element }) {
    const target = sourceName(g, share.to), { shape } = node.in[share.in];
    return element === null
        ? `How large (as a norm) is the gradient that ${node.op} sends to ${target} here?`
        : `What is the gradient of the loss at ${target}${indexText(element, shape)} that ` +
            `${node.op} sends?`;
}

function questionPart(g, node, q) {
    const p = position(), step = g.step.backward[p.i];
    const input = make('input', { id: 'answer', type: 'text', autocomplete: 'off',
        'aria-label': 'your answer', placeholder: 'a number, such as -0.25' });
    const said = make('p.said', { role: 'status' });
    const tell = (right, text) => {
        const predict = state.predict;
        predict.told.set(askedKey(), q);
        predict.total++;
        if (right) predict.right++;
        predict.said = { at: askedKey(), right, text };
        render();
    };
    const check = (event) => {
        event.preventDefault();
        const answer = readNumber(input.value);
        if (Number.isNaN(answer) && input.value.trim().toLowerCase() !== 'nan') {
            said.textContent = 'That is no number: want one like 0.25, -1e-3 or 1/4.';
            return;
        }
        const right = isRight(answer, q.truth, q.share.value);
        tell(right, right ? `Right: it is ${digits(q.truth)}.`
            : `Not quite: it is ${digits(q.truth)}, and you said ${digits(answer)}. ` +
                'This is how it comes about:');
    };
    const show = () => tell(false, `It is ${digits(q.truth)}. This is how it comes about:`);
    return section('ask', 'Predict', make('p.question', askText(g, node, q)),
        node.gradient && make('p.formula', formula(node.gradient)),
        make('form', { onsubmit: check }, input, make('button', { type: 'submit' }, 'Check'),
            button('Show it', show)), said,
        make('ul.tensors', step.incoming.map((x) => incomingEntry(g, node, x))));
}

/* What was said of the last answer, above the card. */
function predictNote() {
    const predict = state.predict;
    if (!predict) return null;
    const said = predict.said?.at === askedKey() ? predict.said : null;
    const cls = said ? (said.right ? 'right' : 'wrong') : '';
    const score = `${predict.right} of ${predict.total} right`;
    return make('div', { class: `verdict ${cls}`, role: 'status' },
        said ? said.text : 'Predict mode: backward stops at each op and asks.',
        predict.total > 0 && make('span.score', score));
}

function setPredict(on) {
    state.predict = on ? { told: new Map(), right: 0, total: 0, said: null } : null;
    $('predict').setAttribute('aria-pressed', String(on));
    stop();
    render();
}
