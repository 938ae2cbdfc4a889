#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Another plan in a run: a worker that becomes slow gets fewer blocks at the next checkpoint; no step
# is lost or done twice, the run becomes faster, and its bits are those of a calm one. The runs go on
# until they have shown that, and are stopped then.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

slow_module_needed
cd "$work" || exit 1
every=10
run_of() { echo a/state/jobs/*-"$1"; }
metrics() { cat "$(run_of "$1")"/metrics.jsonl 2>/dev/null; }
checkpoints() { (cd "$1.yaml-ckpt" 2>/dev/null && echo step-*[0-9]) | tr ' ' '\n'; }

begin() { # NAME [LINE...]
    local name=$1

    shift
    # Blocks that fill a step, so that the speed of workers decides.
    job "$name.yaml" 100000 "name: $name" "plan.min_stages: 2" "codec.activations: lossless" \
        "codec.activation_grads: lossless" "checkpoint.every: $every" "checkpoint.keep: 1000" \
        "batch.seq_len: 64" "batch.micro_batch: 2" "batch.n_micro_batches: 4" \
        "eval.every: $((2 * every))" "eval.n_micro_batches: 2" "$@"
    : >"$name.log"
    env --default-signal=INT hdt submit --gateway "$(gateway_of a)" --json "$name.json" "$name.yaml" \
        >"$name.log" 2>&1 </dev/null &
    pid=$!
    pids+=("$pid")
}
stop_run() { # NAME: after the step in work, with a checkpoint
    kill -INT "$pid"
    run_ends "$1: the run" "$pid" "$1.log"
}

fed_init lab ca
fed_data
fed_model model.json 's/"hidden_size": 32/"hidden_size": 128/; s/"intermediate_size": 96/"intermediate_size": 384/; s/"num_hidden_layers": 4/"num_hidden_layers": 8/'
site a
site b a="$(wan_of a)"
worker a w0
touch fast
HDT_TEST_FAST=$work/fast slow_worker b w0
expect_federation a 2 2

# A neighbour on the machine takes a part of the speed; a drift of 2 is three times a step's time.
begin slowed "replan.auto: true" "replan.drift: 2" "replan.gain: 0.1"
reaches slowed 15 "$pid"
dir=$(run_of slowed)
cp "$dir/plan.json" before.json
rm fast
slowed_at=$(sed -n 's,^step \([0-9]*\)/.*loss.*,\1,p' slowed.log | tail -n 1)
# The first move of that kind: a neighbour on the machine may be the cause of others.
move() { metrics slowed | grep '"event":"replan"' | grep -m 1 "from b/w0 to a/w0"; }
is_replanned() { move >/dev/null; }
check "units move away from the slow worker" wait_beside "$pid" slowed.log is_replanned
# Steps enough for a median of the new plan, and a checkpoint of it.
last=$(move | json_of 'd["step"]')
reaches slowed $((${last:-0} + 2 * every + 2)) "$pid"
stop_run slowed
grep "faster plan" slowed.log
check "the follower reads why" \
    grep -q "a faster plan: b/w0 computes .*x slower than planned; .*from b/w0 to a/w0: .* s a step" slowed.log
check "metrics.jsonl is as documented" "$src/tests/e2e/metrics_check.py" lines "$src/doc/metrics.md" \
    "$dir/metrics.jsonl"
python3 - "$dir" "$every" "$slowed_at" <<'PY' || fail "the run is not what it should be"
import json, statistics, sys
run, (every, slowed_at) = sys.argv[1], map(int, sys.argv[2:])
lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
steps = [l for l in lines if "loss" in l]
if [l["step"] for l in steps] != list(range(1, len(steps) + 1)):
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

# One that is due while another is being written waits: the newest that both have.
touch fast
begin calm
newest_common() { comm -12 <(checkpoints slowed) <(checkpoints calm) | tail -n 1; }
has_common() { # of the new plan
    local newest

    newest=$(newest_common)
    [[ $newest = step-* && $((10#${newest#step-})) -gt ${last:-0} ]]
}
check "a calm run gets as far" wait_beside "$pid" calm.log has_common
stop_run calm
newest=$(newest_common)
sums_of() { (cd "$1.yaml-ckpt/$newest" && sha256sum model.safetensors optimizer.safetensors) 2>&1 | cut -c 1-64 | xargs; }
losses_of() { # NAME: those up to that checkpoint
    metrics "$1" | python3 -c '
import json, sys
lines = (json.loads(line) for line in sys.stdin)
print([l["loss"] for l in lines if "loss" in l and l["step"] <= int(sys.argv[1])])' $((10#${newest#step-}))
}
same "same losses up to $newest" "$(losses_of slowed)" "$(losses_of calm)"
same "same weights and moments in $newest" "$(sums_of slowed)" "$(sums_of calm)"

[ "$n_failed" = 0 ]
