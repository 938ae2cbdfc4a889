# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# training tokens/s of two sites over 200 Mbit/s and 40 ms against the same sites without limits
# shellcheck disable=SC2154 # srcdir, tmp and work are scripts/bench's and the rig's
#
# Two models. The quickstart's (1.2M parameters), whose steps are short: filling and draining the
# pipeline costs a round trip and two transfers a step, however long the step is, so a step has 64
# micro-batches, not 8 (`hdt plan --explain` says what more of them bring). And one of 14.4M parameters,
# still small for such a link, with 16. The plan's own codec. Namespaces, gateways, workers and emulator
# are the same for both sides; only the link's rate and delay change, in turn. The emulator runs on the
# sites' cores and does more where there is a rate and a delay to keep: its share of them is stated.

# shellcheck source=tests/support/lab_rig.sh
. "$srcdir/tests/support/lab_rig.sh"

cases=${HDT_BENCH_CASES:-1.2M 14.4M}
rounds=${HDT_BENCH_ROUNDS:-3}
steps=${HDT_BENCH_STEPS:-9}

# side NAME LINK...: tokens/s of one run of the caller's model into $tmp/NAME.
side() {
    local name=$1 job=$work/$1-$round.yaml cpu t0

    shift
    # The cut is the same for both, so that only the link differs.
    rm -rf "$job-ckpt"
    rig_job "$job" "$steps" "${batch[@]}"
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

# larger_model FILE: that of scripts/bench cpu-train, byte-level Llama.
larger_model() {
    cat >"$1" <<'END'
{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu","vocab_size":256,
 "hidden_size":384,"intermediate_size":1032,"num_hidden_layers":8,"num_attention_heads":6,
 "num_key_value_heads":6,"max_position_embeddings":256,"rms_norm_eps":1e-5,
 "initializer_range":0.02,"rope_theta":10000.0,"tie_word_embeddings":false}
END
}

# case_run MODEL: both sides in turn, every other time backwards.
case_run() {
    local round

    rm -f "$tmp"/wan* "$tmp"/none*
    for ((round = 0; round < rounds; round++)); do
        [ $((round % 2)) = 0 ] || side none rate max rtt 0ms
        side wan rate 200mbit rtt 40ms
        [ $((round % 2)) = 1 ] || side none rate max rtt 0ms
    done
    row two-site "200 Mbit/s, 40 ms, $1" tokens_per_s "$(median <"$tmp/wan")" tokens/s higher \
        "no limit, no delay" "$(median <"$tmp/none")" 0.95
    row two-site "emulator, $1" share_of_both_cores "$(median <"$tmp/wan-emulator")" share lower \
        "no limit, no delay" "$(median <"$tmp/none-emulator")" null
}

bench_run() {
    local -a batch

    rig_start "rate 200mbit rtt 40ms"
    fed_data
    worker a w0
    worker b w0
    expect_federation a 2 2
    if [[ " $cases " = *" 1.2M "* ]]; then
        cp "$srcdir/etc/model.json" "$work/model.json"
        batch=("plan.cut: [a/w0=4, b/w0=4]" "batch.n_micro_batches: 64")
        case_run 1.2M
    fi
    if [[ " $cases " = *" 14.4M "* ]]; then
        larger_model "$work/model.json"
        steps=${HDT_BENCH_STEPS:-3}
        batch=("plan.cut: [a/w0=5, b/w0=5]" "batch.n_micro_batches: 16" "batch.seq_len: 256")
        case_run 14.4M
    fi
}
