#!/usr/bin/env bash
# Every function of the CUDA runtime, cuBLAS, cublasLt and cuRAND that src/cuda calls was made to fail by
# the tests that ran before this one: their logs name them all.
# usage: tests/cuda/checks/calls.sh MODULE LOG...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

# These give the error of another call, or its text.
cannot_fail='cudaGetLastError|cudaPeekAtLastError|cudaGetErrorString|cublasGetStatusString'

module=$1
shift
for log in "$@"; do
    if [ ! -e "$log" ] || [ "$module" -nt "$log" ]; then
        echo "skipped: $log is missing or older than $module: run the suite cuda as a whole"
        exit 77
    fi
done

# Calls, and names of functions handed to a macro that calls them; comments are left out.
mapfile -t calls < <(cat src/cuda/*.cu src/cuda/*.h |
    perl -0777 -pe 's{/\*.*?\*/|//[^\n]*}{}gs' |
    grep -oP '\b(cuda|cublas|cublasLt|curand)[A-Z]\w*(?=\s*\()|TN_RAND\(\K\w+' |
    grep -vxE "$cannot_fail|call" | sort -u)
if [ ${#calls[@]} -lt 30 ]; then
    echo "only ${#calls[@]} functions found in src/cuda: the search is wrong" >&2
    exit 1
fi

missing=() # of the shim's _64 functions some count as the ones they call
for call in "${calls[@]}" launch; do
    grep -qsxE "$call|${call%_64}" "$@" || missing+=("$call")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "never made to fail: ${missing[*]}" >&2
    exit 1
fi
echo "all ${#calls[@]} functions, and launches, were made to fail"
