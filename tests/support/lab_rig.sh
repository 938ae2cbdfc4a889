# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Two sites a and b joined by an emulated link, each with its gateway and its worker on one core of
# its own, for benches; or more sites, which share the cores. Comes after scripts/bench's own set-up; uses
# the pieces of the tests.
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's
#
# Other processes of the machine count for little: scripts/bench runs in a session of its own, which
# has a share of the processors of its own, and a weight that the number of its autogroup sets.

[ -n "${builddir:-}" ] || builddir=$PWD
cd "$builddir" || exit 1
# shellcheck source=tests/e2e/lib.sh
. "$srcdir/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$srcdir/tests/e2e/fed.sh"
set +e
export WANLAB_DIR=$work/lab HDT_WANEM=$build/hdt-wanem
lab=$srcdir/scripts/wan-lab

rig_end() {
    "$lab" down >/dev/null 2>&1 # ends what runs in it, too
    finish
    rig_no_quotas
    rm -rf "$tmp" "$work"
}
trap rig_end EXIT

rig_fail() {
    echo "bench: $*" >&2
    exit 2
}

run_at() { exec taskset -c "${core_of[$1]}" "$lab" exec "$@"; }

# The first two that this process may run on (taskset -c 2,3 scripts/bench ... takes others).
mapfile -t cores < <(taskset -pc $$ | sed 's/.*: //' | tr ',' '\n' | while IFS=- read -r first last; do
    seq "$first" "${last:-$first}"
done)
rig_sites=(a b)
declare -A core_of=([a]=${cores[0]} [b]=${cores[1]:-} [c]=${cores[0]})

# rig_link LINK: a lab whose link has these settings ("rate 200mbit rtt 40ms"; a queue of 100 ms unless
# they name another).
rig_link() {
    local why i j

    why=$("$lab" check 2>&1) || rig_fail "no emulated WAN: $(head -n 1 <<<"$why")"
    [ "$(nproc)" -ge 2 ] || rig_fail "needs two cores, one a site"
    {
        echo "sysctl net.ipv4.tcp_rmem 4096 131072 67108864"
        echo "sysctl net.ipv4.tcp_wmem 4096 16384 67108864"
        for i in "${!rig_sites[@]}"; do
            echo "port ${rig_sites[i]} mtu 9000 addr 10.75.0.$((i + 1))/24"
            for ((j = 0; j < i; j++)); do
                echo "link ${rig_sites[j]} ${rig_sites[i]} queue 100ms $*"
            done
        done
    } >"$work/topology"
    "$lab" up "$work/topology" || rig_fail "the emulated WAN did not start"
}

# rig_start LINK: the same, and gateways that see one another. Workers are the caller's.
rig_start() {
    local i j others

    rig_link "$@"
    fed_init lab ca
    for i in "${!rig_sites[@]}"; do
        others=()
        for ((j = 0; j < i; j++)); do
            others+=("${rig_sites[j]}=10.75.0.$((j + 1)):7420")
        done
        listen=10.75.0.$((i + 1)):7420 http='' site "${rig_sites[i]}" "${others[@]}"
    done
}

# rig_stop: ends all of that, so that another can start, with what it was for in the same folder.
rig_stop() {
    local pid

    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
    done
    pids=()
    # shellcheck disable=SC2034 # fed.sh's
    worker_pid=()
    rig_no_quotas
    "$lab" down >/dev/null 2>&1
    rm -rf "${work:?}"/*
}

# rig_slow_down SITE TIMES: the site's worker has 1 / TIMES of its core: a neighbour of the same weight
# computes beside it for so much of the time. 2, or 1: no longer.
rig_slow_down() {
    [ -z "${burner:-}" ] || { kill "$burner" && wait "$burner" 2>/dev/null; }
    burner=
    [ "$2" != 1 ] || return 0
    # shellcheck disable=SC2016 # the loop is the other shell's
    run_at "$1" bash -c 'while :; do :; done' &
    burner=$!
    pids+=($!)
}

# rig_quota PID SHARE: the process has at most this share of a core from now on, counted in 4 ms. False where
# no cgroup can be made. Beside the gateways of its core it weighs what they do: they are in the session's
# autogroup, whose weight goes by its nice value, 1.25 times more for each step (sched(7)).
rig_cgroups=()
rig_quota() {
    local root dir us nice weight

    nice=$(sed -n 's/.* nice //p' /proc/self/autogroup 2>/dev/null)
    weight=$(awk -v nice="${nice:-0}" 'BEGIN { printf "%d", 1024 / 1.25 ^ nice }')
    us=$(awk -v share="$2" 'BEGIN { printf "%d", share * 4000 }')
    for root in /sys/fs/cgroup /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct; do
        dir=$root/hdt-bench-$1
        [ -e "$root/cgroup.procs" ] || continue
        mkdir "$dir" 2>/dev/null || continue
        rig_cgroups+=("$dir")
        if {
            if [ -e "$root/cgroup.controllers" ]; then
                echo +cpu >"$root/cgroup.subtree_control"
                echo "$us 4000" >"$dir/cpu.max" && echo $((weight * 100 / 1024 > 10000 ? 10000 : weight * 100 / 1024)) >"$dir/cpu.weight"
            else
                echo 4000 >"$dir/cpu.cfs_period_us" && echo "$us" >"$dir/cpu.cfs_quota_us" &&
                    echo "$weight" >"$dir/cpu.shares"
            fi && echo "$1" >"$dir/cgroup.procs"
        } 2>/dev/null; then
            return 0
        fi
    done
    return 1
}

rig_no_quotas() {
    [ ${#rig_cgroups[@]} = 0 ] || rmdir "${rig_cgroups[@]}" 2>/dev/null
    rig_cgroups=()
}

# rig_link_is LINK: all links are like that from now on.
rig_link_is() {
    local i j

    for i in "${!rig_sites[@]}"; do
        for ((j = 0; j < i; j++)); do
            # shellcheck disable=SC2086 # words of the link
            "$lab" ctl link "${rig_sites[j]}" "${rig_sites[i]}" $1 >/dev/null
        done
    done
}

# rig_compare NAME JOB-FILE: measure links and workers, plan, run, and compare: $work/validate.json has what
# `hdt plan --validate` says; rig_ratios is measured by planned step time with the time that the emulator took
# taken out, the same with it, the first with profiles as they were measured, and the emulator's share.
rig_compare() {
    local name=$1 job=$2 cpu t0 run_dir

    hdt plan --gateway "$(gateway_of a)" --remeasure "$job" >"$work/plan.log" 2>&1 ||
        rig_fail "$name: $(tail -n 2 "$work/plan.log")"
    cpu=$(cpu_s "$(cat "$work/lab/wanem.pid")")
    t0=$(date +%s.%N)
    hdt submit --gateway "$(gateway_of a)" --json "$work/run.json" "$job" \
        >"$work/run.log" 2>&1 || rig_fail "$name: $(tail -n 2 "$work/run.log")"
    rig_emulator=$(rig_share "$cpu" "$t0")
    run_dir=$(field "$work/run.json" run_dir | tr -d '"')
    hdt plan --validate "$run_dir" --json >"$work/validate.json" 2>"$work/validate.log" ||
        rig_fail "$name: $(tail -n 2 "$work/validate.log")"
    rig_as_measured "$run_dir" "$work/alone"
    hdt plan --validate "$work/alone" --json >"$work/alone.json" || rig_fail "$name: profiles as measured"
    # shellcheck disable=SC2034 # the bench's
    rig_ratios=$(python3 - "$work/validate.json" "$work/alone.json" "$rig_emulator" <<'PY'
import json, sys
v, alone = (json.load(open(f)) for f in sys.argv[1:3])
share = float(sys.argv[3])
print(v["ratio"] * (1 - share), v["ratio"], alone["ratio"] * (1 - share), share)
busy = " ".join(f'{r["measured_busy_s"] / r["predicted_busy_s"]:.3f}' for r in v["ranks"])
print(f'  {v["predicted_step_s"]:.4f} s planned ({alone["predicted_step_s"]:.4f} by profiles as measured), {v["measured_step_s"]:.4f} s measured, ranks busy {busy} of what was planned: {v["cause"]}', file=sys.stderr)
PY
    )
}

# rig_as_measured RUN COPY: the run's plan and steps, with profiles as they were before runs corrected them.
rig_as_measured() {
    rm -rf "$2"
    mkdir "$2"
    cp "$1/metrics.jsonl" "$2"
    python3 - "$1/plan.json" "$2/plan.json" <<'PY'
import json, sys
plan = json.load(open(sys.argv[1]))
for worker in plan["cluster"]["workers"]:
    p = worker["profile"]
    factor = p["run_factor"] or 1
    for key in p:
        if key.endswith("bytes_per_s"):
            p[key] *= factor
        elif key.endswith("_s") or key == "step_s_per_param":
            p[key] /= factor
    p["run_factor"] = 0
json.dump(plan, open(sys.argv[2], "w"))
PY
}

[ ! -w /proc/self/autogroup ] || echo -19 >/proc/self/autogroup 2>/dev/null

# rig_job FILE STEPS [LINE...]: the quickstart's job over both sites; lines as for `job`.
rig_job() {
    local file=$1 steps=$2

    shift 2
    job "$file" "$steps" "data.site: a" "batch.micro_batch: 4" "batch.n_micro_batches: 8" \
        "batch.seq_len: 128" "plan.min_stages: 2" "data.valid: \"\"" "$@"
}

# CPU seconds that a process has used.
cpu_s() { awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) / hz }' "/proc/$1/stat"; }

# rig_share CPU-S TIME-S: share of both cores that the emulator took since.
rig_share() {
    awk -v a="$1" -v b="$(cpu_s "$(cat "$work/lab/wanem.pid")")" -v t0="$2" -v t1="$(date +%s.%N)" \
        'BEGIN { printf "%.4f\n", (b - a) / (t1 - t0) / 2 }'
}
