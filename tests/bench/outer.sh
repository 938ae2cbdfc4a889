# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# tokens/s over a slow link: one pipeline, and replicas that average every 1, 4 and 20 steps (root, for the link)
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's
#
# The quickstart's model, text and batch on two sites with a core each. One pipeline and one replica a
# site send what a step needs, activations or, at outer steps, the changes of weights; "every 1" is
# what adding gradients in every step would send. All in turn, so that a busy machine slows all. What
# is told of the loss is of one seed: scripts/bench codec-train has several (HDT_BENCH_CODECS=outer-4).
#
# HDT_BENCH_STEPS   [40]
# HDT_BENCH_OUTER   steps between outer steps [1 4 20]
# HDT_BENCH_WAN     [20mbit,40ms,0%]

steps=${HDT_BENCH_STEPS:-40}
outer=${HDT_BENCH_OUTER:-1 4 20}
wan=${HDT_BENCH_WAN:-20mbit,40ms,0%}

# one NAME OPTION...: tokens/s of all but the first tenth of the steps, measured over predicted step
# time, bytes between sites a step, held-out loss.
one() {
    local name=$1 metrics

    shift
    "$srcdir/scripts/quickstart" --yes --build "$builddir" --dir "$tmp/$name" --json "$tmp/$name.json" \
        --steps "$steps" --wan "$wan" --codec lossless --threads 1,1 "$@" >"$tmp/$name.log" 2>&1 || {
        tail -n 5 "$tmp/$name.log" >&2
        exit 2
    }
    metrics=$(echo "$tmp/$name"/run-*/site-a/state/jobs/*/metrics.jsonl)
    python3 - "$metrics" "$tmp/$name.json" <<'PY'
import json, sys

rows = [r for r in map(json.loads, open(sys.argv[1])) if r.get("tokens_per_s") is not None and "step_s" in r]
skip = len(rows) // 10
n = rows[-1]["tokens"] - rows[skip - 1]["tokens"]
s = rows[-1]["time"] - rows[skip - 1]["time"]
predicted = rows[-1]["predicted_step_s"]
print(n / s, s / (len(rows) - skip) / predicted, json.load(open(sys.argv[2]))["val_loss"])
PY
}

bench_run() {
    local pipeline mine ratio loss base_loss h

    read -r pipeline ratio base_loss <<<"$(one pipeline --cut 4,4)"
    row outer "one pipeline, $wan" tokens_per_s "$(printf %.0f "$pipeline")" tokens/s higher - null null
    row outer "one pipeline" measured_over_predicted "$(printf %.2f "$ratio")" ratio lower - null null
    for h in $outer; do
        read -r mine ratio loss <<<"$(one "outer-$h" --outer "$h" --cut 8,8)"
        row outer "replicas, outer step every $h" tokens_per_s "$(printf %.0f "$mine")" tokens/s higher \
            pipeline "$(printf %.0f "$pipeline")" null
        row outer "outer step every $h" measured_over_predicted "$(printf %.2f "$ratio")" ratio lower - null null
        row outer "outer step every $h" held_out_loss "$(printf %.4f "$loss")" nats/byte lower pipeline \
            "$(printf %.4f "$base_loss")" null
    done
}
