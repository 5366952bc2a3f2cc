#!/usr/bin/env bash
# Data parallel training over MPI on this machine, with 2 and 4 ranks: the driver's modes, and the
# weights of n ranks against those of one process. Skipped where tenon's module for MPI was not
# built, or mpirun is missing.
# usage: tests/parallel/ranks.sh DRIVER MODULE
# Seen to fail: with src/ext/parallel/reduce.c not dividing by the number of ranks, not adding older
# gradients, not waiting for a bucket, or averaging integers; compare.c without a note;
# data_parallel.c not sending rank 0's parameters; sync_batchnorm.c dividing by n for running_var, or with
# a backward that does not sum; src/ext/diagnose/check_state.c without rank 0's values; src/ext/metrics/metrics.c adding scores.
set -euo pipefail
driver=$(realpath "$1")
table=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../../docs/buffers.md
TN_MPI_MODULE=${2:+$(realpath "$2")}
# shellcheck source=tests/parallel/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
scratch

ranks 1 maps unmapped
ranks 2 maps mapped
ranks 1 train f64 0 1 f64
ranks 1 train f32 0 1 f32
ranks 1 norm f64 n64
ranks 1 norm f32 n32
ranks 1 wide w64
for n in 2 4; do
    up_to $n || continue
    # one bucket; many of them; accumulated in pieces of which the last one sends
    ranks $n train f64 0 1 a && ranks 1 compare f64 a 1e-12
    ranks $n train f64 64 1 b && ranks 1 compare f64 b 1e-12
    ranks $n train f64 64 3 c && ranks 1 compare f64 c 1e-12
    ranks $n train f32 64 1 d && ranks 1 compare f32 d 2e-6 && cat log
    # messages in bf16, with one bucket and with many
    ranks $n train_bf16 f32 0 g && ranks 1 compare f32 g 2e-2 && cat log
    ranks $n train_bf16 f32 32 h && ranks 1 compare f32 h 2e-2 && cat log
    ranks $n train_bf16 f64 64 i && ranks 1 compare f64 i 1e-12
    # batch norm over all ranks, buffers included
    ranks $n norm f64 e && ranks 1 compare n64 e 1e-12
    ranks $n recompute f64 r && cmp e r
    ranks $n norm f32 f && ranks 1 compare n32 f 5e-6 && cat log
    # two threads in each process, and the optimizer's state dealt over the ranks
    TN_NUM_THREADS=2 ranks $n wide w && ranks 1 compare w64 w 1e-12 && cat log
    for mode in uneven differ buffers unused frozen tied overlap dtypes half_sums half_edges calls random_numbers \
        metrics mismatch two leave same_data changed checked; do
        ranks $n $mode
    done
    ranks $n roles "$table"
    TN_CACHE=0 ranks $n memory
done
# a number of ranks that is no power of two: MPI adds in another order, and a mean is no exact division
ranks 3 train f64 64 1 j && ranks 1 compare f64 j 1e-12
ranks 3 norm f64 k && ranks 1 compare n64 k 1e-12
for mode in uneven half_sums tied metrics; do ranks 3 $mode; done

# A rank that is killed, or ends with an error, ends the others: with a status, and the rank's number, from
# mpirun for one that was killed, from the program itself for the other.
for how in killed exited; do ends 'rank 2' mpirun -n 3 "$driver" die $how; done

# Several processes, and a module that cannot be opened: not n runs side by side.
TN_MPI_MODULE=/nowhere.so ends '2 processes were started together' mpirun -n 2 "$driver" calls

# srun (Slurm) is an mpirun with PMIx, and without it starts programs that have nothing to do with each other.
runs mpirun -n 2 env -u OMPI_COMM_WORLD_SIZE SLURM_STEP_NUM_TASKS=2 "$driver" maps mapped
SLURM_STEP_NUM_TASKS=2 ranks 1 maps unmapped

# mpirun of another MPI than the module's: each process would be a run of its own.
want=1
ends 'PMI_SIZE is 2, and MPI .* has 1 processes' env PMI_SIZE=2 "$driver" calls
ends 'OMPI_COMM_WORLD_SIZE is 3, and MPI .* has 2 processes' \
    mpirun -n 2 env OMPI_COMM_WORLD_SIZE=3 "$driver" calls

results
