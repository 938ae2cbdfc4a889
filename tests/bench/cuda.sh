# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# training tokens/s of one CUDA device; --peer FILE: beside PyTorch; FP8; shares of the ops
# shellcheck disable=SC2154 # builddir, peer and tmp are scripts/bench's

# The peer is run as `python3 PEER SHAPE B T STEPS LAYERS KIND MODE` with the shapes named below, and
# prints a JSON object with "tok_s". Kind bf16 (weights and optimizer in bf16) is its fastest.

# cuda_config FILE HIDDEN FFN LAYERS HEADS KV_HEADS T
cuda_config() {
    cat >"$1" <<END
{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu","vocab_size":32000,
 "hidden_size":$2,"intermediate_size":$3,"num_hidden_layers":$4,"num_attention_heads":$5,
 "num_key_value_heads":$6,"max_position_embeddings":$7,"rms_norm_eps":1e-6,
 "initializer_range":0.02,"rope_theta":10000.0,"tie_word_embeddings":false}
END
}

tok_s() { sed -n 's/.*"tok_s": *\([0-9.]*\).*/\1/p'; }

# cuda_train FILE PRECISION CONFIG B T STEPS [...]: what it prints to FILE. A failure of ours ends the
# bench.
cuda_train() {
    local out=$1 code=0
    shift
    "$builddir/tests/bench/bench_device_train" cuda "$@" >"$out" || code=$?
    case $code in
        0) return ;;
        77) echo "bench: no CUDA device is here" >&2 ;;
        *) echo "bench: bench_device_train cuda $* ended with $code" >&2 ;;
    esac
    exit "$code"
}

# cuda_case NAME SHAPE HIDDEN FFN LAYERS HEADS KV_HEADS B T GOAL
cuda_case() {
    local config=$tmp/config.json ours=$tmp/ours theirs=$tmp/theirs peer_value=null
    cuda_config "$config" "$3" "$4" "$5" "$6" "$7" "$9"
    : >"$ours"
    : >"$theirs"
    for _ in 1 2; do
        cuda_train "$tmp/out" bf16 "$config" "$8" "$9" 20
        cat "$tmp/out" >&2
        tok_s <"$tmp/out" >>"$ours"
        [ -z "$peer" ] || "${PYTHON:-python3}" "$peer" "$2" "$8" "$9" 20 "$5" bf16 |
            tee /dev/stderr | tok_s >>"$theirs"
    done
    [ -z "$peer" ] || peer_value=$(median <"$theirs")
    row cuda "$1" tokens_per_s "$(median <"$ours")" tokens/s higher "${peer:+pytorch bf16}" \
        "$peer_value" "${10}"
    cuda_train "$tmp/out" bf16 "$config" "$8" "$9" 5 shares
    tail -n +2 "$tmp/out"
}

# losses_apart RUN OTHER: distance of the mean losses of two runs, in percent of the second's.
losses_apart() {
    python3 - "$1" "$2" <<'END'
import json, sys
a, b = (json.load(open(name))["losses"] for name in sys.argv[1:])
print(f"{abs(sum(a) / sum(b) - 1) * 100:.3f}")
END
}

# FP8 beside our own bf16: the same shape in turn, then the losses of both on the tokens of a text, for
# which the repository's own documents serve; and, for what runs differ by anyhow, those of bf16 from other
# first weights.
cuda_fp8() {
    local config=$tmp/config.json precision
    cuda_config "$config" 4096 11008 4 32 32 4096
    : >"$tmp/bf16"
    : >"$tmp/fp8"
    for precision in bf16 fp8 fp8 bf16 bf16 fp8; do
        cuda_train "$tmp/out" "$precision" "$config" 1 4096 20
        cat "$tmp/out" >&2
        tok_s <"$tmp/out" >>"$tmp/$precision"
    done
    row cuda "7B, 4 layers 1x4096, fp8" tokens_per_s "$(median <"$tmp/fp8")" tokens/s higher \
        "our bf16" "$(median <"$tmp/bf16")" 1.25
    cuda_train "$tmp/out" fp8 "$config" 1 4096 5 shares
    tail -n +2 "$tmp/out"
    cat "$srcdir"/doc/*.md "$srcdir"/doc/*.[1-9] "$srcdir"/runtime/*.c "$srcdir"/src/*/*.c >"$tmp/text"
    for precision in bf16 fp8; do
        cuda_train "$tmp/losses-$precision" "$precision" "$config" 1 4096 300 losses "$tmp/text"
        cat "$tmp/losses-$precision" >&2
    done
    cuda_train "$tmp/losses-other" bf16 "$config" 1 4096 300 losses "$tmp/text" 2
    cat "$tmp/losses-other" >&2
    row cuda "7B, 4 layers, 300 steps, fp8 from bf16" loss_apart \
        "$(losses_apart "$tmp/losses-fp8" "$tmp/losses-bf16")" % lower "another seed" \
        "$(losses_apart "$tmp/losses-other" "$tmp/losses-bf16")" 1
}

bench_run() {
    [ -x "$builddir/tests/bench/bench_device_train" ] || {
        echo "bench: no tests/bench/bench_device_train in '$builddir': 'make check TESTS=' builds it" >&2
        exit 2
    }
    export HDT_MODULE_PATH=$builddir/.libs
    cuda_case "1.1B 8x2048" tiny-1.1b 2048 5632 22 32 4 8 2048 1.25
    cuda_case "124M 32x1024" llama-124m 768 2048 12 12 12 32 1024 1.3
    cuda_case "7B, 4 layers 1x4096" llama2-7b 4096 11008 4 32 32 1 4096 1.2
    cuda_fp8
}
