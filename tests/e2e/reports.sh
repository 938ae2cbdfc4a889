#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What workers report is written once and in order while the sessions between the sites are reset
# every few hundred milliseconds, with all that is on its way, and gateways are killed meanwhile.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

command -v python3 >/dev/null || skip "no python3"
cd "$work" || exit 1
seed=${HDT_E2E_SEED:-$RANDOM}
echo "seed $seed (HDT_E2E_SEED)"

fed_init
fed_data
fed_resetting "$seed" || exit 1

# The root of the job, which reports the steps, is at b; its coordinator is a.
job calm.yaml 1000 "data.site: b" "plan.min_stages: 2" "checkpoint.every: 200" \
    "codec.activations: lossless" "codec.activation_grads: lossless"
check "a calm run" submit a calm

disturbed() { # NAME FUNCTION: the run while sessions are reset, and while the function runs
    local name=$1 pid

    cp calm.yaml "$name.yaml"
    sed -i "s/calm.yaml-ckpt/$name-ckpt/" "$name.yaml"
    submit a "$name" &
    pid=$!
    pids+=("$pid")
    reaches "$name" 3 "$pid"
    touch resetting
    $2 "$name"
    run_ends "$name" "$pid" "$name.log"
    rm -f resetting
    same "$name: losses and weights" "$(result_of calm)" "$(result_of "$name")"
    check "$name: its lines" metrics_whole "$(sed -n 's/^metrics  *//p' "$name.log")" 1000
    check "$name: all are free again" wait_until 20 all_free
}
all_free() { hdt status --gateway "$(gateway_of a)" | grep -c '^worker.* free ' | grep -qx 2; }

disturbed resets :
echo "   $(grep -c reset proxy.log) resets"
check "the sessions were reset" test "$(grep -c reset proxy.log)" -ge 3

kill_some() {
    local victim

    for victim in b a b; do
        sleep 1 # between faults
        kill -9 "${gateway_pid[$victim]}"
        wait "${gateway_pid[$victim]}" 2>/dev/null
        gateway_start "$victim"
    done
}
disturbed kills kill_some

[ "$n_failed" = 0 ]
