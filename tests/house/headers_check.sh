#!/usr/bin/env bash
# The public headers: every declaration has a comment of its own, none sends the reader to a file
# that is not installed, and names follow the rule at the head of tenon.h.
# Seen to fail: with the comment of tn_sqrt taken away it says "ops.h: tn_sqrt has no comment of its
# own"; with the names before this rule "tn_tensor_append begins with tn_tensor_: want a tn_tensor * as
# first argument or result", and so on; an op named softmx: "the op softmx has no public tn_softmx";
# with tn_##name in src/autograd/ops/unary.c: "no file of src defines tn_neg by its full name", and so on.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
failed=0
complain() { echo "$1"; failed=$((failed + 1)); }

# One line for each declaration: header, name, result type, first parameter, and "own" when
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
            gsub(/^TN_API (TN_MUST_USE )?|\(.*|;$/, "", text)
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

# The rule of names. The rule's own text names the exemptions.
names=" $(declarations | cut -d '|' -f 2 | tr '\n' ' ')"
has() { [[ $names == *" $1 "* ]]; }
subjects=$(sed -nE 's/^typedef struct (tn_\w+) \1;.*/\1/p' "$root"/include/tenon/*.h | grep -v '^tn_module_')
# sgd|adam|...
optimizers=$(sed -nE 's/.*\.function = "tn_(\w+)".*/\1/p; s/^[^#]*ADAM\((\w+)[,)].*/\1/p' "$root/src/optim/optimizers.c" \
    "$root"/src/ext/optimizers/*.c | paste -sd '|')
while IFS='|' read -r header name result first comment; do
    for type in $subjects; do
        if [[ $name == ${type}_* && "$result $first" != *@("$type"|FILE)" *"* && $name != tn_module_new ]]; then
            complain "$header: $name begins with ${type}_: want a $type * as first argument or result"
        fi
        [[ $type =~ ^tn_(tensor|module)$ || $first != *"$type *"* || $name == ${type}_* ]] ||
            [[ $name =~ ^tn_(clip_grad_|save_tensors$|plateau_step$|checkpoint_unlock$) || $result =~ _(optim|scheduler|token_stream)\ \*$ ]] ||
            complain "$header: $name takes a $type *: want ${type}_... for a name"
        if [ "$result" = "$type *" ] && has "${type}_free"; then
            [[ $name =~ ^(${type}_new|tn_loader_from|tn_tokenizer_load(_tiktoken)?|tn_tokenizer_train|tn_trace_begin|tn_default_generator|tn_[a-z_]+_lr|tn_($optimizers))$ ]] ||
                complain "$header: $name makes a $type *: want ${type}_new for a name"
        fi
    done
    case $name in
    tn_module_set_requires_grad) ;; # about many tensors: there is no single answer
    *_set_*)
        subject=${name%%_set_*} what=${name#*_set_}
        has "${subject}_$what" || has "${subject}_get_$what" ||
            complain "$header: $name sets what nobody can read: want ${subject}_$what"
        ;;
    *_drop) [[ $name =~ ^tn_(module_)?drop$ ]] || complain "$header: $name counts nothing: want _free" ;;
    *_free) [ "$result|${first% \**} *" = "void|${name%_free} *" ] || complain "$header: $name frees something else" ;;
    esac
done < <(declarations)

# An op's name is its public function's without "tn_" (docs/design.md). These have no such function:
# gradients with an op of their own (..._grad), and three others.
ops=0
while read -r op; do
    ops=$((ops + 1))
    [[ $op == *_grad* || $op =~ ^(sign_or_nan|order|take_add|module_gate)$ ]] || has "tn_$op" ||
        complain "the op $op has no public tn_$op"
done < <(grep -lE '\bTNI_OP(_AS|_FIELDS)?\(' -r "$root/src" --include='*.c' |
    while read -r file; do
        "${CC:-cc}" -E -P -D_GNU_SOURCE -std=c11 -I"$root/include" -I"$root/src" "$file" | tr -s ' \n' ' ' |
            grep -oP '(const tn_op \w+ = |\.op = )\{ *\.name = "\K\w+' || true
    done)
[ $ops -ge 100 ] || complain "only $ops ops were found in src"

# Who looks for a function with grep finds where it is made: at its definition, or in the row of a list.
sources=(--include='*.c' --include='*.cu' --include='*.def')
defined=$(
    grep -rhoP '^(?!static|typedef)[a-z][\w ]*[ *]\Ktn_\w+(?=\()' "${sources[@]}" "$root/src"
    grep -rhoP '^ *[A-Z_]+\(\Ktn_\w+(?=,)' "${sources[@]}" "$root/src"
    grep -rhoP '^ *[A-Z_]+\(\w+, \Ktn_\w+(?=,)' "${sources[@]}" "$root/src"
) || true
for name in $names; do
    [[ $name == *_object ]] || grep -qx "$name" <<<"$defined" || complain "no file of src defines $name by its full name"
done

while IFS= read -r line; do
    complain "not installed: ${line#"$root"/}"
done < <(grep -nE '(^|[^a-z])(src|docs|tests|examples|bench|scripts)/|\.(c|cu|md)\b' "$root"/include/tenon/*.h)

echo "$count public declarations, $ops ops, $failed complaints"
[ "$failed" = 0 ]
