#!/usr/bin/env python3
"""docs/pytorch.md is complete: every public function and every public macro stands in it, in the table of calls or in the
list of those without a counterpart, and it names nothing that does not exist.
Seen to fail: with tn_hash taken out, and with tn_sgd written tn_sdg."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "docs" / "reference"))
import headers  # noqa: E402

text = (ROOT / "docs" / "pytorch.md").read_text()
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
complaints = [f"{n} stands neither in the table nor in the last list" for n in sorted(wanted - translated - listed)]
complaints += [f"there is no {n}" for n in sorted(names(text) - known - {"tn_NAME", "tn_NAME_new"})]
rows = [line for line in text.split("\n") if re.match(r"\| ", line)]
complaints += [f"no such number of columns: {row}" for row in rows if row.count("|") not in (3, 4)]
for line in complaints:
    print(line)
print(f"{len(wanted & (translated | listed))} passed, {len(complaints)} failed")
raise SystemExit(len(complaints) > 0 or len(wanted) < 400)
