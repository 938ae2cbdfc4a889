# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# plans for mixed clusters against smaller spaces, predicted (ten minutes)
# shellcheck disable=SC2154 # builddir, srcdir and tmp are scripts/bench's

# search COMMAND FILE [SITE]: rows are shown, sums wait for `sum`.
search() {
    "$builddir/tests/bench/bench_plan" "$1" "$srcdir/tests/data/plan/$2" "${@:3}" >"$tmp/sums"
}

sum() { # NAME
    awk -v name="$1" '$1 == name { print $2 }' "$tmp/sums"
}

# goal CASE METRIC VALUE UNIT BETTER GOAL: a row, and whether it is met.
goal() {
    row plan "$1" "$2" "$3" "$4" "$5" none null "$6"
    awk -v value="$3" -v goal="$6" -v better="$5" 'BEGIN {
        met = better == "lower" ? value <= goal : value >= goal
        print met ? "           met" : "           NOT met"
    }'
}

# no_worse CASE SPACE: a row, unless nothing fits in that space.
no_worse() {
    [ -z "$(sum "$2")" ] || goal "$1: no worse" "$2" "$(sum "$2")" x higher 1
}

mean() {
    awk '{ s += $1 } END { printf "%.4f\n", s / NR }'
}

# The planners' table (doc/predictor.md). Assumed: its links and profiles; fp32, 1F1B on both sides.
tables() {
    local file

    for file in mixed/opt-32-96 mixed/opt-80-240 mixed/opt-128-384 mixed/neo-32-96; do
        search spaces "$file.yaml"
        sum over_even >>"$tmp/even"
        sum over_uneven >>"$tmp/uneven"
        no_worse "${file#*/}" over_even
        no_worse "${file#*/}" over_uneven
        row plan "${file#*/}" over_even_shares "$(sum over_shares)" x higher none null null
        goal "${file#*/}" seconds "$(sum seconds)" s lower 2
    done
    goal "mixed: mean" over_even "$(mean <"$tmp/even")" x higher 1.1
    goal "mixed: mean" over_uneven "$(mean <"$tmp/uneven")" x higher 1.03
    for file in alone/opt-32 alone/opt-80 alone/opt-128 geo/opt-5x32 geo/opt-5x128 \
        geo/far-opt-30b-16-16 geo/far-opt-30b-24-48; do
        search spaces "$file.yaml"
        no_worse "${file#*/}" over_even
        no_worse "${file#*/}" over_uneven
        goal "${file#*/}" seconds "$(sum seconds)" s lower 2
    done
}

# R: tokens a second of all over the sum of each type alone, all of them planned with all knobs, with
# as large a batch for each device; beside it with the whole batch for each type, which then scales by
# its devices alone. What is assumed of each cluster stands at the head of its file.
ratios() {
    local size

    for size in 7b 13b; do
        search ratio "hdt/llama-2-$size.yaml"
        goal "HDT, Llama-2 $size" R "$(sum ratio)" x higher 0.97
        row plan "HDT, Llama-2 $size" R_whole_batch "$(sum whole)" x higher none null null
        row plan "HDT, Llama-2 $size" R_at_most "$(sum most)" x higher none null null
    done
    search ratio hethub/llama-140b.yaml
    goal "HETHUB, 140B" R "$(sum ratio)" x higher 0.98
    row plan "HETHUB, 140B" R_whole_batch "$(sum whole)" x higher none null null
    for size in 2m 8m; do
        search grid "h2/llama-100b-$size.yaml"
        goal "H2, $size: C, D short" least_R "$(sum least)" x higher 1.17
        row plan "H2, $size: C, D short" mean_R "$(sum mean)" x higher none null null
        row plan "H2, $size: C, D short" R_at_most_low "$(sum at_most_low)" x higher none null null
        row plan "H2, $size: C, D short" R_at_most_high "$(sum at_most_high)" x higher none null null
        row plan "H2, $size: of it relief" mean "$(sum relief)" x higher none null null
        row plan "H2, $size: C, D short" points "$(sum short)" "of $(sum points)" higher none null null
    done
}

# Sites joined by slow links, against groups of powers of two without codecs, by the same simulator.
wans() {
    local n rate

    for n in 2 3 4; do
        search wan "hgtrainer/llama-2-70b-$n.yaml"
        for rate in 0.1 0.3 1 3 10; do
            row plan "$n sites, $rate Gbit/s" over_metis "$(sum "over_metis:$rate")" x higher none null null
        done
        sum log_mean >>"$tmp/wan"
    done
    goal "HGTrainer: geo. mean" over_metis "$(awk '{ s += $1 } END { printf "%.4f", exp(s / NR) }' "$tmp/wan")" x higher 1.5
}

times() {
    search speed speed/128.yaml
    goal "128 devices" seconds "$(sum seconds)" s lower 0.3
    search speed speed/1024.yaml site-1
    goal "1,024 devices" seconds "$(sum seconds)" s lower 1
    goal "1,024, a site of the plan lost" seconds "$(sum again_whole_seconds)" s lower 1
    search speed speed/10000.yaml site-2
    goal "9,984 devices" seconds "$(sum seconds)" s lower 10
    goal "9,984, a site lost, limit 0.9 s" seconds "$(sum again_seconds)" s lower 1
    goal "9,984 devices" memory "$(sum memory_gb)" GB lower 1
}

bench_run() {
    make -C "$builddir" tests/bench/bench_plan >/dev/null
    tables
    ratios
    wans
    times
}
