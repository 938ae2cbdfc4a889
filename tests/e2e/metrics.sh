#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What an operator watches: the pages of live gateways and the metrics.jsonl of a run have all that
# doc/metrics.md says, and nothing else; numbers agree with what hdt submit says; alerts and the
# board name only what is there, and alerts fire when they should (with promtool).
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

command -v python3 >/dev/null || skip "no python3"
cd "$work" || exit 1
doc=$src/doc/metrics.md

page() { # SITE FILE
    python3 -c 'import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1] + "/metrics", timeout=10).read().decode())' \
        "$(http_of "$1")" >"$2"
}
value() { sed -n "s/^$2{.*$3.*} //p" "$1"; } # PAGE NAME LABEL: one sample
agrees() { # TEXT ARGUMENT...
    local text=$1

    shift
    if "$src/tests/e2e/metrics_check.py" "$@" >agrees.txt 2>&1; then
        ok "$text"
    else
        fail "$text: $(cat agrees.txt)"
    fi
}
page_has() { page "$1" live.prom && grep -q "$2" live.prom; } # SITE PATTERN

fed_init
fed_data
budget='{job: short, rate: 80mbit}' site a never=127.0.0.1:1
site b a="$(wan_of a)"
worker a w0
worker b w0
expect_federation a 2 2

# ---- a run that ends, and one that runs ----
job short.yaml 6 "name: short" "plan.min_stages: 2" "eval.every: 3" "eval.n_micro_batches: 2"
check "a run" submit a short
page a short.prom
same "steps on the page" 6 "$(value short.prom hdt_job_step 'number="1"')"
same "its state" 1 "$(value short.prom hdt_job_state 'number="1".*state="done"')"
python3 - short.prom short.json >losses.txt <<'PY'
import json, re, sys
page = open(sys.argv[1]).read()
result = json.load(open(sys.argv[2]))
for name, key in ("loss", "loss"), ("tokens", None):
    value = float(re.search(r"^hdt_job_%s\{.*\} (.*)$" % name, page, re.M).group(1))
    want = result["loss"][-1] if key else 6 * 4 * 2 * 32
    assert abs(value - want) <= 1e-9 * want, (name, value, want)
PY
check "loss of hdt submit, tokens of the job's batch" test $? = 0
# By its name, as its settings say it; the other job is not counted.
check "bytes of a job under its budget" \
    test "$(value short.prom hdt_budget_sent_bytes_total 'for_job="short"')" -gt 0
same "its hours" 1 "$(value short.prom hdt_budget_on 'for_job="short"')"
hdt status --gateway "$(gateway_of a)" >status.txt
check "hdt status has it" says 'job short: at most 80.0 Mbit/s' status.txt
agrees "metrics.jsonl" lines "$doc" a/state/jobs/*/metrics.jsonl
job long.yaml 1000000 "plan.min_stages: 2" "codec.activations: bf16" "codec.activation_grads: bf16"
check "another" submit a long --detach
check "it is seen while it runs" wait_until 20 page_has a '^hdt_job_silent_seconds{.*number="2"'
check "with its steps" wait_until 20 page_has a '^hdt_job_step_seconds{.*number="2"'
agrees "the page of a gateway" page "$doc" live.prom
same "a peer that is there" 1 "$(value live.prom hdt_peer_up 'peer="b"')"
same "a configured peer that never came" 0 "$(value live.prom hdt_peer_up 'peer="never"')"
same "a worker in a job" 1 "$(value live.prom hdt_worker_busy 'worker="w0"')"
python3 - live.prom "${gateway_pid[a]}" >process.txt 2>&1 <<'PY'
import os, re, sys
page, pid = open(sys.argv[1]).read(), sys.argv[2]
value = lambda name: float(re.search(rf"^process_{name} (.*)$", page, re.M).group(1))
status = dict(re.findall(r"^(\w+):\s+(\d+)", open(f"/proc/{pid}/status").read(), re.M))
# The page was taken a moment ago, over a connection that was one more descriptor.
near = lambda a, b, by: abs(a - b) <= by or sys.exit(f"{a} is not near {b}")
near(value("open_fds"), len(os.listdir(f"/proc/{pid}/fd")), 8)
near(value("threads"), int(status["Threads"]), 2)  # a search of the planner, a look-up: for a moment
near(value("resident_memory_bytes"), 1024 * int(status["VmRSS"]), 64 << 20)
near(value("start_time_seconds"), os.stat(f"/proc/{pid}").st_ctime, 60)
near(value("max_fds"), int(re.search(r"Max open files +(\d+)", open(f"/proc/{pid}/limits").read())[1]), 0)
near(value("cpu_seconds_total"), sum(map(int, open(f"/proc/{pid}/stat").read().split()[13:15])) /
     os.sysconf("SC_CLK_TCK"), 5)
PY
check "the process, as /proc has it" test $? = 0
same "expiry, as openssl reads it" "$(date -d "$(openssl x509 -in a/tls/cert.pem -noout -enddate | cut -d= -f2)" +%s)" \
    "$(value live.prom hdt_certificate_expiry_timestamp_seconds own)"
check "stop" hdt stop --gateway "$(gateway_of a)"

# ---- alerts and board ----
agrees "alerts name what is there" uses "$doc" "$src/etc/alerts.yml"
agrees "the board names what is there" uses "$doc" "$src/etc/grafana-hdt.json"
if command -v promtool >/dev/null; then
    check "promtool: page" promtool check metrics <live.prom
    check "promtool: settings" promtool check config "$src/etc/prometheus.yml"
    cp "$src/etc/alerts.yml" "$src/tests/e2e/alerts_test.yml" .
    echo 'groups: [{name: nan, rules: [{record: hdt_job_loss, expr: zero / 0}]}]' >nan.yml
    check "promtool: each alert fires" promtool test rules alerts_test.yml
    while read -r alert; do
        check "$alert has a test" says "alertname=\"$alert\"" alerts_test.yml
    done < <(sed -n 's/.*- alert: //p' alerts.yml)
else
    echo "left out: promtool is not installed (apt-get install prometheus)"
fi
[ "$n_failed" = 0 ]
