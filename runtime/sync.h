/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_SYNC_H
#define HDT_RUNTIME_SYNC_H

/*
 * The records that ranks exchange once a step, and the root's arithmetic on them.
 *
 * Every rank sends SYNC_UP to the root: its losses, tokens and one item a tensor (the float64 sum
 * of squares of its gradient, or at the end the digest of its weights). The root adds in model
 * order, so that the sums do not depend on how the model is cut, and answers with SYNC_DOWN: mean
 * loss, norm, clipping factor, decisions. A job of one rank does the same arithmetic without
 * sending. Both records are little-endian.
 *
 *   SYNC_UP    0 u32 magic "HDSU"  4 u16 version  6 u8 phase  7 u8 flags
 *              8 u32 rank         12 u32 n_items 16 i64 step
 *             24 f64 loss_sum     32 u64 n_tokens
 *             40 f64 busy_s       48 f64 wait_s  56 u64 zero
 *             64 n_items x { u32 tensor (index in model order), u32 zero, u64 value }
 *   SYNC_DOWN  0 u32 magic "HDSD"  4 u16 version  6 u8 phase  7 u8 flags
 *              8 u64 zero         16 i64 step
 *             24 f64 loss         32 f64 norm    40 f64 clip_scale
 *             48 u64 digest       56 u64 zero
 */
#include "src/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_SYNC_VERSION    2
#define HDT_SYNC_HEADER_LEN 64
#define HDT_SYNC_ITEM_LEN   16
#define HDT_SYNC_DOWN_LEN   64

/* Wire numbers. */
enum hdt_sync_phase {
    HDT_SYNC_TRAIN = 0,  /* items: float64 sums of squares */
    HDT_SYNC_EVAL = 1,   /* no items */
    HDT_SYNC_DIGEST = 2, /* items: XXH3-64 of a tensor's fp32 bytes */
    HDT_SYNC_PHASE_COUNT
};

/* Wire bits. */
enum hdt_sync_flag {
    HDT_SYNC_STOP = 1 << 0,       /* DOWN: this step is the last one */
    HDT_SYNC_CHECKPOINT = 1 << 1, /* DOWN: write a checkpoint after this step */
    HDT_SYNC_BUSY = 1 << 2,       /* UP: still busy with the last checkpoint. In phase DIGEST, UP
                                     and DOWN: a sign of life, the record itself comes later */
    HDT_SYNC_AGAIN = 1 << 3,      /* UP, phase DIGEST: the last checkpoint could not be written;
                                     DOWN answers with CHECKPOINT, and all save again */
};

struct hdt_sync_up {
    uint8_t phase, flags;
    uint32_t rank;
    uint32_t n_items;
    int64_t step;      /* 0-based */
    double loss_sum;   /* nats, of the labelled tokens seen by this rank's head; else 0 */
    uint64_t n_tokens; /* labelled tokens read by this rank's sampler; else 0 */
    double busy_s, wait_s;
};

struct hdt_sync_item {
    uint32_t tensor;
    uint64_t value; /* bits of a float64, or a digest */
};

struct hdt_sync_down {
    uint8_t phase, flags;
    int64_t step;
    double loss, norm, clip_scale;
    uint64_t digest;
};

size_t hdt_sync_up_len(uint32_t n_items);
void hdt_sync_up_pack(const struct hdt_sync_up *up, const struct hdt_sync_item *items, void *out);
void hdt_sync_down_pack(const struct hdt_sync_down *down, void *out);

/* Read and check foreign records. HDT_EPROTO: with what does not fit. The items of `in` are read
 * one by one with hdt_sync_item_get. */
enum hdt_status hdt_sync_up_unpack(const void *in, size_t len, struct hdt_sync_up *up,
                                   struct hdt_error *err);
struct hdt_sync_item hdt_sync_item_get(const void *in, uint32_t idx);
enum hdt_status hdt_sync_down_unpack(const void *in, size_t len, struct hdt_sync_down *down,
                                     struct hdt_error *err);

/* What the root has of a step so far. */
struct hdt_sync_total {
    uint64_t *values; /* one a tensor of the model */
    uint8_t *seen;
    uint32_t n_tensors;
    double loss_sum;
    uint64_t n_tokens;
    uint8_t flags; /* of all ranks, or-ed */
};

void hdt_sync_total_init(struct hdt_sync_total *total, uint32_t n_tensors);
void hdt_sync_total_release(struct hdt_sync_total *total);
void hdt_sync_total_clear(struct hdt_sync_total *total);

/* Add the head of a record, and one item. HDT_EPROTO: no such tensor, or told twice. */
void hdt_sync_total_add(struct hdt_sync_total *total, const struct hdt_sync_up *up);
enum hdt_status hdt_sync_total_item(struct hdt_sync_total *total, const struct hdt_sync_item *item,
                                    struct hdt_error *err);

/* HDT_EPROTO with the first tensor of [0, n) that no rank has told. */
enum hdt_status hdt_sync_total_check(const struct hdt_sync_total *total, uint32_t n,
                                     struct hdt_error *err);

/* Root of the sums of squares of tensors [0, n), added in model order. */
double hdt_sync_total_norm(const struct hdt_sync_total *total, uint32_t n);

/* XXH3-64 over the digests of tensors [0, n) in model order, each as 8 little-endian bytes. */
uint64_t hdt_sync_total_digest(const struct hdt_sync_total *total, uint32_t n);

/* Factor that brings a gradient of `norm` down to clip_norm; 1 when it is below, or clip_norm 0. */
double hdt_sync_clip_scale(double norm, double clip_norm);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_SYNC_H */
