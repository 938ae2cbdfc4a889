# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# tokens of a two-site run with and without attackers at full speed, in turn
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's

# The peers are the same run a moment before: with the same attack on a gateway beside it, and with
# none. tests/e2e/attack_run.sh measures and says why.
#
# HDT_BENCH_CASES: some of nobody random http silent loris tls wrong all; HDT_BENCH_ROUNDS: of each [7]
bench_run() {
    local case_name beside alone

    (cd "$builddir" && export srcdir && "$srcdir/tests/e2e/attack_run.sh" "$tmp/attack" 2 "${HDT_BENCH_ROUNDS:-7}") ||
        exit 2
    while read -r case_name beside alone; do
        row attack "$case_name" tokens_per_s "$beside" share higher "a bystander attacked" 1 0.97
        row attack "$case_name" tokens_per_s "$alone" share higher "nobody attacked" 1 null
    done <"$tmp/attack"
}
