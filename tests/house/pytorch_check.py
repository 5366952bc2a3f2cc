#!/usr/bin/env python3
"""docs/pytorch.md is complete: every public function and every public macro stands in it, in the table of calls or in the
list of those without a counterpart, and it names nothing that does not exist.

usage: tests/house/pytorch_check.py [--write]
With --write, functions that stand nowhere yet get a row, at the end of the table of those of their header, when their
comment says "PyTorch: F.softsign", or "PyTorch: nn.RMSNorm; eps is given", what differs; with "PyTorch: none; why" in
the last list.
Seen to fail: with tn_hash taken out, and with tn_sgd written tn_sdg."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "docs" / "reference"))
import headers  # noqa: E402

PAGE = ROOT / "docs" / "pytorch.md"
text = PAGE.read_text()
calls, _, alone = text.partition("## What has no counterpart in PyTorch")
declared = [d for path in headers.headers() for group in headers.read(path)[1] for d in group.declarations]
wanted = {d.name for d in declared if d.kind in ("function", "macro")}
known = wanted | {d.name for d in declared} | \
    {value.split()[0] for d in declared if d.kind == "enum" for value, _ in d.fields}


def names(part):
    return set(re.findall(r"\b(?:tn|TN)_\w+", part))


# What a row of the table translates: the second column.
translated = {n for line in calls.split("\n") if line.startswith("| ") and line.count("|") == 4
              for n in names(line.split("|")[2])}
listed = {n for line in alone.split("\n") if line.startswith("| ") for n in names(line.split("|")[1])}
if "--write" in sys.argv:
    lines = text.split("\n")
    home = {d.name: path.name for path in headers.headers() for group in headers.read(path)[1] for d in group.declarations}
    for d in declared:
        said = re.search(r"PyTorch: ([^;]*?)(?:; (.*?))?[.]?$", " ".join(d.comment))
        if d.name in wanted - translated - listed and said:
            none = said[1] == "none"
            mates = [i for i, line in enumerate(lines) if line.startswith("| ") and line.count("|") == (3 if none else 4) and
                     (none or any(home.get(n) == home[d.name] for n in names(line.split("|")[2])))]
            called = f"`{d.name}`" if none else f"`{said[1]}` | `{d.name}`"
            lines.insert(mates[-1] + 1, f"| {called} | {said[2] + ' ' if said[2] else ''}|")
            print(lines[mates[-1] + 1])
    PAGE.write_text("\n".join(lines))
    raise SystemExit

complaints = [f"{n} stands neither in the table nor in the last list: say \"PyTorch: ...\" in its comment, and run " +
              f"{Path(__file__).name} --write" for n in sorted(wanted - translated - listed)]
complaints += [f"there is no {n}" for n in sorted(names(text) - known - {"tn_NAME", "tn_NAME_new"})]
rows = [line for line in text.split("\n") if re.match(r"\| ", line)]
complaints += [f"no such number of columns: {row}" for row in rows if row.count("|") not in (3, 4)]
for line in complaints:
    print(line)
print(f"{len(wanted & (translated | listed))} passed, {len(complaints)} failed")
raise SystemExit(len(complaints) > 0 or len(wanted) < 400)
