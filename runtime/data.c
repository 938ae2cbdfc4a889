/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The order of an epoch's windows is a permutation that is computed, not stored: a Feistel network
 * over the smallest even number of bits that holds n, walked on while the result is outside of
 * 0 .. n - 1 (Black and Rogaway, "Ciphers with arbitrary finite domains"). A shuffled array would
 * need memory for every window and time at each start; drawing offsets at random would leave a
 * third of the text unread in each epoch.
 */
#include "runtime/data.h"

#include <string.h>

#define FEISTEL_ROUNDS 6

/* The finalizer of splitmix64: every bit of the input changes half of the output's. */
static uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static uint64_t feistel(uint64_t key, unsigned half_bits, uint64_t x)
{
    uint64_t mask = (1ull << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask, next;
    unsigned round;

    for (round = 0; round < FEISTEL_ROUNDS; round++) {
        next = left ^ (mix64(key ^ mix64(right + ((uint64_t)round << 56))) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

/* Image of idx under the permutation of 0 .. n - 1 that belongs to key. */
static uint64_t permute(uint64_t key, uint64_t n, uint64_t idx)
{
    unsigned half_bits = 1;

    while (half_bits < 31 && (1ull << (2 * half_bits)) < n) {
        half_bits++;
    }
    do {
        idx = feistel(key, half_bits, idx);
    } while (idx >= n);
    return idx;
}

enum hdt_status hdt_sampler_init(struct hdt_sampler *sampler, const struct hdt_shard *shard,
                                 uint64_t seed, int64_t T, struct hdt_error *err)
{
    uint64_t n_tokens = hdt_shard_n_tokens(shard), last_start, slack;

    if (n_tokens < (uint64_t)T + 1) {
        hdt_error_set(err, HDT_EINVAL,
                      "cannot train on '%s': it has %llu tokens, one sample needs %lld",
                      hdt_shard_path(shard), (unsigned long long)n_tokens, (long long)T + 1);
        hdt_error_hint(err, "give more text, or set batch.seq_len lower");
        return HDT_EINVAL;
    }
    last_start = n_tokens - (uint64_t)T - 1;
    sampler->shard = shard;
    sampler->seed = seed;
    sampler->T = T;
    /* One window fewer than would fit leaves room for the epoch's offset. */
    sampler->n_windows = last_start / (uint64_t)T;
    if (sampler->n_windows == 0) {
        sampler->n_windows = 1;
    }
    HDT_ASSERT(sampler->n_windows < 1ull << 62);
    slack = last_start - (sampler->n_windows - 1) * (uint64_t)T;
    sampler->n_offsets = slack + 1 < (uint64_t)T ? slack + 1 : (uint64_t)T;
    return HDT_OK;
}

uint64_t hdt_sampler_pos(const struct hdt_sampler *sampler, uint64_t g)
{
    uint64_t epoch = g / sampler->n_windows;
    uint64_t key = mix64(sampler->seed ^ mix64(epoch));
    uint64_t window = permute(key, sampler->n_windows, g % sampler->n_windows);

    return mix64(key + 1) % sampler->n_offsets + window * (uint64_t)sampler->T;
}

/* Tokens pos .. pos + T of one sample, without a copy of T + 1: tokens first, then the last label.
 */
static enum hdt_status sample_read(const struct hdt_shard *shard, uint64_t pos, int64_t T,
                                   int32_t *tokens, int32_t *labels, struct hdt_error *err)
{
    HDT_TRY(hdt_shard_read(shard, pos, (size_t)T, tokens, err));
    memcpy(labels, tokens + 1, (size_t)(T - 1) * sizeof(*labels));
    return hdt_shard_read(shard, pos + (uint64_t)T, 1, labels + T - 1, err);
}

enum hdt_status hdt_sampler_read(const struct hdt_sampler *sampler, uint64_t g, int64_t B,
                                 int32_t *tokens, int32_t *labels, struct hdt_error *err)
{
    int64_t b, T = sampler->T;

    for (b = 0; b < B; b++) {
        HDT_TRY(sample_read(sampler->shard, hdt_sampler_pos(sampler, g + (uint64_t)b), T,
                            tokens + b * T, labels + b * T, err));
    }
    return HDT_OK;
}

/* Labelled tokens of the k-th window. */
static uint64_t eval_window_tokens(const struct hdt_shard *shard, int64_t T, uint64_t k)
{
    uint64_t n_tokens = hdt_shard_n_tokens(shard), begin = k * (uint64_t)T;

    if (begin + 1 >= n_tokens) {
        return 0;
    }
    return n_tokens - 1 - begin < (uint64_t)T ? n_tokens - 1 - begin : (uint64_t)T;
}

enum hdt_status hdt_sampler_read_eval(const struct hdt_shard *shard, int64_t T, uint64_t k,
                                      int64_t B, int32_t *tokens, int32_t *labels,
                                      struct hdt_error *err)
{
    int64_t b, t, n;

    for (b = 0; b < B; b++, tokens += T, labels += T) {
        n = (int64_t)eval_window_tokens(shard, T, k + (uint64_t)b);
        if (n > 0) {
            HDT_TRY(sample_read(shard, (k + (uint64_t)b) * (uint64_t)T, n, tokens, labels, err));
        }
        for (t = n; t < T; t++) {
            tokens[t] = 0;
            labels[t] = -1;
        }
    }
    return HDT_OK;
}

uint64_t hdt_sampler_eval_tokens(const struct hdt_shard *shard, int64_t T, uint64_t n)
{
    uint64_t n_tokens = hdt_shard_n_tokens(shard), most = n * (uint64_t)T;

    if (n_tokens < 2) {
        return 0;
    }
    return n_tokens - 1 < most ? n_tokens - 1 : most;
}
