#!/usr/bin/env python3
"""Makes tensorboard.events: what PyTorch's SummaryWriter writes for the values of tests/logs/test_logs.c.

usage: make_tensorboard.py     (PyTorch 2.15.0, tensorboard 2.21.0, NumPy 2.4.6)
"""
import pathlib
import shutil
import tempfile

import torch
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

HERE = pathlib.Path(__file__).resolve().parent


def edge(k):
    v = 1e-12
    for _ in range(k):
        v *= 1.1
    return v


cases = {
    "zeros": [0, 0, 0],
    "constant": [0.5] * 4,
    "one": [-2],
    "spread": [(i * 7919 % 2003 - 1001) * 2.0 ** (i % 40 - 20) for i in range(2003)],
    "edges": [s * edge(k) for k in (0, 1, 2, 10) for s in (1, -1)] + [0, 1e-13, -1e-13],
    "ends": [s * edge(k) for k in (0, 772, 773) for s in (1, -1)],
}
with tempfile.TemporaryDirectory() as folder:
    writer = SummaryWriter(folder)
    for i, value in enumerate([1, 0.1, -1e-3, 1e38, float("inf"), float("nan")]):
        writer.add_scalar("train/loss", value, i + 1)
    for i, (tag, values) in enumerate(cases.items()):
        writer.add_histogram(tag, torch.tensor(values, dtype=torch.float64), i + 10)
    writer.add_text("said", "# Äpfel\n*and* more", 300)
    for name, value in {"lr": 0.001, "optimizer": "adamw"}.items():
        writer.file_writer.add_summary(hparams({name: value}, {})[1], 1)
    writer.close()
    file, = pathlib.Path(folder).glob("*tfevents*")
    shutil.copy(file, HERE / "tensorboard.events")
