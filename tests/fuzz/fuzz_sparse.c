/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs that remember, over foreign bytes. Input: which codec, number of values (2 bytes, little-
 * endian), then bytes that are decoded as a frame, with and without adding; loaded as a saved
 * state; and coded as values, twice, which must come back within what the codec says of its error.
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_state.h"
#include "src/base/buf.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const texts[] = {"topk:64",        "topk:2,bits=4",      "topk:8,bits=8",
                                    "topk:4,bits=16", "randk:16",           "randk:2,bits=16",
                                    "lowrank:1",      "lowrank:5,block=32", "delta:int8"};
#define N_TEXTS (sizeof(texts) / sizeof(texts[0]))

static struct hdt_codec_ctx *ctx;

static struct hdt_codec_state *state_of(const struct hdt_codec_spec *spec, size_t n)
{
    struct hdt_codec_state *state;

    HDT_ASSERT(hdt_codec_state_new(spec, n, 2, &state, NULL) == HDT_OK);
    return state;
}

static void decode(const struct hdt_codec_spec *spec, size_t n, const uint8_t *data, size_t size)
{
    struct hdt_codec_state *state = state_of(spec, n);
    uint8_t *plain = hdt_malloc(4 * n), *frame = hdt_malloc(size);
    struct hdt_codec_io io = {.spec = spec,
                              .src = frame,
                              .src_len = size,
                              .dst = plain,
                              .dst_len = 4 * n,
                              .dtype = HDT_DTYPE_F32,
                              .state = state};

    if (size > 0) {
        memcpy(frame, data, size);
    }
    memset(plain, 0, 4 * n);
    (void)hdt_codec_decode(hdt_codec_spec_worker(spec), ctx, &io, NULL);
    memset(plain, 0, 4 * n);
    io.add = true;
    (void)hdt_codec_decode(hdt_codec_spec_worker(spec), ctx, &io, NULL);
    (void)hdt_codec_state_load(state, frame, size, NULL);
    free(plain);
    free(frame);
    hdt_codec_state_free(state);
}

/* Saved and loaded, a state is the same. */
static void save(const struct hdt_codec_state *state, const struct hdt_codec_spec *spec, size_t n)
{
    size_t len = hdt_codec_state_bytes(state);
    uint8_t *mem = hdt_malloc(len), *again = hdt_malloc(len);
    struct hdt_codec_state *other = state_of(spec, n);

    hdt_codec_state_save(state, mem);
    HDT_ASSERT(hdt_codec_state_load(other, mem, len, NULL) == HDT_OK);
    hdt_codec_state_save(other, again);
    HDT_ASSERT(memcmp(mem, again, len) == 0);
    free(mem);
    free(again);
    hdt_codec_state_free(other);
}

static void trip(const struct hdt_codec_spec *spec, size_t n, const uint8_t *data)
{
    struct hdt_codec_state *here = state_of(spec, n), *there = state_of(spec, n);
    const struct hdt_codec_ops *codec = hdt_codec_spec_worker(spec);
    struct hdt_codec_guard guard;
    size_t bound, len;
    uint8_t *frame, *plain = hdt_malloc(4 * n);

    HDT_ASSERT(hdt_codec_bound(codec, spec, HDT_DTYPE_F32, 4 * n, &bound, NULL) == HDT_OK);
    frame = hdt_malloc(bound);
    for (uint64_t turn = 0; turn < 2; turn++) {
        struct hdt_codec_io to = {.spec = spec,
                                  .src = data,
                                  .src_len = 4 * n,
                                  .dst = frame,
                                  .dst_len = bound,
                                  .dtype = HDT_DTYPE_F32,
                                  .guard = &guard,
                                  .state = here,
                                  .seed = turn};
        struct hdt_codec_io from = {.spec = spec,
                                    .src = frame,
                                    .dst = plain,
                                    .dst_len = 4 * n,
                                    .dtype = HDT_DTYPE_F32,
                                    .state = there};

        if (hdt_codec_encode(codec, ctx, &to, &len, NULL) != HDT_OK) {
            break;
        }
        HDT_ASSERT(len == bound);
        from.src_len = len;
        HDT_ASSERT(hdt_codec_decode(codec, ctx, &from, NULL) == HDT_OK);
        HDT_ASSERT(isfinite(guard.err_sq) && guard.err_sq >= 0);
        save(here, spec, n);
    }
    free(frame);
    free(plain);
    hdt_codec_state_free(here);
    hdt_codec_state_free(there);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hdt_codec_spec spec;

    if (size < 3) {
        return 0;
    }
    if (!ctx) {
        HDT_ASSERT(hdt_codec_ctx_new(0, &ctx, NULL) == HDT_OK);
    }
    HDT_ASSERT(hdt_codec_spec_parse(texts[data[0] % N_TEXTS], &spec, NULL) == HDT_OK);
    decode(&spec, (data[1] | (size_t)data[2] << 8) % 10000, data + 3, size - 3);
    trip(&spec, (size - 3) / 4, data + 3);
    return 0;
}
