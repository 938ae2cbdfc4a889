#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The heart of the suite: the same job on one, two and three sites, with unlike thread counts and
# both lossless codecs, gives the same losses to the last digit and the same weights.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"

steps=${HDT_E2E_STEPS:-4}
mode=(--loopback)
if can_have_wan; then
    mode=(--wan "200mbit,20ms,0%")
fi

run() { # NAME OPTION...
    local name=$1

    shift
    quickstart "$name" --steps "$steps" "${mode[@]}" "$@" || {
        fail "run $name"
        exit 1
    }
}

run one --sites 1 --threads 2
reference=$(field "$work/one.json" loss)
digest=$(field "$work/one.json" weights_digest)
echo "reference losses: $reference, weights $digest"

run one-thread --sites 1 --threads 1
same "1 site, 1 thread: losses" "$(field "$work/one-thread.json" loss)" "$reference"
same "1 site, 1 thread: weights" "$(field "$work/one-thread.json" weights_digest)" "$digest"

for case in "2 none 1,2" "2 lossless 2,1" "3 lossless 1,2,1" "3 none 1,1,1"; do
    read -r sites codec threads <<<"$case"
    name=s$sites-$codec
    run "$name" --sites "$sites" --codec "$codec" --threads "$threads"
    same "$sites sites, $codec, threads $threads: losses" "$(field "$work/$name.json" loss)" "$reference"
    same "$sites sites, $codec, threads $threads: weights" \
        "$(field "$work/$name.json" weights_digest)" "$digest"
    same "$sites sites, $codec: held-out loss" "$(field "$work/$name.json" val_loss)" \
        "$(field "$work/one.json" val_loss)"
    check "$sites sites, $codec: that many stages" \
        test "$(field "$work/$name.json" stage_layers | tr -cd , | wc -c)" -ge $((sites - 1))
    check "$sites sites, $codec: bytes crossed the WAN under TLS 1.3" \
        grep -q '"tls": *"TLSv1.3' "$work/$name.json"
done

# Every order of the work; the searched plan of interleaved has several stages on each site.
for schedule in gpipe 1f1b interleaved zb-h1 zb-mem; do
    run "$schedule" --sites 2 --codec lossless --threads 1,2 --schedule "$schedule"
    same "schedule $schedule: losses" "$(field "$work/$schedule.json" loss)" "$reference"
    same "schedule $schedule: weights" "$(field "$work/$schedule.json" weights_digest)" "$digest"
done

# A checkpoint that two sites wrote goes on at one and at three, with the bits of the run itself.
run whole --sites 2 --codec lossless --threads 1,1 --steps $((2 * steps)) --checkpoint-every "$steps"
checkpoint=$(dirname "$(field "$work/whole.json" checkpoint | tr -d '"')")/$(printf 'step-%08d' "$steps")
for sites in 1 3; do
    run "resumed-$sites" --sites "$sites" --codec lossless --steps $((2 * steps)) --resume "$checkpoint"
    same "resumed on $sites sites: weights" "$(field "$work/resumed-$sites.json" weights_digest)" \
        "$(field "$work/whole.json" weights_digest)"
done

# A codec with feedback: what it owes is in the checkpoint, so that the run goes on with its own bits.
owing=(--sites 2 --codec lossless --grad-codec topk:8 --cut 4,4 --threads 1,1 --steps $((2 * steps)))
run owing "${owing[@]}" --checkpoint-every "$steps"
checkpoint=$(dirname "$(field "$work/owing.json" checkpoint | tr -d '"')")/$(printf 'step-%08d' "$steps")
check "top-k: the checkpoint holds what is owed" test -s "$checkpoint/feedback-activation_grad-4.bin"
run resumed-owing "${owing[@]}" --resume "$checkpoint"
same "resumed with top-k: weights" "$(field "$work/resumed-owing.json" weights_digest)" \
    "$(field "$work/owing.json" weights_digest)"
check "top-k: not the bits of the lossless run" test \
    "$(field "$work/owing.json" weights_digest)" != "$(field "$work/whole.json" weights_digest)"
rm "$checkpoint"/feedback-*.bin
if run_lost=$("$src/scripts/quickstart" --yes --build "$build" --dir "$work/lost" "${mode[@]}" "${owing[@]}" \
    --resume "$checkpoint" 2>&1 </dev/null); then
    fail "a checkpoint that lacks a file of its manifest is taken"
else
    check "a lost file is named" grep -q "feedback-activation_grad-4.bin is missing" <<<"$run_lost"
fi

[ "$n_failed" = 0 ]
