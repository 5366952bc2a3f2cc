#!/usr/bin/env python3
"""Writes rows for the public functions that have none in rows/*.def, from their prototypes.

usage: tests/fuzz_api/rows.py FOLDER      writes rows_made.def, kinds_made.def, options_made.def there

A row by hand says more: which tensor must be a matrix, which number positive. This one is for functions whose
arguments are drawn well by their types and usual names, as most ops, layers and optimizers are. An options struct
without a kind gets one: each number from 0 to 0.9, each flag.
Seen to fail: tn_odd(tn_tensor *x, FILE *f) in ops.h ends the build with "tn_odd: write a row in ...".
"""
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parents[1] / "docs" / "reference"))
import headers  # noqa: E402

GIVES = {"tn_tensor *": "tensor", "tn_module *": "module", "tn_optim *": "optim", "tn_scheduler *": "scheduler",
         "tn_list *": "list", "tn_status": "status"}
# The kind of an argument: by name and type, or by its type alone.
KINDS = {"axis int": "axis", "axes const int *": "axes", "n_axes int": "count", "double": "real",
         "eps double": "positive", "bool": "yes", "int64_t": "size", "tn_shape": "shape", "tn_dtype": "dtype",
         "tn_device": "device", "tn_reduction": "reduction", "tn_module *": "module",
         "parameters const tn_list *": "trained", "opt tn_optim *": "optim"}
DRAWN = {"double": "REAL({}, 0, 0.9)", "bool": "FLAG({})", "int": "LONG({}, 0, 2)", "int64_t": "LONG({}, 0, 2)"}


def argument(text, kinds, first, in_place):
    kind, name = re.match(r"(.*?)(\w*)$", text.strip()).groups()  # of an array or a callback none
    kind = kind.strip()
    if kind == "tn_tensor *":
        return "wide" if not first else "target" if in_place else "any"
    return KINDS.get(f"{name} {kind}") or KINDS.get(kind) or kinds.get(kind)


def row(code, kinds):
    result, name, arguments = re.fullmatch(r"(.*?)\s*\b(tn_\w+)\((.*)\)", code).groups()
    given = [] if arguments == "void" else arguments.split(",")
    drawn = [argument(a, kinds, i == 0, name.endswith("_")) for i, a in enumerate(given)]
    if result not in GIVES or None in drawn or len(drawn) > 9:
        sys.exit(f"{name}: write a row in tests/fuzz_api/rows/*.def: no kind fits {code}")
    return f"R{len(drawn)}({', '.join([GIVES[result], name, *drawn])})"


def options(struct):
    fields = []
    for code, _ in struct.fields:
        kind, names = code.split(" ", 1)
        fields += [DRAWN[kind].format(n.strip()) for n in names.split(",") if kind in DRAWN and re.fullmatch(r" *\w+", n)]
    return f"OPTIONS({struct.name[3:]}, {struct.name}, {', '.join(fields)})"


def main():
    by_hand = set(re.findall(r"^\w+\(\w+, (tn_\w+)", "".join(p.read_text() for p in HERE.glob("rows/*.def")), re.M))
    found = re.findall(r"^KIND\((\w+), ([^,]+), ", (HERE / "kinds.def").read_text(), re.M)
    kinds = {kind: name for name, kind in reversed(found) if kind.endswith(("_options", "_spec"))}
    declared = [d for path in headers.headers() for group in headers.read(path)[1] for d in group.declarations]
    missing = [d for d in declared if d.kind == "function" and d.name not in by_hand]
    asked = {s for d in missing for s in re.findall(r"\btn_\w+_options\b", d.code)}
    made = [d for d in declared if d.kind == "struct" and d.name in asked - set(kinds)]
    kinds.update({d.name: d.name[3:] for d in made})
    folder = Path(sys.argv[1])
    for name, lines in {"rows_made.def": [row(d.code, kinds) for d in missing],
                        "kinds_made.def": [f"KIND({d.name[3:]}, {d.name}, EARLY)" for d in made],
                        "options_made.def": [options(d) for d in made]}.items():
        (folder / name).write_text("/* by tests/fuzz_api/rows.py */\n" + "".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
