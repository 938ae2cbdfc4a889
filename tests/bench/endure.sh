# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# a fault every 2 s for --minutes N: kills of gateways, cuts of sessions; the bits of a calm run
# shellcheck disable=SC2154 # srcdir, builddir, tmp and minutes are scripts/bench's

bench_run() {
    local metric value unit goal

    (export srcdir && cd "$builddir" && bash "$srcdir/tests/support/endure_run.sh" "$minutes") >"$tmp/endure" || {
        cat "$tmp/endure" >&2
        exit 1
    }
    while read -r metric value unit goal; do
        row endure "$metric" "$metric" "$value" "$unit" lower - null "$goal"
    done < <(grep -E '^[a-z_]+ [0-9.]+ [^ ]+ [^ ]+$' "$tmp/endure")
}
