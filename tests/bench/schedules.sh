# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# schedules over an emulated WAN: tokens/s against 1F1B, and step time as planned against as measured
# shellcheck disable=SC2154 # srcdir, tmp and work are scripts/bench's and the rig's
#
# HDT_BENCH_CASES   sites and round trip [2:10ms 2:40ms 2:150ms 3:40ms 3:150ms]
# HDT_BENCH_ORDERS  [1f1b wan gpipe interleaved zb-h1 zb-mem]
# HDT_BENCH_ROUNDS  of all schedules of a case [3]
# HDT_BENCH_STEPS   of a run [12]
#
# Sites are joined by 200 Mbit/s each. Two have a core each. Of three, two share one; a cgroup gives each
# worker two fifths of a core, used or not, since a prediction knows no neighbour that computes at other
# times than it does when both are measured. Where no cgroup can be made, step times of three sites are
# compared with one another only. Each case has a federation of its own: TCP
# keeps what it knows of a path for longer than a run is, and would take a new one for the old. All schedules
# of a case run in turn in each round, on the same workers, so that the machine's moods are shared; the median
# of the rounds' ratios counts.

# shellcheck source=tests/support/lab_rig.sh
. "$srcdir/tests/support/lab_rig.sh"

cases=${HDT_BENCH_CASES:-2:10ms 2:40ms 2:150ms 3:40ms 3:150ms}
orders=${HDT_BENCH_ORDERS:-1f1b wan gpipe interleaved zb-h1 zb-mem}
rounds=${HDT_BENCH_ROUNDS:-3}
steps=${HDT_BENCH_STEPS:-12}
declare -A no_quota=() # by case: its workers share a core as they come

# order_run CASE ORDER: a line of rig_compare's ratios and the step's seconds into $tmp/CASE-ORDER.
order_run() {
    local name=$1-$2 job=$work/$1-$2-$round.yaml # its checkpoint lies beside it

    rig_job "$job" "$steps" "name: ${name/:/-}" "plan.min_stages: ${1%%:*}" "plan.schedule: $2" "replan.auto: false"
    rig_compare "$name" "$job"
    echo "$rig_ratios $(field "$work/validate.json" measured_step_s)" >>"$tmp/$name"
}

# speed_of CASE ORDER: median over the rounds of 1F1B's step time by this one's.
speed_of() {
    paste -d ' ' "$tmp/$1-1f1b" "$tmp/$1-$2" | awk '{ print $5 / $10 }' | median
}

case_rows() {
    local order ratio

    for order in $orders; do
        [ "$order" = 1f1b ] ||
            row schedules "$1 $order" tokens_per_s "$(printf %.3f "$(speed_of "$1" "$order")")" 1f1b higher \
                1f1b 1 "$([ "$order:${1#*:}" = wan:150ms ] && echo 1.1 || echo null)"
        [ -z "${no_quota[$1]}" ] || continue
        ratio=$(cut -d ' ' -f 1 "$tmp/$1-$order" | median)
        row schedules "$1 $order" measured_per_predicted "$(printf %.3f "$ratio")" ratio nearer-1 predicted 1 0.07
    done
}

# sites_start CASE: a rig of so many sites with a worker each.
sites_start() {
    local site n=${1%%:*}

    rig_sites=(a b c)
    rig_sites=("${rig_sites[@]:0:$n}")
    rig_start "rate 200mbit rtt ${1#*:}"
    no_quota[$1]=
    fed_data
    cp "$srcdir/etc/model.json" "$work/model.json"
    for site in "${rig_sites[@]}"; do
        worker "$site" w0
        [ "$n" = 2 ] || rig_quota "${worker_pid[$site/w0]}" 0.4 || no_quota[$1]=yes
    done
    expect_federation a "$n" "$n"
}

bench_run() {
    local name order round

    for name in $cases; do
        sites_start "$name"
        for ((round = 0; round < rounds; round++)); do
            for order in $orders; do
                order_run "$name" "$order"
            done
        done
        rig_stop
    done
    for name in $cases; do
        case_rows "$name"
    done
}
