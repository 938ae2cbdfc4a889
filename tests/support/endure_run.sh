#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A long run whose gateways are killed and whose sessions are cut all the time, against a calm one: is a
# frame lost, taken twice or out of order, the bits differ. For 'scripts/bench endure'; runs in the build
# folder. Prints a line "METRIC VALUE UNIT GOAL" for each result.
#
#     endure_run.sh MINUTES    of the disturbed run, about; the calm one is shorter
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

minutes=$1
seed=${HDT_E2E_SEED:-$RANDOM}
n_micro_batches=8
command -v python3 >/dev/null || skip "no python3"
cd "$work" || exit 1
echo "seed $seed (HDT_E2E_SEED)" >&2

fed_init
fed_data
fed_resetting "$seed" || exit 1

begin() { # NAME STEPS
    job "$1.yaml" "$2" "name: $1" "plan.cut: [a/w0=3, b/w0=3]" "plan.min_stages: 2" "checkpoint.every: 0" \
        "batch.n_micro_batches: $n_micro_batches" "replan.auto: false"
    hdt submit --verbose --gateway "$(gateway_of a)" --json "$work/$1.json" "$1.yaml" >"$1.log" 2>&1 </dev/null &
    pid=$!
    pids+=("$pid")
}
rss_of() { awk '/^VmRSS/ { print $2 }' "/proc/${worker_pid[$1/w0]}/status"; }

# How fast is a calm run? A short one tells.
begin trial 400
wait "$pid" || { fail "trial: $(tail -n 3 trial.log)"; exit 1; }
step_s=$(python3 -c '
import json, glob, statistics
print(statistics.median(json.loads(l)["step_s"] for l in open(glob.glob("a/state/jobs/*-trial/metrics.jsonl")[0]) if "step_s" in l))')
steps=$(awk -v m="$minutes" -v s="$step_s" 'BEGIN { printf "%d", m * 60 * 0.8 / s }')
begin calm "$steps"
wait "$pid" || { fail "calm: $(tail -n 3 calm.log)"; exit 1; }

: >disturbed.log
begin disturbed "$steps"
wait_until 60 grep -q '^step 3/' disturbed.log || { fail "no step 3: $(tail -n 3 disturbed.log)"; exit 1; }
began=$SECONDS kills=0 turn=0
: >rss
# A fault every two seconds: a gateway, the sessions, the other gateway, the sessions.
while is_running "$pid"; do
    case $((turn++ % 4)) in
    0 | 2)
        victim=$([ $((turn % 4)) = 1 ] && echo b || echo a)
        kill -9 "${gateway_pid[$victim]}"
        wait "${gateway_pid[$victim]}" 2>/dev/null
        gateway_start "$victim"
        kills=$((kills + 1))
        ;;
    *)
        touch resetting
        sleep 0.4 # one reset, or two
        rm -f resetting
        ;;
    esac
    echo "$SECONDS $(rss_of a) $(rss_of b)" >>rss
    sleep 1.6 # between faults
done
wait "$pid"
code=$?
[ "$code" = 0 ] || fail "disturbed: $(tail -n 5 disturbed.log)"
ran_s=$((SECONDS - began))
differ=0
[ "$(result_of calm)" = "$(result_of disturbed)" ] && [ -n "$(result_of calm)" ] || differ=1
lines=0
metrics_whole "$(sed -n 's/^metrics  *//p' disturbed.log)" "$steps" >&2 || lines=1

# Largest growth of a worker over its value after a tenth of the time, in percent.
growth() { # COLUMN
    awk -v c="$1" '{ v[NR] = $c } END { first = v[int(NR / 10) + 1]; for (i = int(NR / 10) + 1; i <= NR; i++) if (v[i] > most) most = v[i]
        printf "%.2f", first ? 100 * (most - first) / first : 0 }' rss
}
# An activation, its labels and its gradient for each micro-batch, sums to the root and its answer for each step.
echo "frames $((steps * (3 * n_micro_batches + 2))) count null"
echo "gateway_kills $kills count null"
echo "session_resets $(grep -c reset proxy.log) count null"
echo "seconds $ran_s s null"
echo "runs_that_differ $differ count 0"
echo "lines_lost_or_twice $lines count 0"
echo "rss_growth_worker_a $(growth 2) % 1"
echo "rss_growth_worker_b $(growth 3) % 1"
[ "$n_failed" = 0 ]
