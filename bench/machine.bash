# Sourced by the scripts that run on a CPU, which set $here: options, what is missing, what the results are headed with.
# shellcheck shell=bash disable=SC2154,SC2034
script=${0##*/}
usage() { # the comment at the head of the script
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "${BASH_SOURCE[1]}"
}
refuse() { # MESSAGE
    echo "$script: $1" >&2
    exit 2
}
whole() { # OPTION VALUE
    [[ $2 =~ ^[1-9][0-9]*$ || $1$2 == --busy0 ]] || refuse "$1 \"$2\": want a whole number"
}
choose() { # OPTION LIST CHOICE...: the list into ${chosen[@]}
    local one all=" ${*:3} "
    IFS=, read -ra chosen <<<"$2"
    [ ${#chosen[@]} -gt 0 ] || refuse "$1 needs a list: want some of${all% }"
    for one in "${chosen[@]}"; do
        [[ -n $one && $all == *" $one "* ]] || refuse "$1 $2: there is no \"$one\": want some of${all% }"
    done
}
# The file that the results go into, as $out, and how many rounds, where none were given.
want_out() { # ARGUMENT...
    [ $# -eq 1 ] || refuse 'want OUT.csv, one file for the results (see --help)'
    out=$(realpath -m "$1") rounds=${rounds:-${quick:+1}} rounds=${rounds:-5}
}
note() { # into the results' head and onto the terminal
    echo "# $*" | tee -a "$out" >&2
}
failed() { # STATUS COMMAND...: ends, with the last lines of $log
    {
        echo "$script: failed with $1: ${*:2}"
        tail -n 5 "$log"
    } >&2
    exit 1
}
turn_about() { # ROUND NAME...: the names into ${order[@]}, backwards in every other round
    order=("${@:2}")
    [ $(($1 % 2)) -eq 1 ] || mapfile -t order < <(printf '%s\n' "${@:2}" | tac)
}
want_build() { # PROGRAM...: in $build
    local program
    build=${BUILD:-$(dirname "$here")/build}/bench
    for program in "$@"; do
        [ -x "$build/$program" ] || refuse "no $program in $build: scripts/build makes it (or BUILD=FOLDER of another build)"
    done
}
want_python() { # $python
    python=${PYTHON:-python3}
    command -v "$python" >/dev/null || refuse "no $python: scripts/setup python3 (or PYTHON=PROGRAM)"
}
want_torch() { # $python
    local why
    want_python
    why=$("$python" -c 'import numpy, torch' 2>&1) ||
        refuse "$python cannot import numpy and torch (${why:+${why##*$'\n'}, }it ends with $?): python3 -m venv FOLDER && FOLDER/bin/pip install torch numpy, then PYTHON=FOLDER/bin/python (scripts/setup python3-torch python3-numpy libopenblas0-openmp installs Debian's, which is older and slower)"
}
# Why torch.compile cannot run on this CPU; fails where it can.
no_compiler() {
    if ! command -v "${CXX:-g++}" >/dev/null; then
        echo "it needs a C++ compiler, and there is no ${CXX:-g++}: scripts/setup g++"
    elif ! "$python" -c 'import torch; torch.compile' 2>/dev/null; then
        echo 'this PyTorch has none: want 2.0 or newer'
    elif ! "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null; then
        echo "it needs Python's headers: scripts/setup python3-dev"
    else
        return 1
    fi
}
machine_notes() { # with $threads and $here
    local flag has='' commit load
    for flag in avx2 avx512f avx512_bf16 amx_tile amx_bf16; do
        ! grep -qw $flag /proc/cpuinfo || has+="${has:+ }$flag"
    done
    commit=$(git -C "$here" rev-parse --short=10 HEAD 2>/dev/null) || commit=unknown
    [ -z "$(git -C "$here" status --porcelain 2>/dev/null)" ] || commit+=' with changes'
    note "$(date -u +%Y-%m-%dT%H:%MZ), commit $commit"
    load=$(cut -d' ' -f1 /proc/loadavg)
    note "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1) ($(uname -m), of avx2 avx512f avx512_bf16 amx it has: ${has:-none}), $(nproc) CPUs, $threads threads, load $load at the start"
    # Threads that wait for each other without sleeping, as PyTorch's do, lose far more than ours.
    [[ $load == 0.[0-4]* ]] ||
        note "something else was running: these ratios flatter tenon; wait until the load is below 0.5"
}
