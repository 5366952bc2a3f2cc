"""What the PyTorch twins share: the peer's versions, the same data, weights and lines."""
import argparse
import json
import math
import os
import re
import statistics
import sys
import time

# The ways to run PyTorch on a CPU; a program takes those that change something in it.
WAYS = {
    "eager": {},
    "eager-written": {"attention": "written"},     # softmax(q k^T) v in four calls
    "eager-pieces": {"loss": "pieces"},            # F.linear_cross_entropy, some logits at a time
    "eager-channels": {"layout": "channels_last"},  # for convolutions
    "compiled": {"compile": "default"},
    "compiled-written": {"compile": "default", "attention": "written"},
    "compiled-channels": {"compile": "default", "layout": "channels_last"},
    "each-0": {"fetch": "each", "workers": 0},      # a DataLoader asks for image by image
    "each-2": {"fetch": "each", "workers": 2},
    "batch-0": {"fetch": "batch", "workers": 0},    # for a batch at once
    "batch-2": {"fetch": "batch", "workers": 2},
}


def parse(steps, warmup, config=None):
    """The flags of bench_parse() in bench.c, and how PyTorch runs."""
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default=config)
    ap.add_argument("--weights", help="initial weights, as the tenon program wrote them")
    ap.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    ap.add_argument("--precision", choices=["f32", "tf32", "bf16"], help="f32 by default")
    ap.add_argument("--batch", type=int, default=0)
    ap.add_argument("--steps", type=int, default=steps)
    ap.add_argument("--warmup", type=int, default=warmup)
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--rounds", type=int, default=0, help="see bench_round() in bench.h")
    ap.add_argument("--block", type=int, default=0)
    ap.add_argument("--recompute", action="store_true", help="of bench_gpt: a block's activations again in backward")
    ap.add_argument("--int8", action="store_true", help="of bench_generate: weights of bytes")
    ap.add_argument("--lora", type=int, default=0, help="of bench_finetune: the rank of adapters")
    ap.add_argument("--find-batch", type=int, default=0)
    ap.add_argument("--compile", help="a mode of torch.compile: default, reduce-overhead, max-autotune")
    ap.add_argument("--way", choices=WAYS, help="one of run.sh's ways: sets --compile too")
    ap.add_argument("--data", help="a folder")
    ap.add_argument("--only", default="", help="of ops: those whose names contain this")
    ap.add_argument("--meet", help="a file that the processes of an mpirun find each other by")
    for option, preset in {"smooth": 0.0, "decay": 5e-4}.items():
        ap.add_argument("--" + option, type=float, default=preset, help="of fashion: of labels, of weights")
    for size in ("layers", "width", "context"):
        ap.add_argument("--" + size, type=int, default=0)
    args = ap.parse_args()
    vars(args).update({"attention": "fused", "layout": "contiguous", "loss": "whole"} | WAYS.get(args.way, {}))
    args.block = args.block or (10 if args.device == "cuda" else 1)
    args.rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
    args.ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
    return args


def name_of(args, workload):
    """SIDE_WORKLOAD, as bench_name() in bench.c; the side says how PyTorch runs."""
    side = args.way or {None: "torch", "default": "compile", "reduce-overhead": "cudagraph",
                        "max-autotune": "autotune"}[args.compile]
    batch = f"_b{args.batch}" if args.batch and not args.find_batch else ""
    return f"{side}_{workload}{batch}" + (f"_{args.precision}" if args.precision else "")


def blas():
    """The BLAS that is mapped into this process, but for numpy's own. The pthread build of OpenBLAS would fight with
    PyTorch's OpenMP threads and flatter us: it is refused."""
    maps = open("/proc/self/maps").read()
    found = sorted(set(re.findall(r"/\S*(?:openblas|libblas|mkl|blis)\S*\.so\S*", maps)))
    real = [os.path.realpath(f) for f in found if "/numpy.libs/" not in f]
    if any("openblas-pthread" in f or "openblas-serial" in f for f in real):
        sys.exit(f"torch uses {real}: want the OpenMP OpenBLAS (libopenblas0-openmp)")
    return real


def setup(args, workload):
    """torch, told what the flags say; args.name and args.wait for later."""
    import torch
    args.name = name_of(args, workload)
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.ranks > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("gloo", init_method=f"file://{os.path.abspath(args.meet)}",
                                             rank=args.rank, world_size=args.ranks)
        if args.rank:  # rank 0 alone prints
            sys.stdout = open(os.devnull, "w")
    if args.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("--device cuda: torch finds no GPU")
        torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
        torch.backends.cudnn.benchmark = True
        print(f"# {args.name}: torch {torch.__version__}, CUDA {torch.version.cuda}, "
              f"{torch.cuda.get_device_name()}", file=sys.stderr, flush=True)
    else:
        torch.ones(256, 256) @ torch.ones(256, 256)
        libraries = blas() or ["MKL" if torch.backends.mkl.is_available() else "none that is known"]
        simd = getattr(torch.backends, "cpu", None)
        print(f"# {args.name}: torch {torch.__version__}, {torch.get_num_threads()} threads, "
              f"BLAS {', '.join(libraries)}, oneDNN {torch.backends.mkldnn.is_available()}"
              + (f", {simd.get_cpu_capability()}" if simd else ""), file=sys.stderr, flush=True)
    args.wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    try:  # what PyTorch loads at the first step; its compiler is no part of a step's memory
        import torch._dynamo
        if (args.way or "").startswith("compiled"):
            import torch._inductor.compile_fx
    except ImportError:
        pass
    args.start = memory_at_start()
    return torch


def place(net, args):
    """The network on its device, after its weights are loaded. Convolutions in bf16 on a GPU are at
    their best with channels last."""
    import torch
    if args.layout == "channels_last" or (args.device == "cuda" and args.precision == "bf16"):
        return net.to(args.device, memory_format=torch.channels_last)
    return net.to(args.device)


def share(net, args):
    """With several processes: PyTorch's DistributedDataParallel over gloo."""
    import torch
    return torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True) if args.ranks > 1 else net


def optimizer(kind, parameters, **options):
    """With one kernel a step, where this PyTorch has it for the device; else as PyTorch chooses."""
    parameters = list(parameters)
    try:
        return kind(parameters, fused=True, **options)
    except (TypeError, RuntimeError):  # unknown to this optimizer; not on this device
        return kind(parameters, **options)


def rounds(args):
    """The rounds of timed steps, one by one; what bench.h says of bench_round() holds here too."""
    for n in range(args.rounds or 1):
        if args.rounds and not args.rank:
            print("# ready", flush=True)
            if not sys.stdin.readline():
                sys.exit(f"--rounds {args.rounds}: standard input ends after {n}: want a line for each")
        yield n


def fashion(torch, args, name):
    """The bytes of a file of Fashion-MNIST, images [N, 28, 28] or labels [N]."""
    import gzip
    folder = args.data or "/usr/share/datasets/fashion-mnist"
    with gzip.open(os.path.join(folder, name + ".gz")) as f:
        data = f.read()
    sizes = [int.from_bytes(data[4 * k:4 * k + 4], "big") for k in range(1, data[3] + 1)]
    return torch.frombuffer(bytearray(data[4 * len(sizes) + 4:]), dtype=torch.uint8).view(sizes)


def line(name, metric, values):
    v = sorted(values)
    print(f"{name},{metric},{statistics.median(v):.8g},{v[0]:.8g},{v[-1]:.8g}", flush=True)


def most_mib():
    """The most memory so far: VmHWM."""
    with open("/proc/self/status") as f:
        return int(re.search(r"VmHWM:\s*(\d+)", f.read()).group(1)) / 1024


def memory_at_start():
    """Makes VmHWM what the process holds now, where the kernel lets it."""
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        pass
    return most_mib()


def memory(args, name):
    """What bench_memory() in bench.c prints."""
    line(name, "start_MiB", [args.start])
    line(name, "peak_MiB", [most_mib() - args.start])


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


def noise(torch, shape, classes):
    """make_images() of bench_vision.c"""
    import numpy as np
    numbers = mix(np.arange(math.prod(shape))) >> np.uint64(8)
    labels = mix(np.arange(shape[0]) + 0x20000000).astype(np.int64) % classes
    pixels = numbers.astype(np.float32) * np.float32(2.0 ** -24) - np.float32(0.5)
    return torch.from_numpy(pixels.reshape(shape)), torch.from_numpy(labels)


# ---- the same weights --------------------------------------------------------------------------

def tensors(path):
    """(name, array) of a safetensors file's tensors; of bf16, which numpy does not have, as f32."""
    import numpy as np
    kinds = {"F32": np.float32, "I64": np.int64, "BOOL": np.bool_, "BF16": np.uint16}
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        values = np.frombuffer(data[begin:end], kinds[t["dtype"]]).reshape(t["shape"])
        if t["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        yield name, values


def load(torch, net, path, rename=()):
    """Copies a safetensors file into net: every name must be there, on both sides."""
    state = {}
    for name, values in tensors(path):
        for old, new in rename:
            name = name.replace(old, new)
        state[name] = torch.from_numpy(values.copy())
    net.load_state_dict(state, strict=True)


# ---- timed steps -------------------------------------------------------------------------------

class Session:
    """Training steps; what train.c says about blocks and parts holds here too."""

    def __init__(self, args, net, optimizer, loss_of, batch):
        import torch
        self.args, self.optimizer, self.batch, self.torch = args, optimizer, batch, torch
        self.autocast = lambda: torch.autocast(args.device, torch.bfloat16,
                                               enabled=args.precision == "bf16")
        self.loss_of = loss_of if args.compile is None else torch.compile(loss_of, mode=args.compile)
        self.taken, self.losses, self.steps, self.parts = 0, {}, [], []

    def host_batch(self):
        x, y = self.batch(self.taken)
        if self.args.ranks > 1:  # this rank's rows
            if len(x) % self.args.ranks:
                sys.exit(f"a batch of {len(x)}: want a multiple of {self.args.ranks}")
            rows, rank = len(x) // self.args.ranks, self.args.rank
            x, y = x[rank * rows:(rank + 1) * rows], y[rank * rows:(rank + 1) * rows]
        return (x.pin_memory(), y.pin_memory()) if self.args.device == "cuda" else (x, y)

    def step(self, x, y, parts):
        stamp = lambda: (self.args.wait() if parts else None, time.perf_counter())[1]
        x = x.to(self.args.device, non_blocking=True)
        y = y.to(self.args.device, non_blocking=True)
        if self.args.compile and self.args.device == "cuda":
            self.torch.compiler.cudagraph_mark_step_begin()  # results of the step before may go
        t0 = stamp()
        with self.autocast():
            loss = self.loss_of(x, y)
        t1 = stamp()
        loss.backward()
        t2 = stamp()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if parts:
            self.parts.append((t1 - t0, t2 - t1, stamp() - t2))
        return loss.detach()

    def block(self, n, parts=False, timed=True):
        first, batches = self.taken, []
        for i in range(n):
            batches.append(self.host_batch())
            self.taken += 1
        self.args.wait()
        t0 = time.perf_counter()
        for i, (x, y) in enumerate(batches):
            loss = self.step(x, y, parts)
            if first + i in (0, 9):
                self.losses[first + i] = loss.clone()
            if i == n - 1:
                self.losses[-1] = loss.clone()
        self.args.wait()
        if timed:
            self.steps.append((time.perf_counter() - t0) / n)

    def run(self, count, at_once, **how):
        for left in range(count, 0, -at_once):
            self.block(min(left, at_once), **how)


def run(args, unit, per_step, net, optimizer, loss_of, batch, flop=0):
    """flop: of forward and backward, a unit."""
    torch = sys.modules["torch"]
    s = Session(args, net, optimizer, loss_of, batch)
    s.run(args.warmup, args.block, timed=False)
    for _ in rounds(args):
        timed_round(s, unit, per_step, net, flop)
    if args.ranks > 1:
        torch.distributed.destroy_process_group()


def timed_round(s, unit, per_step, net, flop):
    """One round of timed steps, and its lines."""
    torch, args, name = s.torch, s.args, s.args.name
    s.steps.clear()
    s.parts.clear()
    s.run(args.steps, args.block, parts=args.block == 1)
    if args.ranks > 1:
        for loss in s.losses.values():
            torch.distributed.all_reduce(loss)
            loss /= args.ranks
    losses, taken = {k: v.item() for k, v in s.losses.items()}, s.taken
    if args.block > 1:
        s.run(args.block, 1, parts=True, timed=False)
    line(name, "ms/step", [1e3 * t for t in s.steps])
    for k, part in enumerate(("forward", "backward", "optimizer")):
        line(name, f"ms_{part}", [1e3 * p[k] for p in s.parts])
    line(name, f"{unit}/s", [per_step / t for t in s.steps])
    if flop:
        line(name, "TFLOP/s", [1e-12 * flop * per_step / t for t in s.steps])
    line(name, "loss_1", [losses[0]])
    if taken >= 10:
        line(name, "loss_10", [losses[9]])
    line(name, "loss_last", [losses[-1]])
    line(name, "parameters", [sum(p.numel() for p in net.parameters())])
    if args.device == "cuda":
        line(name, "peak_gpu_MiB", [torch.cuda.max_memory_allocated() / 2**20])
        line(name, "reserved_gpu_MiB", [torch.cuda.max_memory_reserved() / 2**20])
    else:
        memory(args, name)


def fits(args, net, optimizer, loss_of, batch):
    """Two steps. False when memory runs out."""
    torch = sys.modules["torch"]
    try:
        Session(args, net, optimizer, loss_of, batch).run(2, 2, timed=False)
        args.wait()
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        optimizer.zero_grad(set_to_none=True)
        if args.device == "cuda":
            torch.cuda.empty_cache()
