#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Who asks why a job stands still gets an answer: what ranks wait for, the flight recorder, the bundle
# for a bug report, doctor, and logs that a storm does not fill.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
at_step() { grep -q "^step $2/" "$work/$1.log" 2>/dev/null; }
status_says() { # SITE REGEX
    hdt status --gateway "$(gateway_of "$1")" >"$work/status" 2>&1 && grep -qE -- "$2" "$work/status"
}
dumps() { find "$work" -name "flight-$1-*-$2.jsonl" | wc -l; }
has_dump() { [ "$(dumps "$1" "$2")" -ge 1 ]; }
# Every line is JSON, times never go back, the areas are there.
dump_is_good() { # FILE AREA...
    python3 - "$@" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
times = [line["mono_us"] for line in lines[1:]]
areas = {line["area"] for line in lines}
missing = set(sys.argv[2:]) - areas
assert times == sorted(times), "the order"
assert not missing, f"no {missing} among {areas}"
PY
}
newest() { find "$work" -name "flight-$1-*-$2.jsonl" | sort | tail -n 1; }

fed_init
fed_data
site a
site b a="$(wan_of a)"
site c a="$(wan_of a)" b="$(wan_of b)"
worker a w0
worker b w0
expect_federation c 3 2

section "what a rank waits for"
job long.yaml 1000000 "plan.min_stages: 2" "codec.activations: none" "progress_timeout: 60s"
hdt submit --gateway "$(gateway_of a)" long.yaml >long.log 2>&1 &
submit_pid=$!
pids+=($submit_pid)
wait_until 20 at_step long 3 || fail "no step 3"
check "a third site does not take its workers for free" status_says c '^worker b/w0 .*busy'
kill -STOP "${worker_pid[b/w0]}"
check "status says which rank waits for which" wait_until 10 status_says a \
    'rank [01] \(a/w0\) waits [0-9]+ s for (activation|the |room|labels|tokens).* rank [01] \(b/w0\) over flow [0-9]+, [ab] -> [ab]'
cat status | grep waits
check "and the submitter, too" wait_until 12 grep -qE 'no step for [0-9]+ s: rank [01] \(a/w0\) waits' long.log
kill -CONT "${worker_pid[b/w0]}"
check "nothing is said of it any more" wait_until 10 eval '! status_says a waits'
kill -STOP "${gateway_pid[b]}"
check "a link that is silent is named" wait_until 15 status_says a \
    'rank [01] \(a/w0\) waits .*: link suspect since [0-9]+ s'
cat status | grep waits
check "status has each flow" eval 'hdt status --flows --gateway "$(gateway_of a)" | grep -E "^flow +job 1 .*lacks: "'
kill -CONT "${gateway_pid[b]}"
check "it goes on" wait_until 20 eval '! status_says a waits'

section "the flight recorder"
kill -USR1 "${gateway_pid[a]}" "${worker_pid[b/w0]}"
check "a gateway writes it when asked by a signal" wait_until 10 has_dump gateway-a sigusr1
check "a worker, too" wait_until 10 has_dump worker-w0 sigusr1
check "the gateway's is whole" dump_is_good "$(newest gateway-a sigusr1)" flight log message connection stream flow frame job
check "the worker's is whole" dump_is_good "$(newest worker-w0 sigusr1)" flight log message flow frame step step.end wait job
same "as an operator's own file" 600 "$(stat -c %a "$(newest gateway-a sigusr1)")"
