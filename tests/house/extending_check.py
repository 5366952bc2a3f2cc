#!/usr/bin/env python3
"""Makes the edits of docs/extending.md in a copy of the tree, builds it with its tests, and runs what the edits concern:
layout, headers, house, docs/pytorch.md, the rows of fuzz_api, the suites of SUITES, and the program at the page's end.

usage: tests/house/extending_check.py [FOLDER]    default: a new one. In the same one the next run compiles what changed.
Counts the files that each section edits: at most those of LIMITS. What a command makes is no edit: the row in
docs/pytorch.md, and PyTorch's numbers for new rows of the op table. Those are in tests/golden/extending.safetensors;
with TENON_PYTORCH=python3, a Python that has PyTorch, they are made anew and written there.
Seen to fail: an anchor that is not there; a slope with another sign (golden_f64, tn_gradcheck); an edit of
CHANGELOG.md in the first section (5 files); an optimizer without .function; a line of 101 columns; an op
that autocast casts without a word in autograd.h.
"""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMITS = {"An elementwise op": 4, "A primitive op": 9, "A layer": 4, "An optimizer": 4}
PARTS = ("include", "src", "tool", "page", "tests", "docs", "examples", "bench", "fuzz", "scripts", "README.md", "CHANGELOG.md",
         "meson.build", "meson_options.txt", ".clang-format")
# Those of every row of the op table, and the ones that are edited.
SUITES = {"ops": "test_ops", "autograd": "test_autograd", "half": "test_half", "autocast": "test_autocast",
          "layers": "test_layers", "nn": "test_nn"}
FUNCTIONS = ("tn_bump", "tn_unit", "tn_scale_norm_new", "tn_adadelta")
GOLDEN, MADE = "tests/golden/ops.safetensors", "tests/golden/extending.safetensors"


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


def apply(files, file, place, anchor, code):
    if place == "new":
        if file in files:
            sys.exit(f"{file} is there already")
        files[file] = code.encode()
        return
    lines = files[file].decode().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if line.startswith(anchor)]
    if len(at) != 1:
        sys.exit(f"{file}: {len(at)} lines begin with {anchor!r}: want one")
    lines.insert(at[0] + (place == "after"), code)
    files[file] = "".join(lines).encode()


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{done.stdout[-6000:]}")
    return done.stdout


def read(path):
    with open(path, "rb") as f:
        return f.read()


def sources():
    """Path: bytes, of all that the copy begins with."""
    files = {}
    for part in PARTS:
        top = os.path.join(ROOT, part)
        for folder, _, names in os.walk(top) if os.path.isdir(top) else [(ROOT, [], [part])]:
            for name in names:
                path = os.path.join(folder, name)
                if not os.path.islink(path) and "__pycache__" not in path:
                    files[os.path.relpath(path, ROOT)] = read(path)
    return files


def write(tree, files):
    """What is there already keeps its time, so that ninja compiles what changed."""
    for folder, names, old in os.walk(tree):
        names[:] = [n for n in names if n != "build"]
        for name in old:
            if os.path.relpath(os.path.join(folder, name), tree) not in files:
                os.unlink(os.path.join(folder, name))
    for file, data in files.items():
        path = os.path.join(tree, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.exists(path) or read(path) != data:
            with open(path, "wb") as f:
                f.write(data)
        if os.path.exists(os.path.join(ROOT, file)):
            shutil.copymode(os.path.join(ROOT, file), path)


def tensors(data):
    """(name: (its header, its bytes)), and the metadata, of a safetensors file."""
    at = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:at])
    metadata = header.pop("__metadata__")
    return {k: (t, data[at + t["data_offsets"][0]:at + t["data_offsets"][1]]) for k, t in header.items()}, metadata


def safetensors(entries, metadata):
    header, at = {"__metadata__": metadata}, 0
    for name, (t, data) in entries.items():
        header[name] = {**t, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, data in entries.values())


def add_golden(tree, files):
    """PyTorch's numbers for the rows that the edits add to the op table."""
    old, metadata = tensors(files[GOLDEN])
    python = os.environ.get("TENON_PYTORCH")
    if python:
        run(python, "tests/golden/make_ops.py", cwd=tree)
        new, metadata = tensors(read(os.path.join(tree, GOLDEN)))
        with open(os.path.join(ROOT, MADE), "wb") as f:
            f.write(safetensors({k: t for k, t in new.items() if k not in old}, metadata))
    with open(os.path.join(tree, GOLDEN), "wb") as f:
        f.write(safetensors({**old, **tensors(read(os.path.join(ROOT, MADE)))[0]}, metadata))


def check(tree, files, edited, program):
    old = sources()
    more = sum(files[f].count(b"\n") - old.get(f, b"").count(b"\n") for f in edited)
    env = {**os.environ, "HOUSE_MORE": str(more), "CK_FORK": "no", "TENON_BRIEF": "yes"}
    add_golden(tree, files)
    print(run("tests/house/pytorch_check.py", "--write", cwd=tree), end="")
    c = [f for f in edited if f.endswith((".c", ".h", ".cu"))]
    if shutil.which("clang-format-14"):
        run("clang-format-14", "-n", "-Werror", "--ferror-limit=1", *c, cwd=tree)
    for test in ("headers_check.sh", "house_check.sh", "pytorch_check.py"):
        run(f"tests/house/{test}", cwd=tree, env=env)
        print(f"{test}: ok")
    shim = "enabled" if shutil.which("g++") else "disabled"
    if not os.path.exists(os.path.join(tree, "build/build.ninja")):
        left_out = [f"-D{what}=disabled" for what in ("cuda", "examples", "bench")]
        run("meson", "setup", "build", "--buildtype=debug", "-Ddebug=false", "-Db_lundef=false", f"-Dshim={shim}", *left_out, cwd=tree)
    version = re.search(r"version: '([0-9.]+)'", files["meson.build"].decode())[1]
    targets = [f"src/libtenon.so.{version}", "tests/fuzz_api/fuzz_api", *(f"tests/{program}" for program in SUITES.values())]
    if shim == "enabled":
        targets.append("tests/cuda/host/libtenon-cuda-host.so.p/meson-generated_.._unit.cpp.o")
    log = run("ninja", "-C", "build", *targets, cwd=tree)
    warnings = [line for line in log.splitlines() if "warning:" in line]
    if warnings:
        sys.exit("\n".join(warnings))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        forks = {"nn": {"CK_FORK": "yes"}}  # some of its tests set an allocator
        started = {suite: pool.submit(run, f"build/tests/{name}", cwd=tree, env={**env, **forks.get(suite, {})})
                   for suite, name in SUITES.items()}
    for suite, done in started.items():
        done.result()
        print(f"{suite}: ok")
    print(run("tests/fuzz_api/rows_check.sh", "build/tests/fuzz_api/fuzz_api", cwd=tree).splitlines()[-2])
    for name in FUNCTIONS:
        run("build/tests/fuzz_api/fuzz_api", "--sweep", "odd", "--row", name, cwd=tree)
        print(f"fuzz_api, {name}: ok")
    with open(os.path.join(tree, "build", "try.c"), "w") as f:
        f.write(program)
    lib = os.path.join(tree, "build", "src")
    run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "build/try.c", "-o", "build/try", "-Iinclude", f"-L{lib}", "-ltenon",
        f"-Wl,-rpath,{lib}", "-lm", cwd=tree)
    print(run("build/try", cwd=tree), end="")


def main():
    if len(sys.argv) > 1 and sys.argv[1].startswith("-"):
        sys.exit(f"extending_check.py: {sys.argv[1]}: want a folder, or nothing")
    found, program = sections(read(os.path.join(ROOT, "docs/extending.md")).decode())
    files, failed, edited = sources(), 0, set()
    for title, edits in found:
        if not edits:
            continue
        for edit in edits:
            apply(files, *edit)
        names = sorted({e[0] for e in edits})
        edited |= set(names)
        print(f"{title}: {len(names)} files, at most {LIMITS[title]}: {' '.join(names)}")
        failed += len(names) > LIMITS[title]
    if failed:
        sys.exit(f"{failed} of {len(LIMITS)} recipes edit more files than they may")
    with tempfile.TemporaryDirectory() as new:
        tree = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else new
        os.makedirs(tree, exist_ok=True)
        write(tree, files)
        check(tree, files, sorted(edited), program)
    print(f"{len(LIMITS)} passed, 0 failed")


if __name__ == "__main__":
    main()
