#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Operations: how jobs and daemons are stopped, followed, continued, reloaded, and what is left when
# something ends.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
rank_free() { hdt status --gateway "$(gateway_of a)" | grep -c '^worker.* free ' | grep -qx "$1"; }

fed_init
fed_data
crl=$work/crl.pem
cp ca/crl.pem crl.pem
site a
site b a="$(wan_of a)"
worker a w0
worker b w0
expect_federation a 2 2

section "Ctrl-C, and on from there"
lossless=("plan.min_stages: 2" "codec.activations: lossless" "codec.activation_grads: lossless")
steps=600 # seconds: so many that Ctrl-C falls into the run
job whole.yaml $steps "${lossless[@]}"
check "the whole run" submit a whole
cp whole.yaml cut.yaml
sed -i 's/whole.yaml-ckpt/cut-ckpt/' cut.yaml
hdt submit --gateway "$(gateway_of a)" --json cut.json cut.yaml >cut.log 2>&1 &
pid=$!
reaches cut 5 $pid
kill -INT $pid
run_ends "interrupted submit" $pid cut.log
stopped_at=$(sed -n 's/.*checkpoint .*step-0*\([0-9]*\).*/\1/p' cut.log | tail -n 1)
check "it stopped in the middle, at step $stopped_at" test "${stopped_at:-$steps}" -lt $steps
same "its state" '"stopped"' "$(field cut.json state)"
check "resume" submit a cut --resume "$work/cut-ckpt"
same "the weights of the whole run" "$(field whole.json weights_digest)" "$(field cut.json weights_digest)"

section "a job on its own"
# It is the same whatever was before it: 'a job afterwards'.
job small.yaml 60 "${lossless[@]}"
check "a small job" submit a small
small=$(field small.json weights_digest)
small_again() {
    rm -rf small.yaml-ckpt # another job's: it would not overwrite these
    check "a job afterwards" submit a small
    same "the same weights" "$small" "$(field small.json weights_digest)"
}
job long.yaml 1000000 "plan.min_stages: 2" "codec.activations: none" "recovery.on_loss: fail"
check "detach" submit a long --detach
number=$(sed -n 's/^job \([0-9]*\) .*submitted.*/\1/p' long.log)
running() { hdt status --gateway "$(gateway_of a)" | grep -q "^job *$number .*running.*loss"; }
check "status shows it running" wait_until 10 running
b_knows() { hdt status --gateway "$(gateway_of b)" | grep -c "^worker.*busy" | grep -qx 2; }
check "status of the other site has both workers busy" wait_until 10 b_knows
for who in "" a/w0 b/w0 b; do
    # shellcheck disable=SC2086 # none or one
    hdt logs --gateway "$(gateway_of a)" $who >out 2>err
    same "logs of '${who:-the gateway}'" 0 $?
    check "they are ${who:-the gateway}'s" grep -qE "hdt-(gateway|worker) ${who##*/}" out
done
check "stop" hdt stop --gateway "$(gateway_of a)" "$number"
check "both are free again" wait_until 20 rank_free 2
small_again

section "a worker is killed"
for victim in b/w0 a/w0; do
    log=killed-${victim%/*}
    rm -rf long.yaml-ckpt # another job's
    hdt submit --gateway "$(gateway_of a)" long.yaml >"$log.log" 2>&1 &
    pid=$!
    reaches "$log" 3 $pid
    kill -9 "${worker_pid[$victim]}"
    begin=$EPOCHREALTIME
    check "the submitter ends within 5 s of the end of $victim" wait_until 5 has_ended $pid
    wait $pid
    same "exit status" 1 $?
    check "it names $victim and why" grep -q "^hdt: worker $victim is lost: " "$log.log"
    echo "   $(echo "$EPOCHREALTIME - $begin" | bc) s: $(grep '^hdt: ' "$log.log")"
    worker "${victim%/*}" w0
    check "$victim comes back" wait_until 10 rank_free 2
done
small_again

section "a gateway is killed in a run, and comes back"
# Long enough to be in the middle when the gateway falls: the link carries more than the small model.
job calm.yaml 400 "${lossless[@]}"
check "calm" submit a calm
restart() { # NAME: killed, and started again on the port that it had
    kill -9 "${gateway_pid[$1]}"
    wait "${gateway_pid[$1]}" 2>/dev/null
    gateway_stays "$1"
    gateway_start "$1"
}
for fallen in b a; do
    log=restart-$fallen
    cp calm.yaml "$log.yaml"
    sed -i "s/calm.yaml-ckpt/$log-ckpt/" "$log.yaml"
    hdt submit --gateway "$(gateway_of a)" --json "$log.json" "$log.yaml" >"$log.log" 2>&1 &
    pid=$!
    reaches "$log" 20 $pid
    restart "$fallen"
    run_ends "the run in which $fallen was killed" $pid "$log.log"
    same "its weights" "$(field calm.json weights_digest)" "$(field "$log.json" weights_digest)"
    same "the losses of all 400 steps" "$(field calm.json loss)" "$(field "$log.json" loss)"
    check "each has its line" metrics_whole "$(sed -n 's/^metrics  *//p' "$log.log")" 400
    check "all are back" wait_until 20 federation_has a 2 2
done

section "a certificate is revoked"
hdt ca revoke --dir ca b/tls/cert.pem >/dev/null
cp ca/crl.pem crl.pem
kill -HUP "${gateway_pid[a]}"
check "a says that it read them again" wait_until 10 says "certificates and revocation list read again" a/gateway.log
b_down() { hdt status --gateway "$(gateway_of "$1")" | grep -q "^peer *$2 .*down.*revoked"; }
check "the session is closed, a's status says why" wait_until 10 b_down a b
check "b's status, too" wait_until 10 b_down b a
check "a's log" says "revoked" a/gateway.log
check "b's log" says "revoked" b/gateway.log
rm -rf b/tls
hdt ca issue --dir ca --force --out b/tls site b >/dev/null
kill -HUP "${gateway_pid[b]}"
check "with a new certificate it comes back, by SIGHUP alone" wait_until 15 federation_has a 2 2
echo rubbish >b/tls/cert.pem
kill -HUP "${gateway_pid[b]}"
check "rubbish is refused and changes nothing" wait_until 10 says "certificates stay as they were" b/gateway.log
check "still connected" federation_has a 2 2

section "daemons end"
term() { # TEXT PID
    kill -TERM "$2"
    ends "$1" "$2" 5
}
rm -rf long.yaml-ckpt # another job's
check "detach" submit a long --detach
number=$(sed -n 's/^job \([0-9]*\) .*submitted.*/\1/p' long.log)
check "running" wait_until 10 running
term "worker in a run" "${worker_pid[b/w0]}"
term "gateway b" "${gateway_pid[b]}"
kill -INT "${worker_pid[a/w0]}"
ends "worker a by SIGINT" "${worker_pid[a/w0]}" 5
term "gateway a" "${gateway_pid[a]}"
check "no socket is left" test ! -e a/sock -a ! -e b/sock

section "what a quickstart leaves behind"
# A lab that is down has no folder; those that were seen up left their prefix here.
labs_note() { cat "$work"/*/run-*/wan/prefix >>"$work/prefixes" 2>/dev/null; }
labs_left() {
    local prefix

    ls -d "$work/$1"/run-*/wan 2>/dev/null
    while read -r prefix; do
        ip netns list | grep "^$prefix"
        ls "/run/${prefix}wanem.sock" 2>/dev/null
    done <"$work/prefixes"
}
: >prefixes
left_processes() { pgrep -f "$work/$1/" | grep -vx $$ | wc -l; }
leftovers() { # NAME
    local file

    same "$1: processes left" 0 "$(left_processes "$1")"
    same "$1: labs left" none "$(labs_left "$1")none"
    for file in $(sed -n 's/.*socket: *//p' "$work/$1"/run-*/site-*/gateway.yaml); do
        check "$1: $(dirname "$file") is gone" test ! -e "$(dirname "$file")"
    done
}
options() { can_have_wan && echo "--wan 400mbit,4ms,0%" || echo --loopback; }
cat train.txt train.txt train.txt >text.txt
started() { grep -qE 'step [0-9]+/' "$work/$1.log" 2>/dev/null; }
# shellcheck disable=SC2046 # options
{
    check "quickstart" quickstart good --sites 2 --steps 2 --data "$work/text.txt" $(options)
    leftovers good
    for how in both one; do
        set -m
        quickstart "int-$how" --sites 2 --steps 5000 --data "$work/text.txt" $(options) >/dev/null 2>&1 &
        pid=$!
        set +m
        groups+=("$pid")
        wait_beside "$pid" "int-$how.log" started "int-$how" || fail "int-$how did not start"
        if [ $how = both ]; then
            check "a second one beside it" quickstart beside --sites 2 --steps 2 --data "$work/text.txt" $(options)
            leftovers_before=$(left_processes int-both)
            check "the first one still runs" test "$leftovers_before" -gt 4
        fi
        labs_note
        kill -INT -$pid
        wait_until 20 has_ended $pid || fail "still there 20 s after Ctrl-C"
        wait $pid
        leftovers "int-$how"
    done
    leftovers beside
    quickstart broken --sites 2 --steps 2 --data "$work/text.txt" --resume "$work" $(options) >/dev/null
    same "a failing one" 1 $?
    leftovers broken
}

section "quickstart --keep: the commands that it prints, with fewer steps"
if quickstart kept --loopback --sites 2 --steps 2 --data "$work/text.txt" --keep; then
    read -ra kept_pids < <(sed -n 's/^to end it: kill \([0-9 ]*\);.*/\1/p' kept.log)
    pids+=("${kept_pids[@]}")
    kept() { sed -n "/^export PATH=/p; /^$1/{s/; /\n/g;p}" kept.log | bash -e >kept.out 2>&1; }
    check "status and plan" kept "hdt status"
    check "they said something" grep -q '^predicted' kept.out
    sed -i 's/^hdt submit --steps 102/hdt submit --steps 4/' kept.log
    check "another submit, from its checkpoint" kept "hdt submit"
    check "it went on" grep -q '^step 3/4' kept.out
    eval "$(sed -n 's/^to end it: //p' kept.log)"
    kept_is_gone() { [ "$(left_processes kept)" = 0 ]; }
    check "all of it ends" wait_until 20 kept_is_gone
    leftovers kept
else
    fail "quickstart --keep"
fi

section "end"
[ "$n_failed" = 0 ]
