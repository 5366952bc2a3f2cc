#!/usr/bin/env bash
# Every kernel of src/cuda was launched by the tests that ran before this one: their logs name them all.
# usage: tests/cuda/checks/kernels.sh MODULE LOG...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

module=$1
shift
for log in "$@"; do
    if [ ! -e "$log" ] || [ "$module" -nt "$log" ]; then
        echo "skipped: $log is missing or older than $module: run the suite cuda as a whole"
        exit 77
    fi
done

# __global__ void [__launch_bounds__(...)] NAME
mapfile -t kernels < <(cat src/cuda/*.cu src/cuda/*.h | tr '\n' ' ' |
    grep -oP '__global__\s+void\s+(__launch_bounds__\s*(\((?:[^()]|(?2))*\))\s*)?\K\w+' | sort -u)
if [ ${#kernels[@]} -lt 10 ]; then
    echo "only ${#kernels[@]} kernels found in src/cuda: the search is wrong" >&2
    exit 1
fi

missing=()
for kernel in "${kernels[@]}"; do
    grep -q "^$kernel " "$@" || missing+=("$kernel")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "never launched: ${missing[*]}" >&2
    exit 1
fi
echo "all ${#kernels[@]} kernels were launched"
