#!/usr/bin/env bash
# The example programs with --device cuda, over the host shim: the losses of the CPU, files and samples that
# do not depend on the device, and one clear line where there is no GPU.
# usage: TN_CUDA_MODULE=SHIM tests/cuda/checks/examples.sh TRANSFORMER BATCHNORM BUFFERS XOR INTEROP
#
# Seen to fail: with a tni_cuda_collect (transfers.cu) that does not wait, comparisons of
# losses of both programs; with a sample that looks at the last character alone on the device (transformer.c), "the
# same sample".
set -uo pipefail
transformer=$(realpath "$1") batchnorm=$(realpath "$2") buffers=$(realpath "$3") xor=$(realpath "$4")
interop=$(realpath "$5")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/examples/example_data.sh
. "$here/../../examples/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

says() { # PATTERN COMMAND...: ends with 0 and a line matches
    "${@:2}" >said 2>&1
    local status=$?
    cat said
    [ $status -eq 0 ] && grep -qE -- "$1" said
}
ends() { # STATUS MESSAGE COMMAND...: nothing but one line, which has MESSAGE
    local status=0
    "${@:3}" >said 2>&1 || status=$?
    cat said
    [ $status -eq "$1" ] && [ "$(wc -l <said)" -eq 1 ] && grep -qF -- "$2" said
}
# Two logs: the same steps and rates, losses that differ by at most BOUND of the larger.
near() { # BOUND A.csv B.csv STEPS
    paste -d, "$2" "$3"
    paste -d, "$2" "$3" | awk -F, -v bound="$1" -v steps="$4" '
        NR == 1 { half = NF / 2; next }
        { size = $2 > $(half + 2) ? $2 : $(half + 2); off = $2 - $(half + 2)
          if ($1 != $(half + 1) || $3 != $(half + 3) || off > bound * size || -off > bound * size) exit 1
          n++ } END { exit n != steps }'
}

example_text >text
example_images images 64

# ---- no GPU -------------------------------------------------------------------------------------
none() { TN_CUDA_MODULE=$dir/none "$@"; }
for program in "$transformer --text text" "$batchnorm --data images" "$buffers" "$xor" "$interop"; do
    # shellcheck disable=SC2086
    check "${program##*/}, no GPU" ends 1 '--device cuda: ' none $program --device cuda
done
check 'no such device' ends 2 '--device tpu: want cpu or cuda' "$xor" --device tpu
check 'no device' ends 2 '--device needs an argument' "$xor" --device
check 'tf32 on the CPU' ends 2 '--precision tf32: want --device cuda' "$transformer" --text text --precision tf32

# ---- transformer ----------------------------------------------------------------------------------
small=(--text text --steps 70 --batch 2 --context 8 --layers 1 --heads 2 --d-model 16 --warmup 4
       --dropout 0.1 --eval-every 35 --generate 0)
t() { "$transformer" "${small[@]}" "$@"; }
check 'transformer, cpu' t --log cpu.csv --save cpu.safetensors
check 'transformer, cuda' says ', cuda: ' t --device cuda --log cuda.csv --save cuda.safetensors
check 'transformer, the losses' near 2e-4 cpu.csv cuda.csv 70
check 'transformer, tf32' t --quiet --device cuda --precision tf32 --steps 5 --log tf32.csv
for precision in bf16 f16; do
    check "transformer, $precision, cpu" t --quiet --precision $precision --steps 12 --log cpu12.csv
    check "transformer, $precision, cuda" t --quiet --device cuda --precision $precision --steps 12 --log cuda12.csv
    check "transformer, $precision, the losses" near 1e-2 cpu12.csv cuda12.csv 12
done
sample=("$transformer" --load cuda.safetensors --generate 30 --quiet --prompt And)
check 'transformer, the same sample' same "$("${sample[@]}")" "$("${sample[@]}" --device cuda)"
whole=$(t --device cuda --quiet --print-hash)
captured=$(t --device cuda --quiet --print-hash --clip 0)
check 'transformer, captured' same "$captured" "$(t --device cuda --quiet --print-hash --clip 0 --capture)"
check 'transformer, captured with clipping' t --device cuda --capture --quiet --log captured.csv
check 'transformer, its losses' near 2e-4 cuda.csv captured.csv 70
check 'transformer, captured and resumed' same "$captured" "$(
    t --device cuda --quiet --clip 0 --capture --stop-after 20 --checkpoint some
    "$transformer" --resume some --device cuda --quiet --print-hash --capture)"
check 'transformer, captured in f16' ends 2 'looks at the gradients' t --device cuda --capture --quiet --precision f16
check 'transformer, captured on the CPU' same "$(t --quiet --print-hash --clip 0)" \
    "$(t --quiet --print-hash --clip 0 --capture)"
check 'transformer, stop' t --device cuda --quiet --stop-after 33 --checkpoint part
check 'transformer, resumed' same "$whole" \
    "$("$transformer" --resume part --device cuda --quiet --print-hash)"
check 'transformer, resumed on the CPU' says '^hash ' "$transformer" --resume part --quiet --print-hash

# ---- batchnorm ------------------------------------------------------------------------------------
b() { "$batchnorm" --data images --batch 8 --steps 5 "$@"; }
check 'batchnorm, cpu' b --log cpu.csv
check 'batchnorm, cuda' says 'test accuracy [0-9.]+ %' b --device cuda --log cuda.csv --save net.safetensors
check 'batchnorm, the losses' near 2e-4 cpu.csv cuda.csv 5
check 'batchnorm, captured' same "$(b --device cuda --quiet --print-hash --steps 9)" \
    "$(b --device cuda --quiet --print-hash --steps 9 --capture)"
check 'batchnorm, captured and watched' same "$(b --device cuda --print-hash --steps 9 | grep '^hash')" \
    "$(b --device cuda --print-hash --steps 9 --capture | grep '^hash')"
check 'batchnorm, bf16, cpu' b --quiet --precision bf16 --log cpu.csv
check 'batchnorm, bf16, cuda' b --quiet --device cuda --precision bf16 --log cuda.csv
check 'batchnorm, bf16, the losses' near 3e-2 cpu.csv cuda.csv 5
check 'batchnorm, weights go to the CPU' says '^test loss [0-9.]+, test accuracy' b --load net.safetensors

# ---- the small ones ---------------------------------------------------------------------------------
check 'buffers' says 'all claims hold' "$buffers" --device cuda
check 'xor' says '1 xor 1 = 0.0' "$xor" --device cuda
check 'interop, written' says '^45 models written, 0 failed' "$interop" --device cuda write .
for io in *.io.pt; do
    cp "$io" "${io%.io.pt}.theirs.io.pt"
    cp "${io%.io.pt}.pt" "${io%.io.pt}.theirs.pt"
done
check 'interop, read on the CPU' says '^45 models read, 0 failed' "$interop" read .
check 'interop, read' says '^45 models read, 0 failed' "$interop" --device cuda read .

verdict
