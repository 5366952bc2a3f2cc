#!/usr/bin/env bash
# Data parallel training on several hosts: network namespaces with a name and an address each, joined by a bridge.
# mpirun reaches them as by ssh, through a script that starts a command on a host with an empty environment; the
# ranks talk over TCP. They compute what one process does; a host that vanishes ends the run. Skipped where
# namespaces cannot be made (root alone may), where tenon's module for MPI was not built, or mpirun is missing.
# usage: tests/parallel/hosts.sh DRIVER FAULTS MODULE
set -euo pipefail
driver=$(realpath "$1") faults=$(realpath "$2") here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TN_MPI_MODULE=${3:+$(realpath "$3")}
# shellcheck source=tests/parallel/env.sh
. "$here/env.sh"

# Everything happens in namespaces of its own, which end with it: networks, their names, a folder.
if [ "${TENON_HOSTS:-}" != inside ]; then
    command -v ip >/dev/null || skip 'there is no ip'
    command -v unshare >/dev/null || skip 'there is no unshare'
    unshare -nmu true 2>/dev/null || skip 'namespaces cannot be made'
    TENON_HOSTS=inside exec unshare -nmu "$0" "$@"
fi
mount --make-rprivate /
{ mkdir -p /run/netns && mount -t tmpfs none /run/netns; } 2>/dev/null || skip 'nothing can be mounted'
scratch
# shellcheck disable=SC2046
trap 'kill -9 $(on_host 11) $(on_host 12) $(on_host 13) 2>/dev/null; rm -rf "$work"' EXIT
on_host() { ip netns pids "$net.$1" 2>/dev/null; }

net=10.77.0
hosts=(11 12 13)
make_net() {
    ip link set lo up && ip link add bridge type bridge && ip addr add $net.1/24 dev bridge &&
        ip link set bridge up
}
make_host() { # NUMBER
    ip netns add "$net.$1" && ip link add "cable$1" type veth peer name eth0 netns "$net.$1" &&
        ip link set "cable$1" master bridge up && ip -n "$net.$1" addr add "$net.$1/24" dev eth0 &&
        ip -n "$net.$1" link set eth0 up && ip -n "$net.$1" link set lo up
}
make_net 2>log || skip "a bridge cannot be made: $(tail -1 log)"
for i in "${hosts[@]}"; do make_host "$i" 2>log || skip "a host cannot be made: $(tail -1 log)"; done

cat >agent <<'END'
#!/bin/bash
host=$1
shift
exec ip netns exec "$host" unshare -u env -i PATH="$PATH" HOME="$HOME" sh -c "hostname host${host##*.}; $*"
END
chmod +x agent
unset OMPI_MCA_btl # shared memory is not for hosts
on_hosts=(mpirun --mca plm_rsh_agent "$work/agent" --mca btl 'self,tcp' --mca btl_tcp_if_include "$net.0/24"
    --mca oob_tcp_if_include "$net.0/24" -x TN_MPI_MODULE -x TN_NUM_THREADS -x OMP_NUM_THREADS -x ASAN_OPTIONS
    -x LSAN_OPTIONS -x TSAN_OPTIONS -x TN_PARALLEL_TIMEOUT)
export TSAN_OPTIONS=${TSAN_OPTIONS:-} TN_PARALLEL_TIMEOUT=${TN_PARALLEL_TIMEOUT:-60}

printf "$net.%s slots=2\n" "${hosts[@]}" >two
printf "$net.%s slots=1\n" "${hosts[@]}" >one
runs "${on_hosts[@]}" --hostfile one -n 3 hostname
status=0
# beside warnings of mpirun's: a host's process may be too quick for its setpgid
[ "$(grep '^host' log | sort | tr '\n' ' ')" = 'host11 host12 host13 ' ] || status=1
outcome 'three hosts' $status
runs "$driver" train f64 0 1 single
for n in 2 3; do # hosts with a rank each, and one with two
    runs "${on_hosts[@]}" --hostfile one -n $n "$driver" train f64 64 1 "$work/many"
    runs "$driver" compare single many 1e-12
done
runs "${on_hosts[@]}" --hostfile two -n 4 "$driver" train f64 64 1 "$work/many"
runs "$driver" compare single many 1e-12

# vanishes OPTION...: a run whose second host is cut off after a second. Its end is waited for, by the mpirun that
# $run is.
vanishes() {
    rm -f file
    "${on_hosts[@]}" --hostfile one -n 3 "$@" "$faults" endless "$work/file" >log 2>&1 &
    run=$!
    within 20 test -s file
    sleep 1
    ip link set cable12 down
}
within() { # SECONDS COMMAND...
    local i
    for ((i = 0; i < 10 * $1; i++)); do
        "${@:2}" && return
        sleep 0.1
    done
    return 1
}
gone() { ! kill -0 "$run" 2>/dev/null; }
no_ranks() {
    local id
    for id in $(on_host "$1"); do
        ! grep -qsx parallel_faults "/proc/$id/comm" || return 1
    done
}
are_named() { grep -q "rank 0 of 3: .* without an answer from rank 1:" log; }

# mpirun notices when it asks often enough whether its hosts are there: it names the host and ends the others.
export TN_PARALLEL_TIMEOUT=60
vanishes --mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3
status=0
{ within 30 gone && ! wait $run && grep -q "Remote daemon: .* on node $net.12" log; } || status=1
within 5 no_ranks 11 || status=1
outcome 'mpirun notices that a host has vanished' $status
runs "$faults" check file 0

# Otherwise the ranks do, after their time: they name the rank and end, there and on the host that was cut off.
# mpirun goes on waiting for the host.
ip link set cable12 up
# shellcheck disable=SC2046
kill -9 $(on_host 11) $(on_host 12) $(on_host 13) 2>/dev/null || true
export TN_PARALLEL_TIMEOUT=3
vanishes
status=0
{ within 30 are_named && within 10 no_ranks 11 && within 10 no_ranks 12 && within 10 no_ranks 13; } || status=1
outcome 'the ranks notice that a host has vanished' $status
{ kill -9 $run; wait $run || true; } 2>/dev/null
runs "$faults" check file 0

results
