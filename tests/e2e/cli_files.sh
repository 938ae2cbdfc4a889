#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hdt config, tokenize and export; examples, manual pages and completion against the tables.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"

cd "$work" || exit 1

# ---- settings ----
check "examples and manual pages fit the tables" "$src/scripts/update-settings" --check "$build"
for kind in gateway worker job; do
    sed 's/CHANGE-ME/mine/' "$src/etc/$kind.yaml" >"$work/$kind-plain.yaml"
    check "etc/$kind.yaml loads" hdt config check "$kind" "$work/$kind-plain.yaml"
    # Every default with its comment sign removed means what the file meant before.
    sed -E 's/^( *)#([a-z_0-9]+:)/\1\2/; /^peers:/,$d' "$work/$kind-plain.yaml" >"$work/$kind.yaml"
    same "defaults of $kind" "$(hdt config check --json "$kind" "$kind-plain.yaml")" \
        "$(hdt config check --json "$kind" "$kind.yaml")"
done
check "etc/cluster.yaml is a cluster file" hdt config check cluster "$src/etc/cluster.yaml"
check "etc/layout.yaml is a layout" hdt config check layout "$src/etc/layout.yaml"
check "etc/devices.yaml is a catalogue" hdt config check devices "$src/etc/devices.yaml"
refused 1 "'model' is still CHANGE-ME" hdt config check job "$src/etc/job.yaml"
refused 2 "options follow the command" hdt --gateway unix:/x status
mkdir no-checkpoints
same "an empty folder" "there is no checkpoint in 'no-checkpoints'" "$(hdt checkpoint list no-checkpoints)"
mkdir own-state
sed "s,^# *state_dir:.*\|^#* *state_dir:.*,state_dir: $work/own-state," "$src/etc/gateway.yaml" >own.yaml
hdt doctor --config own.yaml --gateway unix:/nowhere >out 2>&1
check "doctor looks at the state_dir of the settings" grep -q "at '$work/own-state'" out
refused 2 "did you mean 'gateway'?" hdt config check gatway x
refused 3 "'hdt config example worker' prints a file" hdt config check worker nothing.yaml
printf 'name: w0\nthreds: 3\n' >bad.yaml
refused 1 "bad.yaml:2:1: unknown key 'threds'" hdt config check worker bad.yaml
grep -q "did you mean 'threads'?" err || fail "no remedy: $(cat err)"
refused 3 "did you mean 'wan.chunk'?" hdt config explain gateway wan.chunks
same "explain" "wan.chunk" "$(hdt config explain gateway wan.chunk | head -n 1)"

# ---- manual pages ----
if command -v mandoc >/dev/null; then
    for page in "$src"/doc/*.[1358]; do
        said=$(mandoc -Tlint "$page" | grep -v 'referenced manual not found')
        [ -z "$said" ] && ok "lint of ${page##*/}" || fail "lint of ${page##*/}: $said"
    done
else
    echo "left out: manual pages (no mandoc here)"
fi
# Every command of the table stands in the manual page.
for name in $(hdt complete ''); do
    grep -qE "Cm $name|[ ,] *$name( |$)" "$src/doc/hdt.1" && ok "hdt.1 has $name" ||
        fail "hdt.1 says nothing of '$name'"
done

# Every long option that a command's help lists, too.
man_lacks() { # COMMAND...
    local name

    hdt "$@" --help | grep -oE '^ +(-[a-z], +)?--[a-z-]+' | grep -oE '[-][-][a-z-]+' |
        while read -r name; do
            case $name in --help | --usage) continue ;; esac
            grep -qE "Fl Fl ${name#--}( |$)" "$src/doc/hdt.1" || echo "$name"
        done
}
for name in doctor tokenize plan simulate submit status logs stop eval generate export version \
    "link "{bench,explain} "codec "{list,bench} "device "{list,show} "cluster "show "checkpoint "{list,verify,copy} \
    "ca "{init,issue,request,sign,revoke,list,bundle,install} "config "{example,check,explain}; do
    # shellcheck disable=SC2086 # a command and its sub-command
    said=$(man_lacks $name)
    [ -z "$said" ] && ok "hdt.1 has the options of hdt $name" ||
        fail "hdt.1 lacks options of hdt $name: $said"
done

# ---- completion ----
complete_words() { # WORDS...: what bash would offer
    bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hdt; echo "${COMPREPLY[*]}"' \
        "$src/etc/hdt.bash-completion" "$@"
}
same "completion of a command" "tokenize" "$(complete_words hdt tok)"
same "completion of a kind" "gateway" "$(complete_words hdt config check gat)"
same "completion of a key" "wan.congestion" "$(complete_words hdt config explain gateway wan.cong)"
same "completion of an option" "--federation" "$(complete_words hdt ca init --fe)"

# ---- units ----
if command -v systemd-analyze >/dev/null; then
    for unit in hdt-gateway hdt-worker; do
        sed 's,@bindir@/hdt-[a-z]*,/bin/true,; s,@confdir@,/etc/hdt,' "$src/etc/$unit.service.in" \
            >"$unit.service"
        said=$(systemd-analyze verify --man=no "$work/$unit.service" 2>&1 | grep "$unit")
        [ -z "$said" ] && ok "unit $unit" || fail "unit $unit: $said"
    done
fi

# ---- codecs ----
# 1024 ones and twos in turn: bf16 halves them; int8 writes 4 scales and 1024 codes; of the four planes
# only the exponent's has two values, so that the floor is a bit a value.
python3 - ones.safetensors empty.safetensors <<'END'
import json, struct, sys
data = struct.pack("<2f", 1, 2) * 512
for path, tensors in (sys.argv[1], {"w": {"dtype": "F32", "shape": [4, 256], "data_offsets": [0, 4096]}}), (sys.argv[2], {}):
    head = json.dumps(tensors).encode()
    head += b" " * (-len(head) % 8)
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + (data if tensors else b""))
END
same "codec bench" "none 1.0 32.0 0 bf16 2.0 32.0 0 int8 3.938" \
    "$(hdt codec bench --json --seconds 1 --codec none --codec bf16 --codec int8 ones.safetensors | python3 -c '
import json, sys
rows = json.load(sys.stdin)["codecs"]
print(*["%s %s %s %d" % (r["codec"], r["total"]["ratio"], r["total"]["floor"], r["total"]["error"]) for r in rows[:2]],
      rows[2]["codec"], round(rows[2]["total"]["ratio"], 3))')"
hdt codec bench --seconds 1 ones.safetensors >out
for name in $(hdt codec list --json | python3 -c 'import json, sys
print(*[c["codec"] for c in json.load(sys.stdin)])'); do
    grep -qE "^ +${name}[ :]" out && ok "codec bench has $name" || fail "codec bench lacks $name: $(cat out)"
done
refused 3 "cannot open 'nothing'" hdt codec bench nothing
refused 1 "'empty.safetensors' holds no values" hdt codec bench empty.safetensors
printf "no tensors at all" >text
refused 1 "text: no safetensors file" hdt codec bench text
refused 2 "'int9' is no codec" hdt codec bench --codec int9 ones.safetensors

# ---- devices and clusters ----
catalogue=$src/etc/devices.yaml
same "device show" "312.0 80.0 a100" "$(hdt device show a100 --json --catalogue "$catalogue" |
    python3 -c '
import json, sys
d = json.load(sys.stdin)
print(d["compute"]["bf16"], d["memory"]["gb"], *d["sources"])')"
same "device list has null in JSON" "True" "$(hdt device list --json --catalogue "$catalogue" |
    python3 -c '
import json, sys
print(any(d["compute"]["fp8"] is None for d in json.load(sys.stdin)["devices"]))')"
refused 3 "there is no device 'h10'" hdt device show h10 --catalogue "$catalogue"
refused 3 "cannot read the catalogue of devices" hdt device list --catalogue nothing
check "cluster show" hdt cluster show "$src/tests/data/predict/clusters/gcp.yaml" \
    --catalogue "$catalogue"
printf 'sites:\n  - name: a\n    nodes: [{device: H10}]\n' >cluster.yaml
refused 1 "cluster.yaml:3:22: unknown device 'H10'" \
    hdt cluster show cluster.yaml --catalogue "$catalogue"

# ---- layouts ----
sets=$src/tests/data/predict
check "simulate a layout" hdt simulate --catalogue "$catalogue" --svg layout.svg --trace layout.json \
    "$sets/set-a/opt-rtx4-12.14-2-256.yaml"
check "etc/layout.yaml is simulated" hdt simulate --catalogue "$catalogue" "$src/etc/layout.yaml"
# 6 operations a parameter and token at the peaks of 16 A100 and 16 Ascend 910B2 take 4.0 s; products
# reach 0.4 of them, and more than products is to be done.
same "etc/layout-7b.yaml is simulated" "True True True" "$(hdt simulate --catalogue "$catalogue" --json \
    "$src/etc/layout-7b.yaml" | python3 -c '
import json, sys
d = json.load(sys.stdin)
tokens = 256 * 4096
best_s = 6 * 6.738e9 * tokens / (16 * 312e12 + 16 * 353.9e12)
print(best_s / 0.4 < d["step_s"] < 5 * best_s, abs(d["tokens_per_s"] * d["step_s"] / tokens - 1) < 0.01,
      6e9 < d["memory_bytes"] < 64 * 2**30)')"
check "a layout's picture" grep -q "</svg>" layout.svg
check "a layout's trace" python3 -c 'import json; json.load(open("layout.json"))'
same "a straggler in a layout" True "$(hdt simulate --catalogue "$catalogue" --json \
    --scenario straggler:rank=3,factor=2 "$sets/set-b/1-1-2-8.yaml" | python3 -c '
import json, sys
d = json.load(sys.stdin)
print(d["step_s"] > 1.05 * d["calm_step_s"])')"
refused 2 "uses no link" hdt simulate --catalogue "$catalogue" \
    --scenario slow:link=nowhere,factor=2 "$sets/set-b/1-1-2-8.yaml"
refused 1 "cannot write to standard output" sh -c "hdt simulate --catalogue '$catalogue' \
    '$sets/set-b/1-1-2-8.yaml' >/dev/full"
refused 2 "one step" hdt simulate --steps 4 layout.yaml
refused 3 "cannot read layout settings" hdt simulate layout.yaml
sed -e "s|\.\./|$sets/|; s/nodes: p3/nodes: p2/" "$sets/set-b/1-1-2-8.yaml" >layout.yaml
refused 1 "layout.yaml:18:9: site 'aws' has no nodes 'p2'" \
    hdt simulate --catalogue "$catalogue" layout.yaml
sed -e "s|\.\./|$sets/|; s/global_batch: 32/global_batch: 31/" "$sets/set-b/1-1-2-8.yaml" >layout.yaml
refused 1 "layout.yaml:12:15: 31 sequences cannot be shared by 2 replicas" \
    hdt simulate --catalogue "$catalogue" layout.yaml

# ---- tokenize ----
printf 'In the beginning \xc3\xa9\n' >text
check "tokenize" hdt tokenize -o text.bin text
same "bytes as 16-bit numbers" "$(od -An -v -tu1 text | tr -s ' \n' '  ')" \
    "$(od -An -v -tu2 text.bin | tr -s ' \n' '  ')"
same "tokenize --json" 20 "$(hdt tokenize --json -o t2.bin text | python3 -c '
import json, sys
print(json.load(sys.stdin)["n_tokens"])')"
refused 3 "nothing" hdt tokenize -o x.bin nothing
refused 1 "same file" hdt tokenize -o text text
refused 1 "magic" hdt tokenize --tokenizer magic text
refused 2 "a text file is needed" hdt tokenize
refused 1 "it is empty" hdt tokenize -o x.bin /dev/null
refused 2 "--codec: 'zip' is no codec" hdt plan --codec zip job.yaml
refused 2 "--steps '0' is not a number" hdt submit --steps 0 job.yaml
echo kept >there.tar.gz
refused 1 "'there.tar.gz' exists already; nothing was changed" hdt logs --gateway unix:/nowhere --bundle there.tar.gz
same "it is as it was" kept "$(cat there.tar.gz)"
refused 2 "--force go with --bundle" hdt logs --force a

# ---- export: a checkpoint written here, read back by this script ----
cat >make.py <<'PY'
import json, os, struct
V, C, F, L, NH, NKV = 256, 8, 12, 1, 2, 1
HS = C // NH
shapes = {"model.embed_tokens.weight": [V, C], "model.norm.weight": [C], "lm_head.weight": [V, C]}
for l in range(L):
    p = f"model.layers.{l}."
    shapes |= {p + "input_layernorm.weight": [C], p + "post_attention_layernorm.weight": [C],
               p + "self_attn.q_proj.weight": [C, C], p + "self_attn.k_proj.weight": [NKV * HS, C],
               p + "self_attn.v_proj.weight": [NKV * HS, C], p + "self_attn.o_proj.weight": [C, C],
               p + "mlp.gate_proj.weight": [F, C], p + "mlp.up_proj.weight": [F, C],
               p + "mlp.down_proj.weight": [C, F]}
head, data = {}, b""
for k, (name, shape) in enumerate(shapes.items()):
    n = 1
    for s in shape:
        n *= s
    values = [(k + 1) * 1.001 + i / 7 for i in range(n)]
    if name == "model.norm.weight":
        values[:4] = [float("nan"), float("inf"), 1.00390625, 1.01171875]  # two ties
    blob = struct.pack(f"<{n}f", *values)
    head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(blob)]}
    data += blob
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
os.makedirs("ck/step-00000003")
open("ck/step-00000003/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": V,
           "hidden_size": C, "intermediate_size": F, "num_hidden_layers": L,
           "num_attention_heads": NH, "num_key_value_heads": NKV, "max_position_embeddings": 16,
           "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu",
           "tie_word_embeddings": False}, open("ck/step-00000003/config.json", "w"))
os.symlink("step-00000003", "ck/latest")
PY
cat >judge.py <<'PY'
import json, math, struct, sys
def load(path):
    raw = open(path, "rb").read()
    n, = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in head.items()}
def bf16(x):  # nearest, ties to even, by exact arithmetic on the two neighbours
    if math.isnan(x):
        return None
    bits, = struct.unpack("<I", struct.pack("<f", x))
    low = bits & 0xffff0000
    up = low + 0x10000
    rest = bits & 0xffff
    take = up if rest > 0x8000 or (rest == 0x8000 and (low >> 16) & 1) else low
    return take >> 16
a, b = load("ck/latest/model.safetensors"), load(sys.argv[1] + "/model.safetensors")
assert a.keys() == b.keys()
for k in a:
    assert a[k][1] == b[k][1], k
    if sys.argv[2] == "f32":
        assert b[k][0] == "F32" and a[k][2] == b[k][2], k
    else:
        assert b[k][0] == "BF16", k
        x = struct.unpack(f"<{len(a[k][2]) // 4}f", a[k][2])
        y = struct.unpack(f"<{len(b[k][2]) // 2}H", b[k][2])
        for i, (f, h) in enumerate(zip(x, y)):
            assert (h & 0x7fff) > 0x7f80 if math.isnan(f) else h == bf16(f), (k, i, f, h)
c = json.load(open(sys.argv[1] + "/config.json"))
assert c["torch_dtype"] == {"f32": "float32", "bf16": "bfloat16"}[sys.argv[2]]
assert c["vocab_size"] == 256 and c["model_type"] == "llama"
PY
python3 make.py
for dtype in f32 bf16; do
    check "export $dtype" hdt export --checkpoint ck/latest --out "out-$dtype" --dtype "$dtype"
    check "its weights and config" python3 judge.py "out-$dtype" "$dtype"
    same "no other file" "SHA256SUMS config.json model.safetensors" "$(cd "out-$dtype" && echo *)"
    check "digests that others check" sh -c "cd out-$dtype && sha256sum --strict -c SHA256SUMS" >/dev/null
done
refused 1 "exists already; nothing was changed" hdt export --checkpoint ck/latest --out out-f32
# In a folder of checkpoints each has a manifest: one that lost it is not taken for another program's.
refused 1 "hdt.json is missing" hdt export --checkpoint ck --out o3
refused 3 "cannot read checkpoint" hdt export --checkpoint nothing --out o3
truncate -s -4 ck/step-00000003/model.safetensors
refused 1 "model.safetensors" hdt export --checkpoint ck/latest --out o3
check "nothing is left of a failed export" test ! -e o3/model.safetensors

same "version as JSON" 2 "$(hdt version --json | python3 -c '
import json, sys
print(json.load(sys.stdin)["protocol"])')"
[ "$n_failed" = 0 ]
