#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Replicas that lose a worker or a gateway between outer steps: the job goes on from the last outer step
# that has a checkpoint, with the bits of a run that nothing disturbed; or without the replica, if it
# may. A job that is stopped stops at an outer step.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
run_of() { echo a/state/jobs/*-"$1"; }
metrics() { cat "$(run_of "$1")"/metrics.jsonl; }
steps_of_epoch() { [ "$(metrics "$1" 2>/dev/null | grep -c "\"loss\".*\"epoch\":$2")" -ge 1 ]; }

# Losses of all steps and of all rounds, the last word on each, and the weights.
bits() { # NAME
    python3 - "$(run_of "$1")/metrics.jsonl" "$1.json" <<'PY'
import hashlib, json, sys
losses = {}
for line in open(sys.argv[1]):
    line = json.loads(line)
    if "loss" in line:
        losses[line["step"]] = (line["loss"], line.get("outer_loss"))
print(len(losses), hashlib.md5(repr(sorted(losses.items())).encode()).hexdigest()[:16],
      json.load(open(sys.argv[2]))["weights_digest"])
PY
}

# 240 steps, an outer one every 4, a checkpoint every 12; its submitter is $pid.
begin() { # NAME [LINE...]
    local name=$1

    shift
    job "$name.yaml" 240 "name: $name" "outer.steps: 4" "outer.parts: [\"3\", \"1\"]" \
        "plan.cut: [\"a/w0=6\", \"b/w0=6\"]" "checkpoint.every: 12" "$@"
    : >"$name.log"
    hdt submit --gateway "$(gateway_of a)" --json "$name.json" "$name.yaml" >"$name.log" 2>&1 </dev/null &
    pid=$!
}

ends_as() { # NAME
    run_ends "$1: the run" "$pid" "$1.log"
    same "$1: losses and weights" "$(bits "$1")" "$reference"
    check "$1: it was started again" grep -q '"epoch":2' "$(run_of "$1")/metrics.jsonl"
}

lose() { # WORKER
    kill -9 "${worker_pid[$1]}"
    wait "${worker_pid[$1]}" 2>/dev/null
}

fed_init
fed_data
site a
site b a="$(wan_of a)"
gateway_stays b
worker a w0
worker b w0
expect_federation a 2 2

section "calm"
begin calm
run_ends "calm: the run" "$pid" calm.log
reference=$(bits calm)
echo "   $reference"

section "a worker of either replica dies"
for victim in b/w0 a/w0; do
    name=dies-${victim%/*}
    begin "$name"
    reaches "$name" 30 "$pid"
    lose $victim
    wait_until 10 grep -q "recovering: worker $victim is lost" "$name.log" || fail "$name: nobody says so"
    worker "${victim%/*}" w0
    ends_as "$name"
done

section "a worker dies with its gateway"
begin both
reaches both 30 "$pid"
lose b/w0
kill -9 "${gateway_pid[b]}"
wait "${gateway_pid[b]}" 2>/dev/null
gateway_start b
worker b w0
ends_as both

section "a gateway alone changes no bit"
begin gateway
reaches gateway 30 "$pid"
kill -9 "${gateway_pid[b]}"
wait "${gateway_pid[b]}" 2>/dev/null
gateway_start b
run_ends "gateway: the run" "$pid" gateway.log
same "gateway: losses and weights" "$(bits gateway)" "$reference"

section "a replica that does not come back"
begin alone "outer.parts: []" "plan.cut: []" "recovery.wait: 2s" "outer.steps: 60" "checkpoint.every: 60"
reaches alone 65 "$pid"
grep -q '^replica 2' alone.log || echo "   the plan is one pipeline here: another loss"
lose b/w0
wait_beside "$pid" alone.log steps_of_epoch alone 2 || fail "alone: no step without b/w0"
run_ends "alone: the run" "$pid" alone.log
check "alone: it is said who is missing" grep -q "b/w0 did not come back" alone.log
worker b w0
expect_federation a 2 2

section "a replica that a cut names"
begin held "recovery.wait: 2s"
reaches held 30 "$pid"
lose b/w0
why_not() { grep -q "it cannot go on without b/w0: " held.log; }
check "held: it is said why" wait_until 20 why_not
worker b w0
ends_as held

section "stopped between outer steps, and resumed"
begin stopped
reaches stopped 30 "$pid"
check "stop" eval 'hdt stop --gateway "$(gateway_of a)" >stop.out'
wait "$pid"
newest=$(find stopped.yaml-ckpt -maxdepth 1 -name 'step-????????' | sort | tail -n 1)
check "stopped: at an outer step, not at ${newest##*/}" test "$((10#${newest##*-} % 4))" = 0
job again.yaml 240 "name: again" "outer.steps: 4" "outer.parts: [\"3\", \"1\"]" "plan.cut: [\"a/w0=6\", \"b/w0=6\"]"
submit a again --resume "$newest" || fail "again: the run"
same "again: weights" "$(field again.json weights_digest)" "$(field calm.json weights_digest)"

section "end"
[ "$n_failed" = 0 ]
