# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# loss, logits, gradients and a curve of a device, beside transformers (PyTorch)
# shellcheck disable=SC2154 # srcdir, builddir and tmp are scripts/bench's
#
# HDT_BENCH_BACKEND  cuda, or cpu: fp32 alone [cuda]
# HDT_BENCH_STEPS    of the curves [200]
# HDT_BENCH_LAYERS   [8]

bench_run() {
    local program=$builddir/tests/support/model_dump name value goal code=0

    [ -x "$program" ] || {
        echo "bench: no tests/support/model_dump in '$builddir': 'make check TESTS=' builds it" >&2
        exit 2
    }
    HDT_MODULE_PATH=${HDT_MODULE_PATH:-$(cd "$builddir" && pwd)/.libs}
    export HDT_MODULE_PATH
    cat "$srcdir"/doc/*.md "$srcdir"/doc/*.[1-9] "$srcdir"/runtime/*.c "$srcdir"/src/*/*.c >"$tmp/text"
    "${PYTHON:-python3}" "$srcdir/tests/bench/peer_numerics.py" "$program" "$tmp" "$tmp/text" \
        "${HDT_BENCH_BACKEND:-cuda}" "${HDT_BENCH_STEPS:-200}" "${HDT_BENCH_LAYERS:-8}" >"$tmp/rows" || code=$?
    while IFS=$'\t' read -r name value goal; do
        if [ -n "$goal" ]; then
            row numerics "$name" distance "$value" relative lower null null "$goal"
        else
            echo "$name"
        fi
    done <"$tmp/rows"
    [ "$code" = 0 ] || {
        echo "bench: peer_numerics.py ended with $code" >&2
        exit "$code"
    }
}
