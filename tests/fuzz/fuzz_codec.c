/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs over foreign bytes. Input: codec, dtype, offset of a chunk or options of a worker codec (a
 * byte each), plain length (3 bytes, little-endian), then the coded bytes. They are decoded; what
 * an exact codec decodes must survive another trip. The same bytes are also taken as values,
 * encoded and decoded again.
 */
#include "config.h"

#include "compress/codec.h"
#include "src/base/buf.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_CAP ((size_t)1 << 20)

static struct hdt_codec_ctx *ctx;

/* Options out of a byte: block, then flags; none when the codec does not take them. */
static struct hdt_codec_spec spec_of(const struct hdt_codec_ops *codec, uint8_t byte)
{
    const struct hdt_codec_word *word = hdt_codec_word(codec->id);
    const struct hdt_codec_spec plain = hdt_codec_spec_default(codec->id);
    const unsigned flags =
        HDT_CODEC_E5M2 | HDT_CODEC_MINMAX | HDT_CODEC_ROTATE | HDT_CODEC_STOCHASTIC;
    struct hdt_codec_spec spec = plain;

    spec.block = (uint16_t)(byte & 7 ? 16u << (byte & 7) : 0);
    spec.block = spec.block == word->defaults.block ? 0 : spec.block;
    spec.flags = (uint16_t)((unsigned)byte >> 3 & flags & word->options);
    return hdt_codec_spec_check(&spec, NULL) == HDT_OK ? spec : plain;
}

/* Encode, decode and, for exact codecs, compare. */
static void trip(const struct hdt_codec_ops *codec, enum hdt_dtype dtype, uint8_t option,
                 const uint8_t *plain, size_t len)
{
    const struct hdt_codec_spec spec = spec_of(codec, option);
    size_t bound, coded_len;
    struct hdt_codec_guard guard;
    uint8_t *coded, *back;

    if (hdt_codec_bound(codec, &spec, dtype, len, &bound, NULL) != HDT_OK) {
        return;
    }
    coded = hdt_malloc(bound);
    back = hdt_malloc(len);
    struct hdt_codec_io to = {.spec = &spec,
                              .src = plain,
                              .src_len = len,
                              .dst = coded,
                              .dst_len = bound,
                              .dtype = dtype,
                              .offset = option,
                              .guard = &guard};
    if (hdt_codec_encode(codec, ctx, &to, &coded_len, NULL) == HDT_OK) {
        struct hdt_codec_io from = {.spec = &spec,
                                    .src = coded,
                                    .src_len = coded_len,
                                    .dst = back,
                                    .dst_len = len,
                                    .dtype = dtype,
                                    .offset = option};

        HDT_ASSERT(coded_len <= bound);
        HDT_ASSERT(hdt_codec_decode(codec, ctx, &from, NULL) == HDT_OK);
        HDT_ASSERT(!(codec->caps & HDT_CODEC_EXACT) || len == 0 || memcmp(plain, back, len) == 0);
    }
    free(coded);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct hdt_codec_ops *codec;
    enum hdt_dtype dtype;
    size_t plain_len;
    uint8_t *plain;

    if (size < 6) {
        return 0;
    }
    if (!ctx) {
        HDT_ASSERT(hdt_codec_ctx_new(CHUNK_CAP, &ctx, NULL) == HDT_OK);
    }
    codec = hdt_codec_by_id(data[0] % HDT_CODEC_COUNT);
    if (!codec || codec->has_state) {
        return 0;
    }
    dtype = (enum hdt_dtype)(data[1] % HDT_DTYPE_COUNT);
    plain_len = (data[3] | (size_t)data[4] << 8 | (size_t)data[5] << 16) % (CHUNK_CAP + 2);
    plain = hdt_malloc(plain_len);
    const struct hdt_codec_spec spec = spec_of(codec, data[2]);
    struct hdt_codec_io io = {.spec = &spec,
                              .src = data + 6,
                              .src_len = size - 6,
                              .dst = plain,
                              .dst_len = plain_len,
                              .dtype = dtype,
                              .offset = data[2]};

    if (hdt_codec_decode(codec, ctx, &io, NULL) == HDT_OK && (codec->caps & HDT_CODEC_EXACT)) {
        trip(codec, dtype, data[2], plain, plain_len);
    }
    trip(codec, dtype, data[2], data + 6, size - 6);
    free(plain);
    return 0;
}
