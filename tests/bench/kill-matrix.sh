# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# steps lost and seconds to training again, for each fault at 20 moments (10 minutes, root)
#
# The table and its rows are those of tests/e2e/kill_matrix.py, which `make check-long` runs too.
# KILL_MATRIX: further options, for example "--kinds worker --moments 5 --seed 1".

# shellcheck disable=SC2154 # srcdir, builddir, tmp and json are the caller's
bench_run() {
    local line
    local -a options

    read -ra options <<<"${KILL_MATRIX:-}"
    python3 "$srcdir/tests/e2e/kill_matrix.py" --build "$builddir" --json "$tmp/rows.json" \
        "${options[@]}" || echo "bench: not all is as it should be (see above)"
    [ -f "$tmp/rows.json" ] || exit 2
    while IFS= read -r line; do
        rows+=("$line")
        [ -z "$json" ] || echo "$line" >>"$json"
    done <"$tmp/rows.json"
}
