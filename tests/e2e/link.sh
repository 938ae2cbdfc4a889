#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hdt link: what it says of emulated links whose limit is known, what it measures of one whose rate is
# known, and what it refuses.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

can_have_wan || skip "$("$src/scripts/wan-lab" check 2>&1 | head -n 1)"
cd "$work" || exit 1
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
export WANLAB_DIR=$work/lab HDT_WANEM=$build/hdt-wanem
lab=$src/scripts/wan-lab
trap '"$lab" down >/dev/null 2>&1; finish' EXIT
run_at() { exec "$lab" exec "$@"; }
G="--gateway $(gateway_of a)"
both_up() { hdt status --gateway "$(gateway_of a)" | grep -q '^peer.* up .* [1-9] streams'; }

# Two sites joined by a link.
link_up() { # LINK [SYSCTL...]
    local setting

    {
        for setting in "${@:2}"; do echo "sysctl $setting"; done
        printf 'port a addr 10.77.0.1/24\nport b addr 10.77.0.2/24\nlink a b %s\n' "$1"
    } >topology
    "$lab" up topology || fail "the emulated WAN did not start"
}

# The first row of a result of bench with codec, from, bytes: a field of it.
row() { # FILE CODEC FROM BYTES FIELD
    python3 - "$@" <<'PY'
import json, sys
file, codec, here, size, name = sys.argv[1:]
print(next(r[name] for r in json.load(open(file))["rows"]
           if r["codec"] == codec and r["from"] == here and r["bytes"] == int(size)))
PY
}
within() { awk -v v="$1" -v lo="$2" -v hi="$3" 'BEGIN { exit !(v >= lo && v <= hi) }'; }
explained() { # FILE EXPRESSION: of the direction from a to b
    python3 -c "import json, sys; d = json.load(open(sys.argv[1]))['directions'][0]; print($2)" "$1"
}

# Nothing carries more than is emulated, so a figure that is too high is wrong, whatever else runs here. One
# that is too low is wrong as well, unless what the link is made of had to wait for a processor: then the
# emulated link really carried less. The kernel counts that for each thread.
waited_s() { # seconds that the emulator and both gateways were ready to run and did not, so far
    local pid

    for pid in $(cat "$WANLAB_DIR/wanem.pid") "${gateway_pid[@]}"; do
        cat /proc/"$pid"/task/*/schedstat 2>/dev/null
    done | awk '{ sum += $2 } END { printf "%.3f\n", sum / 1e9 }'
}
no_echo() { ! pgrep -f "link echo --gateway unix:$work/" >/dev/null; }
busy_share=0.05 # of the time of a measurement
# measured_until CHECK MEASURE...: again while CHECK fails and the machine was busy, so often that this ends.
measured_until() {
    local good=$1 i from waited

    for i in 1 2 3 4 5; do
        wait_until 10 no_echo # of the measurement before: there is one at a time
        from=$EPOCHREALTIME waited=$(waited_s)
        "${@:2}"
        waited=$(awk -v a="$waited" -v b="$(waited_s)" -v t0="$from" -v t1="$EPOCHREALTIME" \
            'BEGIN { printf "%.3f", (b - a) / (t1 - t0) }')
        "$good" && return
        echo "measurement $i: the link waited for a processor for $waited of the time"
        within "$waited" "$busy_share" 1e9 || return
    done
    echo "the machine is too busy to emulate this link: what is too low counts for nothing"
    is_busy=yes
}
is_busy=
# near_rate FIGURE LOWEST HIGHEST
near_rate() { within "$1" "$([ "$is_busy" ] && echo 0 || echo "$2")" "$3"; }
measure() {
    # shellcheck disable=SC2086 # options
    {
        hdt link bench $G --json --codec none --max-size 4MiB b >bench.json 2>bench.err </dev/null
        same "bench: exit status" 0 $?
        hdt link explain $G --json b >explain.json 2>explain.err </dev/null
        same "explain: exit status" 0 $?
    }
}
rates_within() { # FILE BYTES LOWEST HIGHEST: both ways
    within "$(row "$1" none a "$2" goodput_bits_per_s)" "$3" "$4" &&
        within "$(row "$1" none b "$2" goodput_bits_per_s)" "$3" "$4"
}
as_emulated() {
    rates_within bench.json 4194304 42.5e6 57.5e6 &&
        within "$(row bench.json none a 4096 median_s)" 0.010 0.020 &&
        within "$(row bench.json none b 4096 median_s)" 0.010 0.020 &&
        [ "$(explained explain.json "d['limit']")" = path ] &&
        within "$(explained explain.json "d['bdp_bytes']")" 106250 143750
}
measure_auto() {
    # shellcheck disable=SC2086
    hdt link bench $G --json --codec none --max-size 4MiB b >auto.json 2>auto.err </dev/null
    same "bench: exit status" 0 $?
}
fills_the_link() { rates_within auto.json 4194304 42.5e6 57.5e6; }
measure_small() {
    # shellcheck disable=SC2086
    {
        hdt link bench $G --codec none --max-size 4MiB b >small.out 2>&1 </dev/null
        same "bench: exit status" 0 $?
        hdt link explain $G --json b >small.json </dev/null
    }
}
# What a plan has of the link: both ways, and after streams know it; a single measurement may be held up.
measure_again() {
    local i

    for i in 1 2 3 4; do
        hdt plan --gateway "$(gateway_of a)" --remeasure --json job.yaml >plan.json 2>plan.err </dev/null
        same "plan: exit status" 0 $?
        [ $i = 1 ] || ! plan_knows_the_link || return
    done
}
plan_knows() { # LOWEST HIGHEST, Mbit/s
    json_of "len(d['cluster']['links']) == 2 and all($1 <= l['rate_bytes_per_s'] * 8e-6 <= $2 and 0.15 <= l['rtt_s'] <= 0.18 for l in d['cluster']['links'])" \
        <plan.json | grep -q True
}
plan_knows_the_link() { plan_knows 164 206; }
limit_is_buffer() { [ "$(explained small.json "d['limit']")" = buffer ]; }

fed_init lab
section "a link of 50 Mbit/s and 20 ms"
link_up "rate 50mbit rtt 20ms queue 50ms"
listen=10.77.0.1:7420 http='' site a
listen=10.77.0.2:7420 http='' site b a=10.77.0.1:7420
check "both gateways are there" wait_until 20 both_up
# shellcheck disable=SC2086 # options
{
    refused 3 "knows no site 'c'" hdt link bench $G c
    refused 3 "knows no site 'c'" hdt link explain $G c
    refused 1 "is the site of this gateway" hdt link bench $G a
    measured_until as_emulated measure
}
for from in a b; do
    mbit=$(row bench.json none $from 4194304 goodput_bits_per_s | awk '{ print $1 / 1e6 }')
    check "goodput from $from is that of a link of 50 Mbit/s: $mbit" near_rate "$mbit" 42.5 57.5
    check "without a codec nothing becomes smaller" within "$(row bench.json none $from 4194304 ratio)" 0.98 1.01
    ms=$(row bench.json none $from 4096 median_s | awk '{ print 1000 * $1 }')
    check "4 KiB take half a round trip and little more: $ms ms" within "$ms" 10 "$([ "$is_busy" ] && echo 1000 || echo 20)"
done
[ "$is_busy" ] || same "the limit of a link that is full" path "$(explained explain.json "d['limit']")"
bdp=$(explained explain.json "round(d['bdp_bytes'])")
check "rate x round trip is 125 kB: $bdp" near_rate "$bdp" 106250 "$([ "$is_busy" ] && echo 1e9 || echo 143750)"
check "the program at the other site is gone" wait_until 10 no_echo

section "Ctrl-C"
# shellcheck disable=SC2086
env --default-signal=INT hdt link bench $G b >ctrl-c.out 2>&1 </dev/null &
pid=$!
pids+=("$pid")
check "rows come as they are measured" wait_until 20 grep -q '^none ' ctrl-c.out
kill -INT $pid
check "it ends at once" wait_until 2 has_ended $pid
wait $pid
same "exit status" 1 $?
check "the program at the other site ends" wait_until 10 no_echo
is_over() { hdt status --gateway "$(gateway_of b)" --json | json_of "[c['state'] for c in d['channels']]" | grep -qv up; }
check "and no channel is up" wait_until 10 is_over

section "the other gateway stops, and dies"
kill -STOP "${gateway_pid[b]}"
# shellcheck disable=SC2086
refused 4 "did not answer 'link.bench'" hdt link bench --json $G b
kill -CONT "${gateway_pid[b]}"
kill -KILL "${gateway_pid[b]}"
is_down() { hdt status --gateway "$(gateway_of a)" | grep -q '^peer.* down'; }
wait_until 30 is_down
# shellcheck disable=SC2086
for command in bench explain; do
    refused 3 "there is no link from site a to site b" hdt link $command $G b
    check "with a remedy" grep -q '^hint: ' err
done
stop_gateway a

# A measurement is load in bursts, beside small urgent tensors.
section "bursts beside urgent tensors, with pacing, streams and congestion control by themselves"
"$lab" down
link_up "rate 50mbit rtt 20ms queue 50ms"
export wan=$'pace: true\n  streams: auto\n  congestion: auto'
listen=10.77.0.1:7420 http='' site a
listen=10.77.0.2:7420 http='' site b a=10.77.0.1:7420
unset wan
check "both gateways are there" wait_until 20 both_up
is_busy=
measured_until fills_the_link measure_auto
for from in a b; do
    mbit=$(row auto.json none $from 4194304 goodput_bits_per_s | awk '{ print $1 / 1e6 }')
    check "goodput from $from is that of the link all the same: $mbit" near_rate "$mbit" 42.5 57.5
done
stop_gateway a
stop_gateway b

# A stream that stays in its search for the rate brings two thirds of it, measured once more.
section "a long way, measured for a plan again"
"$lab" down
link_up "rate 200mbit rtt 150ms queue 100ms" "net.ipv4.tcp_rmem 4096 131072 33554432" \
    "net.ipv4.tcp_wmem 4096 16384 33554432"
listen=10.77.0.1:7420 http='' site a
listen=10.77.0.2:7420 http='' site b a=10.77.0.1:7420
fed_data
job job.yaml 20 "data.site: a"
worker a w0
worker b w0
expect_federation a 2 2
is_busy=
measured_until plan_knows_the_link measure_again
[ "$is_busy" ] || check "both directions are what is emulated" plan_knows_the_link
kill "${worker_pid[a/w0]}" "${worker_pid[b/w0]}"
wait "${worker_pid[a/w0]}" "${worker_pid[b/w0]}"
stop_gateway a
stop_gateway b

section "a socket buffer that is too small"
"$lab" down
link_up "rate 200mbit rtt 40ms queue 100ms" "net.ipv4.tcp_wmem 4096 16384 65536"
listen=10.77.0.1:7420 http='' site a
listen=10.77.0.2:7420 http='' site b a=10.77.0.1:7420
check "both gateways are there" wait_until 20 both_up
measured_until limit_is_buffer measure_small
same "the limit" buffer "$(explained small.json "d['limit']")"
check "the remedy is the kernel's setting" grep -q "sysctl -w net.ipv4.tcp_wmem=" small.json
[ "$n_failed" = 0 ]
