/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block quantizers: int8, int4 and fp8, in blocks of values that share a scale (min-max: and a zero
 * point). The frame holds the parameters of all blocks first, filled up to a multiple of 16 bytes,
 * then all codes:
 *
 *     | parameters 0 | parameters 1 | ... | zeros | code 0 | code 1 | ...
 *
 * Parameters first rather than beside their block, so that the codes are one run: the lossless
 * codec behind this one then sees one statistic, and wide loads of an accelerator stay aligned.
 *
 * Symmetric unless asked otherwise: activations and gradients are centred, and a zero must stay a
 * zero. Int8 has fp32 parameters, 4 bytes for 256 values; with blocks of 64 and half a byte a value
 * those of int4 would cost an eighth, hence bf16: the codes are made with the rounded scale, so
 * that nothing but a 2^-9 of the range is lost. fp8 has a float's relative precision at any scale,
 * and does with a power of two, one byte.
 *
 * Rotation (random signs, then a Walsh-Hadamard transform, as in QuaRot and TAH-Quant) spreads an
 * outlier over its block. It is orthonormal, hence the guard's sums of the rotated values are those
 * of the values.
 *
 * A tensor that holds NaN or infinity is refused, as a whole and with its count: it has no scale,
 * and training needs to know.
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"
#include "compress/quant_form.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A rotated block of 1024 has values up to 32 times as large, on the way back as well. */
#define ROTATE_LIMIT 0x1p117f

/* Values that go through memory on the stack when they must be widened or rotated: the largest
 * block, and a whole number of any. */
#define PIECE ((size_t)HDT_CODEC_BLOCK_MAX)

#define PARAMS_ALIGN ((size_t)16)

struct hdt_quant_form hdt_quant_form_of(const struct hdt_codec_spec *spec, enum hdt_codec_id id)
{
    const bool minmax = (spec->flags & HDT_CODEC_MINMAX) != 0;
    struct hdt_quant_form f = {.code_bits = 8, .rotate = (spec->flags & HDT_CODEC_ROTATE) != 0};

    switch (id) {
    case HDT_CODEC_FP8:
        f.kind = spec->flags & HDT_CODEC_E5M2 ? HDT_QUANT_E5M2 : HDT_QUANT_E4M3;
        f.params_len = 1;
        break;
    case HDT_CODEC_INT4:
        f.kind = minmax ? HDT_QUANT_I4_MINMAX : HDT_QUANT_I4;
        f.params_len = minmax ? 4 : 2;
        f.code_bits = 4;
        break;
    default:
        f.kind = minmax ? HDT_QUANT_I8_MINMAX : HDT_QUANT_I8;
        f.params_len = minmax ? 8 : 4;
        break;
    }
    f.block = spec->block ? spec->block : hdt_codec_word(id)->defaults.block;
    return f;
}

size_t hdt_quant_head_len(const struct hdt_quant_form *f, size_t n)
{
    const size_t len = (n + f->block - 1) / f->block * f->params_len;

    return (len + PARAMS_ALIGN - 1) / PARAMS_ALIGN * PARAMS_ALIGN;
}

size_t hdt_quant_codes_len(const struct hdt_quant_form *f, size_t n)
{
    return f->code_bits == 8 ? n : (n + 1) / 2;
}

static size_t quant_bound(const struct hdt_quant_form *f, enum hdt_dtype dtype, size_t plain_len)
{
    const size_t n = plain_len / hdt_dtype_size(dtype);

    return hdt_quant_head_len(f, n) + hdt_quant_codes_len(f, n);
}

/* Lengths grow with the number of values: search it. Of two numbers of int4 codes that end in the
 * same byte, the larger. */
static size_t quant_plain_len(const struct hdt_quant_form *f, enum hdt_dtype dtype,
                              size_t coded_len)
{
    size_t low = 0, high = HDT_CODEC_PLAIN_MAX / 4 + 1;

    while (high - low > 1) { /* low fits, high does not */
        const size_t middle = low + (high - low) / 2;

        if (hdt_quant_head_len(f, middle) + hdt_quant_codes_len(f, middle) <= coded_len) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return hdt_quant_head_len(f, low) + hdt_quant_codes_len(f, low) == coded_len
               ? low * hdt_dtype_size(dtype)
               : SIZE_MAX;
}

/* One call's encoder. */
struct encoder {
    const struct hdt_kernels *k;
    struct hdt_quant_form f;
    const struct hdt_random *random;
    uint8_t *params, *codes;
    struct hdt_codec_guard guard;
};

/* n floats that are the values from `first` on, whole blocks but for the last one. */
static void encode_floats(struct encoder *e, const void *src, size_t first, size_t n,
                          struct hdt_codec_guard *guard)
{
    const struct hdt_quant_in in = {
        .src = src, .n = n, .block = e->f.block, .random = e->random, .first = (uint32_t)first};

    e->k->quant_encode(e->f.kind, &in, e->params + first / e->f.block * e->f.params_len,
                       e->codes + first * e->f.code_bits / 8, guard);
}

/* The same, of floats that may be changed. What they are is reported as it was before. */
static void encode_rotated(struct encoder *e, float *x, size_t first, size_t n)
{
    struct hdt_codec_guard guard = {0};
    uint64_t n_nonfinite = 0;
    const uint32_t max_bits = e->k->abs_max((const uint8_t *)x, n, &n_nonfinite);
    float max_abs;

    memcpy(&max_abs, &max_bits, 4);
    for (size_t i = 0; max_abs >= ROTATE_LIMIT && i < n; i++) {
        n_nonfinite += fabsf(x[i]) >= ROTATE_LIMIT && isfinite(x[i]);
    }
    if (n_nonfinite == 0) {
        e->k->hadamard((uint8_t *)x, n, e->f.block, false);
        encode_floats(e, x, first, n, &guard);
    }
    guard.n = n;
    guard.n_nonfinite += n_nonfinite;
    guard.max_abs = max_abs;
    hdt_codec_guard_add(&e->guard, &guard);
}

static void encode_all(struct encoder *e, const struct hdt_codec_io *io, size_t n)
{
    const uint8_t *src = io->src;

    if (io->dtype == HDT_DTYPE_F32 && !e->f.rotate) {
        encode_floats(e, src, 0, n, &e->guard);
        return;
    }
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t len = n - i < PIECE ? n - i : PIECE;
        float x[PIECE];

        if (io->dtype == HDT_DTYPE_F32) {
            memcpy(x, src + 4 * i, 4 * len);
        } else {
            e->k->bf16_decode(src + 2 * i, len, (uint8_t *)x);
        }
        if (e->f.rotate) {
            encode_rotated(e, x, i, len);
        } else {
            encode_floats(e, x, i, len, &e->guard);
        }
    }
}

enum hdt_status hdt_quant_check_guard(const struct hdt_codec_spec *spec, enum hdt_codec_id id,
                                      const struct hdt_codec_guard *guard, struct hdt_error *err)
{
    if (guard->n_nonfinite == 0) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EINVAL,
                  "cannot quantize tensor to %s: %" PRIu64 " of %" PRIu64
                  " values are NaN or infinite%s",
                  hdt_codec_by_id(id)->name, guard->n_nonfinite, guard->n,
                  spec->flags & HDT_CODEC_ROTATE   ? ", or above 2^117"
                  : spec->flags & HDT_CODEC_MINMAX ? ", or above 2^126"
                                                   : ", or above 2^127");
    hdt_error_hint(err, "codecs none, lossless and bf16 carry such values");
    return HDT_EINVAL;
}

static enum hdt_status quant_encode(struct hdt_codec_ctx *ctx, enum hdt_codec_id id,
                                    const struct hdt_codec_io *io, size_t *coded_len,
                                    struct hdt_error *err)
{
    const size_t n = io->src_len / hdt_dtype_size(io->dtype);
    struct encoder e = {.k = ctx->kernels, .f = hdt_quant_form_of(io->spec, id), .params = io->dst};
    const size_t head = hdt_quant_head_len(&e.f, n);
    struct hdt_random random;

    if (head > 0) { /* the end of the region is filled up */
        memset(e.params + head - PARAMS_ALIGN, 0, PARAMS_ALIGN);
    }
    e.codes = e.params + head;
    if (io->spec->flags & HDT_CODEC_STOCHASTIC) {
        hdt_random_seed(&random, io->seed);
        e.random = &random;
    }
    encode_all(&e, io, n);
    if (io->guard) {
        *io->guard = e.guard;
    }
    HDT_TRY(hdt_quant_check_guard(io->spec, id, &e.guard, err));
    *coded_len = head + hdt_quant_codes_len(&e.f, n);
    return HDT_OK;
}

/* A scale is not negative (-0 is 0), a zero point any finite number. */
static bool params_are_fit(const struct hdt_quant_form *f, const uint8_t *params)
{
    uint32_t scale, zero = 0;
    uint16_t half[2] = {0, 0};

    switch (f->params_len) {
    case 1:
        return params[0] < 255;
    case 2:
    case 4:
        if (f->code_bits == 4) {
            memcpy(half, params, f->params_len);
            scale = (uint32_t)half[0] << 16;
            zero = (uint32_t)half[1] << 16;
            break;
        }
        memcpy(&scale, params, 4);
        break;
    default:
        memcpy(&scale, params, 4);
        memcpy(&zero, params + 4, 4);
    }
    return (scale < 0x7f800000u || scale == 0x80000000u) && (zero & 0x7fffffffu) < 0x7f800000u;
}

enum hdt_status hdt_quant_refuse_block(enum hdt_codec_id id, size_t block, struct hdt_error *err)
{
    return hdt_error_set(err, HDT_EPROTO,
                         "codec %s: the scale of block %zu is negative or not finite",
                         hdt_codec_by_id(id)->name, block);
}

static enum hdt_status check_params(enum hdt_codec_id id, const struct hdt_quant_form *f,
                                    const uint8_t *params, size_t n, struct hdt_error *err)
{
    for (size_t b = 0; b < (n + f->block - 1) / f->block; b++) {
        if (!params_are_fit(f, params + b * f->params_len)) {
            return hdt_quant_refuse_block(id, b, err);
        }
    }
    return HDT_OK;
}

/* Rotated blocks are turned back in memory on the stack, then go where they belong. */
static void decode_rotated(const struct hdt_kernels *k, const struct hdt_quant_form *f,
                           enum hdt_emit emit, const uint8_t *params, const uint8_t *codes,
                           size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t len = n - i < PIECE ? n - i : PIECE;
        float room[PIECE];
        uint8_t *x = (uint8_t *)room;

        k->quant_decode(f->kind, HDT_EMIT_F32, params + i / f->block * f->params_len,
                        codes + i * f->code_bits / 8, len, f->block, x);
        k->hadamard(x, len, f->block, true);
        switch (emit) {
        case HDT_EMIT_F32:
            memcpy(dst + 4 * i, x, 4 * len);
            break;
        case HDT_EMIT_ADD:
            k->add(dst + 4 * i, x, len, dst + 4 * i);
            break;
        default:
            k->bf16_encode(x, len, dst + 2 * i);
            break;
        }
    }
}

static enum hdt_status quant_decode(struct hdt_codec_ctx *ctx, enum hdt_codec_id id,
                                    const struct hdt_codec_io *io, struct hdt_error *err)
{
    const size_t n = io->dst_len / hdt_dtype_size(io->dtype);
    const struct hdt_quant_form f = hdt_quant_form_of(io->spec, id);
    const uint8_t *params = io->src, *codes = params + hdt_quant_head_len(&f, n);
    const enum hdt_emit emit = io->dtype == HDT_DTYPE_BF16 ? HDT_EMIT_BF16
                               : io->add                   ? HDT_EMIT_ADD
                                                           : HDT_EMIT_F32;

    HDT_TRY(check_params(id, &f, params, n, err));
    if (f.rotate) {
        decode_rotated(ctx->kernels, &f, emit, params, codes, n, io->dst);
    } else {
        ctx->kernels->quant_decode(f.kind, emit, params, codes, n, f.block, io->dst);
    }
    return HDT_OK;
}

/* The functions of one codec's table: those above, with its number. */
#define QUANT_CODEC(name_, id_)                                                                    \
 static size_t name_##_bound(const struct hdt_codec_spec *spec, enum hdt_dtype dtype,              \
                             size_t plain_len)                                                     \
 {                                                                                                 \
  const struct hdt_quant_form f = hdt_quant_form_of(spec, id_);                                    \
                                                                                                   \
  return quant_bound(&f, dtype, plain_len);                                                        \
 }                                                                                                 \
 static size_t name_##_plain_len(const struct hdt_codec_spec *spec, enum hdt_dtype dtype,          \
                                 size_t coded_len)                                                 \
 {                                                                                                 \
  const struct hdt_quant_form f = hdt_quant_form_of(spec, id_);                                    \
                                                                                                   \
  return quant_plain_len(&f, dtype, coded_len);                                                    \
 }                                                                                                 \
 static enum hdt_status name_##_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,   \
                                       size_t *coded_len, struct hdt_error *err)                   \
 {                                                                                                 \
  return quant_encode(ctx, id_, io, coded_len, err);                                               \
 }                                                                                                 \
 static enum hdt_status name_##_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,   \
                                       struct hdt_error *err)                                      \
 {                                                                                                 \
  return quant_decode(ctx, id_, io, err);                                                          \
 }

QUANT_CODEC(int8, HDT_CODEC_INT8)
QUANT_CODEC(int4, HDT_CODEC_INT4)
QUANT_CODEC(fp8, HDT_CODEC_FP8)

const struct hdt_codec_ops hdt_codec_int8 = {
    .id = HDT_CODEC_INT8,
    .name = "int8",
    .help = "Values as 8-bit integers, a scale for each 256: a quarter of the bytes of fp32.",
    .caps = HDT_CODEC_AT_WORKER | HDT_CODEC_ADDS,
    .dtypes = 1u << HDT_DTYPE_F32 | 1u << HDT_DTYPE_BF16,
    .coded_dtype = HDT_DTYPE_I8,
    .bound = int8_bound,
    .plain_len = int8_plain_len,
    .encode = int8_encode,
    .decode = int8_decode,
};

const struct hdt_codec_ops hdt_codec_int4 = {
    .id = HDT_CODEC_INT4,
    .name = "int4",
    .help = "Values as 4-bit integers, a scale for each 64: 0.53 bytes a value.",
    .caps = HDT_CODEC_AT_WORKER | HDT_CODEC_ADDS,
    .dtypes = 1u << HDT_DTYPE_F32 | 1u << HDT_DTYPE_BF16,
    .coded_dtype = HDT_DTYPE_U8,
    .bound = int4_bound,
    .plain_len = int4_plain_len,
    .encode = int4_encode,
    .decode = int4_decode,
};

const struct hdt_codec_ops hdt_codec_fp8 = {
    .id = HDT_CODEC_FP8,
    .name = "fp8",
    .help =
        "Values as 8-bit floats, E4M3 or E5M2, a power of two for each 128: 1.01 bytes a value.",
    .caps = HDT_CODEC_AT_WORKER | HDT_CODEC_ADDS,
    .dtypes = 1u << HDT_DTYPE_F32 | 1u << HDT_DTYPE_BF16,
    .coded_dtype = HDT_DTYPE_U8,
    .bound = fp8_bound,
    .plain_len = fp8_plain_len,
    .encode = fp8_encode,
    .decode = fp8_decode,
};
