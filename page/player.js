/* player.js - plays a lesson: sets the stage, asks, runs the parts, tells what came out. */

const PART_COLOURS = ['forward', 'backward', 'optimizer', 'focus', 'buffer-edge'];

function showChapter(shown) {
    forgetSizes();
    $('chapter').hidden = !shown;
    $('knobs').hidden = shown;
    $('lessons').setAttribute('aria-expanded', String(shown));
}

function listLessons() {
    fill($('chapter'), make('h2', 'Lessons'), make('p.note', 'Each sets the stage, asks what you expect, then runs it here.'),
        make('ol.lessons', LESSONS.map((l) => make('li', make('a', { href: '#lesson=' + l.name }, l.title)))),
        make('p', button('Back to the knobs', leaveLesson)));
    showChapter(true);
    $('chapter').querySelector('a').focus();
}

function toggleLessons() {
    stopSlow();
    if (!$('chapter').hidden) return leaveLesson();
    closeLesson();
    listLessons();
}

function closeLesson() {
    pause();
    Object.assign(app, { lesson: null, series: [] });
    showChapter(false);
    if (location.hash) history.replaceState(null, '', location.pathname + location.search);
}

function leaveLesson() {
    if ($('chapter').hidden) return;
    closeLesson();
    renderKnobs();
    redraw();
    $('lessons').focus(); /* what had the focus is hidden */
}

/* live.html#lesson=NAME, #data=NAME, #slow: one step in slow motion. */
function readHash() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const lesson = LESSONS.find((l) => l.name === asked.get('lesson'));
    if (lesson) openLesson(lesson);
    if (DATA.includes(asked.get('data'))) chooseData(asked.get('data'));
    if (asked.has('slow')) startSlow();
}

function openLesson(lesson) {
    stopSlow();
    pause();
    Object.assign(app, { series: [], tab: 'picture', lesson: { lesson, part: 0, line: 0, left: 0, seen: [], running: false, guess: null } });
    setup = fresh();
    const wrong = tellAll(lesson.stage);
    built();
    trouble(wrong);
    if (!isPlane() || setup.layers.length) evaluate();
    renderLesson();
    showChapter(true);
    $('chapter').querySelector('input, button').focus();
}

function renderLesson() {
    const { lesson } = app.lesson, i = LESSONS.indexOf(lesson);
    const answers = lesson.choices
        ? lesson.choices.map((c, k) => make('label.answer', make('input', { type: 'radio', name: 'answer', value: k, required: true }), c))
        : make('label.answer', make('input', { type: 'number', step: 'any', name: 'answer', required: true, 'aria-label': 'your answer' }), lesson.unit);
    fill($('chapter'),
        make('p.note', `Lesson ${i + 1} of ${LESSONS.length} `, make('a', { href: '#', onclick: (e) => (e.preventDefault(), closeLesson(), listLessons()) }, 'all lessons')),
        make('h2', lesson.title), make('p', lesson.intro),
        make('details', make('summary', 'what the engine is told'),
            make('pre', [...lesson.stage, ...lesson.run.flatMap((p) => [`# ${p.label}`, ...p.lines])].join('\n'))),
        make('form.ask', { id: 'ask', onsubmit: answered }, make('p.question', lesson.ask), answers,
            make('button.main', { type: 'submit' }, 'That is my guess: run it')),
        make('section', { id: 'outcome', 'aria-live': 'polite' }));
}

function answered(event) {
    event.preventDefault();
    const { lesson } = app.lesson;
    app.lesson.guess = Number(new FormData(event.target).get('answer'));
    for (const e of event.target.elements) e.disabled = true;
    app.lesson.running = true;
    tellAll(lesson.stage); /* as if nobody had touched a knob before */
    built();
    fill($('outcome'), make('p.note', 'It runs …'));
    showTab(lesson.show === 'both' ? 'picture' : lesson.show);
    beginPart();
    setRunning(true);
}

/* A part's curve is drawn beside those before it. */
function beginPart() {
    const l = app.lesson, part = l.lesson.run[l.part];
    for (const s of app.series) s.live = false;
    app.series.push({ curve: new Curve(120), colour: PART_COLOURS[l.part], label: part.label, live: true });
    Object.assign(l, { line: 0, left: 0, said: '', highest: 0, smallest: 1 });
}

/* The highest loss of a part, its smallest clip factor. */
function noteStep(loss) {
    app.lesson.highest = Math.max(app.lesson.highest, loss);
    app.lesson.smallest = Math.min(app.lesson.smallest, number('clip_factor') || 1);
}

/* Lines of the part for as long as a frame allows; long rows of steps take several frames. */
function lessonFrame() {
    const l = app.lesson, until = performance.now() + app.budget;
    while (l.left === 0 || performance.now() < until) {
        const { lines } = l.lesson.run[l.part];
        if (l.left > 0) {
            const done = train(until - performance.now(), l.left);
            if (done < 0) return endPart($('trouble').textContent);
            l.left -= done;
            continue;
        }
        if (l.line >= lines.length) return endPart('');
        const line = lines[l.line++], steps = /^step (\d+)$/.exec(line);
        if (steps) l.left = Number(steps[1]);
        else if (lessonLine(line)) return;
    }
}

/* A line that is not a row of steps. True if the part ended by it. */
function lessonLine(line) {
    const wrong = tell(line);
    if (line === 'build') built();
    if (line === 'evaluate') readCurves();
    if (line === 'step' || line === 'update') afterSteps(1);
    if (line === 'forward' || line === 'backward') app.fresh = true;
    redraw();
    if (wrong) endPart(wrong);
    return Boolean(wrong);
}

/* The numbers of a part; what the engine said, if it refused a line. */
function endPart(said) {
    const l = app.lesson, part = l.lesson.run[l.part];
    const seen = { said: said || (part.lines.some((x) => x.startsWith('give ')) ? text('refusal') : '') };
    for (const [key, name] of Object.entries(part.numbers)) seen[key] = number(name);
    for (const [key, name] of Object.entries(part.keep || {})) seen[key] = kept(name);
    Object.assign(seen, { highest: l.highest, smallest: l.smallest });
    l.seen.push(seen);
    app.series[l.part].gradients = gradientNorms();
    trouble('');
    l.part++;
    if (l.part < l.lesson.run.length) {
        app.running = true;
        beginPart();
    } else endLesson();
}

/* Whether the guess is right: the choice that follows from the numbers, or near the number. */
function verdict(l) {
    const right = l.lesson.answer(l.seen);
    if (l.lesson.choices) return { right: l.guess === right, told: l.lesson.choices[right] };
    return { right: Math.abs(l.guess - right) <= (l.lesson.near ?? 0.1) * Math.abs(right) + 1e-9, told: `${digits(right)} ${l.lesson.unit}` };
}

/* What was read: a column for each part, or a row where there are many. */
function numbersTable(parts, seen) {
    const keys = [...new Set(parts.flatMap((p) => Object.keys(p.numbers)))];
    const names = keys.map((key) => [...new Set(parts.map((p) => p.numbers[key]).filter(Boolean))].join(', ').replace('_', ' '));
    const labels = parts.map((p, k) => [make('i.line', { style: `--line:var(--${PART_COLOURS[k]})` }), p.label]);
    const cell = (k, key) => make('td.num', key in parts[k].numbers ? digits(seen[k][key]) : '');
    const [across, down] = parts.length > 3 ? [names, labels] : [labels, names];
    return make('table.numbers', make('thead', make('tr', make('td'), across.map((x) => make('th', { scope: 'col' }, x)))),
        make('tbody', down.map((x, i) => make('tr', make('th', { scope: 'row' }, x),
            parts.length > 3 ? keys.map((key) => cell(i, key)) : parts.map((_, k) => cell(k, keys[i]))))));
}

function endLesson() {
    const l = app.lesson, { lesson } = l, { right, told } = verdict(l), next = LESSONS[LESSONS.indexOf(lesson) + 1];
    l.running = false;
    setRunning(false);
    showTab(lesson.show);
    fill($('outcome'), make(`p.verdict.${right ? 'right' : 'wrong'}`, right ? 'As you said: ' : 'Not so: ', told),
        l.seen.map((s) => s.said && make('p.formula', make('code', s.said))),
        numbersTable(lesson.run, l.seen),
        make('p', lesson.text(l.seen, digits, percent)),
        make('p.row', next && make('a.button', { href: '#lesson=' + next.name }, 'Next: ' + next.title),
            button('Play with this model', leaveLesson)));
    if (document.activeElement.matches('body, #chapter *')) $('outcome').querySelector('a, button').focus({ preventScroll: true });
    $('outcome').scrollIntoView({ block: 'nearest' });
    redraw();
}
