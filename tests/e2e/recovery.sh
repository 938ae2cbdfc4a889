#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Losses and ways back: workers are killed in every phase of a job, gateways with them, all at once; the
# job goes on by itself and ends with the bits of a run that nothing disturbed. Times are printed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
seconds_since() { echo "$EPOCHREALTIME - $1" | bc; }
run_of() { echo a/state/jobs/*-"$1"; }
metrics() { cat "$(run_of "$1")"/metrics.jsonl; }
has_restarted() { [ "$(metrics "$1" 2>/dev/null | grep -c '"restart"')" -ge "${2:-1}" ]; }
steps_of_epoch() { [ "$(metrics "$1" 2>/dev/null | grep -c "\"loss\".*\"epoch\":$2")" -ge 1 ]; }
state_of() { hdt status --gateway "$(gateway_of a)" --json | json_of "[j['state'] for j in d['jobs'] if j['name'] == '$1'][-1]" 2>/dev/null; }
is_in() { [ "$(state_of "$1")" = "$2" ]; }

# The losses of all steps, the last word on each, and the weights.
bits_of() { # NAME
    python3 - "$(run_of "$1")/metrics.jsonl" <<'PY'
import json, sys
losses = {}
for line in open(sys.argv[1]):
    line = json.loads(line)
    if "loss" in line:
        losses[line["step"]] = line["loss"]
print(len(losses), hash(tuple(sorted(losses.items()))))
PY
}
bits() { echo "$(PYTHONHASHSEED=0 bits_of "$1") $(field "$1.json" weights_digest)"; }

# A job of 400 steps with a checkpoint every 10, in the background; its submitter is $pid.
steps=400 # seconds: long enough to be under way when a fault comes, on a machine that stands still now and then, too
begin() { # NAME [LINE...]
    local name=$1

    shift
    job "$name.yaml" $steps "name: $name" "plan.min_stages: 2" "codec.activations: lossless" \
        "codec.activation_grads: lossless" "checkpoint.every: 10" "$@"
    : >"$name.log"
    hdt submit --gateway "$(gateway_of a)" --json "$name.json" "$name.yaml" >"$name.log" 2>&1 </dev/null &
    pid=$!
}

# The submitter knows why within 5 s of the kill at $killed (times the patience of wait_until); says when.
knows() { grep -q "recovering: .*is lost" "$1.log"; }
told() { # NAME
    wait_until 5 knows "$1" || fail "$1: the submitter does not know in time"
    echo "   the reason is known after $(seconds_since "$killed") s"
}

# A step of the new epoch within 5 s, likewise, after the processes were started at $back; says when.
trains_again() { # NAME [EPOCH]
    wait_until 5 steps_of_epoch "$1" "${2:-2}" || fail "$1: no step in time after the processes are back"
    echo "   training again $(seconds_since "$back") s after the processes are back"
}

ends_as() { # NAME: the run ends by itself, with the bits of the calm one
    run_ends "$1: the run" "$pid" "$1.log"
    same "$1: losses and weights" "$(bits "$1")" "$reference"
}

kill9() { # WORKER...
    local who

    for who in "$@"; do
        kill -9 "${worker_pid[$who]}"
    done
    killed=$EPOCHREALTIME
    for who in "$@"; do
        wait "${worker_pid[$who]}" 2>/dev/null
    done
}

worker_again() {
    back=$EPOCHREALTIME
    worker "${1%/*}" "${1#*/}"
}

gateway_kill() { # NAME: its successor will listen where it did
    kill -9 "${gateway_pid[$1]}"
    wait "${gateway_pid[$1]}" 2>/dev/null
    gateway_stays "$1"
}

fed_init
fed_data
site a
site b a="$(wan_of a)"
worker a w0
worker b w0
expect_federation a 2 2

section "calm"
begin calm
run_ends "calm: the run" "$pid" calm.log
reference=$(bits calm)
echo "   $reference"

section "a worker dies in a step"
for victim in b/w0 a/w0; do
    name=step-${victim%/*}
    begin "$name"
    reaches "$name" 25 "$pid"
    kill9 $victim
    told "$name"
    check "$name: it is said what is waited for" grep -q "worker $victim is lost" a/gateway.log
    worker_again $victim
    trains_again "$name"
    ends_as "$name"
done

section "a worker dies and is back at once"
begin at-once
reaches at-once 25 "$pid"
kill9 b/w0
worker_again b/w0
trains_again at-once
ends_as at-once

section "in a checkpoint"
for victim in a/w0 b/w0; do
    name=save-${victim%/*}
    begin "$name" "checkpoint.every: 5"
    reaches "$name" 12 "$pid"
    until compgen -G "$name.yaml-ckpt/step-*.tmp-*" >/dev/null || has_ended $pid; do :; done
    kill9 $victim
    worker_again $victim
    trains_again "$name"
    ends_as "$name"
done

section "in the preparation"
begin prepared
wait_beside "$pid" prepared.log grep -q "preparing" prepared.log || fail "prepared: it is not"
kill9 b/w0
worker_again b/w0
ends_as prepared

section "at the end"
for victim in a/w0 b/w0; do
    name=end-${victim%/*}
    begin "$name"
    wait_beside "$pid" "$name.log" grep -q "finishing" "$name.log" || fail "$name: no end"
    kill9 $victim
    worker_again $victim
    ends_as "$name"
done

section "a worker dies with the coordinator's gateway"
begin both
reaches both 25 "$pid"
kill9 b/w0
gateway_kill a
back=$EPOCHREALTIME
gateway_start a
worker b w0
trains_again both
ends_as both

section "everything dies at once"
begin all
reaches all 25 "$pid"
kill9 a/w0 b/w0
gateway_kill a
gateway_kill b
back=$EPOCHREALTIME
gateway_start a
gateway_start b
worker a w0
worker b w0
trains_again all
ends_as all

check "metrics.jsonl is as documented" "$src/tests/e2e/metrics_check.py" lines "$src/doc/metrics.md" \
    "$(run_of all)/metrics.jsonl"

section "one connection serves many jobs"
serves() {
    local i

    for ((i = 0; i < 70; i++)); do
        rm -rf many.yaml-ckpt && submit a many || return 1
    done
}
job many.yaml 1 "name: many" "plan.min_stages: 2" "codec.activations: none" "optimizer.warmup_steps: 0"
check "70 jobs" serves

section "what a user asks of a job that waits"
begin stopped
reaches stopped 25 "$pid"
kill9 b/w0
told stopped
check "stop" eval 'hdt stop --gateway "$(gateway_of a)" >stop.out'
# One that is due while another is being written waits: of any step.
check "it names the last checkpoint" grep -qE "stopped.* last checkpoint is .*/step-0*[1-9][0-9]*$" stop.out
ends_with() { wait_until 20 has_ended "$pid"; }
check "the submitter ends" ends_with
check "it names it, too" grep -qE "^hdt: .*stopped.* last checkpoint is .*/step-0*[1-9][0-9]*$" stopped.log
worker_again b/w0

section "a job that is not to wait"
begin unforgiving "recovery.on_loss: fail"
reaches unforgiving 12 "$pid"
kill9 b/w0
check "the submitter ends within 5 s" wait_until 5 has_ended "$pid"
check "it names the worker" grep -q "^hdt: worker b/w0 is lost: " unforgiving.log

section "a worker that does not come back"
worker_again b/w0
begin shrunk "recovery.wait: 2s"
reaches shrunk 12 "$pid"
worker a w1
expect_federation a 2 3
kill9 b/w0
told shrunk
wait_beside "$pid" shrunk.log steps_of_epoch shrunk 2 || fail "shrunk: no step without b/w0"
check "shrunk: it is said who is missing and who goes on" \
    grep -Eq "b/w0 did not come back in [0-9]+ s: .* blocks on a/w., a/w.; " shrunk.log
ends_as shrunk
check "metrics.jsonl is as documented" "$src/tests/e2e/metrics_check.py" lines "$src/doc/metrics.md" \
    "$(run_of shrunk)/metrics.jsonl"
worker_again b/w0

section "a worker that cannot be done without"
begin held "recovery.wait: 2s" "plan.cut: [\"a/w0=3\", \"b/w0=3\"]"
reaches held 12 "$pid"
kill9 b/w0
why_not() { grep -q "it cannot go on without b/w0: " held.log; }
check "held: it is said why" wait_until 20 why_not
worker_again b/w0
ends_as held

section "a checkpoint that is damaged meanwhile"
kill "${worker_pid[a/w1]}" # so that b/w0 has a part in it
wait "${worker_pid[a/w1]}" 2>/dev/null
expect_federation a 2 2
begin damaged
reaches damaged 35 "$pid"
kill9 b/w0
told damaged
newest=$(find damaged.yaml-ckpt -maxdepth 1 -name "step-????????" | sort | tail -1)
truncate -s -1 "$newest"/model.safetensors
worker_again b/w0
ends_as damaged
check "damaged: it is said which one is used" \
    grep -q "step-0*[0-9]*' cannot be used any more: the job goes on from '.*step-" damaged.log

section "end"
[ "$n_failed" = 0 ]
