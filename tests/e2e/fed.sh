# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# A small federation on loopback, piece by piece, for tests that need more than the quickstart does.
# Comes after lib.sh. Files of site a: $work/a; its gateway's address: gateway_of a.
# shellcheck disable=SC2154 # work and pids are lib.sh's

# refused CODE TEXT COMMAND...: exit code, text in the one message (daemons log before it), nothing on
# standard output.
refused() {
    local code=$1 text=$2 got

    shift 2
    timeout $((60 * patience)) "$@" >"$work/out" 2>"$work/err" </dev/null
    got=$?
    if [ "$got" = "$code" ] && grep -qF -- "$text" "$work/err" && [ ! -s "$work/out" ] &&
        [ "$(grep -vcE '^hint: | info: ' "$work/err")" = 1 ]; then
        ok "refused: ${*//$work\//}"
    else
        fail "$*: exit $got (not $code), wanted '$text', said: $(cat "$work/out" "$work/err")"
    fi
}

# says TEXT FILE...: a line of the file has the text.
says() {
    local text=$1

    shift
    grep -qF -- "$text" "$@"
}

not() { ! "$@"; }
json_of() { python3 -c "import json, sys; d = json.load(sys.stdin); print($1)"; }
gateway_of() { echo "unix:$work/$1/sock"; }

stop_gateway() { # NAME
    kill "${gateway_pid[$1]}"
    ends "gateway $1" "${gateway_pid[$1]}" 5
}

fed_init() { # [FEDERATION [DIR]]
    hdt ca init --dir "$work/${2:-ca}" --federation "${1:-lab}" >/dev/null
}

# cert_between NAME ROLE/NAME START END: in $work/NAME/tls, signed by the authority, valid between two
# times (openssl makes what hdt would not).
cert_between() {
    local dir=$work/$1/tls made=$work/openssl

    mkdir -p "$dir" "$made"
    : >"$made/index"
    cp "$work/ca/ca.pem" "$dir"
    openssl ecparam -genkey -name prime256v1 -noout -out "$dir/key.pem" 2>/dev/null
    chmod 600 "$dir/key.pem"
    openssl req -new -key "$dir/key.pem" -subj "/CN=$1" -out "$made/csr"
    printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\nauthorityKeyIdentifier=keyid\nsubjectAltName=URI:hdt://lab/%s\n' "$2" >"$made/ext"
    printf '[ca]\ndefault_ca=d\n[d]\ndatabase=%s/index\nnew_certs_dir=%s\nserial=%s/serial\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n' \
        "$made" "$made" "$made" >"$made/conf"
    openssl rand -hex 8 >"$made/serial"
    openssl ca -batch -notext -config "$made/conf" -extfile "$made/ext" -cert "$work/ca/ca.pem" \
        -keyfile "$work/ca/ca.key" -startdate "$(date -u -d "$3" +%Y%m%d%H%M%SZ)" \
        -enddate "$(date -u -d "$4" +%Y%m%d%H%M%SZ)" -in "$made/csr" -out "$dir/cert.pem" \
        >"$made/log" 2>&1 || fail "openssl: $(tail -n 3 "$made/log")"
}

# Settings of site NAME. Others by variables of the caller: listen, rate, wan, lan, crl, http, ca, knob.
gateway_conf() { # NAME [PEER=ADDRESS...]
    local name=$1 peer

    shift
    mkdir -p "$work/$name/state"
    [ -d "$work/$name/tls" ] ||
        hdt ca issue --dir "$work/${ca:-ca}" --out "$work/$name/tls" site "$name" >/dev/null
    {
        printf 'site: %s\nfederation: lab\nstate_dir: %s\n' "$name" "$work/$name/state"
        printf 'progress_timeout: %s\n' "${knob:-20s}"
        printf 'tls:\n  ca: tls/ca.pem\n  cert: tls/cert.pem\n  key: tls/key.pem\n'
        [ -z "${crl:-}" ] || printf '  crl: %s\n' "$crl"
        printf 'wan:\n  listen: "%s"\n' "${listen-127.0.0.1:0}"
        [ -z "${rate:-}" ] || printf '  rate: %s\n' "$rate"
        [ -z "${wan:-}" ] || printf '  %s\n' "$wan"
        printf 'lan:\n  socket: %s\n  listen: "%s"\n' "$work/$name/sock" "${lan:-}"
        printf 'http:\n  listen: "%s"\n' "${http-127.0.0.1:0}"
        printf 'data:\n  memory: 192MiB\n'
        [ -z "${budget:-}" ] || printf 'budgets:\n  - %s\n' "$budget"
        [ $# -eq 0 ] || echo "peers:"
        for peer in "$@"; do
            printf '  - site: %s\n    address: "%s"\n' "${peer%%=*}" "${peer#*=}"
        done
    } >"$work/$name/gateway.yaml"
}

answers() { hdt status --gateway "$(gateway_of "$1")" --json >"$work/$1/status.json" 2>/dev/null; }

# For background jobs: becomes the command, where the processes of a site are to run. Labs have their own.
run_at() { exec "${@:2}"; } # SITE COMMAND...

# Starts the gateway of a site; its process number in ${gateway_pid[NAME]}.
declare -A gateway_pid worker_pid
gateway_start() { # NAME
    run_at "$1" hdt-gateway -c "$work/$1/gateway.yaml" >>"$work/$1/gateway.log" 2>&1 </dev/null &
    gateway_pid[$1]=$!
    pids+=($!)
    wait_until 20 answers "$1" && return
    fail "gateway $1 does not answer: $(tail -n 2 "$work/$1/gateway.log")"
    exit 1
}

site() { # NAME [PEER=ADDRESS...]: settings and gateway
    gateway_conf "$@"
    gateway_start "$1"
}

# Where the gateway of a site listens, as its own log says.
wan_of() { sed -n 's/.*listening on \([^ ]*\) (gateways.*/\1/p' "$work/$1/gateway.log" | tail -n 1; }
# gateway_stays NAME: who starts it again finds it where it listens now.
gateway_stays() {
    sed -i "s,^  listen: \"127.0.0.1:0\"\$,  listen: \"$(wan_of "$1")\",; /^http:/,\$ s,listen: .*,listen: \"127.0.0.1:0\"," "$work/$1/gateway.yaml"
}
lan_of() { sed -n 's/.*listening on \([^ ]*\) (workers and operators, .*/\1/p' "$work/$1/gateway.log" | tail -n 1; }
http_of() { sed -n 's,.* \(http://[^ ]*\)/status .*,\1,p' "$work/$1/gateway.log" | tail -n 1; }

worker() { # SITE NAME [LINE...]: a worker with further lines of settings
    local site=$1 name=$2 dir=$work/$1-$2

    shift 2
    mkdir -p "$dir"
    {
        printf 'name: %s\nthreads: 1\ndata_dir: %s\nstate_dir: %s\n' "$name" "$work" "$dir"
        [[ $* = *gateway:* ]] || printf 'gateway: "%s"\n' "$(gateway_of "$site")"
        [ $# -eq 0 ] || printf '%s\n' "$@"
    } >"$dir/worker.yaml"
    run_at "$site" hdt-worker -c "$dir/worker.yaml" >>"$dir/worker.log" 2>&1 </dev/null &
    # shellcheck disable=SC2034 # for the tests
    worker_pid[$site/$name]=$!
    pids+=($!)
}

# A worker of which tests/support/backend_slow.c makes a slower machine: skip without that module, which
# is no part of an installation; then one as 'worker' makes.
slow_modules=$build/tests/support/slow/.libs
slow_module_needed() {
    [ -e "$slow_modules/backend_slow.so" ] || skip "no backend_slow here: 'make check TESTS=' builds it"
}
slow_worker() { HDT_MODULE_PATH=$slow_modules:$HDT_MODULE_PATH worker "$@" "backend: slow"; } # SITE NAME [LINE...]

# As site SITE sees it: sites up, itself among them, and workers up.
federation_has() { # SITE N-SITES N-WORKERS
    local status

    status=$(hdt status --gateway "$(gateway_of "$1")" --json 2>/dev/null | tr -d ' \n') &&
        [ "$(grep -o '"site":"[^"]*","up":true' <<<"$status" | wc -l)" = $(($2 - 1)) ] &&
        [ "$(grep -o '"worker":"[^"]*","up":true' <<<"$status" | wc -l)" = "$3" ]
}

expect_federation() { # SITE N-SITES N-WORKERS
    wait_until 30 federation_has "$@" || {
        fail "$1 does not see $2 sites and $3 workers"
        hdt status --gateway "$(gateway_of "$1")"
        exit 1
    }
}

# Text, a small model and a job that trains it: $work/{train,valid}.bin, model.json, job.yaml.
fed_data() {
    fed_text
    fed_model "$work/model.json"
}

fed_text() {
    python3 - "$work" <<'PY'
import random, sys
random.seed(7)
words = "the of and that to in he shall unto for i his a lord they be is not him them it with".split()
for name, n in ("train", 12000), ("valid", 2500):
    with open(f"{sys.argv[1]}/{name}.txt", "w") as f:
        f.write(" ".join(random.choice(words) for _ in range(n)))
PY
    hdt tokenize -o "$work/train.bin" "$work/train.txt" >/dev/null
    hdt tokenize -o "$work/valid.bin" "$work/valid.txt" >/dev/null
}

fed_model() { # FILE [SED]
    cat >"$1" <<'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 256,
  "hidden_size": 32,
  "intermediate_size": 96,
  "num_hidden_layers": 4,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5,
  "rope_theta": 10000.0,
  "hidden_act": "silu",
  "tie_word_embeddings": false
}
JSON
    [ $# -lt 2 ] || sed -i "$2" "$1"
}

# A job file; lines given as "section.key: value" go where they belong. Which order of the work is the
# fastest depends on the machine: all runs have one, unless the lines say otherwise.
# The plan stays as it was made unless the lines say otherwise: a run that stops at a checkpoint for a better
# one waits for other things than the test makes it wait for.
job() { # FILE STEPS [LINE...]
    python3 - "$@" "$work" <<'PY'
import sys
path, steps, *lines, work = sys.argv[1:]
tree = {"name": "e2e", "model": f"{work}/model.json", "steps": steps,
        "data": {"train": f"{work}/train.bin", "valid": f"{work}/valid.bin"},
        "batch": {"micro_batch": 2, "n_micro_batches": 4, "seq_len": 32},
        "optimizer": {"lr": "3e-3", "warmup_steps": 2}, "codec": {},
        "checkpoint": {"dir": f"{path}-ckpt"}, "plan": {"schedule": "wan"}, "replan": {"auto": "false"},
        "eval": {"n_micro_batches": 8}}
for line in lines:
    key, value = line.split(": ", 1)
    at = tree
    *sections, last = key.split(".")
    for s in sections:
        at = at.setdefault(s, {})
    at[last] = value
with open(path, "w") as f:
    for key, value in tree.items():
        if isinstance(value, dict):
            f.write("".join([f"{key}:\n"] + [f"  {k}: {v}\n" for k, v in value.items()]) if value else "")
        else:
            f.write(f"{key}: {value}\n")
PY
}

# submit SITE NAME OPTION...: trains $work/NAME.yaml; result NAME.json, output NAME.log. Runs have their
# own deadlines; this one is for a submitter that forgets them.
submit() {
    local site=$1 name=$2

    shift 2
    : >"$work/$name.log"
    timeout $((300 * patience)) hdt submit --gateway "$(gateway_of "$site")" --json "$work/$name.json" "$@" \
        "$work/$name.yaml" >"$work/$name.log" 2>&1 </dev/null
}

# The run's metrics.jsonl: whole lines, and of each epoch each step once and in order, up to the last.
metrics_whole() { # FILE STEPS
    python3 - "$@" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
steps = [(line["epoch"], line["step"]) for line in lines if "loss" in line]
last = {}
for epoch, step in steps:
    before = last.get(epoch)
    if before is not None and step != before + 1:
        sys.exit(f"epoch {epoch}: step {step} after {before}")
    last[epoch] = step
if steps != sorted(steps) or {step for _, step in steps} != set(range(1, int(sys.argv[2]) + 1)):
    sys.exit(f"{len(steps)} lines, last {steps[-1:]}, not steps 1 to {sys.argv[2]}")
PY
}

# Losses of all steps, as a number of steps and a digest, and that of the weights.
result_of() {
    local losses

    losses=$(field "$work/$1.json" loss)
    [ -n "$losses" ] && echo "$(tr -cd , <<<"$losses" | wc -c) $(md5sum <<<"$losses" | cut -c 1-16) $(field "$work/$1.json" weights_digest)"
}

# Sites a and b with a worker each. The session of b passes through a proxy that resets it again and
# again while there is a file "resetting"; gateway a is at the same address when it is started again.
fed_resetting() { # SEED
    site a
    gateway_stays a
    : >proxy.log
    "$src/tests/e2e/reset_proxy.py" "$(wan_of a)" "$1" "$work/resetting" >proxy.log 2>&1 &
    pids+=($!)
    wait_until 10 grep -q : proxy.log || { fail "the proxy does not start: $(cat proxy.log)"; return 1; }
    listen="" site b a="$(head -n 1 proxy.log)"
    worker a w0
    worker b w0
    expect_federation a 2 2
}
