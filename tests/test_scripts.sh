#!/usr/bin/env bash
# The scripts of scripts/ and bench/ from another folder, through a symbolic link, in a folder with a space:
# --help prints to standard output, an error one line to standard error with status 2, and neither
# leaves anything behind. usage: test_scripts.sh
#
# Seen to fail: the scripts as they were: scripts/build made a folder named --help, scripts/test --help failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/example_data.sh
. "$root/tests/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/a copy" "$dir/links" "$dir/here"
cp -r "$root/scripts" "$root/bench" "$dir/a copy"
mkdir "$dir/a copy/full" && touch "$dir/a copy/full/file"
cd "$dir/here" || exit 1
export HOME=$dir/here CDPATH=$dir
ls_all() { find "$dir/here" "$dir/a copy" -mindepth 1 | sort; }

helps() { # SCRIPT OPTION
    local before status=0
    before=$(ls_all)
    "$1" "$2" >"$dir/stdout" 2>"$dir/stderr" </dev/null || status=$?
    cat "$dir/stdout" "$dir/stderr"
    [ $status -eq 0 ] && [ ! -s "$dir/stderr" ] && grep -q '^ *usage: ' "$dir/stdout" && [ "$before" = "$(ls_all)" ]
}
refuses() { # MESSAGE SCRIPT ARGUMENT...
    local before status=0
    before=$(ls_all)
    "${@:2}" >"$dir/stdout" 2>"$dir/stderr" </dev/null || status=$?
    cat "$dir/stdout" "$dir/stderr"
    [ $status -eq 2 ] && [ ! -s "$dir/stdout" ] && [ "$(wc -l <"$dir/stderr")" -eq 1 ] &&
        grep -qF -- "$1" "$dir/stderr" && [ "$before" = "$(ls_all)" ]
}

for script in "$dir/a copy"/scripts/* "$dir/a copy"/bench/*.sh; do
    name=${script##*/}
    ln -s "$script" "$dir/links/$name"
    for option in -h --help; do
        check "$name $option" helps "$script" $option
        check "$name $option, through a link" helps "$dir/links/$name" $option
        check "$name $option, a relative path" helps "../a copy/${script#"$dir/a copy/"}" $option
    done
done
s="$dir/a copy/scripts" b="$dir/a copy/bench"
check 'format, unknown option' refuses 'unknown argument --bogus' "$s/format" --bogus
check 'build, an option first' refuses '"-Dcuda=disabled" in place of a folder' "$s/build" -Dcuda=disabled
check 'build, no name' refuses '"" in place of a folder' "$s/build" ''
check 'build, a folder of something else' refuses 'full is a folder of something else' "$s/build" full
check 'setup, unknown option' refuses 'unknown option --bogus' "$s/setup" --bogus
check 'test, -C alone' refuses '-C needs a folder' "$s/test" -C
check 'gpu, no --out' refuses 'want --out FOLDER' "$s/gpu"
check 'gpu, unknown option' refuses 'unknown option --bogus' "$s/gpu" --bogus
check 'gpu, no argument' refuses '--out needs an argument' "$s/gpu" --out
check 'gpu, no such stage' refuses 'no stage dance' "$s/gpu" --out x dance
check 'install, unknown option' refuses '"--bogus" in place of a prefix' "$s/install" --bogus
check 'install, no name' refuses '"" in place of a prefix' "$s/install" ''
check 'install, two prefixes' refuses 'one prefix, not 2' "$s/install" a b
check 'install, nothing installed' refuses '--uninstall stands alone' "$s/install" --uninstall
check 'run.sh, nothing' refuses 'want ROUNDS and OUT.csv' "$b/run.sh"
check 'run.sh, no number' refuses 'want ROUNDS and OUT.csv' "$b/run.sh" many x.csv
check 'run.sh, unknown set' refuses 'unknown set dance: want gpt_small' "$b/run.sh" 1 x.csv dance
check 'run.sh, no build' refuses "a copy/build/bench: scripts/build makes them" "$b/run.sh" 1 x.csv
mkdir -p "$dir/a copy/build/bench"
printf '#!/bin/sh\n' | tee "$dir/a copy/build/bench/bench_ops" >"$dir/a copy/build/bench/bench_gpt"
chmod +x "$dir/a copy/build/bench"/*
check 'run.sh, no PyTorch' refuses 'false has no PyTorch' env PYTHON=/bin/false "$b/run.sh" 1 x.csv
check 'gpu.sh, nothing' refuses 'want OUT.md' "$b/gpu.sh"
check 'gpu.sh, no number' refuses '--minutes needs a number' "$b/gpu.sh" --minutes x
check 'gpu.sh, no build' refuses 'no programs in ' env BUILD="$dir" "$b/gpu.sh" x.md

verdict
