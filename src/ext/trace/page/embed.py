#!/usr/bin/env python3
"""Packs a page into one file: its HTML with styles, scripts and data; or into a C file (html.c).

usage: embed.py OUTPUT PAGE.html [FILE.css | FILE.js | NAME=FILE]...
The HTML marks the places that are filled by names in double braces: style and script are the files in their order, NAME
is a script of its own (.js) or a file's bytes in base64. Marks left to html.c become the characters 1, 2 and 3.
"""
import base64
import sys


def read(path):
    with open(path, 'rb') as file:
        data = file.read()
    if not path.endswith(('.css', '.html', '.js')):
        return base64.b64encode(data).decode()
    text = data.decode().strip()
    if path.endswith('.js') and any(word in text.lower() for word in ('</script', '</style', '<!--')):
        sys.exit(f'embed.py: {path} holds what would end a script early')
    return text


def as_c(page):
    data = page.encode() + b'\0'
    rows = [','.join(map(str, data[i:i + 24])) for i in range(0, len(data), 24)]
    return '/* Made by embed.py. */\n#include "ext/trace/words.h"\n\nconst unsigned char tni_page[] = {\n' + ',\n'.join(rows) + '\n};'


def main(output, html, *files):
    parts = {}
    for name, _, path in (file.rpartition('=') for file in files):
        parts.setdefault(name or ('style' if path.endswith('.css') else 'script'), []).append(read(path))
    page = read(html)
    for name, texts in parts.items():
        page = page.replace('{{%s}}' % name, '\n'.join(texts))
    for i, name in enumerate(('title', 'static', 'traces')):
        page = page.replace('{{%s}}' % name, chr(1 + i))
    with open(output, 'w', encoding='utf-8') as file:
        file.write((as_c(page) if output.endswith('.c') else page) + '\n')


if __name__ == '__main__':
    main(*sys.argv[1:])
