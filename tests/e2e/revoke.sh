#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Three sites; one is revoked at the site of the authority, which alone is told to reload. The other
# learns of it over the wire: the revoked site's live sessions end within seconds and stay ended,
# also after a restart.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"

cd "$work" || exit 1
export HDT_CA_DIR=$work/ca
unset HDT_GATEWAY

hdt ca init --federation lab >/dev/null || exit 1
for site in a b c; do
    hdt ca issue --out "$site/tls" site "$site" >/dev/null || exit 1
done
# Only a has the list in its settings, as a read-only file; b learns one with none to start from.
chmod 444 a/tls/crl.pem

config() { # SITE PEERS-AS-YAML
    local crl=""

    [ "$1" != a ] || crl=", crl: tls/crl.pem"
    cat >"$1/gateway.yaml" <<END
site: $1
federation: lab
state_dir: state
tls: {ca: tls/ca.pem, cert: tls/cert.pem, key: tls/key.pem$crl}
wan: {listen: "127.0.0.1:0"}
lan: {socket: g.sock}
http: {listen: ""}
data: {memory: 16MiB}
peers: $2
END
}

declare -A pid_of
start() { # SITE
    hdt-gateway -c "$1/gateway.yaml" 2>>"$1/log" &
    pid_of[$1]=$!
    pids+=("$!")
    wait_until 20 hdt status --gateway "unix:$work/$1/g.sock" >/dev/null 2>&1
}

# Where a site listens for others: port 0 became a real one, which its log names.
address() { sed -n 's/.*listening on \(127[^ ]*\) (gateways.*/\1/p' "$1/log" | tail -n 1; }

# peer_is up|down SITE PEER: as SITE's gateway sees it.
peer_is() {
    hdt status --gateway "unix:$work/$2/g.sock" 2>/dev/null | grep "^peer *$3 " |
        case $1 in
        down) grep -q " down " ;;
        *) grep -qv " down " ;;
        esac
}

config a "[{site: b}, {site: c}]"
check "gateway a" start a
config b "[{site: a, address: '$(address a)'}, {site: c}]"
check "gateway b" start b
config c "[{site: a, address: '$(address a)'}, {site: b, address: '$(address b)'}]"
check "gateway c" start c
for pair in "a b" "a c" "b c"; do
    # shellcheck disable=SC2086 # two words
    check "$pair are joined" wait_until 20 peer_is up $pair
done

# ---- revoked at a ----
hdt ca revoke c/tls/cert.pem >/dev/null || exit 1
cp -f ca/crl.pem a/tls/crl.pem
kill -HUP "${pid_of[a]}"
check "a drops c" wait_until 10 peer_is down a c
check "b, which was not touched, drops c" wait_until 10 peer_is down b c
check "a and b go on" peer_is up a b
check "b keeps the list" cmp -s b/state/crl.pem ca/crl.pem
check "b says why" grep -q "it was revoked" b/log
check "b's audit log has it" grep -q '"what":"revocation.adopted","who":"hdt://lab/site/a"' b/state/audit.jsonl
check "a's audit log has the reload" grep -q '"what":"certificates.reloaded"' a/state/audit.jsonl
check "c is written down as gone" wait_until 10 grep -q '"what":"peer.left","who":"hdt://lab/site/c"' b/state/audit.jsonl

# ---- it lasts ----
kill "${pid_of[b]}"
wait "${pid_of[b]}"
sed -i "s/listen: \"127.0.0.1:0\"/listen: \"$(address b)\"/" b/gateway.yaml
n_refused=$(grep -c "it was revoked" b/log)
check "b comes back" start b
refused_again() { [ "$(grep -c "it was revoked" b/log)" -gt "$n_refused" ]; }
check "b joins a" wait_until 20 peer_is up b a
check "b refuses c, which dials it" wait_until 20 refused_again
check "c stays out" peer_is down b c

check "c says why" wait_until 20 grep -q "refuses our certificate of site c.*it was revoked" c/log

[ "$n_failed" = 0 ]
