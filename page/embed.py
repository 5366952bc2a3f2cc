#!/usr/bin/env python3
"""Packs the live page into one file: styles, scripts, the engine (WebAssembly within its JavaScript) and the data.

usage: embed.py --engine live.js --digits digits.bin --text kjv.txt --out live.html
"""
import argparse
import base64
import os

HERE = os.path.dirname(os.path.abspath(__file__))
RECORDED = os.path.join(HERE, '..', 'src', 'ext', 'trace', 'page')
OWN = ('engine', 'lessons', 'pictures', 'curves', 'layers', 'inputs', 'slow', 'player', 'knobs', 'app')
SCRIPTS = [os.path.join(RECORDED, 'elements.js')] + [os.path.join(HERE, name + '.js') for name in OWN]


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read().strip()


def coded(path):
    """A file's bytes in base64."""
    with open(path, 'rb') as file:
        return base64.b64encode(file.read()).decode()


def style():
    """The colours, buttons and words of the recorded page, and what is the live page's own."""
    shared, mark, _ = read(os.path.join(RECORDED, 'page.css')).partition('/* ---- above the graph')
    if not mark:
        raise SystemExit('embed.py: page.css has no part "above the graph"')
    return shared + read(os.path.join(HERE, 'live.css'))


def main():
    parser = argparse.ArgumentParser()
    for name in ('engine', 'digits', 'text', 'out'):
        parser.add_argument('--' + name, required=True)
    given = parser.parse_args()
    parts = {'style': style(), 'script': '\n'.join(read(path) for path in SCRIPTS),
             'engine': read(given.engine), 'digits': coded(given.digits), 'text': coded(given.text)}
    for name in ('script', 'engine'):
        if any(word in parts[name].lower() for word in ('</script', '<!--')):
            raise SystemExit(f'embed.py: {name} holds what would end a script early')
    page = read(os.path.join(HERE, 'live.html'))
    for name, part in parts.items():
        page = page.replace('{{%s}}' % name, part)
    with open(given.out, 'w', encoding='utf-8') as file:
        file.write(page + '\n')


if __name__ == '__main__':
    main()
