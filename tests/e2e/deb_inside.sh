#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Run by deb.sh in a root where the packages are installed: deb_inside.sh files|sites|upgrade|remove
set -u

failed=0
check() { # TEXT COMMAND...
    local text=$1

    shift
    if "$@"; then
        echo "ok: $text"
    else
        echo "FAILED: $text"
        failed=1
    fi
}
same() { # TEXT A B
    check "$1" test "$2" = "$3" || true
    [ "$2" = "$3" ] || echo "   '$2' is not '$3'"
}
owner() { stat -c '%U:%G %a' "$1"; }
as_hdt() { runuser -u hdt -- "$@"; }
not() { ! "$@"; }
wait_until() { # SECONDS COMMAND...
    local end=$((SECONDS + $1 * ${HDT_TEST_PATIENCE:-1}))

    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}
units_wanted() { find /etc/systemd -name 'hdt-*' | wc -l; }

files() {
    local program version

    version=$(dpkg-query -W -f '${Version}' hdt)
    same "version of the program and of the package" "${version%-*}" "$(hdt version | sed -n 's/^hdt \([^ ]*\).*/\1/p')"
    same "files are as they were packed" "" "$(dpkg --verify hdt hdt-common hdt-gateway hdt-worker libhdt0 libhdt-dev)"
    for program in hdt hdt-gateway hdt-worker; do
        check "$program finds its libraries" not grep -q "not found" <(ldd "/usr/bin/$program")
    done
    same "user hdt" "/var/lib/hdt:/usr/sbin/nologin" "$(getent passwd hdt | cut -d: -f6-)"
    check "it may use accelerators" grep -q '\brender\b' <(id -nG hdt)
    same "state" "hdt:hdt 750" "$(owner /var/lib/hdt)"
    same "keys" "root:hdt 750" "$(owner /etc/hdt/tls)"
    same "conffiles" "/etc/hdt/worker.yaml" "$(dpkg-query -W -f '${Conffiles}\n' 'hdt*' 'libhdt*' | awk 'NF { print $1 }')"
    same "services that were enabled" 0 "$(units_wanted)"
    same "systemd-analyze verify" "" "$(systemd-analyze verify --man=no hdt-gateway.service \
        hdt-worker.service hdt-worker@w1.service 2>&1 | grep hdt-)"
}

# Site a as the packages have it, site b beside it with folders of its own.
sites_start() {
    hdt ca init --federation lab
    hdt ca bundle site a --peer b --listen 127.0.0.1:7420
    hdt ca bundle site b --peer a=127.0.0.1:7420 --listen ""
    hdt ca install a.bundle
    hdt ca install b.bundle --to /etc/hdt-b
    install -d -o hdt -g hdt /var/lib/hdt-b /run/hdt
    cat >>/etc/hdt-b/gateway.yaml <<'YAML'
state_dir: /var/lib/hdt-b
lan: {socket: /run/hdt/b.sock}
http: {listen: "127.0.0.1:7431"}
data: {memory: 64MiB}
YAML
    printf 'name: w0\ngateway: unix:/run/hdt/b.sock\nstate_dir: /var/lib/hdt-b\nthreads: 1\n' >/etc/hdt-b/worker.yaml
    same "a key is root's and read by the group" "root:hdt 640" "$(owner /etc/hdt/tls/key.pem)"
    for dir in /etc/hdt /etc/hdt-b; do
        check "gateway --check-config as user hdt" as_hdt hdt-gateway --check-config -c $dir/gateway.yaml
        check "worker --check-config" as_hdt hdt-worker --check-config -c $dir/worker.yaml
        as_hdt hdt-gateway -c $dir/gateway.yaml 2>>/gateway.log &
        as_hdt hdt-worker -c $dir/worker.yaml 2>>/worker.log &
    done
}
all_there() {
    [ "$(hdt status --json 2>/dev/null | grep -cE '"(site|worker)": "(b|w0)",?$')" -ge 4 ] &&
        [ "$(hdt status 2>/dev/null | grep -c '^worker.* free ')" = 2 ]
}

sites() {
    local i

    cd /root || exit 1
    sites_start
    if ! wait_until 30 all_there; then
        check "both sites and workers are there" false
        hdt status
        tail -n 20 /gateway.log /worker.log
        return
    fi
    for ((i = 0; i < 2000; i++)); do echo "in the beginning was the word $((i * i))"; done >text
    hdt tokenize -o /var/lib/hdt/train.bin text
    chown hdt: /var/lib/hdt/train.bin
    cat >model.json <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 32,
 "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false}
JSON
    cat >job.yaml <<'YAML'
name: packaged
model: model.json
steps: 4
data: {train: train.bin}
optimizer: {warmup_steps: 1}
batch: {micro_batch: 2, n_micro_batches: 4, seq_len: 32}
plan: {min_stages: 2}
YAML
    check "a run over two sites" timeout $((60 * ${HDT_TEST_PATIENCE:-1})) hdt submit --json run.json job.yaml
    same "it is done" 1 "$(grep -c '"state": *"done"' run.json)"
    same "steps" 4 "$(wc -l </var/lib/hdt/jobs/1-packaged/metrics.jsonl)"
    check "its checkpoint" test -d /var/lib/hdt/checkpoints
    check "text of the model" as_hdt hdt generate --checkpoint /var/lib/hdt/checkpoints --prompt in --tokens 4
}

upgrade() {
    local before

    echo 'log_level: debug' >>/etc/hdt/worker.yaml
    before=$(md5sum /etc/hdt/*.yaml /etc/hdt/tls/*)
    check "upgrade" sh -c 'dpkg -i /next/*.deb >/upgrade.log 2>&1 || { cat /upgrade.log; false; }'
    same "of all packages" 6 "$(dpkg-query -W -f '${Version}\n' 'hdt*' 'libhdt*' | grep -c -- '-2$')"
    same "settings and keys stay" "$before" "$(md5sum /etc/hdt/*.yaml /etc/hdt/tls/*)"
    same "owners stay" "hdt:hdt 750 root:hdt 750 root:hdt 640" \
        "$(owner /var/lib/hdt) $(owner /etc/hdt/tls) $(owner /etc/hdt/tls/key.pem)"
    same "services that were enabled" 0 "$(units_wanted)"
    check "hdt version" hdt version
}

remove() {
    local packages=(hdt hdt-common hdt-gateway hdt-worker libhdt0 libhdt-dev) data

    data=$(find /var/lib/hdt -type f -exec md5sum {} + | sort)
    check "remove" apt-get -o Dpkg::Use-Pty=0 remove -qq -y "${packages[@]}"
    check "programs are gone" test ! -e /usr/bin/hdt -a ! -e /usr/bin/hdt-gateway -a ! -e /usr/bin/hdt-worker
    same "jobs and checkpoints stay" "$data" "$(find /var/lib/hdt -type f -exec md5sum {} + | sort)"
    check "settings and keys stay" test -e /etc/hdt/gateway.yaml -a -e /etc/hdt/worker.yaml -a -e /etc/hdt/tls/key.pem
    check "purge" dpkg --purge "${packages[@]}"
    same "jobs and checkpoints still stay" "$data" "$(find /var/lib/hdt -type f -exec md5sum {} + | sort)"
    check "settings and keys are gone" test ! -e /etc/hdt
    same "nothing else is left" "" "$(find /usr /lib/systemd /etc -path '*hdt*' ! -path '/etc/hdt-b*' 2>/dev/null)"
    same "no package is left" "" "$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 'hdt*' 'libhdt*' 2>/dev/null | grep -v not-installed)"
}

"$1"
[ $failed = 0 ]
