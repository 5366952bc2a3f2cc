/*
 * knobs.js - what the reader sets: the data, the structure (which builds anew), how it is trained
 * (which takes effect at once).
 */

const DATA = ['spirals', 'circles', 'xor', 'points', 'digits', 'text'];
const LEADS = {
    spirals: 'A small neural network learns to tell blue points from orange. Press Run: the background is its answer. Words: the ? at the right.',
    circles: 'A disc in a ring. Press Run, then give layer 0 fewer outputs: how few can still close a line around the disc?',
    xor: 'Four corners. No straight line parts the colours: remove the tanh layer (✕), press Run and look.',
    points: 'Your own points. Click some of each class, then press Run.',
    digits: 'A small network of convolutions reads digits of 8 × 8 dots. Press Run, then draw a digit and see what it says.',
    text: 'One transformer block learns which character comes next. Press Run: watch what it writes and where its heads look back.',
};
const choice = (names, now, label, action) => make('select', { 'aria-label': label, onchange: (e) => action(e.target.value) },
    names.map((n) => make('option', { value: n, selected: n === now }, n.replace('_', ' ') || '…')));

/* Shows what was wrong, or hides what was. True if something was. */
function trouble(wrong) {
    $('trouble').hidden = !wrong;
    $('trouble').textContent = wrong;
    if (wrong) pause();
    return Boolean(wrong);
}

/* After `build`: everything that is shown of a model is made anew. */
function built() {
    plane.train = null;
    Object.assign(app, { curves: newCurves(), steps: number('step') || 0, evaluateAt: 0, dirty: true });
    if (!app.lesson) app.series = [];
    $('lead').textContent = app.lesson ? 'A lesson: first guess, then it runs here. Words are explained under the ? at the right.' : LEADS[setup.data];
    document.body.dataset.data = setup.data;
    renderLayers();
    renderKnobs();
    renderTabs();
    showTab(app.tab);
}

/* Changes the set-up by a function and builds it; if the engine refuses, as it was. */
function restart(change = () => {}) {
    const before = structuredClone(setup);
    stopSlow();
    change();
    const wrong = tellAll(linesOf(structuredClone(setup)));
    if (wrong) tellAll(linesOf(before));
    built();
    if (!trouble(wrong)) evaluate();
}

/* Layers are changed as a list; frozen ones are thawed, for their numbers change. */
const changeLayers = (change) => restart(() => {
    change(setup.layers);
    setup.frozen = [];
    if (!setup.layers.some((l) => kindOf(l) === 'embedding')) setup.tie = false;
});

/* A few points to begin with, so that there is something to train on. */
const FIRST_POINTS = [[-0.5, 0.5, 0], [-0.6, 0.4, 0], [0.5, 0.5, 1], [0.6, 0.3, 1], [0, -0.5, 0]];

function chooseData(data) {
    closeLesson();
    restart(() => {
        setup = { ...fresh(), data, layers: [...PRESETS[data]], rate: RATES[data] || 0.01, optimizer: 'adam',
            points: data === 'points' ? FIRST_POINTS : [], batch: data === 'text' ? 8 : 32 };
    });
}

function renderKnobs() {
    fill($('data'), DATA.map((d, i) => button(d === 'points' ? 'my points' : d, () => chooseData(d),
        { role: 'radio', title: `${d} (${i + 1})`, 'aria-checked': String(setup.data === d) })));
    const line = (label, ...nodes) => make('label.knob', make('span', label), nodes);
    const say = (word) => (v) => trouble(tell(`${word} ${v}`));
    const amount = (label, word, key, more) => line(label, make('input', { type: 'number', value: setup[key], min: 0, step: 'any',
        ...more, onchange: (e) => e.target.value !== '' && say(word)(e.target.value) }));
    const told = make('output', digits(setup.rate));
    const rate = make('input', { type: 'range', min: -4, max: 1, step: 0.05, value: Math.log10(setup.rate || 1e-4), 'aria-label': 'rate',
        oninput: (e) => {
            say('rate')(Number((10 ** e.target.value).toPrecision(2)));
            told.textContent = digits(setup.rate);
        } });
    fill($('training'),
        line('optimizer', choice(['sgd', 'momentum', 'adam', 'adamw', 'rmsprop'], setup.optimizer, 'optimizer', (v) =>
            trouble(tell(`optimizer ${v} ${setup.rate} ${setup.decay}`)))),
        make('div.knob', make('span', 'rate'), rate, told),
        amount('weight decay', 'decay', 'decay'),
        line('decay spares norms', make('input', { type: 'checkbox', checked: setup.norms, onchange: (e) => say('no_decay_on_norms')(e.target.checked ? 'on' : 'off') })),
        amount('batch', 'batch', 'batch', { min: 1, max: 512, step: 1 }),
        amount('clip norm at', 'clip', 'clip'),
        amount('warm-up steps', 'warmup', 'warmup', { step: 1 }),
        line('mode of steps', choice(['train', 'eval'], setup.mode, 'mode of steps', say('mode'))),
        line('mode of judging', choice(['eval', 'train'], setup.judge, 'mode of judging', (v) => {
            say('judge')(v);
            evaluate();
        })),
        line('seed', make('input', { type: 'number', value: setup.seed, min: 1, step: 1,
            onchange: (e) => restart(() => (setup.seed = Number(e.target.value) || 1)) })));
}
