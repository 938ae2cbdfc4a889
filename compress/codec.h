/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_CODEC_H
#define HDT_COMPRESS_CODEC_H

/*
 * Codecs: what is done to a tensor between the device that made it and the wire.
 *
 * An edge of the plan names two of them, with options (compress/spec.h). The *worker* codec turns a
 * tensor into the plaintext frame (cast, quantize); the *gateway* codec turns each chunk of that
 * frame, cut anywhere, into fewer bytes without loss. "bf16+lossless" is the pair of both:
 *
 *     tensor --worker encode--> frame --cut--> chunk --gateway encode--> wire
 *     tensor <--worker decode-- frame <-join-- chunk <--gateway decode-- wire
 *
 * In both steps *plain* is what goes into encode and comes out of decode, *coded* the other side.
 * The coded forms are in doc/codecs.md. One codec is one file and one const table; the facts about
 * it are data. Codecs are pure functions over the caller's memory: they take no lock, make no call
 * to the system and allocate nothing; all scratch memory is in a struct hdt_codec_ctx, made once by
 * each thread that codes.
 *
 * Use the functions hdt_codec_encode, hdt_codec_decode and hdt_codec_bound: they check everything
 * that is common (dtype, lengths, limits) before the codec's own function runs. Decoders take
 * foreign bytes: they read and write only inside what they were given and say HDT_EPROTO when the
 * coded form is broken.
 */
#include "compress/spec.h"
#include "src/base/error.h"
#include "src/base/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_codec_caps {
    HDT_CODEC_AT_WORKER = 1u << 0, /* tensor -> frame; coded length is a function of plain length */
    HDT_CODEC_AT_GATEWAY = 1u << 1, /* chunk of a frame, at any byte offset and of any length */
    HDT_CODEC_EXACT = 1u << 2,      /* decode gives back every bit */
    HDT_CODEC_ADDS = 1u << 3,       /* worker codec: decode can add to what is there */
};

/* Largest plain length that any codec takes: a limit against which lengths are compared before any
 * arithmetic, far above the largest tensor of a frame. Chunks are limited by their context. */
#define HDT_CODEC_PLAIN_MAX ((size_t)1 << 34)

/* Largest chunk that a context may be made for. */
#define HDT_CODEC_CHUNK_MAX ((size_t)256 << 20)

/* What a worker codec found out about a tensor while it encoded it; `none` loses nothing and only
 * looks at fp32 values: its sums stay zero. */
struct hdt_codec_guard {
    uint64_t n;           /* values */
    uint64_t n_nonfinite; /* values that are NaN or infinite, before or after coding */
    float max_abs;        /* largest magnitude among the finite values */
    double err_sq;        /* sum of (value - decoded)^2 over finite values */
    double ref_sq;        /* sum of value^2 over finite values */
};

struct hdt_codec_state;

/* One call of encode or decode. Source and destination must not overlap. */
struct hdt_codec_io {
    const struct hdt_codec_spec *spec; /* of the edge; NULL: the codec without options */
    const void *src;                   /* may be unaligned; may be NULL when src_len is 0 */
    size_t src_len;
    void *dst;
    size_t dst_len;       /* encode: room, at least the bound; decode: the exact plain length */
    enum hdt_dtype dtype; /* worker codec: of the tensor; gateway codec: of the frame */
    uint64_t offset;      /* gateway codec: of the chunk in its frame, bytes; else 0 */
    struct hdt_codec_guard *guard; /* worker encode: set by it when not NULL, also on refusal */

    struct hdt_codec_state *state; /* codecs with feedback: of this flow; else NULL. A refused call
                                      leaves it as it was */
    uint64_t seed;                 /* encode, where chance decides: another one for each frame */
    uint64_t key;                  /* delta: number of the sample that the tensor belongs to */
    bool add; /* decode: fp32 dst += value, rounded once; needs HDT_CODEC_ADDS */
};

struct hdt_codec_ctx;

/* One codec. Members marked optional may be NULL. */
struct hdt_codec_ops {
    enum hdt_codec_id id;
    const char *name;
    const char *help;           /* one sentence */
    unsigned caps;              /* enum hdt_codec_caps */
    uint32_t dtypes;            /* plain dtypes it takes: bit 1 << dtype */
    enum hdt_dtype coded_dtype; /* dtype of the coded form; HDT_DTYPE_NONE: as the plain one's */
    bool has_state;             /* carries feedback from tensor to tensor: needs io->state */

    /* Largest coded length for a plain length within limits; worker codecs: the exact one. The spec
     * is never NULL here, nor in the io of the functions below. */
    size_t (*bound)(const struct hdt_codec_spec *spec, enum hdt_dtype dtype, size_t plain_len);

    /* Optional, worker codecs: the plain length of a coded one, or SIZE_MAX when no plain length
     * gives that coded length. */
    size_t (*plain_len)(const struct hdt_codec_spec *spec, enum hdt_dtype dtype, size_t coded_len);

    enum hdt_status (*encode)(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                              size_t *coded_len, struct hdt_error *err);
    enum hdt_status (*decode)(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                              struct hdt_error *err);
};

extern const struct hdt_codec_ops hdt_codec_none;
extern const struct hdt_codec_ops hdt_codec_bf16;
extern const struct hdt_codec_ops hdt_codec_int8;
extern const struct hdt_codec_ops hdt_codec_lossless;
extern const struct hdt_codec_ops hdt_codec_fp16;
extern const struct hdt_codec_ops hdt_codec_fp8;
extern const struct hdt_codec_ops hdt_codec_int4;
extern const struct hdt_codec_ops hdt_codec_topk;
extern const struct hdt_codec_ops hdt_codec_randk;
extern const struct hdt_codec_ops hdt_codec_lowrank;

/* The codec with a wire number; NULL when there is none. */
const struct hdt_codec_ops *hdt_codec_by_id(unsigned id);

/* The two codecs of a spec that hdt_codec_spec_check passes. */
const struct hdt_codec_ops *hdt_codec_spec_worker(const struct hdt_codec_spec *spec);
const struct hdt_codec_ops *hdt_codec_spec_gateway(const struct hdt_codec_spec *spec);

/* Must the sending worker keep feedback for a flow of this spec? */
bool hdt_codec_spec_has_state(const struct hdt_codec_spec *spec);

/* The dtype of the frame that a worker codec makes of a tensor of `dtype`. */
enum hdt_dtype hdt_codec_coded_dtype(const struct hdt_codec_ops *codec, enum hdt_dtype dtype);

/* Scratch memory of one thread that codes; one thread at a time. `chunk_cap` is the longest chunk
 * that a gateway codec will be given (at most HDT_CODEC_CHUNK_MAX); 0 for a worker, which needs no
 * scratch. Allocates, at start-up, all that encode and decode will ever use: about 2 chunk_cap.
 * Free with hdt_codec_ctx_free. HDT_EINVAL, HDT_ENOMEM. */
enum hdt_status hdt_codec_ctx_new(size_t chunk_cap, struct hdt_codec_ctx **ctx,
                                  struct hdt_error *err);
void hdt_codec_ctx_free(struct hdt_codec_ctx *ctx);

/* Room that encode needs for a plain length; `spec` NULL: the codec without options. HDT_EINVAL
 * when the codec does not take the dtype, or the length is above the limit or, at a worker, no
 * multiple of the element size. */
enum hdt_status hdt_codec_bound(const struct hdt_codec_ops *codec,
                                const struct hdt_codec_spec *spec, enum hdt_dtype dtype,
                                size_t plain_len, size_t *bound, struct hdt_error *err);

/* Encode io->src into io->dst and set *coded_len. HDT_EINVAL: wrong dtype or length, too little
 * room, or (int8) values that have no coded form; nothing of use is in dst then. */
enum hdt_status hdt_codec_encode(const struct hdt_codec_ops *codec, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, size_t *coded_len,
                                 struct hdt_error *err);

/* Decode the foreign bytes io->src into exactly io->dst_len bytes. HDT_EPROTO when they are no
 * coded form of that many bytes (dst then holds anything); HDT_EINVAL when dtype or length are
 * beyond what the codec or the context takes. */
enum hdt_status hdt_codec_decode(const struct hdt_codec_ops *codec, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, struct hdt_error *err);

/* Relative error of what was encoded, sqrt(err_sq / ref_sq); 0 for a tensor of zeros. */
double hdt_codec_guard_error(const struct hdt_codec_guard *guard);

/* Add the counts of `from` to `to`: totals of a flow. */
void hdt_codec_guard_add(struct hdt_codec_guard *to, const struct hdt_codec_guard *from);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_CODEC_H */
