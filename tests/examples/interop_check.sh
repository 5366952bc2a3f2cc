#!/usr/bin/env bash
# examples/interop without PyTorch: its files are read back as if PyTorch had written them.
# usage: test_interop.sh INTEROP     (path of the program)
#
# Seen to fail: with same_bits() in interop.c returning true, and with outputs accepted whatever
# they are: "2 failed" is then missing below.
set -euo pipefail
interop=$(realpath "$1")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$interop" write "$dir"
for io in "$dir"/*.io.pt; do
    name=${io%.io.pt}
    cp "$io" "$name.theirs.io.pt"
    cp "$name.pt" "$name.theirs.pt"
    cp "$name.pt" "$name.returned.pt"
done
"$interop" read "$dir"
cmp "$dir/cnn.pt" "$dir/cnn.back.pt"
cmp "$dir/tied.safetensors" "$dir/tied.back.safetensors"

# other outputs, other bits: each must be noticed
cp "$dir/linear_no_bias.io.pt" "$dir/linear.theirs.io.pt"
cp "$dir/batchnorm_no_affine.pt" "$dir/batchnorm2d.returned.pt"
status=0
"$interop" read "$dir" >"$dir/out" || status=$?
cat "$dir/out"
[ $status -eq 1 ]
grep -q '^linear  .*FAILED' "$dir/out"
grep -q '^batchnorm2d  .*FAILED' "$dir/out"
grep -q ', 2 failed$' "$dir/out"

"$interop" convert "$dir/cnn.pt" "$dir/a.safetensors"
"$interop" convert "$dir/a.safetensors" "$dir/a.pth"
"$interop" convert "$dir/a.pth" "$dir/b.safetensors"
cmp "$dir/a.safetensors" "$dir/b.safetensors"
status=0
"$interop" nonsense 2>"$dir/out" || status=$?
[ $status -eq 2 ]
echo "1 passed, 0 failed"
