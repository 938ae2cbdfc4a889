# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# tokens/s while a link goes from 1 Gbit/s to 20 Mbit/s and back, codec chosen in the run against fixed ones
# shellcheck disable=SC2154 # srcdir, tmp and work are scripts/bench's and the rig's
#
# Two sites on a core each. In each round one run with each codec by name and one that may choose (codec.lossy,
# auto), all over the same three stretches: wide, narrow, wide. The median over the rounds counts; the codec
# that is best by it in a stretch is the peer. For each stretch: tokens/s after the change has settled, and
# how many steps passed from the change of the link to the last change of codec that it caused (0: the codec
# in use was the one to keep). Links are measured before each run: the probe is also what TCP knows the wide
# link from, and what it goes by after the narrow stretch of the run before is up to four times slower.
#
# HDT_BENCH_ROUNDS   [3]
# HDT_BENCH_STEPS    of a stretch [40]
# HDT_BENCH_CODECS   those by name [none lossless bf16+lossless int8+lossless]

# shellcheck source=tests/support/lab_rig.sh
. "$srcdir/tests/support/lab_rig.sh"

rounds=${HDT_BENCH_ROUNDS:-3}
steps=${HDT_BENCH_STEPS:-40}
codecs=${HDT_BENCH_CODECS:-none lossless bf16+lossless int8+lossless}
wide="rate 1gbit rtt 20ms"
narrow="rate 20mbit rtt 20ms"
settled=10 # steps after a change that are not counted: those that the goal gives the choice

# shellcheck disable=SC2086 # words of the link
link_is() { "$lab" ctl link a b $1 >/dev/null; }

workers_start() {
    worker a w0
    worker b w0
    expect_federation a 2 2
}

workers_end() {
    kill "${worker_pid[a/w0]}" "${worker_pid[b/w0]}"
    wait "${worker_pid[a/w0]}" "${worker_pid[b/w0]}" 2>/dev/null
}

# rates_of RUN_DIR FIRST LAST: median tokens/s of those steps.
rates_of() {
    python3 - "$@" <<'PY'
import json, statistics, sys
run_dir, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rates = {}
for line in open(f"{run_dir}/metrics.jsonl"):
    e = json.loads(line)
    if e.get("event", "step") == "step" and "tokens_per_s" in e and first <= e["step"] <= last:
        rates[e["step"]] = e["tokens_per_s"]
print(f"{statistics.median(rates.values()):.1f}" if rates else "null")
PY
}

# step_wait STEP: until the run has done it; prints the last step. One process that reads the run's file, since
# to start some for each look, or to ask a gateway, would take the processors that are measured.
step_wait() {
    python3 - "$work" "$job" "$submit" "$1" <<'PY' || rig_fail "$codec: $(tail -n 2 "$work/run.log")"
import glob, json, os, sys, time
work, job, submit, want = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
begun, moved, step, metrics, rest = os.stat(job).st_mtime, time.monotonic(), 0, None, ""
while step < want:
    time.sleep(0.1)
    if not metrics:
        files = glob.glob(f"{glob.escape(work)}/**/metrics.jsonl", recursive=True)
        metrics = next((open(f) for f in files if os.stat(f).st_mtime > begun), None)
    *lines, rest = (rest + metrics.read()).split("\n") if metrics else [""]
    for e in map(json.loads, lines):
        if e.get("event", "step") == "step" and e.get("step", 0) > step:
            step, moved = e["step"], time.monotonic()
    if open(f"/proc/{submit}/stat").read().rsplit(") ", 1)[1][0] == "Z":
        sys.exit(1)
    if time.monotonic() - moved > 60:
        sys.exit(f"bench: the run stands still at step {step}")
print(step)
PY
}

# late_of FIRST LAST: steps from FIRST to the last change of codec before step LAST, over all edges, as the
# workers' logs have them.
late_of() {
    sed -n 's/.*flow [0-9]* (.*step \([0-9]*\): .* in place of .*/\1/p' "$work"/*-w0/worker.log |
        awk -v first="$1" -v last="$2" '$1 >= first && $1 < last && $1 - first > n { n = $1 - first } END { print n + 0 }'
}

# explain_keep STRETCH: how the codecs stood at its end.
explain_keep() {
    [ "$codec" = auto ] || return 0
    echo "-- at the end of $1:" >>"$tmp/explain"
    hdt codec explain --gateway "$(gateway_of a)" >>"$tmp/explain" 2>&1 || :
}

# run CODEC: a run over the three stretches; "auto" may choose. Adds to $tmp/rate-CODEC-N the tokens/s and,
# for auto, to $tmp/late-N the steps to the choice, of stretches N.
run() {
    local codec=$1 job=$work/$1-$round.yaml submit run_dir n options
    local -a changed

    options=("codec.activations: $codec" "codec.activation_grads: $codec")
    [ "$codec" != auto ] || options=("codec.lossy: true")
    link_is "$wide"
    rm -f "$work"/*-w0/worker.log # of other runs
    workers_start
    rig_job "$job" $((3 * steps)) "name: ${codec//+/-}-$round" "${options[@]}"
    hdt plan --gateway "$(gateway_of a)" --remeasure "$job" >"$work/run.log" 2>&1 ||
        rig_fail "$codec: $(tail -n 2 "$work/run.log")"
    hdt submit --gateway "$(gateway_of a)" --json "$work/run.json" "$job" >"$work/run.log" 2>&1 &
    submit=$!
    pids+=("$submit")
    changed[1]=$(step_wait "$steps") || exit
    link_is "$narrow"
    explain_keep wide # by figures of that
    changed[2]=$(step_wait $((2 * steps))) || exit
    link_is "$wide"
    explain_keep narrow
    step_wait $((3 * steps - 3)) >/dev/null || exit
    explain_keep "wide again"
    wait "$submit" || rig_fail "$codec: $(tail -n 2 "$work/run.log")"
    workers_end
    run_dir=$(field "$work/run.json" run_dir | tr -d '"')
    changed[0]=1 changed[3]=$((3 * steps - 3)) # what explains itself takes processors
    for n in 0 1 2; do
        rates_of "$run_dir" $((changed[n] + settled + 1)) $((changed[n + 1] - 1)) >>"$tmp/rate-$codec-$n"
        [ "$codec" != auto ] || late_of "${changed[n]}" "${changed[n + 1]}" >>"$tmp/late-$n"
    done
    echo "# round $round, $codec: tokens/s $(tail -qn 1 "$tmp/rate-$codec"-[012] | paste -sd ' '), the link changed after" \
        "steps ${changed[1]} and ${changed[2]}" >&2
}

bench_run() {
    local codec rate best name at i round stretches=("wide" "narrow" "wide again")

    rig_start "$wide"
    fed_data
    cp "$srcdir/etc/model.json" "$work/model.json"
    for ((round = 1; round <= rounds; round++)); do
        : >"$tmp/explain"
        for codec in $codecs auto; do
            run "$codec"
        done
        sed 's/^/# /' "$tmp/explain" >&2
        sed -n 's/.*flow \([0-9]*\) (.*step \([0-9]*\): \(.*\) in place of \([^:]*\):.*/# flow \1, step \2: \3 for \4/p' \
            "$work"/*-w0/worker.log >&2
    done
    for i in 0 1 2; do
        at=${stretches[i]} best=0 name=none
        for codec in $codecs; do
            rate=$(median <"$tmp/rate-$codec-$i")
            row codec-live "$codec, $at" tokens_per_s "$rate" tokens/s higher null null null
            if awk -v a="$rate" -v b="$best" 'BEGIN { exit !(a > b) }'; then
                best=$rate name=$codec
            fi
        done
        row codec-live "auto, $at" tokens_per_s "$(median <"$tmp/rate-auto-$i")" tokens/s higher "$name" "$best" 0.9
        row codec-live "auto, $at" steps_to_choice "$(median <"$tmp/late-$i")" steps lower null null 10
    done
}
