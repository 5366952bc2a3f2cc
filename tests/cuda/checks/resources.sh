#!/usr/bin/env bash
# Every launch of the tests that ran before this one fits on each GPU that the real module has
# machine code for: its kernels' resources (cuobjdump) with the largest launch in the shim's logs.
# All instances of a template are checked against the largest launch of any of them.
# usage: tests/cuda/checks/resources.sh SHIM MODULE LOG...
set -euo pipefail

shim=$1 module=$2
shift 2
PATH=$PATH:/usr/local/cuda/bin
if ! type -P cuobjdump >/dev/null; then
    echo "skipped: there is no cuobjdump (it comes with the CUDA toolkit)"
    exit 77
fi
for log in "$@"; do
    if [ ! -e "$log" ] || [ "$shim" -nt "$log" ]; then
        echo "skipped: $log is missing or older than $shim: run the suite cuda as a whole"
        exit 77
    fi
done

# CUDA C++ Programming Guide, "Technical specifications per compute capability": a block has 65536
# registers, which warps get by 256; of the shared memory of a multiprocessor the driver keeps 1 KiB
# for each block (cuobjdump counts it from sm_90 on); without asking a kernel has 48 KiB beside that.
awk '
function fail(text) {
    print arch ": " kernel ": " text > "/dev/stderr"
    bad++
}
function limit(is, most, what) {
    if (is > most) fail(is " " what ": want at most " most)
}
!dump { # NAME THREADS SHARED UNASKED
    if ($2 > threads[$1]) threads[$1] = $2
    if ($3 > dynamic[$1]) dynamic[$1] = $3
    if ($4 > unasked[$1]) unasked[$1] = $4
    next
}
$1 == "arch" {
    arch = $3
    cc = substr(arch, 4) + 0
    if (cc == 80 || cc == 87) most = 164
    else if (cc == 90 || cc == 100 || cc == 103) most = 228
    else most = 100 # as for sm_86, sm_89 and sm_120, or unknown
    kept = cc < 90 ? 1024 : 0
}
$1 == "Function" { # _Z9check_idsI13large_divisorEv...: the name behind its length
    kernel = $2
    if (match(kernel, /^_ZL?[0-9]+/)) {
        digits = substr(kernel, 1, RLENGTH)
        sub(/^_ZL?/, "", digits)
        kernel = substr(kernel, RLENGTH + 1, digits)
    }
}
/REG:[0-9]+ STACK:/ {
    for (i = 1; i <= NF; i++) {
        split($i, pair, ":")
        number[pair[1]] = pair[2]
    }
    instances++
    found[kernel] = 1
    if (!(kernel in threads)) {
        fail("no launch of it was logged")
        next
    }
    warps = int((threads[kernel] + 31) / 32)
    registers = int((number["REG"] * 32 + 255) / 256) * 256 * warps
    shared = number["SHARED"] + kept
    limit(threads[kernel], 1024, "threads")
    limit(registers, 65536, "registers in a block of " threads[kernel])
    limit(shared + dynamic[kernel], most * 1024, "bytes of shared memory")
    limit(shared + unasked[kernel], 49 * 1024, "bytes of shared memory, not asked for")
    limit(number["STACK"], 128, "bytes of local memory for each thread") # arrays not in registers
    if (registers > largest) largest = registers
    if (shared + dynamic[kernel] > widest) widest = shared + dynamic[kernel]
}
END {
    for (kernel in threads) {
        arch = "module"
        if (!(kernel in found)) fail("launched over the shim, but not there")
    }
    if (instances < 100) {
        print "only " instances + 0 " kernels found: the search is wrong" > "/dev/stderr"
        exit 1
    }
    if (bad) exit 1
    print instances " kernels fit; the largest block has " largest " registers, the widest " widest \
        " bytes of shared memory"
}' "$@" dump=1 - < <(cuobjdump --dump-resource-usage "$module" 2>/dev/null)
