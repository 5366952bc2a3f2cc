#!/usr/bin/env python3
"""Writes lm/tokenizer_*: small tokenizers made by the packages tokenizers and tiktoken, and their ids.

usage: python3 make_lm_tokenizer.py        made with tokenizers 0.23.3, tiktoken 0.14.0; the texts are drawn from seed 3
A .bin file has for each text: its bytes, ids without and with those around, and the decoded text, each as a number
(u32, little-endian) and bytes or ids (i32).
"""
import base64
import json
import os
import random
import struct

import tiktoken
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lm")
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
WORDS = ("the of and to in that he was his it with as her for had she not but at on all be have him is said you they "
         "which from one would so there were what when no if an or my could out up been into more them who some do "
         "than time two now then little very like other about over before good must where down should know think "
         "never after way long made come here again these through back such might much own see most well under "
         "learning model token gradient layer weight tensor don't I'll you've it's hello world HELLO World café naïve "
         "Straße übermäßig Москва привет мир Ελλάδα 東京 你好 世界 日本語 한국어 안녕 שלום مرحبا नमस्ते สวัสดี").split()
PARTS = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "   ", "\u00a0", "\u3000", "\u2028", "\x85", "1", "42", "1234567", "3.14", "\u0663",
         "\u00bd", "!", "?", ".", ",", "'s", "'T", "--", "$", "^", "`", "\u00a3", "<|end|>", "<|end|>  ", "  [M]", "[M]s",
         "<pad>", "Caf\u00c9", "e\u0301", "\u1e9b\u0323", "\ufb01", "\u0130", "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea",
         "\u2764\ufe0f", "\ufffd", "\u200d", "\ue000", "\u180e", "a" * 60, "x" * 101, "aaaa"]


def text(rng):
    out = []
    for _ in range(rng.randrange(0, 14)):
        out.append(rng.choice(PARTS) if rng.random() < 0.4 else rng.choice(WORDS))
        if rng.random() < 0.6:
            out.append(" ")
    return "".join(out)


CL100K = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
          r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s""")


def write_bin(name, rows):
    with open(os.path.join(HERE, f"tokenizer_{name}.bin"), "wb") as f:
        for t, bare, full, back in rows:
            f.write(struct.pack("<I", len(t.encode())) + t.encode())
            for ids in bare, full:
                f.write(struct.pack(f"<I{len(ids)}i", len(ids), *ids))
            f.write(struct.pack("<I", len(back.encode())) + back.encode())


def rows_of(tokenizer, texts):
    for t in texts:
        full = tokenizer.encode(t).ids
        yield t, tokenizer.encode(t, add_special_tokens=False).ids, full, tokenizer.decode(full)


def write(name, tokenizer, texts):
    tokenizer.save(os.path.join(HERE, f"tokenizer_{name}.json"), pretty=False)
    write_bin(name, rows_of(tokenizer, texts))


def write_gpt2(byte, texts):
    """A folder with vocab.json and merges.txt, and added tokens in two other files."""
    folder = os.path.join(HERE, "tokenizer_gpt2")
    os.makedirs(folder, exist_ok=True)
    byte.model.save(folder)
    for file, value in {"added_tokens.json": {"[M]": 601, "<|im_end|>": 600}, "special_tokens_map.json": {
            "eos_token": "<|im_end|>", "pad_token": {"content": "<|end|>", "lstrip": False, "normalized": False},
            "unk_token": "<|end|>", "additional_special_tokens": ["<pad>"]}}.items():
        with open(os.path.join(folder, file), "w") as f:
            json.dump(value, f)
    gpt2 = Tokenizer(models.BPE.from_file(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")))
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2.decoder = decoders.ByteLevel()
    gpt2.add_special_tokens(["<|end|>", "<|im_end|>"])
    gpt2.add_tokens(["[M]"])
    gpt2.add_special_tokens(["<pad>"])
    write_bin("gpt2/ids", rows_of(gpt2, [t + "<|im_end|>" for t in texts]))


def write_ranks(byte, texts):
    """tiktoken's ranks, of the same tokens without the first one, cut by the pattern of cl100k_base."""
    letters = {c: b for b, c in enumerate(letters_of_bytes())}
    ranks = {bytes(letters[c] for c in token): i - 1 for token, i in byte.get_vocab().items() if i > 0}
    os.makedirs(os.path.join(HERE, "tokenizer_ranks"), exist_ok=True)
    with open(os.path.join(HERE, "tokenizer_ranks", "ranks.tiktoken"), "w") as f:
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            f.write(f"{base64.b64encode(token).decode()} {rank}\n")
    special = {"<|end|>": len(ranks), "<pad>": len(ranks) + 1}
    encoding = tiktoken.Encoding("ranks", pat_str=CL100K, mergeable_ranks=ranks, special_tokens=special)
    all_ids = ((t, encoding.encode(t, allowed_special="all")) for t in (t + "\n  " for t in texts))
    write_bin("ranks/ids", ((t, ids, ids, encoding.decode([i for i in ids if i < len(ranks)])) for t, ids in all_ids))


def write_marked(texts, training):
    """U+2581 for spaces, and bytes for characters without a token: as Llama 2 does it with a normalizer, where no token
    goes over the end of a word; and by Metaspace, where some do."""
    special = ["<unk>", "<s>", "</s>"]
    spelt = [f"<0x{b:02X}>" for b in range(256)]
    for name, words in ("llama", True), ("meta", False):
        trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        trained.normalizer = normalizers.Replace(" ", "\u2581")
        if words:
            trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        trained.train_from_iterator(training, trainers.BpeTrainer(
            vocab_size=450, limit_alphabet=60, special_tokens=special + spelt, show_progress=False))
        parts = json.loads(trained.to_str())
        parts["added_tokens"] = parts["added_tokens"][:3]
        parts["normalizer"] = parts["pre_tokenizer"] = None
        marked = Tokenizer.from_str(json.dumps(parts))
        if words:
            marked.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        else:
            marked.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        marked.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                            decoders.Strip(" ", 1, 0)])
        marked.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        marked.add_tokens([AddedToken("[M]", normalized=False)])
        os.makedirs(os.path.join(HERE, f"tokenizer_{name}"), exist_ok=True)
        write(f"{name}/tokenizer", marked, [t + rest for t, rest in zip(texts, 5 * ["", "</s> x", "<0x41>", " [M] ", "\u2581a"])] + texts)


def write_trained(text, texts):
    os.makedirs(os.path.join(HERE, "tokenizer_trained"), exist_ok=True)
    with open(os.path.join(HERE, "tokenizer_trained", "text.txt"), "w", newline="") as f:
        f.write(text)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trained.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<|end|>", "<pad>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    write("trained/tokenizer", trained, texts)


def letters_of_bytes():
    """ByteLevel's letters, in the order of the bytes."""
    plain = [b for b in range(256) if 0x20 < b < 0x7f or 0xa0 < b and b != 0xad]
    return [chr(b if b in plain else 0x100 + b - sum(p < b for p in plain)) for b in range(256)]


def main():
    rng = random.Random(3)
    texts = [text(rng) for _ in range(90)]
    training = [" ".join(rng.choice(WORDS) for _ in range(40)) for _ in range(30)] + texts[:20]
    byte = Tokenizer(models.BPE())
    byte.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte.decoder = decoders.ByteLevel()
    byte.train_from_iterator(training, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    write("byte", byte, texts)
    write_gpt2(byte, texts)
    write_ranks(byte, texts)
    write_marked(texts[:60], training)
    write_trained("".join(texts) + "banana bandana aaaa aaaaaaa\n" + " ".join(training[:8]), texts[:40])

    qwen = Tokenizer.from_str(byte.to_str())
    qwen.normalizer = normalizers.NFC()
    qwen.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    qwen.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="<|end|> $A <|end|>", special_tokens=[("<|end|>", 0)])])
    qwen.add_tokens([AddedToken("[M]", normalized=False), AddedToken("[M]s", normalized=False),
                     AddedToken("Caf\u00e9", normalized=True)])
    write("qwen", qwen, texts)

    smol = Tokenizer.from_str(byte.to_str())
    smol.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    write("smol", smol, texts)

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    piece = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    piece.normalizer = normalizers.BertNormalizer()
    piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    piece.decoder = decoders.WordPiece()
    piece.train_from_iterator(training, trainers.WordPieceTrainer(
        vocab_size=320, limit_alphabet=200, special_tokens=special, show_progress=False))
    piece.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    signs = ["it isn't -- i'm , don't! he 's , we 've (you ' re) . is it ? \u300c\u6771\u300d\uff01 \u00bfqu\u00e9?",
             "\u0130stanbul \u1e9e \uac00\u302e\u302f \u0e33 A\u030angstro\u0308m [CLS] [MASK]ing [ MASK ] \x00\x07a\x7fb",
             "\u4e2d\U00020000\uf900\u3402 $^`+<=>|~ \u00a3\u20ac \u00ab\u2014\u2026\u00bb \x0b\x0c\u1680x\u3000y"]
    write("piece", piece, texts + signs)

    cased = Tokenizer.from_str(piece.to_str())
    cased.normalizer = normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False)
    cased.decoder = decoders.WordPiece(cleanup=False)
    cased.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    cased.add_tokens([AddedToken("Caf\u00e9", normalized=True), AddedToken("[M]", normalized=False)])
    write("cased", cased, texts + signs)


if __name__ == "__main__":
    main()
