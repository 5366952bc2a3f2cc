#!/usr/bin/env bash
# docs/guide: every program is built, with gcc and warnings as errors, and run by docs/guide/try, as a reader does it.
# The C that a chapter quotes stands in a file of its folder, and what it shows as output is all that the program
# prints; an exercise says "not yet" as it is, and "right" when its solution takes its place, and has a hint; each program
# of the clinic prints a line that names its mistake; the figures are what figures/draw.c draws.
# usage: tests/house/guide_check.sh BUILD-FOLDER
#
# Seen to fail: a number changed in a quoted output, a name in quoted C, an exercise without its hole, a solution
# with one, a hole's check that ends in right() at once, a mistake of the clinic mended; a hint taken out, a number
# changed in a figure, a figure that no chapter shows, a chapter without a place of the live page or with another name.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TENON_BUILD=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root/docs/guide"
export TENON_BUILD work CC=gcc CFLAGS=-Werror

passed=0 failed=0
check() { # WHAT COMMAND...
    if "${@:2}"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)) && echo "FAILED: $1"
    fi
}

# What each program prints, and its exit status: $work/CHAPTER.NAME and .status
job() {
    local name=$1.${2:-chapter}${3:+.$3} status=0
    # shellcheck disable=SC2086 # no argument where there is none
    ./try $1 ${2-} ${3-} >"$work/$name" 2>"$work/$name.errors" || status=$?
    echo $status >"$work/$name.status"
}
export -f job
for folder in [0-9][0-9]-*/; do
    for file in "$folder"*.c; do
        name=$(basename "$file" .c)
        case $name in
        check_*) ;;
        chapter) echo "${folder:0:2}" ;;
        exercise_*) echo "${folder:0:2} ${name#exercise_}" ;;
        solution_*) echo "${folder:0:2} ${name#solution_} solution" ;;
        *) echo "${folder:0:2} $name" ;;
        esac
    done
done >"$work/jobs"
# shellcheck disable=SC2016 # for the shell that xargs starts
xargs -P 2 -I '{}' bash -c 'job {}' <"$work/jobs"

says() { # JOB STATUS PATTERN: it ended so, its first line matches, and it complained of nothing
    if [ "$(cat "$work/$1.status")" = "$2" ] && [[ "$(head -n 1 "$work/$1")" =~ $3 ]] && [ ! -s "$work/$1.errors" ]; then
        return
    fi
    cat "$work/$1" "$work/$1.errors"
    return 1
}

hole() { # CHAPTER FILE: whether the file has one
    grep -q 'your code here' "$1"-*/"$2"
}

no_hole() { ! hole "$@"; }

hint() { # CHAPTER NUMBER: try prints it, and it is no answer but a few lines
    ./try "$1" "$2" hint >"$work/hint" && [ "$(wc -w <"$work/hint")" -ge 10 ]
}

exercises=0
while read -r chapter name solution; do
    case ${name-} in
    [0-9])
        if [ "$solution" ]; then
            check "solution $name of chapter $chapter" says "$chapter.$name.solution" 0 '^right$'
            check "solution $name of chapter $chapter has no hole" no_hole "$chapter" "solution_$name.c"
        else
            exercises=$((exercises + 1))
            check "exercise $name of chapter $chapter, unsolved" says "$chapter.$name" 1 '^not yet: '
            check "exercise $name of chapter $chapter has a hole" hole "$chapter" "exercise_$name.c"
            check "exercise $name of chapter $chapter has a solution" test -e "$work/$chapter.$name.solution"
            check "exercise $name of chapter $chapter has a hint" hint "$chapter" "$name"
        fi
        ;;
    *) check "program ${name:-chapter} of chapter $chapter" says "$chapter.${name:-chapter}" 0 . ;;
    esac
done <"$work/jobs"

# The clinic: a line that names the mistake, once.
diagnosed=0
while IFS='|' read -r program line; do
    diagnosed=$((diagnosed + 1))
    check "the diagnosis of $program" test "$(grep -cE "$line" "$work/13.$program")" = 1
done <<'END'
eval_forgotten|^diagnosis: eval forgotten: testing changed the buffer 1\.running_mean$
buffer_trained|^diagnosis: tn_sgd: 1\.running_mean is a buffer: optimizers update parameters only$
plain_field|^\(model\): tn_sub reads mean \[2\], a field of Net that is not registered
grad_off|^0\.weight: frozen, so the optimizer skips it$
zero_grad_forgotten|^\(optimizer\): its last step used gradients .* want tn_optim_zero_grad before each backward$
value_overwritten|^diagnosis: tn_backward: the result of tn_sigmoid, .* was changed in place
mask_reversed|^diagnosis: mask the wrong way round: queries look into the future$
rate_too_high|^diagnosis: the learning rate 0\.3 is too high: above 2 / curvature
rate_too_high|^\(optimizer\): a step with its lr 0\.3 takes the loss from .*: want a lower lr$
dead_relu|^diagnosis: dead relu: all 1024 results of 1: ReLU are 0$
dead_relu|^\(values\): 16 of 16 units of tn_relu are 0 for all 64 inputs \(in 1: ReLU\): dead
eval_forgotten|^1\.running_mean: moved 2 times under TN_NO_GRAD: .* want tn_eval before it$
softmax_before_loss|^\(loss\): tn_cross_entropy reads the result of tn_softmax \(in 3: Softmax\): want logits
not_shuffled|^\(data\): all 32 targets of tn_cross_entropy are class 1: want batches of shuffled data$
not_scaled|^\(data\): tn_linear reads \[64,2\] with values from 0 to 255 .*: want inputs scaled
labels_from_one|^diagnosis: tn_cross_entropy: target value 2 .* of labels from 1, want 1 subtracted$
rate_too_low|^\(optimizer\): a step with its lr 0\.0001 .*: want a higher lr$
saturated|^\(values\): .* results of tn_tanh are at their ends \(in 1: Tanh\): saturated
constant_loss|^\(loss\): it is a constant: no gradient leads from it to any parameter
used_after_free|^diagnosis: tn_sub: a tensor is used after its end: .*: want tn_keep before$
scope_leak|^diagnosis: a leak of scopes: every step leaves 2 tensors$
END
check 'the mistakes' test $diagnosed = 21
check 'two exercises for each of 15 chapters' test "$(cut -d ' ' -f 1 "$work/jobs" | uniq | wc -l) $exercises" = '15 30'

mkdir "$work/images"
figures() { ./try figures "$work/images" && diff -r "$work/images" images; }
check 'the figures' figures

# The pages against the files and what they printed.
pages() {
    python3 - "$work" <<'PYTHON'
import glob, os, re, sys

wrong = 0


def complain(page, text):
    global wrong
    wrong += 1
    print(f"{page}: {text}")


def plain(text):
    return " ".join(text.split())


def blocks(page):
    inside = None
    for line in open(page, encoding="utf-8"):
        line = line.rstrip("\n")
        if inside is None and line.startswith("```"):
            inside, body = line[3:], []
        elif inside is not None and line == "```":
            yield inside, body
            inside = None
        elif inside is not None:
            body.append(line)


# "": the page itself
known = {f"lesson={name}" for name in "bias vanishing single eval table decay clipping warmup tied momentum".split()} | {"data=digits", "slow"}
shown_images = set()
pages = sorted(glob.glob("[0-9][0-9]-*.md"))
for page in pages:
    folder, chapter = page[:-3], page[:2]
    files = {f: plain(open(f, encoding="utf-8").read()) for f in glob.glob(folder + "/*.[ch]")}
    shown = {}
    for kind, body in blocks(page):
        if kind == "c":
            if not any(plain("\n".join(body)) in text for text in files.values()):
                complain(page, "this C is in no file of its folder:\n" + "\n".join(body))
        elif kind.startswith("text"):
            shown.setdefault(kind[5:] or "chapter", []).extend(body)
    for file in files:
        name = os.path.basename(file)[:-2]
        if not file.endswith(".c") or re.match(r"(exercise|solution|check)_\d$", name):
            continue
        printed = open(f"{sys.argv[1]}/{chapter}.{name}", encoding="utf-8").read().splitlines()
        if shown.pop(name, None) != printed:
            complain(page, f"what it shows is not what {name} prints:\n" + "\n".join(printed))
    for name in shown:
        complain(page, f"it shows what {name} prints, and there is no such program")
    text = open(page, encoding="utf-8").read()
    for exercise in glob.glob(folder + "/exercise_*.c"):
        number = exercise[-3]
        if f"({exercise})" not in text or f"`docs/guide/try {chapter} {number}`" not in text:
            complain(page, f"it does not name {exercise} with its command")
    places = re.findall(r"live\.html#([\w=]*)", text) + re.findall(r"`#(lesson=\w+)`", text)
    if not places or not set(places) <= known:
        complain(page, f"places of the live page: {places}, want some of {sorted(known)}")
    shown_images |= set(re.findall(r"!\[.+?\]\((images/[\w-]+\.svg)\)", text, re.S))
for image in set(glob.glob("images/*")) ^ shown_images:
    complain(image, "no chapter shows it with a text in its place, or it is not there")
index = open("README.md", encoding="utf-8").read()
for page in pages:
    if f"({page})" not in index:
        complain("README.md", f"it does not name {page}")
for page in pages + ["README.md"]:
    text = re.sub(r"```.*?```", "", open(page, encoding="utf-8").read(), flags=re.S)
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if not os.path.exists(link):
            complain(page, f"there is no {link}")
print(f"{len(pages)} pages, {wrong} complaints")
sys.exit(wrong > 0)
PYTHON
}
check 'the pages' pages

echo "$passed passed, $failed failed"
[ $failed = 0 ]
