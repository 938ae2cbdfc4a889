#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Gateways of many sites on this machine, each with a session to each other, all killed and started again
# at once. For 'scripts/bench wan'; runs in the build folder. Prints a line "METRIC VALUE UNIT GOAL" for
# each result.
#
#     mesh_run.sh GATEWAYS
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

n=$1
sites=()
for ((i = 1; i <= n; i++)); do
    sites+=("s$i")
done
cd "$work" || exit 1
fed_init lab

# Each finds a port of its own; who is started again must be where it was.
for name in "${sites[@]}"; do
    http='' site "$name"
done
for name in "${sites[@]}"; do
    address[${name#s}]=$(wan_of "$name")
done
all_end() {
    local name

    for name in "${sites[@]}"; do
        kill "-$1" "${gateway_pid[$name]}" 2>/dev/null
    done
    for name in "${sites[@]}"; do
        wait "${gateway_pid[$name]}" 2>/dev/null
    done
}
all_start() {
    local name

    for name in "${sites[@]}"; do
        hdt-gateway -c "$name/gateway.yaml" >"$name/gateway.log" 2>&1 </dev/null &
        gateway_pid[$name]=$!
        pids+=($!)
    done
}
# Every one of them says of every other that it is connected: the last word on each counts.
n_connected() {
    awk '/ site [^ ]+ is (not )?connected/ {
            match($0, / site [^ ]+/)
            up[FILENAME substr($0, RSTART, RLENGTH)] = !/ is not connected/
        }
        END { for (k in up) n += up[k]; print n + 0 }' s*/gateway.log
}
all_connected() { [ "$(n_connected)" = $((n * (n - 1))) ]; }

all_end TERM
for name in "${sites[@]}"; do
    peers=()
    for ((i = 1; i <= n; i++)); do
        [ "s$i" = "$name" ] || peers+=("s$i=${address[$i]}")
    done
    listen=${address[${name#s}]} http='' gateway_conf "$name" "${peers[@]}"
done
all_start
wait_until 60 all_connected || { fail "the mesh does not come up"; exit 1; }

all_end KILL
began=$(date +%s.%N)
all_start
if ! wait_until 60 all_connected; then
    fail "only $(n_connected) of $((n * (n - 1))) ends are connected"
    exit 1
fi
awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "connected %.2f s 5\n", b - a }'
echo "alarms $(cat s*/gateway.log | grep -cE ' (warn|error): ') lines $n"
cat s*/gateway.log | grep -E ' (warn|error): ' | sed -E 's/^[^:]*:[^:]*:[^ ]* //; s/[0-9.:]+/N/g' | sort | uniq -c | sort -rn | head -n 5 >&2
exit 0
