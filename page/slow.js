/*
 * slow.js - one step in slow motion: forward, backward, optimizer, each layer by layer, with what
 * each put out, the gradients, and what the optimizer changed (and what it passes by).
 */

const PHASES = ['forward', 'backward', 'optimizer'];
const slow = { on: false, phase: -1, at: 0, rows: [], before: new Map(), timer: 0 };

/* Rows of the table: each layer, then its slots. */
const slowRows = () => model.layers.flatMap((layer, i) => [
    { layer: i, name: `${i} ${layer.kind}`, kind: 'op' },
    ...slotsOf(i).map((s) => ({ layer: i, slot: s, name: s.name, kind: s.kind }))]);

const difference = (a, b) => (a && b ? Math.sqrt(a.reduce((sum, v, i) => sum + (v - b[i]) ** 2, 0)) : NaN);

const movedBy = (name) => difference(values('slot ' + name), slow.before.get(name));

/* What a row shows of a phase; '' where there is nothing to tell. */
const CELLS = {
    forward: ({ slot, layer }) => {
        if (slot?.kind === 'parameter') return '';
        if (slot) return movedBy(slot.name) > 0 ? `moved by ${digits(movedBy(slot.name))}` : 'not moved';
        return `out ${digits(number(`act ${layer} mean`))} ± ${digits(number(`act ${layer} std`))}`;
    },
    backward: ({ slot, layer }) => {
        if (slot?.kind === 'buffer') return 'no gradient';
        if (slot) return `gradient ${digits(number('grad ' + slot.name))}`;
        const g = values(`act_grad ${layer}`);
        return g ? `gradient of out ${digits(norm(g))}` : '';
    },
    optimizer: ({ slot }) => {
        if (!slot) return '';
        const by = movedBy(slot.name);
        if (slot.kind === 'buffer') return by > 0 ? `changed by ${digits(by)}` : 'passes it by';
        return by > 0 ? `changed by ${digits(by)}` : 'not changed';
    },
};

/* The order in which a phase goes over the rows. */
const order = () => (PHASES[slow.phase] === 'backward' ? [...slow.rows.keys()].reverse()
    : [...slow.rows.keys()]).filter((i) => slow.rows[i].cells[slow.phase]);

/* Does the engine's part of the next phase and reads what there is to tell of it. */
function nextPhase() {
    Object.assign(slow, { phase: (slow.phase + 1) % 3, at: 0 });
    if (slow.phase === 0) slow.rows = slowRows().map((r) => ({ ...r, cells: ['', '', ''] }));
    if (slow.phase !== 1)
        slow.before = new Map(model.slots.map(({ name }) => [name, kept('slot ' + name)]));
    const phase = PHASES[slow.phase], wrong = tell(phase === 'optimizer' ? 'update' : phase);
    if (wrong) return stopSlow(wrong);
    for (const row of slow.rows) row.cells[slow.phase] = CELLS[phase](row);
    if (slow.phase === 2) afterSteps(1);
    redraw();
}

/* On by one row; at the end of a phase to the next. */
function slowOn() {
    if (!slow.on) return;
    if (slow.phase < 0 || slow.at >= order().length - 1) nextPhase();
    else slow.at++;
    if (slow.on) renderSlow();
}

function slowTick() {
    slowOn();
    const pace = Math.max(120, Math.min(700, 9000 / (3 * slow.rows.length)));
    if (slow.on) slow.timer = setTimeout(slowTick, slow.at === 0 ? pace * 2 : pace);
}

function startSlow() {
    pause();
    Object.assign(slow, { on: true, phase: -1, at: 0 });
    $('slow').setAttribute('aria-pressed', 'true');
    showTab('step');
    slowTick();
}

function stopSlow(wrong = '') {
    clearTimeout(slow.timer);
    const open = slow.on && (slow.phase === 0 || slow.phase === 1);
    slow.on = false;
    $('slow').setAttribute('aria-pressed', 'false');
    if (wrong) return trouble(wrong);
    if (open) tellAll(slow.phase === 0 ? ['backward', 'update'] : ['update']); /* a step is done whole */
}

const SAY = [
    'Each layer puts out values, mean ± spread. Batch norm (train mode) moves its buffers here.',
    'Gradients come back, last layer first; shown is their length. Buffers have none.',
    'The optimizer changes each parameter. Buffers are not on its list: it passes them by.',
];

const stepPanel = () => ({ nodes: [make('div', { id: 'phases' }), make('p.note', { id: 'say' }),
    make('div.wide', make('table', { id: 'step-table' }))], draw: () => {}, shown: renderSlow });

function renderSlow() {
    if (!$('step-table')) return;
    const done = order(), current = done[slow.at];
    fill($('phases'), PHASES.map((p, i) => make(`span.${p}`, { 'aria-current': i === slow.phase ? 'step' : null }, p)));
    $('say').textContent = slow.phase < 0 ? 'Press Slow motion, above, or m: it takes one step apart, row by row.' : SAY[slow.phase];
    const reached = (i, p) => p < slow.phase || (p === slow.phase && done.indexOf(i) <= slow.at);
    const line = (row, i) => make(`tr${i === current ? '.now' : ''}`, { 'data-phase': PHASES[slow.phase] || null },
        make('th', { scope: 'row' }, make(`i.swatch.${row.kind}`), row.name),
        PHASES.map((p, k) => make(`td${i === current && k === slow.phase ? '.current' : ''}`, { 'data-phase': p },
            reached(i, k) ? row.cells[k] : '')));
    fill($('step-table'), make('thead', make('tr', make('th', 'layer, tensor'), PHASES.map((p) =>
        make('th', { scope: 'col', 'data-phase': p }, p)))), make('tbody', (slow.phase < 0 ? [] : slow.rows).map(line)));
    $('step-table').querySelector('.now')?.scrollIntoView({ block: 'nearest' });
}
