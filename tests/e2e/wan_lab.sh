#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The emulated WAN keeps its promises: delay, rate, loss, cuts; and leaves nothing behind.
set -u
here=$(dirname "$(realpath "$0")")
lab=$here/../../scripts/wan-lab
if ! why=$("$lab" check 2>&1); then
    echo "skipped: $(head -1 <<<"$why")"
    exit 77
fi
tmp=$(mktemp -d)
export WANLAB_DIR=$tmp/lab
export HDT_WANEM=${HDT_WANEM:-$PWD/hdt-wanem}
failures=0
trap 'end_all' EXIT
trap 'exit 130' INT TERM

end_all() {
    WANLAB_DIR=$tmp/lab "$lab" down
    WANLAB_DIR=$tmp/other "$lab" down
    rm -rf "$tmp"
}

# expect WHAT CONDITION...: a shell arithmetic or test expression by its exit status.
expect() {
    local what=$1
    shift
    if "$@"; then
        echo "ok: $what"
    else
        echo "FAILED: $what ($*)"
        failures=$((failures + 1))
    fi
}

# soon COMMAND...: true as soon as the command is, within half a minute.
soon() {
    local end=$((SECONDS + 30))

    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.02
    done
}

# Other labs may come and go beside this one: sites are named by this process.
no_netns() { ! ip netns list | grep -w -e "-[ab]$$"; }
refused() { ! "$lab" up "$1" 2>"$tmp/said"; }
between() { awk -v v="$1" -v lo="$2" -v hi="$3" 'BEGIN { exit !(v >= lo && v <= hi) }'; }
ping_a() { "$lab" exec a$$ ping -q "$@" 10.71.0.2 | sed -n 's/.* \([0-9]*\) received.*/\1/p'; }
counter() { "$lab" ctl show json | tr '{' '\n' | sed -n "/\"from\":\"$1\",\"to\":\"$2\"/s/.*\"$3\":\([0-9]*\).*/\1/p"; }

cat >"$tmp/two.topo" <<TOPO
sysctl net.ipv4.tcp_rmem 4096 131072 33554432
sysctl net.ipv4.tcp_wmem 4096 65536 33554432
seed 7
port a site a$$ addr 10.71.0.1/24 addr fd71::1/64
port b site b$$ addr 10.71.0.2/24 addr fd71::2/64
link a b rate 100mbit rtt 40ms queue 100ms
TOPO

"$lab" up "$tmp/two.topo" || exit 1

rtt=$("$lab" exec a$$ ping -q -c 10 -i 0.05 10.71.0.2 | sed -n 's|^rtt.* = \([^/]*\)/.*|\1|p')
# The shortest: a neighbour of the machine delays some.
expect "round trip of 40 ms, measured $rtt" between "$rtt" 39.5 44
expect "IPv6 crosses" "$lab" exec a$$ ping -q -c 2 -i 0.1 fd71::2

listens() { "$lab" exec b$$ ss -Htln | grep -q :5201; }
if command -v iperf3 >/dev/null; then
    # Receiver's bits a second over IP packets: 1448 of 1500 bytes are payload, slow start left out.
    # The link never carries more; less when a neighbour of the machine has its processor: then again.
    for _ in 1 2 3; do
        "$lab" exec b$$ iperf3 -s -1 -D
        soon listens || break
        rate=$("$lab" exec a$$ iperf3 -c 10.71.0.2 -O 1 -t 3 -J | tr -d ' \n\t' |
            sed -n 's/.*"sum_received":{[^}]*"bits_per_second":\([0-9.e+]*\).*/\1/p')
        between "${rate:-0}" 0 85e6 || break
    done
    expect "100 Mbit/s, TCP moved ${rate:-no} bit/s" between "${rate:-0}" 85e6 100e6
    expect "the queue is what was set" between "$(counter a b backlog_peak_us)" 1000 101000
else
    echo "skipped: rate (iperf3 is not installed)"
fi

"$lab" ctl 'link' 'a>b' loss 10% || exit 1
# An answer that a busy machine delays until ping has gone is not counted: then again.
for _ in 1 2 3; do
    "$lab" ctl seed 11
    first=$(ping_a -c 400 -i 0.002 -W 1)
    "$lab" ctl seed 11
    second=$(ping_a -c 400 -i 0.002 -W 1)
    [ "$first" != "$second" ] || break
done
expect "10% of 400 packets lost, $first arrived" between "$first" 335 385
expect "the same seed loses the same packets" [ "$first" = "$second" ]
"$lab" ctl link a b loss 0

"$lab" ctl link a b down
expect "nothing crosses a cut link" [ "$(ping_a -c 3 -i 0.05 -W 1)" = 0 ]
expect "cut packets are counted" [ "$(counter a b cut)" -ge 3 ]
"$lab" ctl link a b up
expect "all crosses a healed link" [ "$(ping_a -c 3 -i 0.05 -W 5)" = 3 ]

expect "a second lab with the same addresses" env WANLAB_DIR="$tmp/other" "$lab" up "$tmp/two.topo"
expect "a second 'up' in the same folder is refused" refused "$tmp/two.topo"
expect "and says why" grep -q 'a lab is up in' "$tmp/said"
WANLAB_DIR=$tmp/other "$lab" down
expect "the first lab is untouched" [ "$(ping_a -c 2 -i 0.05 -W 5)" = 2 ]

"$lab" exec a$$ sleep 1000 &
sleeper=$!
sleeps() { "$lab" status | grep -q 'sleep 1000'; }
expect "'status' shows what runs in it" soon sleeps
"$lab" down
wait $sleeper
expect "'down' ends what runs in the lab" [ $? -gt 128 ]
expect "no namespace stays" no_netns
expect "no file stays" [ ! -e "$WANLAB_DIR" ]

sed 's/rtt 40ms/rtt 40parsec/' "$tmp/two.topo" >"$tmp/bad.topo"
expect "a bad topology is refused" refused "$tmp/bad.topo"
expect "with file and line" grep -q 'bad.topo:6: ' "$tmp/said"
printf "port a site a$$ addr 10.71.0.1/24\\nport b site a$$ addr 10.72.0.1/24\\n" >"$tmp/bad.topo"
expect "an 'up' that fails half-way fails" refused "$tmp/bad.topo"
for delay in 0.01 0.03 0.06; do
    "$lab" up "$tmp/two.topo" &
    up=$!
    sleep $delay
    kill -TERM $up 2>/dev/null # may have ended already
    wait $up
    [ ! -e "$WANLAB_DIR" ] || "$lab" down
done
# Ended while the lab's folder is being made: an 'mkdir' that goes on when it is told to.
mkdir "$tmp/bin"
cat >"$tmp/bin/mkdir" <<SLOW
#!/bin/sh
[ "\$1" = -m ] || exec $(command -v mkdir) "\$@"
: >"$tmp/begins"
while [ ! -e "$tmp/go" ]; do sleep 0.01; done
$(command -v mkdir) "\$@"
: >"$tmp/ends"
SLOW
chmod +x "$tmp/bin/mkdir"
PATH=$tmp/bin:$PATH "$lab" up "$tmp/two.topo" &
up=$!
expect "a start begins" soon [ -e "$tmp/begins" ]
kill -TERM $up
touch "$tmp/go"
wait $up
soon [ -e "$tmp/ends" ]
expect "an early end leaves no folder" [ ! -e "$WANLAB_DIR" ]
rm -rf "$WANLAB_DIR"
expect "interrupted and failed starts leave no namespace" no_netns
expect "nor a file" [ ! -e "$WANLAB_DIR" ]
exit $((failures > 0))
