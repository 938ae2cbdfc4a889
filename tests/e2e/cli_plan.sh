#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hdt plan LAYOUT.yaml: what is shown, written and refused.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"

cd "$work" || exit 1

plan() {
    hdt plan --catalogue "$src/etc/devices.yaml" "$@"
}
simulate() {
    hdt simulate --catalogue "$src/etc/devices.yaml" "$@"
}

# json EXPRESSION FILE: of the document d.
json() {
    python3 -c 'import json, sys
d = json.load(open(sys.argv[2]))
print(eval(sys.argv[1]))' "$1" "$2"
}

# ---- two sites ----
cat >cluster.yaml <<'END'
links: [{name: net, gb_per_s: 12.5}]
sites:
  - {name: a, nodes: [{name: a100, count: 2, device: A100-SXM4-40GB, between: net}]}
  - {name: b, nodes: [{name: v100, count: 2, device: V100-SXM2-32GB, between: net}]}
wan: [{from: a, to: b, rate: 1gbit, rtt_ms: 20, price_per_gb: 0.1}]
END
cat >job.yaml <<END
name: two sites
cluster: cluster.yaml
model: $src/tests/data/predict/models/gpt-1.3b.json
precision: fp16
seq_len: 1024
global_batch: 64
attention: fused
END
check "a plan" plan --output plan.yaml --svg plan.svg --trace plan.trace job.yaml
plan --json job.yaml >plan.json
simulate --json plan.yaml >simulated.json
same "a plan that is written simulates to the same step" True \
    "$(json 'd["step_s"] == json.load(open("plan.json"))["step_s"]' simulated.json)"
same "all of it fits" True "$(json 'all(r["fits"] for r in d["ranks"])' simulated.json)"
check "a picture" grep -q "</svg>" plan.svg
check "a trace" python3 -c 'import json; json.load(open("plan.trace"))'
plan --json job.yaml >again.json
same "twice the same plan" True \
    "$(json 'd["plan"] == json.load(open("plan.json"))["plan"]' again.json)"
plan --explain job.yaml >text
for word in predicted limit search critical "stage 0"; do
    check "the table says: $word" grep -q "$word" text
done
check "the step is the sum that is explained" grep -q "not chosen\|bounds plans of this shape" text

# ---- pins ----
plan --pin layers=embed,head site=b --json --output pinned.yaml job.yaml >pinned.json
same "tokens and labels stay where they are pinned" "['b'] ['b']" \
    "$(json 'str(d["between_sites"]["tokens"]) + " " + str(d["between_sites"]["labels"])' pinned.json)"
same "no flow carries them" True \
    "$(json 'all(f["kind"] != "labels" for f in d["between_sites"]["flows"])' pinned.json)"
same "the first and last stages are there" True \
    "$(json 'all(s["site"] == "b" for s in d["stages"] if s["stage"] in (0, d["stages"][-1]["stage"]))' \
        pinned.json)"
plan --pin layers=embed,head site=b --pin layers=5-8 site=a --output two.yaml job.yaml >two.txt
check "two pins in words of their own" grep -q "raw tokens are seen at b only" two.txt
check "the layers between are elsewhere" grep -qE "^[1-9][0-9]* +a\.a100" two.txt
refused 1 "no site 'c'" plan --pin 'layers=embed site=c' job.yaml
refused 1 "fewer layers" plan --pin 'layers=99 site=a' job.yaml
refused 1 "the same is pinned" plan --pin 'layers=embed site=a' --pin 'layers=embed site=b' job.yaml
refused 1 "holds what is pinned" plan --pin 'layers=embed site=a' --without a job.yaml

# ---- without, what if, compare, current ----
plan --without b --json job.yaml >without.json
same "no stage is at a site that is gone" True \
    "$(json 'all(s["site"] != "b" for s in d["stages"])' without.json)"
refused 1 "no site 'x'" plan --without x job.yaml
refused 1 "no site is left" plan --without a --without b job.yaml
plan --what-if wan=100gbit --json job.yaml >faster.json
same "a faster link is no worse" True \
    "$(json 'd["step_s"] <= d["without_what_if_step_s"] * 1.0001' faster.json)"
refused 1 "there is no such key" plan --what-if speed=2 job.yaml
refused 2 "change its file" plan --what-if wan=10gbit --output x.yaml job.yaml
plan --compare pinned.yaml --json job.yaml >compared.json
same "a plan of fewer choices is not faster" True \
    "$(json 'd["compare"]["step_s"] >= d["step_s"] * 0.9999' compared.json)"
same "it takes what it took" True \
    "$(json 'd["compare"]["step_s"] == json.load(open("pinned.json"))["step_s"]' compared.json)"
{
    cat job.yaml
    echo "micro_batch: 64"
    echo "stages: [{layers: 24, on: [{site: a, nodes: a100}]}]"
} >misfit.yaml
plan --compare misfit.yaml --json job.yaml >compared.json
same "a plan that does not fit is no reason to show none" "False True" \
    "$(json 'str(d["compare"]["fits"]) + " " + str(d["step_s"] > 0)' compared.json)"
plan --compare misfit.yaml job.yaml >text
check "it is said in words" grep -q "misfit.yaml does not fit" text
sed 's/^global_batch: 64/global_batch: 128/' job.yaml >larger.yaml
refused 1 "its global_batch differs" plan --compare plan.yaml larger.yaml
sed 's/rate: 1gbit/rate: 2gbit/' cluster.yaml >other-cluster.yaml
sed 's/cluster: cluster/cluster: other-cluster/' job.yaml >other.yaml
refused 1 "its cluster differs" plan --compare plan.yaml other.yaml
plan --current plan.yaml --json job.yaml >current.json
same "nothing moves when nothing changed, but the search goes on from there" "0 True" \
    "$(json 'str(d["current"]["layers_moved"]) + " " + str(d["current"]["goes_on"] or d["step_s"] < d["current"]["step_s"])' current.json)"
plan --current plan.yaml --pin layers=embed,head site=b --json job.yaml >moved.json
same "what runs does not break a pin" "['b'] ['b']" \
    "$(json 'str(d["between_sites"]["tokens"]) + " " + str(d["between_sites"]["labels"])' moved.json)"
plan --current pinned.yaml --without b --json job.yaml >moved.json
same "a lost site: all of it moves" True \
    "$(json 'd["current"]["step_s"] is None and d["current"]["layers_moved"] > 0' moved.json)"

# ---- a site of three is lost, and the others go on; 13B fits on no site alone ----
cat >three-cluster.yaml <<'END'
links: [{name: net, gb_per_s: 12.5}]
sites:
  - {name: a, nodes: [{name: v100, count: 1, device: V100-SXM2-32GB, between: net}]}
  - {name: b, nodes: [{name: v100, count: 1, device: V100-SXM2-32GB, between: net}]}
  - {name: c, nodes: [{name: v100, count: 1, device: V100-SXM2-32GB, between: net}]}
wan: [{from: a, to: b, rate: 1gbit, rtt_ms: 20}, {from: b, to: c, rate: 1gbit, rtt_ms: 20},
      {from: a, to: c, rate: 1gbit, rtt_ms: 20}]
END
sed 's/cluster.yaml/three-cluster.yaml/; s/gpt-1.3b/gpt-13b/' job.yaml >three-job.yaml
plan --output runs.yaml three-job.yaml >runs.txt
for steps in 1 1000000; do
    plan --current runs.yaml --without b --steps-left $steps --json --explain three-job.yaml >again.json
    same "$steps steps left: the sum is of steps and moves" True \
        "$(json 'abs(d["current"]["total"] - '$steps' * d["step_s"] - d["current"]["seconds"]) < 1e-6 * d["current"]["total"]' again.json)"
    same "it is no worse than the repair and the plan anew" True \
        "$(json 'all(d["current"]["total"] <= d["current"][w]["total"] * (1 + 1e-9) for w in ("repair", "anew"))' again.json)"
    same "the list has all that moves" True \
        "$(json 'abs(sum(m["bytes"] for m in d["current"]["moves"]) - sum(d["current"][k] for k in ("site_bytes", "wan_bytes", "stored_bytes"))) < 1' again.json)"
    same "nothing comes from the site that is gone" True \
        "$(json 'all(not (m["from"] or "").startswith("b.") for m in d["current"]["moves"])' again.json)"
    same "the sums are explained" True \
        "$(json 'any("steps left x" in line for line in d["explain"])' again.json)"
    cp again.json again-$steps.json
done
same "with fewer steps left no more moves" True \
    "$(json 'd["current"]["seconds"] <= json.load(open("again-1000000.json"))["current"]["seconds"] * (1 + 1e-9)' again-1.json)"
plan --current runs.yaml --without b --steps-left 1 three-job.yaml >text
check "why the old plan cannot go on" grep -q "^current    cannot go on: .*'b'" text
check "what moves, from the checkpoint" grep -qE "the checkpoint +[ac]\.v100" text
# Each search goes on from the plan before it, until there is nothing to be gained.
for _ in 1 2 3 4 5 6 7 8; do
    plan --current runs.yaml --steps-left 1 --output next.yaml three-job.yaml >text
    grep -q "^current    keep: " text && break
    mv next.yaml runs.yaml
done
check "nothing is lost: in the end it is kept" grep -q "^current    keep: .* no other plan pays" text
check "and nothing moves" grep -q "^moves      0 of .*nothing waits" text
refused 2 "belongs to --current" plan --steps-left 5 job.yaml
refused 2 "is not a number of steps" plan --current plan.yaml --steps-left 0 job.yaml

# ---- objectives, limits, what cannot be ----
plan --objective cost --device-price 2 --compare plan.yaml --json job.yaml >cost.json
same "the cheapest plan is not dearer" True \
    "$(json '0 < d["objective"] <= 1.0001 * d["compare"]["objective"] and d["search"]["objective"] == "cost"' cost.json)"
plan --time-limit 10s job.yaml >text
check "a time limit that is long enough" grep -q "^predicted" text
refused 2 "is not a time" plan --time-limit soon job.yaml
large=$src/tests/data/plan/speed/10000.yaml
plan --time-limit 1ms "$large" >text
check "a time limit that is too short: the best so far" grep -q "^predicted" text
check "and says so" grep -q "cut short: there may be better ones" text
# Ctrl-C as soon as it is caught, which is when the search begins.
hdt plan --catalogue "$src/etc/devices.yaml" "$large" >text &
pid=$!
catches_int() { grep -qE '^SigCgt:.*[2367abef]$' "/proc/$pid/status"; }
check "the search listens" wait_until 60 catches_int
kill -INT "$pid"
wait "$pid"
same "Ctrl-C: the best so far, and it ends well" 0 $?
check "what is predicted" grep -q "^predicted" text
check "and that it was cut" grep -q "cut short: there may be better ones" text
refused 2 "none of throughput" plan --objective speed job.yaml
sed 's|gpt-1.3b.json|gpt-13b.json|; s|global_batch: 64|global_batch: 64\nrecompute: none\noffload: none|' \
    job.yaml >large.yaml
sed 's/count: 2/count: 1, devices: 1/; s/, between: net//' cluster.yaml >small.yaml
refused 1 "large.yaml:7:12: cannot plan 'two sites': nothing fits" plan --cluster small.yaml large.yaml
refused 2 "is for layouts" plan --without a "$src/etc/job.yaml"
refused 3 "" plan nothing.yaml
check "etc/layout.yaml is planned" plan "$src/etc/layout.yaml"

# ---- what README.md shows of layouts, in its order ----
mkdir readme && cd readme && ln -s "$src/etc" "$src/tests" . || exit 1
n_shown=0
while read -r line; do
    n_shown=$((n_shown + 1))
    check "README: $line" bash -c "$line >shown"
done < <(grep -E '^hdt (plan|simulate) .*(etc/layout|tests/data/|plan\.yaml)' "$src/README.md" |
    sed -E 's, *#.*,,; s,^hdt (plan|simulate),& --catalogue etc/devices.yaml,')
check "README has some" [ "$n_shown" -ge 6 ]
cd ..
[ "$n_failed" = 0 ]
