"""How the entries of PyTorch's module_db and optim_db are said in tenon."""
import re

import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.testing._internal.common_utils import noncontiguous_like

import compare
import ops
from compare import leaves, walk
from ops import no, pair
from tenon import DTYPES, SHORT, No, Out, T, plain, tn, to_tenon

LAYERS = {}  # the name of PyTorch's class -> a function of its instance that makes tenon's module
FUNCTIONS = {}  # the name -> a function (instance, operands): no module in tenon, but an op
CALLS = {}  # the name -> a function (tenon's module, instance, operands), where it is not tn_forward


def module(*names, call=None):
    def add(function):
        for name in names:
            LAYERS[name] = function
            if call:
                CALLS[name] = call
        return function
    return add


def function(*names):
    def add(function):
        FUNCTIONS.update({name: function for name in names})
        return function
    return add


module("Linear")(lambda m: tn.linear_new(m.in_features, m.out_features, {"no_bias": m.bias is None}))


@module("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d")
def conv(m):
    spec = ops.conv_spec(m.stride, m.padding, m.dilation, m.groups, m.output_padding)
    spec["padding_mode"] = ops.PAD_MODES.get(m.padding_mode, 0)
    name = type(m).__name__.lower().replace("transpose", "_transpose")
    if not name.endswith("1d"):
        return getattr(tn, name + "_spec_new")(m.in_channels, m.out_channels, *m.kernel_size, spec, m.bias is None)
    options = {k: v[0] if isinstance(v, list) else v for k, v in spec.items()}
    return getattr(tn, name + "_new")(m.in_channels, m.out_channels, m.kernel_size[0],
                                      {**options, "no_bias": m.bias is None})


@module("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
def batchnorm(m):
    new = {"1d": tn.batch_norm1d_new, "2d": tn.batch_norm2d_new, "3d": tn.batch_norm3d_new}[type(m).__name__[-2:]]
    made = new(m.num_features, {"eps": m.eps, "momentum": m.momentum or 0, "cumulative": m.momentum is None,
                                "no_affine": not m.affine, "no_bias": m.bias is None, "no_tracking": not m.track_running_stats})
    if m.momentum == 0:
        tn.batch_norm_set_momentum(made, 0.0)
    return made


@module("InstanceNorm1d", "InstanceNorm2d")
def instancenorm(m):
    new = tn.instance_norm1d_new if type(m).__name__.endswith("1d") else tn.instance_norm2d_new
    return new(m.num_features, {"eps": m.eps, "momentum": m.momentum, "affine": m.affine, "no_bias": m.bias is None,
                                "tracking": m.track_running_stats})


module("RMSNorm")(lambda m: tn.rms_norm_new(tuple(m.normalized_shape), {
    "eps": m.eps or 0, "no_affine": m.weight is None}))
module("GroupNorm")(lambda m: tn.group_norm_new(m.num_groups, m.num_channels, {
    "eps": m.eps, "no_affine": m.weight is None, "no_bias": m.bias is None}))
module("LayerNorm")(lambda m: tn.layer_norm_new(tuple(m.normalized_shape), {
    "eps": m.eps, "no_affine": m.weight is None, "no_bias": m.bias is None}))
module("Embedding")(lambda m: no("max_norm=") if m.max_norm else tn.embedding_new(m.num_embeddings, m.embedding_dim, {
    "use_padding_index": m.padding_idx is not None, "padding_index": m.padding_idx or 0}))
for name in ("1d", "2d"):
    module("MaxPool" + name)(lambda m, new=f"max_pool{name}_new": no("return_indices=") if m.return_indices else getattr(
        tn, new)(ops.pool_spec(m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode)))
    module("AvgPool" + name)(lambda m, new=f"avg_pool{name}_new": getattr(tn, new)(
        ops.pool_spec(m.kernel_size, m.stride, m.padding, 1, m.ceil_mode, not m.count_include_pad,
                      getattr(m, "divisor_override", None))))
for name in ("Avg", "Max"):
    module(f"Adaptive{name}Pool2d")(lambda m, new=f"adaptive_{name.lower()}_pool2d_new": no("None as a size") if None in pair(
        m.output_size) else getattr(tn, new)(*pair(m.output_size)))
module("AdaptiveAvgPool1d")(lambda m: tn.adaptive_avg_pool1d_new(pair(m.output_size)[0]))
for name in "ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad":
    mode = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}.get(name[:-3], "constant")
    for axes in 1, 2, 3:
        module(f"{name}{axes}d")(lambda m, mode=mode: tn.pad_new(list(m.padding), ops.PAD_MODES[mode],
                                                                 float(getattr(m, "value", 0))))
module("PixelShuffle")(lambda m: tn.pixel_shuffle_new(m.upscale_factor))
module("PixelUnshuffle")(lambda m: tn.pixel_unshuffle_new(m.downscale_factor))
module("GELU")(lambda m: tn.gelu_new() if m.approximate == "none" else tn.gelu_tanh_new())
module("Softmax")(lambda m: tn.softmax_new(m.dim))
for name in "ReLU ReLU6 Tanh Sigmoid SiLU SELU Mish Hardswish Hardsigmoid LogSigmoid Softsign Tanhshrink".split():
    module(name)(lambda m, new=name.lower() + "_new": getattr(tn, new)())
module("LogSoftmax")(lambda m: tn.log_softmax_new(m.dim))
module("GLU")(lambda m: tn.glu_new(m.dim))
module("LeakyReLU")(lambda m: tn.leaky_relu_new(float(m.negative_slope)))
module("ELU")(lambda m: tn.elu_new(float(m.alpha)))
module("CELU")(lambda m: tn.celu_new(float(m.alpha)))
module("Hardshrink")(lambda m: tn.hardshrink_new(float(m.lambd)))
module("Softshrink")(lambda m: tn.softshrink_new(float(m.lambd)))
module("Hardtanh")(lambda m: tn.hardtanh_new(float(m.min_val), float(m.max_val)))
module("Softplus")(lambda m: tn.softplus_new(float(m.beta), float(m.threshold)))
module("PReLU")(lambda m: tn.prelu_new(m.num_parameters, m.init))


# ---- recurrent layers

def recurrent_options(m):
    return {"layers": m.num_layers, "dropout": m.dropout, "no_bias": not m.bias, "bidirectional": m.bidirectional,
            "sequence_first": not m.batch_first, "relu": getattr(m, "nonlinearity", "tanh") == "relu",
            "proj_size": getattr(m, "proj_size", 0)}


def call_recurrent(made, m, x, state=None):
    given = tn.structs["tn_recurrent_state"]()
    if isinstance(state, (tuple, list)):
        given.h, given.c = state[0].handle, state[1].handle
    elif state is not None:
        given.h = state.handle
    y = tn.recurrent_forward(made, x, given)
    lstm, cell = "LSTM" in type(m).__name__, type(m).__name__.endswith("Cell")
    after = (T(given.h), T(given.c)) if lstm else T(given.h)
    return after if cell else (y, after)


@module("RNN", "GRU", "LSTM", call=call_recurrent)
def recurrent(m):
    return getattr(tn, m.mode.split("_")[0].lower() + "_new")(m.input_size, m.hidden_size, recurrent_options(m))


@module("RNNCell", "GRUCell", "LSTMCell", call=call_recurrent)
def cell(m):
    options = {"no_bias": not m.bias, "relu": getattr(m, "nonlinearity", "tanh") == "relu"}
    return getattr(tn, type(m).__name__[:-4].lower() + "_cell_new")(m.input_size, m.hidden_size, options)


# ---- attention

def masks(mask, key_padding, causal):
    return {k: v for k, v in {"mask": mask, "key_padding": key_padding, "causal": bool(causal) and mask is None}.items()
            if v is not None}


def call_attention(made, m, q, k, v, key_padding_mask=None, need_weights=True, attn_mask=None,
                   average_attn_weights=True, is_causal=False):
    if need_weights and not average_attn_weights:
        raise No("average_attn_weights=")
    batch = 0 if m.batch_first else 1
    alone = q.dim() == 2  # a sequence without a batch is one of 1
    if alone:
        q, k, v = (tn.unsqueeze(t, batch) for t in (q, k, v))
        key_padding_mask = key_padding_mask and tn.unsqueeze(key_padding_mask, 0)
    weights = Out() if need_weights else None
    y = tn.multihead_attention_forward(made, q, k, v, masks(attn_mask, key_padding_mask, is_causal), weights)
    y = tn.squeeze(y, batch) if alone else y
    return [y, tn.squeeze(weights.get(), 0) if alone else weights.get()] if need_weights else [y]


@module("MultiheadAttention", call=call_attention)
def attention(m):
    same = m.kdim == m.embed_dim and m.vdim == m.embed_dim
    return tn.multihead_attention_new(m.embed_dim, m.num_heads, {
        "dropout": m.dropout, "no_bias": m.in_proj_bias is None, "sequence_first": not m.batch_first,
        "kdim": 0 if same else m.kdim, "vdim": 0 if same else m.vdim, "add_bias_kv": m.bias_k is not None,
        "add_zero_attn": m.add_zero_attn})


def call_encoder(name):
    def call(made, m, x, mask=None, src_key_padding_mask=None, is_causal=False, src_mask=None):
        layer = m.layers[0] if hasattr(m, "layers") else m
        batch, alone = 0 if layer.self_attn.batch_first else 1, x.dim() == 2
        if alone:
            x = tn.unsqueeze(x, batch)
            src_key_padding_mask = src_key_padding_mask and tn.unsqueeze(src_key_padding_mask, 0)
        y = getattr(tn, name)(made, x, masks(mask if src_mask is None else src_mask, src_key_padding_mask, is_causal))
        return tn.squeeze(y, batch) if alone else y
    return call


def call_decoder(made, m, x, memory, tgt_mask=None, memory_mask=None, tgt_key_padding_mask=None,
                 memory_key_padding_mask=None, tgt_is_causal=False, memory_is_causal=False):
    batch, alone = 0 if m.self_attn.batch_first else 1, x.dim() == 2
    if alone:
        x, memory = tn.unsqueeze(x, batch), tn.unsqueeze(memory, batch)
        tgt_key_padding_mask, memory_key_padding_mask = (
            k and tn.unsqueeze(k, 0) for k in (tgt_key_padding_mask, memory_key_padding_mask))
    y = tn.decoder_layer_forward(made, x, memory, masks(tgt_mask, tgt_key_padding_mask, tgt_is_causal),
                                 masks(memory_mask, memory_key_padding_mask, memory_is_causal))
    return tn.squeeze(y, batch) if alone else y


module("TransformerDecoderLayer", call=call_decoder)(lambda m: block(m, tn.decoder_layer_new))


@module("TransformerEncoderLayer", call=call_encoder("encoder_layer_forward"))
def encoder_layer(m):
    return block(m, tn.encoder_layer_new)


def block(m, new):
    act = getattr(m.activation, "__name__", type(m.activation).__name__)
    if act.lower() not in ("relu", "gelu"):
        raise No(f"activation={act}")
    return new(m.self_attn.embed_dim, m.self_attn.num_heads, {
        "feedforward": m.linear1.out_features, "dropout": m.dropout.p, "gelu": act.lower() == "gelu",
        "norm_first": m.norm_first, "sequence_first": not m.self_attn.batch_first, "eps": m.norm1.eps,
        "no_bias": m.self_attn.in_proj_bias is None})


@module("TransformerEncoder", call=call_encoder("encoder_forward"))
def encoder(m):
    norm = LAYERS["LayerNorm"](m.norm) if m.norm is not None else None
    return tn.encoder_new(encoder_layer(m.layers[0]), m.num_layers, norm or tn.no_module)


# ---- PyTorch's modules that are ops here

F = lambda name: ops.OPS["nn.functional." + name]
function("AdaptiveMaxPool1d")(lambda m, x: F("adaptive_max_pool1d")(x, m.output_size, m.return_indices))
function("LeakyReLU")(lambda m, x: F("leaky_relu")(x, m.negative_slope))
function("ELU")(lambda m, x: F("elu")(x, m.alpha))
function("CELU")(lambda m, x: F("celu")(x, m.alpha))
function("LogSoftmax")(lambda m, x: tn.log_softmax(x, m.dim))
function("Softmin")(lambda m, x: tn.softmax(tn.neg(x), m.dim))
function("Softmax2d")(lambda m, x: tn.softmax(x, -3))
function("Softplus")(lambda m, x: tn.softplus(x, m.beta, m.threshold))
for name, of in {"L1Loss": "l1_loss", "MSELoss": "mse_loss"}.items():
    function(name)(lambda m, x, t, of=of: F(of)(x, t, reduction=m.reduction))
function("SmoothL1Loss")(lambda m, x, t: F("smooth_l1_loss")(x, t, reduction=m.reduction, beta=m.beta))
function("HuberLoss")(lambda m, x, t: F("huber_loss")(x, t, reduction=m.reduction, delta=m.delta))
function("KLDivLoss")(lambda m, x, t: F("kl_div")(x, t, reduction=m.reduction, log_target=m.log_target))
function("NLLLoss")(lambda m, x, t, weight=None: F("nll_loss")(x, t, weight, None, m.ignore_index, None, m.reduction))
function("CrossEntropyLoss")(lambda m, x, t, weight=None: F("cross_entropy")(
    x, t, weight, None, m.ignore_index, None, m.reduction, m.label_smoothing))
function("BCEWithLogitsLoss")(lambda m, x, t, weight=None, pos_weight=None: F("binary_cross_entropy_with_logits")(
    x, t, weight, None, None, m.reduction, pos_weight))
function("BCELoss")(lambda m, x, t, weight=None: F("binary_cross_entropy")(x, t, weight, reduction=m.reduction))
function("PoissonNLLLoss")(lambda m, x, t: F("poisson_nll_loss")(
    x, t, m.log_input, m.full, eps=m.eps, reduction=m.reduction))
function("GaussianNLLLoss")(lambda m, x, t, var: F("gaussian_nll_loss")(x, t, var, m.full, m.eps, m.reduction))
function("TripletMarginLoss")(lambda m, a, p, n: F("triplet_margin_loss")(
    a, p, n, m.margin, m.p, m.eps, m.swap, reduction=m.reduction))
function("CTCLoss")(lambda m, x, t, steps, labels: F("ctc_loss")(
    x, t, steps, labels, m.blank, m.reduction, m.zero_infinity))
function("CosineSimilarity")(lambda m, a, b: F("cosine_similarity")(a, b, m.dim, m.eps))


@function("LinearCrossEntropyLoss")
def linear_cross_entropy(m, x, t, weight=None, **linear):
    if m.out_features:
        raise No("classes of several axes")
    return F("linear_cross_entropy")(
        x, linear["linear.weight"], t, linear_bias=linear.get("linear.bias"), weight=weight, reduction=m.reduction,
        ignore_index=m.ignore_index, label_smoothing=m.label_smoothing)


class ModuleEntry:
    """One of module_db: outputs, gradients of inputs and parameters, and buffers afterwards."""

    variants = ["", "strided"]
    strict = seeded = shapes = False
    mutates = True

    def __init__(self, info):
        self.info = info
        self.cls = info.module_cls
        self.name = "Module." + self.cls.__name__
        self.tolerances = compare.own_tolerances(info.decorators)
        # in 16 bits: several layers in one; in a transformer a unit of ReLU that is nearly 0 may also change sides
        self.depth = 32 if "Transformer" in self.name else 8 if re.search("RNN|GRU|LSTM|Attention", self.name) else 2

    def dtypes(self):
        return [d for d in DTYPES if d in self.info.supported_dtypes("cpu")] + [
            d for d in (torch.bfloat16, torch.float16) if d not in self.info.supported_dtypes("cpu")]

    def samples(self, dtype, most):
        found = []
        for training in (True, False) if self.info.train_and_eval_differ else (True,):
            torch.manual_seed(1)
            inputs = self.info.module_inputs_func(self.info, "cpu", dtype, True, training)
            for i in inputs:
                found.append((i.constructor_input.args, i.constructor_input.kwargs, i.forward_input, training))
            if self.cls in (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM) and training:
                found += more_sequences(self.cls, dtype)
        return found[:most]

    def describe(self, sample):
        args, kwargs, forward, training = sample
        return (f"{compare.describe(args, kwargs)})({compare.describe(forward.args, forward.kwargs)}"
                f"{'' if training else ', eval'}")

    def run(self, sample, dtype, variant):
        args, kwargs, forward, training = sample
        torch.manual_seed(2)
        try:
            m = self.cls(*args, **kwargs).to(dtype).train(training)
        except Exception as e:
            return "no answer", str(e)[:100], ""
        random = lambda c: getattr(c, "p", 0) or isinstance(getattr(c, "dropout", 0), float) and c.dropout
        if training and any(map(random, m.modules())):
            return "unsaid", "random masks, which differ by design", ""
        parameters = {n: p.detach().clone().requires_grad_() for n, p in m.named_parameters()}
        buffers = {n: b.detach().clone() for n, b in m.named_buffers()}
        tree = [list(forward.args), dict(forward.kwargs), parameters, buffers]
        twin = list(walk(tree, torch.Tensor.clone))
        if variant:
            twin[:2] = walk(twin[:2], lambda t: noncontiguous_like(t).requires_grad_(t.requires_grad))
        return compare.run(self, lambda t: self.in_torch(m, *t), lambda t: self.in_tenon(m, dtype, *t), tree, twin,
                           dtype == torch.float64 and self.info.supports_gradgrad and "LinearCross" not in self.name)

    def in_torch(self, m, args, kwargs, parameters, buffers):
        y = torch.func.functional_call(m, {**parameters, **buffers}, tuple(args), kwargs)
        return [y, [b for b in buffers.values()]]

    def in_tenon(self, m, dtype, args, kwargs, parameters, buffers):
        if self.cls.__name__ in FUNCTIONS:
            state = {**parameters, **buffers}
            return [FUNCTIONS[self.cls.__name__](m, *args, **kwargs, **state), list(buffers.values())]
        made = LAYERS[self.cls.__name__](m)
        try:
            tn.module_to_dtype(made, dtype)
            tn.train(made, m.training)
            state = tn.list_new()
            for name, t in {**parameters, **buffers}.items():
                tn.list_add(state, name, t)
            tn.load_state_dict(made, state, {}, None)  # names, shapes and dtypes must be PyTorch's
            for name, t in {**parameters, **buffers}.items():
                tn.module_set(made, name, t)
            call = CALLS.get(self.cls.__name__, lambda made, m, input: tn.forward(made, input))
            y = call(made, m, *args, **kwargs)
            return [y, list(buffers.values())]
        finally:
            tn.module_drop(made)


class FunctionInput:
    def __init__(self, *args):
        self.args, self.kwargs = args, {}


def more_sequences(cls, dtype):
    """Batches, of which the database has none."""
    draw = lambda *s: torch.randn(*s, dtype=torch.float64).to(dtype).requires_grad_()
    for layers, both in ((1, False), (2, True)):
        for first in (False, True):
            kwargs = {"num_layers": layers, "bidirectional": both, "batch_first": first}
            h = lambda: draw(layers * (1 + both), 3, 6)
            state = (h(), h()) if cls is torch.nn.LSTM else h()
            x = draw(3, 7, 5) if first else draw(7, 3, 5)
            yield (5, 6), kwargs, FunctionInput(x), True
            yield (5, 6), kwargs, FunctionInput(x, state), True


# ---- optimizers

OPTIMIZERS = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw", "RMSprop": "rmsprop", "Adagrad": "adagrad"}
BY_NAME = {"Adamax": "adamax", "NAdam": "nadam", "RAdam": "radam", "Adafactor": "adafactor"}  # numbers by name
HOW = {"foreach", "fused", "capturable", "differentiable"}  # how PyTorch computes, not what
ELSEWHERE = {"initial_accumulator_value": "initial_accumulator"}
STEPS = 10


class OptimEntry:
    """One of optim_db: the parameters after each of ten steps, and the state; with a schedule, also the rates."""

    variants = [""]
    strict = seeded = shapes = False
    mutates = True
    tolerances = compare.TOLERANCE
    depth = 2

    def __init__(self, info):
        self.info = info
        self.cls = info.optim_cls
        self.name = "Optimizer." + self.cls.__name__

    def dtypes(self):
        return DTYPES[:4]

    def samples(self, dtype, most):
        found = [(i.kwargs, i.desc, None) for i in self.info.optim_inputs_func(device="cpu")]
        for make in self.info.scheduler_inputs:
            found.append(({"lr": 0.1}, "schedule " + str(len(found)), make))
        return found

    def describe(self, sample):
        kwargs, desc, make = sample
        return desc + ": " + compare.describe([], kwargs)

    def run(self, sample, dtype, variant):
        kwargs, desc, make = sample
        kwargs = {k: v.item() if isinstance(v, torch.Tensor) else tuple(map(float, v)) if k == "betas" else v
                  for k, v in kwargs.items() if k not in HOW}
        g = torch.Generator().manual_seed(3)
        draw = lambda *s: torch.randn(s, generator=g, dtype=torch.float64).to(dtype)
        start = [draw(3, 4), draw(5), draw()]
        slopes = [[draw(*p.shape) for p in start] for _ in range(STEPS)]
        tree = [start, slopes]
        return compare.run(self, lambda t: self.in_torch(kwargs, make, *t), lambda t: self.in_tenon(kwargs, make, *t),
                           tree, walk(tree, torch.Tensor.clone), False)

    def in_torch(self, kwargs, make, start, slopes):
        p = [t.detach().clone().requires_grad_() for t in start]
        opt = self.cls(p, **kwargs)
        schedules = [f(opt) for f in make] if make else []
        seen = []
        for k in range(STEPS):
            for t, g in zip(p, slopes[k]):
                t.grad = (g + (t.detach() if k % 2 else 0)).to(t.dtype)
            opt.step()
            for s in schedules:
                s.step(*([1.0] if isinstance(s, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
            seen += [t.detach().clone() for t in p] + [torch.tensor(opt.param_groups[0]["lr"], dtype=torch.float64)]
        return seen

    def in_tenon(self, kwargs, make, start, slopes):
        named = tn.list_new()
        p = []
        for i, t in enumerate(start):
            tn.set_requires_grad(t, True)
            tn.list_add(named, f"p{i}", t)
            p.append(t)
        opt = self.make(kwargs, named)
        schedules = []
        try:
            schedules = [schedule(opt, f(self.cls([torch.zeros(1)], **kwargs))) for f in make] if make else []
            seen = []
            for k in range(STEPS):
                was = tn.set_grad_enabled(False)
                for t, g in zip(p, slopes[k]):
                    tn.set_grad(t, tn.add(g, tn.detach(t)) if k % 2 else tn.clone(g))
                tn.set_grad_enabled(was)
                tn.optim_step(opt)
                for plateau, s in schedules:
                    tn.plateau_step(s, 1.0) if plateau else tn.scheduler_step(s)
                seen += [tn.clone(tn.detach(t)) for t in p]
                seen.append(tn.full_as((), tn.optim_lr(opt, 0), torch.float64, ops.CPU))
            return seen
        finally:
            for _, s in schedules:
                tn.scheduler_free(s)
            tn.optim_free(opt)

    def make_by_name(self, kwargs, named):
        numbers, given = [], {**self.cls([torch.zeros(1)]).defaults, **kwargs}
        for k, v in given.items():
            if k == "betas":
                numbers += [("beta1", v[0]), ("beta2", v[1])]
            elif k == "eps" and isinstance(v, (tuple, list)):
                numbers += [(n, x) for n, x in (("eps1", v[0]), ("eps2", v[1])) if x is not None]
            elif k not in HOW and k not in ("lr", "weight_decay") and v is not None:
                numbers.append((k, -v if k == "beta2_decay" else v))
        return getattr(tn, BY_NAME[self.cls.__name__])(named, {
            "lr": given["lr"], "use_lr": True, "weight_decay": given["weight_decay"],
            "set": [(n.encode(), float(x)) for n, x in numbers if n != "maximize" or x]})

    def make(self, kwargs, named):
        if self.cls.__name__ in BY_NAME:
            return self.make_by_name(kwargs, named)
        name = OPTIMIZERS[self.cls.__name__]
        default = self.cls([torch.zeros(1)]).defaults
        options, zeros = {}, []
        for k, v in {**default, **kwargs}.items():
            if k in HOW or v is None:
                continue
            if k == "betas":
                options.update(beta1=v[0], beta2=v[1], use_betas=True)
            elif k == "decoupled_weight_decay":
                if v != (name == "adamw"):
                    raise No("decoupled_weight_decay=")
            else:
                options[ELSEWHERE.get(k, k)] = v
                if v == 0 and k in ("lr", "eps", "alpha"):
                    zeros.append(k)
        opt = getattr(tn, name)(named, options)
        for k in zeros:
            tn.optim_set_lr(opt, 0, 0.0) if k == "lr" else tn.optim_set_number(opt, 0, k, 0.0)
        return opt


def schedule(opt, s):
    """tenon's schedule like PyTorch's; whether it is a plateau."""
    kind = type(s).__name__
    if kind == "ReduceLROnPlateau":
        return True, tn.plateau_lr(opt, {"factor": s.factor, "patience": s.patience, "use_patience": True,
                                         "threshold": s.threshold, "cooldown": s.cooldown, "maximize": s.mode == "max"})
    return False, {
        "StepLR": lambda: tn.step_lr(opt, s.step_size, s.gamma),
        "ExponentialLR": lambda: tn.exponential_lr(opt, s.gamma),
        "LinearLR": lambda: tn.linear_lr(opt, s.start_factor, s.end_factor, s.total_iters),
        "ConstantLR": lambda: tn.constant_lr(opt, s.factor, s.total_iters),
        "PolynomialLR": lambda: tn.polynomial_lr(opt, s.total_iters, s.power),
    }[kind]()


def entries():
    return [ModuleEntry(i) for i in module_db if i.module_cls.__name__ in {**LAYERS, **FUNCTIONS}] + \
        [OptimEntry(i) for i in optim_db if i.optim_cls.__name__ in {**OPTIMIZERS, **BY_NAME}]
