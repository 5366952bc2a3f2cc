#!/usr/bin/env bash
# The public headers: every declaration has a comment of its own, and none sends the reader to a
# file that is not installed.
# Seen to fail: with the comment of tn_sqrt taken away it says "ops.h: tn_sqrt has no comment of its
# own".
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
failed=0
complain() { echo "$1"; failed=$((failed + 1)); }

# One line for each declaration: header, name, what it returns, its first parameter, and "own" when
# a comment ends right before it or stands behind it on its last line.
declarations() {
    awk '
        FNR == 1 { comment = "none"; inside = 0; text = "" }
        inside { if (/\*\/$/) { inside = 0; comment = "own" } next }
        text == "" && /^ *\/\*/ { if (/\*\/$/) comment = "own"; else inside = 1; next }
        text == "" && !/^TN_API/ { comment = "none"; next }
        {
            line = $0
            behind = sub(/; *\/\*.*$/, ";", line)
            sub(/^ +/, " ", line)
            text = text line
            if (line !~ /;$/) next
            header = FILENAME; sub(/.*\//, "", header)
            first = text; sub(/^[^(]*\(/, "", first); sub(/[,)].*/, "", first)
            gsub(/^TN_API |\(.*|;$/, "", text)
            name = text; sub(/.*[ *]/, "", name)
            result = substr(text, 1, length(text) - length(name)); sub(/ $/, "", result)
            print header "|" name "|" result "|" first "|" (behind ? "own" : comment)
            text = ""; comment = "none"
        }' "$root"/include/tenon/*.h
}

count=0
while IFS='|' read -r header name result first comment; do
    count=$((count + 1))
    [ "$comment" = own ] || complain "$header: $name has no comment of its own"
done < <(declarations)

while IFS= read -r line; do
    complain "not installed: ${line#"$root"/}"
done < <(grep -nE '(^|[^a-z])(src|docs|tests|examples|bench|scripts)/|\.(c|cu|md)\b' "$root"/include/tenon/*.h)

echo "$count public declarations, $failed complaints"
[ "$failed" = 0 ]
