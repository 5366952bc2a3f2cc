#!/usr/bin/env bash
# Times the benchmark programs beside PyTorch at its best: every way of running PyTorch that makes sense, turn
# about with tenon, so that a ratio compares runs a few seconds apart. A table at the end.
# usage: bench/run.sh [OPTION...] OUT.csv
#
# --workloads LIST  of gpt_small gpt_medium gpt2 cnn mlp loader ops    (a list with commas; by default all of it)
# --dtypes LIST     of f32 bf16
# --ways LIST       of eager eager-written eager-pieces eager-channels compiled compiled-written compiled-channels, for loader each-0
#                   each-2 batch-0 batch-2; a workload takes those that change something in it (bench/README.md)
# --rounds N        default 5; the table shows medians of the rounds
# --threads N       on both sides, default 2
# --busy N          so many processes compute beside them, default 0
# --keep            every side is one process for all rounds, so that torch.compile compiles once; all sides of a workload
#                   and dtype start and warm up at once, and hold their memory at once
# --quick           one round of the smallest sizes, torch.compile only of a GPT, the CNN and the MLP: shows that all
#                   of it runs; its times mean nothing
# environment: BUILD (release build, default build), PYTHON (with torch and numpy, default python3),
#              DATA (folder of Fashion-MNIST, default /usr/share/datasets/fashion-mnist)
#
# Ends with 1 when a program failed, or when the losses of two sides differ: their times compare nothing then.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=bench/machine.bash
. "$here/machine.bash"
workloads=(gpt_small gpt_medium gpt2 cnn mlp loader ops) dtypes=(f32 bf16)
ways=(eager eager-written eager-pieces eager-channels compiled compiled-written compiled-channels each-0 each-2 batch-0 batch-2)
rounds='' threads=2 busy=0 quick='' keep=''
while [ $# -gt 0 ]; do
    case $1 in
    --workloads) choose "$1" "${2-}" "${workloads[@]}" && workloads=("${chosen[@]}") && shift 2 ;;
    --dtypes) choose "$1" "${2-}" "${dtypes[@]}" && dtypes=("${chosen[@]}") && shift 2 ;;
    --ways) choose "$1" "${2-}" "${ways[@]}" && ways=("${chosen[@]}") && shift 2 ;;
    --rounds) whole "$1" "${2-}" && rounds=$2 && shift 2 ;;
    --threads) whole "$1" "${2-}" && threads=$2 && shift 2 ;;
    --busy) whole "$1" "${2-}" && busy=$2 && shift 2 ;;
    --keep) keep=yes && shift ;;
    --quick) quick=yes && shift ;;
    -h | --help) usage && exit ;;
    -*) refuse "unknown option $1 (see --help)" ;;
    *) break ;;
    esac
done
want_out "$@"
want_build bench_gpt bench_images bench_ops bench_loader
want_torch
data=${DATA:-/usr/share/datasets/fashion-mnist}
[[ " ${workloads[*]} " != *' loader '* || -r $data/train-images-idx3-ubyte.gz ]] ||
    refuse "no Fashion-MNIST in $data: scripts/setup installs it (dataset-fashion-mnist), or DATA=FOLDER, or --workloads without loader"
: >"$out" || refuse "$out cannot be written"
scratch=$(mktemp -d)
beside=()
declare -A pid=() to=() from=() started=() # of kept sides
trap 'rm -rf "$scratch"; [ ${#beside[@]}${#pid[@]} = 00 ] || kill "${beside[@]}" "${pid[@]}" 2>/dev/null' EXIT
log=$scratch/log
: >"$log"

machine_notes
note "$rounds rounds, $busy busy processes beside${keep:+, each side one process for all rounds}"
[ -z "$quick" ] || note 'quick: the smallest sizes; no time here means anything'
if why=$(no_compiler); then
    kept=()
    for way in "${ways[@]}"; do [[ $way == compiled* ]] || kept+=("$way"); done
    [ ${#kept[@]} -eq ${#ways[@]} ] || note "torch.compile left out: $why"
    ways=("${kept[@]}")
fi
for _ in $(seq "$busy"); do
    (while :; do :; done) &
    beside+=($!)
done
export OMP_NUM_THREADS=$threads

# One program; its lines go into the results.
run() { # PROGRAM ARG...
    echo "+ $*" >>"$log"
    "$@" --threads "$threads" >>"$out" 2>>"$log" || failed $? "$@" --threads "$threads"
}
# A side that stays for all rounds; its lines come through a pipe, a line into the other one starts a round.
start() { # WAY PROGRAM ARG...
    local way=$1 command=("${@:2}" --threads "$threads" --rounds "$rounds") fd
    echo "+ ${command[*]}" >>"$log"
    rm -f "$scratch/to" "$scratch/from" && mkfifo "$scratch/to" "$scratch/from"
    exec {fd}<>"$scratch/to" # both ends: writing to a side that has died must not end this script
    (
        for other in "${to[@]}" "${from[@]}" "$fd"; do exec {other}>&-; done
        exec "${command[@]}"
    ) <"$scratch/to" >"$scratch/from" 2>>"$log.$way" &
    pid[$way]=$! to[$way]=$fd started[$way]=${command[*]}
    exec {fd}<"$scratch/from"
    from[$way]=$fd
}
# Its lines into the results, until it is ready for a round, or has ended after the last.
hear() { # WAY ROUND
    local line
    while IFS= read -r line <&"${from[$1]}"; do
        [ "$line" != '# ready' ] || return 0
        echo "$line" >>"$out"
    done
    wait "${pid[$1]}" && [ "$2" -eq "$rounds" ] && return
    log=$log.$1 failed $? "${started[$1]}"
}
# The rounds of the sides that were started; stops after one if the losses differ.
keep_turns() { # WAY...
    local round way order fd
    for way; do [ "$way" = tenon ] || hear "$way" 0; done
    for round in $(seq "$rounds"); do
        echo "# round $round of $rounds" >&2
        turn_about "$round" "$@"
        for way in "${order[@]}"; do
            echo >&"${to[$way]}"
            hear "$way" "$round"
        done
        agree || finish
    done
    for fd in "${to[@]}" "${from[@]}"; do exec {fd}>&-; done
    pid=() to=() from=()
}
# Sides that do different work are found after one round, not after all of them.
agree() { "$python" "$here/summarise.py" "$out" >"$scratch/table"; }
# What the programs say of themselves and of what they left out, once each; then the tables.
finish() {
    sed -nE 's/^# [a-z0-9_-]+: (tenon|torch) /# \1 /p; s/^# tenon_(.*: left out: )/# tenon has no \1/p' "$log"* | sort -u >>"$out"
    "$python" "$here/summarise.py" "$out"
    exit
}
# Tenon and every way, in this order in one round and backwards in the next. Weights are written once.
turns() { # PROGRAM TWIN WAYS ARG...
    local way weights=$scratch/$5 order=(tenon) mine=() same=() command
    for way in $3; do [[ " ${ways[*]} " != *" $way "* ]] || order+=("$way"); done
    if [ ${#order[@]} -eq 1 ]; then
        echo "# $1 ${*:4}: left out, none of its ways was chosen: $3" >&2
        return
    fi
    if [[ $1 == bench_gpt || $1 == bench_images ]]; then
        same=(--weights "$weights")
        [ -e "$weights" ] || mine=("${same[@]}")
    fi
    turn_about "$round" "${order[@]}"
    [ -z "$keep" ] || echo "# $1 ${*:4}: starting ${order[*]}" >&2
    for way in "${order[@]}"; do
        case $way in
        tenon) command=("$build/$1" "${@:4}" "${mine[@]}") ;;
        *) command=("$python" "$here/$2" --way "$way" "${@:4}" "${same[@]}") ;;
        esac
        if [ -z "$keep" ]; then
            run "${command[@]}"
        else
            start "$way" "${command[@]}"
            [ "$way" != tenon ] || hear tenon 0 # it has written the weights then
        fi
    done
    [ -z "$keep" ] || keep_turns "${order[@]}"
}
gpt=(bench_gpt torch_gpt.py 'eager eager-written compiled compiled-written') large=("${gpt[@]}")
huge=(bench_gpt torch_gpt.py "${gpt[2]} eager-pieces") # the vocabulary
cnn=(bench_images torch_images.py 'eager eager-channels compiled compiled-channels')
mlp=(bench_images torch_images.py 'eager compiled')
loader=(bench_loader torch_loader.py 'each-0 each-2 batch-0 batch-2')
ops=(bench_ops torch_ops.py 'eager eager-written eager-channels compiled')
small=small medium=(medium) gpt2=gpt2 few=()
if [ -n "$quick" ]; then
    small=tiny medium=(tiny --batch 3) gpt2=tiny few=(--steps 2 --warmup 9)
    gpt[2]='eager eager-written compiled' large[2]='eager eager-written' huge[2]='eager eager-written eager-pieces' cnn[2]='eager eager-channels compiled'
    ops[2]='eager eager-written eager-channels'
fi
passes=${keep:+1} passes=${passes:-$rounds} # over all workloads; with --keep each has its rounds in one
for round in $(seq "$passes"); do
    [ -n "$keep" ] || echo "# round $round of $rounds" >&2
    for workload in "${workloads[@]}"; do
        for dtype in "${dtypes[@]}"; do
            p=(--precision "$dtype")
            case $workload in
            gpt_small) turns "${gpt[@]}" --config $small "${p[@]}" "${few[@]}" ;;
            gpt_medium) turns "${large[@]}" --config "${medium[@]}" "${p[@]}" --steps 6 --warmup 4 "${few[@]}" ;;
            gpt2) turns "${huge[@]}" --config $gpt2 --batch 1 "${p[@]}" --steps 3 --warmup 2 "${few[@]}" ;;
            cnn) turns "${cnn[@]}" --config cnn "${p[@]}" ${quick:+--batch 16} "${few[@]}" ;;
            mlp) turns "${mlp[@]}" --config mlp "${p[@]}" --steps 300 --warmup 20 "${few[@]}" ;;
            loader) [ "$dtype" != "${dtypes[0]}" ] || turns "${loader[@]}" --data "$data" ${quick:+--steps 1} ;;
            ops) turns "${ops[@]}" "${p[@]}" ${quick:+--config tiny --steps 1} ;;
            esac
        done
    done
    agree || break
done
finish
