#!/usr/bin/env bash
# The programs of docs/autograd.md, derivatives.md, printed.md and parallel.md: each fenced block of C is compiled,
# warnings as errors, and run; what it prints is the fenced block that follows it.
# usage: tests/house/docs_check.sh BUILD-FOLDER
# Seen to fail: "keeps 65 B" written in the first page's first output, and "nan, first at [1]" in printed.md's last.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

passed=0 failed=0
for page in autograd derivatives printed parallel; do
    awk -v to="$work/$page" '
        /^```c$/ { n++; file = to n ".c"; next }
        /^```(text)?$/ { file = file ? "" : to n ".txt"; next }
        file { print > file }' "$root/docs/$page.md"
    for source in "$work/$page"*.c; do
        name=${source%.c}
        traces=()
        grep -qE 'tn_(trace|explain\()' "$source" && traces=(-ltenon-trace)
        cc -std=c11 -Wall -Wextra -Werror "$source" -o "$name" -I"$root/include" -L"$build/src" "${traces[@]}" -ltenon \
            "-Wl,-rpath,$build/src"
        if "$name" >"$name.got" && diff "$name.txt" "$name.got"; then
            passed=$((passed + 1))
        else
            echo "program ${name##*/} prints something else" && failed=$((failed + 1))
        fi
    done
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -eq 14 ]
