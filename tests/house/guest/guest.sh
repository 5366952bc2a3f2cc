#!/usr/bin/env bash
# The library as a guest: opened by a program that was not linked to it, and by Python; and how much of the loader's
# space for thread-local variables each shared object takes, of which there is little for what is opened late.
# usage: tests/house/guest/guest.sh BUILD-FOLDER
# Seen to fail: with the buffers for messages thread-local, "cannot allocate memory in static TLS block", and
# "libtenon.so: 5040 bytes of thread-local variables: want at most 256".
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else echo "failed: $what" && failed=$((failed + 1)); fi
}

opens() { # HOW COMPILER-OPTIONS...
    "${CC:-cc}" -std=gnu11 -Wall -Wextra -Werror -I"$here/../../../include" "${@:2}" "$here/plugin.c" -o "$work/plugin" -ldl &&
        "$work/plugin" "$build/src/libtenon.so"
}
check 'a program that opens the library' opens plugin -pthread
check 'the same with one helper thread' env TN_NUM_THREADS=2 "$work/plugin" "$build/src/libtenon.so"
if type -P python3 >/dev/null; then
    check 'Python' python3 "$here/plugin.py" "$build/src/libtenon.so"
    check 'the accounts alone' python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1]).tn_trace_free(None)' \
        "$build/src/libtenon-trace.so"
    check 'the language models alone' python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$build/src/libtenon-lm.so"
fi

little() { # FILE
    local bytes=0
    for size in $(readelf -lW "$1" | awk '$1 == "TLS" { print $6 }'); do bytes=$((bytes + size)); done
    [ $bytes -le 256 ] || { echo "${1##*/}: $bytes bytes of thread-local variables: want at most 256" && false; }
}
for file in "$build"/src/libtenon.so "$build"/src/libtenon-*.so "$build"/src/*/libtenon-*.so "$build"/src/*/*/libtenon-*.so; do
    if [ -f "$file" ]; then check "${file##*/}" little "$file"; fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
