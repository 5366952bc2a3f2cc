#!/usr/bin/env python3
"""PyTorch's own test databases, run over tenon: every sample of its operators, modules and optimizers that tenon has.

usage: tests/torch_databases/run.py [--build build] [--filter TEXT] [--jobs 2] [--most 300] [--out FOLDER]
       tests/torch_databases/run.py --one ENTRY:DTYPE:NUMBER[:VARIANT]      prints one sample with both answers
Needs PyTorch 2.15, with expecttest and hypothesis, for which torch.testing._internal asks; no test of the suite does.

For each sample PyTorch and tenon compute forward values, gradients of random seeds and, in f64, second gradients.
tenon does so twice, from operands as the database lays them out and from strided copies ("strided"), and once more in
place ("inplace") where it has the op in place. An answer is
  equal     within torch.testing's tolerances of its dtype
  nearer    not, but within tolerance of PyTorch's own result in f64, or at most twice as far from it as PyTorch is
  wrong     anything else, also another shape or dtype
  refused   tenon fails with a message although PyTorch answers
  crashed   the process died or hung
and where tenon has no call for what the sample wants it is "unsaid", where PyTorch refuses "no answer".
"""
import argparse
import collections
import contextlib
import json
import mmap
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tenon import DTYPES, SHORT, tn

with contextlib.redirect_stderr(open(os.devnull, "w")):
    from torch.testing._internal.common_methods_invocations import op_db
    import compare
    import layers
    from special import special_samples
import ops
from compare import leaves, walk

KINDS = ["equal", "nearer", "documented", "wrong", "refused", "crashed", "unsaid", "no answer"]


class OpEntry:
    """One of op_db."""

    def __init__(self, info):
        self.info = info
        self.name = info.name + ("." + info.variant_test_name if info.variant_test_name else "")
        self.function = ops.OPS[self.name]
        self.variants = ["", "strided"] + ["inplace"] * (self.name in ops.INPLACE)
        self.tolerances = compare.own_tolerances(info.decorators)
        self.strict = ops.SPECIAL.get(self.name) == "unary"
        self.seeded = self.name in ops.SEEDED
        self.shapes = self.name in ops.SHAPES
        self.depth = 8 if "attention" in self.name else 2
        self.mutates = "batch_norm" in self.name

    def dtypes(self):
        return [d for d in DTYPES if d in self.info.supported_dtypes("cpu")]

    def samples(self, dtype, most):
        torch.manual_seed(1)
        grad = dtype in self.info.supported_backward_dtypes("cpu") and self.info.supports_autograd
        for make in (self.info.reference_inputs, self.info.sample_inputs):  # the former's begin with the latter's
            try:
                found = list(make("cpu", dtype, requires_grad=grad))
                break
            except Exception:
                found = []
        small = [s for s in found if sum(t.numel() for t in leaves([s.input, s.args, s.kwargs])) <= 20000]
        few = small if len(small) <= most else small[:: len(small) // most + 1]
        return few + list(special_samples(ops.SPECIAL.get(self.name), dtype, self.name))

    def describe(self, sample):
        return compare.describe([sample.input, *sample.args], sample.kwargs)

    def run(self, sample, dtype, variant):
        tree = [sample.input, list(sample.args), dict(sample.kwargs)]
        other = sample.noncontiguous() if variant else sample
        twin = [other.input, list(other.args), dict(other.kwargs)]
        if variant == "inplace":
            return self.run_in_place(*(walk(t, torch.Tensor.detach) for t in (tree, twin)))
        second = dtype == torch.float64 and self.info.supports_gradgrad and ".chunked" not in self.name
        # PyTorch's fused attention has p = 1 in backward where a row is masked whole by a finite number: not its judge
        with sdpa_kernel(SDPBackend.MATH):
            return compare.run(self, lambda t: self.info(t[0], *t[1], **t[2]),
                               lambda t: self.function(t[0], *t[1], **t[2]), tree, twin, second)

    def run_in_place(self, tree, twin):
        def in_torch(t):
            if 0 in t[0].stride() and t[0].numel() > 1:
                raise RuntimeError("an expanded target")
            return self.info.inplace_variant(t[0].clone(), *t[1], **t[2])

        def in_tenon(t):
            ops.INPLACE[self.name](t[0], *t[1], **t[2])
            return t[0]
        return compare.run(self, in_torch, in_tenon, tree, twin, False)


def all_entries():
    found = {}
    for info in op_db:
        name = info.name + ("." + info.variant_test_name if info.variant_test_name else "")
        if name in ops.OPS and name not in found:
            found[name] = OpEntry(info)
    return list(found.values()) + layers.entries()


# ---- a process for each entry, so that a crash costs one sample

class Board:
    """Counts and the place that a process has reached, in memory that its parent sees."""

    def __init__(self):
        self.map = memoryview(mmap.mmap(-1, 8 * (len(KINDS) + 2 + 8 * len(KINDS)))).cast("q")

    def count(self, kind, dtype):
        k = KINDS.index(kind)
        self.map[k] += 1
        self.map[len(KINDS) + 2 + 8 * k + DTYPES.index(dtype)] += 1


def work(entry, board, start, most, out):
    """In the child: all samples from number start on."""
    number = 0
    with open(out, "a", buffering=1) as file:
        for dtype in entry.dtypes():
            if dtype not in DTYPES:
                continue
            samples = entry.samples(dtype, most)
            for i, sample in enumerate(samples):
                for variant in entry.variants:
                    number += 1
                    if number <= start:
                        continue
                    board.map[len(KINDS)] = number
                    where = f"{entry.name}:{SHORT[dtype]}:{i}" + (":" + variant if variant else "")
                    file_where = (where, entry.describe(sample))
                    board.map[len(KINDS) + 1] += 1
                    tail = file.tell()
                    file.write(json.dumps(["running", *file_where]) + "\n")
                    live = tn.live_tensors()
                    kind, text, more = entry.run(sample, dtype, variant)
                    file.seek(tail)
                    file.truncate()
                    if tn.live_tensors() != live and kind != "refused":
                        kind, text = "wrong", f"{tn.live_tensors() - live} tensors left behind"
                    board.count(kind, dtype)
                    if kind not in ("equal", "nearer", "no answer"):
                        file.write(json.dumps([kind, *file_where, text, more]) + "\n")


def run_all(entries, args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    waiting, running = list(entries), {}
    boards = {e.name: Board() for e in entries}
    crashes = collections.defaultdict(list)

    def begin(entry, start):
        pid = os.fork()
        if pid == 0:
            os.nice(5)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2) if not args.loud else None
            try:
                work(entry, boards[entry.name], start, args.most, out / f"{entry.name}.jsonl")
                os._exit(0)
            except BaseException as e:
                import traceback
                (out / f"{entry.name}.bridge").write_text(traceback.format_exc())
                os._exit(77)
        running[pid] = [entry, time.time(), -1]

    while waiting or running:
        while waiting and len(running) < args.jobs:
            entry = waiting.pop(0)
            (out / f"{entry.name}.jsonl").unlink(missing_ok=True)
            (out / f"{entry.name}.bridge").unlink(missing_ok=True)
            begin(entry, 0)
        time.sleep(0.02)
        for pid in list(running):
            entry, since, place = running[pid]
            done, status = os.waitpid(pid, os.WNOHANG)
            at = boards[entry.name].map[len(KINDS)]
            if not done:
                if at != place:
                    running[pid][1:] = time.time(), at
                elif time.time() - since > 120:
                    os.kill(pid, signal.SIGKILL)
                continue
            del running[pid]
            if os.WIFSIGNALED(status):
                boards[entry.name].map[KINDS.index("crashed")] += 1
                crashes[entry.name].append(os.WTERMSIG(status))
                if len(crashes[entry.name]) < 40:
                    begin(entry, at)
            elif status:
                print(f"{entry.name}: the bridge itself failed, see {out / (entry.name + '.bridge')}", flush=True)
    return boards


def plainly(message):
    """A message without its numbers, sizes and integer dtypes: what it is grouped by."""
    message = re.sub(r"-?\b\d+(\.\d+)?(e[+-]?\d+)?\b", "N", re.sub(r"\[[^\]]*\]", "[..]", message))
    return re.sub(r"\b\w+_lr\b", "schedule", re.sub(r"\b(i64|i32|u8|bool)\b", "integers", message))


def tables(found, total, file):
    """The tables of docs/reliability.md."""
    say = lambda *cells: print("| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |", file=file)
    for kind, count in zip(KINDS, total):
        say(kind, f"{count:,}")
    for kind in ("documented", "refused"):
        groups = collections.defaultdict(list)
        for f in found:
            if f[0] == kind:
                groups[plainly(f[3])].append(f)
        print(file=file)
        for of in sorted(groups.values(), key=len, reverse=True):
            names = sorted({f[1].split(":")[0].replace("nn.functional.", "") for f in of})
            say(f"{len(of):,}", ", ".join(names), *([of[0][3]] if kind == "documented" else
                                                    [f"`{of[0][3]}`", f"`{of[0][2]}`", f"`{of[0][4]}`"]))


def report(entries, boards, out, file):
    say = lambda *a: print(*a, file=file)
    found = []
    for e in entries:
        path = out / f"{e.name}.jsonl"
        if path.exists():
            found += [json.loads(line) for line in path.read_text().splitlines()]
    say(f"{'entry':44}" + "".join(f"{k:>11}" for k in KINDS))
    total = [0] * len(KINDS)
    for e in entries:
        counts = list(boards[e.name].map[:len(KINDS)])
        total = [a + b for a, b in zip(total, counts)]
        say(f"{e.name:44}" + "".join(f"{c:11}" for c in counts))
    say(f"{str(len(entries)) + ' entries':44}" + "".join(f"{c:11}" for c in total))
    for k, dtype in enumerate(DTYPES):
        say(f"  {SHORT[dtype]:42}" + "".join(
            f"{sum(b.map[len(KINDS) + 2 + 8 * i + k] for b in boards.values()):11}" for i in range(len(KINDS))))
    for kind, title in (("running", "crashed"), ("wrong", "wrong")):
        some = [f for f in found if f[0] == kind]
        say(f"\n{title}: {len(some)}")
        for f in some:
            say(f"  {f[1]}  ({f[2]})" + (f": {f[3]}" if len(f) > 3 else ""))
    for kind in ("refused", "unsaid", "documented"):
        groups = collections.defaultdict(list)
        for f in found:
            if f[0] == kind:
                groups[f[1].split(":")[0], plainly(f[3])].append(f)
        say(f"\n{kind}, by entry and message: {sum(map(len, groups.values()))}")
        for (name, message), of in sorted(groups.items()):
            say(f"  {len(of):6} {name}: {of[0][3]}\n         such as {of[0][1]} ({of[0][2]})" +
                (f"; PyTorch: {of[0][4]}" if of[0][4] else ""))
    with open(out / "tables.md", "w") as markdown:
        tables(found, total, markdown)
    return total


def show_one(entries, which, most):
    name, short, i, *variant = which.split(":")
    entry = next(e for e in entries if e.name == name)
    dtype = {v: k for k, v in SHORT.items()}[short]
    sample = entry.samples(dtype, most)[int(i)]
    torch.set_printoptions(precision=9, linewidth=140, threshold=400)
    print(f"{name}({entry.describe(sample)})\n{sample}")
    compare.LOUD = True
    print(entry.run(sample, dtype, *(variant or [""])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--filter", default="", help="entries whose name matches this regular expression")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most", type=int, default=300, help="samples of an entry and dtype, taken evenly; 0: all")
    parser.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "torch_databases"))
    parser.add_argument("--one", metavar="ENTRY:DTYPE:NUMBER[:VARIANT]")
    parser.add_argument("--loud", action="store_true", help="leave the children's stderr open")
    args = parser.parse_args()
    args.most = args.most or 10**9
    torch.set_num_threads(1)
    tn.open(args.build)
    entries = [e for e in all_entries() if args.one or re.search(args.filter, e.name)]
    if args.one:
        return show_one(entries, args.one, args.most)
    since = time.time()
    boards = run_all(entries, args)
    out = pathlib.Path(args.out)
    with open(out / "report.txt", "w") as file:
        total = report(entries, boards, out, file)
    print((out / "report.txt").read_text())
    print(f"{time.time() - since:.0f} s; {out / 'report.txt'}, and for docs/reliability.md {out / 'tables.md'}")
    return 1 if sum(total[KINDS.index(k)] for k in ("wrong", "crashed")) else 0


if __name__ == "__main__":
    sys.exit(main())
