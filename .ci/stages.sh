# Sourced by .ci/run and scripts/soak: stages, whose sum is the last line at the end; the compiler and the options of
# builds with sanitizers.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154
passed=0 failed=0
out=$(mktemp -d)
trap 'rm -rf "$out"; echo "$passed passed, $failed failed"' EXIT

stage() { # TITLE COMMAND... A stage without tests of its own counts as one.
    local title=$1 began=$SECONDS verdict=passed
    printf '\n== %s\n' "$title"
    "${@:2}" 2>&1 | tee "$out/log" || verdict=FAILED
    if [[ $(tail -n 1 "$out/log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
    elif [ $verdict = passed ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    took=$((SECONDS - began))
    echo "-- $title: $verdict in $took s ($SECONDS s so far)"
    [ $verdict = passed ]
}

suite() { # FOLDER [OPTION OF meson test...], after its options for meson setup in ${options[@]}
    scripts/build "$1" "${options[@]}" && scripts/test -C "$@"
}

# In the suites that are left out nothing is the compiler's, and no memory is the library's.
elsewhere=(--no-suite house --no-suite scripts --no-suite reference --no-suite headers)
# By clang, whose sanitizers compile in less than half of gcc 12's time and look at more: offsets from NULL, say.
by_clang=(CC=clang-14 CXX=clang++-14 CC_LD=lld CXX_LD=lld)
sanitized=(--buildtype=plain -Doptimization=1 -D{c,cpp}_args=-gline-tables-only -Dwerror=true -Db_lundef=false
    -Dcuda=disabled -Dbench=disabled)
