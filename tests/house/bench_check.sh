#!/usr/bin/env bash
# The benchmark programs on the CPU at their smallest: what they count, deliver and leave out; no times.
# usage: tests/house/bench_check.sh BENCH_GPT BENCH_IMAGES BENCH_OPS BENCH_LOADER BENCH_AVERAGE BENCH_DECODE BENCH_JPEG
#        BENCH_LOAD BENCH_GENERATE BENCH_FINETUNE
#
# Seen to fail: with --layers ignored, without autocast, with labels in another order than the images, with the last
# batch dropped, and with bench_ops ending at the first op that does not exist in bf16; with two processes that take the
# same rows, or average no gradients; with hooks of modules whose inputs need no gradient counted; with rounds that take
# the same batches again; with --lora ignored, and with the reading of a token behind the prompt left out.
set -uo pipefail
gpt=$(realpath "$1") ops=$(realpath "$3") loader=$(realpath "$4") average=$(realpath "$5") decode=$(realpath "$6")
generate=$(realpath "$9") finetune=$(realpath "${10}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/examples/example_data.sh
. "$here/../examples/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

metric() { # NAME FILE
    sed -n "s/^[^,]*,$1,\([^,]*\),.*/\1/p" "$2"
}
exits() { # STATUS MESSAGE COMMAND...
    local status=0
    "${@:3}" >"$dir/said" 2>&1 || status=$?
    cat "$dir/said"
    [ $status -eq "$1" ] && grep -qF -- "$2" "$dir/said"
}

# 3 blocks of width 48 = 3 heads of 16: token table 96 d, positions 8 d, a block 12 d^2 + 13 d, the last norm 2 d.
few=(--steps 1 --warmup 1)
check 'gpt, sizes' exits 0 'tenon_gpt_tiny_b3,tokens/s,' \
    "$gpt" --config tiny --layers 3 --width 48 --context 8 --batch 3 "${few[@]}"
check 'gpt, parameters' same "$(metric parameters "$dir/said")" $((96 * 48 + 8 * 48 + 3 * (12 * 48 * 48 + 13 * 48) + 2 * 48))
check 'gpt, memory' test "$(metric start_MiB "$dir/said" | cut -d. -f1)" -ge 1
# Rounds go on where the one before stopped, and each starts with a line.
check 'gpt, one round' exits 0 'loss_last' "$gpt" --config tiny --steps 4 --warmup 1
last=$(metric loss_last "$dir/said")
check 'gpt, two rounds' exits 0 'loss_last' "$gpt" --config tiny --steps 2 --warmup 1 --rounds 2 <<<$'\n'
check 'gpt, the same steps' same "$(metric loss_last "$dir/said" | tail -n 1)" "$last"
check 'gpt, ready before each' same "$(grep -oE '^# ready$|loss_last' "$dir/said" | tr '\n' ' ')" '# ready loss_last # ready loss_last '
check 'gpt, no line' exits 1 '--rounds 3: standard input ends after 1: want a line for each' \
    "$gpt" --config tiny --rounds 3 "${few[@]}" <<<''
check 'gpt, no such width' exits 2 '--width 40: want a multiple of 16' "$gpt" --config tiny --width 40
check 'gpt, bf16 is near f32' exits 0 'loss_last' "$gpt" --config tiny --precision bf16 "${few[@]}"
low=$(metric loss_last "$dir/said")
check 'gpt, f32' exits 0 'loss_last' "$gpt" --config tiny "${few[@]}"
check 'gpt, but not the same' test "$low" != "$(metric loss_last "$dir/said")"
check 'gpt, to 1 %' awk -v a="$low" -v b="$(metric loss_last "$dir/said")" 'BEGIN { exit !(a / b < 1.01 && b / a < 1.01) }'

# 300 images in batches of 128, each image's mean times its label + 1, from the bytes themselves.
example_images "$dir/images" 300
want=$(awk 'BEGIN { for (i = 0; i < 300 * 784; i++) {
    x = (x * 1103 + 12345) % 65521; n = int(i / 784); sum += (32 + x % 95) / 255 / 784 * (n * 7 % 9 + 2) }
    printf "%.3f", sum }')
check 'loader' exits 0 'tenon_loader,batches/s,' "$loader" --data "$dir/images" --steps 1
check 'loader, checksum' same "$(printf %.3f "$(metric checksum "$dir/said")")" "$want"
check 'loader, no folder' exits 1 "$dir/none/train-images-idx3-ubyte.gz" "$loader" --data "$dir/none"

check 'decode' exits 0 'tenon_linear_33x64_rows16_bf16,GB/s,' "$decode" --config tiny --steps 1 --precision bf16
check 'decode, int8' exits 0 'tenon_linear_33x64_rows16_int8,GB/s,' "$decode" --config tiny --steps 1 --int8

check 'generate' exits 0 'tenon_tiny,ms_next,' "$generate" --config tiny --context 20 --steps 3
# A Llama of width 32, 2 layers, 96 tokens, tied. Rank 4 beside q_proj [32, 32] and v_proj [16, 32].
check 'finetune' exits 0 'tenon_lm_tiny,tokens/s,' "$finetune" --config tiny --context 16 "${few[@]}"
all=$(metric parameters "$dir/said")
check 'finetune, parameters' same "$all" $((96 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64 + 2 * 32) + 32))
check 'finetune, adapters' exits 0 'tenon_lora_tiny_bf16,tokens/s,' \
    "$finetune" --config tiny --context 16 --lora 4 --precision bf16 "${few[@]}"
check 'finetune, their parameters' same "$(metric parameters "$dir/said")" $((all + 2 * 4 * (32 + 32 + 32 + 16)))

# Every op in f32; in bf16 all rows stand there, measured or named as left out.
check 'ops, f32' exits 0 'tenon_max_pool_f32,us_forward_backward,' "$ops" --config tiny --steps 1 --precision f32
rows=$(grep -c ',us_forward,' "$dir/said")
check 'ops, bf16' exits 0 'tenon_relu_bf16,us_forward_backward,' "$ops" --config tiny --steps 1 --precision bf16
check 'ops, as many' same "$(grep -cE ',us_forward,|_bf16: left out: .*bf16' "$dir/said")" "$rows"
check 'ops, one by one' exits 0 'tenon_max_pool,us_forward_backward,' \
    "$ops" --config tiny --steps 1 --alternate --rounds 1 < <(yes '')

# When gradients are complete: the root's own, the token table's, last; the last norm's first. Bytes are all parameters'.
check 'timeline' exits 0 'tenon_gpt_tiny,ms_complete of h.1.fc2,' "$gpt" --config tiny --timeline "${few[@]}"
check 'timeline, bytes' same "$(awk -F, '$2 ~ /^bytes of / { sum += $3 } END { print sum }' "$dir/said")" \
    $((4 * $(metric parameters "$dir/said")))
check 'timeline, order' same "$(sed -n 's/^[^,]*,ms_complete of \([^,]*\),\([^,]*\),.*/\2 \1/p' "$dir/said" | sort -g |
    sed -n 's/^[^ ]* //; 1p; $p')" "$(printf 'lnf\n')"
check 'average, alone' exits 2 'want mpirun -n 2' "$average"

# Two processes share a batch: the loss of the tenth step is the one process's, which has learned from all rows.
mpi=$(realpath -m "$gpt/../../src/ext/parallel/libtenon-mpi.so")
if command -v mpirun >/dev/null && [ -e "$mpi" ]; then
    TN_MPI_MODULE=$mpi
    # shellcheck source=tests/parallel/env.sh
    . "$here/../parallel/env.sh"
    ten=(--config tiny --threads 1 --steps 2 --warmup 8)
    check 'gpt, one process' exits 0 'loss_10' "$gpt" "${ten[@]}"
    alone=$(metric loss_10 "$dir/said")
    check 'gpt, two processes' exits 0 'loss_10' mpirun -n 2 "$gpt" "${ten[@]}"
    check 'gpt, printed once' same "$(grep -c loss_10 "$dir/said")" 1
    check 'gpt, the same loss' awk -v a="$alone" -v b="$(metric loss_10 "$dir/said")" 'BEGIN { exit !(a / b - 1 < 1e-6 && b / a - 1 < 1e-6) }'
    check 'gpt, an odd batch' exits 2 'a batch of 3: want a multiple of 2' mpirun -n 2 "$gpt" --batch 3 "${ten[@]}"
    check 'average, two processes' exits 0 'tenon_average_67108864,ms_local,' mpirun -n 2 "$average" --steps 1 --warmup 0
else
    echo 'no mpirun, or built without MPI: several processes were not tested'
fi

verdict
