#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Shapes of a federation: wherever stages, data and checkpoints are, and however workers and sites
# reach each other, lossless runs of one job end with the same bits; lossy ones end close.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
said_by() { "${@:2}" | grep -q "^site *$1 "; }
stages() { field "$1.json" stage_layers | tr -cd , | wc -c; }
lossless=("codec.activations: lossless" "codec.activation_grads: lossless")

# run NAME SITE LINE...: the job with these lines ends with the reference's bits.
run() {
    local name=$1 site=$2

    shift 2
    job "$name.yaml" "${steps:-12}" "${lossless[@]}" "$@"
    submit "$site" "$name" || {
        fail "$name: $(tail -n 2 "$name.log")"
        return 1
    }
    [ -z "${reference:-}" ] || same "$name: losses and weights" "$reference" "$(result_of "$name")"
}

fed_init
fed_data

section "one process"
listen=127.0.0.1:0 lan=127.0.0.1:0 site a
worker a w0
expect_federation a 1 1
run one a || exit 1
reference=$(result_of one)
echo "reference: $reference"
run recompute a "recompute: true"
run every a "checkpoint.every: 5" "checkpoint.keep: 2"
# One that is due while another is being written waits, so that which one is kept beside the last may vary.
kept=$(cd every.yaml-ckpt && echo *)
check "the last two are kept: $kept" eval '[[ $kept =~ ^latest\ step-000000(05|06|07|08|09|10|11)\ step-00000012$ ]]'
run evals a "eval.every: 4"
same "evaluations on the way" 3 "$(grep -c 'held-out loss' evals.log)"

section "a worker over TLS"
hdt ca issue --dir ca --out wtls worker a/w1 >/dev/null
tls_lines=("gateway: tls:$(lan_of a)" "tls:" "  ca: $work/wtls/ca.pem" "  cert: $work/wtls/cert.pem" "  key: $work/wtls/key.pem")
worker a w1 "${tls_lines[@]}"
expect_federation a 1 2
run over-tls a "plan.cut: [a/w1=6]"
run shm-tls a "plan.cut: [a/w0=3, a/w1=3]"
run tls-shm a "plan.cut: [a/w1=2, a/w0=4]"
same "two stages" 1 "$(stages tls-shm)"
mkdir a-w2
hdt ca issue --dir ca --out w2tls worker b/w2 >/dev/null
printf '%s\n' "name: w2" "${tls_lines[@]//wtls/w2tls}" "data_dir: ." "state_dir: $work/a-w2" "threads: 1" >a-w2/worker.yaml
hdt-worker -c a-w2/worker.yaml >a-w2/worker.log 2>&1 &
pids+=($!)
check "another site's worker is refused, its log says why" wait_until 20 \
    says "its certificate is of site 'b', this gateway of 'a'" a-w2/worker.log
hdt ca issue --dir ca --out op operator ann >/dev/null
check "an operator over TLS" said_by a hdt status --gateway "tls:$(lan_of a)" --ca op/ca.pem --cert op/cert.pem --key op/key.pem

section "a site behind NAT"
listen="" site b a="$(wan_of a)"
worker b w0
expect_federation a 2 3
expect_federation b 2 3
check "it does not listen" test -z "$(wan_of b)"
run nat a "plan.cut: [a/w0=3, b/w0=3]"
run nat-back a "plan.cut: [b/w0=3, a/w0=3]"
run from-b b "data.site: b" "plan.cut: [a/w0=3, b/w0=3]"
run three a "plan.cut: [a/w0=2, b/w0=2, a/w1=2]"
same "three stages, two on one site" 2 "$(stages three)"
run neighbours a "plan.cut: [a/w1=2, a/w0=2, b/w0=2]"

section "data and checkpoints elsewhere"
run data-b a "data.site: b" "plan.cut: [a/w0=3, b/w0=3]"
run data-ckpt a "data.site: a" "checkpoint.site: b" "plan.cut: [a/w0=3, b/w0=3]" "checkpoint.dir: $work/on-b" \
    "checkpoint.every: 6"
check "worker b wrote it" grep -q "checkpoint of step 12 in $work/on-b" b-w0/worker.log
check "worker a did not" not grep -q "$work/on-b" a-w0/worker.log
run data-b-ckpt-a b "data.site: b" "checkpoint.site: a" "plan.cut: [b/w0=3, a/w1=3]"
run planned a "plan.min_stages: 3"
job resumed.yaml 12 "${lossless[@]}" "plan.cut: [b/w0=6]"
check "on from the middle, on one stage of another site" submit a resumed --resume "$work/on-b/step-00000006"
same "same weights" "$(field one.json weights_digest)" "$(field resumed.json weights_digest)"

section "both dial each other"
listen=127.0.0.1:0 site c
ports=$(wan_of c)
stop_gateway c
listen=127.0.0.1:0 site d c="$ports"
listen=$ports gateway_conf c d="$(wan_of d)"
gateway_start c
worker c w0
worker d w0
expect_federation c 2 2
expect_federation d 2 2
peer_of() { json_of "d[\"sites\"][0][\"link\"][\"$2\"]" <"$1/status.json" 2>/dev/null; } # SITE FIELD
one_session() { answers "$1" && [ "$(peer_of "$1" streams)" = 4 ]; }
check "one session at c" wait_until 20 one_session c
check "one session at d" wait_until 20 one_session d
same "one of the two dialled it" "False True" "$(for s in c d; do peer_of $s dialled_by_us; done | sort | xargs)"
run dialled c "data.site: c" "plan.cut: [c/w0=3, d/w0=3]"
sessions() { answers "$1" && peer_of "$1" sessions; }
before=$(sessions c)
run dialled2 d "data.site: d" "plan.cut: [c/w0=3, d/w0=3]"
same "and it stands" "$before" "$(sessions c)"

section "tied embeddings"
reference=
fed_model tied.json 's/"tie_word_embeddings": false/"tie_word_embeddings": true/'
run tied-1 a "model: $work/tied.json" "plan.cut: [a/w0=6]"
reference=$(result_of tied-1)
run tied-2 a "model: $work/tied.json" "plan.cut: [a/w0=3, b/w0=3]"
run tied-3 a "model: $work/tied.json" "plan.cut: [b/w0=1, a/w0=4, a/w1=1]"
check "no head in the checkpoint" not grep -qa lm_head.weight tied-2.yaml-ckpt/latest/model.safetensors

section "lossy codecs"
reference=
steps=150
val() { field "$1.json" val_loss; }
run exact a "plan.cut: [a/w0=3, b/w0=3]"
for codec in bf16 int8 bf16+lossless int8+lossless; do
    job "lossy-$codec.yaml" $steps "codec.activations: $codec" "codec.activation_grads: $codec" "plan.cut: [a/w0=3, b/w0=3]"
    submit a "lossy-$codec" || fail "$codec: $(tail -n 2 "lossy-$codec.log")"
    check "$codec: held-out loss $(val "lossy-$codec") within 1 % of $(val exact)" \
        awk -v a="$(val "lossy-$codec")" -v b="$(val exact)" 'BEGIN { exit !(a > 0 && a < 1.01 * b && a > 0.99 * b) }'
    check "$codec: other bits" test "$(field "lossy-$codec.json" weights_digest)" != "$(field exact.json weights_digest)"
    check "$codec: fewer bytes" test "$(field "lossy-$codec.json" wan_bytes_sent)" -lt "$(field exact.json wan_bytes_sent)"
done

section "wrong cuts"
for case in "[a/w0=3]:3 units, the model 6" "[a/w0=3, a/w0=3]:they are one stage" "[a/w9=6]:a/w9" "[a/w0=6, b/w0=0]:b/w0" "[nonsense]:nonsense"; do
    job cut.yaml 2 "plan.cut: ${case%:*}"
    refused 1 "${case#*:}" hdt plan --gateway "$(gateway_of a)" cut.yaml
done

section "end"
[ "$n_failed" = 0 ]
