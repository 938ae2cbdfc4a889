#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Another plan in a run: a worker that becomes slow gets fewer blocks at the next checkpoint; no step
# is lost or done twice, the run becomes faster, and its bits are those of a calm one.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
steps=60 every=10
metrics() { cat a/state/jobs/*-"$1"/metrics.jsonl 2>/dev/null; }
at_step() { grep -q "^step $2/" "$1.log" 2>/dev/null; }

begin() { # NAME [LINE...]
    local name=$1

    shift
    # Blocks that fill a step, so that the speed of workers decides.
    job "$name.yaml" "$steps" "name: $name" "plan.min_stages: 2" "codec.activations: lossless" \
        "codec.activation_grads: lossless" "checkpoint.every: $every" "batch.seq_len: 64" \
        "batch.micro_batch: 4" "batch.n_micro_batches: 6" "$@"
    : >"$name.log"
    hdt submit --gateway "$(gateway_of a)" --json "$name.json" "$name.yaml" >"$name.log" 2>&1 </dev/null &
    pid=$!
    pids+=("$pid")
}

# As another program on its processors would: the worker has them a sixth of the time.
slow_down() { # WORKER
    python3 - "${worker_pid[$1]}" <<'PY' &
import os, signal, sys, time
pid = int(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
except ProcessLookupError:
    pass
finally:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
PY
    slower=$!
    pids+=("$slower")
}
is_replanned() { metrics "$1" | grep '"replan"' | grep -q "from b/w0 to a/w0"; }

fed_init lab ca
fed_data
fed_model model.json 's/"hidden_size": 32/"hidden_size": 128/; s/"intermediate_size": 96/"intermediate_size": 384/; s/"num_hidden_layers": 4/"num_hidden_layers": 8/'
site a
site b a="$(wan_of a)"
worker a w0
worker b w0
expect_federation a 2 2

# A busy machine is off its prediction by a part; a sixth of the time is off it by a multiple.
begin slowed "replan.drift: 0.5" "replan.gain: 0.1"
wait_until 60 at_step slowed 15 || fail "slowed: no step 15: $(tail -n 2 slowed.log)"
dir=$(echo a/state/jobs/*-slowed)
cp "$dir/plan.json" before.json
slow_down b/w0
slowed_at=$(grep -c '^step .*loss' slowed.log)
check "units move away from the slow worker" wait_until 240 is_replanned slowed
ends "the run" "$pid" 240
kill "$slower" && wait "$slower" 2>/dev/null
grep "faster plan" slowed.log
check "the follower reads why" \
    grep -q "a faster plan: b/w0 computes .*x slower than planned; .*from b/w0 to a/w0: .* s a step" slowed.log
check "metrics.jsonl is as documented" "$src/tests/e2e/metrics_check.py" lines "$src/doc/metrics.md" \
    "$dir/metrics.jsonl"
python3 - "$dir" "$every" "$steps" "$slowed_at" <<'PY' || fail "the run is not what it should be"
import json, statistics, sys
run, (every, n_steps, slowed_at) = sys.argv[1], map(int, sys.argv[2:])
lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
steps = [l for l in lines if "loss" in l]
if [l["step"] for l in steps] != list(range(1, n_steps + 1)):
    sys.exit("not each step once and in order")
event = next(l for l in lines if l.get("event") == "replan" and "from b/w0 to a/w0" in l["moves"])
last = max(l["step"] for l in steps if l["epoch"] < event["epoch"])
if event["cause"] != "speed" or last % every or event["step"] != last:
    sys.exit(f"epoch {event['epoch']} begins after step {last}, at no checkpoint, or says {event}")
gain = 1 - event["to_step_s"] / event["from_step_s"]
if not 0.1 <= gain < 1 or abs(gain - event["gain"]) > 1e-3:
    sys.exit(f"a gain of {event['gain']} is none of 0.1 at least, or not what its times say: {gain}")

def units(path, site):
    plan = json.load(open(path))["plan"]
    return sum(s["unit_end"] - s["unit_begin"] for s in plan["stages"]
               if plan["ranks"][s["rank"]]["site"] == site)

n_before, n_after = units("before.json", "b"), units(f"{run}/plan.json", "b")
if n_after >= n_before:
    sys.exit(f"b/w0 had {n_before} units and has {n_after}")
# Of an epoch the first two steps fill caches; so does the one in which the worker became slow.
slow = [l["step_s"] for l in steps if slowed_at + 1 < l["step"] <= last]
fast = [l["step_s"] for l in steps if l["step"] > last + 2 and l["epoch"] == event["epoch"]]
calm = [l["step_s"] for l in steps if 2 < l["step"] <= slowed_at]
text = ", ".join(f"{statistics.median(t):.3f} s ({len(t)} steps)" for t in (calm, slow, fast))
print(f"ok: after step {last} b/w0 has {n_after} of its {n_before} units; before, slowed, replanned: {text}")
if statistics.median(fast) >= statistics.median(slow):
    sys.exit("it is not faster than while it was slow")
PY

begin calm "replan.auto: false"
ends "the calm run" "$pid" 240
same "same losses and weights" "$(result_of slowed)" "$(result_of calm)"

[ "$n_failed" = 0 ]
