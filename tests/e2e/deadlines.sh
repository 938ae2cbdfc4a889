#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Nothing hangs: every command ends within its deadline, and says what it waited for and what to do,
# against gateways that are dead, stopped, mute, half-answering or refusing; peers that go for good in
# the middle of a run; signals while the other side hangs.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

command -v python3 >/dev/null || skip "python3 is missing"
slow_module_needed
cd "$work" || exit 1
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }
# What it may take at most: so much longer than its deadline, where others keep the machine busy.
at_most() { awk -v lo="$1" -v hi="$2" -v n="$patience" 'BEGIN { print lo + n * (hi - lo) }'; }
below() { awk -v v="$1" -v lo="$2" -v hi="$3" 'BEGIN { exit !(v >= lo && v <= hi) }'; }

# What talks to a gateway. A job file is read before the gateway is asked.
commands=("status" "logs" "logs b/w0" "doctor" "plan $work/job.yaml" "submit $work/job.yaml" "stop" "stop 7" "link explain b" "link bench b")

one() { # CASE NUMBER OPTION...: a command with the options, its table row in a file
    local name=$1 i=$2 from=$EPOCHREALTIME rc line

    shift 2
    # shellcheck disable=SC2086 # words
    timeout $((60 * patience)) hdt ${commands[$i]} "$@" >"$name-$i.out" 2>&1 </dev/null
    rc=$?
    line=$(grep -E '^hdt: |fail +gateway' "$name-$i.out" | head -n 1)
    printf '%s|%s|%s|%s|%s\n' "${commands[$i]//$work\//}" "$name" "$(seconds_since "$from")" "$rc" "${line//$work\//}" >"$name-$i.row"
}

# against CASE LOW HIGH TEXT OPTION...: all commands at once, since they only wait; each ends between LOW
# and HIGH seconds with the text and a remedy.
against() {
    local name=$1 low=$2 high=$3 text=$4 i who seconds rc line jobs=()

    shift 4
    for i in "${!commands[@]}"; do
        one "$name" "$i" "$@" &
        jobs+=($!)
    done
    wait "${jobs[@]}"
    for i in "${!commands[@]}"; do
        IFS='|' read -r who _ seconds rc line <"$name-$i.row"
        printf '%-16s %-20s %5s s  exit %s  %s\n' "$who" "$name" "$seconds" "$rc" "${line:0:150}"
        if below "$seconds" "$low" "$(at_most "$low" "$high")" && [ "$rc" != 0 ] && [ "$rc" != 124 ] &&
            grep -qE -- "$text" "$name-$i.out" && grep -qE '^hint: |remedy: ' "$name-$i.out"; then
            n_good=$((n_good + 1))
        else
            fail "$name: hdt $who: $seconds s, exit $rc, wanted '$text' and a remedy: $(cat "$name-$i.out")"
        fi
    done
}

mute() { # NAME WHERE MODE: address in $NAME.at
    python3 "$src/tests/support/mute_gateway.py" "$2" "$3" >"$1.at" &
    pids+=($!)
    wait_until 10 test -s "$1.at" || fail "no mute gateway"
}

n_good=0
fed_init
fed_data
job job.yaml 1000000 "plan.min_stages: 2" "recovery.on_loss: fail"
lan=127.0.0.1:0 site a
site b a="$(wan_of a)"
worker a w0
worker b w0
expect_federation a 2 2
hdt ca issue --dir ca --out ops operator ann >/dev/null
hdt ca issue --dir ca --out wrk worker a/w9 >/dev/null
fed_init lab ca2
hdt ca issue --dir ca2 --out foreign operator ann >/dev/null
cert_between late operator/ann "2 days ago" "1 day ago"
tls() { printf -- '--ca %s/ca.pem --cert %s/cert.pem --key %s/key.pem' "$1" "$1" "$1"; }

# Connecting has 3 s by default, the handshake 6 s; a busy machine gets 4 s more.
section "dead gateways"
python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$work/left.sock"
against missing 0 4 "no gateway at" --gateway "unix:$work/none.sock"
against left-over 0 4 "nobody is behind it" --gateway "unix:$work/left.sock"
mute full tcp full
# shellcheck disable=SC2046 # words
against unreachable 2.9 7 "no answer for [0-9.]+ s" --gateway "$(cat full.at)" $(tls ops)

section "gateways that hang"
kill -STOP "${gateway_pid[b]}"
against stopped 5.9 10 "did not answer 'hello' for [0-9.]+ s" --gateway "$(gateway_of b)"
kill -CONT "${gateway_pid[b]}"
mute mute "unix:$work/mute.sock" mute
against mute 5.9 10 "did not answer 'hello' for [0-9.]+ s" --gateway "unix:$work/mute.sock"
against own-deadline 0.9 5 "did not answer 'hello' for [0-9.]+ s" --gateway "unix:$work/mute.sock" --timeout 1
mute half "unix:$work/half.sock" half
against half 5.9 10 "20 bytes, then none" --gateway "unix:$work/half.sock"
mute tcp tcp mute
# shellcheck disable=SC2046
against mute-tls 5.9 10 "TLS handshake in [0-9.]+ s" --gateway "$(cat tcp.at)" $(tls ops)

section "certificates"
at="tls:$(lan_of a)"
# shellcheck disable=SC2046
{
    against other-authority 0 4 "authority" --gateway "$at" $(tls foreign)
    against expired 0 4 "expired" --gateway "$at" $(tls late/tls)
    against wrong-role 0 4 "worker" --gateway "$at" $(tls wrk)
    against wrong-port 0 4 "operator" --gateway "tls:$(wan_of a)" $(tls ops)
}
same "commands that ended in time and with a remedy" "$n_good" $((${#commands[@]} * 12))

# What a shell starts in the background ignores SIGINT unless told otherwise.
# left_in TEXT SECONDS PID: it ends in time after a signal, whatever its exit status.
left_in() {
    local from=$EPOCHREALTIME

    if wait_until "$2" has_ended "$3"; then
        ok "$1: ended $(seconds_since "$from") s after the signal"
    else
        fail "$1: still there $2 s after the signal"
        kill -9 "$3"
    fi
}
# submitted NAME: a run in the background that has made steps; its process number in $pid
submitted() {
    job "$1.yaml" 1000000 "plan.min_stages: 2" "recovery.on_loss: fail"
    env --default-signal=INT hdt submit --gateway "$(gateway_of a)" "$1.yaml" >"$1.log" 2>&1 </dev/null &
    pid=$!
    pids+=("$pid")
    reaches "$1" 3 "$pid"
}
free_are() { [ "$(hdt status --gateway "$(gateway_of a)" | grep -c '^worker.* free ')" = "$1" ]; }
both_free() { free_are 2; }

section "signals while the other side hangs"
for signal in INT TERM; do
    # "stop 7" and "plan" wait for the welcome of a gateway that never says it.
    for command in status "plan $work/job.yaml" "stop 7" "logs -f"; do
        # shellcheck disable=SC2086 # words
        env --default-signal=INT hdt $command --gateway "unix:$work/mute.sock" >/dev/null 2>&1 </dev/null &
        pid=$!
        wait_until 5 grep -qx hdt "/proc/$pid/comm"
        kill -$signal $pid
        left_in "hdt ${command%% *}, SIG$signal, mute gateway" 5 $pid
        wait $pid
        check "and not by its deadline" test $? -ne 4
    done
done
submitted frozen
kill -STOP "${gateway_pid[a]}"
kill -INT $pid
wait_until 20 grep -q "^stopping after" frozen.log || fail "the first Ctrl-C was not heard"
kill -INT $pid
left_in "hdt submit, Ctrl-C twice, its gateway stopped" 5 $pid
kill -TERM "${worker_pid[a/w0]}" # it runs a rank, and its gateway hangs
left_in "a worker in a run, its gateway stopped" 10 "${worker_pid[a/w0]}"
kill -CONT "${gateway_pid[a]}"
wait_until 30 free_are 1 || fail "b/w0 is not free of the run: $(hdt status --gateway "$(gateway_of a)")"
worker a w0
expect_federation a 2 2
wait_until 30 both_free || fail "workers are not free: $(hdt status --gateway "$(gateway_of a)")"

section "peers gone for good in the middle"
submitted peer-stopped
kill -STOP "${worker_pid[b/w0]}"
from=$EPOCHREALTIME
check "the submitter ends" wait_until 40 has_ended $pid
check "about 20 s after its worker was stopped for good: $(seconds_since "$from") s" below "$(seconds_since "$from")" 15 "$(at_most 15 36)"
check "and names flow and site" grep -qE "nothing moved for .* flow [0-9]+ .*site b" peer-stopped.log
check "with a remedy" grep -q "^hint: " peer-stopped.log
kill -KILL "${worker_pid[b/w0]}"
wait_until 10 not both_free || fail "the end of b/w0 was not seen"
worker b w0
wait_until 30 both_free || fail "workers are not free: $(hdt status --gateway "$(gateway_of a)")"
kill -TERM "${worker_pid[b/w0]}"
wait_until 10 not both_free || fail "the end of b/w0 was not seen"
HDT_TEST_FAST=$work/job.yaml HDT_TEST_STUCK=$work/stuck slow_worker b w0
wait_until 30 both_free || fail "workers are not free: $(hdt status --gateway "$(gateway_of a)")"
submitted device-stuck
stuck=${worker_pid[b/w0]}
touch stuck
from=$EPOCHREALTIME
check "a device hangs: the submitter ends" wait_until 40 has_ended $pid
check "about 20 s after: $(seconds_since "$from") s" below "$(seconds_since "$from")" 15 "$(at_most 15 36)"
check "and names flow and site" grep -qE "nothing moved for .* flow [0-9]+ .*site b" device-stuck.log
check "its worker ends, too, so that its service starts another" wait_until 40 has_ended "$stuck"
wait "$stuck"
same "as one that failed" 1 $?
check "it says what it was in" grep -qE "cannot end rank [0-9] of job [0-9]+: told to end 20 s ago, it is still in op [A-Z_]+" b-w0/worker.log
check "with a remedy" grep -q "hint: a device or a disk does not answer: look at the kernel's log" b-w0/worker.log
rm stuck
HDT_TEST_FAST=$work/job.yaml HDT_TEST_STUCK=$work/stuck slow_worker b w0
wait_until 30 both_free || fail "workers are not free: $(hdt status --gateway "$(gateway_of a)")"
submitted stuck-again
touch stuck
wait_until 30 test -s stuck || fail "no product came to hang"
kill -TERM "${worker_pid[b/w0]}"
left_in "a worker whose device hangs, SIGTERM" 15 "${worker_pid[b/w0]}"
check "and says so" grep -q "still waiting for an op of its device, or a disk" b-w0/worker.log
check "the submitter ends" wait_until 40 has_ended $pid
worker b w0
wait_until 40 both_free || fail "workers are not free: $(hdt status --gateway "$(gateway_of a)")"
submitted stop-frozen
kill -STOP "${gateway_pid[a]}"
from=$EPOCHREALTIME
timeout $((60 * patience)) hdt stop --gateway "$(gateway_of a)" >stop.log 2>&1
same "hdt stop against its stopped coordinator: exit" 4 $?
check "after the handshake's deadline: $(seconds_since "$from") s" below "$(seconds_since "$from")" 5.9 "$(at_most 5.9 10)"
kill -KILL "${gateway_pid[a]}"
wait_until 20 grep -q "^gateway lost" stop-frozen.log || fail "the end of the gateway was not seen"
kill -INT $pid # a gateway that is lost cannot be asked to stop: it leaves at once
left_in "hdt submit, its gateway killed, Ctrl-C" 5 $pid
kill -TERM "${worker_pid[b/w0]}" "${worker_pid[a/w0]}" "${gateway_pid[b]}"
left_in "gateway b, its peer gone" 10 "${gateway_pid[b]}"
left_in "worker of b" 10 "${worker_pid[b/w0]}"
left_in "worker of a, without a gateway" 10 "${worker_pid[a/w0]}"

[ "$n_failed" = 0 ]
