#!/usr/bin/env bash
# The command line as people use it: what it prints of files that PyTorch and NumPy wrote, exit statuses, messages about
# wrong options and bad files, conversions there and back, pipes that break, disks that are full.
# usage: tests/tool/tool_check.sh TENON      (path of the program)
#
# Seen to fail, each by changes in tenon.c: names printed as they are, or with C1 controls; NaN unlike NaN; a difference
# relative to the second file; std by n; a tie counted twice, or cast by itself; the library's strings carried over;
# versions or roles not; status 0 for a difference; output closed without a look; --depth off by one; integers through
# f64; 15 digits of an f64, 7 of an f32; SIGXFSZ left alone; closed descriptors taken for files; no note of infinities;
# the first --rename alone; one that fits nothing, or two names that become one, accepted.
set -uo pipefail
tenon=$(realpath "$1")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
golden=$root/tests/golden
# shellcheck source=tests/examples/example_data.sh
. "$root/tests/examples/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/here" && cd "$dir/here" || exit 1
export OMP_NUM_THREADS=1
files() { python3 "$root/tests/tool/files.py" "$@"; }

# Prints TEXT, and nothing on standard error. gives STATUS TEXT ARGUMENT...
gives() {
    local status=0
    timeout 60 "$tenon" "${@:3}" >"$dir/stdout" 2>"$dir/stderr" || status=$?
    echo "status $status"
    cat "$dir/stderr"
    diff <(echo -n "$2") "$dir/stdout" && [ $status -eq "$1" ] && [ ! -s "$dir/stderr" ]
}
# One line on standard error that has MESSAGE, and nothing else; no file is made. refuses MESSAGE ARGUMENT...
refuses() {
    local status=0 before after
    before=$(ls -lA --time-style=full-iso)
    timeout 60 "$tenon" "${@:2}" >"$dir/stdout" 2>"$dir/stderr" </dev/null || status=$?
    after=$(ls -lA --time-style=full-iso)
    echo "status $status"
    cat "$dir/stdout" "$dir/stderr"
    diff <(echo "$before") <(echo "$after") || return 1
    [ $status -eq 2 ] && [ ! -s "$dir/stdout" ] && [ "$(wc -l <"$dir/stderr")" -eq 1 ] &&
        [[ $(cat "$dir/stderr") == "tenon: "* ]] && grep -qF -- "$1" "$dir/stderr"
}
# Succeeds with just these notes, one a line ("": none). notes TEXT ARGUMENT...
notes() {
    local status=0
    timeout 60 "$tenon" "${@:2}" >"$dir/stdout" 2>"$dir/stderr" || status=$?
    echo "status $status"
    cat "$dir/stdout" "$dir/stderr"
    diff <([ -z "$1" ] || sed 's/^/tenon: note: /' <<<"$1") "$dir/stderr" && [ $status -eq 0 ] && [ ! -s "$dir/stdout" ]
}
ends() { # STATUS COMMAND...
    local status=0
    "${@:2}" || status=$?
    echo "status $status"
    [ $status -eq "$1" ]
}

# ---- inspect -------------------------------------------------------------------------------------
# PyTorch's and NumPy's files against what make_tool.py and make_npy.py say.
check 'statistics' eval '"$tenon" inspect --json "$golden/tool.pt" >got.json && files compare got.json "$golden/tool.json"'
check 'the same from safetensors' eval '"$tenon" convert "$golden/tool.pt" tool.safetensors 2>err &&
    "$tenon" diff "$golden/tool.pt" tool.safetensors'
check 'no control character' eval '"$tenon" inspect "$golden/tool.pt" | files terminal'
check 'nor in JSON' eval '"$tenon" inspect --json "$golden/tool.pt" | files terminal'
check 'nor in a message' eval '! "$tenon" inspect $'"'no\\e[2Jfile\\n'"' 2>err.txt && files terminal <err.txt && grep -F "no?[2Jfile\\u000a: No such" err.txt'
check 'an array of NumPy' gives 0 'int16.npy: 1 tensor, 48 B
name   shape          dtype      size         min         max        mean         std
array  [3, 4]         i32        48 B         -20          29      1.8333      14.996
' inspect --key array "$(ln -sf "$golden/npy/int16.npy" . && echo int16.npy)"

files write small.safetensors 'enc.10.w=f32:1,2' 'enc.2.w=f32:nan,inf,-inf,5' 'enc.2.b=f64:0.5' 'top=i64:-3,9' \
    'a\x1b[1mb=f32:0' 'a.deep.one=f32:7' 'a.deep.two=f32:8'
tree='small.safetensors: 7 tensors, 60 B
name         shape          dtype      size         min         max        mean         std
a\u001b[1mb  [1]            f32         4 B           0           0           0           -
a.           2 tensors                  8 B
  deep.      2 tensors                  8 B
    one      [1]            f32         4 B           7           7           7           -
    two      [1]            f32         4 B           8           8           8           -
enc.         3 tensors                 32 B  1 nan  2 inf
  2.         2 tensors                 24 B  1 nan  2 inf
    b        [1]            f64         8 B         0.5         0.5         0.5           -
    w        [4]            f32        16 B           5           5           5           -  1 nan  2 inf
  10.w       [2]            f32         8 B           1           2         1.5     0.70711
top          [2]            i64        16 B          -3           9           3      8.4853
'
check 'a tree' gives 0 "$tree" inspect small.safetensors
check 'its first level' gives 0 'small.safetensors: 7 tensors, 60 B
name         shape          dtype      size         min         max        mean         std
a\u001b[1mb  [1]            f32         4 B           0           0           0           -
a.           2 tensors                  8 B
enc.         3 tensors                 32 B  1 nan  2 inf
top          [2]            i64        16 B          -3           9           3      8.4853
' inspect small.safetensors --depth 1
check 'a part without statistics' gives 0 'small.safetensors: 3 tensors, 32 B
name  shape          dtype      size
2.    2 tensors                 24 B
  b   [1]            f64         8 B
  w   [4]            f32        16 B
10.w  [2]            f32         8 B
' inspect --no-stats --key enc small.safetensors
check 'one tensor' gives 0 'small.safetensors: 1 tensor, 16 B
name  shape          dtype      size         min         max        mean         std
top   [2]            i64        16 B          -3           9           3      8.4853
' inspect --key=top -- small.safetensors
check 'ties' eval '"$tenon" inspect "$golden/tenon_transformer.pt" | grep "^  weight .*  = 0.weight\$"'
check 'a checkpoint: its strings and parts' eval '"$tenon" inspect --depth 1 "$golden/run.checkpoint" >"$dir/stdout" &&
    grep -qx "note: a \"run\"" "$dir/stdout" && grep -q "^optim\. " "$dir/stdout" && grep -q "^step  *\[\] " "$dir/stdout"'
printf '\x8e\0\0\0\0\0\0\0{"__metadata__":{"tenon.roles":"{\\"m\\":\\"statistic\\"}","k":"\\u0007\\""},"m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}' >role.safetensors
printf '%-*s' $((8 + 0x8e - $(stat -c %s role.safetensors))) '' >>role.safetensors
printf 'x' >>role.safetensors
check 'a role and a string' gives 0 'role.safetensors: 1 tensor, 1 B
k: \u0007"
name  shape          dtype      size         min         max        mean         std
m     [1]            u8          1 B         120         120         120           -  statistic
' inspect role.safetensors
check 'in JSON' gives 0 '{
  "metadata": {
    "k": "\u0007\""},
  "tensors": [
    {"name": "m", "shape": [1], "dtype": "u8", "bytes": 1, "min": 120, "max": 120, "mean": 120, "std": null, "nan": 0, "inf": 0, "role": "statistic"}]
}
' inspect --json role.safetensors
files write none.safetensors
check 'no tensors' gives 0 'none.safetensors: 0 tensors, 0 B
name  shape          dtype      size         min         max        mean         std
' inspect none.safetensors
check 'no tensors, JSON' gives 0 '{
  "metadata": {},
  "tensors": []
}
' inspect --json none.safetensors
files many many.safetensors 10000
check '10,000 tensors' eval '[ "$(timeout 60 "$tenon" inspect many.safetensors | wc -l)" -eq 11003 ]'

# ---- diff ----------------------------------------------------------------------------------------
files write a.safetensors 'w=f32:1,2,nan,4,-0' 'same=i64:9223372036854775807,1' 'gone=f32:1' 'f=f32:1,1000'
files write b.safetensors 'w=f32:1,2.5,nan,inf,0' 'same=i64:9223372036854775807,1' 'new=f64:1,2' 'f=f32:1.25,1001'
files write c.safetensors 'w=f64:1,2,nan,4,0' 'same=i64:9223372036854775806,1' 'gone=f32:1,1' 'f=f32:1,1000'
check 'nothing differs' gives 0 '' diff a.safetensors a.safetensors
check 'what differs' gives 1 'w: 2 of 5 values differ, by up to inf at [3], 4 and inf; relatively inf at [3], 4 and inf
f: 2 of 2 values differ, by up to 1 at [1], 1000 and 1001; relatively 0.2 at [0], 1 and 1.25
gone: f32 [1] only in a.safetensors
new: f64 [2] only in b.safetensors
tensors that differ: 2; only in the first file: 1; only in the second: 1
' diff a.safetensors b.safetensors
check 'dtypes and shapes' gives 1 'w: dtype f32 and f64
same: 1 of 2 values differ, by up to 1 at [0], 9223372036854775807 and 9223372036854775806; relatively 1.0842e-19 at [0], 9223372036854775807 and 9223372036854775806
gone: shape [1] and [2]
tensors that differ: 3; only in the first file: 0; only in the second: 0
' diff a.safetensors c.safetensors
check 'one part, whatever its dtype' gives 0 '' diff --ignore-dtype --key w a.safetensors c.safetensors
check 'within the absolute tolerance' gives 0 '' diff --key f --atol 1 a.safetensors b.safetensors
check 'within the relative one' gives 0 '' diff --key f --rtol 0.2 a.safetensors b.safetensors
check 'whichever is first' gives 0 '' diff --key f --rtol 0.2 b.safetensors a.safetensors
check 'beyond both by a little' gives 1 'f: 1 of 2 values differ, by up to 0.25 at [0], 1 and 1.25; relatively 0.2 at [0], 1 and 1.25
tensors that differ: 1; only in the first file: 0; only in the second: 0
' diff --key f --rtol 0.19 --atol 0.01 a.safetensors b.safetensors
check 'no tolerance reaches infinity' ends 1 "$tenon" diff --key w --rtol 1 --atol 1e300 a.safetensors b.safetensors
check 'a file that is not there' refuses 'nothing: No such file or directory' diff a.safetensors nothing
check 'axes' eval '"$tenon" convert --key layers.10.weight "$golden/tool.pt" x.npy && "$tenon" convert --key turned "$golden/tool.pt" y.npy &&
    ends 1 "$tenon" diff x.npy y.npy | grep -x "array: shape \[5, 4\] and \[4, 5\]"'

# ---- convert: there and back, values and bytes ---------------------------------------------------
for file in "$golden"/*.pt "$golden"/{ops,half,run}.*[st]; do
    name=${file##*/}
    for end in safetensors pt pth; do
        check "$name as .$end" eval '"$tenon" convert "$file" "1.$end" 2>"$dir/err" && "$tenon" diff "$file" "1.$end"'
    done
    check "$name, back" eval '"$tenon" convert 1.safetensors 2.pt 2>"$dir/err" && "$tenon" diff 1.pt 2.pt'
    rm -f 1.* 2.*
done
for file in "$golden"/npy/{bool,float16,float32,float64,int32,int64,uint8,empty,value,line}.npy; do
    check "${file##*/}" eval '"$tenon" convert "$file" 1.pt && "$tenon" convert 1.pt 2.safetensors &&
        "$tenon" convert --force 2.safetensors 2.npy && cmp "$file" 2.npy'
    rm -f 1.* 2.*
done
files=$golden/files
for file in "$files"/{stored,deflated}.npz "$files"/{scripted,traced}.pt "$files"/{safetensors,pytorch}.index.json; do
    name=${file##*/}
    check "$name" eval '"$tenon" convert "$file" 1.npz && "$tenon" convert 1.npz 2.safetensors && "$tenon" diff "$file" 2.safetensors'
    rm -f 1.* 2.*
done
check 'a part of a checkpoint of PyTorch' eval '"$tenon" convert --key model "$files/checkpoint.pt" part.safetensors &&
    "$tenon" diff part.safetensors "$files/checkpoint.pt" 2>err.txt && "$tenon" inspect --json --no-stats part.safetensors | grep "\"epoch\": \"41\""'
check 'all of it' eval '"$tenon" convert --key "*" "$files/checkpoint.pt" all.safetensors && "$tenon" diff --key "*" "$files/checkpoint.pt" all.safetensors &&
    "$tenon" diff --key model "$files/checkpoint.pt" all.safetensors'
check 'the only dict, which is said' eval '"$tenon" convert "$files/checkpoint.pt" only.pt 2>err.txt &&
    grep -xF "tenon: note: $files/checkpoint.pt: taken: model (7 tensors)" err.txt &&
    grep "^tenon: note: the new file has no place for the metadata epoch, loss, name, " err.txt'
check 'a tensor of it' eval '"$tenon" convert --key model.body.weight "$files/checkpoint.pt" one.npy 2>err.txt &&
    "$tenon" inspect one.npy | grep "^array  \[2, 3\] "'
check 'what tenon has not' eval '"$tenon" inspect "$files/foreign.pt" 2>err.txt | grep "^f32 " && grep "left out: i8 (int8), " err.txt'
check 'is not converted' refuses 'which tenon has not' convert "$files/foreign.pt" new.pt
check 'ties stay in .pt' notes '' convert "$golden/tenon_transformer.pt" tied.pt
check 'and are ties there' eval '"$tenon" inspect tied.pt | grep "  = 0.weight\$"'
check 'whose memory counts once' eval '"$tenon" convert --rename 0.=x.0. --rename 2.=x.2. tied.pt branch.pt &&
    "$tenon" inspect --depth 1 branch.pt | grep "^x\.  *3 tensors  *140 B\$"'
check 'and in another dtype' notes '' convert --dtype bf16 "$golden/tenon_transformer.pt" tied16.pt
check 'which has half the bytes' eval '[ "$(stat -c %s tied16.pt)" -lt "$(stat -c %s tied.pt)" ] &&
    "$tenon" inspect tied16.pt | grep "bf16  .*  = 0.weight\$" && "$tenon" diff --ignore-dtype --rtol 0.004 tied.pt tied16.pt'
check 'not in safetensors' notes 'tensors that are others too, stored once more: 1' convert tied.pt tied.safetensors
check 'what is too large' notes 'far: 3 values are too large for f16, and infinite now
near: 3 values are too large for f16, and infinite now
outlier: 1 values are too large for f16, and infinite now
brain: 1 values are too large for f16, and infinite now' convert --dtype f16 "$golden/tool.pt" f16.pt
check 'integers stay' eval '"$tenon" inspect --json f16.pt | grep -c "\"[iub][0-9o]" | grep -x 4'
check 'versions of modules' eval '"$tenon" convert --rename 1.=norm. "$golden/pt_cnn_2.15.pt" v.safetensors &&
    head -c 400 v.safetensors | grep "\"tenon.versions\":\"{..norm..:2}\""'
check 'roles' eval '"$tenon" convert --rename m=x.m role.safetensors r.safetensors && "$tenon" inspect r.safetensors | grep "  statistic\$"'
check 'a string' eval '"$tenon" inspect r.safetensors | grep -xF "k: \\u0007\""'
check 'a string that has no place' notes 'the new file has no place for the metadata k' convert role.safetensors r.pt
check 'a checkpoint' notes 'it is no checkpoint now' convert "$golden/run.checkpoint" run.safetensors
check 'nor says so' eval '! "$tenon" inspect run.safetensors | grep "^tenon\."'
check 'a part of it' notes '' convert --key model "$golden/run.checkpoint" model.safetensors
check 'is named as in it' eval '"$tenon" inspect --json --no-stats model.safetensors | grep "\"name\": \"0.weight\""'
check 'what Hugging Face asks for' eval '"$tenon" convert tied.pt hf.safetensors 2>"$dir/err" && head -c 100 hf.safetensors | grep "\"format\":\"pt\""'
cp small.safetensors names.safetensors
check 'no such name' refuses 'no name begins so' convert --force --rename none=x small.safetensors names.safetensors
check 'new names' eval '"$tenon" convert --force --rename enc.2.=x. --rename enc.=y. --rename =z. small.safetensors names.safetensors &&
    "$tenon" inspect --json --no-stats names.safetensors | sed -n "s/.*\"name\": \"\([^\"]*\)\".*/\1/p" | sort | tr "\n" " " |
    grep -qxF "x.b x.w y.10.w z.a.deep.one z.a.deep.two z.a\\u001b[1mb z.top "'
check 'names exchanged' eval '"$tenon" convert --force --key w --rename w=f a.safetensors names.safetensors &&
    "$tenon" convert --force --rename w=f --rename f=w a.safetensors names.safetensors && ends 1 "$tenon" diff a.safetensors names.safetensors | grep "^w: shape"'

# ---- convert: refused, and nothing changes -------------------------------------------------------
cp a.safetensors kept.safetensors
check 'a target that is there' refuses 'kept.safetensors is there already: --force replaces it' convert b.safetensors kept.safetensors
check 'one name for two' refuses "same: its new name is another's too: w" convert --force --rename same=w a.safetensors kept.safetensors
check 'an empty name' refuses 'f: its new name is empty' convert --force --rename f= a.safetensors kept.safetensors
check 'a source that is not there' refuses 'nothing.pt: No such file' convert --force nothing.pt kept.safetensors
check 'no such part' refuses 'a.safetensors: no part q in it: it has w, same, gone, f' convert --force --key q a.safetensors kept.safetensors
check 'a full disk' eval '(ulimit -f 1 && ends 2 "$tenon" convert --force many.safetensors kept.safetensors) 2>&1 | grep "tenon: kept.safetensors: "'
check 'the old file is as it was' cmp a.safetensors kept.safetensors
check 'no temporary' eval '[ -z "$(find . -name "*kept*" ! -name kept.safetensors)" ]'
check 'an ending' refuses 'new.bin: want a name in .safetensors, .pt, .pth, .npy or .npz' convert a.safetensors new.bin
check 'no ending' refuses '.pt: want a name in' convert a.safetensors .pt
check 'a dtype' refuses '--dtype i8: want f32, f64, bf16 or f16' convert --dtype i8 a.safetensors new.pt
check 'several arrays' refuses 'new.npy: want one array (--key NAME)' convert a.safetensors new.npy
check 'bf16 for NumPy' refuses 'not bf16 (--dtype f32)' convert --key f --dtype bf16 a.safetensors new.npy
check 'a folder' refuses 'no/new.pt' convert a.safetensors no/new.pt

# ---- bad files -----------------------------------------------------------------------------------
for file in a.safetensors "$golden/pt_cnn_2.15.pt" "$golden/npy/float32.npy"; do
    size=$(stat -c %s "$file")
    for n in 0 1 7 8 9 40 $((size / 2)) $((size - 1)); do
        head -c "$n" "$file" >"cut.${file##*.}"
        for command in inspect convert diff; do
            other=()
            [ $command = inspect ] || other=(new.pt)
            [ $command != diff ] || other=(a.safetensors)
            check "$n bytes of ${file##*/}, $command" refuses "cut.${file##*.}: " $command "cut.${file##*.}" "${other[@]}"
        done
    done
done
check 'a folder for a file' refuses 'want a regular file' inspect .
check 'another part' refuses 'small.safetensors: no part enc. in it' inspect --key enc. small.safetensors

# ---- options -------------------------------------------------------------------------------------
check 'nothing' refuses '"" is no command (tenon --help)'
check 'no such command' refuses '"inspekt" is no command (tenon --help)' inspekt
check 'an option first' refuses '"--json" is no command' --json
check 'no such option' refuses '--jsn is no option of this command (tenon --help)' inspect --jsn a.safetensors
check "another command's" refuses '--force is no option of this command' inspect --force a.safetensors
check 'no argument' refuses '--key wants an argument' inspect --key
check 'an argument too many' refuses 'is no option of this command' inspect --json=3 a.safetensors
check 'no file' refuses '0 files: want 1' inspect
check 'three files' refuses '3 files: want 2' diff a b c
check 'a file for info' refuses '1 files: want 0' info a
for x in '' x 1x nan inf -1; do check "--rtol $x" refuses "--rtol $x: want X" diff --rtol "$x" a.safetensors b.safetensors; done
for x in '' 0 -1 1.5 x; do check "--depth $x" refuses "--depth $x: want N" inspect --depth "$x" a.safetensors; done
check 'no pair' refuses '--rename w: want OLD=NEW' convert --rename w a.safetensors new.pt
# shellcheck disable=SC2046 # many words
check 'too many pairs' refuses '--rename a64=b: want OLD=NEW' convert $(printf -- '--rename a%d=b ' {1..64}) a.safetensors new.pt
version=$(sed -n 's/^#define TN_VERSION "\(.*\)"/\1/p' "$root/include/tenon/tensor.h")
check 'the version' gives 0 "tenon $version
" --version
check 'help' gives 0 "$("$tenon" --help)
" --help
for command in inspect diff convert info; do
    check "$command --help" gives 0 "$("$tenon" --help)
" $command --help
done
check 'info' eval 'TN_LOG=$'"'a\\eb'"' "$tenon" info >info.txt && grep -qx "version: $version" info.txt && grep -q "^BLAS: " info.txt &&
    grep -q "^threads: 1 of " info.txt && grep -qxF "environment: TN_LOG=a\\u001bb" info.txt && grep -q "^rank: 0 of 1" info.txt'

# ---- output that does not arrive -----------------------------------------------------------------
check 'a pipe that breaks' eval '"$tenon" inspect many.safetensors 2>err.txt | head -n 1; [ "${PIPESTATUS[0]}" -eq 141 ] && [ ! -s err.txt ]'
check 'where nobody minds' eval '(trap "" PIPE; "$tenon" inspect many.safetensors; echo $? >status.txt) 2>err.txt | head -n 1
    [ "$(cat status.txt)" -eq 2 ] && grep -qx "tenon: the output cannot be written" err.txt'
check 'a full device' eval 'ends 2 "$tenon" inspect a.safetensors >/dev/full 2>err.txt; grep -q "cannot be written" err.txt'
check 'no standard output' eval '"$tenon" inspect a.safetensors >&- 2>err.txt; [ $? -eq 2 ]'
check 'none is needed' eval '"$tenon" convert a.safetensors closed.pt >&- 2>&- <&- && "$tenon" diff a.safetensors closed.pt'

# ---- manual, completion --------------------------------------------------------------------------
tool=$root/tool
"$tenon" --help | grep -o -- '--[a-z-]*' | sort -u >options.txt
for option in $(cat options.txt); do
    check "$option in the manual" grep -qF -- "${option//-/\\-}" "$tool/tenon.1"
    check "$option in the completion" grep -qF -- "$option" "$tool/tenon.bash"
done
check 'the version in the manual' grep -q "\"tenon $version\"" "$tool/tenon.1"
! command -v groff >/dev/null || check 'the manual' eval '[ -z "$(groff -man -ww -z "$tool/tenon.1" 2>&1)" ]'
# What completion offers for the last of some words.
offers() { # EXPECTED WORD...
    # shellcheck disable=SC2016 # the inner shell's
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tenon; echo "${COMPREPLY[*]}"' \
        - "$tool/tenon.bash" "${@:2}" >"$dir/stdout"
    cat "$dir/stdout"
    [ "$(cat "$dir/stdout")" = "$1" ]
}
check 'commands' offers 'inspect info' tenon in
check 'options' offers '--depth' tenon inspect --d
check 'dtypes' offers 'bf16' tenon convert --dtype b
check 'files' offers 'kept.safetensors' tenon inspect kep
check 'none' offers '' tenon info kep
for command in inspect diff convert info; do
    check "options of $command" same "$(offers '' tenon $command -- | tr ' ' '\n' | sort | tr '\n' ' ')" \
        "$("$tenon" --help | sed -n "/^tenon $command /,/^tenon /s/^ *\(--[a-z-]*\).*/\1/p" | cat - <(echo --help) | sort | tr '\n' ' ')"
done
verdict
