#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Who asks why a job stands still gets an answer: what ranks wait for, the flight recorder, the bundle
# for a bug report, doctor, and logs that a storm does not fill.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
status_says() { # SITE REGEX
    hdt status --gateway "$(gateway_of "$1")" >"$work/status" 2>&1 && grep -qE -- "$2" "$work/status"
}
dumps() { find "$work" -name "flight-$1-*-$2.jsonl" | wc -l; }
has_dump() { [ "$(dumps "$1" "$2")" -ge 1 ]; }
# Every line is JSON, times never go back, the areas are there.
dump_is_good() { # FILE AREA...
    python3 - "$@" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
times = [line["mono_us"] for line in lines[1:]]
areas = {line["area"] for line in lines}
missing = set(sys.argv[2:]) - areas
assert times == sorted(times), "the order"
assert not missing, f"no {missing} among {areas}"
PY
}
newest() { find "$work" -name "flight-$1-*-$2.jsonl" | sort | tail -n 1; }

fed_init
fed_data
site a
site b a="$(wan_of a)"
site c a="$(wan_of a)" b="$(wan_of b)"
worker a w0
worker b w0
expect_federation c 3 2

section "what a rank waits for"
job long.yaml 1000000 "plan.min_stages: 2" "codec.activations: none" "progress_timeout: 60s"
hdt submit --gateway "$(gateway_of a)" long.yaml >long.log 2>&1 &
submit_pid=$!
pids+=("$submit_pid")
reaches long 3 "$submit_pid"
check "a third site does not take its workers for free" wait_until 10 status_says c '^worker b/w0 .*busy'
kill -STOP "${worker_pid[b/w0]}"
check "status says which rank waits for which" wait_until 10 status_says a \
    'rank [01] \(a/w0\) waits [0-9]+ s for (activation|the |room|labels|tokens).* rank [01] \(b/w0\) over flow [0-9]+, [ab] -> [ab]'
cat status | grep waits
check "and the submitter, too" wait_until 12 grep -qE 'no step for [0-9]+ s: rank [01] \(a/w0\) waits' long.log
kill -CONT "${worker_pid[b/w0]}"
check "nothing is said of it any more" wait_until 10 eval '! status_says a waits'
kill -STOP "${gateway_pid[b]}"
check "a link that is silent is named" wait_until 15 status_says a \
    'rank [01] \(a/w0\) waits .*: link suspect since [0-9]+ s'
cat status | grep waits
check "status has each flow" eval 'hdt status --flows --gateway "$(gateway_of a)" | grep -E "^flow +job 1 .*lacks: "'
kill -CONT "${gateway_pid[b]}"
check "it goes on" wait_until 20 eval '! status_says a waits'

section "the flight recorder"
kill -USR1 "${gateway_pid[a]}" "${worker_pid[b/w0]}"
check "a gateway writes it when asked by a signal" wait_until 10 has_dump gateway-a sigusr1
check "a worker, too" wait_until 10 has_dump worker-w0 sigusr1
check "the gateway's is whole" dump_is_good "$(newest gateway-a sigusr1)" flight log message connection stream flow frame job
check "the worker's is whole" dump_is_good "$(newest worker-w0 sigusr1)" flight log message flow frame step step.end wait job
same "as an operator's own file" 600 "$(stat -c %a "$(newest gateway-a sigusr1)")"

section "the bundle for a bug report"
# Names and the manifest, by another program.
bundle_has() { # FILE NAME...
    python3 - "$@" <<'PY'
import json, re, sys, tarfile
tar = tarfile.open(sys.argv[1])
texts = {m.name.removeprefix("hdt-bundle/"): tar.extractfile(m).read().decode() for m in tar if m.isfile()}
for name, text in texts.items():
    assert "PRIVATE KEY" not in text, f"a key in {name}"
    if name.endswith(".json"):
        json.loads(text)
    if name.endswith(".jsonl"):
        [json.loads(line) for line in text.splitlines()]
missing = [w for w in sys.argv[2:] if not any(re.fullmatch(w, n) for n in texts)]
assert not missing, f"no {missing} among {sorted(texts)}"
PY
}
whole_names=('MANIFEST' 'here-doctor.json' 'a/status.json' 'a/metrics.txt' 'a/settings.json' 'a/log.txt' 'a/doctor.json'
    'a/plan.json' 'a/metrics.jsonl' 'a/flight-gateway-a-[^/]*-sigusr1.jsonl' 'b/flight-gateway-b-[^/]*-bundle.jsonl'
    'b/status.json' 'a/w0/log.txt' 'b/w0/doctor.json' 'b/w0/settings.json' 'a/w0/flight-worker-w0-[^/]*-bundle.jsonl'
    'c/status.json')
umask 022
hdt logs --gateway "$(gateway_of a)" --bundle whole.tar.gz --job 1 >out 2>&1
same "all can be reached: exit status" 0 $? || cat out
check "all is in it" bundle_has whole.tar.gz "${whole_names[@]}"
same "readable by its owner only" 600 "$(stat -c %a whole.tar.gz)"
check "nothing is left beside it" eval '[ -z "$(ls -d .hdt-bundle* 2>/dev/null)" ]'
echo "   $(stat -c %s whole.tar.gz) bytes"
hdt logs --gateway "$(gateway_of a)" --bundle whole.tar.gz --force --job 1 >out 2>&1
same "made anew with --force: exit status" 0 $? || cat out
check "it is whole again" bundle_has whole.tar.gz "${whole_names[@]}"
hdt logs --gateway "$(gateway_of a)" --bundle none.tar.gz --job 99 >out 2>&1
same "no such job: exit status" 3 $?
check "it says so" grep -q 'the gateway knows no job 99' out
check "and writes nothing" eval '[ ! -e none.tar.gz ]'
kill -9 "${gateway_pid[c]}"
c_is_down() { hdt status --gateway "$(gateway_of a)" | grep -q '^peer *c .*down'; }
check "c is away" wait_until 20 c_is_down
hdt logs --gateway "$(gateway_of a)" --bundle partial.tar.gz >out 2>&1
same "c cannot be reached: exit status" 5 $?
check "it says so" grep -q 'parts are missing, its MANIFEST says which' out
check "the others are in it" bundle_has partial.tar.gz a/log.txt b/w0/log.txt
check "the manifest names c and why" eval \
    'tar -xzOf partial.tar.gz hdt-bundle/MANIFEST | grep -E "^missing +c +no session with its site: "'
hdt logs --gateway "$(gateway_of a)" --bundle nowhere/x.tar.gz >out 2>&1
same "a place that cannot be written: exit status" 1 $?

section "logs of all, by time"
hdt logs --gateway "$(gateway_of a)" --all >all 2>err
same "exit status" 0 $?
check "of gateways and workers" eval 'for who in a b a/w0 b/w0; do grep -qE "^[^ ]+Z $who " all || exit 1; done'
check "by time" eval 'cut -c 1-24 all | sort -c'
check "workers name their rank" grep -qE 'hdt-worker w0 rank [01] info: job' all
check "who cannot be asked is named" grep -q '^hdt: no log of c: ' err

section "doctor, where all is well and where not"
hdt doctor --gateway "$(gateway_of a)" --json >doctor.json
says_check() { # WHERE NAME STATE REGEX
    python3 - "$@" <<'PY'
import json, re, sys
where, name, state, detail = sys.argv[1:]
for c in json.load(open("doctor.json"))["checks"]:
    if c["where"] == where and c["name"] == name:
        if c["state"] == state and re.search(detail, c["detail"]) and bool(c["remedy"]) == (state != "ok"):
            sys.exit(0)
        print("   ", c)
sys.exit(1)
PY
}
for where in a b; do
    peer=$(tr ab ba <<<$where)
    check "$where: large records get to $peer" says_check $where "mtu to $peer" ok 'large records get through'
    check "$where: clock of $peer" says_check $where "clock $peer" ok 'differs from ours by -?[0-9]+ ms'
    check "$where: certificate of $peer" says_check $where "certificate of $peer" ok "hdt://lab/site/$peer is good for"
    check "$where: its own certificate" says_check $where certificate ok "hdt://lab/site/$where"
    check "$where/w0: its folders" says_check $where/w0 "disk of data_dir" ok 'GiB free' || grep -c . doctor.json
    check "$where/w0: version" says_check $where/w0 version ok "hdt"
    check "$where/w0: gpu" says_check $where/w0 gpu ok "" || true
    check "$where: memory limit" says_check $where "memory limit" ok ""
done
check "c, which is away, fails" says_check a "peer c" fail ""
kill $submit_pid
hdt stop --gateway "$(gateway_of a)" 1 >/dev/null
kill "${worker_pid[b/w0]}"
ends "worker" "${worker_pid[b/w0]}" 10
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
    mkdir -p tiny
    printf 'name: tiny\ngateway: "%s"\nthreads: 1\nmemory: 64GiB\ndata_dir: %s\nstate_dir: %s\n' "$(gateway_of b)" \
        "$work" "$work/tiny" >tiny.yaml
    unshare -m sh -c 'mount -t tmpfs -o size=100m none tiny && ulimit -n 200 && ulimit -l 64 && exec hdt-worker -c tiny.yaml' \
        >tiny.log 2>&1 </dev/null &
    pids+=($!)
    tiny_is_up() { hdt status --gateway "$(gateway_of a)" | grep -q '^worker b/tiny .*free'; }
    check "a worker on a small disk" wait_until 20 tiny_is_up
    hdt doctor --gateway "$(gateway_of a)" --json >doctor.json
    same "doctor's exit status" 1 $?
    check "its disk" says_check b/tiny "disk of state_dir" fail "0.10 GiB free"
    check "its open files" says_check b/tiny "open files" fail "200 may be open"
    check "its memlock" says_check b/tiny memlock warn "0.0625 MiB"
else
    echo "left out: a small disk (needs root and mount namespaces)"
fi

if ! can_have_wan; then
    echo "left out: links that are cut or have a black hole (no emulated WAN here)"
    exit $((n_failed > 0))
fi

section "a link of 8 streams is cut for 30 s"
lab=$src/scripts/wan-lab
export WANLAB_DIR=$work/lab HDT_WANEM=$build/hdt-wanem
trap '"$lab" down >/dev/null 2>&1; finish' EXIT
cat >two.topo <<TOPO
port x site x$$ addr 10.77.0.1/24
port y site y$$ addr 10.77.0.2/24
link x y rate 200mbit rtt 20ms queue 50ms
TOPO
"$lab" up two.topo || exit 1
listen=10.77.0.1:7420 http="" gateway_conf x
listen="" http="" gateway_conf y x=10.77.0.1:7420
for site in x y; do
    sed -i 's/^wan:/wan:\n  streams: 8/' $site/gateway.yaml
    "$lab" exec $site$$ hdt-gateway -c $site/gateway.yaml >>$site/gateway.log 2>&1 </dev/null &
    pids+=($!)
    check "gateway $site" wait_until 20 answers $site
done
worker x w0
worker y w0
expect_federation x 2 2
job cut.yaml 1000000 "plan.min_stages: 2" "codec.activations: none" "progress_timeout: 120s"
hdt submit --gateway "$(gateway_of x)" cut.yaml >cut.log 2>&1 &
pid=$!
pids+=("$pid")
reaches cut 3 "$pid"
logs=(x/gateway.log y/gateway.log x-w0/worker.log y-w0/worker.log)
# Lines about the link: a machine that did not let a gateway run says so, too.
lines_of() { grep -vc ': this gateway did not run for ' "$1"; }
declare -A before
for log in "${logs[@]}"; do before[$log]=$(lines_of $log); done
"$lab" ctl link x y down
sleep 30 # what is measured is what comes in that time
check "the submitter is told why" grep -qE 'no step for [0-9]+ s: rank .* link (suspect|down) since' cut.log
"$lab" ctl link x y up
last=$(grep -c '^step ' cut.log)
goes_on() { [ "$(grep -c '^step ' cut.log)" -gt $((last + 2)) ]; }
check "it goes on" wait_until 40 goes_on
for log in "${logs[@]}"; do
    n=$(($(lines_of $log) - ${before[$log]}))
    check "$log has $n more lines, a handful" [ $n -le 8 ]
done
tail -n 6 x/gateway.log

section "a link that takes small packets only, one way and then the other"
hdt stop --gateway "$(gateway_of x)" 1 >/dev/null
"$lab" ctl link 'x>y' mtu 1000
hdt doctor --gateway "$(gateway_of x)" --json >doctor.json
same "doctor's exit status" 1 $?
check "x names the black hole" says_check x "mtu to y" fail 'small records get through, large ones do not: a black hole'
check "the way back is well" says_check y "mtu to x" ok 'large records get through'
"$lab" ctl link 'x>y' mtu 0
"$lab" ctl link 'y>x' mtu 1000
hdt doctor --gateway "$(gateway_of y)" --json >doctor.json
check "y names the other" says_check y "mtu to x" fail 'small records get through, large ones do not: a black hole'
exit $((n_failed > 0))
