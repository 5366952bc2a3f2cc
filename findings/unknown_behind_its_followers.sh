#!/usr/bin/env bash
# An unknown character changes places with the one behind it: BPE with byte_fallback in tokenizers 0.23.3 (CPU).
#
# A vocabulary has the byte tokens of U+00E9, but not those of U+0448, which is unknown. Guess, written down first, and what
# tenon did: ids stand in the order of the characters; with fuse_unk, neighbours that are unknown are one token. Seen: a
# character that is spelt in bytes goes in front of the unknown one before it, and of all such ones that wait (guess missed);
# with fuse_unk two unknown characters with a known one between them, spelt in bytes, are one token, behind it. Offsets are
# counted up as if nothing had moved, so they name the wrong characters: of "U+0448 U+00E9" the bytes of the second one are
# said to come from place 0. The decoder ByteFallback takes "<0x+5>" for the byte 5 (not foreseen), beside "<0xa9>" for 0xA9
# (as guessed).
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir tokenizers==0.23.3
"$place/venv/bin/python" - <<'PYTHON' | tee "$place/measured"
import tokenizers
from tokenizers import Tokenizer, decoders, models

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
KNOWN = {"a": 0, "?": 1, "<0xC3>": 2, "<0xA9>": 3}
decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
for fuse in (False, True):
    t = Tokenizer(models.BPE(vocab=KNOWN, merges=[], unk_token="?", byte_fallback=True, fuse_unk=fuse))
    t.decoder = decoder
    for text in ("a\u0448a", "\u0448\u00e9", "\u0448\u00e9\u00e9a", "\u0448\u00e9\u0448", "a\u0448\u0448\u00e9a"):
        e = t.encode(text)
        print(ascii(text), "fused" if fuse else "apart", e.ids, "from", [at for at, _ in e.offsets], ascii(t.decode(e.ids)))
for tokens in (["<0xc3>", "<0xa9>"], ["<0x+5>"], ["<0x5>"]):
    print(*tokens, ascii(decoder.decode(tokens)))
PYTHON
diff "$place/measured" - <<'SEEN' && echo 'as seen before'
'a\u0448a' apart [0, 1, 0] from [0, 1, 2] 'a?a'
'\u0448\xe9' apart [2, 3, 1] from [0, 0, 1] '\xe9?'
'\u0448\xe9\xe9a' apart [2, 3, 2, 3, 1, 0] from [0, 0, 1, 1, 2, 3] '\xe9\xe9?a'
'\u0448\xe9\u0448' apart [2, 3, 1, 1] from [0, 0, 1, 2] '\xe9??'
'a\u0448\u0448\xe9a' apart [0, 1, 2, 3, 1, 0] from [0, 1, 2, 2, 3, 4] 'a?\xe9?a'
'a\u0448a' fused [0, 1, 0] from [0, 1, 2] 'a?a'
'\u0448\xe9' fused [2, 3, 1] from [0, 0, 1] '\xe9?'
'\u0448\xe9\xe9a' fused [2, 3, 2, 3, 1, 0] from [0, 0, 1, 1, 2, 3] '\xe9\xe9?a'
'\u0448\xe9\u0448' fused [2, 3, 1] from [0, 0, 1] '\xe9?'
'a\u0448\u0448\xe9a' fused [0, 2, 3, 1, 0] from [0, 1, 1, 2, 4] 'a\xe9?a'
<0xc3> <0xa9> '\xe9'
<0x+5> '\x05'
<0x5> '<0x5>'
SEEN
