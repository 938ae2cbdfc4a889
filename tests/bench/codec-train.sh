# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# held-out loss of the quickstart's model after training with each codec between its two stages (long)
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's
#
# Two sites on loopback, a cut in the middle, the quickstart's text, batch and learning rates. Seeds
# change the weights at the beginning and the order of the samples; a codec is compared with lossless
# codecs at the same seeds. Two runs that differ in one bit part ways, as two seeds do: a codec's figure
# means something beside the standard error of its difference only, which stands in the row below.
#
# HDT_BENCH_CODECS  cases, ACTIVATIONS or ACTIVATIONS/GRADIENTS each [those below]; outer-N: no codec, but
#                   both sites train the whole model with half of the batch and average every N steps
# HDT_BENCH_SEEDS   [1 2 3 4 5]
# HDT_BENCH_STEPS   [200]
# HDT_BENCH_THREADS of the evaluation [1]
# HDT_BENCH_TEXT    text to learn [the Bible, from the Debian package bible-kjv]

[ -n "${builddir:-}" ] || builddir=$PWD
cd "$builddir" || exit 1
# shellcheck source=tests/e2e/lib.sh
. "$srcdir/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$srcdir/tests/e2e/fed.sh"
set +e

codecs=${HDT_BENCH_CODECS:-bf16 fp16 fp8 fp8/fp8:e5m2 int8 int4:rotate int4 topk:64}
seeds=${HDT_BENCH_SEEDS:-1 2 3 4 5}
steps=${HDT_BENCH_STEPS:-200}

train_fail() {
    echo "bench: $*" >&2
    exit 2
}

text_make() { # the first 95 % to train, the rest to judge
    local size n_valid

    if [ -n "${HDT_BENCH_TEXT:-}" ]; then
        cp "$HDT_BENCH_TEXT" "$work/text"
    else
        bible -f gen1:1-rev22:21 >"$work/text" || train_fail "no text: install bible-kjv, or set HDT_BENCH_TEXT"
    fi
    size=$(stat -c %s "$work/text")
    n_valid=$((size / 20))
    head -c $((size - n_valid)) "$work/text" >"$work/train.txt"
    tail -c "$n_valid" "$work/text" >"$work/valid.txt"
    hdt tokenize -o "$work/train.bin" "$work/train.txt" >/dev/null && hdt tokenize -o "$work/valid.bin" "$work/valid.txt" >/dev/null ||
        train_fail "hdt tokenize failed"
    cp "$srcdir/etc/model.json" "$work/model.json"
}

# loss_of CODEC SEED: held-out loss in nats a byte, over the whole of the text that was kept back.
loss_of() {
    local name=run-$2 codec=$1 how=("plan.cut: [a/w0=4, b/w0=4]")

    if [[ $codec == outer-* ]]; then
        how=("plan.cut: [a/w0=8, b/w0=8]" "outer.steps: ${codec#outer-}")
        codec=lossless
    fi
    rm -rf "$work/$name.yaml-ckpt"
    job "$work/$name.yaml" "$steps" "seed: $2" "batch.micro_batch: 4" "batch.n_micro_batches: 8" \
        "batch.seq_len: 128" "optimizer.lr: 4e-3" "optimizer.min_lr: 4e-4" \
        "optimizer.warmup_steps: $((steps / 12 + 1))" "${how[@]}" \
        "codec.activations: \"${codec%%/*}\"" "codec.activation_grads: \"${codec##*/}\""
    submit a "$name" || train_fail "$1: $(tail -n 3 "$work/$name.log")"
    hdt eval --json --threads "${HDT_BENCH_THREADS:-1}" --checkpoint "$work/$name.yaml-ckpt" --data "$work/valid.bin" |
        json_of 'd["loss"]'
}

bench_run() {
    local codec seed loss mine base spread error goal

    fed_init
    text_make
    site a
    site b "a=$(wan_of a)"
    worker a w0
    worker b w0
    expect_federation a 2 2
    for seed in $seeds; do
        for codec in lossless $codecs; do
            loss=$(loss_of "$codec" "$seed")
            [ -n "$loss" ] || train_fail "$codec, seed $seed: no loss"
            echo "$seed $loss" >>"$tmp/loss-${codec//\//_}"
            echo "  seed $seed, $codec: $loss" >&2
        done
    done
    for codec in lossless $codecs; do
        python3 - "$tmp/loss-lossless" "$tmp/loss-${codec//\//_}" >"$tmp/means" <<'PY'
import statistics, sys
base, mine = (dict(l.split() for l in open(f)) for f in sys.argv[1:])
base, mine = ([float(d[s]) for s in sorted(d)] for d in (base, mine))
mean = statistics.mean(base)
spread = statistics.stdev(base) / mean if len(base) > 1 else 0
error = statistics.stdev(m - b for m, b in zip(mine, base)) / mean / len(base) ** 0.5 if len(base) > 1 else 0
print(statistics.mean(mine), mean, spread, error)
PY
        read -r mine base spread error <"$tmp/means"
        case $codec in int4* | topk*) goal=1.01 ;; *) goal=1.002 ;; esac
        row codec-train "$codec" held_out_loss "$(printf %.5f "$mine")" nats/byte lower lossless \
            "$(printf %.5f "$base")" $goal
        [ "$codec" = lossless ] || row codec-train "$codec, its difference" standard_error \
            "$(printf %.5f "$error")" share lower - null null
    done
    row codec-train "lossless, over seeds" standard_deviation "$(printf %.5f "$spread")" share lower - null null
}
