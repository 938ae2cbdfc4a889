# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# step time as planned against as measured, two sites on a core each, five settings
# shellcheck disable=SC2154 # srcdir, tmp and work are scripts/bench's and the rig's
#
# For each setting: workers are started anew (so that profiles are), links are measured again, `hdt
# submit` plans and runs, and `hdt plan --validate` compares. Many short rounds in turn, the median of
# each setting's ratios counts: a machine whose processors others share has two speeds, 1.3 to 1.6
# apart, and keeps each for seconds, so that one profile tells little of the run that follows it.
#
# The emulator runs on the same two cores and is no part of the product: the time that it took from
# them is taken out of what was measured; the ratio with it stands beside, since profiles that runs corrected
# have that time in them already. So does that of the same runs with profiles as they were measured, which no
# runs had corrected.

# shellcheck source=tests/support/lab_rig.sh
. "$srcdir/tests/support/lab_rig.sh"

rounds=${HDT_BENCH_ROUNDS:-7}
steps=${HDT_BENCH_STEPS:-12}

# case_run NAME LINK SPEED-B [JOB-LINE...]: one row of measurements into $tmp/NAME.
case_run() {
    local name=$1 link=$2 slow=$3 job

    shift 3
    rig_link_is "$link"
    worker a w0
    worker b w0
    expect_federation a 2 2
    rig_slow_down b "$slow"
    job=$work/$name-$round.yaml # its checkpoint lies beside it
    rig_job "$job" "$steps" "$@"
    rig_compare "$name" "$job"
    rig_slow_down b 1
    echo "$rig_ratios" >>"$tmp/$name"
    kill "${worker_pid[a/w0]}" "${worker_pid[b/w0]}"
    wait "${worker_pid[a/w0]}" "${worker_pid[b/w0]}" 2>/dev/null
}

bench_run() {
    local round name ratio share

    rig_start "rate 200mbit rtt 40ms"
    fed_data
    cp "$srcdir/etc/model.json" "$work/model.json"
    for ((round = 0; round < rounds; round++)); do
        case_run base "rate 200mbit rtt 40ms" 1
        case_run slowed-worker "rate 200mbit rtt 40ms" 2
        case_run narrowed-link "rate 40mbit rtt 40ms" 1
        case_run bf16-codec "rate 200mbit rtt 40ms" 1 "codec.activations: bf16" "codec.activation_grads: bf16"
        case_run deep-pipeline "rate 200mbit rtt 160ms" 1 "batch.n_micro_batches: 24"
    done
    for name in base slowed-worker narrowed-link bf16-codec deep-pipeline; do
        ratio=$(cut -d ' ' -f 1 "$tmp/$name" | median)
        row predict "$name" measured_per_predicted "$(printf %.3f "$ratio")" ratio nearer-1 \
            "predicted" 1 0.07
        ratio=$(cut -d ' ' -f 2 "$tmp/$name" | median)
        row predict "$name, emulator and all" measured_per_predicted "$(printf %.3f "$ratio")" ratio nearer-1 \
            "predicted" 1 null
        ratio=$(cut -d ' ' -f 3 "$tmp/$name" | median)
        row predict "$name, profiles as measured" measured_per_predicted "$(printf %.3f "$ratio")" ratio nearer-1 \
            "predicted" 1 null
        share=$(cut -d ' ' -f 4 "$tmp/$name" | median)
        row predict "$name emulator" share_of_both_cores "$(printf %.3f "$share")" share lower none null null
    done
}
