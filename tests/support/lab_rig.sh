# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Two sites a and b joined by an emulated link, each with its gateway and its worker on one core of
# its own, for benches. Comes after scripts/bench's own set-up; uses the pieces of the tests.
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
declare -A core_of=([a]=${cores[0]} [b]=${cores[1]:-})

# rig_link LINK: a lab whose link has these settings ("rate 200mbit rtt 40ms"; a queue of 100 ms unless
# they name another).
rig_link() {
    local why

    why=$("$lab" check 2>&1) || rig_fail "no emulated WAN: $(head -n 1 <<<"$why")"
    [ "$(nproc)" -ge 2 ] || rig_fail "needs two cores, one a site"
    printf '%s\n' "sysctl net.ipv4.tcp_rmem 4096 131072 67108864" \
        "sysctl net.ipv4.tcp_wmem 4096 16384 67108864" "port a mtu 9000 addr 10.75.0.1/24" \
        "port b mtu 9000 addr 10.75.0.2/24" "link a b queue 100ms $*" >"$work/topology"
    "$lab" up "$work/topology" || rig_fail "the emulated WAN did not start"
}

# rig_start LINK: the same, and two gateways that see each other. Workers are the caller's.
rig_start() {
    rig_link "$@"
    fed_init lab ca
    listen=10.75.0.1:7420 http='' site a
    listen=10.75.0.2:7420 http='' site b a=10.75.0.1:7420
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
