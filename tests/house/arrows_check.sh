#!/usr/bin/env bash
# Which room of src uses which, by the #include lines and by the symbols of the objects: a room uses
# those below it; docs/design.md lists each upward use with its reason ("Floors"). A row there
# that nothing needs any more fails too.
# usage: tests/house/arrows_check.sh BUILD-FOLDER
# Seen to fail: with a call of tn_add in src/tensor/access.c it says
# "tensor uses tn_add of ops (tensor/access.c)"; with TNI_SHARED before tni_notifies_gradients "no library uses it".
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root/src"

# FILE SYMBOL OWNER, for existing files only: objects of deleted ones may be left over.
find . -name '*.c' | sed 's|^\./||' | awk '{ object = $0; gsub("/", "_", object); print object ".o", $0 }' >"$work/sources"
objects=$(find "$build/src" -path '*libtenon*' -name '*.c.o')
[ -n "$objects" ] || { echo "arrows_check: no objects of the library in $build"; exit 1; }
# shellcheck disable=SC2086
nm -A $objects 2>/dev/null | awk '
    NR == FNR { source[$1] = $2; next }
    {
        colon = index($0, ":")
        object = substr($0, 1, colon - 1); sub(/.*\//, "", object)
        n = split(substr($0, colon + 1), part, " ")
        if (!(object in source)) next
        kind = part[n - 1]; symbol = part[n]
        if (kind == "U") used[source[object] " " symbol] = 1
        else if (kind ~ /^[TDBRVWC]$/) owner[symbol] = source[object]
    }
    END {
        for (use in used) {
            split(use, part, " ")
            if (part[2] in owner && owner[part[2]] != part[1]) print part[1], part[2], owner[part[2]]
        }
    }' "$work/sources" - >"$work/uses"
grep -rnoE '^#include "[a-z_]+/[^"]+"' --include='*.c' --include='*.h' --include='*.cu' . |
    sed -E 's|^\./([^:]+):[0-9]+:#include "([^"]+)"|\1 \2 \2|' >>"$work/uses"

# shellcheck disable=SC2016 # the backquotes are the page's
floors=$(sed -nE 's/^Floors, .*: (`base`.*)\.$/\1/p' "$root/docs/design.md" | tr -d '`,')
# shellcheck disable=SC2016
sed -nE 's/^\| `([a-z]+)` \| `([a-z]+)` \| `([^`]+)` \|.*/\1 \2 \3/p' "$root/docs/design.md" >"$work/allowed"
awk -v floors="$floors" '
    function room(file) {
        if (file ~ /^autograd\/ops\//) return "ops"
        sub(/^ext\//, "", file)
        sub(/\/.*/, "", file)
        return file
    }
    BEGIN {
        n = split(floors, name, " ")
        for (i = 1; i <= n; i++) floor[name[i]] = i
        if (n < 8) { print "docs/design.md names no floors"; failed++ }
    }
    NR == FNR { allowed[$1 " " $2 " " $3] = "unused"; next }
    {
        a = room($1); b = room($3); uses++
        if (a == b) next
        if (a == "cuda" || b == "cuda" ? a == "cuda" && b == "tensor" : floor[b] < floor[a] && floor[b]) next
        for (row in allowed) {
            split(row, want, " ")
            if (want[1] != a || want[2] != b) continue
            pattern = want[3]; star = sub(/\*$/, "", pattern)
            if (star ? index($2, pattern) == 1 : $2 == pattern) { allowed[row] = "used"; next }
        }
        print a " uses " $2 " of " b " (" $1 ")"; failed++
    }
    END {
        for (row in allowed)
            if (allowed[row] == "unused") { print "docs/design.md names an arrow that is not there: " row; failed++ }
        print uses " uses of another file, " failed + 0 " arrows up"
        exit failed > 0
    }' "$work/allowed" "$work/uses"

# What libtenon shows to libraries of ours above it (TNI_SHARED) is what these use, and no more.
if [ -e "$build/src/libtenon.so" ]; then
    names() { nm -D "$@" | awk '$NF ~ /^tni_/ { print $NF }' | sort -u; }
    more=$(comm -23 <(names --defined-only "$build/src/libtenon.so") <(names --undefined-only "$build/src/libtenon-trace.so" "$build/src/libtenon-lm.so"))
    [ -z "$more" ] || { echo "TNI_SHARED, but no library uses it:" $more && exit 1; }
fi
