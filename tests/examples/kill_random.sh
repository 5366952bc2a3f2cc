#!/usr/bin/env bash
# Training runs that save a checkpoint at each step are killed at random times, again and again. After each
# kill every file in the folder equals, byte for byte, what an unkilled run wrote at that step; the
# newest of them loads, and three steps later the files are equal again. At the end the weights are.
# usage: kill_random.sh TRANSFORMER BATCHNORM     (paths of the programs)
# 25 kills; with TN_TEST_FULL=1 in the environment 2,000, or as many as fit in ten minutes.
#
# Seen to fail: written straight to the file, without a temporary (open_temp in src/io/atomic_file.c), 2 of 25
# kills left a part of a file under its name.
set -uo pipefail
transformer=$(realpath "$1") batchnorm=$(realpath "$2")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/examples/example_data.sh
. "$here/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
example_text >text
example_images images 10
kills=0 before_the_first=0 unfinished=0

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); } # milliseconds
number() { # NAME FILE: the step
    local n=${2##*/"$1"-}
    echo $((10#${n%.safetensors}))
}
# Checks that every checkpoint equals the reference's; prints the newest's step, 0 for none.
compare_files() { # NAME
    local file newest=0
    for file in "$1"/"$1"-*.safetensors; do
        [ -e "$file" ] || break
        cmp "$file" "whole/${file##*/}" || return 1
        newest=$(number "$1" "$file")
    done
    echo "$newest"
}

# Kills NAME's run at a random moment within MOST milliseconds, then resumes it, STEPS in all.
one_kill() { # NAME STEPS MOST PROGRAM ARGUMENT...
    local name=$1 steps=$2 most=$3 program=$4 pid newest further
    local -a how=("${@:5}" --checkpoint "$name/" --keep 3)
    [ -d "$name" ] && [ "$(compare_files "$name")" != 0 ] &&
        how=(--resume "$name" --checkpoint "$name/" --keep 3)
    "$program" "${how[@]}" --checkpoint-every 1 --quiet &
    pid=$!
    sleep "$(printf '0.%03d' $((RANDOM % most)))"
    kill -KILL $pid
    wait $pid
    [ $? -eq 137 ] && kills=$((kills + 1))
    find "$name" -name '*.tmp-*' 2>/dev/null | grep -q . && unfinished=$((unfinished + 1))
    newest=$(compare_files "$name") || return 1
    if [ "$newest" -eq 0 ]; then
        before_the_first=$((before_the_first + 1))
        return 0
    fi
    further=$((newest + 3 < steps ? newest + 3 : steps))
    "$program" --resume "$name" --checkpoint further --stop-after 3 --quiet || return 1
    [ "$further" -eq "$newest" ] ||
        cmp further "whole/$(printf '%s-%08d.safetensors' "$name" "$further")" || return 1
    [ "$newest" -lt "$steps" ] || rm -r "$name" # it finished: start again from the beginning
}

campaign() { # NAME KILLS STEPS PROGRAM ARGUMENT...: within a limit of seconds
    local name=$1 wanted=$(($2 + kills)) steps=$3 end=$((SECONDS + limit)) began most
    rm -rf whole
    began=$(now)
    "${@:4}" --quiet --checkpoint whole/ --checkpoint-every 1 --keep 0 --save whole.safetensors
    most=$((($(now) - began) / 2 + 1)) # so that most are killed before they finish
    while [ $kills -lt $wanted ] && [ $SECONDS -lt $end ]; do
        check "$name, kill $((kills + 1))" one_kill "$name" "$steps" $((most > 900 ? 900 : most)) "${@:4}"
    done
    if [ -d "$name" ] && [ "$(compare_files "$name")" -gt 0 ]; then
        check "$name, to the end" "$4" --resume "$name" --checkpoint "$name/" --quiet --save last.safetensors
        check "$name, the same weights" cmp last.safetensors whole.safetensors
        check "$name, three files and nothing else" same "$(find "$name" -type f | wc -l)" 3
    fi
    rm -rf "$name" further
}

limit=60 transformer_kills=17 batchnorm_kills=8
[ "${TN_TEST_FULL-0}" = 1 ] && limit=290 transformer_kills=1500 batchnorm_kills=500
campaign transformer $transformer_kills 200 "$transformer" --text text --steps 200 --batch 2 --context 16 \
    --layers 1 --heads 2 --d-model 16 --warmup 6 --dropout 0.1 --eval-every 0 --generate 0
campaign batchnorm $batchnorm_kills 20 "$batchnorm" --data images --epochs 4 --steps 20 --batch 2
echo "$kills kills, $before_the_first before the first checkpoint, $unfinished within a write"
verdict
