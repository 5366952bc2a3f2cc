#!/usr/bin/env bash
# Interrupts saves and loads at every point: killed at each system call, each call failing with each
# error, disks full, limits reached, names that lead elsewhere. Afterwards the file is the old or the new
# one, bit for bit; a refusal says so and leaves no temporary; a success was synced before and after
# the rename. The last line is "N passed, N failed".
# usage: tests/io/crash_sweep.sh SAVE-DRIVER [KIND]   (tests/io/save_driver.c; needs strace, else status 77)
#
# Seen to fail, in src/io/atomic_file.c: without fsync(file->fd) 387 points; with rename's result
# ignored 24, write's 365, that of opening the folder 16; without the sweep of old temporaries 75.
set -u
shopt -s nullglob
export LC_ALL=C OMP_NUM_THREADS=1

driver=$1
kinds=(safetensors pt checkpoint numbered)
if ! command -v strace >/dev/null; then
    echo "crash_sweep: skipped: strace is not installed"
    exit 77
fi
if ! strace -qq -o /dev/null -e inject=getpid:error=EIO true 2>/dev/null; then
    echo "crash_sweep: skipped: strace may not trace processes here"
    exit 77
fi

work=$(mktemp -d)
if [ $# -eq 1 ]; then
    trap 'rm -rf "$work"' EXIT
    for kind in "${kinds[@]}"; do
        "$0" "$driver" "$kind" >"$work/$kind" 2>&1 &
    done
    wait
    cat "$work"/*
    awk '/^[0-9]+ passed, [0-9]+ failed$/ { ends++; passed += $1; failed += $3 }
        END { print passed + 0 " passed, " failed + 4 - ends " failed"; exit failed > 0 || ends != 4 }' \
        "$work"/*
    exit
fi
good=$work/good dir=$work/dir log=$work/log err=$work/err
mkdir "$good" "$dir"
mounted=
trap '[ -z "$mounted" ] || umount "$mounted"; rm -rf "$work"' EXIT
passed=0 failed=0

check() { # CONDITION-STATUS WHAT
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $2"
        [ ! -s "$err" ] || cut -c 1-300 "$err" | sed 's/^/    /' | head -n 3
    fi
}

same() { cmp -s "$1" "$2"; }

# ---- what is interrupted, and what may be left behind ---------------------------------------------------

kind=$2 how=weights
case $kind in
safetensors | pt) name=f.$kind ;;
checkpoint) name=f.safetensors how=checkpoint ;;
numbered) name=run-00000002.safetensors how=numbered ;;
esac

in_folder() { # FOLDER: what is saved to
    dir=$1
    target=$dir/$name
    [ $kind != numbered ] || target=$dir
}
in_folder "$dir"

# The state before every point: version 1 of the file; of the folder, checkpoints 0 and 1.
reset() {
    rm -rf "${dir:?}"/*
    if [ $kind = numbered ]; then
        cp "$good/numbered.0" "$dir/run-00000000.safetensors"
        cp "$good/numbered.1" "$dir/run-00000001.safetensors"
    else
        cp "$good/$kind.1" "$target"
    fi
    untouched=1
}

make_good() {
    local seed
    for seed in 0 1 2; do
        rm -rf "${dir:?}"/*
        "$driver" save $how "$target" $seed || check 1 "$kind: a plain save of $seed"
        if [ $kind = numbered ]; then
            mv "$dir"/run-*.safetensors "$good/numbered.$seed"
        else
            mv "$target" "$good/$kind.$seed"
        fi
    done
}

# old, new, or wrong; with "-littered" when a temporary is left.
verdict() {
    local file litter=
    for file in "$dir"/*.tmp-*; do litter=-littered; done
    if [ $kind = numbered ]; then
        # each file is whole; 1 is never missing, since two are kept
        for file in "$dir"/run-*.safetensors; do
            case $file in
            */run-00000000.*) same "$file" "$good/numbered.0" || { state=wrong; return; } ;;
            */run-00000001.*) same "$file" "$good/numbered.1" || { state=wrong; return; } ;;
            */run-00000002.*) same "$file" "$good/numbered.2" || { state=wrong; return; } ;;
            *) state=wrong; return ;;
            esac
        done
        if [ ! -e "$dir/run-00000001.safetensors" ]; then
            state=wrong
        elif [ -e "$dir/run-00000002.safetensors" ]; then
            state=new$litter
        elif [ -e "$dir/run-00000000.safetensors" ]; then
            state=old$litter
        else
            state=wrong
        fi
    elif same "$target" "$good/$kind.1"; then
        state=old$litter
    elif same "$target" "$good/$kind.2"; then
        state=new$litter
    else
        state=wrong
    fi
}

# ---- the calls of one save or load ----------------------------------------------------------------

marks=?access,?faccessat,?faccessat2

# Lines "SYSCALL BEFORE WITHIN": how often a trace has it before the call begins, and within.
census() {
    awk -F '(' '
        /the-call-begins/ { within = 1; next }
        /the-call-has-ended/ { exit }
        /^[a-z0-9_]+\(/ { if (within) n[$1]++; else before[$1]++ }
        END { for (name in n) print name, before[name] + 0, n[name] }' "$1" | sort
}

within() {
    text=$(<"$log")
    text=${text#*the-call-begins}
    text=${text%%the-call-has-ended*}
}

# SYSCALL FAULT K ARGUMENT...: runs the driver with a fault at the K-th such call; sets rc, and text,
# its trace within the call.
broken() {
    local call=$1 fault=$2 k=$3
    shift 3
    strace -qq -o "$log" -e "trace=$call,fsync,?rename,?renameat,?renameat2,$marks" \
        -e "inject=$call:$fault:when=$k" "$driver" "$@" >/dev/null 2>"$err"
    rc=$?
    within
} 2>/dev/null # the shell's own message about the killed process

order() { # of one trace without faults, its file descriptors by name
    strace -qq -y -o "$log" "$driver" save $how "$target" 2 2>"$err"
    check $? "$kind: a save that is traced"
    within
    awk -v name="/$name.tmp-" '
        /^(write|pwrite64)\(/ && index($0, name) { if (synced) bad = "write after fsync"; written = 1 }
        /^fsync\(/ && index($0, name) { if (!written) bad = "fsync before write"; synced = 1 }
        /^rename/ { if (!synced) bad = "not synced before the rename"; renamed = 1 }
        /^fsync\(/ && !index($0, name) && renamed { folder = 1 }
        /^unlink/ { if (!folder) bad = "something is removed before the new name is on the disk" }
        END {
            if (!bad && !folder) bad = "folder not synced after the rename"
            if (bad) print bad
            exit bad != ""
        }' <<<"$text" >"$err"
    check $? "$kind: write, fsync, rename, fsync of the folder"
}

killed_everywhere() {
    local call before n k left=0
    while read -r call before n; do
        for ((k = 1; k <= n; k++)); do
            [ -n "$untouched" ] || reset
            broken "$call" signal=KILL $((before + k)) save $how "$target" 2
            verdict
            [ $rc -eq 137 ] && [ ${state%-*} != wrong ]
            check $? "$kind: killed at $call $k of $n: status $rc, $state"
            [ "$state" = old ] || untouched=
            case $state in *-littered)
                # the next save removes what the killed one left behind
                left=$((left + 1))
                "$driver" save $how "$target" 2 2>"$err"
                verdict
                [ "$state" = new ]
                check $? "$kind: after the kill at $call $k of $n: $state"
                ;;
            esac
        done
    done <"$work/calls"
    [ $left -gt 0 ]
    check $? "$kind: no kill left a temporary: were there any?"
}

# The calls that the kernel may fail. (Not brk: it answers with the old address, and an error as its
# answer, which strace would make of it, reads as an address.)
may_fail() {
    case $1 in
    brk | munmap | madvise | mprotect | getpid | gettid | getuid | futex | exit* | rt_sig* | sched_*) false ;;
    esac
}

says_where() { [[ $(<"$err") == *"$dir"* ]]; }

failed_everywhere() {
    local call before n k error ok
    while read -r call before n; do
        may_fail "$call" || continue
        for ((k = 1; k <= n; k++)); do
            for error in ENOSPC EIO EDQUOT EINTR EACCES EMFILE; do
                [ -n "$untouched" ] || reset
                broken "$call" "error=$error" $((before + k)) save $how "$target" 2
                verdict
                ok=1
                case $rc-$state in
                0-new | 0-new-littered)
                    # a success is one: synced, renamed, and synced again unless the folder is unreadable
                    case $text in
                    *fsync*' = 0'*rename*' = 0'*fsync*' = 0'*) ok=0 ;;
                    *openat*O_DIRECTORY*EACCES*fsync*' = 0'*rename*' = 0'*) ok=0 ;;
                    esac
                    [ $error != EINTR ] && case $call in write | fsync | rename*) ok=1 ;; esac
                    [ $state = new ] || [ $call = unlink ] || [ $call = unlinkat ] || ok=1
                    ;;
                1-old) says_where && ok=0 ;;
                1-old-littered) case $call in unlink*) says_where && ok=0 ;; esac ;;
                1-new) # only once the new name exists
                    case $text in *rename*' = 0'*) says_where && ok=0 ;; esac
                    ;;
                esac
                [[ $text == *INJECTED* ]] || ok=1
                check $ok "$kind: $call $k of $n fails with $error: status $rc, $state"
                [ "$state" = old ] || untouched=
            done
        done
    done <"$work/calls"
}

loads_failed_everywhere() {
    local call before n k error
    reset
    strace -qq -o "$log" "$driver" load $how "$target" 1 2>"$err"
    check $? "$kind: a load that is traced"
    census "$log" >"$work/load-calls"
    while read -r call before n; do
        may_fail "$call" || continue
        for ((k = 1; k <= n; k++)); do
            for error in EIO EINTR EACCES EMFILE; do
                broken "$call" "error=$error" $((before + k)) load $how "$target" 1
                { [ $rc -eq 0 ] || { [ $rc -eq 1 ] && [ -s "$err" ]; }; } && [[ $text == *INJECTED* ]]
                check $? "$kind: load: $call $k of $n fails with $error: status $rc"
            done
        done
    done <"$work/load-calls"
    verdict
    [ "$state" = old ]
    check $? "$kind: loads changed the file: $state"
}

make_good
reset
order
reset
strace -qq -o "$log" "$driver" save $how "$target" 2 2>"$err"
census "$log" >"$work/calls"
calls=$(awk '{ n += $3 } END { print n }' "$work/calls")
[ "$calls" -ge 15 ]
check $? "$kind: a save makes only $calls calls?"
untouched=
killed_everywhere
failed_everywhere
loads_failed_everywhere
echo "$kind: $calls system calls; $passed points, $failed failed, $SECONDS s"

# ---- the machine's own limits ----------------------------------------------------------------------

# WHAT COMMAND...: a save that must be refused: message with the path, old file, no temporary.
refused() {
    local what=$1
    shift
    [ -n "$untouched" ] || reset
    "$@" >/dev/null 2>"$err"
    rc=$?
    verdict
    [ $rc -eq 1 ] && [ "$state" = old ] && grep -qF "${shown:0:300}" "$err"
    check $? "$kind: $what: status $rc, $state"
    [ "$state" = old ] || untouched=
}

limited() { (trap '' XFSZ && ulimit -f 8 && exec "$@"); }
few_files() { local n=$1; shift; (ulimit -n "$n" && exec "$@"); }

finish() {
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
    exit
}
[ $kind != numbered ] || finish # the rest concerns one file

reset
shown=$target
refused 'file sizes limited' limited "$driver" save $how "$target" 2
killed_by_limit() { (ulimit -f 8 && exec "$driver" save $how "$target" 2) >/dev/null 2>"$err"; } 2>/dev/null
killed_by_limit
rc=$?
verdict
[ $rc -eq 153 ] && [ "${state%-*}" = old ]
check $? "$kind: file sizes limited, SIGXFSZ not ignored: status $rc, $state"
"$driver" save $how "$target" 1 2>"$err"
verdict
[ "$state" = old ]
check $? "$kind: the save after it: $state"
for n in 4 5 6 7 8; do
    few_files $n "$driver" save $how "$target" 2 >/dev/null 2>"$err"
    rc=$?
    verdict
    case $rc-$state in 0-new | 1-old | 127-old) true ;; *) false ;; esac
    check $? "$kind: $n files may be open: status $rc, $state"
    [ "$state" = old ] || reset
done

# names
suffix=.${target##*.}
long=$(printf '%0*d' $((255 - ${#suffix})) 0)$suffix # the file's name fits, its temporary's does not
for shown in "$dir/$long" "$dir/0$long" "$dir/$(printf '%04096d' 0)$suffix" "$dir/none/f$suffix" \
    "$target/f$suffix" "$dir/folder$suffix" "$dir/loop$suffix" "$dir/lost$suffix"; do
    mkdir -p "$dir/folder$suffix"
    ln -sfn "loop$suffix" "$dir/loop$suffix"
    ln -sfn "nowhere$suffix" "$dir/lost$suffix"
    refused "name ${shown:0:120}" "$driver" save $how "$shown" 2
    [ ! -e "$dir/nowhere$suffix" ] && [ -L "$dir/lost$suffix" ] && [ -d "$dir/folder$suffix" ]
    check $? "$kind: name ${shown:0:120}: its neighbours"
done
shown=$target

# a link is followed, and stays one
mkdir -p "$work/elsewhere"
cp "$good/$kind.1" "$work/elsewhere/real"
chmod 640 "$work/elsewhere/real"
ln -sfn ../elsewhere/real "$dir/link$suffix"
"$driver" save $how "$dir/link$suffix" 2 2>"$err"
check $? "$kind: through a link"
same "$work/elsewhere/real" "$good/$kind.2" && [ -L "$dir/link$suffix" ] &&
    [ "$(stat -c %a "$work/elsewhere/real")" = 640 ] && [ "$(ls -A "$work/elsewhere")" = real ]
check $? "$kind: what a link leads to"
reset

small=$work/small
mkdir "$small"
ordinary=$dir
if mount -t tmpfs -o size=20k tmpfs "$small" 2>/dev/null; then
    mounted=$small
    in_folder "$small"
    shown=$target
    reset
    refused 'disk full' "$driver" save $how "$target" 2
    mount -o remount,ro "$small"
    refused 'disk read-only' "$driver" save $how "$target" 2
    mount -o remount,rw "$small"
    in_folder "$ordinary"
else
    echo "$kind: without a full and a read-only disk: no file system may be mounted here"
fi

if [ "$(id -u)" -ne 0 ]; then
    reset
    shown=$target
    chmod 555 "$dir"
    refused 'folder read-only' "$driver" save $how "$target" 2
    chmod 755 "$dir"
else
    echo "$kind: without a folder that forbids writing: root may write everywhere"
fi

finish
