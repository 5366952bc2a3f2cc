#!/usr/bin/env python3
"""Makes the edits of docs/extending.md in a copy of the tree, builds it and runs the program at its end.

usage: tests/house/extending_check.py [BUILD-FOLDER]    whose compiler is used; default: cc
Counts the files that each section edits: at most those of LIMITS.
Seen to fail: an anchor that is not there; a slope with another sign (tn_gradcheck).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMITS = {"An elementwise op": 3, "A primitive op": 6, "A layer": 3, "An optimizer": 4}


def sections(text):
    """(title, [(file, place, anchor, lines)]) of each ## section, and the last block of the last one."""
    found, program = [], None
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        title, body = part.split("\n", 1)
        edits = []
        for piece in re.split(r"^### ", body, flags=re.M)[1:]:
            head, rest = piece.split("\n", 1)
            m = re.fullmatch(r"`([^`]+)`, (?:(before|after) `([^`]+)`|(new))", head)
            if not m:
                sys.exit(f"docs/extending.md: {head!r}: want a file, and before, after or new")
            code = re.search(r"^```\w+\n(.*?)^```", rest, flags=re.M | re.S).group(1)
            edits.append((m.group(1), m.group(2) or m.group(4), m.group(3), code))
        if not edits:
            program = re.search(r"^```c\n(.*?)^```", body, flags=re.M | re.S).group(1)
        found.append((title, edits))
    return found, program


def apply(tree, file, place, anchor, code):
    path = os.path.join(tree, file)
    if place == "new":
        if os.path.exists(path):
            sys.exit(f"{file} is there already")
        lines = [code]
    else:
        lines = open(path).read().splitlines(keepends=True)
        at = [i for i, line in enumerate(lines) if line.startswith(anchor)]
        if len(at) != 1:
            sys.exit(f"{file}: {len(at)} lines begin with {anchor!r}: want one")
        lines.insert(at[0] + (place == "after"), code)
    with open(path, "w") as f:
        f.writelines(lines)


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{done.stdout[-6000:]}")
    return done.stdout


def main():
    found, program = sections(open(os.path.join(ROOT, "docs/extending.md")).read())
    passed = failed = 0
    with tempfile.TemporaryDirectory() as tree:
        for name in ("include", "src", "meson.build", "meson_options.txt"):
            copy = shutil.copytree if os.path.isdir(os.path.join(ROOT, name)) else shutil.copy
            copy(os.path.join(ROOT, name), os.path.join(tree, name))
        for title, edits in found:
            if not edits:
                continue
            files = sorted({e[0] for e in edits})
            for edit in edits:
                apply(tree, *edit)
            ok = len(files) <= LIMITS[title]
            passed, failed = passed + ok, failed + (not ok)
            print(f"{title}: {len(files)} files, at most {LIMITS[title]}: {' '.join(files)}")
        left_out = [f"-D{what}=disabled" for what in ("cuda", "shim", "tests", "examples", "bench")]
        run("meson", "setup", "build", "--buildtype=debug", *left_out, cwd=tree)
        log = run("ninja", "-C", "build", cwd=tree)
        warnings = [line for line in log.splitlines() if "warning:" in line]
        if warnings:
            sys.exit("\n".join(warnings))
        with open(os.path.join(tree, "try.c"), "w") as f:
            f.write(program)
        lib = os.path.join(tree, "build", "src")
        run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "try.c", "-o", "try", "-Iinclude", f"-L{lib}", "-ltenon",
            f"-Wl,-rpath,{lib}", "-lm", cwd=tree)
        out = run("./try", cwd=tree)
        print(out, end="")
        passed += out.count(": ok")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
