#!/usr/bin/env bash
# The example programs resume after every step from 1 to 60, in a new process, and reach the same weights and
# buffers. usage: resume_sweep.sh TRANSFORMER BATCHNORM     (paths of the programs)
#
# test_checkpoint.c does the same inside one process, and shows that no part of a checkpoint can be left out.
# Seen to fail: where ex_start() of examples/prepare.c loads ex.state without its loader, batchnorm after every
# step; without the default generator in commit() of src/io/checkpoint.c, transformer after every step.
set -uo pipefail
transformer=$(realpath "$1") batchnorm=$(realpath "$2")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/examples/example_data.sh
. "$here/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
example_text >text
example_images images 26

sweep() { # NAME PROGRAM ARGUMENT...: 64 steps
    local name=$1 program=$2 whole s
    whole=$("$program" "${@:3}" --quiet --print-hash)
    check "$name, with checkpoints" same "$whole" \
        "$("$program" "${@:3}" --quiet --print-hash --checkpoint "$name/" --checkpoint-every 1 --keep 0)"
    check "$name, all of them" same "$(find "$name" -name "$name-*.safetensors" | wc -l)" 64
    for s in $(seq 60); do
        check "$name, after $s" same "$whole" "$("$program" --quiet --print-hash \
            --resume "$name/$(printf '%s-%08d.safetensors' "$name" "$s")")"
    done
    check "$name, the folder is as it was" same "$(find "$name" -type f | wc -l)" 64
    rm -r "$name"
}

sweep transformer "$transformer" --text text --steps 64 --batch 2 --context 16 --layers 1 --heads 2 \
    --d-model 16 --warmup 6 --dropout 0.1 --eval-every 0 --generate 0
sweep batchnorm "$batchnorm" --data images --epochs 5 --steps 64 --batch 2
verdict
