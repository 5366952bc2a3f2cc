#!/usr/bin/env bash
# The examples started by mpirun: the same losses as one process where the model has no batch norm, a run
# that goes on bit for bit with dropout, on any number of processes, and what is refused.
# usage: tests/parallel/examples.sh TRANSFORMER BATCHNORM MODULE [CUDA-SHIM]
# Seen to fail: with every rank taking the first part of a batch, and with rank 0's loss in place of the mean:
# "the losses of 2" and "of 4".
set -uo pipefail
transformer=$(realpath "$1") batchnorm=$(realpath "$2")
shim=${4:+$(realpath "$4")}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TN_MPI_MODULE=${3:+$(realpath "$3")}
# shellcheck source=tests/parallel/env.sh
. "$here/env.sh"
export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 # the examples let Open MPI close its parts: see parallel_kept.c
# shellcheck source=tests/examples/example_data.sh
. "$here/../examples/example_data.sh"
scratch
dir=$work

ranks() { timeout $limit mpirun -n "$@"; }
example_text >text
small=(--text text --batch 12 --context 16 --layers 1 --d-model 16 --heads 2 --quiet --eval-every 0)
losses() { cut -d, -f2 "$1"; }
close() { # LOG LOG [COUNT]: as many losses, each within 1e-5
    paste <(losses "$1") <(losses "$2") | awk -v count="${3:-20}" 'NR > 1 { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d; n += $1 $2 ~ /^[0-9.]+$/ }
        END { print n " losses, largest difference " most; exit !(n == count && most <= 1e-5) }'
}

check 'one process' "$transformer" "${small[@]}" --steps 20 --log one
for n in 2 4; do
    up_to $n || continue
    check "$n processes" ranks $n "$transformer" "${small[@]}" --steps 20 --log many
    check "the losses of $n" close one many
done

masks=("${small[@]}" --steps 12 --dropout 0.3 --print-hash)
whole=$(ranks 2 "$transformer" "${masks[@]}")
check 'stopped' ranks 2 "$transformer" "${masks[@]}" --stop-after 5 --checkpoint c
cp c d
cp c g
check 'resumed on 2' same "$whole" "$(ranks 2 "$transformer" --resume c --print-hash --quiet)"
check 'resumed on 1' "$transformer" --resume d --quiet

refused() { # MESSAGE COMMAND...
    "${@:2}" >log 2>&1 && return 1
    cat log
    grep -qF -- "$1" log
}
# Every process must resume from the same checkpoint: with one step more to go than the others it would wait.
check 'stopped later' ranks 2 "$transformer" "${masks[@]}" --stop-after 6 --checkpoint e
check 'another run' ranks 2 "$transformer" "${masks[@]}" --stop-after 6 --seed 9 --checkpoint f
check 'another step' refused 'tn_parallel_same: on rank 1 --resume is not the same as on rank 0' \
    ranks 1 "$transformer" --resume g --quiet : -n 1 "$transformer" --resume e --quiet
check 'another file' refused 'tn_parallel_same: on rank 1 --resume is not the same as on rank 0' \
    ranks 1 "$transformer" --resume e --quiet : -n 1 "$transformer" --resume f --quiet
# What decides the bits of a run, and that nothing else shows: the same lines in another order, a seed.
tac text >other
check 'another text' refused 'tn_parallel_same: on rank 1 text-hash is not the same as on rank 0' \
    ranks 1 "$transformer" "${small[@]}" --steps 1 : -n 1 "$transformer" --text other "${small[@]:2}" --steps 1
check 'another seed' refused 'tn_parallel_same: on rank 1 seed is not the same as on rank 0' \
    ranks 1 "$transformer" "${small[@]}" --steps 1 : -n 1 "$transformer" "${small[@]}" --seed 2 --steps 1
check 'a batch for 5' refused '--batch 12: 5 processes share it: want a multiple of 5' \
    ranks 5 "$transformer" "${small[@]}" --steps 1

# The optimizer's state dealt over the processes: the same bits and the same checkpoint, which any number of
# processes goes on from.
state=(--text text --batch 24 "${small[@]:4}" --steps 10 --print-hash --checkpoint-every 4)
hash=$(ranks 4 "$transformer" "${state[@]}" --log whole --checkpoint kept)
check 'the bits of --shard' same "$hash" "$(ranks 4 "$transformer" "${state[@]}" --shard --checkpoint h)"
check 'the file of --shard' cmp kept h
check 'stopped with --shard' ranks 4 "$transformer" "${state[@]}" --shard --stop-after 5 --checkpoint h
{ head -1 whole; tail -5 whole; } >rest
for n in 1 2 8; do
    cp h i
    check "--shard resumed on $n" ranks $n "$transformer" --resume i --shard --quiet --log "rest$n"
    check "its losses on $n" close rest "rest$n" 5
done
cp h i
check '--shard resumed without it' same "$hash" "$(ranks 4 "$transformer" --resume i --print-hash --quiet)"
check '--shard in one process' refused 'tn_parallel_same: on rank 1 --shard is not the same as on rank 0' \
    ranks 1 "$transformer" "${state[@]}" --shard : -n 1 "$transformer" "${state[@]}"

example_images images 300
if [ -n "$shim" ]; then # --device cuda: each process on a GPU of its own
    gpus() { TN_CUDA_MODULE=$shim TN_NCCL_MODULE=$shim TN_CUDA_DEVICES=4 ranks "$@" --device cuda; }
    for n in 2 4; do
        up_to $n || continue
        check "$n GPUs" gpus $n "$transformer" "${small[@]}" --steps 20 --log gpus
        check "the losses of $n GPUs" close one gpus
    done
    check 'captured by 2' refused '--capture: 2 processes exchange gradients' \
        gpus 2 "$transformer" "${small[@]}" --steps 1 --capture
    example_images few 60
    check 'batchnorm on 2 GPUs' gpus 2 "$batchnorm" --data few --epochs 1 --batch 20 --steps 3 --quiet
fi

images=(--data images --epochs 2 --batch 50 --quiet --print-hash)
hash=$(ranks 2 "$batchnorm" "${images[@]}")
check 'batchnorm stopped' ranks 2 "$batchnorm" "${images[@]}" --stop-after 7 --checkpoint b
check 'batchnorm resumed' same "$hash" "$(ranks 2 "$batchnorm" --resume b --print-hash --quiet)"
check 'batchnorm with --shard' same "$hash" "$(ranks 2 "$batchnorm" "${images[@]}" --shard --checkpoint j/ --keep 2 --save w)"
check 'its files' same 'j/batchnorm-00000006.safetensors j/batchnorm-00000012.safetensors w' "$(echo j/* w)"
verdict
