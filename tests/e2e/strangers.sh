#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Strangers and wrong members at full speed beside a run: the run has the bits of an undisturbed one,
# what they did is counted by cause, and neither the gateway's memory nor its log grows with it.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

attack=$build/tests/support/attack
[ -x "$attack" ] || skip "no tests/support/attack here: 'make check TESTS=' builds it"
command -v curl >/dev/null || skip "the command 'curl' is missing"

fed_init
fed_init other other-ca
fed_data
hdt ca issue --dir "$work/ca" --out "$work/x-tls" site x >/dev/null
hdt ca issue --dir "$work/other-ca" --out "$work/foreign-tls" site x >/dev/null
lan=127.0.0.1:0 site a
site b a="$(wan_of a)"
worker a w0
worker b w0
expect_federation a 2 2

lines=("plan.min_stages: 2" "codec.activations: lossless" "codec.activation_grads: lossless")
job "$work/calm.yaml" 150 "${lines[@]}"
job "$work/attacked.yaml" 150 "${lines[@]}"
check "a run that is left alone" submit a calm

rss() { ps -o rss= -p "${gateway_pid[$1]}" | tr -d ' '; }
refused_by() { # CAUSE [SOCKET]
    curl -s "$(http_of a)/metrics" | sed -n "s/^hdt_refused_connections_total{.*socket=\"${2:-wan}\",cause=\"$1\"} //p"
}
bad_chunks() { curl -s "$(http_of a)/metrics" | sed -n "s/^hdt_peer_bad_chunks_total{.*peer=\"x\",cause=\"$1\"} //p"; }
misdeeds() { curl -s "$(http_of a)/metrics" | sed -n "s/^hdt_peer_misdeeds_total{.*peer=\"x\",cause=\"$1\"} //p"; }
rss_before=$(rss a)
lines_before=$(wc -l <"$work/a/gateway.log")

# As long as the run takes; they are ended then.
attackers=()
for mode in random http silent loris tls wrong; do
    options=()
    [ $mode = tls ] && options=(--cert "$work/foreign-tls" --threads 2)
    [ $mode = wrong ] && options=(--cert "$work/x-tls" --site x --federation lab)
    nice -n 19 "$attack" $mode "$(wan_of a)" --seconds $((100 * patience)) "${options[@]}" >/dev/null &
    attackers+=($!)
    pids+=($!)
done
nice -n 19 "$attack" http "$(lan_of a)" --seconds $((100 * patience)) >/dev/null &
attackers+=($!)
pids+=($!)
nice -n 19 "$attack" silent "$(http_of a | sed 's,http://,,')" --seconds $((100 * patience)) >/dev/null &
attackers+=($!)
pids+=($!)
counted() { [ "$(refused_by "$@")" -ge 20 ] 2>/dev/null; }
for cause in http bytes crowded certificate; do
    check "attackers are counted: $cause" wait_until 30 counted $cause
done
check "a run among attackers" submit a attacked
same "its losses and weights" "$(result_of attacked)" "$(result_of calm)"

check "those at the LAN port are counted apart" wait_until 30 counted http lan_tls
check "silent ones at the page, too" wait_until 30 counted crowded http
wrong_counted() { [ "$(bad_chunks flow)" -ge 100 ] 2>/dev/null; }
check "wrong chunks of a member are counted" wait_until 20 wrong_counted
flood_counted() { [ "$(misdeeds flood)" -ge 1 ] 2>/dev/null; }
check "and read slowly" wait_until 20 flood_counted

# One that comes while they are at it.
hdt ca issue --dir "$work/ca" --out "$work/c/tls" site c >/dev/null
site c a="$(wan_of a)"
site_is_up() { hdt status --gateway "$(gateway_of a)" --json | tr -d ' \n' | grep -q "\"site\":\"$1\",\"up\":true"; }
check "a site that is new gets in from their address" wait_until 60 site_is_up c
kill "${attackers[@]}"
wait "${attackers[@]}" 2>/dev/null

grown=$((($(rss a) - rss_before) / 1024))
check "memory is bounded: $grown MiB more" test "$grown" -le 64
written=$(($(wc -l <"$work/a/gateway.log") - lines_before))
# Two hosts or so, a dozen causes, a few minutes; and what the run itself says.
check "the log is: $written lines" test "$written" -le 150
check "the gateway answers" answers a
stop_gateway a

[ "$n_failed" = 0 ]
