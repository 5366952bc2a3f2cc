#!/usr/bin/env python3
"""Packs the page into a C file: page.html with its style and scripts, as one text (html.c).

usage: embed.py OUTPUT.c page.html page.css FILE.js...
page.html marks the places that are filled by names in double braces. Those that are left to html.c become the
characters 1, 2 and 3.
"""
import sys


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def main(output, html, css, *scripts):
    code = '\n'.join(read(js).strip() for js in scripts)
    for word in ('</script', '</style', '<!--'):
        if word in code.lower():
            sys.exit(f'embed.py: the scripts hold "{word}", which would end them early')
    page = read(html).replace('{{style}}', read(css).strip()).replace('{{script}}', code)
    for i, name in enumerate(('title', 'static', 'traces')):
        page = page.replace('{{%s}}' % name, chr(1 + i))
    data = page.encode() + b'\0'
    rows = [','.join(map(str, data[i:i + 24])) for i in range(0, len(data), 24)]
    with open(output, 'w', encoding='utf-8') as file:
        file.write('/* Made by embed.py. */\n#include "ext/trace/words.h"\n\nconst unsigned char tni_page[] = {\n')
        file.write(',\n'.join(rows) + '\n};\n')


if __name__ == '__main__':
    main(*sys.argv[1:])
