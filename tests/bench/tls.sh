# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# goodput and CPU time of TLS streams and of whole data planes against bare OpenSSL loops (veth: root)
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's
#
# The bare loop writes and reads 1 MiB at a time, a thread at either end of a connection, with the same
# cipher. A stream is that with an engine and records in between; a data plane has flows, workers,
# checksums and acknowledgements as well. All three in turn in each round; medians.
#
# HDT_BENCH_CASES: veth (one connection between two namespaces without limits) and loopback (as many
# connections as HDT_BENCH_STREAMS says), which needs neither root nor an installation.
# HDT_TEST_ENGINE: epoll or io_uring. HDT_BENCH_CODEC_THREADS: of a data plane.

cases=${HDT_BENCH_CASES:-veth loopback}
streams=${HDT_BENCH_STREAMS:-1,2,4,8}
rounds=${HDT_BENCH_ROUNDS:-3}
mib=${HDT_BENCH_MIB:-1024}
declare -a tls_spaces=()

tls_end() {
    local space

    for space in "${tls_spaces[@]}"; do
        ip netns del "$space" 2>/dev/null
    done
    rm -rf "$tmp"
}
trap tls_end EXIT

# of FIELD WHO STREAMS: median of a field of the measurements.
of() {
    awk -v who="$2" -v n="$3" -v f="$1" '$1 == who && $2 == n { print $f }' "$tmp/figures" | median
}

# rows CASE STREAMS GOAL: rate and CPU time of both against the bare loop.
rows() {
    local who rate cpu

    rate=$(of 3 bare "$2")
    cpu=$(of 4 bare "$2")
    for who in stream plane; do
        row tls "$1, x$2, $who" rate "$(of 3 $who "$2")" GB/s higher "bare OpenSSL" "$rate" "$3"
        row tls "$1, x$2, $who" cpu "$(of 4 $who "$2")" CPU-s/GB lower "bare OpenSSL" "$cpu" null
    done
}

# measure STREAMS [NETNS-A NETNS-B ADDRESS-B]
measure() {
    "$builddir/tests/bench/bench_tls" "$1" "$mib" "$rounds" "${@:2}" 2>"$tmp/log" >"$tmp/figures" || {
        cat "$tmp/log" >&2
        exit 2
    }
}

veth_case() {
    local a=hdt-tls-a-$$ b=hdt-tls-b-$$

    if [ "$(id -u)" != 0 ]; then
        echo "bench: the case veth needs root; HDT_BENCH_CASES=loopback does not" >&2
        return
    fi
    tls_spaces=("$a" "$b")
    if ! { ip netns add "$a" && ip netns add "$b" &&
        ip -n "$a" link add v0 type veth peer name v0 netns "$b" &&
        ip -n "$a" addr add 10.98.0.1/24 dev v0 && ip -n "$b" addr add 10.98.0.2/24 dev v0 &&
        ip -n "$a" link set lo up && ip -n "$b" link set lo up &&
        ip -n "$a" link set v0 up && ip -n "$b" link set v0 up; }; then
        echo "bench: cannot make two network namespaces joined by a veth" >&2
        exit 2
    fi
    measure 1 "$a" "$b" 10.98.0.2
    rows veth 1 0.85
}

loopback_case() {
    local n

    measure "$streams"
    for n in ${streams//,/ }; do
        rows loopback "$n" 0.70
    done
}

bench_run() {
    # Where nothing can be built, the program that is there will do.
    make -C "$builddir" tests/bench/bench_tls >"$tmp/make" 2>&1 ||
        [ -x "$builddir/tests/bench/bench_tls" ] || {
        cat "$tmp/make" >&2
        exit 2
    }
    for case in $cases; do
        "${case}_case"
    done
}
