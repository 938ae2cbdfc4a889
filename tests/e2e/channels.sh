#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Programs of libhdt at two and three sites: the example of the manual, an all-reduce over a gateway
# that is killed, a program that is; what 'hdt status' and the audit log say of them.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

# program SITE COMMAND...: in the background, output in $work/SITE.out; its number in ${program_pid[SITE]}.
declare -A program_pid
program() {
    local site=$1

    shift
    HDT_GATEWAY=$(gateway_of "$site") "$@" >"$work/$site.out" 2>&1 </dev/null &
    program_pid[$site]=$!
    pids+=($!)
}

# programs_end TEXT SITE...: all end by themselves with 0.
programs_end() {
    local text=$1 site

    shift
    for site in "$@"; do
        wait "${program_pid[$site]}"
        same "$text: rank at $site ends with 0 ($(tail -n 1 "$work/$site.out"))" 0 $?
    done
}

channel_is() { # SITE NAME STATE
    hdt status --gateway "$(gateway_of "$1")" | grep -q "^channel $2 *$3"
}

# Of the channel that is up, as the lines under its name say.
members_are() { # SITE NAME N STATE
    hdt status --gateway "$(gateway_of "$1")" | awk -v name="$2" -v n="$3" -v state="$4" '
        $1 == "channel" { mine = $2 == name && $3 == "up" }
        mine && $1 == "rank" && $4 == state { here++ }
        END { exit here != n }'
}

flows_are_of() { # SITE NAME
    hdt status --flows --gateway "$(gateway_of "$1")" | grep -q "^flow   channel $2 flow"
}

fed_init
site a
site b a="$(wan_of a)"
site c a="$(wan_of a)" b="$(wan_of b)"
expect_federation a 3 0
expect_federation c 3 0

# ---- the example ----

for sites in "a b" "a b c"; do
    for codec in none int8; do
        for s in $sites; do
            # shellcheck disable=SC2086 # a list
            program "$s" env CODEC=$codec "$build/doc/example_allreduce" $sites
        done
        # shellcheck disable=SC2086
        programs_end "example at $sites, codec $codec" $sites
    done
done
check "the average of ranks 0, 1, 2 is 1" says "rank 2 of 3 (c): average 1" "$work/c.out"

# ---- a gateway that is killed in the middle ----

bench() { # SITE RANK ROUNDS
    program "$1" "$build/tests/bench/bench_allreduce" "$(gateway_of "$1")" "$2" 4 "$3" none,int8,bf16 a b c
}
bench a 0 400
bench b 1 400
bench c 2 400
check "status shows the channel" wait_until 20 channel_is a bench up
check "status shows its members" wait_until 20 members_are a bench 3 here
check "status shows its flows" wait_until 20 flows_are_of a bench
listen=$(wan_of b) gateway_conf b a="$(wan_of a)" # the others know it there
check "all three work" is_running "${program_pid[b]}"
kill -KILL "${gateway_pid[b]}"
wait "${gateway_pid[b]}" 2>/dev/null
gateway_start b
programs_end "all-reduce over a gateway that was killed" a b c
check "status shows its end" wait_until 10 channel_is a bench over

# ---- a program that is killed ----

bench a 0 100000
bench b 1 100000
bench c 2 100000
check "three members again" wait_until 20 members_are c bench 3 here
kill -KILL "${program_pid[b]}"
for s in a c; do
    check "the program at $s ends" wait_until 20 has_ended "${program_pid[$s]}"
    check "and says why" says "rank 1 (b) is lost" "$work/$s.out"
done
check "the gateway says so, too" says "channel 'bench' is over: rank 1 (b) is lost" "$work/a/gateway.log"

# ---- who did what ----

check "the audit log has who joined" says '"channel.joined"' "$work/a/state/audit.jsonl"
check "the audit log has who left" says '"channel.left"' "$work/a/state/audit.jsonl"
check "the audit log has the end" says '"channel.over"' "$work/b/state/audit.jsonl"
exit $((n_failed > 0))
