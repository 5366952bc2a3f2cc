#!/usr/bin/env python3
"""Makes recurrent.safetensors: recurrent layers and cells, forward and backward, by PyTorch.

usage: python3 tests/golden/make_recurrent.py [FILE]      needs PyTorch 2

For each CASE below, in f64: CASE/param/NAME and CASE/grad/NAME of every parameter; CASE/x, CASE/dx, and where
it starts from a state CASE/h, CASE/c, CASE/dh, CASE/dc; if rows have lengths, CASE/lengths; the results CASE/y, CASE/h_n, CASE/c_n and, under the
same names with seed_ in front, the cotangents that the gradients are for.
init/KIND/NAME: the initial values in f32 of a layer of 3 inputs and 5 hidden elements, after manual_seed(42).
"""
import os
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

tensors = {}


def case(name, m, x, state=None, lengths=None):
    """state: shapes of h and, of an LSTM, c; None: from zeros. lengths: of each row; None: all of T."""
    torch.manual_seed(sum(name.encode()))
    m = m.double()
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape) * 0.6)
    x = torch.randn(x, dtype=torch.float64, requires_grad=True)
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in state or []]
    seen = x
    if lengths:
        tensors[f"{name}/lengths"] = torch.tensor(lengths)
        seen = pack_padded_sequence(x, tensors[f"{name}/lengths"], m.batch_first, enforce_sorted=False)
    result = m(seen, given[0] if len(given) == 1 else tuple(given)) if given else m(seen)
    if lengths:
        steps = x.shape[1 if m.batch_first else 0]
        result = (pad_packed_sequence(result[0], m.batch_first, total_length=steps)[0], result[1])
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
case("rnn_packed", nn.RNN(3, 4, batch_first=True), (4, 5, 3), [(1, 4, 4)], [3, 5, 1, 3])
case("gru_packed", nn.GRU(3, 4, 2, batch_first=True, bidirectional=True), (4, 7, 3), [(4, 4, 4)], [2, 6, 6, 1])
case("lstm_packed", nn.LSTM(3, 4, 2, bidirectional=True), (5, 4, 3), None, [5, 2, 4, 5])
both = {"batch_first": True, "bidirectional": True, "proj_size": 2}
case("lstm_proj", nn.LSTM(3, 4, 2, **both), (2, 5, 3), [(4, 2, 2), (4, 2, 4)])
case("lstm_proj_zeros", nn.LSTM(3, 4, bias=False, batch_first=True, proj_size=3), (2, 5, 3))
case("lstm_proj_packed", nn.LSTM(3, 4, 2, **both), (3, 4, 3), [(4, 3, 2), (4, 3, 4)], [1, 4, 3])

for kind, make in {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM, "lstm_cell": nn.LSTMCell}.items():
    torch.manual_seed(42)
    m = make(3, 5) if kind == "lstm_cell" else make(3, 5, 2, bidirectional=True)
    for key, value in m.named_parameters():
        tensors[f"init/{kind}/{key}"] = value.detach().clone()
torch.manual_seed(42)
for key, value in nn.LSTM(3, 5, 2, proj_size=2).named_parameters():
    tensors[f"init/lstm_proj/{key}"] = value.detach().clone()

path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                          "recurrent.safetensors")
save_file(tensors, path, {"torch": torch.__version__, "made_by": "tests/golden/make_recurrent.py"})
print(f"{path}: {len(tensors)} tensors, {os.path.getsize(path)} bytes")
