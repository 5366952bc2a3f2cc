#!/usr/bin/env python3
"""One of tenon's headers, or a page of docs/, as Doxygen wants to read it: Doxygen's INPUT_FILTER.

Headers are read by headers.py and written anew: a group for each file and one for each rule in it, Doxygen's
comments, links at every public name. The headers themselves stay free of Doxygen's commands. tenon.h, which declares
nothing, becomes the main page. In pages of docs/ the public names inside `code` become links.
usage: filter.py FILE
"""

import re
import sys
from pathlib import Path

import headers

DECLARED = [d for path in headers.headers() for g in headers.read(path)[1] for d in g.declarations]
NAMES = {d.name for d in DECLARED} | {v.split()[0] for d in DECLARED if d.kind == "enum" for v, _ in d.fields}
FILES = {path.name for path in headers.headers()[1:]}
WORD = re.compile(r"\b(?:(?:tenon/)?(\w+\.h)|[tT][nN]_\w+)\b")


def link(text, own=""):
    """text, escaped, with public names and headers as links; own is the name that is being described."""
    result, end = "", 0
    for match in WORD.finditer(text):
        word = match.group()
        if word == own or word not in NAMES and match[1] not in FILES:
            continue
        target = match[1].removesuffix(".h") if match[1] else word
        result += escape(text[end:match.start()]) + f'@ref {target} "{word}"'
        end = match.end()
    return result + escape(text[end:])


def escape(text):
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return re.sub(r"([\\@#%*`~]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def prose(text, own=""):
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return link(text, own)
    return "".join(f"<code>{link(p, own)}</code>" if i % 2 else link(p, own) for i, p in enumerate(parts))


def body(blocks, own=""):
    lines = []
    for kind, *rest in blocks:
        if kind == "text":
            lines += [prose(rest[0], own), ""]
        elif kind == "label":
            lines += [f"@par {escape(rest[0])}", prose(rest[1], own), ""]
        elif kind == "item":
            lines += ["- " + prose(rest[0], own), ""]
        elif any(c in "\n".join(rest[0]) for c in ";{"):
            lines += ["@code{.c}", *rest[0], "@endcode", ""]
        else:
            lines += ["@verbatim", *rest[0], "@endverbatim", ""]
    return lines


def comment(lines, name=""):
    """A Doxygen comment from a comment's lines."""
    first, rest = headers.brief(lines, name)
    text = ["@brief " + prose(first, name), "", *body(rest, name)]
    return "/**\n" + "\n".join(text).rstrip() + "\n*/"


def singly(code):
    """["double eps", "double atol"] of "double eps, atol": Doxygen gives the comment to the first one alone."""
    name = r"\**\w+(?:\[\w+\])*"
    several = re.fullmatch(rf"(.+?) ({name}(?:, {name})+)", code)
    return [f"{several[1]} {one}" for one in several[2].split(", ")] if several else [code]


def struct(d):
    """A struct or enum, with a comment before each member."""
    end = ";" if d.kind == "struct" else ","
    members = "\n".join((comment(text) + "\n" if text else "") + one + end for code, text in d.fields for one in singly(code))
    head, tail = d.code[:d.code.index("{")], d.code[d.code.rindex("}"):]
    return f"{head}{{\n{members}\n{tail};"


def header(path):
    about, groups = headers.read(path)
    title, note = headers.split_title(about[0].split(" - ", 1)[1])
    stem = path.name.removesuffix(".h")
    print(f"/** @defgroup {stem} {title} ({path.name})\n")
    print("\n".join(([link(note[:1].upper() + note[1:]), ""] if note else []) + body(headers.blocks(about[1:]))))
    print("@{ */")
    for group in groups:
        if group.title:
            print(f"/** @defgroup {group.id} {group.title}\n")
            print("\n".join(([link(group.note), ""] if group.note else []) +
                            body(headers.blocks(group.comment))))
            print("@{ */")
        elif group.comment:
            print("/** @addtogroup", stem, "\n", "\n".join(body(headers.blocks(group.comment))), "*/")
        for d in group.declarations:
            print(comment(d.comment, d.name))
            print(struct(d) if d.fields else d.code + ("" if d.kind == "macro" else ";"))
        if group.title:
            print("/** @} */")
    print("/** @} */")


def main_page(path):
    """What tenon.h says, behind a list of all groups."""
    print("/** @mainpage tenon\n\nThe public functions of tenon, group by group, from the comments in its headers. "
          "Search by name on top. @ref pytorch translates call by call; @ref printed shows what tenon prints.\n\n<dl>")
    for other in headers.headers()[1:]:
        about, groups = headers.read(other)
        stem = other.name.removesuffix(".h")
        print(f'<dt>@ref {stem}</dt><dd>')
        own = [d.name for g in groups if not g.title for d in g.declarations if d.kind in ("function", "macro")]
        print(", ".join([f'@ref {name} "{name}"' for name in own] +
                        [f'@ref {g.id} "{g.title}"' for g in groups if g.title]))
        print("</dd>")
    print("</dl>\n\n@section everything All of it: tenon.h\n")
    about, _ = headers.read(path)
    print("\n".join(body(headers.blocks(about[1:]))), "*/")


def page(path):
    """Markdown, with links at the public names in `code`."""
    fenced = False
    for line in path.read_text().split("\n"):
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith("#"):
            line = re.sub(r"`([^`]*)`", lambda m: f"<code>{link(m[1])}</code>" if WORD.search(m[1]) else m[0], line)
        print(re.sub(r"^```text$", "```", line))


if __name__ == "__main__":
    file = Path(sys.argv[1])
    page(file) if file.suffix == ".md" else main_page(file) if file.name == "tenon.h" else header(file)
