# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# a run over 300 ms, 1 % loss, 20 ms jitter for --minutes N: false alarms and memory (root)
# shellcheck disable=SC2154 # srcdir, builddir, tmp and minutes are scripts/bench's

bench_run() {
    local metric value unit goal

    (export srcdir && cd "$builddir" && bash "$srcdir/tests/support/soak_run.sh" "$minutes" \
        rtt 300ms jitter 20ms loss 1%) >"$tmp/soak" || {
        cat "$tmp/soak" >&2
        exit 1
    }
    while read -r metric value unit goal; do
        row soak "$metric" "$metric" "$value" "$unit" lower - null "$goal"
    done < <(grep -E '^[a-z_]+ [0-9.]+ [^ ]+ [^ ]+$' "$tmp/soak")
}
