#!/usr/bin/env python3
"""Whether PyTorch has the names that docs/pytorch.md gives it, in the first columns of its tables. Needs PyTorch, so it
is run by hand after a change of that page, with the PyTorch that the page is about.
Seen to fail: a row with F.apply, which does not exist."""

import re
from pathlib import Path

import torch

SHORT = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "init": torch.nn.init, "optim": torch.optim,
         "lr_scheduler": torch.optim.lr_scheduler, "autograd": torch.autograd, "data": torch.utils.data,
         "Tensor": torch.Tensor}
NAME = re.compile(r"(?<![\w.])(%s)((?:\.[A-Za-z_]\w*)+)" % "|".join(SHORT))

rows = [line.split("|")[1] for line in (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text().split("\n")
        if line.startswith("| ") and line.count("|") == 4]
names = sorted({m.groups() for row in rows for code in re.findall(r"`([^`]*)`", row) for m in NAME.finditer(code)})
missing = 0
for first, rest in names:
    thing = SHORT[first]
    try:
        for part in rest[1:].split("."):
            thing = getattr(thing, part)
    except AttributeError:
        print(f"{first}{rest}: PyTorch {torch.__version__} has no such name")
        missing += 1
print(f"{len(names) - missing} passed, {missing} failed")
raise SystemExit(missing > 0 or len(names) < 100)
