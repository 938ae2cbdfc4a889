#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A run of two sites over a bad link, watched: false alarms, and memory over time. For 'scripts/bench
# soak'; runs in the build folder. Prints a line "METRIC VALUE UNIT GOAL" for each result.
#
#     soak_run.sh MINUTES LINK...    LINK: words of hdt-wanem, as: rtt 300ms jitter 20ms loss 1%
#
# Alarms are what has a consequence: a session or stream that is closed and dialled again, a chunk that
# goes out again, a job that fails. A peer that is shown as suspect is counted apart.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

minutes=$1
shift
warm_up_s=60
[ "$minutes" -ge 3 ] || warm_up_s=20
export WANLAB_DIR=$work/lab HDT_WANEM=$build/hdt-wanem
lab=$src/scripts/wan-lab
why=$("$lab" check 2>&1) || skip "no emulated WAN here: $(head -n 1 <<<"$why")"
trap '"$lab" down >/dev/null 2>&1; finish' EXIT
cat >"$work.topo" <<TOPO
port a site soaka$$ addr 10.74.0.1/24
port b site soakb$$ addr 10.74.0.2/24
link a b rate 100mbit queue 200ms $*
TOPO
"$lab" up "$work.topo" || exit 1
rm -f "$work.topo"

# The daemons of a site run in its namespace.
run_at() { exec "$lab" exec "soak$1$$" "${@:2}"; } # SITE COMMAND...

cd "$work" || exit 1
fed_init
fed_data
export knob=60s http=
listen=10.74.0.1:7420 site a
listen=10.74.0.2:7420 site b a=10.74.0.1:7420
worker a w0
worker b w0
expect_federation a 2 2
job soak.yaml 100000000 "plan.min_stages: 2" "checkpoint.every: 25"
hdt submit --verbose --gateway "$(gateway_of a)" soak.yaml >soak.log 2>&1 </dev/null &
submit_pid=$!
pids+=($!)
at_step() { grep -q "^step $1/" soak.log; }
wait_until 20 test -e soak.log; wait_until 90 at_step 3 || { fail "no step 3: $(tail -n 3 soak.log)"; exit 1; }

# The process under "ip netns exec" and the like, by its name.
program_of() { # PID NAME
    local pid=$1 child

    while [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != "$2" ]; do
        child=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null)
        pid=${child%% *}
        [ -n "$pid" ] || return 1
    done
    echo "$pid"
}
declare -A program
for name in a b; do
    program[gateway-$name]=$(program_of "${gateway_pid[$name]}" hdt-gateway)
    program[worker-$name]=$(program_of "${worker_pid[$name/w0]}" hdt-worker)
done

# One number of the other site's entry in a site's status, 0 when there is none.
peer_number() { # SITE NAME
    sed -n "s/.*\"$2\": *\([0-9.]*\).*/\1/p" "$1.status" | head -n 1 | grep . || echo 0
}
sample() {
    local name

    for name in a b; do
        hdt status --gateway "$(gateway_of $name)" --json >"$name.status" 2>/dev/null
    done
    for name in "${!program[@]}"; do
        echo "$SECONDS $name $(awk '/^VmRSS/ { print $2 }' "/proc/${program[$name]}/status" 2>/dev/null || echo 0)"
    done >>rss
}
steps() { sed -n 's/^step \([0-9]*\)\/.*/\1/p' soak.log | tail -n 1; }

sample
base_sessions=$(($(peer_number a sessions) + $(peer_number b sessions)))
base_losses=$(($(peer_number a stream_losses) + $(peer_number b stream_losses)))
base_resent=$(($(peer_number a resent_chunks) + $(peer_number b resent_chunks)))
began=$SECONDS
while [ $((SECONDS - began)) -lt $((minutes * 60)) ] && kill -0 "$submit_pid" 2>/dev/null; do
    sleep 5
    sample
done
ran_s=$((SECONDS - began))
kill -0 "$submit_pid" 2>/dev/null
failed=$?
n_steps=$(steps)
sessions=$(($(peer_number a sessions) + $(peer_number b sessions) - base_sessions))
losses=$(($(peer_number a stream_losses) + $(peer_number b stream_losses) - base_losses))
resent=$(($(peer_number a resent_chunks) + $(peer_number b resent_chunks) - base_resent))
suspects=$(($(peer_number a suspects) + $(peer_number b suspects)))
[ "$failed" = 0 ] || tail -n 5 soak.log >&2
kill -INT "$submit_pid" 2>/dev/null
wait "$submit_pid"

# Largest growth over the value at the end of the warm-up, in percent.
growth() { # NAME
    awk -v name="$1" -v from=$((began + warm_up_s)) '$2 == name && $1 >= from && $3 > 0 {
        if (!first) first = $3; if ($3 > most) most = $3 }
        END { printf "%.2f", first ? 100 * (most - first) / first : 0 }' rss
}
echo "alarms $((sessions + losses + resent + failed)) count 0"
echo "sessions_dialled_again $sessions count 0"
echo "streams_lost $losses count 0"
echo "chunks_sent_again $resent count 0"
echo "jobs_failed $failed count 0"
echo "suspects $suspects count null"
echo "seconds $ran_s s null"
echo "steps ${n_steps:-0} steps null"
for name in gateway-a gateway-b worker-a worker-b; do
    echo "rss_growth_${name/-/_} $(growth $name) % 1"
    echo "rss_${name/-/_} $(awk -v n=$name '$2 == n { v = $3 } END { printf "%.1f", v / 1024 }' rss) MiB null"
done
[ "$n_failed" = 0 ]
