#!/usr/bin/env bash
# Data parallel training on GPUs, over NCCL: the driver's modes with 2 and 4 ranks, each on a GPU of its own,
# and their weights against those of one process on the CPU. Over the shim of tests/cuda/host, where one module
# stands for CUDA and NCCL; on real GPUs with the real two, with as many ranks as there are GPUs.
# usage: tests/parallel/gpus.sh DRIVER MPI-MODULE CUDA-MODULE NCCL-MODULE
# Seen to fail: with src/ext/parallel/nccl.c not waiting before a sum, or behind it (the sum is not there yet), or with a
# stream for each of its lines (the shim refuses sums in two streams); src/ext/parallel/reduce.c not dividing,
# src/cuda/capture.cu measuring on the first GPU; parameters on a GPU dealt, or not looked at in a step;
# src/ext/parallel/wire.c letting a rank end while its sums are on their way.
set -euo pipefail
driver=$(realpath "$1")
TN_MPI_MODULE=${2:+$(realpath "$2")}
# shellcheck source=tests/parallel/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[ -n "$4" ] || skip 'built without NCCL'
[ -x "$driver" ] || skip 'the driver was not built'
TN_CUDA_MODULE=$(realpath "$3") TN_NCCL_MODULE=$(realpath "$4")
export TN_CUDA_MODULE TN_NCCL_MODULE
if [ "$3" = "$4" ]; then shim=yes; else shim=no; fi
[ $shim = no ] || export TN_CUDA_DEVICES=4
scratch

gpus=$("$driver" gpus)
[ "$gpus" -ge 2 ] || skip "$gpus GPUs are here, and every rank needs one"

ranks 1 train f64 0 1 f64
ranks 1 train f32 0 1 f32
ranks 1 norm f64 n64
for n in 2 4; do
    up_to $n || continue
    [ $n -le "$gpus" ] || continue
    ranks $n cuda train f64 64 1 a && ranks 1 compare f64 a 1e-12
    ranks $n cuda train f64 0 3 b && ranks 1 compare f64 b 1e-12
    ranks $n cuda train f32 64 1 c && ranks 1 compare f32 c 2e-6 && cat log
    ranks $n cuda train_bf16 f32 64 d && ranks 1 compare f32 d 2e-2 && cat log
    ranks $n cuda norm f64 e && ranks 1 compare n64 e 1e-12
    for mode in uneven differ buffers unused frozen overlap dtypes half_sums half_edges calls random_numbers mismatch \
        two changed capture dealt metrics leave; do
        ranks $n cuda $mode
    done
    TN_CACHE=0 ranks $n cuda memory
    [ $shim = no ] || ranks $n cuda faults
done

two=(mpirun -n 2 "$driver" cuda)
ends 'rank 1' "${two[@]}" die killed
TN_NCCL_MODULE=/nowhere.so ends 'on rank 0 several ranks train on GPUs' "${two[@]}" differ
if [ $shim = yes ]; then
    TN_CUDA_DEVICES=1 ends 'Duplicate GPU detected' "${two[@]}" differ
    TN_NCCL_BROKEN=1 ends 'tn_backward: rank 1 of 2: NCCL: a sum: remote process exited' "${two[@]}" train f32 64 1 x
fi

results
