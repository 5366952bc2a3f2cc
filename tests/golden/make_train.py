#!/usr/bin/env python3
"""Makes train_transformer.safetensors and train_cnn.safetensors: 100 training steps of the two examples'
architectures in PyTorch, in f64 and f32, dropout 0.

usage: python3 tests/golden/make_train.py [FOLDER]      runs with PyTorch 1.13 and 2.x

transformer (reduced: 63 characters, 2 layers, d 32, 2 heads, context 16, batch 8):
    init/KEY            initial weights and the positional encoding, f32
    batches             u8 [100, 8, 17]: 16 inputs, and targets one further
    sgd/f64, sgd/f32, adamw/f64, adamw/f32      the loss of each step, f64 [100]
cnn (full size, batch 4): initial weights come from torch.manual_seed(1) and are compared by samples;
images come from a formula (image() below, the same in test_train.c)
    init/KEY            the first four values of each parameter, and the sum of all, f64 [5]
    loss/f64, loss/f32, and f64/bn1.running_mean, ... the running statistics after the last step;
    f64/half/bn1.running_mean, ... after half of the steps, before a flipped ReLU can have grown
"""
import math
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_ops import save  # noqa: E402

STEPS = 100


# ---- the decoder-only transformer ---------------------------------------------------------------------

VOCAB, LAYERS, D, HEADS, CONTEXT, BATCH = 63, 2, 32, 2, 16, 8


class Position(nn.Module):
    def __init__(self):
        super().__init__()
        t = torch.arange(CONTEXT, dtype=torch.float64)[:, None]
        w = torch.exp(torch.arange(0, D, 2, dtype=torch.float64) * (-math.log(10000.0) / D))
        pe = torch.zeros(1, CONTEXT, D, dtype=torch.float64)
        pe[0, :, 0::2], pe[0, :, 1::2] = torch.sin(t * w), torch.cos(t * w)
        self.register_buffer("pe", pe.float())


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.position = Position()
        block = nn.TransformerEncoderLayer(D, HEADS, 4 * D, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, LAYERS, nn.LayerNorm(D))
        self.head = nn.Linear(D, VOCAB)

    def forward(self, x):
        future = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
        x = self.embed(x) + self.position.pe
        for block in self.encoder.layers:
            x = block(x, src_mask=future)
        return self.head(self.encoder.norm(x))


def characters():
    """Something to learn: the next id is 5 times the last plus 0, 1 or 2."""
    g = np.random.default_rng(2)
    ids = np.zeros((STEPS, BATCH, CONTEXT + 1), np.uint8)
    ids[:, :, 0] = g.integers(0, VOCAB, (STEPS, BATCH))
    for t in range(CONTEXT):
        ids[:, :, t + 1] = (5 * ids[:, :, t].astype(int) + g.integers(0, 3, (STEPS, BATCH))) % VOCAB
    return ids


def transformer():
    out = {"batches": characters()}
    torch.manual_seed(0)
    initial = {k: v.clone() for k, v in Transformer().state_dict().items()}
    # as after some training: biases and norms away from 0 and 1, blocks that differ
    for k, v in initial.items():
        if k != "position.pe":
            v += 0.02 * torch.randn(v.shape)
        out["init/" + k] = v.numpy()
    for name, make in [("sgd", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
                       ("adamw", lambda p: torch.optim.AdamW(p, 2e-3, weight_decay=0.01))]:
        for dtype, label in [(torch.float64, "f64"), (torch.float32, "f32")]:
            model = Transformer()
            model.load_state_dict(initial)
            model.to(dtype)
            optimizer, losses = make(model.parameters()), []
            for step in range(STEPS):
                batch = torch.from_numpy(out["batches"][step]).long()
                loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            out[f"{name}/{label}"] = np.array(losses)
            print("transformer", name, label, losses[0], losses[-1])
    return out


# ---- the BatchNorm network -----------------------------------------------------------------------------

class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.fc1, self.fc2 = nn.Linear(3136, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def image(n):
    """28 x 28 bytes: a faint bar whose place is the class (n mod 10), under a hash of place and n. Faint, so
    that losses stay large: near 0 a rounding error that flips one ReLU shows in every later digit."""
    r, c = np.meshgrid(np.arange(28, dtype=np.uint64), np.arange(28, dtype=np.uint64), indexing="ij")
    h = (np.uint64(n) * np.uint64(784) + r * np.uint64(28) + c) * np.uint64(2654435761) % np.uint64(2 ** 32)
    h = (h ^ (h >> np.uint64(15))) * np.uint64(2246822519) % np.uint64(2 ** 32)
    bar = ((r + c) // np.uint64(3)) % np.uint64(10) == np.uint64(n % 10)
    return ((h >> np.uint64(25)) + np.where(bar, np.uint64(8), np.uint64(0))).astype(np.uint8)


def cnn():
    out = {}
    for dtype, label in [(torch.float64, "f64"), (torch.float32, "f32")]:
        torch.manual_seed(1)
        model = Cnn()
        for k, v in model.named_parameters():
            v = v.detach().double().flatten()
            out["init/" + k] = torch.cat([v[:4], v.sum()[None]]).numpy()
        model.to(dtype)
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), []
        for step in range(STEPS):
            n = np.arange(4 * step, 4 * step + 4) * 7
            x = torch.from_numpy(np.stack([image(i) for i in n])[:, None]).to(dtype) / 256
            loss = F.cross_entropy(model(x), torch.from_numpy(n % 10))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step + 1 in (STEPS // 2, STEPS):
                for name, buffer in model.named_buffers():
                    if "running" in name:
                        when = "" if step + 1 == STEPS else "half/"
                        out[f"{label}/{when}{name}"] = buffer.double().numpy().copy()
        out[f"loss/{label}"] = np.array(losses)
        print("cnn", label, losses[0], losses[-1])
    return out


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    metadata = {"torch": torch.__version__, "numpy": np.__version__, "made_by": "tests/golden/make_train.py"}
    save(os.path.join(folder, "train_transformer.safetensors"), transformer(), metadata)
    save(os.path.join(folder, "train_cnn.safetensors"), cnn(), metadata)
