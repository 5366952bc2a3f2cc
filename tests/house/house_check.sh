#!/usr/bin/env bash
# The house stays in order: what is counted here falls, and grows by what was granted (ceilings.txt).
# Seen to fail: a line of 101 columns, a file of the reading list renamed, one line more than a ceiling, the head of
# a test that names a file of before it was moved, a file more in a folder of tests/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
more=${HOUSE_MORE:-0} # lines of a trial that is not to stay: extending_check.py

most_reading_lines=8797  # the files that docs/reading.md lists
most_transformer_lines=1425 # examples/transformer with all its options, and the files of examples/ that it shares
most_readme_lines=130    # README.md, the front door: what does not fit has a page in docs/
most_design_lines=400    # docs/design.md, decisions and reasons: figures go to docs/measurements.md

passed=0 failed=0
check() { # WHAT COUNT MOST
    if [ "$2" -le "$3" ]; then
        passed=$((passed + 1)) && echo "$1: $2, at most $3"
    else
        failed=$((failed + 1)) && echo "$1: $2, MORE THAN $3"
    fi
}

mapfile -t sources < <(find include src tool page tests examples bench fuzz docs -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' | sort)
# Only text between clang-format off and on may exceed 100 columns.
long=$(awk 'FNR == 1 { by_hand = 0 } /clang-format off/ { by_hand = 1 } /clang-format on/ { by_hand = 0 }
    length > 100 && !by_hand { print FILENAME ":" FNR }' "${sources[@]}")
[ -z "$long" ] || echo "$long"
check 'lines beyond 100 columns' "$(grep -c . <<<"$long" || true)" 0

if command -v clang-format-14 >/dev/null && [ -e .git ]; then
    check 'files that scripts/format changes' "$(scripts/format --check 2>&1 | grep -c ': error: ' || true)" 0
else
    echo 'files that scripts/format changes: not counted, there is no clang-format-14 or no repository'
fi

# Rooms and areas against ceilings.txt.
while IFS=: read -r what count most; do check "$what" "$count" $((most + more)); done < <(python3 - <<'PYTHON'
import collections, pathlib
ring = dict(trace="trace", parallel="parallel", capture="capture", graph="diagnose", diagnose="diagnose", data="data",
            images="images", optimizers="optimizers", metrics="metrics", tensorboard="logs",
            generate="lm", tokenizer="lm", lm="lm", lora="lm")
rooms, areas, counted, given = {}, {}, collections.Counter(), collections.Counter()
for line in pathlib.Path("tests/house/ceilings.txt").read_text().splitlines():
    kind, *words = line.split() or ["#"]
    if kind == "room":
        rooms[words[1]] = words[0], int(words[2])
    elif kind == "area":
        areas[words[0]] = int(words[1])
    elif kind == "grant":
        given[words[0]] += int(words[1]) * (words[2] == "finished")
for path in (p for top in ("include", "src", "tool", "page") for p in pathlib.Path(top).rglob("*")):
    parts = path.parts
    if path.suffix not in (".c", ".h", ".def", ".cu", ".js", ".css", ".py"):
        continue
    inner = {"ops", "cpu", "dense"} & set(parts[:-1])
    room = ring.get(path.stem, "include") if parts[0] == "include" else parts[0] if parts[0] != "src" \
        else parts[2] if parts[1] == "ext" \
        else "dense" if "dense" in inner else inner.pop() if inner else parts[1]
    counted[room] += path.read_text().count("\n")
for room in sorted(set(rooms) | set(counted)):
    print(f"lines of room {room}:{counted[room]}:{rooms.get(room, ('', 0))[1]}")
for area, base in areas.items():
    own = [r for r in rooms if rooms[r][0] == area]
    print(f"lines of the {area}:{sum(counted[r] for r in own)}:{base + given[area]}")
    print(f"ceilings of the rooms of the {area}:{sum(rooms[r][1] for r in own)}:{base + given[area]}")
PYTHON
)

# The list's files: the first `code` of each table row.
mapfile -t heart < <(sed -nE 's/^\| `([^`]+)` \|.*/\1/p' docs/reading.md)
missing=0 lines=0
for file in "${heart[@]}"; do
    if [ -f "$file" ]; then
        lines=$((lines + $(wc -l <"$file")))
    else
        missing=$((missing + 1)) && echo "docs/reading.md names $file, which is not there"
    fi
done
check 'files of docs/reading.md that are not there' $missing 0
check 'files of docs/reading.md' $((-${#heart[@]})) -20
# The questions at its end: each row's file has the function.
lost=$(sed -nE 's/^\| [A-Z][^|]*\? \| `([^`]+)`.* \| `([^`]+)` \|$/\1 \2/p' docs/reading.md | while read -r file name; do
    grep -qw "$name" "$file" 2>/dev/null || echo "docs/reading.md: $file has no $name"
done)
[ -z "$lost" ] || echo "$lost"
check 'functions that docs/reading.md names and that are not there' "$(grep -c . <<<"$lost" || true)" 0
check 'lines of docs/reading.md'"'"'s files' $lines $((most_reading_lines + more))

# What the heads of the tests say of changes that they caught can be tried again only where there is such a file.
gone=$(python3 - <<'PYTHON'
import pathlib, re
here = [p for top in 'include src tool page tests examples fuzz scripts bench'.split() for p in pathlib.Path(top).rglob('*')]
known = '\n'.join('/' + str(p) for p in here) + '\n'
for path in here:
    if path.suffix not in ('.c', '.h', '.cpp', '.sh', '.py') or path.parts[0] not in ('tests', 'fuzz'):
        continue
    head = re.match(r'\s*/\*.*?\*/|(#[^\n]*\n)+("""[^"]*""")?', path.read_text(), re.S)
    said = re.search(r'[Ss]een to fail.*', head[0] if head else '', re.S)
    for name in sorted(set(re.findall(r'[\w./-]+\.(?:c|h|cu|sh|py|def|js)\b', said[0] if said else ''))):
        if f'/{name}\n' not in known:
            print(f'{path}: {name}')
PYTHON
)
[ -z "$gone" ] || echo "$gone"
check 'files that notes "seen to fail" name and that are not there' "$(grep -c . <<<"$gone" || true)" 0

check 'lines of the transformer with what it shares' \
    "$(cat examples/*.[ch] examples/transformer/*.[ch] | wc -l)" $most_transformer_lines
# A folder of tests is one whose files somebody can look over; golden files are data.
full=$(find tests -type d ! -path tests/golden -exec sh -c 'for d; do
    n=$(find "$d" -maxdepth 1 -type f ! -name "*.pyc" | wc -l); [ "$n" -le 20 ] || echo "$d has $n files"; done' sh {} +)
[ -z "$full" ] || echo "$full"
check 'folders of tests/ with more than 20 files' "$(grep -c . <<<"$full" || true)" 0

check 'lines of README.md' "$(wc -l <README.md)" $most_readme_lines
check 'lines of docs/design.md' "$(wc -l <docs/design.md)" $most_design_lines

echo "$passed passed, $failed failed"
[ $failed = 0 ]
