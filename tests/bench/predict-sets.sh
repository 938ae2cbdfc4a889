# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# predictions against public sets of measured runs (a second)
# shellcheck disable=SC2154 # builddir, srcdir and tmp are scripts/bench's

# sums FOLDER [CLUSTER]: predict a folder of layouts; its rows are shown, its sums wait for `sum`.
sums() {
    "$builddir/tests/bench/bench_predict_sets" "$srcdir/tests/data/predict/$1" ${2:+"$2"} >"$tmp/sums"
}

sum() { # NAME
    awk -v name="$1" '$1 == name { print $2 }' "$tmp/sums"
}

# goal CASE METRIC VALUE UNIT BETTER GOAL: a row, and whether it is met.
goal() {
    row predict-sets "$1" "$2" "$3" "$4" "$5" none null "$6"
    awk -v value="$3" -v goal="$6" -v better="$5" 'BEGIN {
        met = better == "lower" ? value <= goal : value >= goal
        print met ? "           met" : "           NOT met"
    }'
}

# in_order METRIC: of pairs of layouts that standard input has in order (lines NAME GROUP VALUE, as
# published), the share that METRIC has in the same order; each pair and its gap go to standard error.
# Pairs of a group count that differ by more than a tenth of the smaller value; with "all" as second
# argument all of them. Predictions within 0.005 (of times, within 0.5 %) are a tie, which counts for
# nothing, and so does what is published as close.
in_order() {
    awk -v metric="$1" -v every="${2:-}" '
        function gap(a, b) { return metric == "bubble" ? b - a : b / a - 1 }
        NR == FNR { got[$1] = $2; next }
        { name[++n] = $1; group[n] = $2; value[n] = $3 }
        END {
            for (i = 1; i <= n; i++) for (k = 1; k <= n; k++) {
                if (group[i] != group[k] || value[i] >= value[k]) continue
                if (every == "" && value[k] < 1.1 * value[i]) continue
                is = gap(got[metric ":" name[i]], got[metric ":" name[k]])
                tie = (is < 0.005 && is > -0.005) || gap(value[i], value[k]) < 0.005
                pairs += !tie
                good += !tie && is > 0
                how = tie ? ": a tie" : is > 0 ? "" : ": NOT"
                printf("  %-26s before %-26s by %6.3f, published %6.3f%s\n", name[i], name[k], is,
                       gap(value[i], value[k]), how) | "cat >&2"
            }
            printf "%.3f\n", good / pairs
        }' "$tmp/sums" -
}

# The table of planners: seconds that its judge gives their plans.
planners() {
    cat <<'END'
1a-uneven 1 4.888
1b-sailor 1 5.178
1b-metis 1 5.24
1c-amp 1 7.356
2a-uneven 2 2.383
2b-sailor 2 2.763
2c-amp 2 4.731
3a-uneven 3 1.788
3b-sailor 3 1.905
3c-amp 3 3.182
4a-uneven 4 31.33
4b-metis 4 34.60
4c-sailor 4 37.45
4d-amp 4 62.09
END
}

# Bubble rates that AdapHeterPipe publishes.
bubbles() {
    cat <<'END'
vh45-760m-a-zb-h1 1 .343
vh45-760m-b-interleaved 1 .344
vh45-760m-c-1f1b 1 .389
vh45-1b3-a-zb-h1 2 .294
vh45-1b3-b-interleaved 2 .338
vh45-1b3-c-1f1b 2 .393
hh55-760m-a-zb-h1 3 .129
hh55-760m-b-interleaved 3 .209
hh55-760m-c-1f1b 3 .290
hh55-1b3-a-zb-h1 4 .234
hh55-1b3-b-interleaved 4 .261
hh55-1b3-c-1f1b 4 .329
hhvv-13b-a-zb-h1 5 .331
hhvv-13b-b-interleaved 5 .346
hhvv-13b-c-1f1b 5 .388
END
}

# Throughputs, as times: AdapHeterPipe over 10 Gbit/s, OctoPipe with alike stages.
throughputs() {
    awk '{ print $1, $2, 1 / $3 }' <<'END'
inter-a-zb-h1 1 32.3
inter-b-interleaved 1 29.9
inter-c-1f1b 1 27.0
h800-a-interleaved 2 512
h800-b-zb-h1 2 506
h800-c-1f1b 2 478
END
}

bench_run() {
    make -C "$builddir" tests/bench/bench_predict_sets >/dev/null
    sums set-a gh200
    goal "set A, GH200: time" time_error "$(sum time_error)" % lower 5
    goal "set A, GH200: memory" memory_error "$(sum memory_error)" % lower 5
    row predict-sets "fitted for times" constants "$(sum constants)" - lower none null null
    row predict-sets "fitted for memory" constants 1 - lower none null null # framework_gb of GH200
    sums set-a rtx
    goal "set A, RTX: time" time_error "$(sum time_error)" % lower 8
    sums set-b
    goal "set B: rank corr." rank_correlation "$(sum rank_correlation)" - higher 0.8
    goal "set B: first choice" first_choice "$(sum first_s)" s lower 1.28
    row predict-sets "set B: time" time_error "$(sum time_error)" % lower none null null
    sums planners
    goal "planners' table" pairs_in_order "$(planners | in_order sample_s)" share higher 1
    sums schedules
    goal "bubble rates" pairs_in_order "$(bubbles | in_order bubble all)" share higher 1
    goal "throughputs" pairs_in_order "$(throughputs | in_order sample_s all)" share higher 1
}
