# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# training tokens/s of one process beside PyTorch, both on 2 threads
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's

# train_config FILE LAYERS HIDDEN FFN HEADS: byte-level Llama.
train_config() {
    cat >"$1" <<END
{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu","vocab_size":256,
 "hidden_size":$3,"intermediate_size":$4,"num_hidden_layers":$2,"num_attention_heads":$5,
 "num_key_value_heads":$5,"max_position_embeddings":256,"rms_norm_eps":1e-5,
 "initializer_range":0.02,"rope_theta":10000.0,"tie_word_embeddings":false}
END
}

# train_case NAME LAYERS HIDDEN FFN HEADS: four rounds of a few steps each, HDT and peer in turn.
train_case() {
    local config=$tmp/config.json ours=$tmp/ours peer=$tmp/peer peer_value
    train_config "$config" "$2" "$3" "$4" "$5"
    : >"$ours"
    : >"$peer"
    for _ in 1 2 3 4; do
        "$builddir/tests/bench/bench_cpu_train" "$config" 4 256 2 3 2 >>"$ours"
        [ -z "$torch" ] || "$python" "$srcdir/tests/bench/peer_torch.py" "$config" 4 256 2 2 2 >>"$peer"
    done
    peer_value=$(median <"$peer")
    row cpu-train "$1" tokens_per_s "$(median <"$ours")" tokens/s higher \
        "${torch:-pytorch}" "$peer_value" 1.2
}

bench_run() {
    python=${PYTHON:-/usr/bin/python3}
    torch=$("$python" -c 'import torch; print("pytorch " + torch.__version__.split("+")[0])' 2>/dev/null || true)
    [ -n "$torch" ] || echo "bench: no PyTorch for $python (python3-torch): HDT alone" >&2
    [ -x "$builddir/tests/bench/bench_cpu_train" ] || {
        echo "bench: no tests/bench/bench_cpu_train in '$builddir': 'make check TESTS=' builds it" >&2
        exit 2
    }
    train_case "3.3M T=256 2 threads" 4 256 688 4
    train_case "14.4M T=256 2 threads" 8 384 1032 6
}
