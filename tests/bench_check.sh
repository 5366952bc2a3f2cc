#!/usr/bin/env bash
# The benchmark programs on the CPU at their smallest: what they count, deliver and leave out; no times.
# usage: tests/bench_check.sh BENCH_GPT BENCH_IMAGES BENCH_OPS BENCH_LOADER
#
# Seen to fail: with --layers ignored, without autocast, with labels in another order than the images, with the last
# batch dropped, and with bench_ops ending at the first op that does not exist in bf16.
set -uo pipefail
gpt=$(realpath "$1") ops=$(realpath "$3") loader=$(realpath "$4")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/example_data.sh
. "$here/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

metric() { # NAME FILE
    sed -n "s/^[^,]*,$1,\([^,]*\),.*/\1/p" "$2"
}
ends() { # STATUS MESSAGE COMMAND...
    local status=0
    "${@:3}" >"$dir/said" 2>&1 || status=$?
    cat "$dir/said"
    [ $status -eq "$1" ] && grep -qF -- "$2" "$dir/said"
}

# 3 blocks of width 48 = 3 heads of 16: token table 96 d, positions 8 d, a block 12 d^2 + 13 d, the last norm 2 d.
few=(--steps 1 --warmup 1)
check 'gpt, sizes' ends 0 'tenon_gpt_tiny_b3,tokens/s,' \
    "$gpt" --config tiny --layers 3 --width 48 --context 8 --batch 3 "${few[@]}"
check 'gpt, parameters' same "$(metric parameters "$dir/said")" $((96 * 48 + 8 * 48 + 3 * (12 * 48 * 48 + 13 * 48) + 2 * 48))
check 'gpt, memory' test "$(metric start_MiB "$dir/said" | cut -d. -f1)" -ge 1
check 'gpt, no such width' ends 2 '--width 40: want a multiple of 16' "$gpt" --config tiny --width 40
check 'gpt, bf16 is near f32' ends 0 'loss_last' "$gpt" --config tiny --precision bf16 "${few[@]}"
low=$(metric loss_last "$dir/said")
check 'gpt, f32' ends 0 'loss_last' "$gpt" --config tiny "${few[@]}"
check 'gpt, but not the same' test "$low" != "$(metric loss_last "$dir/said")"
check 'gpt, to 1 %' awk -v a="$low" -v b="$(metric loss_last "$dir/said")" 'BEGIN { exit !(a / b < 1.01 && b / a < 1.01) }'

# 300 images in batches of 128, each image's mean times its label + 1, from the bytes themselves.
example_images "$dir/images" 300
want=$(awk 'BEGIN { for (i = 0; i < 300 * 784; i++) {
    x = (x * 1103 + 12345) % 65521; n = int(i / 784); sum += (32 + x % 95) / 255 / 784 * (n * 7 % 9 + 2) }
    printf "%.3f", sum }')
check 'loader' ends 0 'tenon_loader,batches/s,' "$loader" --data "$dir/images" --steps 1
check 'loader, checksum' same "$(printf %.3f "$(metric checksum "$dir/said")")" "$want"
check 'loader, no folder' ends 1 "$dir/none/train-images-idx3-ubyte.gz" "$loader" --data "$dir/none"

# Every op in f32; in bf16 all rows stand there, measured or named as left out.
check 'ops, f32' ends 0 'tenon_max_pool_f32,us_forward_backward,' "$ops" --config tiny --steps 1 --precision f32
rows=$(grep -c ',us_forward,' "$dir/said")
check 'ops, bf16' ends 0 'tenon_relu_bf16,us_forward_backward,' "$ops" --config tiny --steps 1 --precision bf16
check 'ops, as many' same "$(grep -cE ',us_forward,|_bf16: left out: .*bf16' "$dir/said")" "$rows"

verdict
