#!/usr/bin/env bash
# An optimizer whose state is dealt over ranks: the bits of one that is not, a rank's part of the memory,
# checkpoints that any number of ranks loads, and failures that all ranks see. Skipped where tenon's module
# for MPI was not built, or mpirun is missing.
# usage: tests/parallel/shard.sh DRIVER MODULE
# Seen to fail: with every parameter dealt to rank 0, state elsewhere kept, all state read from a file, a rank's row
# not received or strided parameters not copied back, versions that stay, no agreement before a step, words that are
# not compared, and an allocation in the kernel.
set -euo pipefail
driver=$(realpath "$1")
TN_MPI_MODULE=${2:+$(realpath "$2")}
# shellcheck source=tests/parallel/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
scratch

for n in 2 4; do
    up_to $n || continue
    ranks $n bits $every
    ranks $n memory state && sort log
    ranks $n refusals
    ranks $n waiting waiting-$n
    ranks $n fail none
    runs test ! -e none # no file without its state
    TN_CACHE=0 ranks $n out_of_memory 0 && cat log
    TN_CACHE=0 ranks $n out_of_memory $((n - 1)) && cat log
done

# A checkpoint of 4 ranks: loaded by any number of them, it comes out again byte for byte, and the run goes
# on as it would have.
ranks $most train four 12
for n in 1 2 4 8; do
    up_to $((n / 2)) || continue
    for how in before after; do
        ranks $n resume four again-$n 12 $how
        runs cmp four again-$n
        ranks 1 compare four.end again-$n.end 1e-12 && cat log
    done
done
runs cmp four.end again-$most.end
ranks 3 train three 5
ranks 1 compare three four 1e-12

# A rank that is killed while its state is gathered: the others end, and the old file stays.
ends 'rank 2' mpirun -n 3 "$driver" die killed
ranks 2 resume killed killed-again 5 before
runs cmp killed killed-again
find . -name 'killed*' >log
outcome 'no temporary file' $(($(wc -l <log) - 3))

results
