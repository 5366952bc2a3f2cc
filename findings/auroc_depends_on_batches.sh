#!/usr/bin/env bash
# The area under the ROC curve of the same scores depends on how they are split into batches, and large logits become
# ties. (torchmetrics 1.9.0 with PyTorch 2.15.0, CPU)
#
# Guess, written down first: torchmetrics.AUROC keeps all scores and ranks them at the end, so that only their order
# counts, as in scikit-learn's roc_auc_score.
# Seen: each batch of which one score lies outside of [0, 1] is put through a sigmoid, in f32, by itself; batches within
# [0, 1] are kept as they are. So logits of one model are ranked on two scales: .45 and .5 (positive) in one batch, -.1
# and .3 (negative) in the next have an area of .25, all four in one batch 1. And in f32 the sigmoid is 1 from 17 on:
# logits 20, 30, 40, 50 with targets 0, 1, 0, 1 have .5, where scikit-learn has .75; of 2, 3, 4, 5 both have .75.
# So a score that is meant to rank must be given as probabilities, or in one batch.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir torch==2.15.0 numpy==2.4.6 torchmetrics==1.9.0 scikit-learn==1.9.1
"$place/venv/bin/python" -W ignore - <<'PYTHON'
import torch, torchmetrics
from sklearn.metrics import roc_auc_score

assert torchmetrics.__version__ == "1.9.0", torchmetrics.__version__


def area(*batches):
    metric = torchmetrics.AUROC(task="binary")
    for scores, targets in batches:
        metric.update(torch.tensor(scores, dtype=torch.float64 if scores[0] < 1 else torch.float32), torch.tensor(targets))
    return round(float(metric.compute()), 6)


scores, targets = [.45, .5, -.1, .3], [1, 1, 0, 0]
assert roc_auc_score(targets, scores) == 1
assert area((scores, targets)) == 1
assert area((scores[:2], targets[:2]), (scores[2:], targets[2:])) == .25
large, of = [20., 30., 40., 50.], [0, 1, 0, 1]
assert roc_auc_score(of, large) == .75
assert area((large, of)) == .5
small = [2., 3., 4., 5.]
assert roc_auc_score(of, small) == .75 and area((small, of)) == .75
print("seen: four scores have an area of 1 in one batch and .25 in two; logits of 20 to 50 have .5, not .75")
PYTHON
