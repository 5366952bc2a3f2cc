#!/usr/bin/env bash
# Graphviz reads the drawings of tests/golden, and finds in them the nodes, boxes and edges that are written.
# Seen to fail: with a quotation mark taken out of graph_mlp.dot.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../golden" || exit 1
command -v dot >/dev/null || { echo 'skipped: there is no dot (Graphviz)' && exit 77; }
passed=0 failed=0
for file in graph_*.dot; do
    read_back=$(dot -Tdot "$file") || { echo "$file: dot fails" && failed=$((failed + 1)) && continue; }
    nodes=$(grep -v ' -> ' "$file" | grep -cE '\bn[0-9]+ \[')
    boxes=$(grep -oE 'subgraph cluster_[0-9]+' "$file" | sort -u | wc -l)
    want="$nodes $(grep -c ' -> ' "$file") $boxes"
    got="$(grep -cE '^\s*n[0-9]+\s+\[' <<<"$read_back") $(grep -c ' -> ' <<<"$read_back") $(grep -c 'subgraph' <<<"$read_back")"
    if [ "$want" = "$got" ]; then passed=$((passed + 1)); else echo "$file: dot sees $got, want $want" && failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
