#!/usr/bin/env bash
# Times the benchmark programs and their PyTorch twins turn about, so that a ratio compares two runs a few
# seconds apart: a machine's speed drifts by more than many a difference.
# usage: bench/run.sh ROUNDS OUT.csv [gpt_small] [gpt_medium] [cnn] [mlp] [ops]     default: all
# environment: BUILD (release build, default build), PYTHON (with torch, default /usr/bin/python3),
#              THREADS (both sides, default 2), BUSY (processes that compute beside them, default 0)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ $# -lt 2 ]; then
    sed -n '4,7s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
rounds=$1 out=$(realpath -m "$2")
shift 2
[ $# -gt 0 ] || set -- gpt_small gpt_medium cnn mlp ops
build=$(realpath "${BUILD:-$here/../build}")/bench
python=${PYTHON:-/usr/bin/python3} threads=${THREADS:-2}
scratch=$(mktemp -d)
busy=()
trap 'rm -rf "$scratch"; [ ${#busy[@]} = 0 ] || kill "${busy[@]}"' EXIT
for _ in $(seq "${BUSY:-0}"); do
    (while :; do :; done) &
    busy+=($!)
done
export OMP_NUM_THREADS=$threads

{
    echo "# $(date -u +%Y-%m-%dT%H:%MZ) $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $threads threads, $rounds rounds, ${BUSY:-0} busy processes beside"
} >"$out"

log=$scratch/log
trap 'cat "$log" >&2' ERR
pair() { # TENON-PROGRAM TWIN [ARG...]
    "$build/$1" --threads "$threads" --weights "$scratch/weights" "${@:3}" 2>>"$log"
    "$python" "$here/$2" --threads "$threads" --weights "$scratch/weights" "${@:3}" 2>>"$log"
}

for round in $(seq "$rounds"); do
    echo "# round $round of $rounds" >&2
    for set in "$@"; do
        case $set in
        gpt_small) pair bench_gpt torch_gpt.py --config small ;;
        gpt_medium) pair bench_gpt torch_gpt.py --config medium --steps 6 --warmup 2 ;;
        cnn) pair bench_images torch_images.py --config cnn ;;
        mlp) pair bench_images torch_images.py --config mlp --steps 300 --warmup 20 ;;
        ops) pair bench_ops torch_ops.py ;;
        *) echo "run.sh: unknown set $set" >&2 && exit 2 ;;
        esac
    done
done >>"$out"
sed -n 's/^# [a-z0-9_]*: /# peer: /p' "$log" | sort -u >>"$out"
"$python" "$here/summarise.py" "$out"
