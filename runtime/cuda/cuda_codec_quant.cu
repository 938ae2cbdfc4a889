/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block quantizers: int8, int4 and fp8, with or without rotation. A warp takes 1024 values, finds
 * the extent of each block by shuffles, and has lane b work out the numbers of block b: divisions
 * once a block, not once a thread.
 *
 * Nearly all pieces are whole, rounded to nearest and without values that are NaN, infinite or
 * tiny: encode_fast. Others, which it finds out on its way, are done from the beginning by
 * encode_any, never inlined, so that what is rare takes no registers.
 */
#include "runtime/cuda/cuda_codec_blocks.cuh"
#include "runtime/cuda/cuda_codecs.h"

using namespace hdt_codec;

namespace
{

constexpr uint32_t TINY_BITS = 0x08800000;   /* 2^-110, HDT_QUANT_ABS_MIN */
constexpr uint32_t ROTATE_BITS = 0x7a000000; /* 2^117 */
constexpr int PIECE_BLOCKS = 32;             /* of a piece at most */

struct quant_job {
    source in;
    unsigned log2_block;
    hdt_random random;
    bool is_random;
    uint8_t *params, *codes;
    size_t head_len;
    scratch *s;
    hdt_device_report *report;
};

/* What the values of a block need; inv 0: they are coded as zeros. */
struct numbers {
    float inv, zero, ref_factor, err_weight, ref_weight;
};

/* Of the blocks of a warp's piece. */
struct extents {
    uint32_t max_bits[PIECE_BLOCKS];
    float min[PIECE_BLOCKS], max[PIECE_BLOCKS];
    numbers of[PIECE_BLOCKS];
};

__device__ __forceinline__ unsigned block_of(int j, unsigned log2_block)
{
    return (static_cast<unsigned>(j) * WARP + lane_id()) >> (log2_block - 2);
}

/* Whether this thread's four of step j are the first of their block. */
__device__ __forceinline__ bool is_first(int j, unsigned log2_block)
{
    return ((static_cast<unsigned>(j) * STEP_VALUES + 4 * lane_id()) & ((1u << log2_block) - 1)) ==
           0;
}

/* Before a piece is rotated: its largest magnitude, and how many values have no coded form, this
 * thread's. False for the whole warp when there are any. */
__device__ __forceinline__ bool rotate_look(const float x[4 * STEPS], tally *t)
{
    uint32_t most = 0;

#pragma unroll
    for (int i = 0; i < 4 * STEPS; i++) {
        most = max(most, bits_of(x[i]) & ABS_BITS);
    }
    most = __reduce_max_sync(ALL, most);
    if (most < ROTATE_BITS) {
        t->max_bits = max(t->max_bits, most);
        return true;
    }
    for (int i = 0; i < 4 * STEPS; i++) {
        const uint32_t a = bits_of(x[i]) & ABS_BITS;

        t->n_bad += a >= ROTATE_BITS;
        t->max_bits = a < INF_BITS ? max(t->max_bits, a) : t->max_bits;
    }
    return false;
}

/* ---- extents ---- */

/* Over the threads and steps that share a block: it has whole steps, or a power of two of lanes. */
template <class T, class Op>
__device__ __forceinline__ void reduce_blocks(T m[STEPS], unsigned log2_block, Op op)
{
    for (unsigned mask = 1; mask < WARP && 4 * mask < 1u << log2_block; mask *= 2) {
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            m[j] = op(m[j], __shfl_xor_sync(ALL, m[j], mask));
        }
    }
#pragma unroll
    for (int h = 1; h < STEPS; h *= 2) {
        if (STEP_VALUES * h < 1 << log2_block) {
#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                if (!(j & h)) {
                    m[j] = m[j + h] = op(m[j], m[j + h]);
                }
            }
        }
    }
}

/* Least and largest of each block; values beyond the tensor's end do not count. */
template <bool IS_WHOLE>
__device__ __forceinline__ void extents_minmax(const float x[4 * STEPS], size_t at, size_t n,
                                               unsigned log2_block, extents *e)
{
    float low[STEPS], high[STEPS];

#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        low[j] = float_of(INF_BITS);
        high[j] = -low[j];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (IS_WHOLE || at + j * STEP_VALUES + c < n) {
                low[j] = fminf(low[j], x[4 * j + c]);
                high[j] = fmaxf(high[j], x[4 * j + c]);
            }
        }
    }
    reduce_blocks(low, log2_block, [](float a, float b) { return fminf(a, b); });
    reduce_blocks(high, log2_block, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        if (is_first(j, log2_block)) {
            e->min[block_of(j, log2_block)] = low[j];
            e->max[block_of(j, log2_block)] = high[j];
        }
    }
}

/* Some block has values without a coded form: count them, this thread's, and make the block zeros.
 * Returns the largest finite magnitude of the piece. */
__device__ __forceinline__ uint32_t refuse(float x[4 * STEPS], const uint32_t most[STEPS],
                                           uint32_t limit, tally *t)
{
    uint32_t finite = 0;

#pragma unroll
    for (int i = 0; i < 4 * STEPS; i++) {
        const uint32_t a = bits_of(x[i]) & ABS_BITS;

        t->n_bad += a >= limit;
        finite = a < INF_BITS ? max(finite, a) : finite;
        x[i] = most[i / 4] >= limit ? 0.0f : x[i];
    }
    return __reduce_max_sync(ALL, finite);
}

/* Blocks that are coded as zeros though they hold some tiny values. */
__device__ __forceinline__ void sums_tiny(const float x[4 * STEPS], const uint32_t most[STEPS],
                                          tally *t)
{
#pragma unroll
    for (int i = 0; i < 4 * STEPS; i++) {
        const double wide = most[i / 4] < TINY_BITS ? static_cast<double>(x[i]) : 0.0;

        t->err += wide * wide;
        t->ref += wide * wide;
    }
}

/* ---- parameters: compress/kernels_quant.h, hdt_quant_block_make ---- */

template <bool IS_HALF> __device__ __forceinline__ float round_scale(float scale)
{
    return IS_HALF ? float_of(bf16_round(bits_of(scale)) << 16) : scale;
}

template <hdt_quant_kind KIND>
__device__ __forceinline__ void make_minmax(uint32_t max_bits, float min, float max,
                                            uint8_t *params, numbers *b, float *err_unit,
                                            float *ref_unit)
{
    using f = facts<KIND>;
    const float max_abs = float_of(max_bits);
    float zero = __fadd_rn(min, 0.0f), range, scale;

    if (f::IS_I4) {
        const uint32_t u = bits_of(zero);

        zero = float_of((u >> 31 ? u + 0xffff : u) & 0xffff0000);
    }
    range = __fsub_rn(max, zero);
    range = range < float_of(TINY_BITS) ? 0.0f : range;
    scale = round_scale<f::IS_I4>(__fdiv_rn(range, f::HI));
    if (f::IS_I4) {
        *reinterpret_cast<uint32_t *>(params) = bits_of(scale) >> 16 | bits_of(zero);
    } else {
        *reinterpret_cast<float2 *>(params) = make_float2(scale, zero);
    }
    b->zero = zero;
    b->inv = range > 0.0f ? (f::IS_I4 ? __fdiv_rn(1.0f, scale) : __fdiv_rn(f::HI, range)) : 0.0f;
    b->ref_factor = __fdiv_rn(1.0f, max_abs);
    *err_unit = scale;
    *ref_unit = max_abs;
}

template <hdt_quant_kind KIND> __device__ __forceinline__ void params_zero(uint8_t *params)
{
    for (int i = 0; i < facts<KIND>::PARAMS_LEN; i++) {
        params[i] = 0;
    }
}

template <hdt_quant_kind KIND>
__device__ __forceinline__ numbers make_block(uint32_t max_bits, float min, float max, float factor,
                                              uint8_t *params)
{
    using f = facts<KIND>;
    numbers b = {};
    float err_unit, ref_unit;

    if (max_bits < TINY_BITS || max_bits >= f::LIMIT) {
        params_zero<KIND>(params);
        return b;
    }
    if (f::IS_F8) {
        const uint32_t beyond = (max_bits & 0x7fffff) > 0x600000;
        const uint32_t exponent = (max_bits >> 23) - f::EXP_MAX + beyond;

        params[0] = static_cast<uint8_t>(exponent);
        b.inv = float_of((254 - exponent) << 23);
        err_unit = ref_unit = float_of(exponent << 23);
    } else if (f::IS_MINMAX) {
        make_minmax<KIND>(max_bits, min, max, params, &b, &err_unit, &ref_unit);
    } else {
        const float scale = round_scale<f::IS_I4>(__fdiv_rn(float_of(max_bits), f::HI));

        if (f::IS_I4) {
            *reinterpret_cast<uint16_t *>(params) = static_cast<uint16_t>(bits_of(scale) >> 16);
        } else {
            *reinterpret_cast<float *>(params) = scale;
        }
        b.inv = f::IS_I4 ? __fdiv_rn(1.0f, scale) : __fdiv_rn(f::HI, float_of(max_bits));
        err_unit = ref_unit = scale;
    }
    err_unit *= factor;
    ref_unit *= factor;
    b.err_weight = err_unit * err_unit;
    b.ref_weight = ref_unit * ref_unit;
    return b;
}

/* ---- codes ---- */

/* Four codes as one word, of 8 or 4 bits each, and the sums of what they cost. */
template <hdt_quant_kind KIND>
__device__ __forceinline__ uint32_t int_codes(const float x[4], const numbers &b,
                                              const float dither[4], bool is_random, float e[4],
                                              float r[4])
{
    using f = facts<KIND>;
    float q[4];

#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float t =
            f::IS_MINMAX ? __fmul_rn(__fsub_rn(x[c], b.zero), b.inv) : __fmul_rn(x[c], b.inv);

        q[c] = __fsub_rn(__fadd_rn(is_random ? __fadd_rn(t, dither[c]) : t, MAGIC), MAGIC);
        if (is_random) {
            q[c] = fminf(fmaxf(q[c], f::LO), f::HI);
        }
        e[c] = t - q[c];
        r[c] = f::IS_MINMAX && b.ref_factor != 0.0f ? x[c] * b.ref_factor : t;
    }
    if (f::IS_I4) { /* whole numbers below 2^24: exact in any order */
        const float all = fmaf(4096.0f, q[3], fmaf(256.0f, q[2], fmaf(16.0f, q[1], q[0])));

        return bits_of(all + (8388608.0f + f::BIAS * 0x1111)) & 0xffff;
    }
    const uint32_t low = __byte_perm(bits_of(q[0] + MAGIC), bits_of(q[1] + MAGIC), 0x0040);
    const uint32_t high = __byte_perm(bits_of(q[2] + MAGIC), bits_of(q[3] + MAGIC), 0x0040);

    return __byte_perm(low, high, 0x5410);
}

template <hdt_quant_kind KIND>
__device__ __forceinline__ uint32_t f8_codes(const float x[4], const numbers &b,
                                             const float dither[4], bool is_random, float e[4],
                                             float r[4])
{
    using f = facts<KIND>;
    uint32_t all = 0;

#pragma unroll
    for (int c = 0; c < 4; c++) {
        const uint32_t u = bits_of(__fmul_rn(x[c], b.inv));
        const float a = float_of(u & ABS_BITS);
        const small_float s =
            small_float_round(a, f::DIGITS, f::EXP_MIN, is_random ? dither[c] : 0.0f);

        all |= ((u >> 24 & 0x80) | s.code) << (8 * c);
        e[c] = a - s.value;
        r[c] = a;
    }
    return b.inv > 0.0f ? all : 0;
}

template <hdt_quant_kind KIND>
__device__ __forceinline__ void store_codes(uint8_t *codes, size_t i, size_t n, uint32_t all)
{
    if (facts<KIND>::IS_I4) {
        if (i + 4 <= n) {
            *reinterpret_cast<uint16_t *>(codes + i / 2) = static_cast<uint16_t>(all);
        } else if (i < n) {
            all &= (1u << (4 * (n - i))) - 1;
            codes[i / 2] = static_cast<uint8_t>(all);
            if (i + 2 < n) {
                codes[i / 2 + 1] = static_cast<uint8_t>(all >> 8);
            }
        }
        return;
    }
    if (i + 4 <= n) {
        *reinterpret_cast<uint32_t *>(codes + i) = all;
        return;
    }
    for (int c = 0; c < 3; c++) {
        if (i + c < n) {
            codes[i + c] = static_cast<uint8_t>(all >> (8 * c));
        }
    }
}

/* Costs of a piece's codes, in units of its largest magnitude. */
struct costs {
    float err, ref;
};

/* Codes of a piece whose blocks' numbers are known. IS_FAST: no value is beyond the end, none is
 * rounded by chance. */
template <hdt_quant_kind KIND, bool IS_FAST>
__device__ __forceinline__ costs encode_codes(const quant_job &job, const float x[4 * STEPS],
                                              size_t at, const extents *ext)
{
    costs sum = {0, 0};

#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const numbers b = ext->of[block_of(j, job.log2_block)];
        const size_t i = at + j * STEP_VALUES;
        const bool is_random = !IS_FAST && job.is_random;
        float dither[4] = {}, e[4], r[4], y[4], err4 = 0, ref4 = 0;
        uint32_t all;

#pragma unroll
        for (int c = 0; c < 4; c++) { /* beyond the end: code 0 */
            y[c] = IS_FAST || i + c < job.in.n ? x[4 * j + c] : b.zero;
            if (is_random) {
                dither[c] = random_dither(random_bits(job.random, static_cast<uint32_t>(i) + c));
            }
        }
        if (facts<KIND>::IS_F8) {
            all = f8_codes<KIND>(y, b, dither, is_random, e, r);
        } else {
            all = int_codes<KIND>(y, b, dither, is_random, e, r);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (IS_FAST || i + c < job.in.n) {
                err4 = fmaf(e[c], e[c], err4);
                ref4 = fmaf(r[c], r[c], ref4);
            }
        }
        sum.err = fmaf(err4, b.err_weight, sum.err);
        sum.ref = fmaf(ref4, b.ref_weight, sum.ref);
        store_codes<KIND>(job.codes, i, IS_FAST ? SIZE_MAX : job.in.n, all);
    }
    return sum;
}

/* Lane b: the numbers of block b, from its extent, and its parameters. */
template <hdt_quant_kind KIND>
__device__ __forceinline__ void make_blocks(const quant_job &job, size_t piece, unsigned n_blocks,
                                            float factor, extents *ext)
{
    using f = facts<KIND>;
    const unsigned b = lane_id();
    const size_t number = ((piece * PIECE) >> job.log2_block) + b;

    __syncwarp();
    if (b < n_blocks) {
        ext->of[b] = make_block<KIND>(ext->max_bits[b], f::IS_MINMAX ? ext->min[b] : 0,
                                      f::IS_MINMAX ? ext->max[b] : 0, factor,
                                      job.params + number * f::PARAMS_LEN);
    } else {
        ext->of[b] = {};
    }
    __syncwarp();
}

/* One piece of any kind, rotated already where that is asked for. */
template <hdt_quant_kind KIND>
__device__ __forceinline__ void encode_piece(const quant_job &job, float x[4 * STEPS], size_t piece,
                                             bool is_looked_at, extents *ext, tally *t)
{
    using f = facts<KIND>;
    const size_t at = piece * PIECE + 4 * lane_id();
    const size_t left = job.in.n - piece * PIECE;
    const unsigned len = static_cast<unsigned>(left < PIECE ? left : PIECE);
    uint32_t most[STEPS], piece_max = 0, tiny = 0;
    double weight;
    float factor;
    costs sum;

#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        most[j] = max(max(bits_of(x[4 * j]) & ABS_BITS, bits_of(x[4 * j + 1]) & ABS_BITS),
                      max(bits_of(x[4 * j + 2]) & ABS_BITS, bits_of(x[4 * j + 3]) & ABS_BITS));
    }
    reduce_blocks(most, job.log2_block, [](uint32_t a, uint32_t b) { return max(a, b); });
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        piece_max = max(piece_max, most[j]);
        tiny |= most[j] - 1 < TINY_BITS - 1;
        if (is_first(j, job.log2_block)) {
            ext->max_bits[block_of(j, job.log2_block)] = most[j];
        }
    }
    if (f::IS_MINMAX) {
        extents_minmax<false>(x, at, job.in.n, job.log2_block, ext);
    }
    piece_max = __reduce_max_sync(ALL, piece_max);
    if (piece_max >= f::LIMIT) {
        piece_max = refuse(x, most, f::LIMIT, t);
    }
    if (!is_looked_at) {
        t->max_bits = max(t->max_bits, piece_max);
    }
    if (tiny) {
        sums_tiny(x, most, t);
    }
    factor = piece_factor(piece_max, &weight);
    make_blocks<KIND>(job, piece, (len + (1u << job.log2_block) - 1) >> job.log2_block, factor,
                      ext);
    sum = encode_codes<KIND, false>(job, x, at, ext);
    t->err += static_cast<double>(sum.err) * weight;
    t->ref += static_cast<double>(sum.ref) * weight;
}

/* One piece, from its beginning; returns what it adds to the guard. */
template <hdt_quant_kind KIND, bool IS_ROTATED>
__device__ __noinline__ tally encode_any(const quant_job &job, size_t piece, extents *ext,
                                         float *room)
{
    float x[4 * STEPS];
    tally t = {};

    piece_load(job.in, piece, x);
    if (IS_ROTATED) {
        if (!rotate_look(x, &t)) {
            return t;
        }
        rotate_any(x, piece, job.in.n, job.log2_block, false, room);
    }
    encode_piece<KIND>(job, x, piece, IS_ROTATED, ext, &t);
    __syncwarp();
    return t;
}

/* Largest magnitude over the warp; NaNs do not count. */
__device__ __forceinline__ uint32_t warp_max(float most)
{
    return __reduce_max_sync(ALL, bits_of(most));
}

/* A whole piece that is rounded to nearest; false, with nothing of use written and *t as it was,
 * when it holds what only encode_any knows: a NaN shows in the sum of errors. */
template <hdt_quant_kind KIND, bool IS_ROTATED>
__device__ __forceinline__ bool encode_fast(const quant_job &job, float x[4 * STEPS], size_t piece,
                                            extents *ext, tally *t)
{
    using f = facts<KIND>;
    const size_t at = piece * PIECE + 4 * lane_id();
    float most[STEPS], all = 0;
    uint32_t piece_max, plain_max = 0;
    bool is_fit = true;
    double weight;
    float factor;
    costs sum;

    if (IS_ROTATED) {
#pragma unroll
        for (int i = 0; i < 4 * STEPS; i++) {
            all = fmaxf(all, fabsf(x[i]));
        }
        plain_max = warp_max(all);
        if (plain_max >= ROTATE_BITS) {
            return false;
        }
        all = 0;
        rotate_piece(x, job.log2_block, false);
    }
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        most[j] = fmaxf(fmaxf(fabsf(x[4 * j]), fabsf(x[4 * j + 1])),
                        fmaxf(fabsf(x[4 * j + 2]), fabsf(x[4 * j + 3])));
    }
    reduce_blocks(most, job.log2_block, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        all = fmaxf(all, most[j]);
        is_fit = is_fit && (most[j] == 0.0f || bits_of(most[j]) >= TINY_BITS);
        if (is_first(j, job.log2_block)) {
            ext->max_bits[block_of(j, job.log2_block)] = bits_of(most[j]);
        }
    }
    if (f::IS_MINMAX) {
        extents_minmax<true>(x, at, job.in.n, job.log2_block, ext);
    }
    piece_max = warp_max(all);
    if (!__all_sync(ALL, is_fit) || piece_max >= f::LIMIT) {
        return false;
    }
    factor = piece_factor(piece_max, &weight);
    make_blocks<KIND>(job, piece, PIECE >> job.log2_block, factor, ext);
    sum = encode_codes<KIND, true>(job, x, at, ext);
    if (__any_sync(ALL, sum.err != sum.err)) {
        return false;
    }
    t->max_bits = max(t->max_bits, IS_ROTATED ? plain_max : piece_max);
    t->err += static_cast<double>(sum.err) * weight;
    t->ref += static_cast<double>(sum.ref) * weight;
    return true;
}

/* The zeros behind the parameters: fewer than 16, the last warp's affair. */
__device__ __forceinline__ void fill_head(const quant_job &job, int params_len)
{
    const size_t n_blocks = (job.in.n + (size_t{1} << job.log2_block) - 1) >> job.log2_block;
    const size_t at = n_blocks * params_len + lane_id();

    if (at < job.head_len) {
        job.params[at] = 0;
    }
}

template <hdt_quant_kind KIND, bool IS_ROTATED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    quant_encode_kernel(const __grid_constant__ quant_job job)
{
    __shared__ extents of_warp[WARPS];
    __shared__ float room[IS_ROTATED ? PIECE : 1]; /* one warp has the last piece */
    const size_t end = (job.in.n + PIECE - 1) / PIECE;
    const size_t n_fast = job.is_random ? 0 : job.in.n / PIECE;
    extents *ext = &of_warp[warp_id()];
    tally t = {};

    for (size_t p = blockIdx.x * WARPS + warp_id(); p < end; p += gridDim.x * WARPS) {
        bool is_done = false;

        if (p == end - 1) {
            fill_head(job, facts<KIND>::PARAMS_LEN);
        }
        if (p < n_fast) {
            float x[4 * STEPS];

            piece_load_whole(job.in, p, x);
            is_done = encode_fast<KIND, IS_ROTATED>(job, x, p, ext, &t);
        }
        if (!is_done) {
            t = tally_merge(t, encode_any<KIND, IS_ROTATED>(job, p, ext, room));
        }
        __syncwarp();
    }
    report_guard(&t, job.s, job.report, job.in.n);
}

/* ---- launches ---- */

template <hdt_quant_kind KIND>
cudaError_t encode_launch(cudaStream_t stream, const quant_job &job, bool rotate)
{
    unsigned n_blocks;
    const cudaError_t code = grid_size(n_pieces(job.in.n), WARPS, BLOCKS_PER_SM, &n_blocks);

    if (code != cudaSuccess) {
        return code;
    }
    if (rotate) {
        quant_encode_kernel<KIND, true><<<n_blocks, THREADS, 0, stream>>>(job);
    } else {
        quant_encode_kernel<KIND, false><<<n_blocks, THREADS, 0, stream>>>(job);
    }
    return cudaGetLastError();
}

} // namespace

cudaError_t hdt_cuda_codec_quant_encode(cudaStream_t stream, const struct hdt_device_quant *q,
                                        const struct hdt_device_in *in, void *dst)
{
    quant_job job = {};

    job.in = {in->src, in->dtype == HDT_DTYPE_BF16, in->n};
    job.log2_block = log2_of(q->block);
    job.is_random = in->random != nullptr;
    job.random = in->random ? *in->random : hdt_random{};
    job.params = static_cast<uint8_t *>(dst);
    job.codes = job.params + q->head_len;
    job.head_len = q->head_len;
    job.s = static_cast<scratch *>(in->scratch);
    job.report = in->report;
    switch (q->kind) {
    case HDT_QUANT_I8:
        return encode_launch<HDT_QUANT_I8>(stream, job, q->rotate);
    case HDT_QUANT_I8_MINMAX:
        return encode_launch<HDT_QUANT_I8_MINMAX>(stream, job, q->rotate);
    case HDT_QUANT_I4:
        return encode_launch<HDT_QUANT_I4>(stream, job, q->rotate);
    case HDT_QUANT_I4_MINMAX:
        return encode_launch<HDT_QUANT_I4_MINMAX>(stream, job, q->rotate);
    case HDT_QUANT_E4M3:
        return encode_launch<HDT_QUANT_E4M3>(stream, job, q->rotate);
    case HDT_QUANT_E5M2:
        return encode_launch<HDT_QUANT_E5M2>(stream, job, q->rotate);
    default:
        return cudaErrorInvalidValue;
    }
}
