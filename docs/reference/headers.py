"""Reads tenon's public headers: their groups, declarations and comments.

The headers are written to be read as they are, with six habits that this file knows:
  - the first comment is about the file, "tenon/graph.h - the tape ...";
  - a rule, /* ---- reductions ---- */, begins a group; a comment right below it is about the group;
  - a comment before a declaration, or behind it on its last line, is about that declaration;
  - in a comment, "Errors   no such name" is a label with its text, aligned over several lines;
  - a declaration with the comment /* of module.h */ is another header's, needed here;
  - in a comment, lines indented by four are code, and lines that begin with "  - " are a list.
read() gives what is there as objects, in order; blocks() takes one comment apart.
"""

import re
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include" / "tenon"
# For the library's own use, or for compilers: they stand in the headers, but nobody calls them.
HIDDEN = re.compile(r"^TN_(API|PRINTF|MUST_USE|WHEN_LEFT|AT_END|LIST_OF)$|^TENON_|_object$|^TN_\w+_$|^tn_module_state$")


class Declaration:
    """A function, macro, struct, enum or typedef, with its comment as lines of text."""

    def __init__(self, kind, name, code, comment, fields=()):
        self.kind, self.name, self.code, self.comment = kind, name, code, comment
        self.fields = fields  # of a struct or enum: (code, comment) each


def split_title(text):
    """A title and the rest: "creation: f32 on the CPU", "elementwise, one tensor (integers ...)"."""
    title, _, note = (re.split(r"(: |[.] | (?=\())", text, maxsplit=1) + ["", ""])[:3]
    return title[:1].upper() + title[1:].rstrip("."), re.sub(r"^\((.*)\)$", r"\1", note)


class Group:
    """What stands below one rule, or in one file before its first rule."""

    def __init__(self, header, rule, comment):
        self.header, self.comment, self.declarations = header, comment, []
        self.title, self.note = split_title(rule)

    @property
    def id(self):
        stem = self.header.removesuffix(".h")
        return stem + ("_" + re.sub(r"\W+", "_", self.title.lower()).strip("_") if self.title else "")


def headers():
    """The headers' paths in the order in which tenon.h includes them, tenon.h first."""
    order = re.findall(r"#include <tenon/(\w+\.h)>", (INCLUDE / "tenon.h").read_text())
    return [INCLUDE / name for name in ["tenon.h", *order]]


def text_of(comment):
    """The lines of a comment without its marks."""
    body = re.sub(r"^/\*\*?<? ?|\s*\*/$", "", comment.strip())
    lines = [re.sub(r"^\s*\*? ?", "", line) if i else line for i, line in enumerate(body.split("\n"))]
    # " *  text" under "/** text": one more space, to stand below the first line's text
    if comment.lstrip().startswith("/**") and body[:1] not in ("", "\n"):
        lines = [re.sub(r"^ (?=\S)", "", line) for line in lines]
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]


def without_cxx(source):
    """The source as a C compiler sees it: parts for C++ alone are left out."""
    kept, stack = [], []
    for line in source.split("\n"):
        if re.match(r"#\s*if", line):
            stack.append("c++" if "__cplusplus" in line else "other")
        elif re.match(r"#\s*else", line):
            stack[-1] = {"c++": "c", "other": "dead"}.get(stack[-1], stack[-1])
        elif re.match(r"#\s*endif", line):
            stack.pop()
        elif not {"c++", "dead"} & set(stack) and line not in ("TN_BEGIN_C_", "TN_END_C_"):
            kept.append(line)
    return "\n".join(kept)


TOKEN = re.compile(r"""
    (?P<rule>/\*\ ----\ (?P<title>.*?)\ -+\ \*/\n)
  | (?P<comment>/\*.*?\*/)
  | (?P<macro>\#define(?:[^\n]*\\\n)*[^\n]*)
  | (?P<directive>\#[^\n]*)
  | (?P<inline>static\ inline.*?\n\}\n)
  | (?P<code>[A-Za-z](?:[^;{/]|/(?!\*))*(?:\{.*?\n?\}[^;]*)?;)(?P<behind>[ \t]*/\*[^\n]*?\*/(?=[ \t]*\n))?
  | (?P<blank>\n[ \t]*\n)
  | (?P<space>\s)
""", re.X | re.S)


def fields_of(code):
    """The members of a struct or enum: (code, comment), comments before and behind them joined."""
    body = code[code.index("{") + 1:code.rindex("}")]
    end = ";" if re.match(r"(typedef )?struct", code) else ","
    found, before, rest = [], [], body.strip()
    while rest:
        if rest.startswith("/*"):
            comment, rest = rest.split("*/", 1)
            before += text_of(comment + "*/")
        else:
            # up to the member's end; commas in parentheses belong to it
            one = re.match(r"(?:[^();,/]|\([^()]*\)|/(?!\*)" + ("|," if end == ";" else "") + ")+", rest).group()
            rest = rest[len(one):].removeprefix(end)
            behind = re.match(r"[ \t]*(/\*[^\n]*?\*/)(?=\n|$)", rest)
            comment = before + (text_of(behind.group(1)) if behind else [])
            rest, before = rest[behind.end() if behind else 0:], []
            found.append((" ".join(one.split()), comment))
        rest = rest.strip(" \n") if not rest.startswith(" /*") else rest
        rest = rest.lstrip()
    return found


def declaration(code, comment):
    code = re.sub(r"\bTN_(API|MUST_USE) ", "", code.strip()).removesuffix(";")
    code = re.sub(r"\s*TN_PRINTF\(\d, \d\)", "", code)
    if kind := re.match(r"(?:typedef )?(struct|enum)\b[^({;]*\{", code):
        name = re.search(r"\}\s*(\w*)$", code).group(1) or (re.match(r"struct (\w+)", code) or ["", ""])[1]
        return Declaration(kind.group(1), name, code, comment, fields_of(code))
    flat = " ".join(code.split())
    if flat.startswith("typedef"):
        name = (re.search(r"\(\*(\w+)\)\(", flat) or re.search(r"(\w+)$", flat)).group(1)
        return Declaration("typedef", name, flat, comment)
    if "(" in flat:
        return Declaration("function", re.search(r"(\w+)\(", flat).group(1), flat, comment)
    return Declaration("object", re.search(r"(\w+)$", flat).group(1), flat, comment)


def read(path):
    """(the file's comment, its groups) of one header."""
    source = without_cxx(path.read_text())
    about, groups, pending, fresh = None, [Group(path.name, "", [])], None, True
    position = 0
    while match := TOKEN.match(source, position):
        position, kind, text = match.end(), match.lastgroup, match.group()
        kind = "code" if kind == "behind" else "rule" if kind == "title" else kind
        if kind == "rule":
            groups.append(Group(path.name, match["title"], []))
            pending, fresh = None, True
        elif kind == "comment":
            if about is None:
                about = text_of(text)
                end = about.index("") if "" in about else len(about)  # the first paragraph: name and title
                about = [" ".join(about[:end]), *about[end:]]
            else:
                pending = (pending or []) + text_of(text) if pending is None else text_of(text)
        elif kind == "blank":
            if pending is not None and fresh:  # it stood alone, below the rule
                groups[-1].comment += ([""] if groups[-1].comment else []) + pending
            elif pending is not None:
                print(f"{path.name}: a comment belongs to nothing: {pending[0]}")
            pending = None
        elif kind in ("macro", "code"):
            if kind == "macro":
                name = re.match(r"#define (\w+)", text).group(1)
                item = Declaration("macro", name, text, pending or [])
                behind = re.search(r"/\*.*?\*/\s*$", text)
                if behind:
                    item.code, item.comment = text[:behind.start()].rstrip(), item.comment + text_of(behind.group())
            else:
                behind = text_of(match["behind"]) if match["behind"] else []
                item = declaration(match["code"], (pending or []) + behind)
            if not HIDDEN.search(item.name) and not re.fullmatch(r"of \w+\.h", " ".join(item.comment)):
                groups[-1].declarations.append(item)
                fresh = False
            if item.kind != "object":  # its comment is about the macro that takes its address
                pending = None
        elif kind in ("directive", "inline"):
            pending = None if kind == "inline" else pending
    if source[position:].strip():
        raise SystemExit(f"{path.name}: cannot be read from: {source[position:position + 80]!r}")
    forward = {d.name for g in groups for d in g.declarations if d.kind == "struct"}
    for group in groups:  # "typedef struct x x;" of a struct that is defined further down
        group.declarations = [d for d in group.declarations if d.kind != "typedef" or d.name not in forward]
    return about, [g for g in groups if g.declarations or g.comment]


LABEL = re.compile(r"(?P<indent> {0,3})(?P<name>[A-Za-z_]\S*(?: \S+)?)  +(?P<text>\S.*)")
SENTENCE = re.compile(r"(?<=[.;)] )(Errors|Owner|Source|Returns|Shapes|PyTorch): ")
END = re.compile(r"(?<!\beq)(?<!\bal)(?<!\bsec)(?<!e\.g)(?<!i\.e)[.](?= +[A-Z(\"`]|$)")


def blocks(lines):
    """A comment's parts: ("text", str), ("label", name, str), ("item", str), ("code", [lines])."""
    found, gap = [], True
    for line in lines:
        indent = len(line) - len(line.lstrip())
        last = found[-1] if found else None
        label = LABEL.fullmatch(line)
        if not line.strip():
            gap = True
            if last and last[0] == "code":
                last[1].append("")
            continue
        if indent >= 4 and (last and last[0] == "code" or gap and not (last and last[0] == "label")):
            if last and last[0] == "code":
                last[1].append(line[4:])
            else:
                found.append(["code", [line[4:]]])
        elif label:
            found.append(["label", label["name"], label["text"]])
        elif line.lstrip().startswith("- "):
            found.append(["item", line.lstrip()[2:]])
        elif last and not gap and last[0] != "code" and (indent or last[0] == "text"):
            last[-1] += " " + line.strip()
        else:
            found.append(["text", line.strip()])
        gap = False
    return [tuple(part) for block in found for part in split_labels(block)]


def split_labels(block):
    """The same block, with "Errors: ..." in the middle of its text as a label of its own."""
    if block[0] not in ("text", "label"):
        if block[0] == "code":
            while not block[1][-1]:
                block[1].pop()
        return [block]
    parts = SENTENCE.split(re.sub(r" {3,}", "; ", block[-1]))  # "db = A^T dc            keeps a, b"
    head = parts[0].strip()
    result = [[*block[:-1], head]] if head else []
    return result + [["label", parts[i], parts[i + 1].strip()] for i in range(1, len(parts), 2)]


def brief(lines, name=""):
    """(the first sentence, the blocks that follow it)."""
    parts = blocks(lines)
    if not parts or parts[0][0] != "text":
        return "", parts
    text = parts[0][1]
    text = re.sub(rf"^{name}(\([^)]*\))?( \{{ \.\.\. \}})?: ", "", text) if name.isupper() else text
    end = END.search(text)
    first, rest = (text[:end.end()], text[end.end():].strip()) if end else (text, "")
    return first, ([("text", rest)] if rest else []) + parts[1:]
