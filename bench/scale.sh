#!/usr/bin/env bash
# How the time of a training step grows with the GPT: one size at a time changes, the others stay those of the small one
# (4 layers, width 128, context 64, batch 32). Writes OUT.csv, and beside it OUT.svg with a line for the operation count.
# usage: bench/scale.sh [OPTION...] OUT.csv
#
# --sweeps LIST   of width depth context batch threads    (a list with commas; by default all of it)
# --dtype DTYPE   f32 (default) or bf16
# --torch         PyTorch beside it, eager with fused attention
# --rounds N      default 3; the medians of the rounds
# --threads N     of all sweeps but threads, default: all CPUs
# --quick         two small values each, one round: shows that it runs; its times mean nothing
# --plot          only draws OUT.svg again from OUT.csv
# environment: BUILD (release build, default build), PYTHON (with matplotlib for the picture, with torch and numpy for
#              --torch; default python3)
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=bench/machine.bash
. "$here/machine.bash"
sweeps=(width depth context batch threads) dtype=f32 rounds=3 threads=$(nproc) torch='' quick='' plot=''
while [ $# -gt 0 ]; do
    case $1 in
    --sweeps) choose "$1" "${2-}" "${sweeps[@]}" && sweeps=("${chosen[@]}") && shift 2 ;;
    --dtype) choose "$1" "${2-}" f32 bf16 && dtype=$2 && shift 2 ;;
    --rounds) whole "$1" "${2-}" && rounds=$2 && shift 2 ;;
    --threads) whole "$1" "${2-}" && threads=$2 && shift 2 ;;
    --torch) torch=yes && shift ;;
    --quick) quick=yes rounds=1 && shift ;;
    --plot) plot=yes && shift ;;
    -h | --help) usage && exit ;;
    -*) refuse "unknown option $1 (see --help)" ;;
    *) break ;;
    esac
done
want_out "$@"
[[ $1 == *.csv ]] || refuse "\"$1\": want a name that ends in .csv"
[[ $dtype != *,* ]] || refuse "--dtype $dtype: want one"
python=${PYTHON:-python3}
if no_plot=$("$python" -c 'import matplotlib' 2>&1); then no_plot=; else no_plot=${no_plot:-it ends with $?}; fi
how="pip install matplotlib for $python, or scripts/setup python3-matplotlib and PYTHON=/usr/bin/python3"
draw() {
    "$python" "$here/scale.py" "$out" "${out%.csv}.svg" && echo "${out%.csv}.svg"
}
if [ -n "$plot" ]; then
    [ -z "$no_plot" ] || refuse "no picture without matplotlib (${no_plot##*$'\n'}): $how"
    [ -r "$out" ] || refuse "$out cannot be read"
    draw
    exit
fi
want_build bench_gpt
[ -z "$torch" ] || want_torch
: >"$out" || refuse "$out cannot be written"
[ -z "$no_plot" ] || echo "scale.sh: there will be no picture without matplotlib: $how; then scale.sh --plot $1" >&2
machine_notes
note "GPT, training steps in $dtype, $rounds rounds${quick:+, quick: no time here means anything}"
echo 'sweep,value,side,ms,least,most,GFLOP' >>"$out"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# One run: a line with its median, least and most milliseconds, and the operations of a step (bench_gpt.c).
run() { # SWEEP VALUE SIDE PROGRAM...
    local lines
    lines=$("${@:4}" --precision "$dtype" --layers $depth --width $width --context $context --batch $batch \
        --threads "$cpus" --steps "$steps" --warmup "$warmup" 2>"$log") || {
        echo "scale.sh: failed: ${*:4}: $(tail -n 1 "$log")" >&2
        exit 1
    }
    awk -F, -v head="$1,$2,$3" -v tokens=$((batch * context)) -v attention=$((12 * depth * width * context)) '
        $2 == "ms/step" { ms = $3 "," $4 "," $5 }
        $2 == "parameters" { n = $3 }
        END { printf "%s,%s,%.6g\n", head, ms, 1e-9 * tokens * (6 * n + attention) }' <<<"$lines" >>"$out"
}
steps=8 warmup=3
# shellcheck disable=SC2034 # named by "$sweep" below
declare -A values=([width]='64 128 256 512 1024' [depth]='1 2 4 8 16' [context]='16 32 64 128 256 512'
    [batch]='1 2 4 8 16 32 64' [threads]=1)
for ((n = 2; n <= $(nproc); n *= 2)); do values[threads]+=" $n"; done
if [ -n "$quick" ]; then
    values=([width]='32 64' [depth]='1 2' [context]='8 16' [batch]='1 2' [threads]=${values[threads]:0:3}) steps=2 warmup=1
fi
for round in $(seq "$rounds"); do
    for sweep in "${sweeps[@]}"; do
        echo "# round $round of $rounds: $sweep" >&2
        for value in ${values[$sweep]}; do
            depth=4 width=128 context=64 batch=32 cpus=$threads
            [ -z "$quick" ] || depth=1 width=32 context=8 batch=1
            case $sweep in
            threads) cpus=$value ;;
            *) printf -v "$sweep" %s "$value" ;;
            esac
            run "$sweep" "$value" tenon "$build/bench_gpt"
            [ -z "$torch" ] || run "$sweep" "$value" torch "$python" "$here/torch_gpt.py" --way eager
        done
    done
done
[ -n "$no_plot" ] || draw
