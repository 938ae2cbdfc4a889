# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# tensors over emulated wide-area links, TLS, against iperf3 with 1, 8, 16 streams, CUBIC and BBR (root; minutes)
# shellcheck disable=SC2154 # srcdir, builddir, tmp and work are scripts/bench's and the rig's
#
# One program a site, in the site's namespace; gateways, programs and emulator share the machine's cores.
# Goodput is that of tensor bytes, from a while after the start on; iperf3 has the same link, bare TCP.
#
# HDT_BENCH_CASES    names of cases, one a line or with spaces: those of case_run below [all]
# HDT_BENCH_SECONDS  how long each measurement takes [21, of auto 5; change and sizes go by themselves]: BBR
#                    empties the path every ten seconds, and each figure has that twice; and what a loss held
#                    back comes in bursts, so that a few seconds can be above the link's rate
# HDT_BENCH_WARMUP   and what comes before it [60, longer where round trips are; of change none, of auto 15]:
#                    gateways try streams and congestion controls first, for some eighty round trips, and
#                    match two that are close for 25 s
# HDT_BENCH_HOLD     of the case change: seconds of each rate [14]; 80 are enough for a search and a match at each
# HDT_BENCH_LOADS    of the case auto: steady, urgent, bursts, long-bursts [all]
# HDT_BENCH_PEERS    "STREAMS CC" of iperf3, one a line; none: without
# HDT_BENCH_TENSORS  more NAME=VALUE for the programs (tests/bench/bench_wan.c), as "window=96"
# HDT_BENCH_WAN      a line for the section "wan" of the gateways' settings, as "streams: 8"

# shellcheck source=tests/support/lab_rig.sh
. "$srcdir/tests/support/lab_rig.sh"

seconds=5
warmup=15
window=16 # MiB under way: some eight times rate x round trip. Much more, and what a loss holds back comes in bursts
peer_warmup=2
peers=${HDT_BENCH_PEERS:-"1 cubic
1 bbr
8 cubic
8 bbr
16 cubic
16 bbr"}
read -ra more <<<"${HDT_BENCH_TENSORS:-}"
export wan=${HDT_BENCH_WAN:-}

# ---- a link, its gateways, programs ----

link_start() { # LINK...
    rig_link "$@"
    listen=10.75.0.1:7420 http='' site a
    listen=10.75.0.2:7420 http='' site b a=10.75.0.1:7420
    expect_federation a 2 0
    expect_federation b 2 0
}

link_stop() {
    local name

    for name in "${!gateway_pid[@]}"; do
        kill "${gateway_pid[$name]}" 2>/dev/null && wait "${gateway_pid[$name]}" 2>/dev/null
        unset "gateway_pid[$name]"
        rm -rf "${work:?}/$name/state"
    done
    "$lab" down >/dev/null 2>&1
}

# tensors [NAME=VALUE...]: from a to b; what bench_wan prints goes to $work/out.a and $work/out.b.
tensors() {
    local site rank=0 waiting=()

    for site in a b; do
        run_at "$site" timeout 300 tests/bench/bench_wan "unix:$work/$site/sock" $rank "seconds=$seconds" \
            "warmup=$warmup" "window=$window" "$@" "${more[@]}" a b >"$work/out.$site" 2>"$work/err.$site" </dev/null &
        waiting+=($!)
        rank=1
    done
    for site in a b; do
        wait "${waiting[0]}" || rig_fail "site $site, $*: $(cat "$work/err.$site")"
        waiting=("${waiting[@]:1}")
    done
    sed -n 's/.* info: \(to site [^ ]* [0-9]* streams: .*\)/  \1/p' "$work/a/gateway.log" | tail -n 1 >&2
}

figure() { awk -v name="$2" '$1 == name { print $2 }' "$work/out.$1"; } # SITE NAME

# iperf STREAMS CC [OPTION...]: Mbit/s of what b received (and, with --bidir, of what a did), by the second.
iperf() {
    local server streams=$1 cc=$2

    shift 2
    run_at b iperf3 -s -1 -p 5201 -J >"$work/iperf.b" 2>&1 </dev/null &
    server=$!
    pids+=("$server")
    wait_until 5 iperf_listens || rig_fail "iperf3 does not listen"
    run_at a timeout 60 iperf3 -c 10.75.0.2 -p 5201 -P "$streams" -C "$cc" -t $((seconds + peer_warmup)) -J "$@" \
        >"$work/iperf.a" 2>&1 </dev/null &
    wait $! || {
        kill "$server" 2>/dev/null
        echo "iperf3 $streams $cc: $(json_of 'd.get("error")' <"$work/iperf.a")" >&2
        echo 0 0
        return
    }
    wait "$server"
    echo "$(iperf_received sum <"$work/iperf.b") $(iperf_received sum_bidir_reverse <"$work/iperf.a")"
}
iperf_received() { # NAME: of the sums of each second
    python3 -c '
import json, sys
sums = [i[sys.argv[1]] for i in json.load(sys.stdin)["intervals"] if sys.argv[1] in i]
full = [s["bits_per_second"] for s in sums if s["start"] > float(sys.argv[2]) - 0.5 and s["seconds"] > 0.9]
print("%.1f" % (1e-6 * sum(full) / len(full) if full else 0))' "$1" "$peer_warmup"
}
iperf_listens() { "$lab" exec b ss -Hltn 'sport = :5201' | grep -q .; }

# The best of iperf3 on this link: its Mbit/s in $best, and which it was in $best_name.
iperf_best() { # [OPTION...]
    local streams cc there back

    best=null best_name=iperf3
    [ "$peers" != none ] || return 0
    command -v iperf3 >/dev/null || { echo "no iperf3 here: HDT alone" >&2; return 0; }
    while read -r streams cc; do
        read -r there back < <(iperf "$streams" "$cc" "$@")
        echo "  iperf3, streams $streams, $cc: $there${*:+ and back $back} Mbit/s" >&2
        if [ "$best" = null ] || awk -v a="$there" -v b="$best" 'BEGIN { exit !(a > b) }'; then
            best=$there best_name="iperf3 $streams $cc"
        fi
    done <<<"$peers"
}

# ---- cases ----

# bulk CASE LINK-MBIT GOAL LINK...: one way.
bulk() {
    local case=$1 mbit=$2 goal=$3 value

    shift 3
    link_start "$@"
    tensors
    value=$(figure b goodput)
    iperf_best
    row wan "$case" goodput "$value" Mbit/s higher "the link" "$mbit" "$goal"
    [ "$best" = null ] || row wan "$case" goodput "$value" Mbit/s higher "$best_name" "$best" 0.97
    link_stop
}

both() { # CASE LINK-MBIT GOAL LINK...
    local case=$1 mbit=$2 goal=$3

    shift 3
    link_start "$@"
    tensors both=1
    row wan "$case" goodput "$(figure b goodput)" Mbit/s higher "the link" "$mbit" "$goal"
    row wan "$case, back" goodput "$(figure a goodput)" Mbit/s higher "the link" "$mbit" "$goal"
    iperf_best --bidir
    [ "$best" = null ] ||
        row wan "$case" goodput "$(figure b goodput)" Mbit/s higher "$best_name" "$best" null
    link_stop
}

# Mean rate between two times of a run with every=.
mean_between() { # FROM TO
    awk -v from="$1" -v to="$2" '/^at-/ { t = substr($1, 4) + 0; if (t > from && t <= to) { s += $2; n++ } }
        END { printf "%.1f\n", n ? s / n : 0 }' "$work/out.b"
}

# The link becomes ten times slower and comes back; ten seconds after each change the rate is what it is on
# a link that never was another.
change() {
    local static hold=${HDT_BENCH_HOLD:-14} timer seconds=4

    link_start rate 100mbit rtt 80ms
    tensors
    static=$(figure b goodput)
    link_stop
    link_start rate 1gbit rtt 80ms
    { sleep "$hold" && "$lab" ctl link a b rate 100mbit && sleep "$hold" && "$lab" ctl link a b rate 1gbit; } >/dev/null &
    timer=$!
    pids+=("$timer")
    seconds=$((3 * hold)) warmup=0 tensors every=0.5
    wait "$timer"
    sed -n 's/^at-/  /p' "$work/out.b" | paste -sd ' ' | fold -sw 110 >&2
    row wan "1 Gbit/s -> 100 Mbit/s, after 10 s" goodput "$(mean_between $((hold + 10)) $((2 * hold)))" \
        Mbit/s higher "100 Mbit/s, static" "$static" 0.9
    row wan "100 Mbit/s -> 1 Gbit/s, after 10 s" goodput "$(mean_between $((2 * hold + 10)) $((3 * hold)))" \
        Mbit/s higher "1 Gbit/s, before" "$(mean_between 5 "$hold")" 0.9
    link_stop
}

sizes() {
    local size value before=null goal=null

    link_start rate 1gbit rtt 40ms
    tensors size=4096,65536,1048576,16777216,268435456,1073741824
    for size in 4096 65536 1048576 16777216 268435456 1073741824; do
        value=$(figure b size-$size)
        row wan "tensors of $((size >> 10)) KiB, 1 Gbit/s, 40 ms" goodput "$value" Mbit/s higher \
            "the size before" "$before" "$goal"
        before=$value goal=0.95
    done
    link_stop
}

urgent() {
    local case="4 KiB urgent beside bulk, 200 Mbit/s, 40 ms"
    local -x wan="pace: true"

    link_start rate 200mbit rtt 40ms queue 50ms
    tensors urgent=10
    row wan "$case" p99 "$(figure b urgent_p99)" ms lower "RTT/2 + 15 ms" 35 1
    row wan "$case" p50 "$(figure b urgent_p50)" ms lower "RTT/2" 20 null
    row wan "$case, bulk" goodput "$(figure b goodput)" Mbit/s higher "the link" 200 0.90
    link_stop
}

# Streams, congestion control and pacing by themselves, against the defaults, in turn; the same loads. Goodput
# is that of bulk and urgent tensors (4 KiB each) together: what these get the bulk cannot have.
auto() {
    local link="50 Mbit/s, 20 ms" on=$'pace: true\n  streams: auto\n  congestion: auto' load name
    local -x wan
    local -A options=([steady]="" [urgent]="urgent=10" [bursts]="urgent=10 burst=3 pause=0.5"
        [long-bursts]="urgent=10 burst=24 pause=1") got

    for load in ${HDT_BENCH_LOADS:-steady urgent bursts long-bursts}; do
        for name in default auto; do
            wan=$([ $name = default ] || echo "$on")
            link_start rate 50mbit rtt 20ms queue 50ms
            # shellcheck disable=SC2086 # a list
            tensors ${options[$load]}
            got[$name]=$(awk -v s="$seconds" '$1 == "goodput" { sum += $2 } $1 == "urgent_n" { sum += $2 * 0.032768 / s }
                END { printf "%.2f", sum }' "$work/out.b")
            got[$name-p99]=$(figure b urgent_p99)
            link_stop
        done
        row wan "$load, $link" goodput "${got[auto]}" Mbit/s higher "the defaults" "${got[default]}" 0.97
        [ "$load" = steady ] ||
            row wan "$load, $link" p99 "${got[auto-p99]}" ms lower "the defaults" "${got[default-p99]}" null
    done
}

lossless() {
    link_start rate 200mbit rtt 40ms
    tensors codec=lossless type=bf16
    row wan "lossless on bf16, 200 Mbit/s, 40 ms" goodput "$(figure b goodput)" Mbit/s higher "the link" 200 1.33
    link_stop
}

mesh() {
    local metric value unit goal

    (export srcdir && cd "$builddir" && bash "$srcdir/tests/support/mesh_run.sh" 20) >"$tmp/mesh" ||
        rig_fail "mesh: $(tail -n 3 "$tmp/mesh")"
    while read -r metric value unit goal; do
        row wan "20 gateways, full mesh, all restarted" "$metric" "$value" "$unit" lower - null "$goal"
    done < <(grep -E '^[a-z_]+ [0-9.]+ [^ ]+ [^ ]+$' "$tmp/mesh")
}

case_names="1g-80ms 1g-80ms-0.01 1g-80ms-0.1 200m-150ms 200m-150ms-0.01 200m-150ms-1 50m-300ms both change sizes urgent
    auto lossless mesh"

case_run() {
    window=16 seconds=${HDT_BENCH_SECONDS:-5} peer_warmup=2
    case $1 in
    1g-* | both | sizes | urgent | lossless) seconds=${HDT_BENCH_SECONDS:-21} ;;
    50m-* | 200m-*) seconds=${HDT_BENCH_SECONDS:-21} peer_warmup=5 ;;
    esac
    case $1 in
    50m-*) warmup=${HDT_BENCH_WARMUP:-90} ;;
    200m-*) warmup=${HDT_BENCH_WARMUP:-75} window=32 ;;
    1g-* | both | sizes) warmup=${HDT_BENCH_WARMUP:-60} window=96 ;;
    urgent | lossless) warmup=${HDT_BENCH_WARMUP:-60} ;;
    change) warmup=${HDT_BENCH_WARMUP:-15} window=32 ;;
    auto) warmup=${HDT_BENCH_WARMUP:-15} window=4 ;;
    *) warmup=${HDT_BENCH_WARMUP:-15} ;;
    esac
    case $1 in
    1g-80ms) bulk "1 Gbit/s, 80 ms, loss 0" 1000 0.90 rate 1gbit rtt 80ms ;;
    1g-80ms-0.01) bulk "1 Gbit/s, 80 ms, loss 0.01 %" 1000 0.90 rate 1gbit rtt 80ms loss 0.01% ;;
    1g-80ms-0.1) bulk "1 Gbit/s, 80 ms, loss 0.1 %" 1000 0.85 rate 1gbit rtt 80ms loss 0.1% ;;
    200m-150ms) bulk "200 Mbit/s, 150 ms, loss 0" 200 0.90 rate 200mbit rtt 150ms ;;
    200m-150ms-0.01) bulk "200 Mbit/s, 150 ms, loss 0.01 %" 200 0.90 rate 200mbit rtt 150ms loss 0.01% ;;
    200m-150ms-1) bulk "200 Mbit/s, 150 ms, loss 1 %" 200 0.75 rate 200mbit rtt 150ms loss 1% ;;
    50m-300ms) bulk "50 Mbit/s, 300 ms, jitter 20 ms, loss 0.5 %" 50 0.80 rate 50mbit rtt 300ms jitter 20ms loss 0.5% ;;
    both) both "both directions, 1 Gbit/s, 80 ms" 1000 0.85 rate 1gbit rtt 80ms ;;
    change | sizes | urgent | auto | lossless | mesh) "$1" ;;
    *) rig_fail "no case '$1'; there are: $case_names" ;;
    esac
}

bench_run() {
    local case

    make -C "$builddir" tests/bench/bench_wan >/dev/null || rig_fail "cannot build bench_wan"
    fed_init lab ca
    for case in ${HDT_BENCH_CASES:-$case_names}; do
        case_run "$case"
    done
}
