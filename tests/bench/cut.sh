# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# seconds from the healing of a cut link to the first acknowledged frames (root; eight minutes)
# shellcheck disable=SC2154 # srcdir and builddir are scripts/bench's

# cut_case LINK SECONDS ROUNDS: HDT, and the same with nothing dialled beside a silent session, which
# leaves the healing to TCP's timers.
cut_case() {
    local mode value=() link=$1 cut=$2 rounds=$3

    for mode in beside wait; do
        # shellcheck disable=SC2086 # words
        value+=("$(export srcdir && cd "$builddir" && bash "$srcdir/tests/support/cut_run.sh" "$cut" "$rounds" "$mode" $link | median)")
    done
    row cut "${link/rtt /}, $cut s" first_ack_after_healing "${value[0]}" s lower "TCP alone" "${value[1]}" 2
}

bench_run() {
    make -C "$builddir" tests/bench/bench_cut >/dev/null
    for cut in ${CUT_SECONDS:-5 10 20}; do
        cut_case "rtt 40ms loss 0.1%" "$cut" 3
        cut_case "rtt 300ms loss 1%" "$cut" 3
    done
}
