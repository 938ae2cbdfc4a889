# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# ratio, entropy floor, rates and error of every codec on one core, on tensors of a real run
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's

# codec_programs: both are made here, since 'make check' needs neither.
codec_programs() {
    make -s -C "$builddir" tests/bench/bench_codec tests/bench/bench_tensors >&2 || {
        echo "bench: cannot build tests/bench/bench_codec in '$builddir'" >&2
        exit 2
    }
}

# codec_tensors: a short run of the quickstart's model on this project's own text.
codec_tensors() {
    find "$srcdir/doc" "$srcdir/src" "$srcdir/runtime" "$srcdir/gateway" -name '*.[ch]' -o -name '*.md' |
        LC_ALL=C sort | xargs cat >"$tmp/text"
    "$builddir/tests/bench/bench_tensors" "$srcdir/etc/model.json" "$tmp/text" 4 128 8 \
        "${HDT_BENCH_STEPS:-60}" "$(nproc)" "$tmp"
}

# figure TABLE SET DTYPE CODEC COLUMN: one figure of a table of bench_codec.
figure() {
    awk -v set="$2" -v dtype="$3" -v codec="$4" -v column="$5" \
        '$1 == set && $2 == dtype && $3 == codec { print $column; found = 1 }
         END { if (!found) print "null" }' "$1"
}

# codec_rows TABLE SET: lossless against its floor and plain zstd, at bf16.
codec_rows() {
    local value
    row codec "lossless bf16 $2" ratio "$(figure "$1" "$2" bf16 lossless 4)" x higher \
        "entropy floor" "$(figure "$1" "$2" bf16 lossless 5)" 0.98
    row codec "lossless bf16 $2" encode "$(figure "$1" "$2" bf16 lossless 7)" GB/s higher \
        "zstd level 1" "$(figure "$1" "$2" bf16 zstd-1 7)" 1.67
    row codec "lossless bf16 $2" decode "$(figure "$1" "$2" bf16 lossless 8)" GB/s higher \
        "zstd level 1" "$(figure "$1" "$2" bf16 zstd-1 8)" 2.37
    value=$(figure "$1" "$2" bf16 lossless 6)
    row codec "worst tensor of $2" share_of_floor "$value" "" higher floor 1 0.98
}

# codec_casts TABLE: every codec of workers against a copy of as many bytes.
codec_casts() {
    local codec goal
    for codec in $(awk '$1 == "normal" && $2 == "f32" && $3 !~ /lossless|memcpy|zstd|none|\*/ { print $3 }' "$1"); do
        goal=0.7
        case $codec in topk* | randk* | lowrank*) goal=null ;; esac # they do far more than a copy
        row codec "$codec encode" encode "$(figure "$1" normal f32 "$codec" 7)" GB/s higher \
            memcpy "$(figure "$1" normal f32 memcpy 7)" "$goal"
        row codec "$codec decode" decode "$(figure "$1" normal f32 "$codec" 8)" GB/s higher \
            memcpy "$(figure "$1" normal f32 memcpy 7)" "$goal"
        row codec "$codec error" error "$(figure "$1" normal f32 "$codec" 9)" % lower none null null
    done
}

bench_run() {
    local core sets set table=$tmp/table double=$tmp/double
    codec_programs
    codec_tensors
    sets=$(cd "$tmp" && echo *.safetensors)
    core=$(($(nproc) - 1))
    # shellcheck disable=SC2086 # names without spaces
    (cd "$tmp" && taskset -c "$core" "$builddir/tests/bench/bench_codec" --ms "${HDT_BENCH_MS:-150}" $sets) | tee "$table"
    for set in normal weights grads activations activation-grads; do
        codec_rows "$table" "$set"
    done
    codec_casts "$table"
    if [ "$(nproc)" -ge 2 ]; then
        taskset -c "0-1" "$builddir/tests/bench/bench_codec" --ms "${HDT_BENCH_MS:-150}" --threads 2 | tee "$double"
        row codec "lossless bf16, 2 threads" encode "$(figure "$double" normal bf16 'lossless*2' 7)" GB/s higher \
            "one thread" "$(figure "$table" normal bf16 lossless 7)" 1.9
        row codec "lossless bf16, 2 threads" decode "$(figure "$double" normal bf16 'lossless*2' 8)" GB/s higher \
            "one thread" "$(figure "$table" normal bf16 lossless 8)" 1.9
    fi
}
