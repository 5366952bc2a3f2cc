#!/usr/bin/env bash
# The scripts of scripts/ and bench/ from another folder, through a symbolic link, in a folder with a space:
# --help prints to standard output, an error one line to standard error with status 2, and neither
# leaves anything behind. What scripts/demo builds. usage: test_scripts.sh BUILD-FOLDER
#
# Seen to fail: the scripts as they were: scripts/build made a folder named --help, scripts/test --help failed; run.sh
# that keeps one order, goes on after losses that differ, or after a program that failed, with --keep too; summarise.py
# with other bounds, or with the first way in place of the best; a target demo of the program alone; parallel.sh that
# records runs of tenon where torch's side alone was asked for, or wants PyTorch for tenon's; dispatch.sh that goes on
# without counts, or runs on CPU 1; the simulation with cores of its own, without halves of a ring's bytes, or with a
# bucket that leaves early.
set -uo pipefail
build=$(realpath "$1")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/examples/example_data.sh
. "$root/tests/examples/example_data.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/a copy" "$dir/links" "$dir/here"
cp -r "$root/scripts" "$root/bench" "$dir/a copy"
mkdir "$dir/a copy/full" && touch "$dir/a copy/full/file"
cd "$dir/here" || exit 1
export HOME=$dir/here CDPATH=$dir
ls_all() { find "$dir/here" "$dir/a copy" -mindepth 1 | sort; }

helps() { # SCRIPT OPTION
    local before status=0
    before=$(ls_all)
    "$1" "$2" >"$dir/stdout" 2>"$dir/stderr" </dev/null || status=$?
    cat "$dir/stdout" "$dir/stderr"
    [ $status -eq 0 ] && [ ! -s "$dir/stderr" ] && grep -q '^ *usage: ' "$dir/stdout" && [ "$before" = "$(ls_all)" ]
}
refuses() { # MESSAGE SCRIPT ARGUMENT...
    local before status=0
    before=$(ls_all)
    "${@:2}" >"$dir/stdout" 2>"$dir/stderr" </dev/null || status=$?
    cat "$dir/stdout" "$dir/stderr"
    [ $status -eq 2 ] && [ ! -s "$dir/stdout" ] && [ "$(wc -l <"$dir/stderr")" -eq 1 ] &&
        grep -qF -- "$1" "$dir/stderr" && [ "$before" = "$(ls_all)" ]
}

for script in "$dir/a copy"/scripts/* "$dir/a copy"/bench/*.sh; do
    name=${script##*/}
    ln -s "$script" "$dir/links/$name"
    for option in -h --help; do
        check "$name $option" helps "$script" $option
        check "$name $option, through a link" helps "$dir/links/$name" $option
        check "$name $option, a relative path" helps "../a copy/${script#"$dir/a copy/"}" $option
    done
done
s="$dir/a copy/scripts" b="$dir/a copy/bench"
# A program alone would not run under mpirun. Modules of GPUs are for --device, which builds all.
modules=$(cd "$build/src" && find . -name 'libtenon-*.so' -not -path './cuda/*' -not -name libtenon-trace.so -not -name libtenon-lm.so | sort) # which the example links
[ -z "$modules" ] || check 'demo, with all modules' same "$(ninja -C "$build" -t query demo | sed -n 's|^.* src/\(.*/libtenon-.*\)|./\1|p' | sort)" \
    "$modules"
check 'format, unknown option' refuses 'unknown argument --bogus' "$s/format" --bogus
check 'build, an option first' refuses '"-Dcuda=disabled" in place of a folder' "$s/build" -Dcuda=disabled
check 'build, no name' refuses '"" in place of a folder' "$s/build" ''
check 'build, a folder of something else' refuses 'full is a folder of something else' "$s/build" full
check 'setup, unknown option' refuses 'unknown option --bogus' "$s/setup" --bogus
check 'test, -C alone' refuses '-C needs a folder' "$s/test" -C
check 'gpu, no --out' refuses 'want --out FOLDER' "$s/gpu"
check 'gpu, unknown option' refuses 'unknown option --bogus' "$s/gpu" --bogus
check 'gpu, no argument' refuses '--out needs an argument' "$s/gpu" --out
check 'gpu, no such part' refuses 'no part dance' "$s/gpu" --out x dance
check 'gpu, no number' refuses '--seconds needs a number' "$s/gpu" --out x --seconds many
check 'gpu, no such list' refuses 'cannot read ' "$s/gpu" --plan --parts nowhere
check 'soak, no such stage' refuses 'no stage dance' "$s/soak" races dance
check 'install, unknown option' refuses '"--bogus" in place of a prefix' "$s/install" --bogus
check 'install, no name' refuses '"" in place of a prefix' "$s/install" ''
check 'install, two prefixes' refuses 'one prefix, not 2' "$s/install" a b
check 'install, nothing installed' refuses '--uninstall stands alone' "$s/install" --uninstall
check 'reference, an option' refuses '"--bogus" in place of a folder' "$s/reference" --bogus
check 'reference, no name' refuses '"" in place of a folder' "$s/reference" ''
check 'reference, a folder of something else' refuses 'full is a folder of something else' "$s/reference" full
check 'run.sh, nothing' refuses 'want OUT.csv' "$b/run.sh"
check 'run.sh, two files' refuses 'want OUT.csv' "$b/run.sh" x.csv y.csv
check 'run.sh, unknown option' refuses 'unknown option --bogus' "$b/run.sh" --bogus x.csv
check 'run.sh, no number' refuses '--rounds "many": want a whole number' "$b/run.sh" --rounds many x.csv
check 'run.sh, no argument' refuses '--ways needs a list: want some of eager ' "$b/run.sh" --ways
check 'run.sh, unknown workload' refuses 'there is no "dance": want some of gpt_small ' "$b/run.sh" --workloads mlp,dance x.csv
check 'run.sh, no build' refuses 'a copy/build/bench: scripts/build makes it' "$b/run.sh" x.csv
check 'pairs.py, unknown workload' refuses 'there is no "dance": want some of gpt_small ' "$b/pairs.py" --workloads dance x y
check 'pairs.py, no build' refuses 'no bench/bench_ops in x' "$b/pairs.py" x y
check 'parallel.sh, nothing' refuses 'want OUT.csv' "$b/parallel.sh"
check 'parallel.sh, unknown option' refuses 'unknown option --bogus' "$b/parallel.sh" --bogus x.csv
check 'parallel.sh, too many' refuses 'want some of 2 4 8' "$b/parallel.sh" --processes 3 x.csv
check 'parallel.sh, no build' refuses 'a copy/build/bench: scripts/build makes it' "$b/parallel.sh" x.csv
check 'scale.sh, no such name' refuses 'want a name that ends in .csv' "$b/scale.sh" x
check 'scale.sh, unknown sweep' refuses 'want some of width depth' "$b/scale.sh" --sweeps time x.csv
check 'scale.sh, no build' refuses 'no bench_gpt in ' "$b/scale.sh" x.csv
check 'scale.sh, no matplotlib' refuses 'no picture without matplotlib' env PYTHON=/bin/false "$b/scale.sh" --plot x.csv

# run.sh with programs that only print lines, and a Python that does so for the twins. calls: who ran, in order.
mkdir -p "$dir/a copy/build/bench" "$dir/images"
touch "$dir/images/train-images-idx3-ubyte.gz"
cat >"$dir/a copy/build/bench/bench_images" <<'END'
#!/bin/sh
way=tenon ms=2 rounds='' before=''
for word; do
    [ "$word" != eager ] || ms=5 way=eager
    [ "$word" != compiled ] || ms=4 way=compiled
    [ "$before" != --rounds ] || rounds=$word
    before=$word
done
[ "$way" != "$OFF" ] || loss=1.01
echo "# ${way}_mlp_f32: torch or tenon" >&2
for round in $(seq "${rounds:-1}"); do
    [ -z "$rounds" ] || { echo '# ready' && read -r _ || exit 9; }
    echo "$way$round" >>"$CALLS"
    [ "$way$round" != "$FAIL" ] || { echo "no luck" >&2; exit 3; }
    printf "${way}_mlp_f32,%s,1,1\n" "ms/step,$ms" "loss_1,${loss:-1}" "loss_last,1" "peak_MiB,7"
done
END
for name in gpt ops loader; do
    printf '#!/bin/sh\n' >"$dir/a copy/build/bench/bench_$name"
done
chmod +x "$dir/a copy/build/bench"/*
cat >"$dir/python" <<END
#!/bin/sh
case \$1 in
-c) exit 0 ;;
*/torch_images.py) exec "$dir/a copy/build/bench/bench_images" "\$@" ;;
*) exec python3 "\$@" ;;
esac
END
chmod +x "$dir/python"
runs() { # STATUS PATTERN ARGUMENT...: of run.sh on the MLP; a line of what it says matches
    local status=0
    : >"$dir/calls"
    env PYTHON="$dir/python" CALLS="$dir/calls" "$b/run.sh" --workloads mlp --dtypes f32 "${@:3}" "$dir/x.csv" \
        >"$dir/said" 2>&1 || status=$?
    cat "$dir/said"
    [ $status -eq "$1" ] && grep -qE -- "$2" "$dir/said"
}
check 'run.sh, no PyTorch' refuses 'false cannot import numpy and torch' env PYTHON=/bin/false "$b/run.sh" x.csv
check 'run.sh, no Python' refuses 'no nowhere: ' env PYTHON=nowhere "$b/run.sh" x.csv
check 'run.sh, no images' refuses 'no Fashion-MNIST in nowhere' env DATA=nowhere PYTHON="$dir/python" "$b/run.sh" x.csv
if command -v python3 >/dev/null; then
    check 'run.sh, the best way' runs 0 '^\| mlp \| f32 \| ms/step \| 2 \| 4 \| torch.compile \| 0.50 \| 0.50 to 0.50 \| 0.0e\+00 \| 7 \| 7 \| 100 % \|' --rounds 2
    check 'run.sh, turn about' same "$(tr '\n' ' ' <"$dir/calls")" 'tenon1 eager1 compiled1 compiled1 eager1 tenon1 '
    check 'run.sh, the processor' grep -q '^# .*of avx2 avx512f avx512_bf16 amx it has: ' "$dir/x.csv"
    check 'run.sh, no compiler' env CXX=nowhere bash -c "$(declare -f runs); $(declare -p dir b); runs 0 \
        'torch.compile left out: it needs a C\+\+ compiler'"
    check 'run.sh, a way' runs 0 '^\| mlp .* 5 \| eager \|' --rounds 1 --ways eager
    check 'run.sh, losses that differ' env OFF=eager bash -c "$(declare -f runs); $(declare -p dir b); runs 1 \
        '^summarise.py: the losses differ: mlp_f32, loss_1: tenon 1, eager 1.01, compiled 1: want 1e-05'"
    check 'run.sh, and then no further round' same "$(grep -c tenon "$dir/calls")" 1
    check 'run.sh, a program that fails' env FAIL=compiled1 bash -c "$(declare -f runs); $(declare -p dir b); runs 1 \
        '^run.sh: failed with 3: .*--way compiled' && grep -q 'no luck' '$dir/said'"
    check 'run.sh, kept' runs 0 '^\| mlp \| f32 \| ms/step \| 2 \| 4 \| torch.compile \| 0.50 \| 0.50 to 0.50 \|' --rounds 2 --keep
    check 'run.sh, kept, turn about' same "$(tr '\n' ' ' <"$dir/calls")" 'tenon1 eager1 compiled1 compiled2 eager2 tenon2 '
    check 'run.sh, kept, losses that differ' env OFF=eager bash -c "$(declare -f runs); $(declare -p dir b); runs 1 \
        '^summarise.py: the losses differ: mlp_f32, loss_1: tenon 1, eager 1.01' --keep && ! grep 2 '$dir/calls'"
    check 'run.sh, kept, a program that fails' env FAIL=eager2 bash -c "$(declare -f runs); $(declare -p dir b); runs 1 \
        '^run.sh: failed with 3: .*--way eager .*--rounds 5' --keep && grep -q 'no luck' '$dir/said'"

    # The table of known results.
    cat >"$dir/known.csv" <<'END'
# a machine
tenon_gpt_small_bf16,ms/step,100,90,110
eager_gpt_small_bf16,ms/step,120,1,1
eager-written_gpt_small_bf16,ms/step,80,1,1
tenon_gpt_small_bf16,ms/step,104,90,110
eager_gpt_small_bf16,ms/step,120,1,1
eager-written_gpt_small_bf16,ms/step,100,1,1
tenon_gpt_small_bf16,ms/step,108,90,110
eager_gpt_small_bf16,ms/step,120,1,1
eager-written_gpt_small_bf16,ms/step,90,1,1
tenon_gpt_small_bf16,loss_1,4,4,4
eager_gpt_small_bf16,loss_1,4.004,4,4
tenon_gpt_small_bf16,peak_MiB,50,50,50
eager-written_gpt_small_bf16,peak_MiB,200,200,200
tenon_gpt_small_bf16,start_MiB,10,10,10
eager-written_gpt_small_bf16,start_MiB,300,300,300
tenon_loader,batches/s,300,1,1
each-2_loader,batches/s,100,1,1
batch-0_loader,batches/s,200,1,1
tenon_loader,checksum,10,10,10
batch-0_loader,checksum,10,10,10
tenon_tiny_add_f32,ns,100,1,1
eager_tiny_add_f32,ns,1000,1,1
tenon_relu_f32,us_forward,10,1,1
eager_relu_f32,us_forward,9,1,1
compiled_relu_f32,us_forward,12,1,1
tenon_relu_f32,us_forward_backward,20,1,1
eager_relu_f32,us_forward_backward,40,1,1
compiled_relu_f32,us_forward_backward,25,1,1
tenon_exp_bf16,us_forward,10.4,1,1
eager_exp_bf16,us_forward,10,1,1
eager_softmax_bf16,us_forward,9,1,1
END
    python3 "$b/summarise.py" "$dir/known.csv" >"$dir/table"
    known() { # LINE: stands in the table
        cat "$dir/table"
        grep -qxF -- "$1" "$dir/table"
    }
    check 'table, steps' known '| gpt_small | bf16 | ms/step | 104 | 90 | eager, attention written out | 1.16 | 1.04 to 1.25 | 1.0e-03 | 50 | 200 | 25 % | 60 | 500 | 12 % |'
    check 'table, rates' known '| loader | f32 | batches/s | 300 | 200 | whole batches, 0 workers | 0.67 | 0.67 to 0.67 | 0.0e+00 |  |  |  |  |  |  |'
    check 'table, every way' known '| gpt_small | bf16 | ms/step | eager, attention written out | 90 | 80 to 100 |  |  |  | 200 |'
    check 'table, ops' known '| relu | f32 | 10 | 9 | eager | 1.11 | 20 | 25 | torch.compile | 0.80 |'
    check 'table, tiny ops' known '| tiny_add | f32 | 0.1 | 1 | eager | 0.10 |  |  |  |  |'
    check 'table, one side' known 'Only one side has 1 ops: softmax_bf16.'
    check 'table, closing line' known '1 of 3 ops slower than 1.05x of PyTorch: forward alone or with backward, an op in two dtypes counted twice.'
    differs() { # SED: exits with 1
        sed "$1" "$dir/known.csv" >"$dir/other.csv"
        ! python3 "$b/summarise.py" "$dir/other.csv"
    }
    check 'table, a loss too far in bf16' differs 's/loss_1,4.004/loss_1,4.05/'
    # parallel.sh's lines: two rounds; programs that send nothing are added up.
    while read -r side n round rate loss; do
        for metric in "tokens/s,$rate" ms/step,9 ms_forward,3 ms_backward,5 ms_optimizer,1 loss_1,4 "loss_10,$loss"; do
            echo "gpt_medium,8,$side,$n,$round,$metric,0,0"
        done
    done >"$dir/parallel.csv" <<'END'
tenon 1 1 100 3
tenon 2 1 190 3
tenon-apart 2 1 110 5
tenon-apart 2 1 90 5
torch 2 1 150 3.00001
tenon 1 2 120 3
tenon 2 2 216 3
END
    python3 "$b/parallel.py" "$dir/parallel.csv" >"$dir/table2"
    ratio() { # LINE: stands in the table of several processes
        cat "$dir/table2"
        grep -qxF -- "$1" "$dir/table2"
    }
    check 'parallel.py, a ratio' ratio '| gpt_medium | 8 | strong | tenon | 2 | 9 | 3 | 5 | 1 | 203 tokens/s | 1.85 | 1.80 to 1.90 |'
    check 'parallel.py, apart' ratio '| gpt_medium | 8 | strong | tenon, apart | 2 | 9 | 3 | 5 | 1 | 200 tokens/s | 2.00 | 2.00 to 2.00 |'
    check 'parallel.py, losses' ratio 'Losses of the first and the tenth step: 3.3e-06 apart at most, relatively.'
    sed 's/3\.00001/3.0001/' "$dir/parallel.csv" >"$dir/parallel2.csv"
    apart() { # exits with 1, and says what
        ! python3 "$b/parallel.py" "$dir/parallel2.csv" >"$dir/said" 2>&1 && grep -q '^parallel.py: the losses differ: gpt_medium 8 loss_10' "$dir/said"
    }
    check 'parallel.py, losses that differ' apart

    # The simulation of a model of two layers of 5 MB, the second complete half-way through backward. With 8 processes, 10
    # Gbit/s and a ring, one bucket: forward 100 ms + backward 200 + copying 10 + 14 messages of 30 us + 14 ms of bytes +
    # reports 0.09 + optimizer 10 = 334.5, where one process takes 310. Two buckets, the first sent while backward goes on:
    # 100 + 210 + 0.42 + 7 + 0.09 + 10 = 327.5. Processes beyond the cores share them.
    printf 'tenon_gpt_medium,%s,0,0\n' ms_forward,100 ms_backward,200 ms_optimizer,10 'bytes of a,5000000' \
        'ms_complete of a,200' 'bytes of b,5000000' 'ms_complete of b,100' >"$dir/timeline"
    printf 'tenon_average_10000000,%s,0,0\n' ms,20 ms_local,10 >"$dir/average"
    sed 's/ms,20/ms,40/' "$dir/average" >"$dir/average8"
    simulates() { # CPUS LINE: stands in the simulation's tables
        {
            echo "# a processor (x86_64), $1 CPUs, 1 threads, load 0.1 at the start"
            echo 'gpt_medium,8,tenon-apart,2,1,ms/step,300,0,0'
            echo 'gpt_medium,8,tenon,2,1,ms/step,320,0,0'
            echo 'gpt_medium,32,tenon,8,1,ms/step,800,0,0'
        } >"$dir/measured.csv"
        python3 "$b/parallel_simulate.py" "$dir/timeline" "$dir/average" - "$dir/average8:8" "$dir/measured.csv" >"$dir/said"
        cat "$dir/said"
        grep -qxF -- "$2" "$dir/said"
    }
    check 'simulation, one bucket' simulates 2 '| x 1 | 10 Gbit/s Ethernet | ring | 25 MiB | 93 % | 91 % | 78 % |'
    check 'simulation, two buckets' simulates 2 '| x 1 | 10 Gbit/s Ethernet | ring | 1 MiB | 95 % | 93 % | 80 % |'
    check 'simulation, measured' simulates 2 '| 2 | 4 | 300 | 20.0 | 320 | 320 | 1.00 |'
    check 'simulation, two cores' simulates 2 '| 8 | 4 | 1200 | 40.0 | 1240 | 800 | 1.55 |'
    check 'simulation, four cores' simulates 4 '| 8 | 4 | 600 | 40.0 | 640 | 800 | 0.80 |'
    check 'table, a sum too far' differs 's/batch-0_loader,checksum,10/batch-0_loader,checksum,10.001/'
    check 'table, a loss that is no number' differs 's/loss_1,4.004/loss_1,nan/'
else
    echo 'no python3: run.sh and its table were not tested'
fi

# dispatch.sh with a valgrind that counts nothing, and a report of the given lines; times are the program's, on the last
# of the CPUs that may be used.
mkdir -p "$dir/tools" "$dir/old/bench" "$dir/new/bench"
printf '#!/bin/sh\nexit 0\n' >"$dir/tools/valgrind"
cat >"$dir/tools/callgrind_annotate" <<'END'
#!/bin/sh
for file; do :; done
cat "$REPORTS/${file##*/}"
END
printf '#!/bin/sh\necho tenon_tiny_add_f32,ns,100,80,120\n' >"$dir/old/bench/bench_ops"
printf '#!/bin/sh\necho tenon_tiny_add_f32,ns,110,100,120\n' >"$dir/new/bench/bench_ops"
cat >"$dir/tools/taskset" <<'END'
#!/bin/sh
[ "$1" != -cp ] || { echo "pid $2's current affinity list: 0,3-5"; exit; }
[ "$1 $2" = '-c 5' ] && shift 2 && exec "$@"
END
chmod +x "$dir/tools"/* "$dir/old/bench/bench_ops" "$dir/new/bench/bench_ops"
dispatches() { # STATUS LINE BEFORE AFTER: with reports of these lines; - : none, and a failure
    local status=0
    rm -rf "$dir/reports" && mkdir "$dir/reports"
    [ "$3" = - ] || echo "$3" >"$dir/reports/a"
    [ "$4" = - ] || echo "$4" >"$dir/reports/b"
    env PATH="$dir/tools:$PATH" REPORTS="$dir/reports" "$b/dispatch.sh" "$dir/old" "$dir/new" 2 >"$dir/said" 2>&1 || status=$?
    cat "$dir/said"
    [ $status -eq "$1" ] && grep -qF -- "$2" "$dir/said"
}
if command -v python3 >/dev/null; then
    one=' 2,000 (50%)  ops.c:tn_add [bench_ops]' more=' 2,100 (50%)  ops.c:tn_add [bench_ops]'
    check 'dispatch.sh, instructions' dispatches 0 '| tn_add | 2000 | 2100 | 1.0500 |' "$one" "$more"
    check 'dispatch.sh, times' dispatches 0 '| add_f32 | 80.0 / 100.0 | 100.0 / 110.0 | 1.250 / 1.100 | 1.000 / 1.000 |' "$one" "$more"
    for wrong in before after; do
        reports=("$one" "$more")
        [ $wrong = before ] && reports[0]=- || reports[1]=-
        check "dispatch.sh, no report $wrong" dispatches 1 'No such file' "${reports[@]}"
        [ $wrong = before ] && reports[0]='nothing' || reports[1]='nothing'
        check "dispatch.sh, no function $wrong" dispatches 2 'names no function' "${reports[@]}"
    done
fi

# parallel.sh with an mpirun that starts one program, and a GPT of which only lines are printed.
cat >"$dir/tools/mpirun" <<'END'
#!/bin/sh
[ "$1" != --version ] || { echo 'mpirun of this test'; exit; }
while :; do
    case $1 in
    -n | --bind-to) shift 2 ;;
    --oversubscribe) shift ;;
    *) exec "$@" ;;
    esac
done
END
cat >"$dir/a copy/build/bench/bench_gpt" <<'END'
#!/bin/sh
side=${SIDE:-tenon} weights='' steps=''
while [ $# -gt 0 ]; do
    case $1 in
    --weights) weights=$2 ;;
    --steps) steps=$2 ;;
    esac
    shift
done
[ $side = tenon ] && [ -n "$weights" ] && : >"$weights"
[ $side = tenon ] || [ -e "$weights" ] || exit 4
echo "$side $steps" >>"$CALLS"
printf "${side}_gpt,%s,1,1\n" tokens/s,100 ms/step,9 ms_forward,3 ms_backward,5 ms_optimizer,1 loss_1,4 loss_10,3
END
cat >"$dir/python" <<END
#!/bin/sh
case \$1 in
-c) exit \${NO_TORCH:-0} ;;
*/torch_gpt.py) shift && SIDE=torch exec "$dir/a copy/build/bench/bench_gpt" "\$@" ;;
*) exec python3 "\$@" ;;
esac
END
chmod +x "$dir/tools/mpirun"
parallel() { # SIDE CALLS [VARIABLE=VALUE]: two processes of a side alone; what ran, in order, and what stands in the file
    : >"$dir/calls"
    env PATH="$dir/tools:$PATH" PYTHON="$dir/python" CALLS="$dir/calls" "${@:3}" "$b/parallel.sh" --workloads gpt_small \
        --sides "$1" --scaling strong --quick "$dir/p.csv" >"$dir/said" 2>&1 || { cat "$dir/said" && return 1; }
    cat "$dir/said" "$dir/p.csv" "$dir/calls"
    [ "$(tr '\n' ' ' <"$dir/calls")" = "$2" ] && [ "$(grep -v '^#' "$dir/p.csv" | cut -d, -f3 | sort -u)" = "$1" ]
}
if command -v python3 >/dev/null; then
    check 'parallel.sh, torch alone' parallel torch 'tenon 1 torch 2 torch 2 '
    check 'parallel.sh, tenon without PyTorch' parallel tenon 'tenon 2 tenon 2 ' NO_TORCH=1
fi
check 'gpu.sh, nothing' refuses 'want OUT.md' "$b/gpu.sh"
check 'gpu.sh, no number' refuses '--minutes needs a number' "$b/gpu.sh" --minutes x
check 'gpu.sh, no build' refuses 'no programs in ' env BUILD="$dir" "$b/gpu.sh" x.md
check 'turns.py, nothing' refuses 'want ROUNDS and programs' "$b/turns.py"
check 'curves.py, nothing' refuses 'want two logs' "$b/curves.py"

# scripts/gpu with parts that only wait, fail or print: what it notes, where it goes on. What a killed run began comes
# after what never ran, as does what failed; what passed with another commit comes last.
plans() { # NAMES [ARGUMENT...]: the plan's parts, in order
    local names
    names=$("$s/gpu" --plan --parts "$dir/parts" --state "$dir/state" "${@:2}" | sed -n 's/ .* s, at most .*//p' | tr '\n' ' ')
    echo "$names"
    [ "$names" = "$1" ]
}
noted() { # PART=RESULT...
    cat "$dir/state"
    [ "$(tail -n +2 "$dir/state" | awk -F'\t' '{ printf "%s=%s ", $1, $5 }')" = "$*" ]
}
parts() { # PATTERN ARGUMENT...: a run; its last line matches
    "$s/gpu" --out "$dir/gpu" --parts "$dir/parts" --state "$dir/state" "${@:2}" >"$dir/said" 2>&1 || :
    cat "$dir/said"
    [[ $(tail -n 1 "$dir/said") =~ $1 ]]
}
printf '%s\n' 'a.one 1 9 echo one' 'b.two 1 9 exit 3' 'c.slow 1 1 sleep 30' 'd.none 1 9 skip "not here"' \
    'e.long 900 901 true' >"$dir/parts"
check 'gpu, a plan' plans 'a.one b.two c.slow d.none e.long '
check 'gpu, a part of it' plans 'b.two ' b
check 'gpu, expected seconds' grep -q '^904 s in all' <("$s/gpu" --plan --parts "$dir/parts" --state "$dir/state")
check 'gpu, a run' parts '^1 passed, 1 failed, 1 skipped, 1 cut off, 1 left for the next run$' --commit now
check 'gpu, its notes' noted a.one=passed b.two=FAILED c.slow=cut d.none=skipped ''
check 'gpu, what never ran is first' plans 'e.long b.two c.slow d.none ' --commit now
check 'gpu, what passed is last' plans 'e.long b.two c.slow d.none a.one ' --commit later
check 'gpu, what never ran' same "$("$s/gpu" --never --parts "$dir/parts" --state "$dir/state" | tr '\n' ' ')" '- e: long - b: two - c: slow - d: none '
printf '%s\n' 'f.new 1 9 true' 'g.hangs 1 9 touch "$GPU_OUT/began"; sleep 4' 'h.after 1 9 true' >>"$dir/parts"
bash -c "exec '$s/gpu' --out '$dir/gpu' --parts '$dir/parts' --state '$dir/state' --commit now f g h" >"$dir/said" 2>&1 &
for _ in $(seq 200); do [ -e "$dir/gpu/began" ] || sleep 0.1; done
kill -9 $! && wait $! 2>/dev/null
check 'gpu, killed' noted a.one=passed b.two=FAILED c.slow=cut d.none=skipped f.new=passed g.hangs=begun ''
check 'gpu, and goes on' plans 'e.long h.after b.two c.slow d.none g.hangs ' --commit now
echo 'i.forever 1 99 sleep 60' >>"$dir/parts"
check 'gpu, at most so many seconds' parts '^1 passed, 0 failed, 0 skipped, 1 cut off, 0 left' --commit now --seconds 8 h i
check 'gpu, the list of docs/gpu.md' same "$("$s/gpu" --never)" "$(sed -n '/^- test: /,/^$/{/^$/d;p}' "$root/docs/gpu.md")"
own() { # every program that the list names is built, every suite of GPUs is in it
    local name plan
    plan=$("$s/gpu" --plan)
    for name in $(sed -n 's/.*: \(native\|sanitize\) \([a-z_]*\).*/\2/p' <<<"$plan" | sort -u); do
        grep -q "'$name':" "$root/tests/cuda/meson.build" || { echo "no suite $name" && return 1; }
    done
    for name in $(sed -nE "s/^  '(cuda[a-z_]*)': .*/\1/p" "$root/tests/cuda/meson.build"); do
        [[ $name == cuda_faults* || $name == cuda_cudnn ]] || [[ $plan == *": native $name ("* ]] || { echo "$name is in no part" && return 1; }
    done
}
check 'gpu, its suites' own

verdict
