# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# tokens of a two-site run with and without attackers at full speed, in turn
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's

# The peer is the same run without the attack, a moment before. tests/e2e/attack_run.sh measures.
bench_run() {
    local case_name per_s per_cpu
    (cd "$builddir" && srcdir=$srcdir && export srcdir && "$srcdir/tests/e2e/attack_run.sh" "$tmp/attack") || exit 2
    while read -r case_name per_s per_cpu; do
        row attack "$case_name" tokens_per_s "$per_s" share higher undisturbed 1 0.97
        row attack "$case_name" tokens_per_cpu_s "$per_cpu" share higher undisturbed 1 0.97
    done <"$tmp/attack"
}
