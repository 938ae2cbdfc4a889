#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A device that is measured on its own, by a worker without a gateway, and planned with elsewhere: the
# file that it writes is all that goes from one to the other.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
of() { json_of "$2" <"$1.json"; } # NAME EXPRESSION

fed_model model.json
mkdir small profiles
cp model.json small/config.json
job job.yaml 8 "data.site: a" "batch.micro_batch: 2" "batch.seq_len: 32"

today=$(date -u +%Y-%m-%d)
hdt-worker --profile profiles/w0.json --model small/config.json --micro-batch 2,1 --seq-len 32 --threads 1 \
    --backend cpu >measured.txt || fail "hdt-worker --profile"
same "a line for each micro-batch, ascending" "1 2" \
    "$(awk 'NR > 1 {printf "%s%s", sep, $1; sep = " "}' measured.txt)"
same "the file says what it is of" "small cpu 1 fp32 32 32 96" \
    "$(of profiles/w0 '" ".join(map(str, [d["model"], d["source"].split()[-1], d["threads"], d["precision"], d["seq_len"], d["shape"]["hidden_size"], d["shape"]["intermediate_size"]]))')"
same "and when" True "$(of profiles/w0 "d['date'] in ('$today', '$(date -u +%Y-%m-%d)')")"
same "all times of a block are there, at both micro-batches" True \
    "$(of profiles/w0 'all(t[k + "_s"] > 0 for l in d["layers"] if l["kind"] == "block" for t in l["times"] for k in ("forward", "backward", "backward_input", "backward_weight"))')"
same "and those of embedding and head" "block embedding head" \
    "$(of profiles/w0 '" ".join(sorted(l["kind"] for l in d["layers"] if all(t["forward_s"] > 0 and t["backward_s"] > 0 for t in l["times"])))')"
same "and the optimizer's" True "$(of profiles/w0 'd["optimizer_s_per_param"] > 0')"

cat >cluster.json <<'EOT'
{"sites": [{"name": "a"}],
 "workers": [{"site": "a", "name": "w0", "device": "d", "backend": "cpu", "memory_bytes": 1073741824,
              "n_threads": 1, "profile_file": "profiles/w0.json"}],
 "links": []}
EOT
hdt plan --cluster cluster.json --json job.yaml >plan.json || fail "hdt plan --cluster"
# One worker: its step is what its file says of four micro-batches, and the optimizer.
python3 - <<'PY' || fail "the step is not what the profile says"
import json
f, p = json.load(open("profiles/w0.json")), json.load(open("plan.json"))
layers = {l["kind"]: l for l in f["layers"]}
at = {k: next(t for t in l["times"] if t["micro_batch"] == 2) for k, l in layers.items()}
both = {k: t["forward_s"] + t["backward_s"] for k, t in at.items()}
step = 4 * (both["embedding"] + 4 * both["block"] + both["head"])
step += f["optimizer_s_per_param"] * (layers["embedding"]["params"] + 4 * layers["block"]["params"] +
                                      layers["head"]["params"])
print(f"ok: by hand {1e3 * step:.4f} ms a step, planned {1e3 * p['step_s']:.4f}")
assert abs(p["step_s"] / step - 1) < 0.01
PY
same "the plan holds the profile itself" True \
    "$(of plan 'd["cluster"]["workers"][0]["profile"]["valid"] and "profile_file" not in d["cluster"]["workers"][0]')"
hdt simulate --cluster cluster.json --json plan.json >sim.json || fail "hdt simulate --cluster"
same "simulated, it takes as long" True "$(of sim "abs(d['step_s'] / $(of plan 'd["step_s"]') - 1) < 1e-3")"
# Twice as slow by its file, and nothing else changed.
python3 - <<'PY'
import json
f = json.load(open("profiles/w0.json"))
for l in f["layers"]:
    for t in l["times"]:
        t.update({k: 2 * v for k, v in t.items() if k.endswith("_s") and v})
f["optimizer_s_per_param"] *= 2
json.dump(f, open("profiles/slow.json", "w"))
PY
sed 's/w0\.json/slow.json/' cluster.json >slow.json
hdt simulate --cluster slow.json --json plan.json >sim.json || fail "hdt simulate --cluster slow.json"
same "on a device that is half as fast, twice as long" True \
    "$(of sim "abs(d['step_s'] / $(of plan 'd["step_s"]') - 2) < 0.02")"

# Between and beyond what was measured: one micro-batch of 3.
sed 's/micro_batch: 2/micro_batch: 3/' job.yaml >three.yaml
hdt plan --cluster cluster.json --json three.yaml >three.json || fail "a micro-batch between others"
check "a micro-batch that was not measured lies on a line" \
    test "$(of three 'd["cluster"]["workers"][0]["profile"]["micro_batch"]')" = 3

# What is wrong with a file is said once, with its place.
broken() { sed "$1" profiles/w0.json >profiles/broken.json; }
sed 's/w0\.json/broken.json/' cluster.json >broken.json
line_of() { grep -n "$1" profiles/broken.json | head -n 1 | cut -d : -f 1; }
broken 's/"forward_s": \([0-9]\)/"forward_s": -\1/'
refused 1 "profiles/broken.json:$(line_of forward_s):" hdt plan --cluster broken.json job.yaml
broken 's/"hidden_size": 32/"hidden_size": 64/'
refused 1 "profiles/broken.json:$(line_of hidden_size):" hdt plan --cluster broken.json job.yaml
broken 's/"seq_len": 32/"seq_len": 16/'
refused 1 "the profile was measured with seq_len 16, the job has 32" hdt plan --cluster broken.json job.yaml
broken 's/"optimizer_s_per_param": .*/"optimizer_s_per_param": null,/'
refused 1 "does not say how long the optimizer takes" hdt plan --cluster broken.json job.yaml
broken '$d'
refused 1 "profiles/broken.json:" hdt simulate --cluster broken.json plan.json
rm profiles/broken.json
refused 3 "hdt: broken.json: workers[0]: cannot read the profile" hdt simulate --cluster broken.json plan.json

refused 2 "--profile needs --model" hdt-worker --profile x.json
refused 2 "belong to --profile" hdt-worker --micro-batch 2 -c /dev/null
refused 2 "belong to --profile" hdt-worker --precision bf16 -c /dev/null
hdt-worker --profile x.json --precision int4 >out 2>err
same "a precision that is none ends it" 2 $?
check "and is named" says "precision takes fp32, bf16 or fp8, not 'int4'" err
refused 1 "cannot measure in bf16: backend 'cpu' computes in fp32" hdt-worker --profile x.json --precision bf16 \
    --model small/config.json --backend cpu
refused 3 "nowhere.json" hdt-worker --profile x.json --model nowhere.json
hdt-worker --profile nowhere/x.json --model small/config.json --micro-batch 1 --seq-len 8 >out 2>err
same "a folder that is not there ends it" 1 $?
check "and is named" says "cannot create 'nowhere/x.json'" err

[ "$n_failed" = 0 ]
