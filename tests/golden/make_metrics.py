#!/usr/bin/env python3
"""Makes metrics.safetensors: batches, and what torchmetrics and scikit-learn say of them.

usage: make_metrics.py     (PyTorch 2.15.0, torchmetrics 1.9.0, scikit-learn 1.9.1)

CASE/x, CASE/y: predictions and targets; CASE/NAME: values in f64. Where both packages have a value, the one of
scikit-learn is kept, which computes in f64, and the other must agree within f32.
"""
import math
import pathlib

import numpy as np
import sklearn.metrics as sk
import torch
import torchmetrics as tm
import torchmetrics.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
tensors = {}


def put(case, name, value, other=None):
    value = torch.as_tensor(np.asarray(value), dtype=torch.float64)
    if other is not None:
        torch.testing.assert_close(torch.as_tensor(other).double(), value, rtol=3e-6, atol=1e-7, equal_nan=True)
    tensors[f"{case}/{name}"] = value.clone().contiguous()


def classes(case, x, y, k, axis=1):
    """x: scores with k classes on an axis; y: ids, -100 is ignored"""
    tensors[f"{case}/x"], tensors[f"{case}/y"] = x.contiguous(), y
    rows = x.movedim(axis, -1).reshape(-1, k)
    flat = y.reshape(-1)
    kept = flat != -100
    rows, flat = rows[kept], flat[kept]
    best, true = rows.argmax(1).numpy(), flat.numpy()
    how = dict(num_classes=k)
    put(case, "accuracy", sk.accuracy_score(true, best), F.classification.multiclass_accuracy(rows, flat, average="micro", **how))
    for top in (2, 3):
        put(case, f"top_{top}", sk.top_k_accuracy_score(true, rows.numpy(), k=top, labels=range(k)),
            F.classification.multiclass_accuracy(rows, flat, average="micro", top_k=top, **how))
    put(case, "matrix", sk.confusion_matrix(true, best, labels=range(k)),
        F.classification.multiclass_confusion_matrix(rows, flat, **how))
    for name, score, other in (("precision", sk.precision_score, F.classification.multiclass_precision),
                               ("recall", sk.recall_score, F.classification.multiclass_recall),
                               ("f1", sk.f1_score, F.classification.multiclass_f1_score)):
        for average in ("macro", "micro", "weighted"):
            put(case, f"{name}/{average}", score(true, best, average=average, zero_division=0),
                other(rows, flat, average=average, **how))
        put(case, f"{name}/none", score(true, best, average=None, labels=range(k), zero_division=0),
            other(rows, flat, average="none", **how))
    put(case, "perplexity", math.exp(sk.log_loss(true, rows.double().softmax(1).numpy(), labels=range(k))),
        tm.functional.text.perplexity(rows[None], flat[None]))


def scores(n, k, y, seed, *more):
    """Distinct ones, somewhat higher at the target."""
    torch.manual_seed(seed)
    x = torch.randn(n, k, *more)
    return x + 1.2 * (torch.arange(k).view(1, k, *[1] * len(more)) == y.clamp(min=0).unsqueeze(1)).float()


torch.manual_seed(1)
y = torch.randint(0, 5, (60,))
classes("plain", scores(60, 5, y, 2), y, 5)
y = torch.randint(0, 5, (60,))
y[torch.rand(60) < 0.3] = -100
classes("ignored", scores(60, 5, y, 3), y, 5)
y = torch.randint(0, 4, (50,))
y[y == 2] = 1  # class 2 is predicted alone, class 3 is a target alone, 4 and 5 never occur
x = scores(50, 6, y, 4)
x[:, 3:] = -9
classes("absent", x, y, 6)
y = torch.randint(0, 3, (4, 7))
classes("image", scores(4, 3, y, 5, 7), y, 3)
y = torch.randint(0, 4, (3, 6))
classes("text", scores(18, 4, y.reshape(-1), 6).view(3, 6, 4), y, 4, axis=2)

for case, x in (("distinct", torch.randperm(80).float() / 80), ("ties", torch.randint(0, 6, (80,)).float() / 8),
                ("reversed", -torch.randperm(80).float() / 80)):
    y = (x + 0.6 * torch.rand(80) > 0.6).long() if case != "reversed" else (x + 0.5 * torch.rand(80) > -0.3).long()
    tensors[f"auc_{case}/x"], tensors[f"auc_{case}/y"] = x, y
    put(f"auc_{case}", "auc", sk.roc_auc_score(y.numpy(), x.numpy()),
        F.classification.binary_auroc(x if x.min() >= 0 else x + 1, y))

x, y, w = torch.randn(6, 8), torch.randn(6, 8), torch.rand(6, 8)
tensors.update({"errors/x": x, "errors/y": y, "errors/w": w})
a, b = x.double().numpy().reshape(-1), y.double().numpy().reshape(-1)
put("errors", "absolute", sk.mean_absolute_error(b, a), tm.MeanAbsoluteError()(x, y))
put("errors", "squared", sk.mean_squared_error(b, a), tm.MeanSquaredError()(x, y))
put("errors", "root", sk.root_mean_squared_error(b, a), tm.MeanSquaredError(squared=False)(x, y))
mean = tm.MeanMetric()
mean.update(x, w)
put("errors", "mean", np.average(a, weights=w.double().numpy().reshape(-1)), mean.compute())

save_file(tensors, HERE / "metrics.safetensors")
