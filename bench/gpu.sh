#!/usr/bin/env bash
# The benchmarks on a GPU, called and captured, beside PyTorch, eager and compiled, within a time limit; Markdown at the end.
# usage: bench/gpu.sh [--minutes N] [--rounds N] [--keep] [--batch N] [--tiny] OUT.md [SET...]
#
# sets, by default all in this order: gpt2_bf16 gpt2_tf32 ops_bf16 ops_tf32 small_bf16 small_tf32
#       medium_bf16 medium_tf32 cnn_bf16 cnn_tf32 large_bf16 large_tf32 mlp_tf32 ops_f32 gpt2_f32 small_f32
#       (large: the CNN with 2,048 images a step)
# --minutes   30 by default: what has no time left is named and left out; the most wanted comes first
# --rounds    3: the two sides take turns so many times, and the table shows medians
# --keep      every side is one process for all rounds: torch.compile compiles once; all are in the GPU's memory at once
# --batch     of GPT-2; without it the largest that both sides train is looked for, which takes a minute
# --tiny      the smallest sizes, PyTorch on the CPU: shows that all of it runs; its times mean nothing
# environment: BUILD (release build with the CUDA module, default build), PYTHON (default python3: without torch
#             tenon is measured alone)
#
# Ends with 1 when a program failed, or when the two sides' losses differ.
set -uo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
usage() {
    sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}
refuse() { # MESSAGE
    echo "gpu.sh: $1 (see --help)" >&2
    exit 2
}
minutes=30 rounds=3 given='' tiny= keep=
while [ $# -gt 0 ]; do
    case $1 in
    --minutes | --rounds | --batch) [[ ${2-} =~ ^[1-9][0-9]*$ ]] || refuse "$1 needs a number" ;;&
    --minutes) minutes=$2 && shift 2 ;;
    --rounds) rounds=$2 && shift 2 ;;
    --batch) given=$2 && shift 2 ;;
    --keep) keep=yes && shift ;;
    --tiny) tiny=yes && shift ;;
    -h | --help) usage && exit ;;
    -*) refuse "unknown option $1" ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || refuse 'want OUT.md'
out=$(realpath -m "$1") && shift
[ $# -gt 0 ] || set -- gpt2_bf16 gpt2_tf32 ops_bf16 ops_tf32 small_bf16 small_tf32 medium_bf16 medium_tf32 \
    cnn_bf16 cnn_tf32 large_bf16 large_tf32 mlp_tf32 ops_f32 gpt2_f32 small_f32
build=${BUILD:-$(dirname "$here")/build}/bench
[ -x "$build/bench_gpt" ] || refuse "no programs in $build: scripts/build makes them (or BUILD=FOLDER)"
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
csv=$out.csv log=$scratch/log
end=$((SECONDS + minutes * 60)) failed=0
: >"$csv"
: >"$log"

note() { # into the table's head and onto the terminal
    echo "# $*" | tee -a "$csv" >&2
}
# At least so many seconds are left; else what would have run is named.
time_for() { # SECONDS WHAT
    [ $((end - SECONDS)) -ge "$1" ] && return
    note "left out, no time: $2"
    return 1
}
# One program; its lines go into the table.
run() { # PROGRAM ARG...
    local status=0
    echo "+ ${*##*/}" >>"$log"
    timeout $((end - SECONDS > 1 ? end - SECONDS : 1)) "$@" >"$scratch/lines" 2>>"$log" || status=$?
    cat "$scratch/lines" >>"$csv"
    [ $status -eq 0 ] && return
    [ $status -eq 124 ] && note "cut off, no time: ${*##*/}" && return 1
    failed=1
    note "FAILED with $status: ${*##*/}: $(tail -n 1 "$log")"
    return 1
}
# PyTorch's side of a set; nothing where there is no PyTorch.
twin() { # TWIN ARG...
    [ -z "$torch" ] || run "$python" "$here/$1" "${theirs[@]}" "${@:2}"
}
ours=(--device cuda) theirs=(--device cuda)
[ -z "$tiny" ] || theirs=(--device cpu)

# The data sheet's dense rates, for the share of them that a step reaches.
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -n 1)
[[ $gpu == *,* ]] || gpu='no nvidia-smi'
note "$(date -u +%Y-%m-%dT%H:%MZ), $gpu, $(nproc) CPU cores, $rounds rounds"
torch=$("$python" -c 'import torch; print("PyTorch", torch.__version__, "with CUDA", torch.version.cuda)' 2>/dev/null) ||
    torch=''
note "${torch:-no PyTorch in $python: tenon alone}"
case $gpu in
*H100*PCIe*) note "peak TFLOP/s: bf16 756, tf32 378, f32 51" ;;
*H100* | *H200*) note "peak TFLOP/s: bf16 989, tf32 494, f32 67" ;;
*A100*) note "peak TFLOP/s: bf16 312, tf32 156, f32 19.5" ;;
esac
[ -z "$tiny" ] || note "tiny sizes, PyTorch on the CPU: no time here means anything"

# The largest batch, by doubling, that both sides train GPT-2 with.
batch_of() { # PRECISION
    local most=256 mine other
    batch=$given
    [ -z "$batch" ] || return 0
    [ -z "$tiny" ] || most=4
    run "$build/bench_gpt" --config "$gpt2" --precision "$1" "${ours[@]}" --batch 1 --find-batch $most
    mine=$(sed -n 's/^tenon_[^,]*,batch,\([0-9]*\).*/\1/p' "$scratch/lines")
    twin torch_gpt.py --config "$gpt2" --precision "$1" --batch 1 --find-batch $most
    other=$mine
    [ -z "$torch" ] || other=$(sed -n 's/^torch_[^,]*,batch,\([0-9]*\).*/\1/p' "$scratch/lines")
    batch=$((${mine:-0} < ${other:-0} ? ${mine:-0} : ${other:-0}))
    [ "$batch" -gt 0 ] && return
    failed=1
    note "FAILED: $gpt2 in $1: largest batches ${mine:-none} and ${other:-none}: $(tail -n 1 "$log")"
    return 1
}

# Both sides, turn about; the initial weights are written once.
rounds_of() { # SECONDS PROGRAM TWIN MODES ARG...
    local round mode weights=$scratch/weights sides
    if [ -n "$keep" ]; then
        sides=("$build/$2" "${ours[@]}" "${@:5}" --weights "$weights" --- "$build/$2" "${ours[@]}" "${@:5}" --capture)
        for mode in '' $4; do
            [ -z "$torch" ] || sides+=(--- "$python" "$here/$3" "${theirs[@]}" "${@:5}" --weights "$weights"
                ${mode:+--compile "$mode"})
        done
        time_for "$1" "$2 ${*:5}" && run "$python" "$here/turns.py" "$rounds" "${sides[@]}"
        rm -f "$weights"
        return
    fi
    for round in $(seq "$rounds"); do
        time_for "$1" "$2 ${*:5}, round $round" || return
        run "$build/$2" "${ours[@]}" "${@:5}" --weights "$weights" || return
        run "$build/$2" "${ours[@]}" "${@:5}" --capture
        twin "$3" "${@:5}" --weights "$weights"
        for mode in $4; do
            twin "$3" "${@:5}" --weights "$weights" --compile "$mode"
        done
    done
    rm -f "$weights"
}

gpt2=gpt2 small=small medium=medium images=() ops=() steps=()
if [ -n "$tiny" ]; then
    gpt2=tiny small=tiny medium=tiny
    images=(--batch 4) ops=(--config tiny) steps=(--steps 2 --warmup 9 --block 1)
fi
for set in "$@"; do
    precision=${set##*_}
    case $set in
    gpt2_*)
        time_for 60 "$set" || continue
        batch_of "$precision" || continue
        rounds_of 90 bench_gpt torch_gpt.py "default${keep:+ reduce-overhead}" --config $gpt2 --batch "$batch" --precision "$precision" \
            --steps 30 --warmup 10 "${steps[@]}"
        ;;
    small_*) rounds_of 30 bench_gpt torch_gpt.py 'default reduce-overhead' --config $small \
        --precision "$precision" --steps 300 --warmup 30 "${steps[@]}" ;;
    medium_*) rounds_of 30 bench_gpt torch_gpt.py 'default reduce-overhead' --config $medium \
        --precision "$precision" --steps 200 --warmup 30 "${steps[@]}" ;;
    cnn_*) rounds_of 30 bench_images torch_images.py 'default reduce-overhead' --config cnn \
        --precision "$precision" --steps 300 --warmup 30 "${images[@]}" "${steps[@]}" ;;
    large_*) rounds_of 30 bench_images torch_images.py default --config cnn --batch 2048 \
        --precision "$precision" --steps 100 --warmup 20 "${images[@]}" "${steps[@]}" ;;
    mlp_*) rounds_of 30 bench_images torch_images.py 'default reduce-overhead' --config mlp \
        --precision "$precision" --steps 500 --warmup 30 "${images[@]}" "${steps[@]}" ;;
    ops_*) for round in $(seq "$rounds"); do
            time_for 60 "$set, round $round" || break
            run "$build/bench_ops" "${ours[@]}" --precision "$precision" "${ops[@]}" "${steps[@]:0:2}" "${steps[@]:4}"
            twin torch_ops.py --precision "$precision" "${ops[@]}" "${steps[@]:0:2}" "${steps[@]:4}"
        done ;;
    *) usage ;;
    esac
done
sed -n 's/^# [a-z0-9_]*: /# /p' "$log" | sort -u >>"$csv"
"$python" "$here/summarise.py" "$csv" >"$out" || failed=1
if [ $failed -ne 0 ]; then
    tail -n 40 "$log" >&2
    echo "gpu.sh: something failed: see $out" >&2
fi
exit $failed
