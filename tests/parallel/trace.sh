#!/usr/bin/env bash
# Traces of data parallel runs: alone, and with 2 and 4 ranks. Skipped where tenon's module for MPI was
# not built, or mpirun is missing.
# usage: tests/parallel/trace.sh PROGRAM MODULE
# Seen to fail: without the engine's word of the average; with the average in place of the rank's own.
set -euo pipefail
driver=$(realpath "$1")
TN_MPI_MODULE=${2:+$(realpath "$2")}
# shellcheck source=tests/parallel/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
scratch
for n in 1 2 4; do
    up_to $n || continue
    ranks $n told
done
results
