#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Another plan in a run: a worker that becomes slow gets less to do, one that joins is used; the run
# becomes faster, and its bits are those of a calm one.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
at_step() { grep -q "^step $2/" "$1.log" 2>/dev/null; }
metrics() { cat a/state/jobs/*-"$1"/metrics.jsonl; }

# The last word on each step's loss, and the weights.
bits() { # NAME
    metrics "$1" | PYTHONHASHSEED=0 python3 -c '
import json, sys
losses = {}
for line in map(json.loads, sys.stdin):
    if "loss" in line:
        losses[line["step"]] = line["loss"]
print(len(losses), hash(tuple(sorted(losses.items()))))'
    field "$1.json" weights_digest
}

# Median step time of the last twenty steps of an epoch.
step_s() { # NAME EPOCH
    metrics "$1" | python3 -c '
import json, statistics, sys
times = [l["step_s"] for l in map(json.loads, sys.stdin) if "loss" in l and l["epoch"] == int(sys.argv[1])]
print(statistics.median(times[-20:]))' "$2"
}

begin() { # NAME [LINE...]
    local name=$1

    shift
    job "$name.yaml" 400 "name: $name" "plan.min_stages: 2" "codec.activations: lossless" \
        "codec.activation_grads: lossless" "checkpoint.every: 20" "$@"
    : >"$name.log"
    hdt submit --gateway "$(gateway_of a)" --json "$name.json" "$name.yaml" >"$name.log" 2>&1 </dev/null &
    pid=$!
    pids+=("$pid")
}

# As another program on its processors would: the worker has them a quarter of the time.
slow_down() { # WORKER
    python3 - "${worker_pid[$1]}" <<'PY' &
import os, signal, sys, time
pid = int(sys.argv[1])
try:
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.03)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
except ProcessLookupError:
    pass
PY
    slower=$!
}
speed_up() { # WORKER
    kill "$slower" && wait "$slower" 2>/dev/null
    kill -CONT "${worker_pid[$1]}"
}
has_moved() { metrics "$1" 2>/dev/null | grep '"replan"' | grep -q "$2"; }

fed_init
fed_data
site a
site b a="$(wan_of a)"
worker a w0
worker b w0
expect_federation a 2 2

begin calm "replan.auto: false"
ends "calm: the run" "$pid" 60
reference=$(bits calm)

begin slowed "replan.drift: 1"
wait_until 20 at_step slowed 30 || fail "slowed: no step 30"
slow_down b/w0
check "slowed: another plan is taken" wait_until 60 has_moved slowed '"cause":"speed"'
check "slowed: units move away from the slow worker" has_moved slowed 'from b/w0 to a/w0'
ends "slowed: the run" "$pid" 90
speed_up b/w0
check "slowed: the follower reads why" grep -q "a faster plan, .* s a step: " slowed.log
echo "   $(step_s slowed 1) s a step before, $(step_s slowed 2) s after"
check "slowed: the run is faster" test "$(echo "$(step_s slowed 2) < $(step_s slowed 1)" | bc)" = 1
same "slowed: losses and weights" "$(bits slowed)" "$reference"
check "metrics.jsonl is as documented" "$src/tests/e2e/metrics_check.py" lines "$src/doc/metrics.md" \
    "$(echo a/state/jobs/*-slowed)/metrics.jsonl"

slow_down b/w0
begin joined "replan.drift: 100"
wait_until 60 at_step joined 30 || fail "joined: no step 30"
worker a w1
check "joined: the new worker is used" wait_until 60 has_moved joined 'a/w1'
ends "joined: the run" "$pid" 90
speed_up b/w0
same "joined: losses and weights" "$(bits joined)" "$reference"

[ "$n_failed" = 0 ]
