# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# the planner's choice against all other cuts and codecs, run: tokens/s in ten settings of 2 and 3 sites
# shellcheck disable=SC2154 # srcdir, tmp, work and json are scripts/bench's and the rig's
#
# HDT_BENCH_CASES   sites:workers:rate:round trip, as 2:unequal:40mbit:40ms [ten]
# HDT_BENCH_ROUNDS  [3]
# HDT_BENCH_STEPS   of a run; its first two do not count [5]
# HDT_BENCH_TURNS   of the last four [7]
#
# The quickstart's model (6 blocks, embedding and head: 8 units), micro-batches of 2 x 128 tokens, 8 a step.
# All sites take part. `codec: auto` with `lossy` may be none, lossless, bf16 or bf16+lossless; without an
# error budget, so that it stays in the run what it was when it was planned. Workers are started anew and
# measured ROUNDS times before a setting; the plan that most of these lead to is the chosen one. The others
# are, with two sites, both orders of them, all cuts and all four codecs; with three, the chosen order, all
# cuts with no part more than two units from the chosen one, the even cut, all codecs, and the even cut in all
# other orders with the chosen codec (all of all would be 504). Each has the schedule that the planner gives
# it.
#
# A machine whose processors others share has two speeds and keeps each for seconds. So every sixth run is one
# of the chosen plan, and each other is taken by the two of these around it. In the first round all run, then
# the best six, so that few of the slow ones are run again. The best of so many that are measured with noise
# is better than it is: it was chosen for its noise, too. So the three best are measured again, in turn with
# the chosen one, and these runs alone count: per turn the chosen plan's tokens/s by each other's, the median
# over turns, the worst of the three.
#
# Unequal workers: with two sites a neighbour computes on the core of b's; with three, each worker has a share
# of a core (a and c are on one) by a cgroup's quota, and where none can be made, equal or not, the row says
# so and is no judgement.

# shellcheck source=tests/support/lab_rig.sh
. "$srcdir/tests/support/lab_rig.sh"

cases=${HDT_BENCH_CASES:-2:equal:1gbit:10ms 2:unequal:1gbit:10ms 2:equal:200mbit:40ms 2:unequal:200mbit:40ms
    2:equal:40mbit:40ms 2:unequal:40mbit:40ms 3:unequal:1gbit:10ms 3:unequal:200mbit:40ms
    3:unequal:40mbit:40ms 3:equal:200mbit:40ms}
rounds=${HDT_BENCH_ROUNDS:-3}
steps=${HDT_BENCH_STEPS:-5}
turns=${HDT_BENCH_TURNS:-7}
codecs=(none lossless bf16 bf16+lossless)
tokens=$((2 * 8 * 128)) # of a step
# shellcheck disable=SC2034 # by the name's end
declare -A share_of_equal=([a]=0.4 [b]=0.4 [c]=0.4) share_of_unequal=([a]=0.5 [b]=0.9 [c]=0.3)

measured() { "$srcdir/tests/support/plan_measured.py" "$@"; }

# workers_start N SPEEDS: one at each site, measured anew.
workers_start() {
    local site

    for site in "${rig_sites[@]}"; do
        [ -n "${worker_pid[$site/w0]:-}" ] || continue
        kill "${worker_pid[$site/w0]}"
        wait "${worker_pid[$site/w0]}" 2>/dev/null
    done
    for site in "${rig_sites[@]}"; do
        worker "$site" w0
        [ "$1" = 3 ] || continue
        local -n share=share_of_$2
        rig_quota "${worker_pid[$site/w0]}" "${share[$site]}" || no_quota="no quotas here"
    done
    expect_federation a "$1" "$1"
}

# job_of CUT ACTIVATIONS GRADIENTS SCHEDULE: $work/run.yaml
job_of() {
    sed -e "s|@cut@|$1|; s|@activations@|$2|; s|@gradients@|$3|; s|@schedule@|$4|" "$work/any.yaml" >"$work/run.yaml"
}

# chosen_plan NAME N SPEEDS: $work/plan.json, and $table with it and all others.
chosen_plan() {
    local round plan found=() number name cut activations gradients

    rig_job "$work/any.yaml" "$steps" "plan.cut: [@cut@]" "codec.activations: @activations@" \
        "codec.activation_grads: @gradients@" "plan.schedule: @schedule@" "codec.lossy: true" \
        "codec.error_budget: 0" "batch.micro_batch: 2" "plan.min_stages: $2"
    for ((round = 0; round < rounds; round++)); do
        workers_start "$2" "$3"
        job_of "" auto auto auto
        hdt plan --gateway "$(gateway_of a)" --remeasure --json "$work/run.yaml" >"$work/plan-$round.json" \
            2>"$work/plan.log" || rig_fail "$1: $(tail -n 2 "$work/plan.log")"
        found+=("$work/plan-$round.json")
    done
    read -r plan n_usual <<<"$(measured usual "${found[@]}")"
    cp "$plan" "$work/plan.json"
    measured others "$work/plan.json" "${codecs[@]}" >"$work/open"
    mkdir -p "$work/plans"
    while IFS=$'\t' read -r number name cut activations gradients _; do
        job_of "$cut" "$activations" "$gradients" auto
        hdt plan --cluster "$work/plan.json" --json "$work/run.yaml" >"$work/plans/$number.json" 2>"$work/plan.log" ||
            rig_fail "$1 $name: $(tail -n 2 "$work/plan.log")"
    done < <(tail -n +2 "$work/open")
    measured table "$work/open" "$work/plans" >"$table"
}

# run_plan NUMBER: the plan of this line of the table; round, number and median step into the file $runs.
run_plan() {
    local name cut activations gradients schedule run_dir

    IFS=$'\t' read -r _ name cut activations gradients schedule _ <<<"$(sed -n "$(($1 + 1))p" "$table")"
    job_of "$cut" "$activations" "$gradients" "$schedule"
    hdt submit --gateway "$(gateway_of a)" --json "$work/run.json" "$work/run.yaml" >"$work/run.log" 2>&1 ||
        rig_fail "$setting $name: $(tail -n 2 "$work/run.log")"
    run_dir=$(field "$work/run.json" run_dir | tr -d '"')
    echo "$round $1 $(measured step_of "$run_dir/metrics.jsonl")" >>"$runs"
    rm -rf "$work/any.yaml-ckpt" "$run_dir"
}

# sweep NUMBER...: these in turn, the chosen plan before, after every fifth, and at the end.
sweep() {
    local number n=0

    run_plan 0
    for number in "$@"; do
        run_plan "$number"
        n=$((n + 1))
        if [ $((n % 5)) = 0 ] || [ "$n" = $# ]; then
            run_plan 0
        fi
    done
}

# last_turns NUMBER...: the chosen plan and these, every other turn backwards.
last_turns() {
    local order number backwards=()

    for number in 0 "$@"; do
        backwards=("$number" "${backwards[@]}")
    done
    runs=$tmp/$setting.turns
    for ((round = 0; round < turns; round++)); do
        order=(0 "$@")
        [ $((round % 2)) = 0 ] || order=("${backwards[@]}")
        for number in "${order[@]}"; do
            run_plan "$number"
        done
    done
}

# setting_run SITES:SPEEDS:RATE:RTT: rows of it.
setting_run() {
    local setting=$1 n speeds rate rtt table=$tmp/$1.table runs=$tmp/$1.runs round=0 numbers no_quota='' n_usual

    IFS=: read -r n speeds rate rtt <<<"$setting"
    rig_sites=(a b c)
    rig_sites=("${rig_sites[@]:0:$n}")
    rig_start "rate $rate rtt $rtt"
    fed_data
    cp "$srcdir/etc/model.json" "$work/model.json"
    [ "$n:$speeds" != 2:unequal ] || rig_slow_down b 2
    chosen_plan "$setting" "$n" "$speeds"
    for ((round = 0; round < rounds; round++)); do
        mapfile -t numbers < <(tail -n +2 "$table" | cut -f 1)
        [ "$round" = 0 ] || read -r -a numbers <<<"$(measured best "$runs" 6)"
        sweep "${numbers[@]}"
    done
    read -r -a numbers <<<"$(measured best "$runs" 3)"
    last_turns "${numbers[@]}"
    setting_rows
    rig_slow_down b 1
    rig_stop
}

tokens_per_s() { awk -v tokens=$tokens -v s="$1" 'BEGIN { printf "%.0f", tokens / s }'; }

# Of all plans, predicted and measured, into the JSON file alone; the last four and what they say into the table.
setting_rows() {
    local name schedule measured_s predicted_s ratio worst='' of_chosen chosen=''

    while IFS=$'\t' read -r name schedule measured_s predicted_s; do
        (row plan-measured "$setting $name $schedule" step_s "$measured_s" s lower predicted "$predicted_s" \
            null) >/dev/null
    done < <(measured steps "$table" "$tmp/$setting.runs")
    echo "  $setting: chosen $n_usual of $rounds times; the best in the rounds: schedule, measured, predicted s a step" >&2
    measured steps "$table" "$tmp/$setting.runs" | awk 'NR <= 8 { print "    " $0 }' >&2
    while IFS=$'\t' read -r ratio name measured_s predicted_s; do
        worst=${worst:-$ratio $name}
        chosen=$name # the last line
        row plan-measured "$setting $name" tokens_per_s "$(tokens_per_s "$measured_s")" tokens/s higher \
            predicted "$(tokens_per_s "$predicted_s")" null
    done < <(measured judge "$table" "$tmp/$setting.turns")
    of_chosen=${worst%% *}
    row plan-measured "$setting ${no_quota:+$no_quota }$chosen" chosen_per_best_other "$of_chosen" ratio higher \
        "${worst#* }" 1 "$([ -n "$no_quota" ] && echo null || echo 0.97)"
    [ -n "$no_quota" ] || judged+=("$of_chosen")
}

bench_run() {
    local name judged=() n

    for name in $cases; do
        setting_run "$name"
    done
    n=$(printf '%s\n' "${judged[@]}" | awk '$1 >= 0.97 { n++ } END { print n + 0 }')
    row plan-measured "settings of ${#judged[@]}" within_3_percent_of_best "$n" settings higher none null \
        "$([ ${#judged[@]} = 10 ] && echo 9 || echo null)"
}
