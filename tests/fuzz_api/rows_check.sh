#!/usr/bin/env bash
# Every public function has a row of the table that fuzz_api calls, and no row is left over.
# Seen to fail: with a rows.py that leaves tn_eye out it says "tn_eye has no row".
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

declared=$(sed -nE 's/^TN_API ([^(]*[ *])(tn_[a-z0-9_]+)\(.*/\2/p' "$root"/include/tenon/*.h | sort -u)
rows=$("$1" --list | sort)

failed=0
complain() { echo "$1"; failed=$((failed + 1)); }
for name in $(comm -23 <(echo "$declared") <(echo "$rows")); do complain "$name has no row"; done
for name in $(comm -13 <(echo "$declared") <(sort -u <<<"$rows")); do complain "$name is no public function"; done
for name in $(uniq -d <<<"$rows"); do complain "$name has two rows"; done
total=$(wc -l <<<"$declared")
echo "$total public functions"
echo "$((total - failed)) passed, $failed failed"
[ "$failed" = 0 ]
