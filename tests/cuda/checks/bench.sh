#!/usr/bin/env bash
# The benchmark programs at their smallest: the same over the host shim as on the CPU, and the table made of both.
# usage: TN_CUDA_MODULE=SHIM tests/cuda/checks/bench.sh BENCH_GPT BENCH_IMAGES BENCH_OPS
#
# Seen to fail: with the batches of a block all made for its first step (train.c) the losses on the device; with
# a captured step always given the first of them, "captured: the same bits";
# with differing_losses() in summarise.py returning nothing, "losses that differ".
set -uo pipefail
gpt=$(realpath "$1") images=$(realpath "$2") ops=$(realpath "$3")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/examples/example_data.sh
. "$here/../../examples/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

says() { # LINES PATTERN COMMAND...: ends with 0, so many lines match
    "${@:3}" >said 2>&1
    local status=$?
    cat said
    [ $status -eq 0 ] && [ "$(grep -cE -- "$2" said)" -eq "$1" ]
}
ends() { # STATUS MESSAGE COMMAND...
    local status=0
    "${@:3}" >said 2>&1 || status=$?
    cat said
    [ $status -eq "$1" ] && grep -qF -- "$2" said
}
none() { TN_CUDA_MODULE=$dir/none "$@"; }
check 'no GPU' ends 1 'bench: --device cuda: ' none "$gpt" --device cuda
check 'no such device' ends 2 '--device tpu: want cpu or cuda' "$gpt" --device tpu
check 'no such precision' ends 2 '--precision f8: want f32, tf32 or bf16' "$ops" --precision f8
check 'tf32 on the CPU' ends 2 '--precision tf32: want --device cuda' "$gpt" --precision tf32
check 'no such size' ends 2 '--config huge' "$gpt" --config huge

# On the CPU CUDA stays closed: its libraries take more memory than a small model. The loader says what it opens.
opens() { LD_DEBUG=files "$@" 2>&1 | grep -c "calling init: $TN_CUDA_MODULE"; }
check 'cpu: CUDA stays closed' same "$(opens "$gpt" --config tiny --steps 1 --warmup 0)" 0
check 'cpu, the largest batch: too' same "$(opens "$gpt" --config tiny --steps 1 --warmup 0 --batch 1 --find-batch 2)" 0
check 'cuda: it is opened' same "$(opens "$gpt" --config tiny --steps 1 --warmup 0 --device cuda)" 1

# The same losses in blocks of other lengths, on the device and on the CPU; the CPU's stand for PyTorch's.
t=(--config tiny --steps 9 --warmup 2 --precision f32)
check 'gpt, cpu' says 1 '^tenon_gpt_tiny_f32,ms/step,' "$gpt" "${t[@]}"
sed -n 's/^tenon_/torch_/p' said >gpt.csv
check 'gpt, cuda' says 1 '^tenon_gpt_tiny_f32,peak_gpu_MiB,' "$gpt" "${t[@]}" --device cuda --block 4
cat said >>gpt.csv
check 'gpt, captured' says 1 '^graph_gpt_tiny_f32,ms/step,' "$gpt" "${t[@]}" --device cuda --block 4 --capture
cat said >>gpt.csv
check 'gpt, three losses on each side' same "$(grep -c ',loss_' gpt.csv)" 9
check 'gpt, captured: the same bits' same "$(sed -n 's/^tenon_\(.*loss_\)/\1/p' gpt.csv)" \
    "$(sed -n 's/^graph_\(.*loss_\)/\1/p' gpt.csv)"
check 'gpt, the largest batch' says 1 '^tenon_gpt_tiny_f32,batch,4,' \
    "$gpt" --config tiny --precision f32 --device cuda --batch 1 --find-batch 7
few=(--batch 4 --steps 2 --warmup 1 --device cuda --block 2 --precision tf32)
for config in cnn mlp; do
    check "$config" says 1 "^tenon_${config}_b4_tf32,images/s," "$images" --config $config "${few[@]}"
done
check 'ops' says 19 ',GB,' "$ops" --config tiny --device cuda --steps 1 --block 1 --precision f32
cat said >>gpt.csv
sed -n 's/^tenon_/torch_/p' said >>gpt.csv

if command -v python3 >/dev/null; then
    table() { python3 "$here/../../../bench/summarise.py" "$@"; }
    check 'table' says 1 '^\| gpt_tiny_f32 \| loss_1 \| 4\.[0-9]+ \| 4\.[0-9]+ \| 4\.[0-9]+ \| (equal|differ)' \
        table gpt.csv
    check 'table, ops against the least time' grep -qE '^\| attention_f32 \| [0-9.e-]+ \| ' said
    sed 's/^torch_gpt_tiny_f32,loss_1,.*/torch_gpt_tiny_f32,loss_1,4.6,4.6,4.6/' gpt.csv >other.csv
    check 'table, losses that differ' ends 1 'The losses differ' table other.csv
    sed 's/^torch_gpt_tiny_f32,loss_1,.*/torch_gpt_tiny_f32,loss_1,nan,nan,nan/' gpt.csv >other.csv
    check 'table, a loss that is no number' ends 1 'The losses differ' table other.csv
else
    echo 'no python3: the table was not tested'
fi

verdict
