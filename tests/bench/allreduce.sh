# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# seconds of a 64 MiB all-reduce between 2 and 3 sites, 1 Gbit/s, 0.01 % loss, against Gloo (root; minutes)
# shellcheck disable=SC2154 # srcdir, builddir, tmp and work are scripts/bench's and the rig's
#
# One program a site, in the site's namespace; gateways, programs and emulator share the machine's cores.
# Gloo runs as its users get it, a ring over TCP, in the clear; HDT through gateways with TLS. The kernel's
# congestion control is that of the routes, CUBIC and BBR in turn in each round, for both. HDT_BENCH_CASES names cases as "SITES RTT-MS".

# shellcheck source=tests/support/lab_rig.sh
. "$srcdir/tests/support/lab_rig.sh"

rounds=${HDT_BENCH_ROUNDS:-3}
mib=${HDT_BENCH_MIB:-64}
core_of[c]=${core_of[a]}
address_of() { case $1 in a) echo 10.75.0.1 ;; b) echo 10.75.1.2 ;; c) echo 10.75.2.3 ;; esac; }

# Sites of the lab: each pair has a link of its own, with an address of each site's own in front of it.
lab_start() { # RTT-MS CUBIC|BBR
    local why site

    why=$("$lab" check 2>&1) || rig_fail "no emulated WAN: $(head -n 1 <<<"$why")"
    cat >"$work/topology" <<TOPO
sysctl net.ipv4.tcp_rmem 4096 131072 67108864
sysctl net.ipv4.tcp_wmem 4096 16384 67108864
port a mtu 9000 addr 10.75.0.1/16
port b mtu 9000 addr 10.75.1.2/16
port c mtu 9000 addr 10.75.2.3/16
link a b rate 1gbit rtt ${1}ms queue 100ms loss 0.01%
link a c rate 1gbit rtt ${1}ms queue 100ms loss 0.01%
link b c rate 1gbit rtt ${1}ms queue 100ms loss 0.01%
TOPO
    "$lab" up "$work/topology" || rig_fail "the emulated WAN did not start"
    for site in a b c; do
        "$lab" exec "$site" ip route replace 10.75.0.0/16 dev wan0 src "$(address_of "$site")" \
            congctl "$2" || rig_fail "no congestion control '$2': modprobe tcp_$2"
    done
}

# Gateways of the first N sites, new ones, so that their streams have the congestion control of now.
gateways_start() { # N
    listen=10.75.0.1:7420 http='' site a
    listen=10.75.1.2:7420 http='' site b a=10.75.0.1:7420
    [ "$1" -lt 3 ] || listen=10.75.2.3:7420 http='' site c a=10.75.0.1:7420 b=10.75.1.2:7420
    expect_federation a "$1" 0
    expect_federation b "$1" 0
}

gateways_stop() {
    local name

    for name in "${!gateway_pid[@]}"; do
        kill "${gateway_pid[$name]}" 2>/dev/null && wait "${gateway_pid[$name]}" 2>/dev/null
        unset "gateway_pid[$name]"
        rm -rf "${work:?}/$name/state"
    done
}

# ranks N COMMAND...: one at each site, with {rank}, {site} and {address} filled in. Each prints lines that
# end in seconds: those of the slowest rank, line by line.
ranks() {
    local n=$1 i=0 site arg words waiting=() files=()

    shift
    for site in a b c; do
        [ $i -lt "$n" ] || break
        words=()
        for arg in "$@"; do
            arg=${arg//'{rank}'/$i} arg=${arg//'{site}'/$site}
            words+=("${arg//'{address}'/$(address_of "$site")}")
        done
        run_at "$site" timeout 300 "${words[@]}" >"$work/out.$i" 2>"$work/err.$i" </dev/null &
        waiting+=($!)
        files+=("$work/out.$i")
        i=$((i + 1))
    done
    for i in "${!waiting[@]}"; do
        wait "${waiting[$i]}" || rig_fail "rank $i of $*: $(cat "$work/err.$i")"
    done
    paste "${files[@]}" | awk -v n="$n" '{
        w = NF / n
        for (i = w; i <= NF; i += w) { if (i == w || $i > most) most = $i }
        print (w > 1 ? $1 " " : "") most }'
}

hdt_rounds() { # CC N
    local members=(a b c) codec seconds

    gateways_start "$2"
    ranks "$2" tests/bench/bench_allreduce "unix:$work/{site}/sock" "{rank}" "$mib" 2 none,int8,bf16 \
        "${members[@]:0:$2}" | while read -r codec seconds; do
        echo "$seconds" >>"$tmp/hdt-$1-$codec"
    done
    gateways_stop
}

gloo_rounds() { # CC N
    mkdir -p "$work/store"
    ranks "$2" tests/bench/peer_gloo "$work/store" "{address}" "{rank}" "$2" "$mib" 2 >>"$tmp/gloo-$1"
    rm -rf "${work:?}/store"
}

bench_case() { # SITES RTT-MS
    local cc gloo=null best=null goal=null name="$1 sites, $2 ms"

    rm -f "$tmp"/hdt-* "$tmp"/gloo-*
    for ((round = 0; round < rounds; round++)); do
        for cc in cubic bbr; do
            lab_start "$2" "$cc"
            [ -z "$have_gloo" ] || gloo_rounds "$cc" "$1"
            hdt_rounds "$cc" "$1"
            "$lab" down >/dev/null 2>&1
        done
    done
    for cc in cubic bbr; do
        [ -z "$have_gloo" ] || gloo=$(median <"$tmp/gloo-$cc")
        best=$(median <"$tmp/hdt-$cc-none")
        row allreduce "$name, $cc" seconds "$best" s lower gloo "$gloo" 1
        row allreduce "$name, $cc, bf16" seconds "$(median <"$tmp/hdt-$cc-bf16")" s lower "codec none" "$best" null
        row allreduce "$name, $cc, int8" seconds "$(median <"$tmp/hdt-$cc-int8")" s lower "codec none" "$best" 0.556
    done
    # As a user of either finds it: HDT may choose (wan.congestion), Gloo takes the kernel's default.
    [ -z "$have_gloo" ] || gloo=$(median <"$tmp/gloo-cubic")
    [ "$2" != 80 ] || goal=0.2
    row allreduce "$name, HDT under bbr" seconds "$best" s lower "gloo under cubic" "$gloo" "$goal"
}

bench_run() {
    local case cases=("2 10" "2 40" "2 80" "3 10" "3 40" "3 80")

    make -C "$builddir" tests/bench/bench_allreduce >/dev/null || rig_fail "cannot build bench_allreduce"
    have_gloo=
    ! make -C "$builddir" tests/bench/peer_gloo >/dev/null 2>&1 || have_gloo=yes
    [ -n "$have_gloo" ] || echo "no Gloo here (libgloo-dev): HDT alone" >&2
    [ -z "${HDT_BENCH_CASES:-}" ] || mapfile -t cases <<<"$HDT_BENCH_CASES"
    fed_init lab ca
    for case in "${cases[@]}"; do
        # shellcheck disable=SC2086 # two words
        bench_case $case
    done
}
