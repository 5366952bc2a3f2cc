#!/usr/bin/env python3
"""Makes recurrent.safetensors: recurrent layers and cells, forward and backward, by PyTorch.

usage: python3 tests/golden/make_recurrent.py [FILE]      needs PyTorch 2

For each CASE below, in f64: CASE/param/NAME and CASE/grad/NAME of every parameter; CASE/x, CASE/dx, and where
it starts from a state CASE/h, CASE/c, CASE/dh, CASE/dc; the results CASE/y, CASE/h_n, CASE/c_n and, under the
same names with seed_ in front, the cotangents that the gradients are for.
init/KIND/NAME: the initial values in f32 of a layer of 3 inputs and 5 hidden elements, after manual_seed(42).
"""
import os
import sys

import torch
from safetensors.torch import save_file
from torch import nn

tensors = {}


def case(name, m, x, state=None):
    """state: shapes of h and, of an LSTM, c; None: from zeros."""
    torch.manual_seed(sum(name.encode()))
    m = m.double()
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape) * 0.6)
    x = torch.randn(x, dtype=torch.float64, requires_grad=True)
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in state or []]
    result = m(x, given[0] if len(given) == 1 else tuple(given)) if given else m(x)
    if isinstance(m, nn.RNNCellBase):
        out = dict(zip(("h_n", "c_n"), result if isinstance(result, tuple) else (result,)))
    else:
        last = result[1] if isinstance(result[1], tuple) else (result[1],)
        out = {"y": result[0], **dict(zip(("h_n", "c_n"), last))}
    total = 0
    for key, value in out.items():
        seed = torch.randn(value.shape, dtype=torch.float64)
        tensors[f"{name}/{key}"] = value.detach().clone().contiguous()
        tensors[f"{name}/seed_{key}"] = seed
        total = total + (value * seed).sum()
    total.backward()
    for key, value in m.named_parameters():
        tensors[f"{name}/param/{key}"] = value.detach().clone()
        tensors[f"{name}/grad/{key}"] = value.grad.clone()
    for key, value in zip(("x", "h", "c"), [x, *given]):
        tensors[f"{name}/{key}"] = value.detach().clone()
        tensors[f"{name}/d{key}"] = value.grad.clone()


case("rnn", nn.RNN(3, 4, batch_first=True), (2, 5, 3), [(1, 2, 4)])
case("rnn_relu", nn.RNN(3, 4, 2, nonlinearity="relu"), (5, 2, 3), [(2, 2, 4)])
case("gru", nn.GRU(3, 4, 2, batch_first=True), (2, 5, 3))
case("gru_both", nn.GRU(3, 4, 2, batch_first=True, bidirectional=True), (2, 9, 3), [(4, 2, 4)])
case("lstm", nn.LSTM(3, 4, batch_first=True), (2, 9, 3), [(1, 2, 4), (1, 2, 4)])
case("lstm_both", nn.LSTM(3, 4, 2, bias=False, bidirectional=True), (5, 2, 3), [(4, 2, 4), (4, 2, 4)])
case("lstm_single", nn.LSTM(3, 4, 2), (5, 3), [(2, 4), (2, 4)])
case("rnn_cell", nn.RNNCell(3, 4), (2, 3), [(2, 4)])
case("rnn_cell_relu", nn.RNNCell(3, 4, bias=False, nonlinearity="relu"), (2, 3), [(2, 4)])
case("gru_cell", nn.GRUCell(3, 4), (2, 3), [(2, 4)])
case("gru_cell_single", nn.GRUCell(3, 4), (3,), [(4,)])
case("lstm_cell", nn.LSTMCell(3, 4), (2, 3), [(2, 4), (2, 4)])
case("lstm_cell_zeros", nn.LSTMCell(3, 4), (2, 3))

for kind, make in {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM, "lstm_cell": nn.LSTMCell}.items():
    torch.manual_seed(42)
    m = make(3, 5) if kind == "lstm_cell" else make(3, 5, 2, bidirectional=True)
    for key, value in m.named_parameters():
        tensors[f"init/{kind}/{key}"] = value.detach().clone()

path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                          "recurrent.safetensors")
save_file(tensors, path, {"torch": torch.__version__, "made_by": "tests/golden/make_recurrent.py"})
print(f"{path}: {len(tensors)} tensors, {os.path.getsize(path)} bytes")
