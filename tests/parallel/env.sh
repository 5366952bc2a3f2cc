# Sourced by the scripts that start several processes, with the module's path in $TN_MPI_MODULE: how mpirun
# runs here, where there are fewer cores than ranks, and perhaps no user but root; and how commands are run, and
# their results counted.
# shellcheck shell=bash
# shellcheck disable=SC2034
skip() { echo "$(basename "$0"): skipped: $1"; exit 77; }
[ -n "$TN_MPI_MODULE" ] || skip 'built without MPI'
command -v mpirun >/dev/null || skip 'there is no mpirun'
export TN_MPI_MODULE TN_NUM_THREADS=1 OMP_NUM_THREADS=1
# Open MPI keeps memory to the end; whole stacks tell that it was Open MPI, whose code has no frame pointers.
LSAN_OPTIONS=suppressions=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/leaks.supp:print_suppressions=0
export LSAN_OPTIONS ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}fast_unwind_on_malloc=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
unset MALLOC_PERTURB_ # meson's: mpirun reads freed memory when two ranks end at once, and crashes
# TENON_BRIEF=yes, for sanitizers: 2 ranks where it is 2 and 4 elsewhere, every fourth optimizer, more seconds for
# each run.
most=4 every=1 limit=60
[ -z "${TENON_BRIEF:-}" ] || most=2 every=4 limit=240
up_to() { [ "$1" -le $most ]; } # RANKS: whether a case with so many is run
work='' # a folder of the script's own
scratch() { work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && cd "$work" || exit 1; }
# What a run printed is in the file log.
passed=0 failed=0
outcome() { # WHAT STATUS
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)) && echo "FAILED: $1" && head -20 log
    fi
}
results() { # the last line of a script
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
}
runs() { # COMMAND...: succeeds
    local status=0
    timeout $limit "$@" >log 2>&1 || status=$?
    outcome "$*" $status
}
ranks() { # RANKS MODE...: of the script's $driver, succeeds
    if [ "$1" = 1 ]; then runs "$driver" "${@:2}"; else runs mpirun -n "$1" "$driver" "${@:2}"; fi
}
ends() { # TEXT COMMAND...: fails within 30 s, with the status $want if there is one, and says TEXT
    local status=0 wrong=0 began=$SECONDS took
    timeout $limit "${@:2}" >log 2>&1 || status=$?
    took=$((SECONDS - began))
    { [ $status != 0 ] && [ $status != 124 ] && [ $status = "${want:-$status}" ] && [ $took -le 30 ] &&
        grep -Eq -- "$1" log; } || wrong=1
    outcome "${*:2}: '$1', status $status after $took s" $wrong
}
