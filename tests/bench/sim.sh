# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# speed and memory of the simulator (one core; two minutes)
# shellcheck disable=SC2154 # builddir is scripts/bench's

# sim_case STAGES REPLICAS MICRO_BATCHES SECONDS GB
sim_case() {
    local seconds cpu rate gb name="$(($1 * $2)) ranks x $3, $1 deep"

    read -r seconds cpu rate gb _ < <("$builddir/tests/bench/bench_sim" "$1" "$2" "$3")
    row sim "$name" wall "$seconds" s lower none null "$4"
    row sim "$name" cpu "$cpu" s lower none null "$4"
    row sim "$name" events_per_s "$rate" 1/s higher none null null
    row sim "$name" memory "$gb" GB lower none null "$5"
}

bench_run() {
    make -C "$builddir" tests/bench/bench_sim >/dev/null
    sim_case 8 125 256 1 4
    sim_case 100 10 256 1 4
    sim_case 8 1250 1000 60 4
    sim_case 100 100 1000 60 4
}
