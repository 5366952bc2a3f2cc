#!/usr/bin/env bash
# examples/images on the suite's own PNG and JPEG files: the same bits for any number of workers and threads and after a
# resume; with --freeze nothing but the last layer changes, no buffer either; what is wrong is refused by name.
# usage: tests/examples/images_check.sh IMAGES TENON
#
# Seen to fail: parameters without requires_grad in place of tn_module_freeze (60 buffers differ), crops drawn from the
# default generator (a resumed run), a last layer of other classes that is not taken off the list.
set -euo pipefail
images=$(readlink -f "$1") tenon=$(readlink -f "$2")
golden=$(cd "$(dirname "${BASH_SOURCE[0]}")/../golden/images" && pwd)
export OMP_NUM_THREADS=2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

failed=0 passed=0
is() { # WHAT GOT WANT
    if [ "$2" = "$3" ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "$1: $2, want $3"; fi
}
refuses() { # STATUS TEXT ARGUMENT...
    local status=0 want=$1 text=$2
    shift 2
    "$images" "$@" >out 2>&1 || status=$?
    is "status of $*" $status "$want"
    grep -qF -- "$text" out && passed=$((passed + 1)) || { failed=$((failed + 1)); echo "$*: no '$text' in:"; cat out; }
}

mkdir -p two/{train,val}/{jpeg,png}
cp "$golden"/{420,444,grey,progressive}.jpg two/train/jpeg
cp "$golden"/{rgb,palette,grey,interlaced}.png two/train/png
cp "$golden"/turned.jpg two/val/jpeg
cp "$golden"/{rgba,grey16}.png two/val/png
cp -r two three
for half in train val; do cp -r three/$half/png three/$half/zebra; done

small=(two --side 32 --width 4 --batch 4 --epochs 3 --lr 0.1)
hash_of() { "$images" "${small[@]}" --quiet --print-hash "$@"; }
whole=$(hash_of --workers 0 --save whole.safetensors)
is 'a hash' "${whole% *}" hash
is 'two workers, one thread' "$(hash_of --workers 2 --threads 1)" "$whole"
hash_of --checkpoint run.ckpt --stop-after 3 >/dev/null
is 'a resumed run' "$("$images" two --resume run.ckpt --quiet --print-hash)" "$whole"

# Three classes: the last layer is new, all the rest is the file's, bit for bit.
"$images" three --side 32 --width 4 --batch 4 --epochs 2 --weights whole.safetensors --freeze --save tuned.safetensors >out
grep -q 'its last layer, of 2 classes, is left out' out && passed=$((passed + 1))
differ=$("$tenon" diff whole.safetensors tuned.safetensors || true)
is 'what differs after --freeze' "$(grep -c ': ' <<<"$differ") $(grep -c '^fc\.' <<<"$differ")" '3 2'
"$images" two --load whole.safetensors >out
is 'accuracy of what was saved' "$(grep -c '^validation accuracy [0-9.]* %$' out)" 1

refuses 2 'want a FOLDER'
refuses 1 'tn_image_folder_open: two/train/train: ' two/train
mkdir -p other/train/a other/val/b && cp "$golden"/rgb.png other/train/a && cp "$golden"/rgb.png other/val/b
refuses 2 'other: want folders of the same names in train and in val' other
refuses 1 'missing: "conv1.weight"' two --weights "$golden"/../tool.pt
refuses 1 'layer1.0.conv1.weight' two --weights whole.safetensors --width 8

echo "images: $passed passed, $failed failed"
[ $failed = 0 ]
