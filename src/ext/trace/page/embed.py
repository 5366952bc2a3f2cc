#!/usr/bin/env python3
"""Packs the page into a C file: the parts of page.html between the places that html.c fills.

usage: embed.py OUTPUT.c page.html page.css FILE.js...
page.html marks the places by names in double braces; style and script are filled here, the others
(title, static, traces) are left to html.c, as an array of parts: text and the place that follows.
"""
import re
import sys


def whole_page(html, css, scripts):
    """The page as one text, with the places that are left to html.c still in it."""
    page = open(html, encoding='utf-8').read()
    page = page.replace('{{style}}', open(css, encoding='utf-8').read().strip())
    code = '\n'.join(open(js, encoding='utf-8').read().strip() for js in scripts)
    for word in ('</script', '</style', '<!--'):
        if word in code.lower():
            sys.exit(f'embed.py: the scripts hold "{word}", which would end them early')
    return page.replace('{{script}}', code)


def rows(data):
    """Bytes as lines of numbers."""
    return '\n'.join('    ' + ','.join(map(str, data[i:i + 24])) + ',' for i in range(0, len(data), 24))


def main(output, html, css, *scripts):
    pieces = re.split(r'\{\{(title|static|traces)\}\}', whole_page(html, css, scripts))
    out = ['/* Made by embed.py from page.html, page.css and the scripts. */',
           '#include "ext/trace/page.h"', '']
    table = []
    for i in range(0, len(pieces), 2):
        data = pieces[i].encode()
        place = pieces[i + 1].upper() if i + 1 < len(pieces) else 'END'
        out += [f'static const unsigned char part{i // 2}[] = {{', rows(data), '};', '']
        table.append(f'    {{ (const char *)part{i // 2}, {len(data)}, TNI_PAGE_{place} }},')
    out += ['const tni_page_part tni_page_parts[] = {', *table, '};', '']
    open(output, 'w', encoding='utf-8').write('\n'.join(out))


if __name__ == '__main__':
    main(*sys.argv[1:])
