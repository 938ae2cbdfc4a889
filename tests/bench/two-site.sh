# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# training tokens/s of two sites over 200 Mbit/s and 40 ms against the same sites without limits
# shellcheck disable=SC2154 # srcdir, tmp and work are scripts/bench's and the rig's
#
# The quickstart's model with the batch that hides such a link: filling and draining the pipeline costs
# a round trip and two transfers a step, however long the step is, so a step has 64 micro-batches, not
# 8 (`hdt plan --explain` says what more of them bring). The plan's own codec. Namespaces, gateways, workers and emulator
# are the same for both; only the link's rate and delay change, in turn. The emulator runs on the sites'
# cores and does more where there is a rate and a delay to keep: its share of them is stated.

# shellcheck source=tests/support/lab_rig.sh
. "$srcdir/tests/support/lab_rig.sh"

rounds=${HDT_BENCH_ROUNDS:-4}
steps=${HDT_BENCH_STEPS:-9}

# side NAME LINK...: tokens/s of one run into $tmp/NAME.
side() {
    local name=$1 job=$work/$1-$round.yaml cpu t0

    shift
    # The cut is the same for both, so that only the link differs.
    rig_job "$job" "$steps" "plan.cut: [a/w0=4, b/w0=4]" "batch.n_micro_batches: 64"
    "$lab" ctl link a b "$@" >/dev/null
    hdt plan --gateway "$(gateway_of a)" --remeasure "$job" >"$work/plan.log" 2>&1
    cpu=$(cpu_s "$(cat "$work/lab/wanem.pid")") t0=$(date +%s.%N)
    hdt submit --gateway "$(gateway_of a)" --json "$work/run.json" "$job" \
        >"$work/run.log" 2>&1 || rig_fail "$name: $(tail -n 2 "$work/run.log")"
    field "$work/run.json" tokens_per_s >>"$tmp/$name"
    echo >>"$tmp/$name"
    rig_share "$cpu" "$t0" >>"$tmp/$name-emulator"
    echo "  $name: $(tail -n 1 "$tmp/$name") tokens/s, codec $(field "$work/run.json" codec), layers $(field "$work/run.json" stage_layers)" >&2
}

bench_run() {
    local round

    rig_start "rate 200mbit rtt 40ms"
    fed_data
    cp "$srcdir/etc/model.json" "$work/model.json"
    worker a w0
    worker b w0
    expect_federation a 2 2
    for ((round = 0; round < rounds; round++)); do
        side wan rate 200mbit rtt 40ms
        side none rate max rtt 0ms
    done
    row two-site "200 Mbit/s, 40 ms" tokens_per_s "$(median <"$tmp/wan")" tokens/s higher \
        "no limit, no delay" "$(median <"$tmp/none")" 0.95
    row two-site "emulator" share_of_both_cores "$(median <"$tmp/wan-emulator")" share lower \
        "no limit, no delay" "$(median <"$tmp/none-emulator")" null
}
