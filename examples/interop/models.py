"""models.py - the models of models.c in PyTorch, under the same names. For roundtrip.py."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len):
        super().__init__()
        t = torch.arange(max_len, dtype=torch.float64)[:, None]
        w = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_len, d_model, dtype=torch.float64)
        pe[0, :, 0::2], pe[0, :, 1::2] = torch.sin(t * w), torch.cos(t * w)
        self.register_buffer("pe", pe.float())

    def forward(self, x):
        return x + self.pe[:, :x.shape[1]]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 9)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.embed(x)))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(11))

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        return x


class Carried(nn.Module):
    def __init__(self):
        super().__init__()
        x = torch.arange(6)
        for name, t in [("step", torch.tensor(98765432109)), ("ids", x.int() - 3), ("mask", x % 2 == 0),
                        ("bytes", (x * 40).byte()), ("scale", torch.tensor(0.3, dtype=torch.float64)),
                        ("empty", torch.zeros(0, 3)), ("f16", (x / 3).half()), ("bf16", (x / 3).bfloat16())]:
            self.register_buffer(name, t)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


class Net(nn.Module):
    """examples/batchnorm/net.c"""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((1,), 72.9))
        self.register_buffer("deviation", torch.full((1,), 90.2))
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.fc1, self.fc2 = nn.Linear(3136, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = (x - self.mean) / self.deviation
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(d), nn.MultiheadAttention(d, heads, batch_first=True)
        self.norm2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """examples/transformer/model.c"""

    def __init__(self, vocab, context, layers, heads, d):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, d), PositionalEncoding(d, context)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.position(self.token(ids))
        for block in self.blocks:
            x = block(x, self.mask[:t, :t])
        return self.head(self.norm(x))


def attention(**options):
    return nn.MultiheadAttention(8, 2, batch_first=True, **options)


def block(dropout=0.0, **options):
    return nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True, **options)


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))


def nested():
    return nn.Sequential(nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()), nn.MaxPool2d(2),
                         nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(27, 4), nn.GELU()), nn.Linear(4, 2)))


def frozen():
    m = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    m[0].requires_grad_(False)
    return m


def encoder(layer, n, norm=None):
    return nn.TransformerEncoder(layer, n, norm, enable_nested_tensor=False)


# name: (constructor, shape of the input or what else it is)
MODELS = {
    "linear": (lambda: nn.Linear(5, 3), (4, 5)),
    "linear_no_bias": (lambda: nn.Linear(5, 3, bias=False), (4, 5)),
    "mlp": (mlp, (4, 6)),
    "conv2d": (lambda: nn.Conv2d(3, 6, 3), (2, 3, 8, 7)),
    "conv2d_strided": (lambda: nn.Conv2d(3, 4, 5, stride=2, padding=2), (2, 3, 8, 7)),
    "conv2d_groups": (lambda: nn.Conv2d(4, 8, 3, groups=2), (2, 4, 6, 6)),
    "conv2d_depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, dilation=2, bias=False), (2, 4, 6, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, groups=2), (2, 4, 9)),
    "conv1d_circular": (lambda: nn.Conv1d(3, 4, 3, padding=2, padding_mode="circular"), (2, 3, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 4, (3, 2, 1), padding=(1, 0, 1)), (2, 2, 4, 5, 3)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 5)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
                         (2, 4, 5, 4)),
    "batchnorm1d": (lambda: nn.BatchNorm1d(6), (5, 6)),
    "batchnorm2d": (lambda: nn.BatchNorm2d(3, eps=1e-3, momentum=0.3), (2, 3, 4, 4)),
    "batchnorm_no_affine": (lambda: nn.BatchNorm2d(3, affine=False), (2, 3, 4, 4)),
    "batchnorm_no_tracking": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (2, 3, 4, 4)),
    "batchnorm_cumulative": (lambda: nn.BatchNorm1d(6, momentum=None), (5, 6)),
    "layernorm": (lambda: nn.LayerNorm(8), (2, 5, 8)),
    "layernorm_2_axes": (lambda: nn.LayerNorm((3, 4), eps=1e-6), (2, 3, 4)),
    "embedding": (lambda: nn.Embedding(11, 4), ("ids", 11, (2, 5))),
    "embedding_padding": (lambda: nn.Embedding(11, 4, padding_idx=2), ("ids", 11, (2, 5))),
    "attention": (lambda: attention(dropout=0.5), (2, 5, 8)),
    "attention_no_bias": (lambda: attention(bias=False), (2, 5, 8)),
    "attention_sequence_first": (lambda: nn.MultiheadAttention(8, 2), (5, 2, 8)),
    "attention_kdim_vdim": (lambda: attention(kdim=6, vdim=4), ("qkv", (2, 5, 8), (2, 7, 6), (2, 7, 4))),
    "encoder_layer": (lambda: block(0.1), (2, 5, 8)),
    "encoder_layer_norm_first": (lambda: block(activation="gelu", norm_first=True), (2, 5, 8)),
    "encoder": (lambda: encoder(block(0.1), 3, nn.LayerNorm(8)), (2, 5, 8)),
    "encoder_no_norm": (lambda: encoder(block(norm_first=True), 2), (2, 5, 8)),
    "positional_encoding": (lambda: PositionalEncoding(8, 12), (2, 7, 8)),
    "rnn": (lambda: nn.RNN(5, 4, 2, nonlinearity="relu", batch_first=True), (2, 7, 5)),
    "gru": (lambda: nn.GRU(5, 4, bias=False), (7, 2, 5)),
    "lstm": (lambda: nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True), (2, 7, 5)),
    "lstm_cell": (lambda: nn.LSTMCell(5, 4), (2, 5)),
    "nested": (nested, (2, 1, 6, 6)),
    "tied": (Tied, ("ids", 9, (2, 5))),
    "module_list": (Stack, (3, 4)),
    "frozen": (frozen, (5, 6)),
    "buffers": (Carried, None),
    "mlp_f64": (lambda: mlp().double(), (4, 6)),
    "batchnorm_f64": (lambda: nn.BatchNorm2d(3, eps=1e-3, momentum=0.3).double(), (2, 3, 4, 4)),
    "mlp_bf16": (lambda: mlp().bfloat16(), None),
    "attention_f16": (lambda: attention(dropout=0.5).half(), None),
    "cnn": (Net, (3, 1, 28, 28)),
    "transformer": (lambda: Gpt(17, 8, 2, 2, 16), ("ids", 17, (3, 8))),
}


def inputs(spec, dtype):
    if spec[0] == "ids":
        return {"x": torch.randint(0, spec[1], spec[2])}
    shapes = spec[1:] if spec[0] == "qkv" else (spec,)
    return {name: torch.randn(shape).to(dtype) for name, shape in zip("xkv", shapes)}


def forward(model, x):
    """With recording on: 1.13's fast path without it cannot do attention without biases."""
    if isinstance(model, nn.MultiheadAttention):
        return model(x["x"], x.get("k", x["x"]), x.get("v", x["x"]))[0].detach()
    y = model(x["x"])
    return (y[0] if isinstance(y, tuple) else y).detach()  # of recurrent layers, the state goes
