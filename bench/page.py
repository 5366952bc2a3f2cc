#!/usr/bin/env python3
"""The live page's engine beside a net of objects in JavaScript (playground.js), in one browser, turn about.

usage: bench/page.py [build-page/live.html]

Prints for each net the microseconds of a step, the median of five turns of each, and their ratio; then how long the
digits' net takes to 97 % of its test set.
"""
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'tests', 'trace'))
import browser  # noqa: E402

NETS = (8, 10), (64, 128)  # width of the two hidden layers, batch
DIGITS = ('data digits', 'seed 1', 'batch 32', 'model', 'layer conv 8', 'layer batch_norm', 'layer relu', 'layer pool',
          'layer conv 16', 'layer batch_norm', 'layer relu', 'layer flatten', 'build', 'optimizer adam 0.003')


def main():
    page = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, '..', 'build-page', 'live.html'))
    if not browser.program() or not os.path.exists(page):
        sys.exit(f'page.py: want chromium and {page} (scripts/page makes it)')
    tab = browser.Browser(browser.program(), patience=300)
    tab.open('file://' + page)
    while not tab.js('performance.getEntriesByName("ready").length'):
        pass
    with open(os.path.join(HERE, 'playground.js'), encoding='utf-8') as script:
        tab.js('window.nets = (() => {' + script.read() + '; return { playground, engine }; })(); "loaded"')
    tab.js(ENGINE)
    for width, batch in NETS:
        ours, theirs = [], []
        for _ in range(5):
            ours.append(tab.js(f'nets.engine(bench_live, {width}, {batch})'))
            theirs.append(tab.js(f'nets.playground([2, {width}, {width}, 1], {batch})'))
        our, their = statistics.median(ours), statistics.median(theirs)
        print(f'2-{width}-{width}-1, batch {batch}: {our:.1f} us a step ({1e6 / our:.0f} a second), '
              f'by objects {their:.1f}: {their / our:.2f} times as many')
    for line in DIGITS:
        tab.js(f'bench_live.do("{line}")')
    for steps in range(50, 5001, 50):
        tab.js('bench_live.do("step 50"), bench_live.do("evaluate")')
        if tab.js('bench_live.number("test_accuracy")') >= 0.97:
            break
    accuracy, seconds = (tab.js(f'bench_live.number("{what}")') for what in ('test_accuracy', 'seconds'))
    print(f'digits: {accuracy:.4f} of the test set after {steps} steps, {seconds:.2f} s of training')
    tab.close()


ENGINE = '''window.bench_live = { number: what => engine.number(what), do: line => {
  const wrong = tell(line); if (wrong) throw Error(line + ': ' + wrong); } }; "made"'''

if __name__ == '__main__':
    main()
