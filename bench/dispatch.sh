#!/usr/bin/env bash
# Whether a change made a call dearer: an op's own cost in two release builds. First its instructions, counted by
# valgrind (the same number every time, on a busy machine too), then nanoseconds of runs turn about on one core.
# usage: bench/dispatch.sh BEFORE AFTER [ROUNDS]     (two build folders; default 40 rounds)
#
# The third column of times is the same build against itself: what the machine alone makes of it.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=bench/machine.bash
. "$here/machine.bash"
case ${1-} in
-h | --help) usage && exit ;;
-*) refuse "unknown option $1 (see --help)" ;;
esac
[[ $# == [23] ]] || refuse 'want two build folders, before and after the change (see --help)'
for folder in "$1" "$2"; do
    [ -x "$folder/bench/bench_ops" ] || refuse "no bench/bench_ops in $folder: want the folder of a build"
done
whole ROUNDS "${3-40}"
command -v valgrind >/dev/null || refuse 'no valgrind: scripts/setup valgrind'
before=$(realpath "$1") after=$(realpath "$2") rounds=${3:-40}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

count() { # BUILD NAME: lines "function instructions"
    valgrind --tool=callgrind --callgrind-out-file="$scratch/$2" \
        "$1/bench/bench_ops" --threads 1 --config tiny >"$scratch/log" 2>&1 || {
        cat "$scratch/log" >&2
        exit 1
    }
    callgrind_annotate --inclusive=yes --threshold=100 "$scratch/$2" | tr -d , |
        sed -nE 's/^ *([0-9]+) .*:(tn_(add|add_|mul|matmul|backward))( .*)?$/\2 \1/p' | sort -u >"$scratch/$2.lines"
    [ -s "$scratch/$2.lines" ] || refuse "callgrind_annotate names no function that $1/bench/bench_ops calls: want a build with symbols"
}
count "$before" a
count "$after" b
echo '| instructions | before | after | ratio |'
echo '| --- | ---: | ---: | ---: |'
join "$scratch/a.lines" "$scratch/b.lines" | awk '{ printf "| %s | %d | %d | %.4f |\n", $1, $2, $3, $3 / $2 }'

core=$(taskset -cp $$) core=${core##*[!0-9]} # the last one that this script may use
for ((i = 0; i < rounds; i++)); do
    for side in before after again; do
        build=$before && [ $side != after ] || build=$after
        taskset -c "$core" "$build/bench/bench_ops" --threads 1 --config tiny 2>/dev/null |
            sed -n "s/^tenon_tiny_/$side,/p"
    done
done >"$scratch/times"
echo
echo "| ns, $rounds rounds | before: least / median | after | after/before: least / median | before again/before |"
echo '| --- | ---: | ---: | ---: | ---: |'
python3 - "$scratch/times" <<'PYTHON'
import collections, statistics, sys
times = collections.defaultdict(lambda: collections.defaultdict(lambda: ([], [])))
for line in open(sys.argv[1]):
    side, name, unit, median, least, most = line.split(",")
    times[name][side][0].append(float(least))
    times[name][side][1].append(float(median))
for name, t in times.items():
    low = {side: min(v[0]) for side, v in t.items()}
    mid = {side: statistics.median(v[1]) for side, v in t.items()}
    print(f"| {name} | {low['before']:.1f} / {mid['before']:.1f} | {low['after']:.1f} / {mid['after']:.1f} "
          f"| {low['after'] / low['before']:.3f} / {mid['after'] / mid['before']:.3f} "
          f"| {low['again'] / low['before']:.3f} / {mid['again'] / mid['before']:.3f} |")
PYTHON

