#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Outer steps: two sites that train the whole model each and average every three steps. Their weights
# are one; a run that is resumed has the bits of the whole one; two checkpoints fit the outer SGD.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"

run() { # NAME OPTION...
    local name=$1

    shift
    quickstart "$name" --loopback --outer 3 --threads 1,1 "$@" || {
        fail "run $name"
        exit 1
    }
}

# The folder of a run's checkpoint of a step.
step_of() { # NAME STEP
    echo "$(dirname "$(field "$work/$1.json" checkpoint | tr -d '"')")/$(printf 'step-%08d' "$2")"
}

run whole --cut 8,8 --steps 8 --checkpoint-every 3
same "the checkpoint's weights are those of all replicas" \
    "$(tr -d ' \n' <"$(step_of whole 8)/hdt.json" | grep -c "$(field "$work/whole.json" weights_digest | tr -d '"')")" 1
metrics=$(echo "$work"/whole/run-*/site-a/state/jobs/*/metrics.jsonl)
same "outer steps after steps 3, 6 and 8" \
    "$(sed -n 's/.*"step": *\([0-9]*\),.*"outer_loss".*/\1/p' "$metrics" | tr '\n' ' ')" "3 6 8 "
check "lines of steps are as documented" \
    python3 "${srcdir:-.}/tests/e2e/metrics_check.py" lines "${srcdir:-.}/doc/metrics.md" "$metrics"
for rank in 0 1; do
    check "rank $rank does outer steps" grep -q OUTER_SYNC "$work"/whole/run-*/*/state/jobs/*/trace-rank$rank.json
done
for file in outer-0 replica1-moments-0 outer-7 replica1-moments-7; do
    check "the checkpoint holds $file" test -s "$(step_of whole 6)/feedback-$file.bin"
done

# What is said of the run and of its plan has outer steps in it.
dir=$(dirname "$metrics")
hdt plan --validate "$dir" --json >"$work/validate.json" || fail "hdt plan --validate"
hdt simulate --json "$dir/plan.json" >"$work/simulate.json" || fail "hdt simulate"
check "measured times, rates and bytes have outer steps in them" python3 - "$metrics" "$work/whole.json" \
    "$work/validate.json" "$work/simulate.json" <<'PY'
import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
run, validated, simulated = (json.load(open(name)) for name in sys.argv[2:])
steps = [line for line in lines if "loss" in line]
pace, round_s = [], []
for line in steps:
    round_s.append(line["step_s"])
    heard = [rank["rank"] for rank in line["ranks"]]
    assert heard == ([0, 1] if "outer_steps" in line else [0]), line
    if "outer_steps" in line:
        assert len(round_s) == line["outer_steps"], line
        pace += [statistics.mean(round_s)] * len(round_s)
        round_s = []
assert abs(run["measured_step_s"] / statistics.median(pace) - 1) < 1e-9, run["measured_step_s"]
assert abs(validated["measured_step_s"] / statistics.median(pace[2:]) - 1) < 1e-9, validated["measured_step_s"]
assert abs(run["speed"]["tokens_per_s"] / run["tokens_per_s"] - 1) < 1e-9, run["speed"]
assert all(rank["measured_busy_s"] > 0 for rank in validated["ranks"]), validated["ranks"]
model = 4 * 1.17e6 / 3  # float32, once in three steps; lossless codecs take off some 15 %
for link in simulated["links"]:
    assert 0.5 * model < link["bytes_per_step"] < 1.1 * model, link
PY
check "a simulation says what scenarios do not change" \
    sh -c "hdt simulate '$dir/plan.json' | grep -q '^outer  *step every 3 steps'"

# A replica over two sites beside one on a third worker: its edge has its own micro-batches, 6 of 8.
python3 - "$dir/plan.json" "$work/cluster.json" <<'PY'
import copy, json, sys
cluster = json.load(open(sys.argv[1]))["cluster"]
third = copy.deepcopy(cluster["workers"][0])
third["name"] = "w1"
cluster["workers"].append(third)
json.dump(cluster, open(sys.argv[2], "w"))
PY
sed 's,^  cut: .*,  cut: [site-a/w0=4\, site-b/w0=4\, site-a/w1=8],; s/^  parts: .*/  parts: [6\, 2]/' \
    "$work"/whole/run-*/job.yaml >"$(echo "$work"/whole/run-*)/mixed.yaml"
hdt plan --cluster "$work/cluster.json" --explain --json "$work"/whole/run-*/mixed.yaml >"$work/mixed.json" ||
    fail "hdt plan, mixed"
same "frames of an edge, in words" 2 "$(grep -c '6 frames take' "$work/mixed.json")"
same "and for its codec" "6.0 6.0" "$(hdt codec explain "$work/mixed.json" --json |
    python3 -c 'import json, sys; print(*[e["frames"] for e in json.load(sys.stdin)])')"

# Resumed: the other cuts of replicas are in tests/unit/test_outer.c.
run resumed --cut 8,8 --steps 8 --resume "$(step_of whole 6)"
same "resumed after step 6: weights" "$(field "$work/resumed.json" weights_digest)" \
    "$(field "$work/whole.json" weights_digest)"
same "resumed after step 6: held-out loss" "$(field "$work/resumed.json" val_loss)" \
    "$(field "$work/whole.json" val_loss)"

# From two checkpoints in a row: what m says of d, a must follow.
check "weights and momentum of steps 6 and 8 are those of SGD with Nesterov momentum" \
    python3 - "$(step_of whole 6)" "$(step_of whole 8)" <<'PY'
import array, json, re, struct, sys

LR, MU = 0.7, 0.9


def weights(folder):  # by unit, tensors in the order of their unit
    data = open(folder + "/model.safetensors", "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + n])
    layers = 1 + max(int(m[1]) for m in (re.match(r"model\.layers\.(\d+)\.", k) for k in head) if m)
    units = {}
    order = sorted((v["data_offsets"][0], k) for k, v in head.items() if k != "__metadata__")
    for _, name in order:
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        unit = int(layer[1]) + 1 if layer else 0 if "embed" in name else layers + 1
        begin, end = head[name]["data_offsets"]
        units.setdefault(unit, array.array("f")).frombytes(data[8 + n + begin : 8 + n + end])
    return units


def momentum(folder, unit):
    values = array.array("f")
    values.frombytes(open(f"{folder}/feedback-outer-{unit}.bin", "rb").read())
    return values


a0, a1 = weights(sys.argv[1]), weights(sys.argv[2])
worst = moved = n = 0
for unit in a0:
    m0, m1 = momentum(sys.argv[1], unit), momentum(sys.argv[2], unit)
    assert len(m0) == len(m1) == len(a0[unit]) == len(a1[unit]), (unit, len(m0), len(a0[unit]))
    for i in range(len(m0)):
        d = m1[i] - MU * m0[i]
        want = a0[unit][i] - LR * (d + MU * m1[i])
        worst = max(worst, abs(want - a1[unit][i]))
        moved = max(moved, abs(a1[unit][i] - a0[unit][i]))
        n += 1
print(f"{n} values, moved by {moved:.3g} at most, off by {worst:.3g} at most")
sys.exit(not (worst < 1e-6 and moved > 1e-3 and n > 1000000))
PY

# What cannot be is refused before anything runs.
cd "$work"/whole/run-*/ || exit 1
job=job.yaml
sed 's/^  every: 3$/  every: 4/' "$job" >every.yaml
refused 1 "checkpoint.every 4 is no multiple of outer.steps 3" hdt plan every.yaml
check "and says what would do" grep -q "set checkpoint.every: 3" err
sed 's/^  steps: 3$/  steps: 3\n  codec: topk:16/' "$job" >codec.yaml
refused 1 "it keeps feedback" hdt plan codec.yaml
sed 's/w0=8, site-b/w0=7, site-b/' "$job" >cut.yaml
refused 1 "a replica has" hdt plan cut.yaml
sed 's/^  steps: 3$/  steps: 0/' "$job" >off.yaml
refused 1 "the cut has 16 units" hdt plan off.yaml

[ "$n_failed" = 0 ]
