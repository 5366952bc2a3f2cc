#!/usr/bin/env python3
"""Writes the manual pages: one for each public name, one for each group of them, and tenon(3), which lists the groups.

Doxygen's own have one page per group and the group's title for a summary; whoever types "man tn_linear" wants that
function. The text is that of the headers, read by headers.py.
usage: man.py FOLDER     (writes FOLDER/man3/NAME.3)
"""

import re
import sys
import textwrap
from pathlib import Path

import headers

VERSION = re.search(r'TN_VERSION "(.*)"', (headers.INCLUDE / "tensor.h").read_text())[1]


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def marked(text, names, own):
    """text with `code` and public names in bold; the names are added to a set."""
    result = ""
    for i, part in enumerate(text.split("`")):
        for word in re.split(r"(\b[tT][nN]_\w+\b)", part):
            known = word in NAMES and word != own
            if known:
                names.add(word)
            result += f"\\fB{escape(word)}\\fR" if word and (i % 2 or known) else escape(word)
    return result


def body(blocks, names, own=""):
    lines = []
    for kind, *rest in blocks:
        if kind == "code":
            lines += [".PP", ".RS 4", ".nf", *(escape(line) for line in rest[0]), ".fi", ".RE"]
        elif kind == "label":
            lines += [".TP 10", f".B {escape(rest[0])}", marked(rest[1], names, own)]
        else:
            lines += [".IP \\(bu 2" if kind == "item" else ".PP", marked(rest[0], names, own)]
    return lines


def synopsis(d):
    """The declaration as a C programmer writes it, in lines of at most 76 columns."""
    if d.fields:
        end = ";" if d.kind == "struct" else ","
        lines = [d.code[:d.code.index("{")] + "{"]
        for code, comment in d.fields:
            text = " ".join(comment)
            lines += textwrap.wrap(f"/* {text} */", 72, initial_indent="    ", subsequent_indent="     * ") if text else []
            lines += ["    " + code + end]
        return lines + [d.code[d.code.rindex("}"):] + ";"]
    if d.kind == "macro":
        code = re.sub(r"^#define ", "", d.code)
        head = re.match(r"\w+(\([^)]*\))?", code)[0]
        return ["#define " + code if len(d.code.split("\n")) == 1 and len(d.code) < 76 else "#define " + head]
    head, _, rest = (d.code + ";").partition("(")
    if len(head) + len(rest) < 76:
        return [d.code + ";"]
    return textwrap.wrap(f"{head}({rest}", 76, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def page(name, summary, sections, see):
    """A page; sections are (title, lines)."""
    lines = [f'.TH "{name}" 3 "" "tenon {VERSION}" "tenon"', ".nh", ".ad l", ".SH NAME", f"{name} \\- {escape(summary)}"]
    for title, text in sections:
        lines += [f".SH {title}", *text] if text else []
    if see:
        lines += [".SH SEE ALSO", ",\n".join(f".BR {word} (3)" for word in see).replace("(3),\n", "(3),\n")]
    return "\n".join(lines) + "\n"


def write(folder):
    """All pages into folder/man3, and nothing else there."""
    folder = Path(folder) / "man3"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.3"):
        old.unlink()
    index = []
    for path in headers.headers()[1:]:
        about, groups = headers.read(path)
        stem = "tenon_" + path.name.removesuffix(".h")
        first = about[0].split(" - ", 1)[1]
        index += [".TP", f".BR {stem} (3)", escape(first)]
        own_groups = []
        for group in groups:
            names = set()
            text = ([".PP", marked(group.note, names, "")] if group.note else []) + \
                body(headers.blocks(group.comment), names)
            title = "tenon_" + group.id
            members = [d for d in group.declarations if d.name]
            for d in members:
                write_one(folder, d, title, group, text)
            listed = [line for d in members for line in (".TP", f".BR {d.name} (3)", escape(summary_of(d)))]
            if group.title:
                own_groups += [".TP", f".BR {title} (3)", escape(group.title)]
                (folder / f"{title}.3").write_text(page(
                    title, group.title.lower() if group.title[1:2].islower() else group.title,
                    [("DESCRIPTION", text), ("FUNCTIONS AND TYPES", listed)], [stem]))
            else:
                own_groups += listed
        names = set()
        rest = body(headers.blocks(about[1:]), names)
        (folder / f"{stem}.3").write_text(page(
            stem, first.rstrip("."), [("SYNOPSIS", [f"#include <tenon/{path.name}>"]), ("DESCRIPTION", rest),
                                      ("CONTENTS", own_groups)], ["tenon"]))
    about, _ = headers.read(headers.headers()[0])
    (folder / "tenon.3").write_text(page(
        "tenon", "deep learning in C: tensors, gradients, modules, optimizers",
        [("SYNOPSIS", ["#include <tenon/tenon.h>", ".PP", ".nf", "cc mine.c $(pkg\\-config \\-\\-cflags \\-\\-libs tenon)",
                       ".fi"]), ("CONTENTS", index), ("DESCRIPTION", body(headers.blocks(about[1:]), set()))], []))


def summary_of(d):
    return headers.brief(d.comment, d.name)[0].rstrip(".:")


def write_one(folder, d, group_page, group, group_text):
    """The page of one name."""
    names = set()
    first, rest = headers.brief(d.comment, d.name)
    text = body([("text", first), *rest], names, d.name)
    shown = [".nf", "#include <tenon/tenon.h>", "", *(escape(line) for line in synopsis(d)), ".fi"]
    (folder / f"{d.name}.3").write_text(page(
        d.name, summary_of(d),
        [("SYNOPSIS", shown), ("DESCRIPTION", text),
         (f'"{group.title.upper()}"' if group_text else "", group_text)],
        [*dict.fromkeys([group_page, "tenon_" + group.header.removesuffix(".h")]), *sorted(names - {d.name})]))


NAMES = {d.name for path in headers.headers() for g in headers.read(path)[1] for d in g.declarations if d.name}

if __name__ == "__main__":
    write(sys.argv[1])
