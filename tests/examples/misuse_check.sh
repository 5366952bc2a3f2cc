#!/usr/bin/env bash
# The example programs under wrong options, files that cannot be read or written, and outputs that nobody
# reads: one clear line before anything is computed, the right exit status, no file made; and failures
# later cost no trained weights.
# usage: test_misuse.sh TRANSFORMER BATCHNORM BUFFERS XOR INTEROP AUTOGRAD GPT     (paths of the programs)
#
# Seen to fail: the programs as they were before they looked at their files and outputs, 88 of the checks;
# a run of the table that is not refused at once is cut off after 20 s.
set -uo pipefail
transformer=$(realpath "$1") batchnorm=$(realpath "$2") buffers=$(realpath "$3") xor=$(realpath "$4")
interop=$(realpath "$5") autograd=$(realpath "$6") gpt=$(realpath "$7")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/examples/example_data.sh
. "$here/example_data.sh"
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
mkdir "$dir/here" && cd "$dir/here" || exit 1

example_text >text
example_images images 64
small=(--text text --steps 24 --batch 4 --context 16 --layers 2 --heads 2 --d-model 32 --warmup 4
       --dropout 0.1 --eval-every 8 --generate 0)
t() { "$transformer" "${small[@]}" "$@"; }
b() { "$batchnorm" --batch 16 --steps 6 --data images "$@"; }

# ---- refused at once -----------------------------------------------------------------------------
check 'a file of weights' t --quiet --save weights
check 'a checkpoint' t --quiet --stop-after 3 --checkpoint part
check 'batchnorm, a file of weights' b --quiet --save bweights
check 'batchnorm, a checkpoint' b --quiet --stop-after 3 --checkpoint bpart
mkdir folder empty
touch nothing
head -c 600 text >short
head -c 5000 weights >damaged
ln -s nowhere dangling
long=$(printf 'n%.0s' {1..250})

# Ends at once with STATUS and one line that has MESSAGE, on standard error; the folder is as it was.
ends() { # STATUS MESSAGE COMMAND...
    local status=0 before after
    before=$(ls -lA --time-style=full-iso . folder empty)
    timeout 20 "${@:3}" >"$dir/stdout" 2>"$dir/stderr" || status=$?
    after=$(ls -lA --time-style=full-iso . folder empty)
    echo "status $status"
    cat "$dir/stdout" "$dir/stderr"
    diff <(echo "$before") <(echo "$after") || return 1
    [ $status -eq "$1" ] && [ ! -s "$dir/stdout" ] && [ "$(wc -l <"$dir/stderr")" -eq 1 ] &&
        grep -qF -- "$2" "$dir/stderr"
}
# PROGRAM: t and b begin a training that would take hours; bare words are options that follow it. A row ""
# stands for an empty argument.
row() { # STATUS MESSAGE PROGRAM ARGUMENT...
    local program=("$3") arguments=() word
    case $3 in
    t) program=("$transformer" --text text --steps 100000000 --context 16) ;;
    b) program=("$batchnorm" --data images --batch 16 --epochs 100000) ;;
    transformer) program=("$transformer") ;;
    batchnorm) program=("$batchnorm") ;;
    *) program=("${!3}") ;;
    esac
    for word in "${@:4}"; do
        [ "$word" = '""' ] && word=''
        arguments+=("$word")
    done
    check "$3 ${*:4}" ends "$1" "$2" "${program[@]}" "${arguments[@]}"
}
table() {
    local status message line
    while IFS='|' read -r status message line; do
        [ -n "$status" ] || continue
        read -ra line <<<"$line"
        row "${status// /}" "$(sed 's/^ *//; s/ *$//' <<<"$message")" "${line[@]}"
    done
}

table <<END
2 | unrecognized option '--stpes'                         | t --stpes 3
2 | invalid option -- 'x'                                 | t -x
2 | option '--s' is ambiguous; possibilities: '--steps' '--seed' | t --s 3
2 | option '--quiet' doesn't allow an argument            | t --quiet=yes
2 | unexpected argument more                              | t more --quiet
2 | option '--steps' requires an argument                 | t --steps
2 | --steps many: want a whole number from 0 to 1000000000 | t --steps many
2 | --steps 1e3: want a whole number                    | t --steps 1e3
2 | --steps -1: want                                    | t --steps -1
2 | --steps 99999999999999999999: want                  | t --steps 99999999999999999999
2 | --steps "": want                                    | t --steps=
2 | --lr nan: want a number from 1e-12 to 100           | t --lr nan
2 | --lr 1e999: want                                    | t --lr 1e999
2 | --dropout 1.5: want                                 | t --dropout 1.5
2 | --threads 100000: want                              | t --threads 100000
2 | --top-k 257: want                                   | t --top-k 257
1 | embed_dim 128 for 3 heads: want a multiple          | t --heads 3
1 | warmup 9, total 8: want 0 <= warmup <= total        | t --steps 8 --warmup 9
2 | --precision f8: want f32, tf32, bf16, f16 or auto   | t --precision f8
2 | --precision "": want a NAME                         | t --precision=
2 | --device tpu: want cpu or cuda                      | t --device tpu
2 | --save "": want a FILE                              | t --save=
2 | --text "": want a FILE                              | t --text ""
2 | --text FILE is needed                                 | transformer
1 | nope: No such file                                    | t --text nope
1 | folder: is a folder                                   | t --text folder
1 | nothing: is empty                                     | t --text nothing
2 | --text short: 600 characters, 60 of them held out: want more than --context 64 | t --text short --context 64
2 | --prompt ~: byte 1 (0x7e) does not occur              | t --prompt ~
2 | --prompt ~: byte 1 (0x7e) does not occur              | transformer --load weights --prompt ~
2 | --save no/x: No such file                             | t --save no/x
2 | --save /proc/x:                                       | t --save /proc/x
2 | --save text/x: Not a directory                        | t --save text/x
2 | --save folder: want a regular file, or a name | t --save folder
2 | --save folder/: want a regular file, or a name | t --save folder/
2 | --save /dev/full: want a regular file, or a name | t --save /dev/full
2 | --save dangling: want a regular file, or a name | t --save dangling
2 | File name too long                                    | t --save $long
2 | --save x.pt: a PyTorch file has no place              | t --save x.pt
2 | --plot no/x: No such file                             | t --plot no/x
2 | --plot folder: want a regular file, or a name | t --plot folder
2 | --log no/x: No such file                              | t --log no/x
2 | --log folder: want a regular file, or a name | t --log folder
2 | --log /proc/x:                                        | t --log /proc/x
2 | --tensorboard "": want a DIR                          | t --tensorboard=
2 | --checkpoint no/x: No such file                       | t --checkpoint no/x
2 | --checkpoint no/no/: No such file                     | t --checkpoint no/no/
2 | --checkpoint /dev/null: want a regular file, or a name | t --checkpoint /dev/null
2 | --checkpoint /proc/:                                  | t --checkpoint /proc/
2 | --checkpoint text/: tn_checkpoint_lock: text/: cannot be locked: Not a directory | t --checkpoint text/
2 | --save text: it is the file of --text too             | t --save text
2 | --log ./text: it is the file of --text too            | t --log ./text
2 | --plot x: named twice, or                             | t --save folder/../x --plot x
2 | --log x: named twice, or                              | t --checkpoint x --log x
2 | --save part: it is the file of --resume too           | transformer --resume part --checkpoint x --save part
2 | --save part: it is the file of --resume too           | transformer --resume part --save part
2 | --save text: it is the file of --text too             | transformer --resume part --save text
2 | --keep 3: checkpoints go to one file: want --checkpoint DIR/ | t --checkpoint x --keep 3
2 | --keep 3: checkpoints go to one file: want --checkpoint DIR/ | t --keep 3
2 | --resume and --load: want one of them               | transformer --resume part --load weights
2 | --load part: it is a checkpoint of a run, not a file of weights: want --resume part | transformer --load part
1 | nope: No such file                                    | transformer --load nope
1 | folder: is a folder                                   | transformer --load folder
1 | /dev/full: is not a regular file                      | transformer --load /dev/full
1 | damaged                                               | transformer --load damaged
1 | text                                                  | transformer --load text
2 | bweights does not say its context: it was not saved by transformer | transformer --load bweights
2 | --layers 3 conflicts with weights                     | transformer --load weights --layers 3
1 | nope: No such file                                    | transformer --resume nope
1 | weights: not a checkpoint (for a file of weights: tn_load) | transformer --resume weights
1 | no transformer-STEP.safetensors is in it              | transformer --resume empty
1 | /dev/full: is not a regular file                      | transformer --resume /dev/full
2 | bpart does not say its                                | transformer --resume bpart
2 | --steps 2: part is after step 3: want at least      | transformer --resume part --steps 2
2 | --lr 0.5 conflicts with part                          | transformer --resume part --lr 0.5
2 | --lr 0.5 conflicts with part                          | transformer --resume part --lr 0.5 --checkpoint new/
2 | --batch 1: want                                     | b --batch 1
1 | 64 rows give no batch of 65                           | b --batch 65
2 | --data "": want a DIR                               | b --data=
1 | nope/train-images-idx3-ubyte.gz: No such file         | b --data nope
1 | text/train-images-idx3-ubyte.gz: Not a directory      | b --data text
2 | --plot no/x: No such file                             | b --plot no/x
2 | --load bpart: it is a checkpoint                      | batchnorm --data images --load bpart
2 | 2 steps, and bpart is after step 3: want            | batchnorm --resume bpart --steps 2
2 | unknown flag --nonsense                               | xor --nonsense
2 | unexpected argument 3                                 | xor 3
2 | --device needs an argument                            | xor --device
2 | no/x.html: No such file                               | xor --html no/x.html
2 | usage: gpt [TEXT] [STEPS]                             | gpt --help
2 | usage: gpt [TEXT] [STEPS]                             | gpt text many
2 | usage: gpt [TEXT] [STEPS]                             | gpt text 0
2 | usage: gpt [TEXT] [STEPS]                             | gpt text 5 more
1 | nope: No such file                                    | gpt nope
1 | folder: is a folder                                   | gpt folder
1 | the text is too short                                 | gpt short
2 | unrecognized option '--nonsense'                      | autograd --nonsense
2 | --dot no/x: No such file                              | autograd --dot no/x
2 | option '--dot' requires an argument                   | autograd --dot
2 | option '--device' requires an argument                | buffers --device
2 | --device x: want cpu or cuda                        | buffers --device x
2 | invalid option -- 'f'                                 | interop -f
1 | no/linear.pt                                          | interop write no
1 | empty/linear.theirs.pt                                | interop read empty
1 | nope                                                  | interop convert nope x.pt
1 | no/x                                                  | interop convert weights no/x
END

says() { # MESSAGE COMMAND...
    "${@:2}" >"$dir/stdout" 2>&1 && grep -qF -- "$1" "$dir/stdout"
}
# A user who may not write here: another one if this is root, who may.
user=()
if [ "$(id -u)" -eq 0 ]; then user=(setpriv --reuid=65534 --regid=65534 --clear-groups); fi
chmod a+rx "$dir" . && chmod -R a+rX . && chmod 555 .
cannot_write() { ! "${user[@]}" touch x 2>"$dir/null"; }
if cannot_write && "${user[@]}" "$transformer" --help >"$dir/null" 2>&1; then
    as_user() { ends "$1" "$2" "${user[@]}" "$transformer" "${small[@]}" --steps 100000000 "${@:3}"; }
    check 'read-only, --save' as_user 2 '--save x: Permission denied' --save x
    check 'read-only, --log' as_user 2 '--log x: Permission denied' --log x
    check 'read-only, --log of somebody' as_user 2 '--log nothing: Permission denied' --log nothing
    check 'read-only, --plot' as_user 2 '--plot x: Permission denied' --plot x
    check 'read-only, --checkpoint' as_user 2 '--checkpoint x: Permission denied' --checkpoint x
    check 'read-only, --stop-after' as_user 2 'no checkpoint can be written here: Permission denied' --stop-after 2
    check 'read-only, nothing to write' says 'this run will be lost: no checkpoint can be written here' \
        "${user[@]}" "$transformer" "${small[@]}"
    check 'read-only, resumed' "${user[@]}" "$transformer" --resume part --quiet --print-hash
else
    echo 'a folder that may not be written to was not tested: the programs cannot be run as another user'
fi
chmod 755 .

# ---- outputs that fail later ---------------------------------------------------------------------
complains() { # MESSAGE COMMAND...: ends with 1 and says only MESSAGE on standard error
    local status=0
    "${@:2}" 2>"$dir/stderr" || status=$?
    echo "status $status"
    cat "$dir/stderr"
    [ $status -eq 1 ] && [ "$(wc -l <"$dir/stderr")" -eq 1 ] && grep -qF -- "$1" "$dir/stderr"
}
full() { timeout 20 "$@" >/dev/full; }
closed() { timeout 20 "$@" >&-; }
hours=("$transformer" "${small[@]}" --steps 100000000)
check 'no room for the log' complains '--log /dev/full: No space left on device: it ends before step 1' \
    t --quiet --log /dev/full --save full.weights
check 'no room for the log, the weights' cmp weights full.weights
no_room() { ( ulimit -f 4 && exec "$transformer" "${small[@]}" --quiet --steps 300 --log full.csv ); }
check 'a log that may not grow' complains '--log full.csv: File too large: it ends before step' no_room
check 'a log that may not grow, whole lines' awk -F, 'NF != 4 { bad = 1 } END { exit bad || NR < 65 }' full.csv
no_room_there() { ( ulimit -f 4 && exec "$transformer" "${small[@]}" --quiet --steps 300 --tensorboard full ); }
check 'points that find no room' complains 'File too large: training goes on' no_room_there
check 'standard output is full' complains 'standard output: No space left on device' full "${hours[@]}"
check 'standard output is closed' complains 'standard output: Bad file descriptor' closed "${hours[@]}"
check 'standard output is closed, nothing to print' closed "$transformer" "${small[@]}" \
    --quiet --save y --log y.csv
check 'standard output is closed, the weights' cmp weights y
check 'standard output is closed, the log' same "$(wc -l <y.csv)" 25
unread() { # the reader goes away, and SIGPIPE is ignored, as under Python
    ( trap '' PIPE; exec "$transformer" "${small[@]}" --save x 2>"$dir/stderr2" ) | head -n 40 >"$dir/null"
    local status=${PIPESTATUS[0]}
    cat "$dir/stderr2" >&2
    return "$status"
}
check 'standard output goes' complains 'standard output: Broken pipe' unread
check 'standard output goes, the weights' cmp weights x
for program in xor buffers autograd; do
    check "$program, standard output is full" complains 'standard output: No space' full "${!program}"
    check "$program --help" "${!program}" --help
done
check 'gpt, standard output is full' complains 'standard output: No space' full "$gpt" text 1
check 'help into a full disk' complains 'standard output: No space left on device' full "$transformer" --help
check 'no HOME' env -u HOME "$transformer" "${small[@]}" --quiet
check 'the last of two counts' same "$(t --quiet --print-hash)" "$(t --quiet --print-hash --steps 3 --steps 24)"

begin() { # PATTERN PROGRAM ARGUMENT...: in the background as $pid, until it says PATTERN; it must go on for seconds
    : >"$dir/live"
    timeout 100 "${@:2}" >"$dir/live" 2>&1 &
    pid=$!
    while ! grep -qE -- "$1" "$dir/live"; do
        kill -0 $pid 2>"$dir/null" || return 1
        sleep 0.1
    done
}
ended() { # STATUS: the program in the background
    local status=0
    wait "$pid" || status=$?
    cat "$dir/live"
    echo "status $status"
    [ $status -eq "$1" ]
}

# The folder of --save disappears while the program trains: a checkpoint saves the weights.
rescued() { # PROGRAM NAME ARGUMENT...
    mkdir out
    begin '^ *(step [0-9]|after the opt)' "$1" "${@:3}" --save out/weights || return 1
    rmdir out
    ended 1 && grep -qF "the weights are in a checkpoint: --resume $2.ckpt --save FILE" "$dir/live" &&
        "$1" --resume "$2.ckpt" --quiet --save again && "$1" "${@:3}" --quiet --save whole && cmp again whole
}
check 'transformer, the folder of --save goes' rescued "$transformer" transformer "${small[@]}" --steps 4000
check 'batchnorm, the folder of --save goes' rescued "$batchnorm" batchnorm --batch 16 --data images --epochs 300
lost_place() {
    mkdir runs
    begin '^step [0-9]' "$transformer" "${small[@]}" --steps 4000 --checkpoint runs/ --checkpoint-every 1000 \
        --save kept || return 1
    mv runs "$dir/gone"
    ended 0 && [ -n "$(ls runs)" ] && [ -s kept ] # made anew
}
check 'the folder of --checkpoint goes' lost_place

# Ctrl-C in the long evaluation at the end, whose weights are saved by then.
for _ in $(seq 150); do cat text; done >long
breaks_off() { # PROGRAM ARGUMENT...
    local began
    begin '^saved last' "$@" --save last || return 1
    began=$SECONDS
    kill -INT "$pid"
    ended 130 && [ -s last ] && [ $((SECONDS - began)) -le 3 ]
}
check 'Ctrl-C in the evaluation' breaks_off "$transformer" --text long --steps 1 --batch 1 --context 16 --layers 8 \
    --eval-every 0
# A second run that saves where a running one does.
second() { # PLACE ARGUMENT...
    begin 'validation loss' "$transformer" "${small[@]}" --steps 1000000 --checkpoint "$1" --checkpoint-every 1 ||
        return 1
    "$transformer" "${@:2}" --quiet >"$dir/second" 2>&1
    local status=$?
    cat "$dir/second"
    kill -INT "$pid"
    ended 130 && [ $status -eq 2 ] && [ "$(wc -l <"$dir/second")" -eq 1 ] &&
        grep -q "$1: another run writes to it, process [0-9]" "$dir/second" &&
        "$transformer" "${@:2}" --stop-after 1 --quiet
}
check 'two runs, one file' second two "${small[@]}" --checkpoint two
check 'two runs, a file gone on with' second two --resume two
check 'two runs, one folder' second two.d/ --resume two.d/
hangs_up() {
    begin '^step [0-9]' "$transformer" "${small[@]}" --steps 1000000 --checkpoint hup
    kill -HUP "$pid"
    ended 129 && "$transformer" --resume hup --stop-after 1 --quiet
}
check 'SIGHUP' hangs_up
check 'a checkpoint without a name' t --quiet --stop-after 2
check 'another one replaces none' t --quiet --stop-after 2
check 'both are there' test -s transformer-2.ckpt -a -s transformer-3.ckpt

# ---- a finished run continues ----------------------------------------------------------
same_after() { # FROM A.csv B.csv: steps and rates of two logs, after a step
    diff <(awk -F, -v n="$1" 'NR > 1 && $1 > n { print $1, $3 }' "$2") \
        <(awk -F, -v n="$1" 'NR > 1 && $1 > n { print $1, $3 }' "$3")
}
check 'a finished run' t --quiet --checkpoint end --log end.csv
check 'it says how it goes on' grep -q 'step 24 was the last; a larger number of them goes on' \
    <("$transformer" --resume end --generate 0)
further=$("$transformer" --resume end --checkpoint end2 --steps 36 --quiet --print-hash --log end.csv)
check 'more steps' same "$(tail -n 1 end.csv | cut -d, -f1)" 36
check 'in two parts' "$transformer" --resume end --checkpoint end3 --steps 36 --quiet --stop-after 7
check 'in two parts, the same bits' same "$further" "$("$transformer" --resume end3 --quiet --print-hash)"
check 'a whole run of that length' t --quiet --steps 36 --log whole.csv
check 'its rates' same_after 25 end.csv whole.csv
check 'batchnorm, a finished run' b --quiet --checkpoint bend
bfurther=$("$batchnorm" --resume bend --checkpoint bend2 --steps 10 --quiet --print-hash --log bend.csv)
check 'batchnorm, more steps' same "$(tail -n 1 bend.csv | cut -d, -f1)" 10
check 'batchnorm, in two parts' "$batchnorm" --resume bend --checkpoint bend3 --steps 10 --quiet --stop-after 2
check 'batchnorm, the same bits' same "$bfurther" "$("$batchnorm" --resume bend3 --quiet --print-hash)"

verdict
