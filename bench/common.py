"""What the PyTorch twins share: the peer's versions, the same data, weights and lines."""
import argparse
import json
import os
import re
import resource
import statistics
import sys
import time


def parse(steps, warmup, config=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default=config)
    ap.add_argument("--weights", help="initial weights, as the tenon program wrote them")
    ap.add_argument("--steps", type=int, default=steps)
    ap.add_argument("--warmup", type=int, default=warmup)
    ap.add_argument("--threads", type=int, default=0)
    return ap.parse_args()


def blas():
    """The BLAS that is mapped into this process. The pthread build of OpenBLAS would fight with
    PyTorch's OpenMP threads and flatter us: it is refused."""
    maps = open("/proc/self/maps").read()
    found = sorted(set(re.findall(r"/\S*(?:openblas|libblas|mkl|blis)\S*\.so\S*", maps)))
    real = [os.path.realpath(f) for f in found]
    if any("openblas-pthread" in f or "openblas-serial" in f for f in real):
        sys.exit(f"torch uses {real}: wanted the OpenMP OpenBLAS (libopenblas0-openmp)")
    return real


def setup(name, args):
    import torch
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    torch.ones(64, 64) @ torch.ones(64, 64)
    libraries = blas()
    if not any("openblas" in f for f in libraries):
        print(f"# {name}: no OpenBLAS is mapped: {libraries}", file=sys.stderr)
    print(f"# {name}: torch {torch.__version__}, {torch.get_num_threads()} threads, "
          f"BLAS {', '.join(libraries)}", file=sys.stderr, flush=True)
    return torch


def line(name, metric, values):
    v = sorted(values)
    print(f"{name},{metric},{statistics.median(v):.8g},{v[0]:.8g},{v[-1]:.8g}", flush=True)


def peak_rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---- the same data as bench.c ------------------------------------------------------------------

def mix(x):
    import numpy as np
    x = np.asarray(x, dtype=np.uint64) & np.uint64(0xFFFFFFFF)
    u, m = np.uint64, np.uint64(0xFFFFFFFF)
    x = x ^ (x >> u(16))
    x = (x * u(0x85EBCA6B)) & m
    x = x ^ (x >> u(13))
    x = (x * u(0xC2B2AE35)) & m
    return x ^ (x >> u(16))


def tokens(torch, step, batch, context, vocab):
    import numpy as np
    row = (step * batch + np.arange(batch, dtype=np.int64))[:, None]
    t = np.arange(context + 1, dtype=np.int64)[None, :]
    start, stride = mix(row).astype(np.int64), 1 + mix(row + 0x40000000).astype(np.int64) % 5
    noise = mix((row * (context + 1) + t) ^ 0x5BD1E995).astype(np.int64)
    ids = (start % 65536 + t * stride) % vocab
    ids = np.where(noise % 8 == 0, noise // 8 % vocab, ids)
    return torch.from_numpy(ids)


def images(torch, count=2048, pixels=784, classes=10):
    import numpy as np
    n, p = np.arange(count)[:, None], np.arange(pixels)[None, :]
    luck = mix(np.arange(count) + 0x30000000).astype(np.int64)
    drawn = mix(np.arange(count) + 0x20000000).astype(np.int64) % classes
    labels = np.where(luck % 4 != 0, drawn, luck // 4 % classes)
    noise = (mix(n * pixels + p) >> np.uint64(8)).astype(np.float32) * np.float32(2.0 ** -24)
    x = noise + np.where(p % classes == drawn[:, None], np.float32(0.5), np.float32(0))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels)


# ---- the same weights --------------------------------------------------------------------------

def load(torch, net, path, rename=()):
    """Copies a safetensors file into net: every name must be there, on both sides."""
    import numpy as np
    kinds = {"F32": np.float32, "I64": np.int64, "BOOL": np.bool_}
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    state = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        for old, new in rename:
            name = name.replace(old, new)
        values = np.frombuffer(data[begin:end], kinds[t["dtype"]]).reshape(t["shape"])
        state[name] = torch.from_numpy(values.copy())
    net.load_state_dict(state, strict=True)


# ---- timed steps -------------------------------------------------------------------------------

def run(name, unit, per_step, net, optimizer, loss_of, batch, args):
    parts, losses = [], []
    for i in range(args.warmup + args.steps):
        x, y = batch(i)
        t0 = time.perf_counter()
        loss = loss_of(x, y)
        t1 = time.perf_counter()
        loss.backward()
        t2 = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        t3 = time.perf_counter()
        if i >= args.warmup:
            parts.append((t1 - t0, t2 - t1, t3 - t2, t3 - t0))
    line(name, "ms/step", [1e3 * p[3] for p in parts])
    line(name, "ms_forward", [1e3 * p[0] for p in parts])
    line(name, "ms_backward", [1e3 * p[1] for p in parts])
    line(name, "ms_optimizer", [1e3 * p[2] for p in parts])
    line(name, f"{unit}/s", [per_step / p[3] for p in parts])
    line(name, "loss_1", losses[:1])
    if len(losses) >= 10:
        line(name, "loss_10", [losses[9]])
    line(name, "loss_last", losses[-1:])
    line(name, "parameters", [sum(p.numel() for p in net.parameters())])
    line(name, "peak_rss_MiB", [peak_rss()])
