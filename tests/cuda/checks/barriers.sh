#!/usr/bin/env bash
# Which barriers of the kernels does a test need? One after another is ignored by the race detector
# (../host/races.cpp); prints the race found then, or "not missed". Takes minutes; not part of the suite.
# usage: tests/cuda/checks/barriers.sh BUILD SUITE CASE FILE...     e.g. build cuda_indices indices src/cuda/sort.h
set -euo pipefail

build=$(realpath "$1")
program=$build/tests/cuda/test_$2
export CK_FORK=no CK_RUN_CASE=$3
export TN_CUDA_MODULE=$build/tests/cuda/host/libtenon-cuda-races.so
shift 3
[ -e "$TN_CUDA_MODULE" ] || { echo "barriers: no $TN_CUDA_MODULE: want a build with -Draces=true" >&2; exit 2; }
for file in "$@"; do
    for line in $(grep -nE '__sync(threads|warp)(_and|_or|_count)?\(' "$file" | cut -d: -f1); do
        found=$(TN_CUDA_WITHOUT=$line "$program" 2>&1 | grep -a -m1 '^cuda_host: kernel' || true)
        echo "$file:$line: ${found:-not missed}"
    done
done
