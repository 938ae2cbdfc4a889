#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The planner reacts to what there is: a slower worker gets less, a narrow link another codec; it says
# why; and a run can be laid on its plan.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

slow_module_needed
cd "$work" || exit 1
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
plan() { # SITE NAME OPTION...: the plan of $work/NAME.yaml into NAME.json
    local site=$1 name=$2

    shift 2
    hdt plan --gateway "$(gateway_of "$site")" --json --explain "$@" "$work/$name.yaml" >"$name.json" 2>"$name.err" ||
        fail "plan $name: $(tail -n 2 "$name.err")"
}
of() { json_of "$2" <"$1.json"; } # NAME EXPRESSION

fed_init lab ca
fed_data
listen=127.0.0.1:0 site a
listen='' site b a="$(wan_of a)"
worker a w0
worker b w0
expect_federation a 2 2

section "a worker that is slower"
# Blocks that take milliseconds, so that their speed decides and not the frames.
fed_model model.json 's/"hidden_size": 32/"hidden_size": 128/; s/"intermediate_size": 96/"intermediate_size": 384/; s/"num_hidden_layers": 4/"num_hidden_layers": 12/'
job even.yaml 8 "plan.min_stages: 2" "batch.n_micro_batches: 16" "batch.seq_len: 64"
plan a even
# The same cluster with figures that no neighbour on this machine had a part in; b as fast as a, and
# three times as slow.
python3 - <<'PY'
import json
c = json.load(open("even.json"))["cluster"]
times = {"embed_fwd_s": 1e-5, "embed_bwd_s": 1e-5, "block_fwd_s": 2e-3, "block_bwd_s": 4e-3,
         "block_bwd_input_s": 2.2e-3, "block_bwd_weight_s": 1.8e-3,
         "head_fwd_s": 5e-4, "head_bwd_s": 1e-6, "op_overhead_s": 1e-7, "step_s_per_param": 1e-9}
for link in c["links"]:
    link.update(rate_bytes_per_s=1.25e9, rtt_s=1e-4, up=True)
for s in c["sites"]:
    s["gateway"].update(send_s_per_byte=1e-9, recv_s_per_byte=1e-9, encode_bytes_per_s=2e9,
                        decode_bytes_per_s=4e9)
for name, slower in ("same", 1), ("slow-b", 3):
    for w in c["workers"]:
        w["profile"].update({k: t * (slower if w["site"] == "b" else 1) for k, t in times.items()})
        w["profile"].update(cast_bytes_per_s=5e9, copy_bytes_per_s=1e10)
    json.dump({"cluster": c}, open(f"{name}.json", "w"))
PY
units_of_b='sum(s["unit_end"] - s["unit_begin"] for s in d["plan"]["stages"] if d["plan"]["ranks"][s["rank"]]["site"] == "b")'
sed 's/^data:/data:\n  site: a/' even.yaml >cut.yaml
hdt plan --cluster same.json --json cut.yaml >same-plan.json
hdt plan --cluster slow-b.json --json --explain cut.yaml >slow-plan.json
same_b=$(of same-plan "$units_of_b") slow_b=$(of slow-plan "$units_of_b")
check "b has 6 to 8 of 14 units when it is as fast: $same_b" test "$same_b" -ge 6 -a "$same_b" -le 8
check "and fewer when it is three times as slow: $slow_b" test "$slow_b" -le $((same_b - 2))
check "it is said why" says "b/w0 is 3.0x slower a block than a/w0" slow-plan.json
check "and what another schedule would take" says "schedule zb-h1 would take" slow-plan.json
for schedule in gpipe 1f1b interleaved zb-h1 zb-mem wan; do
    hdt plan --cluster same.json --json --schedule $schedule cut.yaml >schedule.json
    same "plan --schedule $schedule" "$schedule" "$(of schedule 'd["plan"]["schedule"]')"
done
# By figures, so that it is the same on every machine: the best of all, or within 2 % of it.
hdt plan --cluster same.json --json --explain --schedule auto cut.yaml >auto.json
check "auto takes one of them: $(of auto 'd["plan"]["schedule"]')" says "plan.schedule auto is $(of auto 'd["plan"]["schedule"]')" auto.json
hdt plan --cluster same.json --json --schedule auto cut.yaml >again.json
same "and the same again" "$(of auto 'd["plan"]')" "$(of again 'd["plan"]')"
python3 - <<'EOT' || fail "another order is faster by more than 2 %"
import json, re
d = json.load(open("auto.json"))
lines = [re.match(r"schedule (\S+) would take ([\d.]+) s", l) for l in d["explain"]]
others = {m[1]: float(m[2]) for m in lines if m}
print("ok:", d["plan"]["schedule"], d["step_s"], "others", others)
assert len(others) >= 4 and d["step_s"] * 0.98 <= min(others.values()) + 5e-4, others
EOT
refused 2 "--schedule '2f2b' is unknown" hdt plan --cluster same.json --schedule 2f2b cut.yaml

section "a plan, simulated"
hdt simulate --json --svg sim.svg --trace sim-trace.json same-plan.json >sim.json || fail "hdt simulate"
same "its step is the plan's" "True" "$(of sim "abs(d['step_s'] / $(of same-plan 'd["step_s"]') - 1) < 1e-3")"
check "the picture is XML" python3 -c 'import xml.dom.minidom as m; m.parse("sim.svg")'
check "the trace is JSON" python3 -c 'import json; json.load(open("sim-trace.json"))["traceEvents"][0]'
hdt simulate --json --scenario straggler:rank=0,factor=2 same-plan.json >sim.json || fail "hdt simulate --scenario"
same "a straggler costs time" "True" "$(of sim 'd["step_s"] > 1.2 * d["calm_step_s"]')"
refused 2 "it uses a/b, b/a" hdt simulate --scenario outage:link=a/c,to=1 same-plan.json
refused 1 "'hdt plan --json JOB.YAML' prints one" hdt simulate same.json

section "a worker that is slower for real"
restart_b() { # HOW: worker or slow_worker
    kill "${worker_pid[b/w0]}" && wait "${worker_pid[b/w0]}" 2>/dev/null
    wait_until 10 federation_has a 2 1 || fail "the end of b/w0 was not seen"
    "$1" b w0
    expect_federation a 2 2
}
restart_b slow_worker
plan a even
times='[round(1e3 * (w["profile"]["block_fwd_s"] + w["profile"]["block_bwd_s"]), 2) for w in sorted(d["cluster"]["workers"], key=lambda w: w["site"])]'
check "its profile says so: a and b take $(of even "$times") ms a block" \
    test "$(of even "(lambda t: t[1] > 2 * t[0])($times)")" = True
got_b=$(of even "$units_of_b")
check "it gets $got_b of 14 units" test "$got_b" -lt 6
check "and why" says "b/w0 is" even.json
restart_b worker

section "a link that is narrowed for real"
# What pays depends on how fast this machine codes and sends: as it says itself of each link.
codecs_are_as_said() { # NAME
    python3 - "$1" <<'PY'
import json, re, sys
d = json.load(open(f"{sys.argv[1]}.json"))
rate = lambda number, unit: float(number) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]
line = re.compile(r"link (\w+) -> (\w+) carries ([\d.]+) ([kMGT]?)bit/s: (\S+) .*?"
                  r"(?:break-even at ([\d.]+) ([kMGT]?)bit/s|at no rate)(.*)")
said = {m[1]: m for m in map(line.match, d["explain"]) if m}
assert sorted(said) == ["a", "b"], d["explain"]
for edge in d["edges"]:
    m = said[edge["from"]]
    assert edge["codec"] == m[5] and edge["codec"] in ("none", "lossless"), (edge, m[0])
    if not m[6] or "the step is faster" in m[8]:
        continue
    carries, even = rate(m[3], m[4]), rate(m[6], m[7])
    # Rounded figures; and where both take as long, either will do.
    if not 0.9 < carries / even < 1.1 and (edge["codec"] == "lossless") != (carries < even):
        sys.exit(f"{m[0]}")
PY
}
edge='next(e for e in d["edges"] if e["from"] == "b")'
plan a even
check "on loopback a codec is used where its break-even says so" codecs_are_as_said even
stop_gateway b
# So narrow that the link, not the processors, takes the step's time on a slow or busy machine too:
# a frame of 65.5 kB takes 105 ms.
listen='' rate=5mbit gateway_conf b a="$(wan_of a)"
gateway_start b
expect_federation a 2 2
plan a even --remeasure
# No more than the cap; a machine that is busy elsewhere may not reach it.
check "5 Mbit/s from b are measured: $(of even "${edge}['rate_bits_per_s']")" \
    test "$(of even "1e6 < ${edge}['rate_bits_per_s'] < 5.5e6")" = True
same "gradients from there are coded" lossless "$(of even "${edge}['codec']")"
check "and the other way as its break-even says" codecs_are_as_said even

section "a link that is narrower"
python3 - <<'PY'
import json
c = json.load(open("same.json"))["cluster"]
for name, rate in ("wide", 5e9), ("narrow", 6e5), ("hopeless", 2e4):
    for link in c["links"]:
        link.update(rate_bytes_per_s=rate, rtt_s=0.04, up=True)
    json.dump({"cluster": c}, open(f"{name}.json", "w"))
PY
codec='d["edges"][0]["codec"] if d["edges"] else "no edge"'
sed 's/min_stages: 2/min_stages: 1/' cut.yaml >free.yaml
for name in wide narrow; do
    hdt plan --cluster $name.json --json --explain cut.yaml >$name-plan.json
done
hdt plan --cluster hopeless.json --json free.yaml >hopeless-plan.json
same "over 40 Gbit/s no codec pays" none "$(of wide-plan "$codec")"
same "over 4.8 Mbit/s one does" lossless "$(of narrow-plan "$codec")"
check "with its break-even" says "break-even at" narrow-plan.json
same "over 160 kbit/s one site does it all" "no edge" "$(of hopeless-plan "$codec")"
lossy=narrow-lossy
sed 's/^codec:.*/&/; s/^plan:/codec:\n  lossy: true\nplan:/' cut.yaml >$lossy.yaml
hdt plan --cluster narrow.json --json $lossy.yaml >$lossy-plan.json
same "where loss is allowed, int8 too" int8+lossless "$(of $lossy-plan "$codec")"
sed 's/^  lossy: true/  activations: bf16+lossless\n  activation_grads: bf16+lossless/' $lossy.yaml >narrow-bf16.yaml
hdt plan --cluster narrow.json --json narrow-bf16.yaml >narrow-bf16-plan.json
same "which takes less than bf16" True "$(of $lossy-plan "d['step_s'] < $(of narrow-bf16-plan 'd["step_s"]')")"

section "a run beside its plan"
job run.yaml 12 "plan.cut: [a/w0=3, b/w0=3]"
fed_model model.json
check "a run" submit a run
check "it says how fast" says "TFLOP/s of the model" run.log
check "and what each rank's time went to" grep -qE '^1 +b/w0 .*%.*%' run.log
python3 - <<'PY' || fail "speed or shares are wrong"
import json
run, m = json.load(open("run.json")), json.load(open("model.json"))
C, F, L, V, T = m["hidden_size"], m["intermediate_size"], m["num_hidden_layers"], m["vocab_size"], 32
q = C // m["num_attention_heads"] * m["num_attention_heads"]
kv = C // m["num_attention_heads"] * m["num_key_value_heads"]
# 6 for each weight of a product, and for each of two products a head does half of a square of T.
flops = 2 * 4 * T * (6 * (L * (2 * C * q + 2 * C * kv + 3 * C * F) + C * V) + 6 * L * q * T)
speed = run["speed"]
assert abs(speed["model_flops_per_s"] * run["measured_step_s"] / flops - 1) < 1e-6, (speed, flops)
assert speed["peak_flops_per_s"] is None and speed["utilization"] is None  # no catalogue has this machine
assert [r["worker"] for r in sorted(run["ranks"], key=lambda r: r["rank"])] == ["a/w0", "b/w0"]
for r in run["ranks"]:
    spent = sum(r["ops"].values()) + r["train_wait_s"]
    assert r["memory_bytes"] > 0 and r["ops"]["FORWARD"] > 0 and r["ops"]["BACKWARD"] > 0 and r["ops"]["STEP"] > 0
    assert 0.5 * r["train_s"] < spent <= r["train_s"] * 1.001, r
PY
dir=$(field run.json run_dir | tr -d '"')
check "the run keeps its plan" test -s "$dir/plan.json"
hdt plan --validate "$dir" --json --trace both.json >validate.json || fail "validate"
check "no trace is missing" test -z "$(of validate 'd["missing"]')"
same "it names a step of both" "True" "$(of validate 'd["predicted_step_s"] > 0 and d["measured_step_s"] > 0')"
check "and says what differs most: $(of validate 'd["cause"]')" test -n "$(of validate 'd["cause"]')"
hdt plan --gateway "$(gateway_of a)" --validate 1 >validate.txt || fail "validate by number"
check "by its number too" says "wait for frames" validate.txt
hdt plan --validate "$dir" --write-profiles corrected >validate.txt || fail "write-profiles"
check "it writes what its workers took" says "profiles   2 of 2 ranks in corrected" validate.txt
check "stage by stage" says "stage, ms of an op" validate.txt
hdt simulate --cluster corrected/cluster.json --json "$dir/plan.json" >sim.json || fail "simulate with corrected profiles"
# As measured, but for what is no op of a stage.
python3 - <<'PY' || fail "the corrected profiles do not say what was measured"
import json
v = json.load(open("validate.json"))
for s in v["stages"]:
    p = json.load(open(f"corrected/rank{s['rank']}.json"))
    times = {l["kind"]: l["times"][0] for l in p["layers"]}
    # Of six units each rank has three: two blocks beside the embedding or the head.
    end = times["embedding" if s["stage"] == 0 else "head"]
    got = 2 * times["block"]["forward_s"] + end["forward_s"]
    op = s["ops"]["FORWARD"]
    # Where gateways hold up a rank, that share is not in a profile.
    assert 0.5 < got / op["measured_s"] < 1.01, (got, op)
PY
same "profiles of no run: exit status" 2 "$(hdt plan --write-profiles x run.yaml >/dev/null 2>&1; echo $?)"
refused 3 "no run in" hdt plan --validate "$work/nowhere"
same "neither job nor run: exit status" 2 "$(hdt plan >/dev/null 2>&1; echo $?)"
same "both: exit status" 2 "$(hdt plan --validate "$dir" run.yaml >/dev/null 2>&1; echo $?)"
# The classes of a rank fill its step: that is what they are for.
python3 - <<'PY' || fail "the classes of a rank are not its step"
import json
v = json.load(open("validate.json"))
for r in v["ranks"]:
    got = sum(c["predicted_s"] for c in r["classes"].values())
    assert abs(got / v["predicted_step_s"] - 1) < 0.02, (got, v["predicted_step_s"])
    got = sum(c["measured_s"] for c in r["classes"].values())
    assert 0.5 < got / v["measured_step_s"] < 1.5, (got, v["measured_step_s"])
PY
python3 - both.json <<'PY' || fail "a trace viewer would not show both.json as meant"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
assert sorted(n.split()[0] for n in names.values()) == ["measured"] * 2 + ["predicted"] * 2, names
threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
ends, kinds = {}, {}
for e in events:
    if e["ph"] != "X":
        continue
    at = e["pid"], e["tid"]
    assert at in threads, e
    assert e["dur"] >= 0 and e["ts"] >= ends.get(at, -1e18) - 0.5, (e, ends.get(at))
    ends[at] = e["ts"] + e["dur"]
    kinds.setdefault(names[e["pid"]], set()).add(e["name"])
for rank in 0, 1:
    p, m = (next(k for n, k in kinds.items() if n.startswith(f"{g} rank {rank}")) for g in ("predicted", "measured"))
    assert p == m, p ^ m
print("ok: two groups of two ranks, the same ops in both, none overlaps")
PY

section "end"
[ "$n_failed" = 0 ]
