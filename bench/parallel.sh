#!/usr/bin/env bash
# Data parallel training: rates of 1, 2, ... processes of one thread each, beside PyTorch's DistributedDataParallel
# over gloo, turn about. A table at the end.
# usage: bench/parallel.sh [OPTION...] OUT.csv
#
# --workloads LIST  of gpt_medium gpt_small cnn        (a list with commas; by default gpt_medium,cnn)
# --sides LIST      of tenon torch                     (by default both)
# --processes LIST  of 2 4 8; one process always runs  (by default 2)
# --scaling LIST    of strong weak: the same whole batch, each process taking its part of the rows, or the same rows in
#                   each process                       (by default both)
# --apart           also as many independent programs at once, which send nothing: the most that processes can reach here
# --rounds N        default 5; the table shows medians of the rounds
# --quick           one round of the smallest sizes: shows that all of it runs; its times mean nothing
# environment: BUILD (release build, default build), PYTHON (default python3; for torch's side with torch and numpy)
#
# Each process is bound to a core; more processes than cores share them. Ends with 1 when a program failed, or when
# losses differ. bench/parallel.py OUT.csv... prints the table of several such files.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=bench/machine.bash
. "$here/machine.bash"
workloads=(gpt_medium cnn) sides=(tenon torch) processes=(2) scaling=(strong weak) apart='' rounds='' quick='' threads=1
while [ $# -gt 0 ]; do
    case $1 in
    --workloads) choose "$1" "${2-}" gpt_medium gpt_small cnn && workloads=("${chosen[@]}") && shift 2 ;;
    --sides) choose "$1" "${2-}" "${sides[@]}" && sides=("${chosen[@]}") && shift 2 ;;
    --processes) choose "$1" "${2-}" 2 4 8 && processes=("${chosen[@]}") && shift 2 ;;
    --scaling) choose "$1" "${2-}" "${scaling[@]}" && scaling=("${chosen[@]}") && shift 2 ;;
    --apart) apart=yes && shift ;;
    --rounds) whole "$1" "${2-}" && rounds=$2 && shift 2 ;;
    --quick) quick=yes && shift ;;
    -h | --help) usage && exit ;;
    -*) refuse "unknown option $1 (see --help)" ;;
    *) break ;;
    esac
done
want_out "$@"
want_build bench_gpt bench_images
want_python # for the table
[[ " ${sides[*]} " != *' torch '* ]] || want_torch
command -v mpirun >/dev/null || refuse 'no mpirun: scripts/setup openmpi-bin'
: >"$out" || refuse "$out cannot be written"
cores=$(nproc) scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$scratch/log
: >"$log"
cd "$scratch"
machine_notes
note "$(mpirun --version | head -n 1), $rounds rounds${quick:+, quick: no time here means anything}"
export OMP_NUM_THREADS=1
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# A program's lines, headed by what ran: workload, rows of the whole batch, side, processes, round.
lines() { # SIDE PROCESSES FILE
    sed -n "s/^[^#,]*,/$workload,$batch,$1,$2,$round,/p" "$3" >>"$out"
}
# The program of a side, for rows of the whole batch.
command_of() { # SIDE ROWS
    local name=${workload%%_*} config=${workload#*_}
    [ -z "$quick" ] || config=tiny
    case $name in
    gpt) command=(gpt --config "$config") ;;
    cnn) command=(images --config cnn) ;;
    esac
    case $1 in
    tenon) command=("$build/bench_${command[0]}" "${command[@]:1}") ;;
    torch)
        command=("$python" "$here/torch_${command[0]}.py" "${command[@]:1}" --meet "$scratch/meet")
        [ "$name" = gpt ] || command+=(--way eager-channels)
        ;;
    esac
    command+=(--batch "$2" "${few[@]}" --threads 1 --precision f32)
}
# The initial weights, which torch's side reads: by a run of tenon's that is not recorded.
write_weights() { # ROWS
    command_of tenon "$1"
    command+=(--steps 1 --warmup 0 --weights "$scratch/$workload")
    "${command[@]}" >"$scratch/said" 2>>"$log" || failed $? "${command[@]}"
}
# The processes of one run, together.
together() { # SIDE PROCESSES
    local place=(--bind-to core)
    [ "$2" -le "$cores" ] || place=(--bind-to none --oversubscribe)
    command_of "$1" "$batch"
    [ "$1" = tenon ] || command+=(--weights "$scratch/$workload")
    rm -f "$scratch/meet"
    mpirun -n "$2" "${place[@]}" "${command[@]}" >"$scratch/said" 2>>"$log" || failed $? mpirun -n "$2" "${command[@]}"
    lines "$1" "$2" "$scratch/said"
}
# As many programs that know nothing of each other, each with its rows.
beside() { # SIDE PROCESSES
    local i running=()
    [ "$2" -le "$cores" ] || return 0
    command_of "$1" $((batch / $2))
    [ "$1" = tenon ] || command+=(--weights "$scratch/$workload")
    for ((i = 0; i < $2; i++)); do
        taskset -c "$i" "${command[@]}" >"$scratch/said$i" 2>>"$log" &
        running+=($!)
    done
    for i in "${running[@]}"; do wait "$i" || failed $? "${command[@]}"; done
    for ((i = 0; i < $2; i++)); do lines "$1-apart" "$2" "$scratch/said$i"; done
}
declare -A rows=([gpt_medium]=8 [gpt_small]=32 [cnn]=128)
declare -A counts=([gpt_medium]='--steps 6 --warmup 4' [gpt_small]='--steps 20 --warmup 5' [cnn]='--steps 40 --warmup 10')
for round in $(seq "$rounds"); do
    echo "# round $round of $rounds" >&2
    for workload in "${workloads[@]}"; do
        read -ra few <<<"${counts[$workload]}"
        one=${rows[$workload]}
        [ -z "$quick" ] || { few=(--steps 2 --warmup 8) && one=8; }
        turn_about "$round" "${sides[@]}"
        [ "$round" -gt 1 ] || [[ " ${sides[*]} " != *' torch '* ]] || write_weights "$one"
        for side in "${order[@]}"; do
            batch=$one && together "$side" 1
            for n in "${processes[@]}"; do
                for kind in "${scaling[@]}"; do
                    batch=$one
                    [ "$kind" = strong ] || batch=$((one * n))
                    together "$side" "$n"
                    [ -z "$apart" ] || beside "$side" "$n"
                done
            done
        done
    done
    # Sides that do different work are found after one round, not after all of them.
    "$python" "$here/parallel.py" "$out" >"$scratch/table" || break
done
"$python" "$here/parallel.py" "$out"
