#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Bad input of every kind ends in one clear line: what, where, why and a remedy, an exit status that
# is not 0, and nothing changed.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
passed() { [ $SECONDS -ge "$1" ]; }
hinted() { grep -q '^hint: ' "$work/err" && ok "with a remedy" || fail "no remedy: $(cat "$work/err")"; }
status_says() { hdt status --gateway "$(gateway_of "$1")" | grep -q -- "$2"; }
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }

fed_init
fed_data
http=127.0.0.1:0 gateway_conf a

section "settings of the three kinds"
bad_conf() { # KIND SED WHERE-AND-TEXT: the good file of that kind, made bad
    local kind=$1 file=$work/bad-$1.yaml

    sed -E "$2" "$work/good-$kind.yaml" >"$file"
    cmp -s "$file" "$work/good-$kind.yaml" && fail "nothing changed by $2"
    refused 1 "bad-$kind.yaml:$3" hdt config check "$kind" "$file"
    case $kind in
    gateway) refused 1 "bad-$kind.yaml:$3" hdt-gateway -c "$file" ;;
    worker) refused 1 "bad-$kind.yaml:$3" hdt-worker -c "$file" ;;
    job) refused 1 "bad-$kind.yaml:$3" hdt plan --gateway unix:/nowhere "$file" ;;
    esac
}
cp a/gateway.yaml good-gateway.yaml
sed -i "s,tls/,a/tls/," good-gateway.yaml
printf 'name: w0\ngateway: unix:%s\nthreads: 1\nstate_dir: %s\n' "$work/a/sock" "$work" >good-worker.yaml
job good-job.yaml 5
for kind in gateway worker job; do
    check "the good $kind file" hdt config check "$kind" "good-$kind.yaml"
    refused 3 "nothing.yaml" hdt config check "$kind" nothing.yaml
done
bad_conf gateway 's/^wan:/wan: [/' 11
bad_conf gateway 's/^  listen: "127.*/  lisen: x/' "10:3: unknown key 'wan.lisen'"
grep -q "did you mean 'wan.listen'" err || grep -q "did you mean 'listen'" err || fail "no nearest key: $(cat err)"
bad_conf gateway 's/^  memory: .*/  memory: lots/' 17
bad_conf gateway 's/^  memory: .*/  memory: 1KiB/' 17
bad_conf gateway 's/^site: a/site: [a]/' 1
bad_conf gateway 's/^site: a//' ""
bad_conf worker 's/^threads: 1/threads: 5000/' 3
bad_conf worker 's/^threads: 1/threads: many/' 3
bad_conf worker 's/^threads: 1/\tthreads: 1/' 3
bad_conf worker 's/^threads/thread/' "3:1: unknown key 'thread'"
bad_conf worker 's/^name: w0/name: w0\nname: w1/' 2
bad_conf job 's/^steps: 5/steps: 0/' 3
bad_conf job 's/^steps: 5/steps: 5 of 7/' 3
bad_conf job 's/^  seq_len/  seqlen/' "10:3: unknown key 'batch.seqlen'"
bad_conf job 's/^codec:.*//; s/^optimizer:/codec:\n  activations: int9\noptimizer:/' 12
sed 's/seq_len: 32/seq_len: 4096/' good-job.yaml >bad-job.yaml
refused 1 "bad-job.yaml:10" hdt plan --gateway unix:/nowhere bad-job.yaml
bad_where() { # SED WHERE-AND-TEXT: what only the gateway itself checks
    sed -E "$1" good-gateway.yaml >bad-gateway.yaml
    refused 1 "bad-gateway.yaml:$2" hdt-gateway --check-config -c bad-gateway.yaml
}
bad_where 's/^  listen: "127.*/  listen: "here"/' "10:11: cannot use address 'here'"
bad_where 's/^peers:.*//; $a peers: [{site: a}]' "18:"
bad_where '$a peers: [{site: b, address: "x:y:z"}]' "18:"
bad_where 's/^site: a/site: "a b"/' "1:7: 'a b' is no site name"
printf '\xff\xfe' >bad.yaml
refused 1 "bad.yaml:1:" hdt config check job bad.yaml
hinted
refused 1 "Is a directory" hdt config check job "$work"
refused 1 "nothing.yaml" hdt-gateway -c nothing.yaml
refused 1 "nothing.yaml" hdt-worker -c nothing.yaml
refused 3 "nothing.yaml" hdt plan nothing.yaml

section "options"
for words in "hdt submit" "hdt submit a b" "hdt plan" "hdt plan --stepz 3 x" "hdt stop one" \
    "hdt status x" "hdt logs a/b c" "hdt doctor x" "hdt eval" "hdt generate" "hdt export" \
    "hdt tokenize" "hdt version x" "hdt config show" "hdt ca issue" "hdt nothing" "hdt-gateway x" \
    "hdt-gateway --log-level loud" "hdt-worker x" "hdt-worker --threads x" "hdt submit --steps 0 good-job.yaml" \
    "hdt submit --steps many good-job.yaml" "hdt plan --codec int9 good-job.yaml" "hdt stop --timeout 0 1" "hdt link" "hdt link bench" "hdt link explain a b" "hdt link bench --max-size 1KiB b" \
    "hdt link bench --codec int9 b" "hdt link echo"; do
    # shellcheck disable=SC2086 # words
    $words >out 2>err </dev/null
    same "wrong options: $words" 2 $?
done

section "no gateway"
refused 3 "no gateway at" hdt status --gateway "unix:$work/nowhere"
refused 3 "nowhere" hdt plan --gateway "unix:$work/nowhere" good-job.yaml
refused 1 "tcp:x" hdt status --gateway tcp:x
refused 3 "nowhere.invalid" hdt status --gateway tls:nowhere.invalid:1 --ca a/tls/ca.pem --cert a/tls/cert.pem --key a/tls/key.pem
python3 -c 'import socket, time; s = socket.socket(socket.AF_UNIX); s.bind("mute"); s.listen(9); time.sleep(600)' &
pids+=($!)
wait_until 20 test -S mute
begin=$SECONDS
refused 4 "did not answer" hdt status --gateway "unix:$work/mute"
check "that took less than $((20 * patience)) s" test $((SECONDS - begin)) -lt $((20 * patience))

section "ports, sockets, files of a gateway"
gateway_start a
refused 1 "another process holds it" hdt-gateway -c a/gateway.yaml
sed "s,state$,state2," good-gateway.yaml >socket.yaml
refused 1 "$work/a/sock" hdt-gateway -c socket.yaml
check "the first one still answers" answers a
port=$(wan_of a)
sed "s,sock$,sock2,; s,\"127.0.0.1:0\",\"$port\",; s,state$,state2," good-gateway.yaml >port.yaml
refused 1 "$port" hdt-gateway -c port.yaml
hinted
check "no socket left behind" test ! -e a/sock2
sed "s,a/tls/cert.pem,a/tls/none.pem," good-gateway.yaml >bad.yaml
refused 1 "none.pem" hdt-gateway -c bad.yaml
sed "s,a/tls/key.pem,a/tls/ca.pem," good-gateway.yaml >bad.yaml
refused 1 "ca.pem" hdt-gateway -c bad.yaml
sed "s,^federation: lab,federation: other," good-gateway.yaml >bad.yaml
refused 1 "federation" hdt-gateway -c bad.yaml
sed "s,^site: a,site: z," good-gateway.yaml >bad.yaml
refused 1 "'z'" hdt-gateway -c bad.yaml
hdt ca issue --dir ca --out wtls worker a/w9 >/dev/null
sed "s,a/tls/,wtls/," good-gateway.yaml >bad.yaml
refused 1 "worker" hdt-gateway -c bad.yaml

section "strangers at the WAN port"
strangers() { curl -s "$(http_of a)/metrics" | awk '/^hdt_refused_connections_total/ { n += $NF } END { print n + 0 }'; }
before=$(strangers)
curl -s -m $((5 * patience)) "http://$port/status" >/dev/null
check "plain HTTP gets nothing" test $? -ne 0
head -c 4096 /dev/urandom | timeout $((5 * patience)) python3 -c 'import socket, sys
h, p = sys.argv[1].rsplit(":", 1)
s = socket.create_connection((h, int(p))); s.sendall(sys.stdin.buffer.read())
try: assert not s.recv(10).strip(b"\x15\x03\x01\x02")
except OSError: pass' "$port"
strangers_counted() { [ "$(strangers)" -ge $((before + 2)) ]; }
check "both are counted" wait_until 20 strangers_counted
check "and the gateway goes on" answers a

section "another protocol"
hello() { "$src/tests/e2e/hello.py" "$@" >said 2>&1; }
hello --proto 99 --role operator --unix a/sock name=x
check "operator: both versions" grep -q "99.*protocol 2 \|protocol 2 .*99" said
hdt ca issue --dir ca --out btls site b >/dev/null
hello --proto 99 --tls "$port" btls site=b federation=lab
check "site: both versions" grep -q "protocol 99.*protocol 2" said
check "the log has them, too" wait_until 20 says "protocol 99" a/gateway.log
check "and hdt status" wait_until 20 status_says a "protocol 99"
hello --tls "$port" btls site=b federation=other
check "another federation: both names" grep -q "federation 'other'.*'lab'" said
hello --frame 9 --tls "$port" btls site=b federation=lab
check "another frame version is in the log" wait_until 20 says "speaks version 9" a/gateway.log
hello --tls "$port" btls site=c federation=lab
check "a false name" grep -q "calls itself 'c'" said
hello --tls "$port" wtls site=a federation=lab
check "a worker's certificate at the WAN port" wait_until 20 grep -q "certificate.*worker" a/gateway.log

section "certificates between two gateways"
# both_say SITE TEXT-AT-A TEXT-AT-SITE: logs, status and doctor of both ends.
both_say() {
    local site=$1 at text

    for at in a "$site"; do
        [ "$at" = a ] && text=$2 || text=$3
        check "$at logs '$text'" wait_until 10 grep -q -- "$text" "$at/gateway.log"
        check "$at: hdt status" wait_until 20 status_says "$at" "$text"
        hdt doctor --gateway "$(gateway_of "$at")" >out 2>&1
        check "$at: hdt doctor" grep -q -- "$text" out
        check "$at: hdt doctor has a remedy" grep -q remedy: out
    done
    stop_gateway "$site"
}
cert_between old site/old "2 days ago" "1 day ago"
gateway_conf old a="$port"
refused 1 "expired" hdt-gateway -c old/gateway.yaml
hinted
cert_between young site/young "tomorrow" "2 days"
gateway_conf young a="$port"
refused 1 "valid only from" hdt-gateway -c young/gateway.yaml
soon_s=$((4 + 4 * patience)) # its gateway has started by then
cert_between soon site/soon "1 day ago" "$soon_s seconds"
over_at=$((SECONDS + soon_s + 1))
gateway_conf soon
gateway_start soon
stop_gateway a
check "no socket is left of it" test ! -e a/sock
gateway_conf a soon="$(wan_of soon)"
wait_until 20 passed "$over_at"
gateway_start a
both_say soon "it expired on" "has expired"
port=$(wan_of a)
fed_init lab ca2
ca=ca2 gateway_conf foreign a="$port"
gateway_start foreign
both_say foreign "another authority" "another authority"
fed_init other ca3
hdt ca issue --dir ca3 --out alien/tls site alien >/dev/null
gateway_conf alien a="$port"
sed -i 's/^federation: .*/federation: other/' alien/gateway.yaml
gateway_start alien
both_say alien "another authority" "another authority"
gateway_conf revoked a="$port"
hdt ca revoke --dir ca revoked/tls/cert.pem >/dev/null
sed -i "s,^  key: .*,&\n  crl: $work/ca/crl.pem," a/gateway.yaml
stop_gateway a
gateway_start a
sed -i "s,address: .*,address: \"$(wan_of a)\"," revoked/gateway.yaml
gateway_start revoked
both_say revoked "revoked" "revoked"
gateway_conf lost a=127.0.0.1:1
gateway_start lost
check "peer unreachable: status" wait_until 20 status_says lost "Connection refused"
hdt doctor --gateway "$(gateway_of lost)" >out 2>&1
same "doctor fails" 1 $?
check "doctor has a remedy" grep -q "remedy" out

section "plans and jobs"
job j.yaml 3
G="--gateway $(gateway_of a)"
# shellcheck disable=SC2086 # options
{
    refused 3 "no worker is connected" hdt plan $G j.yaml
    hinted
    refused 3 "no worker is connected" hdt submit $G j.yaml
    refused 3 "job 77" hdt stop $G 77
    refused 3 "a/w7" hdt logs $G a/w7
    worker a w0 "memory: 40MiB"
    expect_federation a 1 1
    job two.yaml 3 "plan.min_stages: 2"
    refused 1 "stages" hdt plan $G two.yaml
    hinted
    fed_model big.json 's/"hidden_size": 32/"hidden_size": 512/; s/"intermediate_size": 96/"intermediate_size": 2048/'
    job big.yaml 3 "model: $work/big.json"
    refused 1 "its part on a/w0 takes 255.7 MiB, the worker may use 40.0 MiB" hdt submit $G big.yaml
    hinted
    for case in "s/{/[/:model.json" 's/"llama"/"gpt2"/:gpt2' 's/"hidden_size": 32/"hidden_size": 33/:hidden_size' \
        's/"num_hidden_layers": 4/"num_hidden_layers": -4/:num_hidden_layers' 's/"silu"/"gelu"/:gelu' \
        '/hidden_size/d:hidden_size' 's/"vocab_size": 256/"vocab_size": 1e99/:vocab_size'; do
        fed_model badmodel.json "${case%:*}"
        job badmodel.yaml 3 "model: $work/badmodel.json"
        refused 1 "${case##*:}" hdt submit $G badmodel.yaml
    done
    job badmodel.yaml 3 "model: $work/none.json"
    refused 3 "none.json" hdt submit $G badmodel.yaml
}

# A run that starts and fails: exit status 1, and the last line but hints says why.
fails() { # TEXT NAME OPTION...
    local text=$1

    shift
    submit a "$@"
    same "${*//$work\//}: fails" 1 $?
    check "and says '$text'" grep -q -- "$text" "$work/$1.log"
}
touch file
job nodir.yaml 3 "checkpoint.dir: $work/file/ck"
fails "cannot make the folder '$work/file/ck'" nodir
check "before the first step" not grep -q "^step" nodir.log
# shellcheck disable=SC2086 # options
{
    refused 1 "/nowhere/result.json" hdt submit $G --json /nowhere/result.json j.yaml
    for key in data.site checkpoint.site; do
        job nosite.yaml 3 "$key: zz"
        refused 3 "$key is 'zz'" hdt plan $G nosite.yaml
    done
    job nosite.yaml 3 "plan.sites: [zz]"
    refused 1 "site 'zz'" hdt plan $G nosite.yaml
}
worker a w0 # a second one of that name
check "two workers of one name: the second says it" wait_until 20 says "of that name is connected already" a-w0/worker.log
kill "${worker_pid[a/w0]}"
ends "the second worker" "${worker_pid[a/w0]}" 5
for line in "backend: nosuch" "state_dir: $work/file/x" "gateway: here" "gateway: tls:127.0.0.1:1"; do
    printf 'name: w5\ngateway: unix:%s\nstate_dir: %s\n' "$work/a/sock" "$work" | grep -v "^${line%%:*}:" >w5.yaml
    echo "$line" >>w5.yaml
    refused 1 "$(sed 's/^[a-z_]*: //' <<<"$line")" hdt-worker -c w5.yaml
done

section "data"
: >empty.bin
head -c 1001 train.bin >odd.bin
head -c 20 train.bin >short.bin
printf '\xff\xff%.0s' {1..500} >vocab.bin
for case in "empty:is empty" "odd:is cut, or not of u16" "short:one sample needs 33" \
    "vocab:is outside the vocabulary of 256" "none:No such file"; do
    shard=${case%%:*}
    job "d$shard.yaml" 3 "data.train: $work/$shard.bin"
    fails "$shard.bin.*${case#*:}" "d$shard"
done

section "checkpoints"
submit a j || fail "a job after all those: $(tail -n 3 j.log)"
fails "cannot find a checkpoint in '$work/nowhere'" j --resume "$work/nowhere"
mkdir emptydir
fails "cannot find a checkpoint in '$work/emptydir'" j --resume "$work/emptydir"
# damage HOW FILE
damage() {
    case $1 in
    remove) rm "$2" ;;
    truncate) truncate -s -4 "$2" ;;
    flip) python3 -c 'import sys
f = open(sys.argv[1], "r+b"); d = bytearray(f.read()); d[len(d) // 2] ^= 4; f.seek(0); f.write(d)' "$2" ;;
    esac
}
for file in hdt.json config.json model.safetensors optimizer.safetensors; do
    for how in remove truncate flip; do
        rm -rf ck
        cp -r j.yaml-ckpt/step-00000003 ck
        damage "$how" "ck/$file"
        text="'$work/ck': $file "
        case "$how $file" in "remove hdt.json") text="cannot find a checkpoint in '$work/ck'" ;; esac
        fails "$text" j --steps 6 --resume "$work/ck"
    done
done
fed_model other.json 's/"hidden_size": 32/"hidden_size": 64/'
job other.yaml 6 "model: $work/other.json"
fails "'hidden_size' differs" other --resume "$work/j.yaml-ckpt"
refused 3 "nowhere" hdt eval --checkpoint nowhere --data valid.bin
refused 3 "nowhere" hdt eval --checkpoint j.yaml-ckpt --data nowhere
refused 1 "outside the vocabulary" hdt eval --checkpoint j.yaml-ckpt --data vocab.bin
refused 3 "nowhere" hdt generate --checkpoint nowhere --prompt x

section "a busy worker"
job long.yaml 100000
submit a long --detach || fail "detach: $(cat long.log)"
submit a j
same "submit to a busy worker" 1 $?
check "it says which worker, and what to do" grep -q "a/w0 runs another job" j.log
number=$(sed -n 's/^job \([0-9]*\) .*submitted.*/\1/p' long.log)
check "stop" hdt stop --gateway "$(gateway_of a)" "$number"
check "stop what is stopped" hdt stop --gateway "$(gateway_of a)" "$number"
rm -rf j.yaml-ckpt
submit a j
same "then it runs" 0 $?

section "end"
[ "$n_failed" = 0 ]
