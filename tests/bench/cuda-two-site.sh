# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# training tokens/s of a GPU and a slower one at two sites, against both at one site; predicted
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's
#
# One machine, no emulator and no root: gateways meet on loopback, over TLS as always. Stage 0 is on a whole
# GPU, stage 1 on HDT_BENCH_SMS [16] multiprocessors of another, or of the same one where there is one only
# (the driver then gives it to the two workers in turn, which no plan knows). The other side is the same cut
# with both workers at one site: its gateway hands frames on through shared memory, without TLS, which is the
# nearest there is to no gateways at all. Sides run in turn; all workers are there all the time.
#
# HDT_BENCH_BACKEND=cpu tries the script, with a small model, where no GPU is.

backend=${HDT_BENCH_BACKEND:-cuda}
sms=${HDT_BENCH_SMS:-16}
rounds=${HDT_BENCH_ROUNDS:-3}
steps=${HDT_BENCH_STEPS:-6}
micro_batches=${HDT_BENCH_MICRO_BATCHES:-64}
codecs=${HDT_BENCH_CODECS:-bf16 int8}

cd "$builddir" || exit 1
# shellcheck source=tests/e2e/lib.sh
. "$srcdir/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$srcdir/tests/e2e/fed.sh"
set +e

bench_end() {
    finish
    rm -rf "$tmp"
}
trap bench_end EXIT

bench_fail() {
    echo "bench: $*" >&2
    n_failed=1
    exit 2
}

# Of 1.1B parameters' layers, and bytes as tokens, so that a layer is about all that stage 1 does; or of the
# quickstart's.
sizes_choose() {
    if [ "$backend" = cuda ]; then
        layers=9 seq=2048 precision=bf16
        cat >"$work/model.json" <<END
{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu","vocab_size":256,
 "hidden_size":2048,"intermediate_size":5632,"num_hidden_layers":$layers,"num_attention_heads":32,
 "num_key_value_heads":4,"max_position_embeddings":$seq,"rms_norm_eps":1e-6,
 "initializer_range":0.02,"rope_theta":10000.0,"tie_word_embeddings":false}
END
    else
        layers=6 seq=128 precision=fp32
        cp "$srcdir/etc/model.json" "$work/model.json"
    fi
    cut=${HDT_BENCH_CUT:-$layers,2} # units: the embedding, blocks, the head
}

# gateway NAME [PEER=ADDRESS]: with room for some of the frames, which are large, and threads to move them.
gateway() {
    gateway_conf "$@"
    [ "$backend" != cuda ] || sed -i 's/memory: 192MiB/memory: 1GiB\n  io_threads: 4/' "$work/$1/gateway.yaml"
    gateway_start "$1"
}

# gpu_worker SITE NAME CARD [LINE...]
gpu_worker() {
    local site=$1 name=$2 card=$3

    shift 3
    CUDA_VISIBLE_DEVICES=$card worker "$site" "$name" "backend: $backend" "$@"
}

rig_start() {
    local n_cards second=0 limit=() whole=()

    n_cards=$(hdt-worker --list-devices | grep -c "^$backend  *[0-9]")
    [ "$n_cards" -gt 0 ] || bench_fail "no device of backend $backend is here"
    [ "$n_cards" -lt 2 ] || second=1
    # A worker keeps memory that a run had: there is enough for all of them on one card.
    [ "$backend" != cuda ] || whole=("memory: 30GiB") limit=("memory: 30GiB" "sm_limit: $sms")
    fed_init lab ca
    gateway a
    gateway b "a=$(wan_of a)"
    gateway c
    gpu_worker a w0 0 "${whole[@]}"
    gpu_worker b w0 "$second" "${limit[@]}"
    gpu_worker c w0 0 "${whole[@]}"
    gpu_worker c w1 "$second" "${limit[@]}"
    expect_federation a 2 2
    expect_federation c 1 2
    echo "  $n_cards devices of $backend; stage 1: $(grep -h -o 'device .*, backend' "$work/b-w0/worker.log" | head -n 1)" >&2
}

# side NAME SITE CUT CODEC: one run; tokens/s and measured by predicted step time into $tmp/NAME-*.
side() {
    local name=$1 site=$2 job=$work/$1.yaml

    job "$job" "$steps" "precision: $precision" "batch.micro_batch: 1" \
        "batch.n_micro_batches: $micro_batches" "batch.seq_len: $seq" "data.site: $site" "data.valid: \"\"" \
        "plan.cut: [$3]" "codec.activations: $4" "codec.activation_grads: $4"
    hdt plan --gateway "$(gateway_of "$site")" --remeasure "$job" >"$work/plan.log" 2>&1 ||
        bench_fail "$name: $(tail -n 2 "$work/plan.log")"
    hdt submit --gateway "$(gateway_of "$site")" --json "$work/run.json" "$job" >"$work/run.log" 2>&1 ||
        bench_fail "$name: $(tail -n 2 "$work/run.log")"
    rm -rf "$job-ckpt"
    hdt plan --validate "$(field "$work/run.json" run_dir | tr -d '"')" --json >"$work/validate.json" ||
        bench_fail "$name: no comparison with the plan"
    printf '%.0f\n' "$(field "$work/run.json" tokens_per_s)" >>"$tmp/$name-rate"
    printf '%.3f\n' "$(field "$work/validate.json" ratio)" >>"$tmp/$name-ratio"
    echo "  $name: $(tail -n 1 "$tmp/$name-rate") tokens/s, $(tail -n 1 "$tmp/$name-ratio") of the predicted" \
        "step; $(json_of 'd["cause"]' <"$work/validate.json")" >&2
}

bench_run() {
    local codec round first second

    sizes_choose
    rig_start
    fed_text
    first=${cut%,*} second=${cut#*,}
    for codec in $codecs; do
        for ((round = 0; round < rounds; round++)); do
            side "two-$codec" a "a/w0=$first, b/w0=$second" "$codec"
            side "one-$codec" c "c/w0=$first, c/w1=$second" "$codec"
        done
        row cuda-sites "$codec" tokens_per_s "$(median <"$tmp/two-$codec-rate")" tokens/s higher \
            "one site" "$(median <"$tmp/one-$codec-rate")" 0.94
        row cuda-sites "$codec" measured_per_predicted "$(median <"$tmp/two-$codec-ratio")" ratio nearer-1 \
            "predicted" 1 0.07
        row cuda-sites "$codec, one site" measured_per_predicted "$(median <"$tmp/one-$codec-ratio")" ratio \
            nearer-1 "predicted" 1 null
    done
}
