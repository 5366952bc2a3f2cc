#!/usr/bin/env bash
# The example programs as a user meets them: flags, files, signals, resuming, the same bits again.
# usage: test_examples.sh TRANSFORMER BATCHNORM BUFFERS XOR AUTOGRAD GPT LM EMBED     (paths of the programs)
#
# Seen to fail: where ex_start() of examples/prepare.c loads ex.state without its scheduler, a resumed run
# began its warm-up again: "resumed after 1", "8" and "13" (another hash than the whole run's); with a
# note_signal (examples/training.c) that only notes: both "a second signal"; gpt.c without tn_optim_step (3.62)
# or without attention (above 1.2): "gpt, it learns"; with another seed in each run: "gpt, byte for byte".
set -uo pipefail
transformer=$(realpath "$1") batchnorm=$(realpath "$2") buffers=$(realpath "$3") xor=$(realpath "$4")
autograd=$(realpath "$5") gpt=$(realpath "$6") lm=$(realpath "$7") embed=$(realpath "$8")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/examples/example_data.sh
. "$here/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

refused() { # MESSAGE COMMAND...: ends with 2 and says MESSAGE
    local status=0
    "${@:2}" >"$dir/refused" 2>&1 || status=$?
    cat "$dir/refused"
    [ $status -eq 2 ] && grep -qF -- "$1" "$dir/refused"
}
fails() { # MESSAGE COMMAND...: ends with 1 and says MESSAGE
    local status=0
    "${@:2}" >"$dir/refused" 2>&1 || status=$?
    cat "$dir/refused"
    [ $status -eq 1 ] && grep -qF -- "$1" "$dir/refused"
}
differ() {
    echo "$1 and $2"
    [ -n "$1" ] && [ -n "$2" ] && [ "$1" != "$2" ]
}
says() { # PATTERN COMMAND...: ends with 0 and a line matches
    "${@:2}" >"$dir/said" 2>&1
    local status=$?
    cat "$dir/said"
    [ $status -eq 0 ] && grep -qE -- "$1" "$dir/said"
}
begin() { # PROGRAM...: in the background as $pid, its first step taken, its output in live
    : >"$dir/live" # else the previous output could pass for this one's, and the signal would come too early
    "$@" >"$dir/live" 2>&1 &
    pid=$!
    for _ in $(seq 600); do
        grep -qE '^ *(step [0-9]|after the optimizer)' "$dir/live" && return
        sleep 0.1
    done
}
ended() { # STATUS...: the program in the background exits with one of them
    local status=0
    wait "$pid" || status=$?
    cat "$dir/live"
    echo "status $status"
    [[ " $* " == *" $status "* ]]
}
interrupted() { # SIGNAL STATUS CHECKPOINT PROGRAM...: a signal leaves a checkpoint to resume from
    begin "${@:4}"
    kill -"$1" "$pid"
    ended "$2" && "$4" --resume "$3" --stop-after 2 --quiet --checkpoint "$dir/further"
}
# Two signals at once: the program is stopped while they arrive, and would save only after its step. With
# one thread, both are delivered before it continues.
interrupted_twice() { # CHECKPOINT PROGRAM...: the second signal leaves nothing
    OMP_NUM_THREADS=1 begin "${@:2}"
    kill -STOP "$pid"
    kill -INT "$pid"
    kill -TERM "$pid"
    kill -CONT "$pid"
    ended 130 143 && [ ! -e "$1" ]
}
# The reader goes away: the program ends as by SIGPIPE, after a checkpoint, and leaves no partial file.
cut_off() { # LINES CHECKPOINT PROGRAM...
    local status
    timeout 100 env --default-signal=PIPE "${@:3}" --checkpoint "$2" 2>"$dir/stderr" | head -n "$1" >"$dir/head"
    status=${PIPESTATUS[0]}
    cat "$dir/stderr" "$dir/head"
    echo "status $status"
    [ "$status" -eq 141 ] && [ "$(wc -l <"$dir/head")" -eq "$1" ] &&
        grep -qx "checkpoint after step [0-9]*; go on with --resume $2" "$dir/stderr" &&
        [ "$(wc -l <"$dir/stderr")" -eq 1 ] && ! ls "$2".tmp-* 2>"$dir/null" &&
        "$3" --resume "$2" --stop-after 2 --quiet --checkpoint "$dir/further"
}

example_text >text
example_images images 200

# ---- transformer -------------------------------------------------------------------------------
small=(--text text --steps 24 --batch 4 --context 16 --layers 2 --heads 2 --d-model 32 --warmup 4
       --dropout 0.1 --eval-every 8 --generate 0)
t() { "$transformer" "${small[@]}" "$@"; }
hash_of() { t --quiet --print-hash "$@"; }

check 'transformer --help' says '--top-k N' "$transformer" --help
check 'transformer, unknown flag' refused "unrecognized option '--stpes'" "$transformer" --stpes 3
check 'transformer, no number' refused '--steps many: want a whole number' \
    "$transformer" --steps many
check 'transformer, out of range' refused '--dropout 1.5: want a number from 0 to 0.99' \
    "$transformer" --dropout 1.5
check 'transformer, no argument' refused "option '--steps' requires an argument" "$transformer" --steps
check 'transformer, no text' refused '--text FILE is needed' "$transformer"
check 'transformer, no such text' fails 'no-such-file' "$transformer" --text no-such-file
check 'transformer, a file in place of the folder' fails 'Not a directory' t --tensorboard text
check 'transformer, odd heads' fails 'embed_dim 32 for 3 heads: want a multiple' t --heads 3
check 'transformer, no such device' refused 'want cpu or cuda' t --device tpu
check 'transformer, whole run' says 'validation loss [0-9.]+ nats per character' \
    t --save model.safetensors --log log.csv --plot loss.svg --tensorboard runs/t --generate 40 --memory
check 'transformer, its summary names buffers' grep -qE '^    pe \[1,16,32\], constant +512$' said
check 'transformer, the mask is a buffer' grep -qE '^  mask \[16,16\] bool, not saved +256$' said
check 'transformer, the words of the sample' grep -qE 'words occur in the training text' said
check 'transformer, tensors stay flat' grep -qE 'tensors alive ([0-9]+) -> \1,' said
if ! ldd "$transformer" | grep -q libasan; then # there the cache is bypassed
    check 'transformer, no system allocations' grep -qE 'first evaluation 0,' said
fi
check 'transformer, a line a step in the log' same "$(wc -l <log.csv)" 25
check 'transformer, TensorBoard has the settings' grep -qF weight-decay runs/t/events.out.tfevents.*
check 'transformer, TensorBoard has a point a step' same "$(grep -aoF 'learning rate' runs/t/events.out.tfevents.* | wc -l)" 24
check 'transformer, a plot' grep -q '</svg>' loss.svg
check 'transformer, weights' test -s model.safetensors
check 'transformer, --load needs no other flag' same \
    "$("$transformer" --load model.safetensors --generate 50 --quiet | wc -c)" 51
sample=("$transformer" --load model.safetensors --generate 50 --quiet --seed 3 --prompt And)
check 'transformer, a sample has a key' same \
    "$("${sample[@]}" --top-k 5)" "$("${sample[@]}" --top-k 5)"
check 'transformer, a sample is written as it goes' same \
    "$(timeout 20 "$transformer" --load model.safetensors --generate 1000000 --quiet | head -c 40 | wc -c)" 40
check 'transformer, --load and another size' refused '--layers 3 conflicts with model.safetensors' \
    "$transformer" --load model.safetensors --layers 3
check 'transformer, a character it does not know' refused '--prompt ~: byte 1 (0x7e) does not occur' \
    "$transformer" --load model.safetensors --prompt '~'
check 'transformer, not a model' fails 'text' "$transformer" --load text

whole=$(hash_of)
for threads in 1 2 3 4 7; do
    check "transformer, $threads threads" same "$whole" "$(OMP_NUM_THREADS=$threads hash_of)"
done
check "transformer, --threads" same "$whole" "$(hash_of --threads 5)"
check 'transformer, another seed' differ "$whole" "$(hash_of --seed 2)"
for stop in 1 8 13 23; do
    check "transformer, stop after $stop" t --quiet --stop-after $stop --checkpoint part
    check "transformer, resumed after $stop" same "$whole" \
        "$("$transformer" --resume part --quiet --print-hash)"
done
bf16=$(hash_of --precision bf16)
check 'transformer, bf16 is another run' differ "$whole" "$bf16"
check 'transformer, bf16 stops' t --precision bf16 --quiet --stop-after 9 --checkpoint part16
check 'transformer, bf16 is resumed as such' same "$bf16" \
    "$("$transformer" --resume part16 --quiet --print-hash)"
case $(hash_of --precision auto) in
$whole | "$bf16") auto=chosen ;;
*) auto=other ;;
esac
check 'transformer, auto is f32 or bf16' same chosen $auto
f16=$(hash_of --precision f16)
check 'transformer, f16 is a third run' differ "$bf16" "$f16"
check 'transformer, f16 stops' t --precision f16 --quiet --stop-after 9 --checkpoint part16
check 'transformer, f16 is resumed with its scaler' same "$f16" \
    "$("$transformer" --resume part16 --quiet --print-hash)"
check 'transformer, no such precision' refused 'want f32, tf32, bf16, f16 or auto' t --precision f8
check 'transformer, another rate on resume' refused '--lr 0.5 conflicts with part' \
    "$transformer" --resume part --lr 0.5
tr a-y b-z <text >other
check 'transformer, another text on resume' refused '--text other' \
    "$transformer" --resume part --text other
endless=("$transformer" "${small[@]}" --steps 1000000)
check 'transformer, SIGINT' interrupted INT 130 int.ckpt "${endless[@]}" --checkpoint int.ckpt
check 'transformer, SIGTERM' interrupted TERM 143 transformer.ckpt "${endless[@]}"
check 'transformer, SIGTERM, a folder' interrupted TERM 143 term "${endless[@]}" --checkpoint term/ \
    --checkpoint-every 1000000
check 'transformer, a second signal' interrupted_twice twice.ckpt "${endless[@]}" --eval-every 0 \
    --checkpoint twice.ckpt
check 'transformer, SIGPIPE' cut_off 60 pipe.ckpt "${endless[@]}"

# ---- a folder of checkpoints -------------------------------------------------------------------
steps_in() { # FOLDER: the steps of its files
    find "$1" -type f -name 'transformer-*.safetensors' | sed 's/.*-0*\([0-9]*\)\..*/\1/' | sort -n | tr '\n' ' '
}
check 'folder, made' t --quiet --checkpoint runs/ --checkpoint-every 3 --keep 2 --stop-after 13
check 'folder, the last two' same "$(steps_in runs)" '12 13 '
check 'folder, resumed' same "$whole" "$("$transformer" --resume runs --quiet --print-hash)"
check 'folder, nothing was saved' same "$(steps_in runs)" '12 13 '
truncate -s -100 runs/transformer-00000013.safetensors
check 'folder, a damaged one is passed by' same "$whole" \
    "$("$transformer" --resume runs --quiet --print-hash --checkpoint runs/ 2>passed)"
check 'folder, and that is said' grep -q 'passed by.*damaged: runs/transformer-00000013.safetensors: ' passed
check 'folder, the last three' same "$(steps_in runs)" '12 13 24 '
check 'folder, of a run before' refused 'runs/transformer-00000024.safetensors is there already' \
    t --checkpoint runs
check 'folder, a file beside the one resumed' t --quiet --checkpoint runs2/ --checkpoint-every 4 --keep 0
check 'folder, beside' "$transformer" --resume runs2/transformer-00000004.safetensors --quiet --stop-after 1
check 'folder, all stay' same "$(steps_in runs2)" '4 5 8 12 16 20 24 '
check 'folder, --keep and a file' refused '--keep 3: checkpoints go to one file: want --checkpoint DIR/' \
    t --checkpoint one.ckpt --keep 3
mkdir empty
check 'folder, empty' fails 'no transformer-STEP.safetensors is in it' "$transformer" --resume empty
check 'folder, below none' refused '--checkpoint none/none/: No such file' t --checkpoint none/none/

# ---- batchnorm ---------------------------------------------------------------------------------
b() { "$batchnorm" --batch 16 --steps 14 --data images "$@"; }
bhash_of() { b --quiet --print-hash "$@"; }
check 'batchnorm, whole run' says 'test accuracy [0-9.]+ %' \
    b --save net.safetensors --log net.csv --plot net.svg --tensorboard runs/b
check 'batchnorm, parameters' grep -qE "list \(12\): conv1.weight conv1.bias bn1.weight" said
check 'batchnorm, buffers' grep -qE 'never sees \(8\): mean deviation bn1.running_mean' said
# shellcheck disable=SC2016
check 'batchnorm, forward moves them' awk '
    /before forward/ { before = $3 } /after forward/ { after = $3 } /after the optimizer/ {
        steps++; if (before == after || $4 != after) exit 1 } END { exit steps != 3 }' said
check 'batchnorm, a line a step in the log' same "$(wc -l <net.csv)" 15
check 'batchnorm, TensorBoard has the accuracy' grep -qF test_accuracy runs/b/events.out.tfevents.*
check 'batchnorm, a plot' grep -q '</svg>' net.svg
check 'batchnorm, load' says '^test loss [0-9.]+, test accuracy' b --load net.safetensors
check 'batchnorm, no such data' fails 'no-such-folder' "$batchnorm" --data no-such-folder
whole=$(bhash_of)
for threads in 1 2 3 4 7; do
    check "batchnorm, $threads threads" same "$whole" "$(OMP_NUM_THREADS=$threads bhash_of)"
done
for stop in 1 6 13; do
    check "batchnorm, stop after $stop" b --quiet --stop-after $stop --checkpoint bpart
    check "batchnorm, resumed after $stop" same "$whole" \
        "$("$batchnorm" --resume bpart --quiet --print-hash)"
done
moved=$(bhash_of --augment 2)
check 'batchnorm, moved images' differ "$whole" "$moved"
check 'batchnorm, moved images, one thread' same "$moved" "$(OMP_NUM_THREADS=1 bhash_of --augment 2)"
smoothed=$(bhash_of --augment 2 --smooth 0.1)
check 'batchnorm, smoothed labels' differ "$moved" "$smoothed"
check 'batchnorm, both, stop' b --quiet --augment 2 --smooth 0.1 --stop-after 5 --checkpoint bpart
check 'batchnorm, both, resumed' same "$smoothed" "$("$batchnorm" --resume bpart --quiet --print-hash)"
check 'batchnorm, residual blocks' b --quiet --blocks 1 --steps 2 --save deep.safetensors
check 'batchnorm, residual blocks, load' says '^test loss [0-9.]+, test accuracy' b --load deep.safetensors
check 'batchnorm, their number is noted' refused '--blocks 2 conflicts with deep.safetensors' b --blocks 2 --load deep.safetensors
check 'batchnorm, bf16' differ "$whole" "$(bhash_of --precision bf16)"
check 'batchnorm, another batch on resume' refused '--batch 3 conflicts with bpart' \
    "$batchnorm" --resume bpart --batch 3

example_images few 32
example_images others 32 7
few=("$batchnorm" --batch 16 --data few --epochs 100000)
fashion=/usr/share/datasets/fashion-mnist
if [ -e $fashion/train-images-idx3-ubyte.gz ]; then
    check 'batchnorm, Fashion-MNIST' says '^hash ' "$batchnorm" --data $fashion --steps 2 --quiet --print-hash
else
    echo "batchnorm was not tested on Fashion-MNIST: no $fashion"
fi

check 'batchnorm, few images' "${few[@]}" --quiet --stop-after 5 --checkpoint few.ckpt
check 'batchnorm, other images on resume' refused '--data others does not hold the images' \
    "$batchnorm" --resume few.ckpt --data others
check 'batchnorm, SIGINT' interrupted INT 130 batchnorm.ckpt "${few[@]}"
check 'batchnorm, SIGTERM' interrupted TERM 143 bterm "${few[@]}" --checkpoint bterm/
check 'batchnorm, a second signal' interrupted_twice twice.ckpt "${few[@]}" --checkpoint twice.ckpt \
    --checkpoint-every 1000000
check 'batchnorm, SIGPIPE' cut_off 45 bpipe.ckpt "${few[@]}"
check 'batchnorm, unknown flag' refused "unrecognized option '--epoch_'" "$batchnorm" --epoch_ 3

# ---- the small ones ----------------------------------------------------------------------------
check 'buffers' says 'all claims hold' "$buffers"
check 'xor' says '1 xor 1 = 0.0' "$xor"
# by hand: n = 0.5, y = tanh n, db = 2 (y - 1) (1 - y^2) = -0.846033, dw1 = 2 db
check 'autograd' says '^w1 +0.500000 +-1.692067 +-1.692067$' "$autograd" --dot neuron.dot
check 'autograd, backward in order' says '^  4  add .* gradients go to 6 5$' "$autograd"
check 'autograd, explained' says '^    w1  leaf  grad = 0 . da .*slope 1.692067, finite difference 1.692067$' "$autograd" --explain
check 'autograd, a drawing' grep -q '^  n1 -> n0;$' neuron.dot
check 'autograd, a net' says '^  3  linear .4,1.  in 2 .Linear.' "$autograd" --net --dot net.dot
check 'autograd, its boxes' grep -q 'label="2 (Linear)";' net.dot
check 'autograd, the same drawing again' "$autograd" --net --dot net2.dot
check 'autograd, byte for byte' cmp net.dot net2.dot

# ---- gpt ---------------------------------------------------------------------------------------
# What is known of the text's next character costs 2.92 nats where nothing is looked at, 1.21 where the last
# character is, 0.46 where the last two are: below 0.9 attention must work.
learns() { # OUTPUT: of gpt; the loss begins near log 31 and ends low
    cat "$1"
    awk '/^step +1 / { first = $4 } /^validation loss/ { last = $3 } END {
        exit !(first > 3 && first < 5 && last > 0.05 && last < 0.9) }' "$1"
}
check 'gpt' says '^validation loss [0-9.]+$' "$gpt" text 60
cp said gpt.out
check 'gpt, it learns' learns gpt.out
check 'gpt, its sample' same "$(sed '1,/^$/d' gpt.out | wc -c)" 501
check 'gpt, words of the text' grep -q 'And the' gpt.out
check 'gpt, again' says 'validation' "$gpt" text 60
check 'gpt, byte for byte' cmp gpt.out said
check 'gpt, no such text' fails 'no-such-file: No such file' "$gpt" no-such-file

# ---- lm -----------------------------------------------------------------------------------------
few=(--text text --steps 30 --context 32 --batch 4)
mkdir small
echo '{"model_type": "llama", "vocab_size": 257, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 64, "dtype": "float32"}' >small/config.json
perplexity() { sed -nE 's/.*perplexity ([0-9.]+),.*/\1/p' said; }
check 'lm train' says '^step 30: loss [0-9.]+, held out' "$lm" train small "${few[@]}"
check 'lm score' says ' tokens, perplexity [0-9.]+, ' "$lm" score small --text text --context 64
known=$(perplexity)
check 'lm, it learned' test "$(cut -d. -f1 <<<"$known")" -lt 200
check 'lm tune' says '^step 30: loss' "$lm" tune small "${few[@]}" --save tuned --lr 0.01
check 'lm score, tuned' says perplexity "$lm" score tuned --text text --context 64
check 'lm, it learned more' test "$(perplexity | cut -d. -f1)" -lt "$(cut -d. -f1 <<<"$known")"
tuned=$(perplexity)
check 'lm score, bf16' says perplexity "$lm" score tuned --text text --context 64 --bf16
check 'lm score, int8' says perplexity "$lm" score tuned --text text --context 64 --int8
check 'lm, int8 to 1 %' awk -v a="$tuned" -v b="$(perplexity)" 'BEGIN { exit !(a != b && a / b < 1.01 && b / a < 1.01) }'
check 'lm tune, int8' says '^step 30: loss' "$lm" tune small "${few[@]}" --save thin --rank 2 --int8
check 'lm write, int8' says '^9 tokens, ' "$lm" write small --adapter thin --int8 --prompt 'And ' --tokens 9
check 'lm tune, int8 alone' refused '--int8: want --rank or --adapter' "$lm" tune small "${few[@]}" --save thin --int8
check 'lm write' says '^9 tokens, ' "$lm" write tuned --prompt 'And ' --tokens 9 --temperature 1
check 'lm chat' says '^> ' "$lm" chat tuned --tokens 3 --format chatml <<<$'Hello\n\n'
check 'lm, no command' refused 'no command fly: want train' "$lm" fly small
check 'lm, no folder' refused 'want a command and a folder' "$lm" train
check 'lm, no model' fails 'nowhere' "$lm" score nowhere --text text
check 'lm, no format' refused 'want chatml or llama3' "$lm" chat tuned --format odd <<<hello
check 'lm, a short text' refused 'more than twice' "$lm" train small --text small/config.json --context 1000

mkdir learnt files
cp "$here"/../golden/lm/tokenizer_gpt2/{vocab.json,merges.txt} files
sed 's/257/600/' small/config.json >files/config.json
sed 's/257/300/' small/config.json >learnt/config.json
check 'lm train, vocab.json and merges.txt' says '^step 30: loss' "$lm" train files "${few[@]}"
check 'lm train, no other tokenizer was written' fails 'No such file' cat files/tokenizer.json
check 'lm write, vocab.json and merges.txt' says '^3 tokens, ' "$lm" write files --prompt 'And ' --tokens 3
check 'lm train --vocab' says '^step 30: loss' "$lm" train learnt "${few[@]}" --vocab 300
check 'lm train --vocab, 300 tokens' grep -q '":299}' learnt/tokenizer.json

# ---- embed --------------------------------------------------------------------------------------
cp -r "$here/../golden/lm/bert" encoder
cp "$here/../golden/lm/tokenizer_piece.json" encoder/tokenizer.json
printf 'A1\tThe world was made of water.\nA2\thello, hello\n\nthere is no name here\n' >lines
check 'embed' says '^  1\.000  A2.hello, hello$' "$embed" encoder lines 'Hello,  HELLO'
check 'embed, kept vectors' says '^  1\.000  there is' "$embed" encoder lines 'there is no name here'
check 'embed, nothing computed' test "$(grep -c ' of 3$' said)" -eq 0
echo 'one more' >>lines
check 'embed, another text' says '^0 of 4$' "$embed" encoder lines 'one more'
check 'embed, no question' refused 'want embed FOLDER FILE QUESTION' "$embed" encoder lines
check 'embed, no text' refused 'nothing: No such file' "$embed" encoder nothing 'hello'
check 'embed, no model' fails 'nowhere: No such file' "$embed" nowhere lines 'hello'
check 'embed, another model' fails 'embeddings.word_embeddings.weight' "$embed" small lines 'hello'

# ---- pages of the first steps ------------------------------------------------------------------
account() { # FILE: the account that a page holds
    python3 - "$1" <<'PYTHON'
import base64, re, sys, zlib
data = re.search(r'>\s*([A-Za-z0-9+/=]{1000,})\s*<', open(sys.argv[1]).read())[1]
print(zlib.decompress(base64.b64decode(data)).decode())
PYTHON
}
page() { # FILE STEPS PATTERN: a whole page of so many steps, in whose account a line matches
    tail -n 1 "$1" | grep -qx '</html>' && same "$(account "$1" | grep -cE '^ *\{"step":[0-9]+,')" "$2" &&
        account "$1" | grep -E -- "$3" >/dev/null
}
check 'transformer, a page' says 'page written: t.html; open it.* xdg-open t.html' \
    t --quiet --steps 4 --html t.html --html-steps 2
check 'transformer, its page' page t.html 2 '"op":"scaled_dot_product_attention".*"line":"model.c:[0-9]+"'
check 'transformer, a page changes no bit' same "$(hash_of)" "$(hash_of --html t3.html)"
check 'transformer, three steps unless told' page t3.html 3 '"name":"position.pe","kind":"buffer"'
check 'transformer, a page of a shorter run' t --quiet --stop-after 1 --checkpoint part --html t1.html
check 'transformer, its one step' page t1.html 1 '"moved":"by the optimizer"'
check 'transformer, a page that cannot be written' refused '--html none/t.html: No such file' t --html none/t.html
check 'transformer, one file for two' refused '--html loss.svg: named twice, or' \
    t --plot loss.svg --html loss.svg
check 'transformer, a page and --capture' refused '--html and --capture' t --capture --html t.html
check 'batchnorm, a page changes no bit' same "$(bhash_of)" "$(bhash_of --html b.html)"
check 'batchnorm, its page' page b.html 3 '"moved":"by forward"'
check 'xor, a page' says '1 xor 1 = 0.0' "$xor" --html xor.html
check 'xor says so' grep -q 'page written: xor.html; open it: xdg-open xor.html' said
check 'xor, its page' page xor.html 3 '"line":"xor.c:[0-9]+"'
check 'xor, no file' refused '--html needs an argument' "$xor" --html
check 'buffers, a page' says 'all claims hold' "$buffers" --html buffers.html
check 'buffers, its page' page buffers.html 1 '"writes":\["t[0-9]+","t[0-9]+","t[0-9]+"\]'
check 'autograd, a page' says '^w1 +0.500000 +-1.692067 +-1.692067$' "$autograd" --html neuron.html
check 'autograd, its page' page neuron.html 1 '"name":"w1","kind":"tensor"'
check 'autograd, no such folder' refused '--html none/net.html: No such file' "$autograd" --net --html none/net.html

verdict
