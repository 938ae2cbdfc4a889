#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints, logs and data on disks that fill, processes that are killed while they save, and bits
# that flip: nothing that was there is lost, nothing damaged is taken, and the run goes on.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
[ "$(id -u)" = 0 ] || skip "needs root, for small file systems in memory"
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }

mounts=()
small_disk() { # DIR SIZE
    mkdir -p "$1"
    mount -t tmpfs -o "size=$2" tmpfs "$1" 2>/dev/null || skip "cannot mount a tmpfs here"
    mounts+=("$1")
}
unmount_all() {
    local dir

    for dir in "${mounts[@]}"; do
        umount -l "$dir" 2>/dev/null
    done
}
leave() {
    local pid

    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
    done
    unmount_all
    finish
}
trap leave EXIT

fill_disk() { dd if=/dev/zero of="$1/filler" bs=4k 2>/dev/null; } # until there is no room
free_disk() { rm -f "$1/filler"; }
flip() { # FILE: one bit in its middle
    python3 - "$1" <<'PY'
import sys
f = open(sys.argv[1], "r+b")
d = bytearray(f.read())
d[len(d) // 2] ^= 4
f.seek(0)
f.write(d)
PY
}
all_complete() { hdt checkpoint list --json "$1" | json_of 'all(c["complete"] for c in d) and len(d)' | grep -qx '[1-9][0-9]*'; }

fed_init
fed_data
small_disk "$work/a/state" 12m
site a
worker a w0
worker a w1
expect_federation a 1 2
two=("plan.cut: [a/w0=3, a/w1=3]" "codec.activations: none" "codec.activation_grads: none")

section "a disk that fills under checkpoints"
# Steps enough for a disk to fill in the middle, however fast they are.
steps=600
last=$(printf 'step-%08d' $steps)
job calm.yaml $steps "${two[@]}" "checkpoint.every: 10"
check "the run on a roomy disk" submit a calm
small_disk "$work/full.yaml-ckpt" 4m
cp calm.yaml full.yaml
sed -i 's/calm.yaml-ckpt/full.yaml-ckpt/' full.yaml
submit a full &
pid=$!
check "a checkpoint is made" wait_beside $pid full.log test -e full.yaml-ckpt/latest/hdt.json
fill_disk full.yaml-ckpt
check "the next one is said to fail, with what is needed and free" \
    wait_beside $pid full.log grep -qE 'NO CHECKPOINT: .* MB are needed, .* MB are free: No space left' full.log
# One that had its room before the disk was full is through by now.
first=$(readlink full.yaml-ckpt/latest)
n_refused=$(grep -c 'NO CHECKPOINT' full.log)
refused_again() { [ "$(grep -c 'NO CHECKPOINT' full.log)" -gt "$n_refused" ]; }
check "and the one after it" wait_beside $pid full.log refused_again
check "the one before is what it was" hdt checkpoint verify full.yaml-ckpt
same "and is the latest" "$first" "$(readlink full.yaml-ckpt/latest)"
nothing_half() { [ -z "$(find full.yaml-ckpt -name '*tmp*')" ]; } # the next one may be at it just now
check "nothing half is left" wait_until 10 nothing_half
free_disk full.yaml-ckpt
wait $pid
same "the run ends well" 0 $?
same "losses and weights are those of the calm run" "$(result_of calm)" "$(result_of full)"
check "the last checkpoint is there" hdt checkpoint verify full.yaml-ckpt
same "of the last step" "$last" "$(readlink full.yaml-ckpt/latest)"

section "a disk that is full at the end"
cp calm.yaml last.yaml
small_disk "$work/last.yaml-ckpt" 4m
sed -i 's/calm.yaml-ckpt/last.yaml-ckpt/; s/every: 10/every: 0/' last.yaml
fill_disk last.yaml-ckpt
submit a last &
pid=$!
check "the last checkpoint cannot be written" wait_beside $pid last.log grep -q 'NO CHECKPOINT' last.log
free_disk last.yaml-ckpt
wait $pid
same "it is tried again, and written" 0 $?
same "as in the calm run" "$(result_of calm)" "$(result_of last)"
check "every byte of it" hdt checkpoint verify last.yaml-ckpt
rm -rf last.yaml-ckpt/*
fill_disk last.yaml-ckpt
check "no room until the end: the job fails" not submit a last
check "and says why" grep -q 'cannot save the last checkpoint, of step '$steps last.log
free_disk last.yaml-ckpt

section "a full disk under the gateway's state"
cp calm.yaml logs.yaml
sed -i 's/calm.yaml-ckpt/logs.yaml-ckpt/; s/^steps: .*/steps: 1500/' logs.yaml
submit a logs &
pid=$!
reaches logs 5 $pid
fill_disk a/state
saved() { hdt checkpoint list --json logs.yaml-ckpt 2>/dev/null | json_of 'd[0]["step"] if d else 0'; }
before=$(saved)
later() { [ "$(saved)" -gt "$((${before:-0} + 10))" ]; }
check "training goes on" wait_beside $pid logs.log later
check "the gateway answers" answers a
free_disk a/state
wait $pid
same "the run ends well" 0 $?
number=$(sed -n 's/^job \([0-9]*\) .*submitted.*/\1/p' logs.log)
check "each step stands in metrics.jsonl, once and whole" metrics_whole "a/state/jobs/$number-e2e/metrics.jsonl" 1500
check "audit.jsonl has whole lines" python3 -c '
import json
for line in open("a/state/audit.jsonl"):
    json.loads(line)'

section "a worker that is killed while it saves"
# Every kill at another moment of a save: as soon as its temporary folder is there, and a little later.
for i in 1 2 3 4; do
    job "killed$i.yaml" 4000 "${two[@]}" "checkpoint.every: 1" "recovery.on_loss: fail"
    submit a "killed$i" &
    pid=$!
    wait_beside $pid "killed$i.log" test -e "killed$i.yaml-ckpt/latest" || fail "no checkpoint"
    wait_beside $pid "killed$i.log" eval "ls -d killed$i.yaml-ckpt/*.tmp-* >/dev/null 2>&1"
    sleep "0.00$((i * 2))" # the fault itself
    kill -KILL "${worker_pid[a/w0]}"
    wait $pid
    check "what is there is complete ($i)" all_complete "killed$i.yaml-ckpt"
    check "and the latest is whole" hdt checkpoint verify "killed$i.yaml-ckpt"
    worker a w0
    expect_federation a 1 2
done
stopped=$(hdt checkpoint list --json killed4.yaml-ckpt | json_of 'd[0]["step"]')
job killed4.yaml $((stopped + 3)) "${two[@]}" "checkpoint.every: 1"
check "a job goes on from there" submit a killed4 --resume "$work/killed4.yaml-ckpt/$(printf 'step-%08d' "$stopped")"
check "what was left half is cleaned up" test -z "$(find killed4.yaml-ckpt -name '*tmp*')"

section "another job's checkpoints"
check "the same folder is refused" not submit a calm
check "with both names, before a step is done" grep -q "wrote it, this is job" calm.log
check "nothing was touched" hdt checkpoint verify calm.yaml-ckpt

section "bits that flip"
check "a copy" hdt checkpoint copy calm.yaml-ckpt backup
check "is whole" hdt checkpoint verify backup
flip calm.yaml-ckpt/latest/model.safetensors
refused 1 "was altered: tensor '" hdt checkpoint verify calm.yaml-ckpt
# One that is due while another is being written waits: which step it is of depends on the disk.
older=$(cd calm.yaml-ckpt && printf '%s\n' step-*[0-9] | tail -n 2 | head -n 1)
check "there is an older one: $older" test "$older" != "$last"
check "it is named" grep -q "$older' is the newest that is complete" err
refused 1 "was altered: tensor '" hdt checkpoint copy calm.yaml-ckpt elsewhere
check "nothing is there" test ! -e elsewhere
refused 1 "was altered: tensor '" hdt export --checkpoint calm.yaml-ckpt --out exported
refused 1 "was altered: tensor '" hdt generate --checkpoint calm.yaml-ckpt --prompt "In the"
job on.yaml $((steps + 10)) "${two[@]}"
check "nothing older is taken in silence" not submit a on --resume "$work/calm.yaml-ckpt"
check "but named" grep -q "$older' is the newest that is complete" on.log
check "export the copy" hdt export --checkpoint backup --out exported
check "sha256sum agrees" sh -c "cd exported && sha256sum --strict -c SHA256SUMS >/dev/null"
flip train.bin
rm -rf on.yaml-ckpt
check "a token that changed ends the job that reads it" not submit a on
check "with its place" grep -q "train.bin' was altered: bytes" on.log

[ "$n_failed" = 0 ]
