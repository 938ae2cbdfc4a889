/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Top-k, as compress/topk.h defines it: a thread block for each 4096 values, 16 of them in the
 * registers of each thread. The k-th largest magnitude is found by bisection over its bits, which
 * is counting alone and stops early when exactly k values reach the bound; what is sent is then
 * marked in a bit map, whose running counts give each value its place.
 */
#include "runtime/cuda/cuda_codec_math.cuh"
#include "runtime/cuda/cuda_codecs.h"

using namespace hdt_codec;

namespace
{

constexpr int BLOCK = 4096; /* HDT_SPARSE_BLOCK */
constexpr int MINE = BLOCK / THREADS;
constexpr int GROUPS = MINE / 4; /* of four values that stand together */
constexpr int WORDS = BLOCK / 32;
constexpr int K_MAX = BLOCK / HDT_TOPK_KEEP_MIN;
constexpr int CODED_WORDS = 1280; /* the longest coded block: 512 + 256 + 4096 bytes, and some */
constexpr int HEAD = 4;           /* bytes of low and step */
constexpr int TOPK_BLOCKS_PER_SM = 5;

struct topk_job {
    hdt_topk_layout whole, rest;
    size_t whole_len; /* bytes */
    unsigned bits;
    size_t n;
    const float *src;
    float *residual;
    uint8_t *dst;
    scratch *s;
    hdt_device_report *report;
};

struct room {
    uint32_t chosen[WORDS], ties[WORDS];
    uint32_t before[WORDS]; /* running counts of the map in use */
    uint32_t counts[2][WARPS];
    float values[K_MAX]; /* that are sent; then what the receiver will see */
    uint32_t coded[CODED_WORDS];
    double sums[2][WARPS];
    uint32_t low, step; /* bf16 */
};

/* Value 4 g + e of a thread is value 1024 g + 4 thread + e of the block. */
__device__ __forceinline__ int position_of(int i)
{
    return i / 4 * (4 * THREADS) + 4 * static_cast<int>(threadIdx.x) + i % 4;
}

/* ---- choosing ---- */

/* Sum over the block; `round` alternates, so that one barrier a call is enough. */
__device__ __forceinline__ uint32_t block_count(uint32_t mine, room *w, int round)
{
    uint32_t all = 0;

    mine = __reduce_add_sync(ALL, mine);
    if (lane_id() == 0) {
        w->counts[round & 1][warp_id()] = mine;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        all += w->counts[round & 1][i];
    }
    return all;
}

/* A bound that at least k magnitudes reach; *ties: how many of those that are equal to it are sent,
 * UINT32_MAX: all. */
__device__ uint32_t find_bound(const uint32_t m[MINE], uint32_t k, room *w, uint32_t *ties)
{
    uint32_t found = 0, above = 0;

    for (int bit = 30; bit >= 0; bit--) {
        const uint32_t next = found | 1u << bit;
        uint32_t n = 0;

#pragma unroll
        for (int i = 0; i < MINE; i++) {
            n += m[i] >= next;
        }
        n = block_count(n, w, bit);
        if (n == k) {
            *ties = UINT32_MAX;
            return next;
        }
        if (n > k) {
            found = next;
        } else {
            above = n; /* at least `next`, which in the end is found + 1 */
        }
    }
    *ties = k - above;
    return found;
}

/* A map from each thread's bits, bit i for its value i; running counts into w->before. */
__device__ void map_make(uint32_t mine, uint32_t map[WORDS], room *w)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        uint32_t word = (mine >> (4 * g) & 0xf) << (threadIdx.x % 8 * 4);

        word |= __shfl_xor_sync(ALL, word, 1);
        word |= __shfl_xor_sync(ALL, word, 2);
        word |= __shfl_xor_sync(ALL, word, 4);
        if (threadIdx.x % 8 == 0) {
            map[g * (THREADS / 8) + threadIdx.x / 8] = word;
        }
    }
    __syncthreads();
    if (warp_id() == 0) {
        uint32_t count[WORDS / WARP], sum = 0, upto;

#pragma unroll
        for (int i = 0; i < WORDS / WARP; i++) {
            count[i] = sum;
            sum += __popc(map[lane_id() * (WORDS / WARP) + i]);
        }
        upto = sum;
        for (int step = 1; step < WARP; step *= 2) {
            const uint32_t other = __shfl_up_sync(ALL, upto, step);

            upto += lane_id() >= static_cast<unsigned>(step) ? other : 0;
        }
#pragma unroll
        for (int i = 0; i < WORDS / WARP; i++) {
            w->before[lane_id() * (WORDS / WARP) + i] = upto - sum + count[i];
        }
    }
    __syncthreads();
}

/* How many marked positions come before this one. */
__device__ __forceinline__ uint32_t rank_of(int position, const uint32_t map[WORDS], const room *w)
{
    return w->before[position / 32] + __popc(map[position / 32] & ((1u << (position % 32)) - 1));
}

/* The bits of this thread's values that are sent; the map and its counts are in *w. */
__device__ uint32_t choose(const float r[MINE], uint32_t k, room *w)
{
    uint32_t m[MINE], mine = 0, tied = 0, ties, bound;

#pragma unroll
    for (int i = 0; i < MINE; i++) {
        m[i] = bits_of(r[i]) & ABS_BITS;
    }
    bound = find_bound(m, k, w, &ties);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        mine |= static_cast<uint32_t>(m[i] > bound) << i;
        tied |= static_cast<uint32_t>(m[i] == bound) << i;
    }
    if (ties == UINT32_MAX) {
        mine |= tied;
    } else {
        map_make(tied, w->ties, w);
        for (int i = 0; i < MINE; i++) {
            if ((tied >> i & 1) && rank_of(position_of(i), w->ties, w) < ties) {
                mine |= 1u << i;
            }
        }
        __syncthreads();
    }
    map_make(mine, w->chosen, w);
    return mine;
}

/* ---- values: compress/sparse_values.c ---- */

__device__ __forceinline__ float wide(uint32_t h)
{
    return float_of(h << 16);
}

__device__ __forceinline__ uint32_t bf16_nearest(float x)
{
    const uint32_t u = bits_of(x), h = (u + 0x7fff + (u >> 16 & 1)) >> 16;

    return (h & 0x7fff) == 0x7f80 ? h - 1 : h;
}

__device__ __forceinline__ float level(uint32_t low, uint32_t step, uint32_t c)
{
    return __fadd_rn(wide(low), __fmul_rn(static_cast<float>(c), wide(step)));
}

__device__ __forceinline__ double magnitude(float x)
{
    return fabs(static_cast<double>(x));
}

/* Means of the magnitudes up to and above the mean of all, in the order of the values. */
__device__ void two_means(const float *values, uint32_t k, double *low, double *high)
{
    double all = 0, sums[2] = {0, 0}, mean;
    uint32_t n_high = 0;

    for (uint32_t j = 0; j < k; j++) {
        all = __dadd_rn(all, magnitude(values[j]));
    }
    mean = __ddiv_rn(all, static_cast<double>(k));
    for (uint32_t j = 0; j < k; j++) {
        const double m = magnitude(values[j]);
        const bool above = m > mean;

        sums[0] = __dadd_rn(sums[0], above ? 0 : m);
        sums[1] = __dadd_rn(sums[1], above ? m : 0);
        n_high += above;
    }
    *low = n_high < k ? __ddiv_rn(sums[0], static_cast<double>(k - n_high)) : mean;
    *high = n_high > 0 ? __ddiv_rn(sums[1], static_cast<double>(n_high)) : mean;
}

/* By the first warp: w->low and w->step of the k values. */
__device__ void make_levels(room *w, uint32_t k, unsigned bits)
{
    const uint32_t n = 1u << (bits - 1);
    uint32_t least = ABS_BITS, most = 0;
    double low, high, step;

    if (bits != 2) {
        for (uint32_t j = lane_id(); j < k; j += WARP) {
            least = min(least, bits_of(w->values[j]) & ABS_BITS);
            most = max(most, bits_of(w->values[j]) & ABS_BITS);
        }
        least = __reduce_min_sync(ALL, least);
        most = __reduce_max_sync(ALL, most);
    }
    if (lane_id() > 0) {
        return;
    }
    low = static_cast<double>(float_of(least));
    high = static_cast<double>(float_of(most));
    if (bits == 2) {
        two_means(w->values, k, &low, &high);
    }
    w->low = bf16_nearest(__double2float_rn(low));
    step =
        __ddiv_rn(__dsub_rn(high, static_cast<double>(wide(w->low))), static_cast<double>(n - 1));
    w->step = step > 0 ? bf16_nearest(__double2float_rn(step)) : 0;
    while ((bits_of(level(w->low, w->step, n - 1)) & ABS_BITS) >= INF_BITS) {
        w->step--;
    }
}

/* `n` <= 16 bits of a number at a bit of w->coded, which was zero there. */
__device__ __forceinline__ void put_bits(room *w, uint32_t at, uint32_t value, unsigned n)
{
    const uint32_t shift = at % 32;

    atomicOr(&w->coded[at / 32], value << shift);
    if (shift + n > 32) {
        atomicOr(&w->coded[at / 32 + 1], value >> (32 - shift));
    }
}

/* Code the values and put in their place what a decoder will see. */
__device__ void code_values(room *w, uint32_t k, unsigned bits, uint32_t at)
{
    double low, inv, top;

    if (bits == 16) {
        for (uint32_t j = threadIdx.x; j < k; j += THREADS) {
            const uint32_t h = bf16_nearest(w->values[j]);

            put_bits(w, at + 16 * j, h, 16);
            w->values[j] = wide(h);
        }
        return;
    }
    if (warp_id() == 0) {
        make_levels(w, k, bits);
    }
    __syncthreads();
    low = static_cast<double>(wide(w->low));
    inv = w->step > 0 ? __ddiv_rn(1.0, static_cast<double>(wide(w->step))) : 0;
    top = static_cast<double>((1u << (bits - 1)) - 1);
    if (threadIdx.x == 0) {
        put_bits(w, at, w->low, 16);
        put_bits(w, at + 16, w->step, 16);
    }
    for (uint32_t j = threadIdx.x; j < k; j += THREADS) {
        const uint32_t sign = bits_of(w->values[j]) & 0x80000000;
        double x = __dadd_rn(__dmul_rn(__dsub_rn(magnitude(w->values[j]), low), inv), 0.5);
        uint32_t c;

        x = x > top ? top : x;
        c = static_cast<uint32_t>(static_cast<int>(x > 0 ? x : 0));
        put_bits(w, at + 8 * HEAD + bits * j, sign >> (32 - bits) | c, bits);
        w->values[j] = float_of(bits_of(level(w->low, w->step, c)) | sign);
    }
}

/* ---- encode ---- */

__device__ __forceinline__ float saturate(float x)
{
    const float most = float_of(INF_BITS - 1);

    return x > most ? most : x < -most ? -most : x;
}

/* r += x; values beyond the block's end are 0. Returns the sum of the squares of r. */
__device__ double absorb(const topk_job &job, size_t first, size_t n, float r[MINE])
{
    double sq = 0;

#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const size_t i = position_of(4 * g);
        float4 x = {}, old = {};

        if (i + 4 <= n) {
            x = *reinterpret_cast<const float4 *>(job.src + first + i);
            if (job.residual) {
                old = *reinterpret_cast<const float4 *>(job.residual + first + i);
            }
        } else {
            float *to = &x.x, *to_old = &old.x;

#pragma unroll
            for (int c = 0; c < 3; c++) {
                to[c] = i + c < n ? job.src[first + i + c] : 0;
                to_old[c] = i + c < n && job.residual ? job.residual[first + i + c] : 0;
            }
        }
        r[4 * g] = saturate(__fadd_rn(old.x, x.x));
        r[4 * g + 1] = saturate(__fadd_rn(old.y, x.y));
        r[4 * g + 2] = saturate(__fadd_rn(old.z, x.z));
        r[4 * g + 3] = saturate(__fadd_rn(old.w, x.w));
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        sq += static_cast<double>(r[i]) * static_cast<double>(r[i]);
    }
    return sq;
}

__device__ void residual_store(const topk_job &job, size_t first, size_t n, const float r[MINE])
{
#pragma unroll
    for (int g = 0; g < GROUPS && job.residual; g++) {
        const size_t i = position_of(4 * g);
        float *to = job.residual + first + i;

        if (i + 4 <= n) {
            *reinterpret_cast<float4 *>(to) =
                make_float4(r[4 * g], r[4 * g + 1], r[4 * g + 2], r[4 * g + 3]);
            continue;
        }
#pragma unroll
        for (int c = 0; c < 3; c++) {
            if (i + c < n) {
                to[c] = r[4 * g + c];
            }
        }
    }
}

/* Positions and values of what is sent, as bits and floats in *w. */
__device__ void put_chosen(const hdt_topk_layout &l, const float r[MINE], uint32_t mine, room *w)
{
    const uint32_t low_at = 8 * static_cast<uint32_t>(l.unary_len);

    for (int i = 0; i < MINE; i++) {
        if (mine >> i & 1) {
            const uint32_t position = position_of(i), j = rank_of(position_of(i), w->chosen, w);

            put_bits(w, (position >> l.low_bits) + j, 1, 1);
            put_bits(w, low_at + j * l.low_bits, position & ((1u << l.low_bits) - 1), l.low_bits);
            w->values[j] = r[i];
        }
    }
}

/* Take from r what was sent; what the guard's error changes by. */
__device__ double take_chosen(float r[MINE], uint32_t mine, const room *w)
{
    double change = 0;

#pragma unroll
    for (int i = 0; i < MINE; i++) {
        if (mine >> i & 1) {
            const float left = __fsub_rn(r[i], w->values[rank_of(position_of(i), w->chosen, w)]);

            change += static_cast<double>(left) * static_cast<double>(left) -
                      static_cast<double>(r[i]) * static_cast<double>(r[i]);
            r[i] = left;
        }
    }
    return change;
}

/* Sums of two numbers over the block, for thread 0. */
__device__ void block_sums(double *a, double *b, room *w)
{
    for (int step = WARP / 2; step > 0; step /= 2) {
        *a += __shfl_down_sync(ALL, *a, step);
        *b += __shfl_down_sync(ALL, *b, step);
    }
    if (lane_id() == 0) {
        w->sums[0][warp_id()] = *a;
        w->sums[1][warp_id()] = *b;
    }
    __syncthreads();
    for (int i = 1; i < WARPS && threadIdx.x == 0; i++) {
        *a += w->sums[0][i];
        *b += w->sums[1][i];
    }
}

__device__ void encode_block(const topk_job &job, size_t block, room *w, tally *t)
{
    const size_t first = block * BLOCK;
    const bool is_whole = first + BLOCK <= job.n;
    const hdt_topk_layout &l = is_whole ? job.whole : job.rest;
    const uint32_t len = static_cast<uint32_t>(l.unary_len + l.low_len + l.values_len);
    const uint32_t k = static_cast<uint32_t>(l.k);
    uint8_t *dst = job.dst + block * job.whole_len;
    float r[MINE];
    double ref = absorb(job, first, l.n, r), change;
    uint32_t mine;

    for (uint32_t i = threadIdx.x; i < (len + 3) / 4; i += THREADS) {
        w->coded[i] = 0;
    }
    mine = choose(r, k, w); /* has barriers */
    put_chosen(l, r, mine, w);
    __syncthreads();
    code_values(w, k, job.bits, 8 * static_cast<uint32_t>(l.unary_len + l.low_len));
    __syncthreads();
    change = take_chosen(r, mine, w);
    residual_store(job, first, l.n, r);
    for (uint32_t i = threadIdx.x; i < len; i += THREADS) {
        dst[i] = reinterpret_cast<const uint8_t *>(w->coded)[i];
    }
    block_sums(&ref, &change, w);
    t->ref += threadIdx.x == 0 ? ref : 0;
    t->err += threadIdx.x == 0 && ref + change > 0 ? ref + change : 0;
    __syncthreads();
}

/* Comes behind look_kernel: refuses what is not finite, all blocks alike. */
__global__ void __launch_bounds__(THREADS, TOPK_BLOCKS_PER_SM) topk_encode_kernel(topk_job job)
{
    __shared__ room w;
    const size_t n_blocks = (job.n + BLOCK - 1) / BLOCK;
    tally t = {};

    if (job.report->guard.n_nonfinite > 0) {
        return;
    }
    for (size_t b = blockIdx.x; b < n_blocks; b += gridDim.x) {
        encode_block(job, b, &w, &t);
    }
    if (tally_finish(&t, job.s)) {
        job.report->guard.err_sq = t.err;
        job.report->guard.ref_sq = t.ref;
    }
}

/* ---- decode ---- */

struct untopk_job {
    hdt_topk_layout whole, rest;
    size_t whole_len;
    unsigned bits;
    size_t n;
    const uint8_t *src;
    float *dst;
    bool add;
    hdt_device_report *report;
};

struct decode_room {
    uint32_t coded[CODED_WORDS + 1];
    uint32_t before[WORDS + WARP];
    uint16_t positions[K_MAX];
    uint32_t n_ones;
    int is_bad; /* 1: positions, 2: values */
};

__device__ __forceinline__ uint32_t get_bits(const uint32_t *words, uint32_t at, unsigned n)
{
    const uint64_t both = static_cast<uint64_t>(words[at / 32 + 1]) << 32 | words[at / 32];

    return static_cast<uint32_t>(both >> (at % 32)) & ((1u << n) - 1);
}

/* Word i of the unary part, without what stands behind it. */
__device__ __forceinline__ uint32_t unary_word(const decode_room *w, uint32_t i, uint32_t n_bits)
{
    const uint32_t left = n_bits - 32 * i;

    return left >= 32 ? w->coded[i] : w->coded[i] & ((1u << left) - 1);
}

/* Running counts of the ones of each unary word, by the first warp. */
__device__ void count_ones(decode_room *w, uint32_t n_words, uint32_t n_bits)
{
    uint32_t total = 0;

    for (uint32_t begin = 0; begin < n_words; begin += WARP) {
        const uint32_t i = begin + lane_id();
        const uint32_t mine = i < n_words ? __popc(unary_word(w, i, n_bits)) : 0;
        uint32_t upto = mine;

        for (int step = 1; step < WARP; step *= 2) {
            const uint32_t other = __shfl_up_sync(ALL, upto, step);

            upto += lane_id() >= static_cast<unsigned>(step) ? other : 0;
        }
        if (i < n_words) {
            w->before[i] = total + upto - mine;
        }
        total += __shfl_sync(ALL, upto, WARP - 1);
    }
    if (lane_id() == 0) {
        w->n_ones = total;
    }
}

/* Positions into *w; they are below 2^16 where they fit at all, and checked by the caller. */
__device__ void get_positions(const hdt_topk_layout &l, decode_room *w)
{
    const uint32_t n_bits = 8 * static_cast<uint32_t>(l.unary_len), n_words = (n_bits + 31) / 32;

    if (warp_id() == 0) {
        count_ones(w, n_words, n_bits);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_words && w->n_ones == l.k; i += THREADS) {
        uint32_t j = w->before[i];

        for (uint32_t rest = unary_word(w, i, n_bits); rest != 0; rest &= rest - 1, j++) {
            const uint32_t high = 32 * i + __ffs(static_cast<int>(rest)) - 1 - j;
            const uint32_t low = get_bits(w->coded, n_bits + j * l.low_bits, l.low_bits);
            const uint32_t position = high << l.low_bits | low;

            w->positions[j] = static_cast<uint16_t>(position < BLOCK ? position : BLOCK);
        }
    }
    __syncthreads();
}

__device__ void check_block(const hdt_topk_layout &l, unsigned bits, uint32_t values_at,
                            decode_room *w)
{
    const uint32_t k = static_cast<uint32_t>(l.k);

    if (w->n_ones != k) {
        if (threadIdx.x == 0) {
            w->is_bad = 1;
        }
        __syncthreads();
        return;
    }
    for (uint32_t j = threadIdx.x; j < k; j += THREADS) {
        if (w->positions[j] >= l.n || (j > 0 && w->positions[j] <= w->positions[j - 1])) {
            atomicOr(&w->is_bad, 1);
        }
        if (bits == 16 && (get_bits(w->coded, values_at + 16 * j, 16) & 0x7f80) == 0x7f80) {
            atomicOr(&w->is_bad, 2);
        }
    }
    if (bits < 16 && threadIdx.x == 0) {
        const uint32_t low = get_bits(w->coded, values_at, 16);
        const uint32_t step = get_bits(w->coded, values_at + 16, 16);
        const float last = level(low, step, (1u << (bits - 1)) - 1);

        if (low >> 15 || step >> 15 || (bits_of(last) & ABS_BITS) >= INF_BITS) {
            atomicOr(&w->is_bad, 2);
        }
    }
    __syncthreads();
}

__device__ __forceinline__ float decode_value(const decode_room *w, unsigned bits,
                                              uint32_t values_at, uint32_t j)
{
    uint32_t code;
    float x;

    if (bits == 16) {
        return wide(get_bits(w->coded, values_at + 16 * j, 16));
    }
    code = get_bits(w->coded, values_at + 8 * HEAD + bits * j, bits);
    x = level(get_bits(w->coded, values_at, 16), get_bits(w->coded, values_at + 16, 16),
              code & ((1u << (bits - 1)) - 1));
    return code >> (bits - 1) ? -x : x;
}

__device__ void decode_block(const untopk_job &job, size_t block, decode_room *w)
{
    const size_t first = block * BLOCK;
    const hdt_topk_layout &l = first + BLOCK <= job.n ? job.whole : job.rest;
    const uint32_t len = static_cast<uint32_t>(l.unary_len + l.low_len + l.values_len);
    const uint32_t values_at = 8 * static_cast<uint32_t>(l.unary_len + l.low_len);
    const uint8_t *src = job.src + block * job.whole_len;

    for (uint32_t i = threadIdx.x; i < 4 * (len / 4 + 2); i += THREADS) {
        reinterpret_cast<uint8_t *>(w->coded)[i] = i < len ? src[i] : 0;
    }
    for (uint32_t i = threadIdx.x; i < l.n && !job.add; i += THREADS) {
        job.dst[first + i] = 0;
    }
    if (threadIdx.x == 0) {
        w->is_bad = 0;
    }
    __syncthreads();
    get_positions(l, w);
    check_block(l, job.bits, values_at, w);
    for (uint32_t j = threadIdx.x; j < l.k && !w->is_bad; j += THREADS) {
        float *at = &job.dst[first + w->positions[j]];

        *at = add_floats(job.add ? *at : 0.0f, decode_value(w, job.bits, values_at, j));
    }
    if (w->is_bad && threadIdx.x == 0) {
        atomicMin(reinterpret_cast<unsigned long long *>(&job.report->bad),
                  2 * static_cast<unsigned long long>(block) + (w->is_bad & 1 ? 0 : 1));
    }
    __syncthreads();
}

__global__ void __launch_bounds__(THREADS) topk_decode_kernel(untopk_job job)
{
    __shared__ decode_room w;
    const size_t n_blocks = (job.n + BLOCK - 1) / BLOCK;

    for (size_t b = blockIdx.x; b < n_blocks; b += gridDim.x) {
        decode_block(job, b, &w);
    }
}

size_t layout_len(const hdt_topk_layout &l)
{
    return l.unary_len + l.low_len + l.values_len;
}

} // namespace

cudaError_t hdt_cuda_codec_topk_encode(cudaStream_t stream, const struct hdt_device_topk *t,
                                       const struct hdt_device_in *in, float *residual, void *dst)
{
    const topk_job job = {t->whole,
                          t->rest,
                          layout_len(t->whole),
                          t->bits,
                          in->n,
                          static_cast<const float *>(in->src),
                          residual,
                          static_cast<uint8_t *>(dst),
                          static_cast<scratch *>(in->scratch),
                          in->report};
    unsigned n_blocks;
    cudaError_t code = hdt_cuda_codec_look(stream, in);

    if (code == cudaSuccess) {
        code = grid_size((in->n + BLOCK - 1) / BLOCK, 1, TOPK_BLOCKS_PER_SM, &n_blocks);
    }
    if (code != cudaSuccess || in->n == 0) {
        return code;
    }
    topk_encode_kernel<<<n_blocks, THREADS, 0, stream>>>(job);
    return cudaGetLastError();
}

cudaError_t hdt_cuda_codec_topk_decode(cudaStream_t stream, const struct hdt_device_topk *t,
                                       const void *src, const struct hdt_device_out *out)
{
    const untopk_job job = {t->whole,
                            t->rest,
                            layout_len(t->whole),
                            t->bits,
                            out->n,
                            static_cast<const uint8_t *>(src),
                            static_cast<float *>(out->dst),
                            out->emit == HDT_EMIT_ADD,
                            out->report};
    unsigned n_blocks;
    cudaError_t code = cudaMemsetAsync(&out->report->bad, 0xff, sizeof(out->report->bad), stream);

    if (code == cudaSuccess) {
        code = grid_size((out->n + BLOCK - 1) / BLOCK, 1, 8, &n_blocks);
    }
    if (code != cudaSuccess || out->n == 0) {
        return code;
    }
    topk_decode_kernel<<<n_blocks, THREADS, 0, stream>>>(job);
    return cudaGetLastError();
}
