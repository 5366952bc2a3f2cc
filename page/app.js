/* app.js - the loop, the tabs, the keys and the start. */

const FRAME_MS = 1000 / 60, STEPS_MS = [3, 9]; /* of a frame: all of it; what steps may take of it */

const app = {
    running: false, tab: 'picture', panel: null, dirty: true, steps: 0, due: { panel: 0, charts: 0 }, stepMs: 0, budget: 9, evaluateAt: 0,
    evaluateMs: 0, turn: 0, series: [], curves: null, lesson: null,
};

const TABS = { picture: ['Picture', () => (isPlane() ? planePanel() : setup.data === 'digits' ? digitPanel() : textPanel())],
    step: ['This step', stepPanel], both: ['Train and eval', bothPanel], gradients: ['Gradients', gradientsPanel] };

function renderTabs() {
    const name = isPlane() ? 'Decision surface' : setup.data === 'digits' ? 'Draw a digit' : 'Text and attention';
    fill($('tabs'), Object.entries(TABS).map(([key, [label]]) => button(key === 'picture' ? name : label, () => showTab(key),
        { role: 'tab', id: 'tab-' + key, 'aria-selected': String(app.tab === key), 'aria-controls': 'picture',
            tabindex: app.tab === key ? 0 : -1 })));
}

function showTab(key) {
    if (key !== 'step' && slow.on) stopSlow();
    app.tab = document.body.dataset.tab = key;
    for (const tab of $('tabs').children) {
        tab.setAttribute('aria-selected', String(tab.id === 'tab-' + key));
        tab.tabIndex = tab.id === 'tab-' + key ? 0 : -1;
    }
    app.panel = TABS[key][1]();
    fill($('picture'), app.panel.nodes);
    forgetSizes();
    app.panel.shown?.();
    redraw();
}

const redraw = () => (app.dirty = true);

const evaluateLine = () => ({ digits: 'evaluate 128', text: 'evaluate 8' }[setup.data] || 'evaluate');

/* Losses and accuracies of the whole parts, for the curves and the figures. */
function evaluate() {
    app.evaluateMs = timed(() => tell(evaluateLine()) || readCurves());
    redraw();
}

/* After steps that were taken, n of them or fewer: the curve of the batch's loss. */
function afterSteps(n) {
    app.steps += n;
    const loss = number('loss'), step = number('step');
    app.curves.batch.add(step, loss);
    for (const s of app.series) if (s.live) s.curve.add(step, loss);
    if (app.lesson) noteStep(loss);
    app.fresh = true;
    redraw();
}

/* As many steps as fit in ms, at most n. How many were taken, or -1 if the engine refused. */
function train(ms, n = Infinity) {
    const until = performance.now() + ms;
    let done = 0, now = 0;
    do {
        const from = performance.now(), wrong = tell('step');
        if (wrong) return trouble(wrong), -1;
        done++;
        afterSteps(1);
        now = performance.now();
        app.stepMs += 0.1 * (now - from - app.stepMs);
    } while (done < n && now + app.stepMs < until);
    return done;
}

function drawCharts() {
    const { curves } = app;
    const parts = app.series.filter((s) => s.curve.x.length > 1);
    const loss = parts.length ? parts
        : [{ curve: curves.batch, colour: 'muted', faint: true, label: 'batch' },
            { curve: curves.train, colour: 'forward', label: 'train' },
            { curve: curves.test, colour: 'backward', label: 'test', dashed: true }];
    const accuracy = [{ curve: curves.trainRight, colour: 'forward', label: 'train' },
        { curve: curves.testRight, colour: 'backward', label: 'test', dashed: true }];
    drawChart($('loss'), loss, null);
    drawChart($('accuracy'), accuracy, [0, 1], percent);
    fill($('loss-note'), make('b', 'loss '), chartNote(loss, digits));
    fill($('accuracy-note'), make('b', 'accuracy '), chartNote(accuracy, percent));
}

function drawFigures() {
    const pairs = [['step', digits(number('step'))], ['batch loss', digits(number('loss'))], ['rate', digits(number('rate'))],
        ['gradient norm', digits(number('grad_norm'))], ['test accuracy', percent(number('test_accuracy'))]];
    if (!$('figures').children.length) fill($('figures'), pairs.map(([name]) => make('div', make('dt', name), make('dd'))));
    pairs.forEach(([, value], i) => put($('figures').children[i].lastChild, value));
}

/* How long something took, in ms. */
function timed(action) {
    const from = performance.now();
    action();
    return performance.now() - from;
}

/* While training, one thing in a frame: rows of the model in turn, and between them the picture, as
 * often as it is cheap, the charts and the figures. Otherwise all. */
function drawFrame(now) {
    const turn = app.turn++, { due } = app;
    if (!app.running) {
        for (const row of rows) row.draw(app.fresh);
        app.panel.draw();
        drawCharts();
        drawFigures();
        app.fresh = false;
    } else if (turn % 2 && rows.length) rows[(turn >> 1) % rows.length].draw(app.fresh);
    else if (now >= due.panel) due.panel = now + timed(app.panel.draw) * (app.panel.slow ? 12 : 5);
    else if (now >= due.charts) due.charts = now + 60 + 10 * timed(drawCharts);
    else drawFigures();
}

const meter = { frames: 0, steps: 0, since: 0, last: 0 };

function measure(now) {
    meter.frames++;
    if (now - meter.since < 500) return;
    const seconds = (now - meter.since) / 1000;
    const steps = Math.max(0, Math.round((app.steps - meter.steps) / seconds));
    $('speed').textContent = `${steps}\u00a0steps/s, ${Math.round(meter.frames / seconds)}\u00a0frames/s`;
    Object.assign(meter, { frames: 0, steps: app.steps, since: now });
}

/* Frames that come late leave less time for steps, those in time a little more. */
function pace(ms) {
    const by = ms > 1.15 * FRAME_MS ? -0.25 : 0.1;
    app.budget = Math.max(STEPS_MS[0], Math.min(STEPS_MS[1], app.budget + by));
}

function frameOf(now) {
    requestAnimationFrame(frameOf);
    pace(now - meter.last);
    meter.last = now;
    measure(now);
    if (!engine) return;
    if (app.running && app.lesson?.running) lessonFrame();
    else if (app.running) train(app.budget);
    if (app.running && now >= app.evaluateAt) {
        evaluate();
        app.evaluateAt = now + Math.max(200, 12 * app.evaluateMs);
    }
    if (!app.dirty) return;
    app.dirty = false;
    drawFrame(now);
}

function run() {
    if (!engine || app.running) return;
    stopSlow();
    trouble('');
    if (app.tab === 'step') showTab('picture');
    setRunning(true);
}

function pause() {
    if (app.running && engine) evaluate();
    setRunning(false);
    redraw();
}

function setRunning(on) {
    app.running = on;
    $('run').textContent = on ? '❚❚ Pause' : '▶ Run';
    $('run').classList.toggle('on', on);
}

function oneStep() {
    if (app.running) pause();
    if (slow.on) return slowOn();
    if (train(0, 1) > 0) evaluate();
}

const toggleRun = () => (app.running ? pause() : run());
const toggleSlow = () => (slow.on ? stopSlow() : startSlow());

function forgetColours() {
    for (const name of Object.keys(colours)) delete colours[name];
    redraw();
}

const KEYS = {
    ' ': toggleRun, s: oneStep, m: toggleSlow, r: () => restart(), l: () => toggleLessons(),
    d: () => (switchTheme(), forgetColours()),
    ArrowRight: slowOn, '?': () => $('help').showModal(), Escape: () => leaveLesson(),
    ...Object.fromEntries(DATA.map((d, i) => [String(i + 1), () => chooseData(d)])),
};

function onKey(event) {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
    if (target.closest('[role=tablist]') && tabKeys(event)) return;
    const lesson = target.type === 'radio' ? ['l', 'd'] : []; /* whose first answer has the focus */
    if (target.matches('input, select, textarea') && !['Escape', '?', ...lesson].includes(key)) return;
    if (target.matches('button, summary') && [' ', 'Enter'].includes(key)) return;
    if (!KEYS[key] || !engine) return;
    event.preventDefault();
    KEYS[key]();
}

function firstPaint() {
    document.documentElement.classList.add('script');
    $('lead').textContent = LEADS.spirals;
    app.curves = newCurves();
    setup.layers = [...PRESETS.spirals];
    for (const [id, action] of [['run', toggleRun], ['one', oneStep], ['slow', toggleSlow], ['again', () => restart()],
        ['lessons', () => toggleLessons()], ['theme', KEYS.d], ['keys', KEYS['?']]]) $(id).addEventListener('click', action);
    renderKnobs();
    renderTabs();
    drawCharts();
    drawFigures();
    document.addEventListener('keydown', onKey);
    addEventListener('resize', () => (forgetSizes(), redraw()));
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', forgetColours);
    requestAnimationFrame(frameOf);
}

async function begin() {
    try {
        await startEngine();
    } catch (error) {
        return trouble(`The engine does not start in this browser: ${error.message}`);
    }
    for (const id of ['run', 'one', 'slow', 'again']) $(id).disabled = false;
    restart();
    addEventListener('hashchange', readHash);
    readHash();
    performance.mark('ready');
}

firstPaint();
addEventListener('DOMContentLoaded', () => requestAnimationFrame(() => setTimeout(begin)));
