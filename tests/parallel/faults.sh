#!/usr/bin/env bash
# A run of several processes in which a rank is killed, stopped, or ends too early, at many points of training:
# the others end within 30 seconds with an error that names it, and the last checkpoint loads on one process,
# with what one process would have computed. Skipped where tenon's module for MPI was not built, or mpirun is
# missing.
# usage: tests/parallel/faults.sh DRIVER MODULE
# Seen to fail: "explain" with a rank named that is this one, or with reports of gradients that are not there;
# "memory" without reduce.c's look at the failed reports, without tni_agree before sums or hashes, with handles left
# out of a pass that could not be counted, with buffers' room not checked, with gradients copied, or room for averages
# made, after the ranks have agreed, with buckets of any size, or of bf16 that is filled up after its size was
# checked; "handles" with a handle that takes the other's failure for its own; "alone" with a step that goes on after
# such a pass; "beside" with ends of other processes taken for the rank's; "own" with MPI ended twice; "ended" with
# mpi.c deaf to ends, or not told of them; "early" with every end taken for a fault; "apart" with questions that
# nobody answers; "stopped" without a timeout.
set -euo pipefail
driver=$(realpath "$1")
TN_MPI_MODULE=${2:+$(realpath "$2")}
# shellcheck source=tests/parallel/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
scratch

# RANKS HOW POINT RANK CALL STEP TEXT: a run that goes on from step 4 ends, and leaves a file of step STEP, or of
# one less where rank 0 may have been ended before it had saved.
ends_at() {
    cp whole part
    ends "$7" mpirun -n "$1" "$driver" train part "${@:2:4}"
    runs "$driver" check part "$6"
}

for n in 2 4; do
    up_to $n || continue
    runs mpirun -n $n "$driver" explain
    runs mpirun -n $n "$driver" handles
    TN_CACHE=0 runs mpirun -n $n "$driver" memory
    rm -f whole
    runs mpirun -n $n "$driver" train whole - - 0 0
    runs "$driver" check whole 4
    last=$((n - 1))
    ends_at $n killed new $last 5 4 "rank $last "
    ends_at $n killed forward $last 0 6 "rank $last "
    ends_at $n killed test $last 2 6 "rank $last " # backward, while buckets are on their way
    ends_at $n killed gather $last 1 6 "rank $last "
    ends_at $n killed broadcast $last 1 7 "rank $last " # buffers
    ends_at $n killed end $last 0 8 "rank $last "
    ends_at $n killed save 0 0 6 'rank 0 '
done
ends_at 2 killed sum 1 2 6 'rank 1 '
ends_at 2 killed wait 0 2 6 'rank 0 '

# Who returns from main while others wait for it is named at once.
ends_at 2 ended forward 1 0 6 'rank 0 of 2: rank 1 has ended its program'
up_to 4 && ends_at 4 ended wait 2 2 6 'rank [013] of 4: rank 2 has ended its program'
up_to 4 && runs mpirun -n 9 "$driver" many
up_to 4 && runs mpirun -n 6 "$driver" early # rank 1 passes it on to others
ends 'rank 0 of 2: rank 1 has ended its program' mpirun -n 2 "$driver" alone
runs mpirun -n 2 "$driver" beside
runs mpirun -n 2 "$driver" own

# Who is stuck is named after TN_PARALLEL_TIMEOUT seconds, wherever the others wait.
export TN_PARALLEL_TIMEOUT=2
ends_at 2 stopped new 1 5 4 'rank 0 of 2: waited .* for 2 s .* without an answer from rank 1:'
ends_at 2 stopped test 1 2 6 'rank 0 of 2: waited in a sum for 2 s .* without an answer from rank 1:'
ends_at 2 stopped gather 1 1 6 'rank 0 of 2: waited in an exchange for 2 s .* without an answer from rank 1:'
up_to 4 && ends_at 4 stopped end 2 0 8 'rank [013] of 4: waited at the .* end for 2 s .* without an answer from rank 2:'
TN_PARALLEL_TIMEOUT=3 ends 'all ranks have waited for each other for 3 s' mpirun -n 2 "$driver" apart
status=0
grep -Eq '(this rank at a barrier, rank 1 in a broadcast|this rank in a broadcast, rank 0 at a barrier)' log || status=$?
outcome 'who waits where' $status
TN_PARALLEL_TIMEOUT=soon ends "TN_PARALLEL_TIMEOUT is 'soon': want" mpirun -n 2 "$driver" explain

results
