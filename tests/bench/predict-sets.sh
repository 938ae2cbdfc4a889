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

bench_run() {
    make -C "$builddir" tests/bench/bench_predict_sets >/dev/null
    sums set-a gh200
    goal "set A, GH200" time_error "$(sum time_error)" % lower 5
    goal "set A, GH200" memory_error "$(sum memory_error)" % lower 5
    row predict-sets "all rows" constants "$(sum constants)" fitted lower none null null
    sums set-a rtx
    goal "set A, RTX" time_error "$(sum time_error)" % lower 8
    sums set-b
    goal "set B" rank_correlation "$(sum rank_correlation)" - higher 0.8
    goal "set B" first_choice "$(sum first_s)" s lower 1.28
    row predict-sets "set B" time_error "$(sum time_error)" % lower none null null
}
