#!/usr/bin/env bash
# The public headers in C++: compiles blocks.cpp with each C++ compiler found, warnings as errors, and runs it; and
# nested.c with each compiler of both languages.
# usage: tests/house/cxx_check.sh BUILD-FOLDER
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
warnings=(-Wall -Wextra -Wshadow -Wpedantic -Werror)
right() { # WHAT COMMAND...
    if "${@:2}" -I"$root/include" -o "$work/blocks" -L"$build/src" -ltenon "-Wl,-rpath,$build/src" && "$work/blocks"; then
        passed=$((passed + 1))
    else
        echo "$1 failed" && failed=$((failed + 1))
    fi
}
for cc in gcc clang clang-14; do
    type -P $cc >/dev/null && right "$cc" $cc -std=c11 "${warnings[@]}" "$root/tests/house/nested.c"
done
for cxx in g++ clang++ clang++-14; do
    type -P $cxx >/dev/null || continue
    for std in c++11 c++17; do
        right "$cxx -std=$std" $cxx -std=$std "${warnings[@]}" "$root/tests/house/blocks.cpp"
        right "$cxx -std=$std, nested" $cxx -std=$std "${warnings[@]}" -x c++ "$root/tests/house/nested.c"
        # A status that must be used and is ignored.
        if echo '#include <tenon/tenon.h>
            void lose(tn_module *m) { tn_save(m, "f"); }' |
            $cxx -std=$std -Wall -Werror -I"$root/include" -x c++ - -c -o "$work/lose.o" 2>/dev/null; then
            echo "$cxx -std=$std lets the status of tn_save go" && failed=$((failed + 1))
        fi
    done
done
[ $((passed + failed)) -gt 0 ] || { echo 'skipped: there is no C++ compiler' && exit 77; }
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
