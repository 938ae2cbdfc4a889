#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A stream that is reset and a WAN that is cut for ten seconds change no bit of a run.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"

can_have_wan || skip "no emulated WAN here: needs root, /dev/net/tun and NET_ADMIN"
command -v ss >/dev/null || skip "the command 'ss' is missing"
steps=${HDT_E2E_STEPS:-20} # so many that the faults fall into the run
options=(--sites 2 --steps "$steps" --wan "200mbit,20ms,0%" --codec lossless --threads "1,1")

quickstart calm "${options[@]}" || exit 1
reference="$(field "$work/calm.json" loss) $(field "$work/calm.json" weights_digest)"

n_steps_done() { # NAME: lines with a loss in the run's metrics
    cat "$work/$1"/run-*/site-a/state/jobs/*/metrics.jsonl 2>/dev/null | grep -c '"loss"'
}
step_reached() { [ "$(n_steps_done "$1")" -ge "$2" ]; }

lab() { # NAME ARGUMENT...: the lab of that run
    local wan

    wan=$(echo "$work/$1"/run-*/wan)
    shift
    WANLAB_DIR=$wan HDT_WANEM=$build/hdt-wanem "$src/scripts/wan-lab" "$@"
}

disturbed() { # NAME FAULT-FUNCTION
    local name=$1 fault=$2 pid

    quickstart "$name" "${options[@]}" &
    pid=$!
    if wait_beside "$pid" "$work/$name.log" step_reached "$name" 2; then
        $fault "$name"
    else
        fail "$name: did not reach step 2"
    fi
    wait "$pid" || {
        fail "$name: the run failed"
        return
    }
    same "$name: losses and weights" \
        "$(field "$work/$name.json" loss) $(field "$work/$name.json" weights_digest)" "$reference"
}

cut() {
    lab "$1" ctl link a b down
    sleep 10 # the fault itself
    lab "$1" ctl link a b up
}

# Resets all connections that a site has made to the gateway of the other; says how many they were.
resets() { # NAME SITE OTHER-ADDRESS
    lab "$1" exec "$2" ss -HtK state established dst "$3" dport = :7420 2>/dev/null | wc -l
}

reset_stream() {
    local n=0 round

    for ((round = 0; round < 12; round++)); do
        n=$((n + $(resets "$1" a 10.74.0.2) + $(resets "$1" b 10.74.0.1)))
        ! step_reached "$1" "$((steps - 2))" || break
        sleep 1 # between faults
    done
    check "$1: $n streams were reset" test "$n" -ge 5
}

reset_one() {
    local port

    port=$(lab "$1" exec b ss -Htn state established dst 10.74.0.1 | awk 'END { sub(/.*:/, "", $3); print $3 }')
    lab "$1" exec b ss -K state established dst 10.74.0.1 sport = ":$port" >/dev/null 2>&1
}

disturbed one-stream reset_one
disturbed all-streams reset_stream
disturbed link-cut cut

[ "$n_failed" = 0 ]
