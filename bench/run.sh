#!/usr/bin/env bash
# Times the benchmark programs and their PyTorch twins turn about, so that a ratio compares two runs a few
# seconds apart: a machine's speed drifts by more than many a difference.
# usage: bench/run.sh ROUNDS OUT.csv [gpt_small] [gpt_medium] [cnn] [mlp] [ops]     default: all
# environment: BUILD (release build, default build), PYTHON (with torch, default /usr/bin/python3),
#              THREADS (both sides, default 2), BUSY (processes that compute beside them, default 0)
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
refuse() { # MESSAGE
    echo "run.sh: $1" >&2
    exit 2
}
case ${1-} in
-h | --help)
    sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
[[ ${1-} =~ ^[1-9][0-9]*$ ]] && [ -n "${2-}" ] || refuse 'want ROUNDS and OUT.csv (see --help)'
rounds=$1 out=$(realpath -m "$2")
shift 2
all=(gpt_small gpt_medium cnn mlp ops)
[ $# -gt 0 ] || set -- "${all[@]}"
for set in "$@"; do
    [[ " ${all[*]} " == *" $set "* ]] || refuse "unknown set $set: want ${all[*]}"
done
build=${BUILD:-$(dirname "$here")/build}/bench
python=${PYTHON:-/usr/bin/python3} threads=${THREADS:-2}
[ -x "$build/bench_ops" ] || refuse "no programs in $build: scripts/build makes them (or BUILD=FOLDER)"
"$python" -c 'import numpy, torch' 2>/dev/null ||
    refuse "$python has no PyTorch or no numpy: scripts/setup python3-torch python3-numpy (or PYTHON=PROGRAM)"
: >"$out" || refuse "$out cannot be written"
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
: >"$log"
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
        esac
    done
done >>"$out"
sed -n 's/^# [a-z0-9_]*: /# peer: /p' "$log" | sort -u >>"$out"
"$python" "$here/summarise.py" "$out"
