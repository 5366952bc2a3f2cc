#!/usr/bin/env python3
"""Makes half.safetensors: ops and optimizers on bf16 and f16, by PyTorch.

usage: python3 tests/golden/make_half.py [FILE]      needs PyTorch 2 and safetensors

Keys, for a case NAME and D in bf16, f16:
    NAME/D/in0 ...       inputs
    NAME/D/out           the result in f32, computed from these inputs as f32, rounded once to D
    NAME/D/seed, grad0   a cotangent, and the gradients of sum(out * seed), rounded in the same way
    OPTIMIZER/D/p0       a parameter, and
    OPTIMIZER/D/p        its values after each of STEPS steps in f32 from D's values, after each of which the
                         parameter and its state were rounded to D; gradients: OPTIMIZER/D/g
PyTorch's own ops on D must agree with these to within the number of units that the case allows, or this
script fails: so what tenon is compared with is what PyTorch computes, without its intermediate roundings.
"""
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
STEPS = 6
tensors = {}


def units(got, want, dtype):
    """The largest difference in units in the last place of the largest element."""
    scale = torch.finfo(dtype).eps * max(want.abs().max().item(), torch.finfo(dtype).tiny)
    return (got.float() - want.float()).abs().max().item() / scale


def run(f, inputs, seed):
    x = [t.clone().requires_grad_() if t.is_floating_point() else t for t in inputs]
    y = f(*x)
    seed = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype) if seed is None else seed
    floating = [t for t in x if t.is_floating_point()]
    grads = iter(torch.autograd.grad(y, floating, seed.to(y.dtype), allow_unused=True))
    return y.detach(), seed, [next(grads) if t.is_floating_point() else None for t in x]


def case(name, f, *inputs, keep=(), units_out=2.0, units_grad=4.0):
    """keep: inputs that stay f32."""
    for label, dtype in DTYPES.items():
        narrow = [t.to(dtype) if t.is_floating_point() and i not in keep else t for i, t in enumerate(inputs)]
        y, seed, grads = run(f, narrow, None)
        wide = [t.float() if t.is_floating_point() else t for t in narrow]
        want, _, want_grads = run(f, wide, seed)
        assert y.dtype == dtype, (name, y.dtype)
        assert units(y, want, dtype) <= units_out, (name, label, units(y, want, dtype))
        for i, t in enumerate(narrow):
            tensors[f"{name}/{label}/in{i}"] = t
        tensors[f"{name}/{label}/out"] = want.to(dtype)
        tensors[f"{name}/{label}/seed"] = seed
        for i, (g, w) in enumerate(zip(grads, want_grads)):
            if g is None:
                continue
            assert g.dtype == narrow[i].dtype
            assert units(g, w, dtype) <= units_grad, (name, label, i, units(g, w, dtype))
            tensors[f"{name}/{label}/grad{i}"] = w.to(narrow[i].dtype)


def optimizer(name, make, units_p):
    for label, dtype in DTYPES.items():
        start = torch.randn(12).to(dtype)
        gradients = torch.randn(STEPS, 12).to(dtype)
        wide, native = start.float().requires_grad_(), start.clone().requires_grad_()
        opt, own, seen = make([wide]), make([native]), []
        for g in gradients:
            wide.grad, native.grad = g.float(), g.clone()
            opt.step()
            own.step()
            with torch.no_grad():
                wide.copy_(wide.to(dtype))
                for key, s in opt.state[wide].items():
                    if key != "step" and torch.is_tensor(s):
                        s.copy_(s.to(dtype))
            seen.append(wide.detach().to(dtype))
        off = units(native.detach(), wide.detach(), dtype)
        assert off <= units_p, (name, label, off)
        tensors[f"{name}/{label}/p0"] = start
        tensors[f"{name}/{label}/g"] = gradients
        tensors[f"{name}/{label}/p"] = torch.stack(seen)


def bn(x, w, b, mean, var):
    """y, and the running statistics after it."""
    mean, var = mean.detach().clone(), var.detach().clone()
    y = F.batch_norm(x, mean, var, w, b, True, 0.3)
    return torch.cat([y.flatten(), mean.to(y.dtype), var.to(y.dtype)])


if __name__ == "__main__":
    torch.manual_seed(3)
    r = torch.randn
    ids = torch.randint(7, (12,))
    case("softmax", lambda x: F.softmax(x, -1), r(5, 33))
    case("softmax_first", lambda x: F.softmax(x, 0), r(5, 9))
    case("log_softmax", lambda x: F.log_softmax(x, -1), r(5, 33))
    case("cross_entropy", F.cross_entropy, r(12, 7), ids)
    case("cross_entropy_weight", lambda x, t, w: F.cross_entropy(x, t, w.detach(), label_smoothing=0.2),
         r(12, 7), ids, torch.rand(7) + 0.5)
    case("cross_entropy_probabilities", lambda x, t: F.cross_entropy(x, t.detach()), r(6, 7),
         F.softmax(r(6, 7), -1))
    case("nll_loss", F.nll_loss, F.log_softmax(r(12, 7), -1), ids)
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (19,), w, b), r(8, 19), 1 + 0.2 * r(19), r(19))
    case("layer_norm_f32", lambda x, w, b: F.layer_norm(x, (19,), w, b), r(8, 19), 1 + 0.2 * r(19), r(19), keep=(1, 2))
    case("layer_norm_shifted", lambda x: F.layer_norm(x, (19,)), 20 + r(8, 19), units_grad=32)
    parts = 1 + 0.2 * r(3), r(3), 0.3 * r(3), torch.rand(3) + 0.5
    case("batch_norm", bn, r(4, 3, 5, 2), *parts)
    case("batch_norm_f32", bn, r(4, 3, 5, 2), *parts, keep=(1, 2, 3, 4))
    case("batch_norm_shifted", lambda x: F.batch_norm(x, None, None, None, None, True), 20 + r(4, 3, 5, 2),
         units_out=32, units_grad=32)
    case("batch_norm_eval", lambda x, w, b, m, v: F.batch_norm(x, m.detach(), v.detach(), w, b), r(4, 3, 5), *parts)
    case("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), r(2, 3, 9, 8))
    case("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), r(2, 3, 9, 8))
    case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), r(2, 3, 9, 8))
    case("embedding", lambda w, i: F.embedding(i, w), r(6, 5), torch.randint(6, (40,)), units_grad=16)
    case("index_select", lambda x, i: x.index_select(1, i), r(3, 6), torch.randint(6, (20,)), units_grad=16)
    case("gather", lambda x, i: x.gather(1, i), r(3, 6), torch.randint(6, (3, 20)), units_grad=16)
    case("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), r(3, 6), torch.randint(6, (3, 20)), r(3, 20),
         units_out=16)
    case("mse_loss", F.mse_loss, r(40), r(40))
    case("mse_loss_rows", lambda x, t: F.mse_loss(x, t, reduction="none"), r(200), r(200))
    case("l1_loss", F.l1_loss, r(40), r(40))
    case("smooth_l1_loss", lambda x, t: F.smooth_l1_loss(x, t, beta=0.7), r(40), r(40))
    case("huber_loss", lambda x, t: F.huber_loss(x, t, delta=0.7), r(40), r(40))
    case("bce_with_logits", F.binary_cross_entropy_with_logits, r(40), torch.rand(40), units_grad=8)
    case("kl_div", lambda x, t: F.kl_div(x, t, reduction="batchmean"), F.log_softmax(r(6, 7), -1),
         F.softmax(r(6, 7), -1), units_grad=8)
    optim = torch.optim
    optimizer("sgd", lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01), 8)
    optimizer("adam", lambda p: optim.Adam(p, 0.1, (0.8, 0.9)), 8)
    optimizer("adamw", lambda p: optim.AdamW(p, 0.1, (0.8, 0.9), weight_decay=0.1, amsgrad=True), 8)
    optimizer("rmsprop", lambda p: optim.RMSprop(p, 0.05, 0.9, momentum=0.5, centered=True), 16)
    optimizer("adagrad", lambda p: optim.Adagrad(p, 0.1), 8)
    case("pad", lambda x: F.pad(x, (1, 2)), r(2, 3, 5))
    case("pad_reflect", lambda x: F.pad(x, (2, 1, 1, 2), "reflect"), r(2, 3, 9, 8), units_grad=4)
    case("interpolate", lambda x: F.interpolate(x, (13, 9)), r(2, 3, 9, 8))
    case("interpolate_bilinear", lambda x: F.interpolate(x, (13, 9), mode="bilinear"), r(2, 3, 9, 8), units_grad=16)
    case("interpolate_bicubic", lambda x: F.interpolate(x, (4, 13), mode="bicubic"), r(2, 3, 9, 8),
         units_out=16, units_grad=16)
    here = os.path.dirname(os.path.abspath(__file__))
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "half.safetensors")
    save_file({key: value.detach().clone().contiguous() for key, value in tensors.items()}, path,
              {"torch": torch.__version__, "made_by": "tests/golden/make_half.py"})
