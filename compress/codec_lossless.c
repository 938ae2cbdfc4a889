/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lossless coding of float chunks.
 *
 * The problem: general compressors find almost nothing in floats, because the noise of the mantissa
 * hides the exponent, which is the only part with structure (2.6 of 8 bits in a bf16 activation).
 *
 * The idea: rotate each element left by one bit, so that the sign leaves and the exponent is one
 * whole byte; cut the elements into planes, one for each byte of an element; entropy code the
 * planes that a sample says will pay and copy the others. The coder is zstd told to look for no
 * matches: its Huffman stage alone, at gigabytes a second. Only a plane of very low entropy (zeros,
 * token numbers), where Huffman's floor of one bit a byte would be the limit, gets a match search.
 *
 * Refused: a match search everywhere (half the speed for nothing), a code of our own (zstd's is
 * read by everyone), state from one chunk to the next (chunks travel in any order and are resent
 * cut otherwise).
 *
 * The coded form is in doc/codecs.md. The decoder asks zstd for exactly the plane's length into
 * memory of that length, in a context that cannot allocate, after having read the frame's own
 * claim; skippable, legacy and concatenated frames are refused.
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum form { FORM_RAW = 0, FORM_PLANES = 1 };

#define PLANES_MAX 8

/* Below this many elements a plane's code table costs more than it saves: the coder takes 7 us to
 * make one, for some hundred bytes. */
#define ELEMENTS_MIN 256

/* Elements looked at to decide which planes to code, in runs of RUN spread over the chunk: one of
 * SAMPLE_PART, within bounds. */
#define SAMPLE_MIN  1024
#define SAMPLE_MAX  HDT_LOSSLESS_SAMPLE_MAX
#define SAMPLE_PART 16
#define RUN         64

/* A plane pays when it shrinks by a 64th; a sample must promise a little more. Mantissas lie above
 * that, int8 and fp8 codes below. */
#define PAY_SHIFT    6
#define PAY_BITS_MAX 7.84f

/* Below this entropy (bits a byte) a match search finds what Huffman cannot. */
#define MATCH_BITS_MAX 1.5f

/* So it does where more than one of so many bytes is zero: values have hardly an exponent of zero,
 * but gradients of rows that a batch did not use have nothing else. */
#define ZERO_PART 4

/* zstd levels: the most negative one jumps over all input at once, hence literals only. */
#define LEVEL_LITERALS (-131072)
#define LEVEL_MATCH    1

/* Where nothing is looked up, the smallest table of positions: it is cleared for each plane. 0 is
 * the level's own. */
#define HASH_LOG_LITERALS ZSTD_HASHLOG_MIN
#define HASH_LOG_MATCH    0

/* Where everything of a chunk lies. */
struct layout {
    size_t size; /* bytes of an element = number of planes */
    bool rotate;
    size_t head, n, tail; /* odd bytes before, elements, odd bytes after */
};

/* How the planes are coded. */
struct choice {
    unsigned coded;   /* bit p: plane p is entropy coded */
    unsigned matches; /* bit p: with a match search */
};

static struct layout layout_of(enum hdt_dtype dtype, uint64_t offset, size_t len)
{
    struct layout l = {.size = hdt_dtype_size(dtype), .rotate = hdt_planes_rotates(dtype)};

    l.head = (size_t)((l.size - offset % l.size) % l.size);
    l.head = l.head < len ? l.head : len;
    l.n = (len - l.head) / l.size;
    l.tail = len - l.head - l.n * l.size;
    return l;
}

/* ---- context ---- */

static ZSTD_CCtx_params *encoder_params(int level)
{
    ZSTD_CCtx_params *params = ZSTD_createCCtxParams();

    if (params) {
        ZSTD_CCtxParams_init(params, level);
        ZSTD_CCtxParams_setParameter(params, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    }
    return params;
}

static size_t encoder_size(void)
{
    ZSTD_CCtx_params *a = encoder_params(LEVEL_LITERALS), *b = encoder_params(LEVEL_MATCH);
    size_t size = 0;

    if (a && b) {
        size_t size_a = ZSTD_estimateCCtxSize_usingCCtxParams(a);
        size_t size_b = ZSTD_estimateCCtxSize_usingCCtxParams(b);

        size = size_a > size_b ? size_a : size_b;
    }
    ZSTD_freeCCtxParams(a);
    ZSTD_freeCCtxParams(b);
    return ZSTD_isError(size) ? 0 : size;
}

/* zstd wants its memory aligned to 8. */
static void *aligned_memory(size_t size)
{
    return size > 0 ? aligned_alloc(64, (size + 63) & ~(size_t)63) : NULL;
}

enum hdt_status hdt_lossless_ctx_init(struct hdt_codec_ctx *ctx, struct hdt_error *err)
{
    size_t e_size = encoder_size(), d_size = ZSTD_estimateDCtxSize(), n_tables;
    const struct hdt_planes_kernels *const *tables = hdt_planes_all(&n_tables);

    ctx->planes_kernels = tables[n_tables - 1];
    ctx->planes = aligned_memory(ctx->chunk_cap);
    ctx->encoder_mem = aligned_memory(e_size);
    ctx->decoder_mem = aligned_memory(d_size);
    ctx->log2_of = aligned_memory((SAMPLE_MAX + 1) * sizeof(*ctx->log2_of));
    if (!ctx->planes || !ctx->log2_of || !ctx->encoder_mem || !ctx->decoder_mem) {
        goto err_memory;
    }
    for (int i = 0; i <= SAMPLE_MAX; i++) {
        ctx->log2_of[i] = i > 0 ? log2f((float)i) : 0;
    }
    ctx->encoder = ZSTD_initStaticCCtx(ctx->encoder_mem, e_size);
    ctx->decoder = ZSTD_initStaticDCtx(ctx->decoder_mem, d_size);
    if (!ctx->encoder || !ctx->decoder) {
        goto err_memory;
    }
    ZSTD_CCtx_reset(ctx->encoder, ZSTD_reset_parameters); /* a static one starts without defaults */
    ZSTD_CCtx_setParameter(ctx->encoder, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    return HDT_OK;

err_memory:
    hdt_lossless_ctx_release(ctx);
    return hdt_error_set(err, HDT_ENOMEM,
                         "cannot make codec context for chunks of %zu bytes: out of memory",
                         ctx->chunk_cap);
}

void hdt_lossless_ctx_release(struct hdt_codec_ctx *ctx)
{
    free(ctx->planes);
    free(ctx->log2_of);
    ctx->log2_of = NULL;
    free(ctx->encoder_mem);
    free(ctx->decoder_mem);
    ctx->planes = NULL;
    ctx->encoder_mem = ctx->decoder_mem = NULL;
    ctx->encoder = NULL;
    ctx->decoder = NULL;
}

/* ---- which planes pay ---- */

/* Bits a byte. A sample of n values of which m differ shows (m - 1) / (2 n ln 2) bits too few
 * (Miller 1955), which matters where a plane is near to noise. */
static float entropy_bits(const float *log2_of, uint32_t counts[2][256], uint32_t total)
{
    float sum = 0;
    uint32_t n_values = 0;

    for (int i = 0; i < 256; i++) {
        const uint32_t n = counts[0][i] + counts[1][i];

        sum += (float)n * log2_of[n]; /* log2_of[0] is 0 */
        n_values += n > 0;
    }
    return log2_of[total] - sum / (float)total + (float)(n_values - 1) * 0.72134752f / (float)total;
}

static size_t sample_size(size_t n)
{
    size_t some = n / SAMPLE_PART > SAMPLE_MIN ? n / SAMPLE_PART : SAMPLE_MIN;

    some = some < SAMPLE_MAX ? some : SAMPLE_MAX;
    return some < n ? some : n;
}

/* First element of run r, somewhere within its part of `stride` elements: the rows of a tensor are
 * often as long as a power of two, and an even step would meet the same columns or rows always. */
static size_t run_begin(size_t r, size_t stride)
{
    const size_t room = stride > RUN ? stride - RUN : 0;
    const uint32_t golden = (uint32_t)r * 2654435769u; /* 2^32 / 1.618..: spread evenly */

    return r * stride + (size_t)((uint64_t)golden * (room + 1) >> 32);
}

/* Counts of the bytes of a run. Neighbours are often alike (exponents have few values), and a count
 * that was just written is waited for: they go to two tables in turn. */
static void run_count(const uint8_t *bytes, size_t n, uint32_t counts[2][256])
{
    size_t i = 0;

    for (; i + 2 <= n; i += 2) {
        counts[0][bytes[i]]++;
        counts[1][bytes[i + 1]]++;
    }
    if (i < n) {
        counts[0][bytes[i]]++;
    }
}

/* Counts of the bytes of some runs, which are cut into planes as the whole will be. */
static uint32_t sample(const struct hdt_codec_ctx *ctx, const struct layout *l, const uint8_t *src,
                       uint32_t counts[PLANES_MAX][2][256])
{
    const size_t n_runs = (sample_size(l->n) + RUN - 1) / RUN, stride = l->n / n_runs;
    uint8_t bytes[PLANES_MAX][RUN], *planes[PLANES_MAX];
    uint32_t total = 0;

    for (size_t p = 0; p < PLANES_MAX; p++) {
        planes[p] = bytes[p];
    }
    for (size_t r = 0; r < n_runs; r++) {
        size_t n = stride < RUN ? stride : RUN;

        hdt_planes_split(ctx->planes_kernels, l->size, l->rotate,
                         src + l->size * run_begin(r, stride), n, planes);
        for (size_t p = 0; p < l->size; p++) {
            run_count(bytes[p], n, counts[p]);
        }
        total += (uint32_t)n;
    }
    return total;
}

static struct choice choose(const struct hdt_codec_ctx *ctx, const struct layout *l,
                            const uint8_t *src)
{
    uint32_t counts[PLANES_MAX][2][256];
    struct choice c = {0};
    uint32_t total;

    if (l->n < ELEMENTS_MIN) {
        return c;
    }
    memset(counts, 0, l->size * sizeof(counts[0]));
    total = sample(ctx, l, src, counts);
    for (size_t p = 0; p < l->size; p++) {
        float bits = entropy_bits(ctx->log2_of, counts[p], total);

        c.coded |= (bits < PAY_BITS_MAX ? 1u : 0u) << p;
        c.matches |=
            (bits < MATCH_BITS_MAX || counts[p][0][0] + counts[p][1][0] > total / ZERO_PART ? 1u
                                                                                            : 0u)
            << p;
    }
    return c;
}

/* ---- encode ---- */

static size_t lossless_bound(const struct hdt_codec_spec *spec, enum hdt_dtype dtype,
                             size_t plain_len)
{
    (void)spec;
    (void)dtype;
    return plain_len + 1;
}

static enum hdt_status check_chunk(const struct hdt_codec_ctx *ctx, size_t plain_len,
                                   struct hdt_error *err)
{
    if (plain_len > ctx->chunk_cap) {
        return hdt_error_set(err, HDT_EINVAL,
                             "codec lossless: a chunk of %zu bytes is longer than this context's "
                             "%zu",
                             plain_len, ctx->chunk_cap);
    }
    return HDT_OK;
}

/* Code one plane into dst; 0 when that does not pay. */
static size_t plane_encode(struct hdt_codec_ctx *ctx, const uint8_t *plane, size_t n, bool matches,
                           uint8_t *dst)
{
    size_t cap = n - (n >> PAY_SHIFT) - 8, len;

    ZSTD_CCtx_setParameter(ctx->encoder, ZSTD_c_compressionLevel,
                           matches ? LEVEL_MATCH : LEVEL_LITERALS);
    ZSTD_CCtx_setParameter(ctx->encoder, ZSTD_c_hashLog,
                           matches ? HASH_LOG_MATCH : HASH_LOG_LITERALS);
    len = ZSTD_compress2(ctx->encoder, dst, cap, plane, n);
    return ZSTD_isError(len) ? 0 : len;
}

static void put_u32(uint8_t *dst, size_t u)
{
    uint32_t v = (uint32_t)u;

    memcpy(dst, &v, 4);
}

/* Write the planes form with the given choice. Returns its length, or 0 with *failed set to the
 * planes that did not pay. */
static size_t planes_encode(struct hdt_codec_ctx *ctx, const struct layout *l, struct choice c,
                            const struct hdt_codec_io *io, unsigned *failed)
{
    const uint8_t *src = io->src;
    uint8_t *dst = io->dst, *lengths = dst + 2, *scratch = ctx->planes, *planes[PLANES_MAX];
    uint8_t *out = lengths + 4 * (size_t)__builtin_popcount(c.coded);

    dst[0] = FORM_PLANES;
    dst[1] = (uint8_t)c.coded;
    memcpy(out, src, l->head);
    memcpy(out + l->head, src + io->src_len - l->tail, l->tail);
    out += l->head + l->tail;
    for (size_t p = 0; p < l->size; p++) {
        uint8_t **next = c.coded >> p & 1 ? &scratch : &out;

        planes[p] = *next;
        *next += l->n;
    }
    hdt_planes_split(ctx->planes_kernels, l->size, l->rotate, src + l->head, l->n, planes);
    *failed = 0;
    for (size_t p = 0; p < l->size; p++) {
        size_t len;

        if (!(c.coded >> p & 1)) {
            continue;
        }
        len = plane_encode(ctx, planes[p], l->n, c.matches >> p & 1, out);
        *failed |= (len == 0 ? 1u : 0u) << p;
        put_u32(lengths, len);
        lengths += 4;
        out += len;
    }
    return *failed ? 0 : (size_t)(out - dst);
}

static enum hdt_status lossless_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                       size_t *coded_len, struct hdt_error *err)
{
    struct layout l = layout_of(io->dtype, io->offset, io->src_len);
    uint8_t *dst = io->dst;
    struct choice c;

    HDT_TRY(check_chunk(ctx, io->src_len, err));
    c = choose(ctx, &l, (const uint8_t *)io->src + l.head);
    while (c.coded) { /* at most twice, save where planes that passed once fail later */
        unsigned failed;
        size_t len = planes_encode(ctx, &l, c, io, &failed);

        if (len > 0) {
            *coded_len = len;
            return HDT_OK;
        }
        c.coded &= ~failed;
    }
    dst[0] = FORM_RAW;
    if (io->src_len > 0) {
        memcpy(dst + 1, io->src, io->src_len);
    }
    *coded_len = io->src_len + 1;
    return HDT_OK;
}

/* ---- decode ---- */

static enum hdt_status broken(struct hdt_error *err, const char *what)
{
    return hdt_error_set(err, HDT_EPROTO, "codec lossless: %s", what);
}

static enum hdt_status plane_decode(struct hdt_codec_ctx *ctx, const uint8_t *src, size_t len,
                                    uint8_t *plane, size_t n)
{
    if (len < 5 || memcmp(src, "\x28\xb5\x2f\xfd", 4) != 0 ||
        ZSTD_findFrameCompressedSize(src, len) != len || ZSTD_getFrameContentSize(src, len) != n) {
        return HDT_EPROTO;
    }
    return ZSTD_decompressDCtx(ctx->decoder, plane, n, src, len) == n ? HDT_OK : HDT_EPROTO;
}

/* The lengths of the coded planes must fill the chunk exactly; every sum stays below
 * PLANES_MAX * 2^32 and cannot wrap. */
static bool lengths_fit(const struct layout *l, unsigned coded, const uint8_t *src, size_t src_len)
{
    uint64_t n_coded = (unsigned)__builtin_popcount(coded);
    uint64_t total = 2 + 4 * n_coded + l->head + l->tail + (l->size - n_coded) * l->n;

    if (total > src_len) {
        return false;
    }
    for (uint64_t i = 0; i < n_coded; i++) {
        uint32_t len;

        memcpy(&len, src + 2 + 4 * i, 4);
        total += len;
    }
    return total == src_len;
}

static enum hdt_status planes_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                     struct hdt_error *err)
{
    struct layout l = layout_of(io->dtype, io->offset, io->dst_len);
    const uint8_t *src = io->src, *planes[PLANES_MAX], *lengths = src + 2, *in;
    uint8_t *dst = io->dst, *scratch = ctx->planes;
    unsigned coded = src[1];

    if (coded == 0 || coded >> l.size != 0) {
        return broken(err, "planes that the dtype does not have");
    }
    if (l.n == 0 || !lengths_fit(&l, coded, src, io->src_len)) {
        return broken(err, "the planes' lengths do not fit the chunk");
    }
    in = lengths + 4 * (size_t)__builtin_popcount(coded);
    memcpy(dst, in, l.head);
    memcpy(dst + io->dst_len - l.tail, in + l.head, l.tail);
    in += l.head + l.tail;
    for (size_t p = 0; p < l.size; p++) {
        if (!(coded >> p & 1)) {
            planes[p] = in;
            in += l.n;
        }
    }
    for (size_t p = 0; p < l.size; p++) {
        uint32_t len;

        if (!(coded >> p & 1)) {
            continue;
        }
        memcpy(&len, lengths, 4);
        lengths += 4;
        if (plane_decode(ctx, in, len, scratch, l.n) != HDT_OK) {
            return broken(err, "a coded plane is damaged");
        }
        planes[p] = scratch;
        scratch += l.n;
        in += len;
    }
    hdt_planes_join(ctx->planes_kernels, l.size, l.rotate, planes, l.n, dst + l.head);
    return HDT_OK;
}

static enum hdt_status lossless_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                       struct hdt_error *err)
{
    const uint8_t *src = io->src;

    HDT_TRY(check_chunk(ctx, io->dst_len, err));
    if (io->src_len == 0) {
        return broken(err, "an empty chunk");
    }
    if (src[0] == FORM_PLANES && io->src_len >= 2) {
        return planes_decode(ctx, io, err);
    }
    if (src[0] != FORM_RAW || io->src_len != io->dst_len + 1) {
        return broken(err, "a form that is not known, or of another length");
    }
    if (io->dst_len > 0) {
        memcpy(io->dst, src + 1, io->dst_len);
    }
    return HDT_OK;
}

const struct hdt_codec_ops hdt_codec_lossless = {
    .id = HDT_CODEC_LOSSLESS,
    .name = "lossless",
    .help = "Byte planes, the exponents' entropy coded: every bit comes back.",
    .caps = HDT_CODEC_AT_GATEWAY | HDT_CODEC_EXACT,
    .dtypes = (1u << HDT_DTYPE_COUNT) - 1,
    .coded_dtype = HDT_DTYPE_NONE,
    .bound = lossless_bound,
    .encode = lossless_encode,
    .decode = lossless_decode,
};
