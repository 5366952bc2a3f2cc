/* player.js - moves over the positions: buttons, keys, playing, links; the search; the start. */

/* ---- where we are ---------------------------------------------------------------------------- */

function positionText() {
    const p = position(), n = trace().steps.length, g = graph(), { step } = g;
    const head = n > 1 ? `Step ${p.s + 1} of ${n}` : 'Step 1';
    if (p.phase === 'whole') return `${head}, as a whole`;
    if (p.phase === 'clip')
        return `${head} · clipping: gradients times ${digits(step.clip.factor)}`;
    if (p.phase === 'optimizer')
        return `${head} · the optimizer moves ${plural(step.updates.length, 'tensor')}`;
    const of = p.phase === 'forward' ? step.nodes.length : step.backward.length;
    return `${head} · ${p.phase} ${p.i + 1} of ${of} · ${nodeTitle(g, currentNode())}`;
}

const lastPosition = () => trace().positions.length - 1;

/* Goes to a position. */
function go(at) {
    const before = view.g, held = document.activeElement?.closest('#drawing');
    state.at = Math.min(Math.max(0, at), lastPosition());
    state.chosen = null;
    if (graph() !== before) relayout();
    const key = currentKey() && shown(currentKey());
    if (key) reveal(key);
    render();
    if (key && held) focusItem(key);
}

/* Chooses an op, a tensor or a box, to look at; the position stays. */
function choose(key) {
    if (!key) return;
    comparing(false);
    state.chosen = key;
    if (key[0] !== 't' || graph().home.has(key)) {
        unfoldTo(key);
        reveal(key);
    }
    render();
}

/* Redraws everything from the state. */
function render() {
    const p = position();
    draw();
    renderCard();
    fill($('gist'), gistOf(graph(), state.chosen || currentKey()));
    renderLedger();
    if (!$('compare').hidden) renderCompare();
    $('where').textContent = positionText();
    $('slider').value = state.at;
    $('slider').setAttribute('aria-valuetext', positionText());
    document.body.dataset.phase = p.phase;
    $('first').disabled = $('back').disabled = state.at === 0;
    $('last').disabled = $('next').disabled = state.at === lastPosition();
    writeHash();
}

/* The parts of the bar under the slider. */
function renderBar() {
    const parts = Map.groupBy(trace().positions, ({ s, phase }) => `step ${s + 1}: ${phase}`);
    const part = ([title, { length, 0: { phase } }]) => make('span',
        { class: phase, style: `flex:${length} 1 0`, title }, length > 1 && phase);
    fill($('bar'), parts.size <= 80 && [...parts].map(part));
    $('slider').max = lastPosition();
}

/* ---- playing --------------------------------------------------------------------------------- */

let timer = null;

/* Goes on at that interval, in milliseconds; null: no more. The button shows it. */
function playEvery(interval) {
    const on = interval !== null;
    clearInterval(timer);
    timer = on ? setInterval(playOn, interval) : null;
    $('play').textContent = on ? '❚❚' : '▶';
    $('play').setAttribute('aria-label', on ? 'Pause' : 'Play');
    $('play').setAttribute('aria-pressed', String(on));
}

const stop = () => playEvery(null);
const playOn = () => (state.at === lastPosition() || question() ? stop() : go(state.at + 1));

function play() {
    if (timer) return stop();
    if (state.at === lastPosition()) go(0);
    playEvery(Number($('speed').value));
}

/* The beginning of the next phase (or of this one, or the one before). */
function goPhase(direction) {
    const all = trace().positions, start = (i) => i === 0 || all[i].phase !== all[i - 1].phase;
    let i = state.at + direction;
    while (i > 0 && i < all.length - 1 && !start(i)) i += direction;
    go(i);
}

/* ---- links ----------------------------------------------------------------------------------- */

function writeHash() {
    const hash = `#step=${state.at}` + (state.trace ? `&trace=${state.trace}` : '') +
        (state.chosen ? `&at=${state.chosen}` : '');
    if (location.hash !== hash) history.replaceState(null, '', hash);
}

/* "#step=17&trace=1&at=n3"; missing or invalid parts are ignored. */
function readHash() {
    const given = new URLSearchParams(location.hash.slice(1));
    const whole = (name, most) => {
        const n = Number(given.get(name));
        return given.has(name) && Number.isInteger(n) && n >= 0 && n <= most ? n : null;
    };
    const which = whole('trace', traces.length - 1);
    if (which !== null && which !== state.trace) showTrace(which);
    go(whole('step', lastPosition()) ?? state.at);
    const key = given.get('at') || '', g = graph(), id = Number(key.slice(1));
    const known = { n: g.node.has(id), t: trace().byId.has(key), c: g.ops.has(id) };
    if (known[key[0]]) choose(key);
}

/* ---- search ---------------------------------------------------------------------------------- */

const FOUND_MOST = 30;

/* Ops, tensors and modules whose name, op, module or line holds all words. */
function find(text) {
    const words = text.toLowerCase().split(/\s+/).filter((x) => x), g = graph(), found = [];
    if (!words.length) return found;
    const look = (key, kind, title, more) => {
        const all = `${title} ${more} ${kind}`.toLowerCase();
        if (found.length < FOUND_MOST && words.every((w) => all.includes(w)))
            found.push({ key, kind, title, more });
    };
    for (const t of trace().tensors) look(t.id, KIND[t.kind], tensorName(t), shapeText(t.shape));
    for (const call of g.step.calls)
        if (g.ops.has(call.id)) look('c' + call.id, 'module', callTitle(call), '');
    for (const node of g.step.nodes)
        look('n' + node.id, 'op', nodeTitle(g, node), `#${node.id} ${node.line || ''}`);
    return found;
}

const foundItem = ({ key, kind, title, more }, i) =>
    make('li', { id: `found${i}`, role: 'option', 'data-to': key, onclick: () => pick(key) },
        make('span.kind', kind), ` ${title} `, make('span.muted', more));

/* Marks the option that Enter takes. */
function selectFound(option) {
    for (const x of $('found').children) x.setAttribute('aria-selected', String(x === option));
    $('search').setAttribute('aria-activedescendant', option?.id || '');
    option?.scrollIntoView({ block: 'nearest' });
}

function renderSearch() {
    const found = find($('search').value), list = $('found');
    const none = !found.length && $('search').value.trim();
    fill(list, found.map(foundItem), none && make('li', 'nothing found'));
    list.hidden = !found.length && !none;
    selectFound($('found0'));
    $('search').setAttribute('aria-expanded', String(!list.hidden));
}

function endSearch() {
    $('search').value = '';
    renderSearch();
    $('search').blur();
}

function pick(key) {
    endSearch();
    choose(key);
    focusItem(shown(key));
}

function searchKeys(event) {
    const options = [...$('found').querySelectorAll('[role=option]')];
    const at = options.findIndex((x) => x.getAttribute('aria-selected') === 'true');
    if (event.key === 'Escape') endSearch();
    else if (event.key === 'Enter' && at >= 0) pick(options[at].dataset.to);
    else if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
        const by = event.key === 'ArrowDown' ? 1 : options.length - 1;
        event.preventDefault();
        selectFound(options[(at + by) % options.length]);
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* From a drawn item to its first input (-1) or its first reader (1), as drawn. */
function goAlong(direction) {
    const from = heldKey();
    const [here, there] = direction < 0 ? ['to', 'from'] : ['from', 'to'];
    const edge = view.edges.find((e) => !e.writes && e[here] === from);
    if (!edge) return;
    choose(view.items.get(edge[there]).of || edge[there]);
    focusItem(state.chosen);
}

const KEYS = {
    ArrowRight: () => go(state.at + 1), ArrowLeft: () => go(state.at - 1),
    Home: () => go(0), End: () => go(lastPosition()),
    PageDown: () => goPhase(1), PageUp: () => goPhase(-1),
    ' ': play, '/': () => $('search').focus(),
    p: () => setPredict(!state.predict), d: () => switchTheme(), '?': () => $('help').showModal(),
    f: () => foldChosen(), 0: () => fit(),
    '+': () => zoomTo(state.zoom * 1.2), '-': () => zoomTo(state.zoom / 1.2),
    Escape: () => {
        state.chosen = null;
        render();
    },
};

const GRAPH_KEYS = { ArrowUp: () => goAlong(-1), ArrowDown: () => goAlong(1),
    Enter: () => activate(document.activeElement) };

/* Folds the box around what is chosen, or folds and unfolds the chosen box. */
function foldChosen() {
    const item = view.items.get(heldKey()), box = item?.kind === 'box' ? item.key : item?.parent;
    if (!box) return;
    state.chosen = box;
    toggleFold(box);
}

/* Whether the element that has the focus uses the key itself. */
function isTaken(target, key) {
    if (target.matches('input[type=text], input[type=search], select')) return true;
    if (target.id === 'slider') return key.startsWith('Arrow');
    if (target.matches('button, input')) return key === ' ' || key === 'Enter';
    if (target.matches('canvas')) return key.startsWith('Arrow');
    return target.matches('#card, #ledger-scroll') && key.startsWith('Page');
}

function onKey(event) {
    const target = event.target, inGraph = target.closest('#drawing');
    if (event.ctrlKey || event.metaKey || event.altKey || $('help').open) return;
    if (isTaken(target, event.key)) return;
    if (target.closest('[role=tablist]') && tabKeys(event)) return;
    const action = (inGraph && GRAPH_KEYS[event.key]) || KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
}

/* A click or Enter on an item: a box folds or unfolds, anything else is chosen. */
function activate(element) {
    if (!element) return;
    const key = element.dataset.key, item = view.items.get(key);
    if (item.kind === 'ghost') return choose(item.of);
    state.chosen = key;
    if (item.kind === 'box') return toggleFold(key);
    render();
    focusItem(key);
}

const PRINTED_MOST = 1000; /* ops */

/* What is printed beside the graph and the ledger: the ops of the step as tables. */
function beforePrint() {
    const g = graph(), size = (value) => digits(value?.norm);
    const where = (node) => (g.call.has(node.call) ? callTitle(g.call.get(node.call)) : '');
    const forward = g.step.nodes.slice(0, PRINTED_MOST).map((node) =>
        [`#${node.id} ${node.op}`, where(node), plainFormula(node.formula || ''),
            shapeText(node.out[0].shape), size(node.out[0].value)]);
    const backward = g.step.backward.slice(0, PRINTED_MOST).map((back) =>
        [`#${back.node} ${g.node.get(back.node).op}`,
            back.incoming.map((x) => size(x.value)).join(', '),
            back.shares.map((x) => `${sourceName(g, x.to)}: ${size(x.value)}`).join(', ')]);
    fill($('paper'), make('h2', `${trace().title}, ${positionText()}`),
        table('Forward', forward, ['op', 'where', 'formula', 'shape', 'norm']),
        table('Backward', backward, ['op', 'gradient in', 'shares']));
    if (view.items.size <= 600) draw(true);
}

/* ---- the start ------------------------------------------------------------------------------- */

function begin() {
    const on = (id, event, action) => $(id).addEventListener(event, action);
    for (const { id, dataset } of document.querySelectorAll('[data-as]')) /* as a key does */
        on(id, 'click', KEYS[dataset.as]);
    on('slider', 'input', () => go(Number($('slider').value)));
    on('speed', 'change', () => timer && (stop(), play()));
    on('fold', 'click', () => foldAll(true));
    on('unfold', 'click', () => foldAll(false));
    on('compare-only', 'change', renderCompare);
    on('search', 'input', renderSearch);
    on('search', 'keydown', searchKeys);
    on('search', 'blur', () => ($('found').hidden = true));
    on('found', 'mousedown', (event) => event.preventDefault()); /* the search keeps the focus */
    on('scroll', 'scroll', () => requestAnimationFrame(() => draw()));
    on('drawing', 'click', (event) => activate(event.target.closest('[data-key]')));
    document.addEventListener('keydown', onKey);
    addEventListener('resize', () => (state.fitted === null ? draw() : fit(state.fitted)));
    addEventListener('hashchange', readHash);
    addEventListener('beforeprint', beforePrint);
    addEventListener('afterprint', () => draw());
    state.folded = foldAtFirst(graph(), 14);
    renderTabs();
    renderBar();
    relayout();
    readHash();
    fit(READABLE);
    performance.mark('drawn');
}

begin();
