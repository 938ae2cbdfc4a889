# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# seconds to plan a job for 3 to 16 measured workers and models of 32 to 514 units (one core; one minute)
# shellcheck disable=SC2154 # builddir is scripts/bench's

bench_run() {
    local workers units seconds tried played

    make -C "$builddir" tests/bench/bench_search >/dev/null
    for workers in 4 6 8 12 16; do
        for units in 32 64 128 258 514; do
            read -r seconds tried played _ < <("$builddir/tests/bench/bench_search" "$workers" "$units")
            echo "# $workers workers, $units units: $tried ends tried, $played plans played"
            row search "$workers workers, $units units" cpu "$seconds" s lower none null "$([ "$units" -gt 128 ] && echo null || echo 1)"
        done
    done
}
