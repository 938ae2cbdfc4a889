#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What attackers at full speed cost a run: two sites on loopback train, and one attack after the
# other is on for a while and off for a while, in turn. scripts/bench attack prints what this does.
#
#     attack_run.sh OUT [WINDOW-SECONDS [ROUNDS]]
#
# HDT_BENCH_CASES: some of nobody random http silent loris tls wrong all [all of them]
#
# The kernel works for every packet of an attack, whomever it is meant for, and all run on the same
# cores. So what a gateway does because of it is what a run loses when its own gateway is attacked
# rather than a bystander's, another gateway on this machine. OUT gets lines "CASE RATIO RATIO", medians
# over rounds, of tokens a second under attack: against the same attack on the bystander, and against
# none. The counters that show that it took place go to standard error. Attackers are niced.
out=$1 window=${2:-2} rounds=${3:-7}
srcdir=${srcdir:-$(dirname "$0")/../..}
# shellcheck source=tests/e2e/lib.sh
. "$srcdir/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

attack=$build/tests/support/attack
[ -x "$attack" ] || { echo "attack_run.sh: no tests/support/attack: 'make check TESTS=' builds it" >&2; exit 2; }

fed_init
fed_init other other-ca
fed_data
hdt ca issue --dir "$work/ca" --out "$work/x-tls" site x >/dev/null
hdt ca issue --dir "$work/other-ca" --out "$work/foreign-tls" site x >/dev/null
site a
site b a="$(wan_of a)"
site bystander
worker a w0
worker b w0
expect_federation a 2 2

# Steps of tens of milliseconds: in much shorter ones waking processes up is all that is measured.
fed_model "$work/model.json" 's/"hidden_size": 32/"hidden_size": 64/; s/"intermediate_size": 96/"intermediate_size": 192/'
job "$work/run.yaml" 1000000 "plan.min_stages: 2" "checkpoint.every: 0" "batch.n_micro_batches: 8"
timeout 1200 hdt submit --gateway "$(gateway_of a)" "$work/run.yaml" >"$work/run.log" 2>&1 </dev/null &
submit_pid=$!
pids+=("$submit_pid")
steps() { cat "$work"/a/state/jobs/*/metrics.jsonl 2>/dev/null | grep -c '"loss"'; }
reached() { [ "$(steps)" -ge "$1" ]; }
wait_until 60 reached 20 || { tail -n 5 "$work/run.log" >&2; exit 1; }

# Steps a second, in a window of its own.
rate() {
    local from to began ended

    began=$EPOCHREALTIME
    from=$(steps)
    sleep "$window" # the measurement itself
    to=$(steps)
    ended=$EPOCHREALTIME
    awk -v n=$((to - from)) -v a="$began" -v b="$ended" 'BEGIN { printf "%.4f\n", n / (b - a) }'
}

attackers=()
start() { # SITE MODE...
    local target mode

    target=$(wan_of "$1")
    shift
    for mode in "$@"; do
        case $mode in
        tls) set -- --threads 4 --cert "$work/foreign-tls" ;;
        wrong) set -- --cert "$work/x-tls" --site x --federation lab ;;
        *) set -- ;;
        esac
        nice -n 19 "$attack" "$mode" "$target" --seconds 60 "$@" >>"$work/attacks.jsonl" &
        attackers+=($!)
    done
    [ ${#attackers[@]} -eq 0 ] || sleep 0.5 # until they are at it
}

stop() {
    [ ${#attackers[@]} -eq 0 ] || { kill "${attackers[@]}" && wait "${attackers[@]}"; }
    attackers=()
}

# Median of column N of the file.
median() { awk -v n="$2" '{ print $n }' "$1" | sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

# under SITE MODE...: the rate while that site's gateway is attacked, in $under.
under() {
    start "$@"
    under=$(rate)
    stop
}

# The order changes from round to round, so that what drifts is in both.
case_of() { # NAME MODE...
    local name=$1 i alone beside on

    shift
    : >"$work/ratios"
    for ((i = 0; i < rounds; i++)); do
        alone=$(rate)
        if ((i % 2)); then
            under a "$@" && on=$under
            under bystander "$@" && beside=$under
        else
            under bystander "$@" && beside=$under
            under a "$@" && on=$under
        fi
        echo "$on $beside $alone" | awk '{ print $1 / $2, $1 / $3 }' >>"$work/ratios"
    done
    echo "$name $(median "$work/ratios" 1) $(median "$work/ratios" 2)" >>"$out"
}

: >"$out"
for mode in ${HDT_BENCH_CASES:-nobody random http silent loris tls wrong all}; do
    case $mode in
    nobody) case_of nobody ;;
    all) case_of all random http silent loris tls wrong ;;
    *) case_of "$mode" "$mode" ;;
    esac
done

{
    echo "attackers:"
    cat "$work/attacks.jsonl"
    echo "gateway, refused by cause and misdeeds:"
    curl -s "$(http_of a)/metrics" | grep -E '^hdt_(refused_connections|peer_misdeeds|peer_bad_chunks)_total' | grep -v ' 0$'
    echo "lines of its log: $(wc -l <"$work/a/gateway.log"); steps: $(steps)"
    ps -o rss=,nlwp= -p "${gateway_pid[a]}" | awk '{ print "its memory: " $1 / 1024 " MiB" }'
} >&2
hdt stop --gateway "$(gateway_of a)" >/dev/null 2>&1
wait "$submit_pid" 2>/dev/null
[ "$n_failed" = 0 ]
