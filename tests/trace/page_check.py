#!/usr/bin/env python3
"""The pages of tn_trace_html in a headless Chromium, as a reader uses them.

usage: page_check.py PAGE-DRIVER | --pages FOLDER
The driver writes the pages. What a page shows is compared with the same account as tn_trace_json writes
it, which knows nothing of the page. Skipped where there is no Chromium, with the reason.
Seen to fail: with the last bytes left out of the base64;
with the side by side view's columns in another order, infinite taken for finite, or always its first rows;
with "<" or "&" written as they are; with a click that leads to another trace; without a zero's sign;
with a norm shown as the largest element; with a grid's colour whose contrast is 4.23; at 424 pixels where
420 are given; in a narrow window without the current op; with a ledger made anew at each op (172 ms a step);
with lines drawn past thousands of ops (the flat page took 30 s); with a formula that threw.
With Predict in the colours of the mouse on a button; with Fit that stops at 0.7, or an opening at the loss; with bare
norms; with a ledger that is ahead of the replay, or 12 pixels wider a column; with a gradient that clipping did not reach; without the
line of words; with a formula's letter that kept no number; with a picture's rows or columns not spaced; with an alarm for a bias.
"""
import base64
import concurrent.futures
import glob
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import zlib

import browser
import firefox

OPEN_MS, UNFOLD_MS = 2000, 3000  # for 5,000 ops
MOST_BYTES = 10e6

CHECKED = {'passed': 0, 'failed': 0}


def check(what, right, seen=''):
    """Counts, and says what is wrong."""
    CHECKED['passed' if right else 'failed'] += 1
    if not right:
        print(f'WRONG: {what}', f'({seen})' if seen != '' else '')


def number(text):
    """A number as the page writes it."""
    text = text.replace('−', '-').replace('∞', 'inf').replace('∂', '').strip()
    return float(text) if text != '-0' else -0.0


def near(shown, true):
    """Whether a text is this number: in four digits, in three before an exponent."""
    true = float(true)
    value = number(shown)
    if not math.isfinite(true) or true == 0:
        return repr(value) == repr(true)
    unit = 10.0 ** (math.floor(math.log10(abs(true))) - (2 if 'e' in shown else 3))
    return abs(value - true) <= 0.5001 * unit + 1e-6 * abs(true)


def summary(value, shape):
    """What stands for a tensor: itself, if it is one number, else its norm."""
    size = 1
    for n in shape:
        size *= n
    return value['mean'] if size == 1 else value['norm']


def whole(text):
    """An integer of JSON; the zero with a sign keeps it."""
    return -0.0 if text == '-0' else int(text)


def told(shown, value, shape):
    """Whether a text is what stands for a tensor; one without elements has none."""
    return shown == '' if 0 in shape else near(shown, summary(value, shape))


# The page reads its traces after it was loaded.
DRAWN = """(async () => {
    while (!performance.getEntriesByName('drawn').length)
        await new Promise((done) => setTimeout(done, 2)) })()"""


class Page:
    """A page in the browser, and the traces in it."""

    def __init__(self, tab, folder, name):
        self.tab, self.path = tab, os.path.join(folder, name + '.html')
        self.bytes = os.path.getsize(self.path)
        paths = sorted(glob.glob(os.path.join(folder, name + '.*.json')))
        self.traces = [json.loads(open(path, encoding='utf-8').read(), parse_int=whole) for path in paths]
        self.name = name
        self.shapes = {t['id']: t['shape'] for trace in self.traces for t in trace['tensors']}

    def open(self, anchor='', scripts=True):
        self.tab.open(f'file://{self.path}{anchor}')
        if scripts:
            self.tab.js(DRAWN)

    def text(self, selector):
        return self.tab.js(f'(document.querySelector({json.dumps(selector)}) || {{}}).textContent ?? null')

    def texts(self, selector):
        return self.tab.js(f'[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)')

    def count(self, selector):
        return self.tab.js(f'document.querySelectorAll({json.dumps(selector)}).length')

    def where(self):
        return self.text('#where')

    def positions(self, trace=0):
        """The row of positions that the page plays: (step, phase, index)."""
        out = []
        for s, step in enumerate(self.traces[trace]['steps']):
            out.append((s, 'whole', 0))
            out += [(s, 'forward', i) for i in range(len(step['nodes']))]
            out += [(s, 'backward', i) for i in range(len(step['backward']))]
            out += [(s, 'clip', 0)] if 'clip' in step else []
            out += [(s, 'optimizer', 0)] if step['updates'] is not None else []
        return out

    def quiet(self, when):
        check(f'{self.name}: no complaint of the browser {when}', not self.tab.complaints, self.tab.complaints[:3])
        self.tab.complaints.clear()


# ---- what is compressed ---------------------------------------------------------------------------

CODE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'src', 'ext', 'trace', 'page')

UNPACKED = """(async () => { %s
    const plain = (k, v) => typeof v !== 'number' ? v : Object.is(v, -0) ? '-0'
        : Number.isFinite(v) ? v : Number.isNaN(v) ? 'nan' : v > 0 ? 'inf' : '-inf';
    return JSON.stringify(traces, plain) })()"""


def same_number(a, b, scale):
    """But for the 24 bits of an f32."""
    a, b = float(a), float(b)
    if not math.isfinite(b):
        return repr(a) == repr(b)
    return abs(a - b) <= 1e-7 * max(abs(b), scale)


PAGE_ONLY = {'picture', 'constants', 'numbers'} # what pages have beside the account (pictures, symbols)


def unlike(a, b, at='', scale=0.0):
    """Where what the page has unpacked is not what the account says; '' if nowhere."""
    if isinstance(b, dict):
        numbers = 'norm' in b and 'zeros' in b
        scale = max(abs(float(b[k])) for k in ('min', 'max')) if numbers else 0.0
        names = b.keys() | {k for k, v in a.items() if v is not None} - PAGE_ONLY if isinstance(a, dict) else ['?']
        found = (unlike((a or {}).get(k), b.get(k), f'{at}.{k}', scale if math.isfinite(scale) else 0.0) for k in sorted(names))
    elif isinstance(b, list):
        if not isinstance(a, list) or len(a) != len(b):
            return f'{at}: {str(a)[:60]} for {str(b)[:60]}'
        found = (unlike(x, y, f'{at}[{i}]', scale) for i, (x, y) in enumerate(zip(a, b)))
    else:
        amounts = isinstance(b, (int, float)) and not isinstance(b, bool) or b in ('nan', 'inf', '-inf')
        digits = 5.1e-7 * abs(float(b)) if amounts and '.values[' in at else 0.0 # of which a page has seven
        right = a is not None and (same_number(a, b, scale) or abs(float(a) - float(b)) <= digits) if amounts else a == b
        if right and b == 0 and '.values[' in at: # a zero has its sign
            right = repr(float(a)) == repr(float(b))
        return '' if right else f'{at}: {a!r} for {b!r}'
    return next((x for x in found if x), '')


def unpacking(page):
    """All that the page unpacks, against the account."""
    code = ''
    for name in ('elements.js', 'data.js'):
        with open(os.path.join(CODE, name), encoding='utf-8') as file:
            code += file.read().split('/* ---- numbers and words')[0]
    page.open()
    packed = json.loads(page.tab.js(UNPACKED % code), parse_int=whole)
    check(f'{page.name}: as many traces', len(packed) == len(page.traces))
    for k, trace in enumerate(page.traces):
        found = unlike(packed[k], trace)
        check(f'{page.name}: what is unpacked is the account', not found, found)
    page.quiet('when unpacking')


# ---- reading the numbers back --------------------------------------------------------------------

def node_of(step, key):
    return next(n for n in step['nodes'] if n['id'] == key)


def check_card(page, step, phase, i):
    """The numbers of the card against the trace."""
    at = f'{page.name}, {phase} {i + 1}'
    entry = step['backward'][i] if phase == 'backward' else None
    node = node_of(step, entry['node']) if entry else step['nodes'][i]
    check(f'{at}: the card is about {node["op"]}', page.text('#card h2') == f'{node["op"]} #{node["id"]}')
    shown = page.tab.js('''[...document.querySelectorAll('#card section')].map((s) => [s.className,
        [...s.querySelectorAll('.tensors > li')].map((li) => [(li.querySelector('.stats .num') || {}).textContent ?? '',
        [...li.querySelectorAll('td')].map((td) => td.getAttribute('aria-label'))])])''')
    parts = dict(shown)
    outs = parts['forward'][-len(node['out']):]
    for out, (size, cells) in zip(node['out'], outs):
        check(f'{at}: the result', told(size, out['value'], out['shape']), size)
        check_cells(at, cells, out['value'])
    if not entry:
        return
    want = [(x['value'], node['out'][x['output']]['shape']) for x in entry['incoming']]
    want += [(x['value'], node['in'][x['in']]['shape']) for x in entry['shares']]
    check(f'{at}: all gradients are there', len(parts['backward']) == len(want), len(parts['backward']))
    for (value, shape), (size, cells) in zip(want, parts['backward']):
        check(f'{at}: a gradient', told(size, value, shape), size)
        check_cells(at, cells, value)


def check_cells(at, cells, value):
    values = (value.get('values') or [])[:1024]
    if len(values) < 2:
        return
    check(f'{at}: a cell for each element', len(cells) == len(values), f'{len(cells)} for {len(values)}')
    check(f'{at}: the numbers of the cells',
          all(near(c.split(' ')[-1], v) for c, v in zip(cells, values)), cells[:4])


# The bar of browsers that show one.
ROOM_TO_SCROLL = "document.getElementById('ledger-scroll').style.paddingRight = '31px'"
CUT = "(() => { const e = document.getElementById('ledger-scroll'); return e.scrollWidth - e.clientWidth })()"


def check_ledger(page, step, trace):
    tensors = {t['id']: t for t in trace['tensors']}
    page.tab.js(ROOM_TO_SCROLL)
    check(f'{page.name}: the ledger is not cut at its right', page.tab.js(CUT) <= 0, page.tab.js(CUT))
    rows = page.tab.js('''[...document.querySelectorAll('#ledger-table [data-tensor]')].map((r) =>
        [r.dataset.tensor, r.firstChild.title, ...[...r.querySelectorAll('td')].map((c) => c.textContent)])''')
    want = step['ledger'][:400]
    check(f'{page.name}: a row for each registered tensor', len(rows) == len(want), f'{len(rows)} for {len(want)}')
    marked = page.tab.js('''[...document.querySelectorAll('#ledger-table [data-tensor]')].map((r) =>
        [5, 6].map((k) => r.querySelectorAll('td')[k].classList.contains('changed')))''')
    plain = lambda v: v and {k: x for k, x in v.items() if k != 'hash'}
    moments = [[plain(line[k]) for k in ('start', 'forward', 'step')] for line in want]
    check(f'{page.name}: what changed is marked', marked == [[a != b, b != c] for a, b, c in moments], marked)
    for (key, name, kind, file, held, grad, start, after, stepped, by), line in zip(rows, want):
        t = tensors[line['tensor']]
        size = lambda v: summary(v, t['shape'])
        check(f'{page.name}: the ledger on {name}',
              key == t['id'] and name == t['name'] and kind == (t['role'] or {'tensor': 'data'}.get(t['kind'], t['kind'])) and
              file == ('yes' if t['persistent'] else 'no') and held == (t['optimizer'] or '–') and
              near(start, size(line['start'])) and near(after, size(line['forward'])) and
              near(stepped, size(line['step'])) and
              (grad == '–' if line['grad'] is None else near(grad, size(line['grad']))) and
              by == ('nobody' if line['moved'] == 'no' else line['moved'].replace('by the ', '').replace('by ', '')),
              (kind, file, held, grad, start, after, stepped, by))


def check_replay(page, step, phase, i):
    """In the ledger only what has happened by then; boxes have the gradients that it has."""
    at = f'{page.name}, {phase} {i + 1}'
    order = ['forward', 'backward', 'clip', 'optimizer'].index(phase)
    last = (phase, i) == ('backward', len(step['backward']) - 1) and step['updates'] is None
    ops_of = lambda call: [k for k, n in enumerate(step['nodes']) if within(step, n['call'], call)]
    written = {w: max(ops_of(c['id'])) for c in step['calls'] for w in c['writes'] if ops_of(c['id'])}
    rows = page.tab.js("""[...document.querySelectorAll('#ledger-table [data-tensor]')].map((r) =>
        [4, 6, 7, 8].map((k) => r.cells[k].textContent).concat(
        (document.querySelector(`.item[data-key=${r.dataset.tensor}] .slope`) || {}).textContent ?? null))""")
    for (grad, forward, after, by, box), line in zip(rows, step['ledger']):
        key = line['tensor']
        arrived = [a for k, b in enumerate(step['backward']) if order > 1 or (order == 1 and k <= i)
                   for a in b['accumulated'] if a['tensor'] == key]
        true = line['grad'] if order > 1 else arrived[-1]['after'] if arrived else None
        shape = page.shapes[key]
        check(f'{at}: the gradient of {key} so far', near(grad, summary(true, shape)) if true else grad in ('', '–'), (grad, true))
        passed = order > 0 or i >= written.get(key, len(step['nodes']) - 1)
        check(f'{at}: {key} after forward, once it is there', (forward != '') == passed, (forward, passed))
        moved = phase == 'optimizer' or last
        check(f'{at}: {key} after the step, once it is there', (after != '') == moved, (after, moved))
        check(f'{at}: who moved {key}, once it has', (by != '') == (passed if line['moved'] == 'by forward' else moved), by)
        if box is not None:
            check(f'{at}: the box of {key} has the same gradient', (box == '') == (grad in ('', '–')) and (
                box == '' or near_short(box, summary(true, shape))), (box, grad))


def within(step, call, outer):
    """Whether a call is another one, or in it."""
    calls = {c['id']: c['outer'] for c in step['calls']}
    while call is not None and call != outer:
        call = calls[call]
    return call == outer and call is not None


def near_short(shown, true):
    """The same number in three digits, as on a box."""
    return abs(number(shown.replace('‖∂‖', '').replace('‖·‖', '')) - true) <= 6e-3 * abs(true)


def check_clip(page, step):
    """Its factor, and the gradients before and after."""
    clip = step['clip']
    shown = [number(x.rstrip('.')) for x in re.findall(r'-?[\d.]+(?:e-?\d+)?', page.text('#card p').replace('−', '-').replace('∞', 'inf'))]
    right = [clip['norm'], clip['limit'], clip['limit'], clip['norm'], clip['factor']]
    check(f'{page.name}: clipping says how', all(abs(a - b) <= 1e-3 * b for a, b in zip(shown, right)) and len(shown) == 5, shown)
    grads = [line['grad'] for line in step['ledger'] if line['grad']]
    norm = math.sqrt(sum(g['norm'] ** 2 for g in grads))
    check(f'{page.name}: after it the gradients have the norm of the limit', abs(norm - clip['limit']) < 1e-4 * norm, norm)
    check(f'{page.name}: each gradient, before and after', page.count('#card .tensors > li') == len(grads))


# ---- what a reader does --------------------------------------------------------------------------

def walk(page):
    """Every position of the first step by key, and back; the numbers of each."""
    page.open()
    trace, tab = page.traces[0], page.tab
    step = trace['steps'][0]
    positions = [p for p in page.positions() if p[0] == 0]
    check(f'{page.name}: begins with the step as a whole', page.where().endswith('as a whole'), page.where())
    check_ledger(page, step, trace)
    drawn = page.count('#items > .item')
    check(f'{page.name}: the graph is drawn', drawn > 0, drawn)
    for _, phase, i in positions[1:]:
        tab.press('ArrowRight')
        check(f'{page.name}: the position says where it is', f' {phase}' in page.where() or phase == 'optimizer', page.where())
        check_replay(page, step, phase, i)
        if phase == 'optimizer':
            check(f'{page.name}: the optimizer lists what it moved',
                  page.count('#card .tensors > li') == len(step['updates']))
            check(f'{page.name}: what it moved is marked', page.count('.item.updated') > 0)
        elif phase == 'clip':
            check_clip(page, step)
        else:
            check_card(page, step, phase, i)
            check(f'{page.name}: one item is current', page.count('.item.current') == 1, page.where())
            check(f'{page.name}: the current item is in view', tab.js('''(() => {
                const e = document.querySelector('.item.current').getBoundingClientRect(), s =
                document.getElementById('scroll').getBoundingClientRect();
                return e.bottom > s.top && e.top < s.bottom && e.right > s.left && e.left < s.right })()'''))
        if (phase, i) == ('backward', 0):
            check(f'{page.name}: the loss is named', page.count('.tag') == 1)
        if phase == 'backward' and step['backward'][i]['shares'] and page.count('.item.current.op'):
            check(f'{page.name}: a gradient edge is lit', page.count('.gradient.now') > 0, page.where())
    last = page.text('#card')
    tab.press('ArrowLeft')
    tab.press('ArrowRight')
    check(f'{page.name}: back and on again is the same', page.text('#card') == last)
    page.open()
    at_once = tab.js('''[...Array(%d).keys()].map(() => { /* no frame between the keys */
        document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))
        return document.querySelectorAll('.item.current').length })''' % (len(positions) - 1))
    wanted = [int(phase in ('forward', 'backward')) for _, phase, _ in positions[1:]]
    check(f'{page.name}: the current item is drawn at once', at_once == wanted, at_once)
    page.quiet('while walking')


def keys(page):
    """Home, End, phases, links, playing."""
    tab, all_positions = page.tab, page.positions()
    page.open()
    tab.press('End')
    check(f'{page.name}: End', tab.js('location.hash') == f'#step={len(all_positions) - 1}', tab.js('location.hash'))
    tab.press('Home')
    check(f'{page.name}: Home', tab.js('location.hash') == '#step=0')
    phases = []
    for _ in range(4):
        tab.press('PageDown')
        phases.append(tab.js('document.body.dataset.phase'))
    want = [phase for s, phase, _ in all_positions if s == 0]
    want = [p for k, p in enumerate(want) if k and p != want[k - 1]]
    check(f'{page.name}: phases', phases[:len(want)] == want, phases)
    target = next(i for i, p in enumerate(all_positions) if p[1] == 'backward') + 1
    page.open(f'#step={target}')
    check(f'{page.name}: a link to a step', 'backward 2 of' in page.where(), page.where())
    tab.js('''new Promise((done) => {
        addEventListener('hashchange', () => done(), { once: true }) /* the page's own listener comes first */
        location.hash = "#step=%d&at=n0" })''' % (target + 1))
    check(f'{page.name}: another link, with an op', 'backward 3 of' in page.where() and
          page.text('#card h2').endswith('#0'), page.where())
    for bad in ('#step=x', '#step=-1', '#step=1e9', '#step=2&at=n99999', '#trace=7&at=zz', '#%'):
        page.open(bad)
        check(f'{page.name}: a link that makes no sense', page.where().startswith('Step 1'), bad)
    page.open()
    tab.js("document.getElementById('speed').value = 300")
    at = "Number(document.getElementById('slider').value)"
    begun = tab.js('performance.now()')
    tab.press(' ')
    ms = tab.js(f'new Promise((done) => setInterval(() => {at} > 1 && done(performance.now()), 10))') - begun
    tab.press(' ')
    paused = tab.js(at)
    check(f'{page.name}: two steps at the chosen speed, not at the normal one', 580 < ms < 1700, ms)
    tab.js('new Promise((done) => setTimeout(done, 700))')
    check(f'{page.name}: space plays and pauses', tab.js(at) == paused, (paused, tab.js(at)))
    page.quiet('with keys')


def opened(page):
    page.open()
    page.tab.click('#unfold')


def crossing(page):
    crossed = page.tab.js('''(() => {
        const inside = (p, b) => p.x > b.left + 1 && p.x < b.right - 1 && p.y > b.top + 1 && p.y < b.bottom - 1;
        const ops = [...document.querySelectorAll('#items > .item:not(.box) > .shape')].map((e) => e.getBoundingClientRect());
        return [...document.querySelectorAll('.edge .flow:not(.sideways)')].filter((path) => {
            const n = path.getTotalLength(), at = path.getScreenCTM();
            const on = (k) => path.getPointAtLength(k).matrixTransform(at);
            return ops.some((b) => !inside({ x: on(0).x, y: on(0).y + 2 }, b) &&
                [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8].some((k) => inside(on(n * k), b)));
        }).length })()''')
    check(f'{page.name}: no line runs over an op', crossed == 0, crossed)


def folding(page):
    tab = page.tab
    page.open()
    tab.click('#unfold')
    for _ in range(9):
        tab.press('-')
    nodes = len(page.traces[0]['steps'][0]['nodes'])
    check(f'{page.name}: all ops are drawn when unfolded', page.count('.item.op') == nodes, page.count('.item.op'))
    buffers = {w for c in page.traces[0]['steps'][0]['calls'] for w in c['writes']}
    check(f'{page.name}: a dashed edge into each buffer that forward writes',
          page.count('.edge.writes') == len(buffers), page.count('.edge.writes'))
    check(f'{page.name}: nothing stands over anything else', tab.js('''(() => {
        const r = [...document.querySelectorAll('#items > .item > .shape')].map((e) => e.getBoundingClientRect());
        return r.every((a, i) => r.every((b, k) => i >= k || a.right <= b.left + 0.5 || b.right <= a.left + 0.5 ||
            a.bottom <= b.top + 0.5 || b.bottom <= a.top + 0.5)) })()'''))
    crossing(page)
    tab.click('#fold')
    folded = page.count('.item.op')
    check(f'{page.name}: fewer when folded', folded < nodes, folded)
    tab.js("document.querySelector('.item.box.open, .item.box').focus()")
    before = tab.js("document.activeElement.getAttribute('aria-expanded')")
    tab.press('Enter')
    after = tab.js("document.activeElement.getAttribute('aria-expanded')")
    check(f'{page.name}: Enter folds and unfolds, and keeps the focus', {before, after} == {'true', 'false'}, (before, after))
    page.quiet('while folding')


def searching(page):
    tab, trace = page.tab, page.traces[0]
    named = [t for t in trace['tensors'] if t['kind'] == 'parameter'][-1]
    page.open()
    tab.press('/')
    check(f'{page.name}: / goes to the search', tab.js('document.activeElement.id') == 'search')
    tab.write(named['name'])
    check(f'{page.name}: something is found', page.count('#found [role=option]') > 0)
    tab.press('Enter')
    check(f'{page.name}: the tensor is chosen and in view', page.text('#card h2') == named['name'] and
          page.count(f'.item.chosen[data-key={named["id"]}]') == 1, page.text('#card h2'))
    check(f'{page.name}: the list is closed', tab.js("document.getElementById('found').hidden"))
    tab.press('/')
    tab.write('no such thing')
    check(f'{page.name}: it says when nothing is found', page.text('#found') == 'nothing found', page.text('#found'))
    tab.press('Escape')
    page.quiet('while searching')


def predicting(page):
    tab, step = page.tab, page.traces[0]['steps'][0]
    first = 1 + len(step['nodes'])
    page.open()
    tab.press('p')
    check(f'{page.name}: no gradient is told before', not any(x for x in page.texts('.slope')), page.texts('.slope'))
    right = 0
    for i, entry in enumerate(step['backward'][:6]):
        page.open(f'#step={first + i}')
        tab.press('p')
        check(f'{page.name}: asks before it shows', page.count('#answer') == 1 and page.count('#card .backward') == 0)
        asked = page.text('.question')
        node = node_of(step, entry['node'])
        share = next((s for s in entry['shares'] if s['value'].get('values')), entry['shares'][0])
        if asked.startswith('How large'):
            truth = share['value']['norm']
        else:
            index = [int(x) for x in re.search(r'\[([\d,]+)\] that', asked).group(1).split(',')] \
                if node['in'][share['in']]['shape'] else []
            place = 0
            for n, k in zip(node['in'][share['in']]['shape'], index):
                place = place * n + k
            truth = share['value']['values'][place]
        answer = truth * (1.009 if i % 2 == 0 else 1.03) if truth else (0 if i % 2 == 0 else 0.1)
        tab.js("document.getElementById('answer').focus()")
        tab.write(f'{answer:.9g}')
        tab.press('Enter')
        verdict = page.text('.verdict')
        check(f'{page.name}: 0.9 % off is right, 3 % is not', verdict.startswith('Right' if i % 2 == 0 else 'Not quite'),
              (asked, truth, verdict))
        right += i % 2 == 0
        check_card(page, step, 'backward', i)
    page.quiet('while predicting')


def tabbing(page):
    """The keyboard alone reaches everything, and shows where it is."""
    tab = page.tab
    page.open('#step=2')
    tab.js('document.activeElement.blur()')
    seen, bare = [], []
    for _ in range(60):
        tab.press('Tab')
        what = tab.js('''(() => { const e = document.activeElement; if (e === document.body) return null;
            const s = getComputedStyle(e.closest('.item') ? e.querySelector('.shape') : e);
            return [e.id || e.dataset.key || e.className || e.textContent.trim(),
            e.closest('.item') ? parseFloat(s.strokeWidth) >= 3 : s.outlineStyle !== 'none',
            e.getAttribute('aria-label') || e.textContent.trim() || e.id] })()''')
        if what is None:
            break
        seen.append(what[0])
        if not what[1] or not what[2]:
            bare.append(what)
    wanted = {'search', 'predict', 'theme', 'keys', 'play', 'slider', 'fold', 'card', 'ledger-scroll'}
    check(f'{page.name}: Tab reaches all', wanted <= set(seen), sorted(wanted - set(seen)))
    check(f'{page.name}: Tab reaches the graph', any(re.fullmatch(r'[ntc]\d+', x) for x in seen), seen)
    check(f'{page.name}: the focus can be seen, and has a name', not bare, bare)
    tab.js("document.querySelector('.item[tabindex=\"0\"]').focus()")
    was = tab.js('document.activeElement.dataset.key')
    tab.press('ArrowUp')
    now = tab.js('document.activeElement.dataset.key')
    check(f'{page.name}: ↑ goes to an input', now != was and now is not None, (was, now))
    tab.press('?')
    check(f'{page.name}: ? shows the keys', tab.js("document.getElementById('help').open"))
    tab.press('Escape')
    page.quiet('with Tab')


CONTRAST = '''(() => {
    const d = document.createElement('canvas').getContext('2d', { willReadFrequently: true }), known = new Map();
    const read = (c) => { d.clearRect(0, 0, 1, 1); d.fillStyle = c; d.fillRect(0, 0, 1, 1);
        return [...d.getImageData(0, 0, 1, 1).data] };
    const rgb = (c) => { if (!known.has(c)) known.set(c, read(c)); return known.get(c) };
    const light = (c) => { const [r, g, b] = c.map((x) => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b };
    const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
        if (c[3] > 250) return c } return [255, 255, 255, 255] };
    const poor = [];
    for (const e of document.querySelectorAll('body *')) {
        if (e.closest('svg, script, style, #bar, :disabled') || !e.offsetParent ||
            ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
        const a = light(rgb(getComputedStyle(e).color)), b = light(ground(e));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) poor.push([e.tagName, e.className, e.textContent.trim().slice(0, 20), ratio.toFixed(2)]);
    }
    for (const e of document.querySelectorAll('.item text')) {
        const shape = e.closest('.item').querySelector('.shape'); if (!e.textContent || e.closest('.sum, .finding')) continue;
        const a = light(rgb(getComputedStyle(e).fill)), b = light(rgb(getComputedStyle(shape).fill));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) poor.push(['svg', e.className.baseVal, e.textContent, ratio.toFixed(2)]);
    }
    return poor })()'''


def looks(page):
    """Light, dark, the switch, contrast, a small screen, paper, no script."""
    tab = page.tab
    dark = lambda: tab.js("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] < 80")
    for scheme in ('light', 'dark'):
        tab.media(prefers_color_scheme=scheme)
        first = 1 + len(page.traces[0]['steps'][0]['nodes'])
        for anchor in ('', '#step=2', f'#step={first + 1}', f'#step={first + len(page.traces[0]["steps"][0]["backward"])}'):
            page.open(anchor)
            check(f'{page.name}: {scheme} as preferred', dark() == (scheme == 'dark'))
            poor = tab.js(CONTRAST)
            check(f'{page.name}: {scheme}{anchor}, contrast of at least 4.5', not poor, poor[:4])
        tab.press('d')
        check(f'{page.name}: d switches', dark() != (scheme == 'dark'))
    tab.media(prefers_color_scheme='light')
    for width in (420, 340):
        tab.window(width, 800)
        page.open('#step=3')
        check(f'{page.name}: {width} pixels are wide enough', tab.js('document.documentElement.scrollWidth') <= width,
              tab.js('document.documentElement.scrollWidth'))
    tab.window(700, 900)
    page.open(f'#step={len(page.traces[0]["steps"][0]["nodes"])}')
    check(f'{page.name}: in a narrow window the current op and its card are in view', tab.js("""
        ['.item.current', '#card h2'].every((s) => { const r = document.querySelector(s).getBoundingClientRect();
            return r.top >= 0 && r.bottom <= innerHeight })"""))
    tab.window(1280, 800)
    page.open()
    check(f'{page.name}: fills the window, no more', tab.js('document.documentElement.scrollHeight') <= 800 and
          tab.js(CUT) <= 0)
    tab.js("dispatchEvent(new Event('beforeprint'))")
    tab.media(media='print')
    check(f'{page.name}: paper has graph, ledger and ops, no buttons', page.count('#paper tr') > 4 and
          tab.js("['#drawing', '#ledger-table', '#paper'].every((s) => document.querySelector(s).getClientRects().length)")
          and not tab.js("document.getElementById('play').getClientRects().length"))
    tab.media(media='')
    tab.call('Emulation.setScriptExecutionDisabled', value=True)
    page.open(scripts=False)
    still = tab.call('DOM.getDocument', depth=1)['root']['nodeId']
    rows = len(tab.call('DOM.querySelectorAll', nodeId=still, selector='#still tr')['nodeIds'])
    box = tab.call('DOM.querySelector', nodeId=still, selector='#still table')['nodeId']
    try:
        size = tab.call('DOM.getBoxModel', nodeId=box)['model']['height']
    except browser.Broken:
        size = 0
    player = tab.call('DOM.querySelector', nodeId=still, selector='#player')['nodeId']
    try:
        hidden = tab.call('DOM.getBoxModel', nodeId=player)['model']['height'] == 0
    except browser.Broken:
        hidden = True
    tab.call('Emulation.setScriptExecutionDisabled', value=False)
    want = len(page.traces[0]['steps'][0]['ledger'])
    check(f'{page.name}: readable without script', size > 0 and rows > want and hidden, (size, rows, hidden))
    page.quiet('in its looks')


def columns(page):
    """By row of the side by side view: for each trace its text, how many parts are marked, where it leads."""
    rows = page.tab.js('''[...document.querySelectorAll('#compare-table tr[data-name]')].map((r) => [r.dataset.name,
        [...r.children].map((c) => [c.textContent, c.querySelectorAll('.other').length, (c.querySelector('button') || {}).title ?? ''])])''')
    return dict(rows)


def modes(page):
    """Several traces."""
    tab = page.tab
    page.open()
    titles = [t['title'] for t in page.traces]
    check('modes: a tab for each trace', page.texts('#tabs [role=tab]') == titles + ['Side by side'])
    tab.js("document.querySelectorAll('#tabs [role=tab]')[1].click()")
    check('modes: the second is shown', 'eval mode' in page.text('#card') and 'trace=1' in tab.js('location.hash'),
          page.text('#card')[:80])
    check_ledger(page, page.traces[1]['steps'][0], page.traces[1])
    tab.js("document.querySelector('#tabs [aria-selected=true]').focus()")
    tab.press('ArrowRight', 2)
    check('modes: the arrow keys go to the side by side view', tab.js("document.getElementById('main').hidden"))
    check('modes: a column for each trace', page.texts('#compare-table thead th') == titles)
    table = columns(page)
    check('modes: the mode differs in the second', [c[1] for c in table['mode']] == [0, 1, 0], table['mode'])
    check('modes: so does the loss', [c[1] for c in table['loss']] == [0, 1, 0] and
          all(near(c[0].replace('loss', ''), t['steps'][0]['loss']) for c, t in zip(table['loss'], page.traces)))
    mean = table['1.running_mean']
    check('modes: forward moved the buffer in training only', 'by forward' in mean[0][0] and 'not moved' in mean[1][0] and
          mean[1][1] > 0 and mean[2][1] == 0, mean)
    check('modes: the frozen weight has no gradient', 'frozen' in table['0.weight'][2][0] and table['0.weight'][2][1] > 0,
          table['0.weight'])
    for t, trace in enumerate(page.traces):
        step = trace['steps'][0]
        for node in step['nodes']:
            name = [n for n in table if n.endswith(f' {node["op"]} 1')]
            found = [table[n][t] for n in name if table[n][t][2] == f'n{node["id"]}']
            check(f'modes: {node["op"]} #{node["id"]} stands in column {t}', len(found) == 1, name)
            if len(found) != 1:
                continue
            shown = re.search(r'\] ?([^∂]*?)(∂.*|no gradient)?$', found[0][0]).groups()
            incoming = next((b['incoming'][0]['value'] for b in step['backward'] if b['node'] == node['id']), None)
            shape = node['out'][0]['shape']
            check('modes: with its result and gradient', near(shown[0], summary(node['out'][0]['value'], shape)) and
                  near(shown[1], summary(incoming, shape)), shown)
    first = next(n for n in table if n.startswith('0#1 linear'))
    check('modes: the place of a frozen op stays empty', [c[0] for c in table[first]][2] == 'not there')
    order = [n for n in table if n.split(' ')[-1] == '1']
    check('modes: ops in the order of forward', [table[n][0][2] for n in order] ==
          [f'n{node["id"]}' for node in page.traces[0]['steps'][0]['nodes']], order)
    tab.js("document.getElementById('next').focus()")
    tab.press('ArrowRight', 2)
    now = page.texts('#compare-table .now b')
    check('modes: stepping marks the op in all columns', now == ['relu'] * 3, now) # the third trace's second op
    tab.click('#compare-only')
    some = columns(page)
    check('modes: or only what differs', set(some) == {n for n, row in table.items() if any(c[1] or c[0] == 'not there' for c in row)},
          (len(some), len(table)))
    for scheme in ('dark', 'light'):
        tab.media(prefers_color_scheme=scheme)
        poor = tab.js(CONTRAST)
        check(f'modes: {scheme} side by side, contrast of at least 4.5', not poor, poor[:4])
    tab.js("document.querySelector('#compare-table td:last-child .same').click()")
    check('modes: a click goes to the op in its trace', not tab.js("document.getElementById('main').hidden") and
          'trace=2' in tab.js('location.hash') and page.count('.item.chosen') == 1, tab.js('location.hash'))
    page.open('#step=0&trace=2')
    tab.click('#unfold')
    tab.press('-', 6)
    check('modes: no gradient edge to what is frozen', page.count('.edge .gradient') == sum(
        1 for n in page.traces[2]['steps'][0]['nodes'] for i in n['in'] if i and i['gradient']),
        page.count('.edge .gradient'))
    page.quiet('with several traces')


def same(page):
    """Two equal traces."""
    page.open()
    page.tab.js("[...document.querySelectorAll('#tabs [role=tab]')].pop().click()")
    table = columns(page)
    check('same: nothing is marked', len(table) > 15 and all(c[1] == 0 and c == row[0] for row in table.values() for c in row))
    page.tab.click('#compare-only')
    check('same: nothing differs', not columns(page) and f': 0 of {len(table)} rows differ' in page.text('#compare-note'),
          page.text('#compare-note'))
    page.quiet('with equal traces')


def hooked(page):
    """Hooks on the way of a gradient."""
    step = page.traces[0]['steps'][0]
    at, back = next((k, b) for k, b in enumerate(step['backward']) if b['incoming'][0].get('hooks'))
    page.open(f'#step={1 + len(step["nodes"]) + at}')
    notes = [n for n in page.texts('#card .backward .note') if n.startswith('hook')]
    want = [h for x in back['incoming'] + back['shares'] for h in x.get('hooks', [])]
    check('hooked: each hook has a line', len(notes) == len(want) == 3, notes)
    for note, hook in zip(notes, want):
        head, change = note.split(': ')
        check('hooked: which of how many', head == f"hook {hook['number']} of {hook['of']}", note)
        if hook['before'] == hook['after']:
            check('hooked: one that changes nothing', change == 'leaves it as it is', note)
        else:
            check('hooked: before and after', all(near(a, b['norm']) for a, b in
                  zip(change.split(' → '), (hook['before'], hook['after']))), note)
    page.quiet('with hooks')


def in_full(traces):
    """What a page has, with numbers in place of the references to them."""
    def fill(x, told):
        for k, v in x.items() if isinstance(x, dict) else enumerate(x):
            if isinstance(v, dict) and 'same' in v:
                x[k] = told[v['same']]
            elif isinstance(v, dict) and 'zeros' in v:
                told.append(v)
            elif isinstance(v, (dict, list)):
                fill(v, told)
    for trace in traces:
        fill(trace, [])
    return traces


def averaged(page):
    """An average over ranks, put into the page as a run of several processes writes it."""
    step = page.traces[0]['steps'][0]
    at, leaf = next((k, a) for k, b in enumerate(step['backward']) for a in b['accumulated'])
    with open(page.path, encoding='utf-8') as file:
        html = file.read()
    head, data, tail = re.match(r'(.*<script type="text/plain" id="traces">)(.*?)(</script>.*)', html, re.S).groups()
    traces = in_full(json.loads(zlib.decompress(base64.b64decode(data))))
    mine = traces[0]['steps'][0]['backward'][at]['accumulated'][0]
    after = dict(mine['after'], norm=0.5, min=0, max=0.5, mean=0.1)
    traces[0]['steps'][0]['passes'][0]['averaged'] = [
        {'tensor': leaf['tensor'], 'ranks': 4, 'before': mine['after'], 'after': after}]
    changed = Page(page.tab, os.path.dirname(page.path), page.name)
    changed.path = page.path.replace('.html', '.averaged.html')
    with open(changed.path, 'w', encoding='utf-8') as file:
        file.write(head + base64.b64encode(zlib.compress(json.dumps(traces).encode())).decode() + tail)
    changed.open(f'#step={1 + len(step["nodes"]) + at}')
    notes = [n for n in page.texts('#card .backward .note') if n.startswith('averaged')]
    found = re.fullmatch(r'averaged over 4 ranks: (.*) → 0\.5', notes[0]) if len(notes) == 1 else None
    check('averaged: the leaf says so', found and near(found[1], leaf['after']['norm']), notes)
    page.quiet('with an average')


def kinds(page):
    """All dtypes, and the extremes of size."""
    step = page.traces[0]['steps'][0]
    dtypes = {x['dtype'] for n in step['nodes'] for x in n['in'] + n['out'] if x}
    check('kinds: all are there', dtypes >= {'f32', 'f64', 'bf16', 'f16', 'i64', 'bool'}, dtypes)
    page.open()
    for node in step['nodes']:
        page.tab.press('ArrowRight')
        shown = page.tab.js("""[...document.querySelectorAll('#card .forward .tensors > li')].map((li) =>
            [li.querySelector('.shape').textContent, li.querySelector('.stats').textContent,
             [...li.querySelectorAll('.values > .note')].map((n) => n.textContent)])""")
        for x, (shape, stats, more) in zip([x for x in node['in'] if x] + node['out'], shown):
            check('kinds: shape and dtype', shape == f"[{','.join(map(str, x['shape']))}] {x['dtype']}", (shape, x))
            n = math.prod(x['shape'])
            check('kinds: an empty tensor says so', (stats == 'no elements') == (n == 0), stats)
            check('kinds: many cells are cut', more == ([f'and {n - 1024} elements more'] if n > 1024 else []), (n, more))
    page.quiet('with kinds')


def names(page):
    """Names and formulas that would break a page."""
    tab, trace = page.tab, page.traces[0]
    node = trace['steps'][0]['nodes'][0]
    leaf = next(t['name'] for t in trace['tensors'] if t['kind'] == 'tensor')
    own = next(t['name'] for t in trace['tensors'] if t['kind'] == 'parameter')
    check('names: the account has them', (trace['title'], leaf, own, node['op'], node['formula']) == (
        ']]> <i>t</i>? &lt;', 'w" onclick=\'x()\'>漢 \n\t??', '<i>"ä', 'a"<b>&amp;\'\\', 'y = </script><!-- ü 🙂'),
        (trace['title'], leaf, own, node))
    page.open('#step=1')
    check('names: the title is text', page.text('h1') == page.text('title') == trace['title'], page.text('h1'))
    check('names: the formula is text', page.text('#card .formula') == node['formula'], page.text('#card .formula'))
    check('names: an op is text', page.text('.item.current .name') == node['op'] and node['op'] in page.text('#where'))
    page.open('#step=4')
    check('names: so is its gradient', page.where().find('backward') > 0 and
          node['gradient'] in (page.open('#step=6') or page.texts('#card .backward .formula')), page.texts('#card .backward .formula'))
    check('names: nothing became markup', page.count('[onclick], b[class=""], h1 *, svg i, #still i') == 0 and
          page.count('script') == 3)
    check('names: in the tables without script, too', all(x in page.text('#still') for x in (trace['title'], own)))
    tab.press('/')
    tab.write(leaf[:3])
    tab.press('Enter')
    check('names: found by its first letters', page.text('#card h2') == leaf, page.text('#card h2'))
    page.quiet('with names')


def apart(page):
    """What is infinite or NaN differs from what is not; what was rounded otherwise does not."""
    page.open()
    page.tab.js("[...document.querySelectorAll('#tabs [role=tab]')].pop().click()")
    table = columns(page)
    for name, marks in (('loss', 1), (' log 1', 1), (' add 1', 1), ('leaf 1', 2)):
        check(f'apart: {name}', name in table and [c[1] for c in table[name]] == [0, marks, marks, marks, 0], table.get(name))
    page.tab.js("document.querySelector('#compare-table tr[data-name=\"leaf 1\"] button').click()")
    heads = page.texts('#card .entry')
    check('apart: the leaf has its gradient still', len(heads) == 2 and heads[1].startswith('gradient from log'), heads)
    page.quiet('with what is apart')


def long_pair(page):
    """Two traces with more ops than are shown at once."""
    tab = page.tab
    page.open()
    tab.js("[...document.querySelectorAll('#tabs [role=tab]')].pop().click()")
    check('long: the first ops, the leaf, and how many are not shown', page.count('#compare-table tr[data-name]') == 6 + 200 + 1 and
          any('1003 rows below' in t for t in page.texts('#compare-table .within')), page.texts('#compare-table .within'))
    key = 'document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }))'
    took = tab.js(f'(() => {{ const t = performance.now(); for (let i = 0; i < 100; i++) {key};'
                  'return (performance.now() - t) / 100 })()')
    check('long: a step in a tenth of a second', took < 100, f'{took:.0f} ms')
    for at in (101, 700, 1201):
        tab.js(f'document.getElementById("slider").value = {at}; '
               'document.getElementById("slider").dispatchEvent(new Event("input"))')
        now = tab.js("""[...document.querySelectorAll('#compare-table .now')].map((r) => [r.querySelector('button').title,
            r.getBoundingClientRect().top >= 0 && r.getBoundingClientRect().bottom <= innerHeight])""")
        check(f'long: op {at} is marked and in view', now == [[f'n{at - 1}', True]], now)
    print(f'long: two traces of 1,200 ops side by side, a step in {took:.1f} ms')
    page.quiet('with long traces')


def nothing(page):
    """A trace in which nothing happened, with a title that would break a page."""
    page.open()
    check('nothing: the title is text', page.text('h1') == page.traces[0]['title'] and page.count('h1 b') == 0,
          page.text('h1'))
    check('nothing: says so', 'ran 0 ops' in page.text('#card') and page.text('#ledger-note') == 'No registered tensors.')
    for key in ('ArrowRight', 'End', 'PageDown', 'ArrowUp', 'f', '0', 'p', 'Escape'):
        page.tab.press(key)
    page.quiet('with nothing')


ITEM = 'document.querySelector(".item[data-key=n0]") || document.querySelector(".item.box:not(.open)")'


def opening(page):
    """At the input, to be read; Fit shows all; the numbers on boxes say what they are; Predict can be read."""
    tab = page.tab
    page.open()
    inside = f"""(() => {{ const e = ({ITEM}).getBoundingClientRect(), s = document.getElementById('scroll').getBoundingClientRect();
        return e.top >= s.top && e.bottom <= s.bottom && e.left >= s.left && e.right <= s.right }})()"""
    check(f'{page.name}: opens at the input', tab.js("document.getElementById('scroll').scrollTop") < 100 and tab.js(inside),
          tab.js("document.getElementById('scroll').scrollTop"))
    check(f'{page.name}: to be read', tab.js("document.querySelector('#drawing .name').getBoundingClientRect().height") >= 9)
    boxes = tab.js("""[...document.querySelectorAll('#items .item')].map((e) => [e.querySelector('.note')?.textContent ?? '',
        ...['.value', '.slope'].map((s) => e.querySelector(s)?.textContent ?? '')])""")
    for note, value, slope in boxes:
        one = math.prod(int(x) for x in note.strip('[]').split(',') if x.isdigit()) == 1
        if note.startswith('['):
            check(f'{page.name}: a norm says so', (value == '' or value.startswith('‖·‖') != one) and
                  (slope == '' or slope.startswith('∂ ' if one else '‖∂‖')), (note, value, slope))
    tab.click('#unfold')
    for width, height in ((1280, 800), (800, 600)):
        tab.window(width, height)
        tab.click('#fit')
        over = tab.js("""(() => { const d = document.getElementById('drawing').getBoundingClientRect(),
            s = document.getElementById('scroll'); return [d.width - s.clientWidth, d.height - s.clientHeight] })()""")
        check(f'{page.name}: Fit shows all at {width}', max(over) <= 0 and max(over) > -60, over)
    tab.window(1280, 800)
    for scheme in ('dark', 'light'):
        tab.media(prefers_color_scheme=scheme)
        page.open()
        tab.click('#predict')
        tab.hover('#predict')
        poor = [x for x in tab.js(CONTRAST) if x[0] == 'BUTTON']
        check(f'{page.name}: Predict can be read when pressed, with the mouse on it, {scheme}', not poor and
              page.text('#predict[aria-pressed=true]') == 'Predict' and tab.js("document.getElementById('predict').matches(':hover')"), poor)
    page.quiet('when opened')


def small(page):
    """At 800 by 600 one line says what happens, wherever the replay is, and the reader."""
    page.tab.window(800, 600)
    step, seen = page.traces[0]['steps'][0], set()
    page.open()
    for at, (s, phase, i) in enumerate(page.positions()):
        if s == 0:
            line = page.tab.js("""(() => { const e = document.getElementById('gist'), r = e.getBoundingClientRect();
                return [e.textContent, r.top >= 0 && r.bottom <= innerHeight && r.height > 10 && r.height < 32] })()""")
            check(f'{page.name}: one line of words at 800 by 600', line[1] and len(line[0]) > 12, (at, line))
            seen.add(line[0])
            page.tab.press('ArrowRight')
    check(f'{page.name}: of each position its own', len(seen) > len(step['nodes']) / 2, len(seen))
    page.tab.js('scrollTo(0, 300)')
    check(f'{page.name}: and below', page.tab.js("document.getElementById('gist').getBoundingClientRect().top") >= 0)
    page.tab.window(1280, 800)
    page.quiet('when small')


def words(page):
    """No name that only the library knows."""
    page.open()
    texts = []
    for _ in page.positions():
        page.tab.press('ArrowRight')
        texts += page.texts('#card') + page.texts('.item.current title')
    found = {x for t in texts for x in re.findall(r'saved \d|\b[a-z]_[a-z]{2}\b', t)}
    check(f'{page.name}: no "saved 0", no "y_no"', not found, found)


def bias(page):
    """In front of a batch norm it is no alarm, and the reason is told."""
    page.open()
    told = page.texts('.findings li')
    check('cnn: two biases have no effect', len(told) == 2 and all('subtracts the mean of each channel' in t for t in told), told)
    check('cnn: which is no alarm', page.count('.findings .alarm') == page.count('.badge.finding') == 0)


def symbols(page):
    """Each letter of a formula has its number."""
    page.open()
    want = {'softplus': '1.5', 'clamp': '(−3)', 'leaky_relu': '0.125', 'elu': '0.75', 'mul_scalar': '2.5', 'pow_scalar': '3', 'mean': '2'}
    for node in page.traces[0]['steps'][0]['nodes']:
        page.tab.press('ArrowRight')
        line = page.texts('#card .formula.with')[-1]
        left = set(re.findall('[A-Za-z]+', line)) - {'ln', 'e', 'min', 'max', 'sum'}
        check(f'symbols: all of {node["op"]}', not left and want.pop(node['op']) in line, line)
    check('symbols: all ops', not want, want)


def pictures(page):
    """The elements are their own index, so what the mouse reads tells its place."""
    tab, ids = page.tab, {t['name']: t for t in page.traces[0]['tensors']}
    for name in ('image', 'attention', 'matrix'):
        shape = ids[name]['shape']
        page.open(f"#step=0&at={ids[name]['id']}")
        width, height = tab.js("(() => { const c = document.querySelector('#card canvas'); return [c.width, c.height] })()")
        ink = tab.js("""(() => { const c = document.querySelector('#card canvas');
            return Math.max(...c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((_, i) => i % 4 === 3)) })()""")
        check(f'pictures: {name} is drawn', ink > 200 and width * height <= 900, (ink, width, height))
        for across, down in ((0.01, 0.01), (0.3, 0.6), (0.99, 0.99)):
            tab.hover('#card canvas', across, down)
            told = re.fullmatch(r'.*?\[([\d,]+)\] = ([\d.e]+)', page.text('#card .told') or '')
            place = 0
            for n, k in zip(shape, map(int, told[1].split(',') if told else [])):
                place = place * n + k
            inside = told and all(int(k) < n for n, k in zip(shape, told[1].split(',')))
            check(f'pictures: the mouse reads {name}', inside and abs(float(told[2]) - place) <= 6e-3 * place and
                  (place > 0) == (across > 0.1), page.text('#card .told'))
        tab.js("document.querySelector('#card canvas').focus()")
        before = page.text('#card .told')
        tab.press('ArrowLeft')
        check(f'pictures: so do the arrow keys, of {name}', page.text('#card .told') != before and 'step=0' in tab.js('location.hash'), before)
    page.open(f"#step=0&at={ids['vector']['id']}")
    bars = [int(x.split(' ')[1]) for x in tab.js("[...document.querySelector('#card .histogram').querySelectorAll('td')].map((e) => e.title)")]
    check('pictures: 1200 equal steps in 24 equal parts', bars == [50] * 24, bars)
    tab.hover('#card .histogram td:nth-child(3)')
    check('pictures: the mouse reads a bar', page.text('#card .told').endswith('50 elements from 99.9 to 150'), page.text('#card .told'))
    page.quiet('with pictures')


def in_firefox(folder):
    """The same page in Firefox, where there is one: drawn and played by keys, without overflow, to be read in light and
    dark; Tab reaches all; nothing is complained of. Passed and failed."""
    CHECKED.update(passed=0, failed=0)
    if not firefox.program():
        print('Firefox: there is none, nothing checked')
        return dict(CHECKED)
    other = firefox.Firefox(firefox.program())
    dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] < 80"
    try:
        for name in ('mlp', 'cnn', 'transformer', 'pictures'):
            for width, height in ((1280, 886), (800, 686)):
                other.open(f'file://{folder}/{name}.html', width, height)
                drawn = f'(async () => {{ {DRAWN.strip()[len("(async () => {"):-len("})()")]}; return document.querySelectorAll(".item").length }})()'
                check(f'Firefox: {name} is drawn at {width}', other.js(drawn) > 2)
                other.press('ArrowRight', 2)
                where = other.js("document.getElementById('where').textContent")
                check(f'Firefox: {name} plays', 'forward 2 of' in where, where)
                wide = other.js('document.documentElement.scrollWidth - innerWidth')
                check(f'Firefox: {name} fits {width}', wide <= 0, wide)
                schemes = set()
                for _ in range(2):
                    schemes.add(other.js(dark))
                    poor = other.js(CONTRAST)
                    check(f'Firefox: {name}, contrast of at least 4.5 at {width}', not poor, poor[:4])
                    other.press('d')
                check(f'Firefox: {name}, d switches', len(schemes) == 2)
            seen = set()
            for _ in range(60):
                other.press('Tab')
                seen.add(other.js('document.activeElement.id || document.activeElement.dataset.key || ""'))
            check(f'Firefox: Tab reaches all of {name}', {'search', 'predict', 'theme', 'play', 'slider', 'fold'} <= seen, seen)
        said = other.complaints()
        check('Firefox complains of nothing', not said, said[:3])
    finally:
        other.close()
    return dict(CHECKED)


def large(page):
    """5,000 ops: opened soon, walked, searched, unfolded."""
    tab, trace = page.tab, page.traces[0]
    nodes = len(trace['steps'][0]['nodes'])
    check(f'{page.name}: 5,000 ops', nodes >= 5000, nodes)
    check(f'{page.name}: below 10 MB', page.bytes < MOST_BYTES, page.bytes)
    opened = math.inf
    for _ in range(8): # on a busy machine the fastest says most about the page
        page.open()
        opened = min(opened, tab.js("performance.getEntriesByName('drawn')[0].startTime"))
        if opened < OPEN_MS / 2:
            break
    check(f'{page.name}: opened within 2 s', opened <= OPEN_MS, f'{opened:.0f} ms')
    timed = lambda code: tab.js(f'(() => {{ const t = performance.now(); {code}; return performance.now() - t }})()')
    key = lambda name: f'document.body.dispatchEvent(new KeyboardEvent("keydown", {{ key: "{name}", bubbles: true }}))'
    stepped = 100
    for _ in range(3):
        tab.js(key('Home'))
        stepped = min(stepped, timed(';'.join([key('ArrowRight')] * 10)) / 10)
        check(f'{page.name}: forward 10', 'forward 10 of' in page.where(), page.where())
        if stepped < 50:
            break
    check(f'{page.name}: a step in a tenth of a second', stepped < 100, f'{stepped:.0f} ms')
    unfolded = min(timed("document.getElementById('unfold').click()") for _ in range(2))
    check(f'{page.name}: all unfolded within 3 s', unfolded < UNFOLD_MS, f'{unfolded:.0f} ms')
    check(f'{page.name}: draws what is in view only', 0 < page.count('.item') < 400, page.count('.item'))
    tab.press('End')
    middle = trace['steps'][0]['nodes'][nodes // 2]
    tab.press('/')
    tab.write(f'#{middle["id"]}')
    tab.press('Enter')
    check(f'{page.name}: finds an op in the middle', page.count(f'.item.chosen[data-key=n{middle["id"]}]') == 1,
          page.text('#card h2'))
    print(f'{page.name}: {nodes} ops, {page.bytes / 1e6:.1f} MB, opened in {opened:.0f} ms, a step in {stepped:.1f} ms, '
          f'all unfolded in {unfolded:.0f} ms')
    page.quiet('with 5,000 ops')


SCENES = (unpacking, opening, walk, keys, folding, searching, predicting, tabbing, small, words, looks)
# What each of two browsers does; the large pages, which are timed, come after them.
SHARES = ({'transformer': SCENES, 'dead': (unpacking, walk), 'reused': (opened, crossing), 'nonfinite': (unpacking, walk), 'kinds': (unpacking, walk, kinds), 'pictures': (unpacking, pictures)},
          {'mlp': SCENES, 'cnn': SCENES + (bias,), 'symbols': (unpacking, symbols), 'modes': (unpacking, modes), 'same': (unpacking, same), 'apart': (unpacking, apart),
           'hooked': (unpacking, walk, hooked, averaged), 'names': (unpacking, walk, names), 'nothing': (unpacking, nothing)})
LARGE = {'deep': (large,), 'flat': (unpacking, large), 'long': (unpacking, long_pair)}


def visit(folder, share):
    """The scenes of a share, in a browser of their own; how many checks passed and failed."""
    CHECKED.update(passed=0, failed=0)
    tab = browser.Browser(browser.program())
    try:
        tab.window(1280, 800)
        tab.media(prefers_color_scheme='light')
        for name, scenes in share.items():
            page = Page(tab, folder, name)
            for scene in scenes:
                scene(page)
    finally:
        tab.close()
    return dict(CHECKED)


def main():
    if not browser.program():
        print('skipped: there is no Chromium')
        return 77
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1] == '--pages':
            folder = sys.argv[2]
        else:
            subprocess.run([sys.argv[1], folder], check=True)
        with concurrent.futures.ProcessPoolExecutor(2) as pool:
            done = list(pool.map(visit, [folder] * len(SHARES), SHARES))
        done.append(visit(folder, LARGE))
        done.append(in_firefox(os.path.abspath(folder)))
    passed, failed = (sum(d[k] for d in done) for k in ('passed', 'failed'))
    print(f'{passed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
