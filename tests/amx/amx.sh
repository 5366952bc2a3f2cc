#!/usr/bin/env bash
# Runs programs as if this processor had AMX: tiles, our own and oneDNN's, are emulated (amx.c), so that products
# (ours), convolutions (ours and oneDNN's) and attention in bf16 are tested on processors without. Slow: times mean nothing.
# usage: tests/amx/amx.sh AMX.SO ONEDNN_MODULE PROGRAM...
# Each program must pass; together they must have multiplied tiles, or nothing was tested.
#
# Seen to fail: with the lower halves left out in attention.c; with odd products left out in amx.c; where the copy of
# oneDNN answers cpuid as the processor does.
set -uo pipefail
[ $# -ge 3 ] || { echo "usage: ${0##*/} AMX.SO ONEDNN_MODULE PROGRAM..." >&2; exit 2; }
amx=$(realpath "$1") module=$(realpath -m "$2")
skip() {
    echo "skipped: $*"
    exit 77
}
[ -e "$module" ] || skip 'built without oneDNN'
type -P objdump readelf >/dev/null || skip 'there is no objdump or readelf (binutils)'
! grep -qw amx_bf16 /proc/cpuinfo || skip 'the processor has AMX: the suites themselves run on it'
grep -qw avx512_bf16 /proc/cpuinfo || skip 'the other instructions of these kernels want AVX512-BF16, which is not emulated'
library=$(ldd "$module" | sed -n 's/.*libdnnl\.so[.0-9]* => \([^ ]*\).*/\1/p')
[ -n "$library" ] || skip "$module does not use a shared libdnnl"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# A copy of oneDNN's library in which every cpuid (0f a2) is an ud2 (0f 0b), for which amx.c answers. Address - offset
# is the same everywhere in the segment that holds code.
copy=$folder/$(ldd "$module" | sed -n 's/^[[:space:]]*\(libdnnl\.so[.0-9]*\) => .*/\1/p')
cp "$(readlink -f "$library")" "$copy"
read -r offset address < <(readelf -lW "$copy" | sed -n 's/^ *LOAD *\(0x[0-9a-f]*\) *\(0x[0-9a-f]*\) .* R E .*/\1 \2/p')
for at in $(objdump -d --no-show-raw-insn "$copy" | sed -n 's/^ *\([0-9a-f]*\):[[:space:]]*cpuid.*/\1/p'); do
    printf '\x0f\x0b' | dd of="$copy" bs=1 seek=$((0x$at - address + offset)) conv=notrunc status=none || exit 1
done

export TN_ONEDNN_MODULE=$module AMX_COUNTS=$folder/counts
for program in "${@:3}"; do
    echo "== ${program##*/}, with AMX emulated"
    LD_PRELOAD=$amx LD_LIBRARY_PATH=$folder "$program" || { echo "failed: $program"; exit 1; }
    echo "-- tiles multiplied, and loaded, so far: $(awk '{ n += $2; l += $4 } END { print n + 0 ", " l + 0 }' "$folder/counts")"
done
awk '{ n += $2 } END { exit !n }' "$folder/counts" || { echo 'failed: no tile was multiplied'; exit 1; }
