/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_DEVICE_H
#define HDT_COMPRESS_DEVICE_H

/*
 * The codecs on an accelerator: what a backend module offers of them, and how a codec is done with
 * it (compress/codec_device.c).
 *
 * The table holds the inner loops of compress/kernels.h, planes.h and topk.h once more, on device
 * memory and a stream. It gives the bytes of the scalar definition, whatever the length. What it
 * counts (n, n_nonfinite, max_abs) is exact; its sums of squares are taken in another order than
 * the definition's and agree with them to 1e-5 of a sum, which is what those are good for.
 *
 * Every function queues work and returns; failures stick to the stream. Pointers are device memory,
 * of 16-byte alignment where nothing else is said. Numbers in the arguments are read before the
 * function returns, `report` is valid when the stream has come that far.
 */
#include "compress/kernels.h"
#include "compress/topk.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_stream; /* of the backend (runtime/backend.h) */

/* What one call found; device memory. */
struct hdt_device_report {
    struct hdt_codec_guard guard; /* encoders set it */
    uint64_t bad;                 /* decoders: HDT_DEVICE_GOOD, or 2 * number of the first block
                                     that is no coded form, + 1 when its values are at fault */
};
#define HDT_DEVICE_GOOD UINT64_MAX

/* What an encoder reads, and where it reports. */
struct hdt_device_in {
    const void *src; /* n values, F32 or BF16 */
    enum hdt_dtype dtype;
    size_t n;
    const struct hdt_random *random; /* host memory; NULL: round to nearest even */
    void *scratch;                   /* `scratch_bytes` that were zero once; of one stream */
    struct hdt_device_report *report;
};

/* Where a decoder writes. */
struct hdt_device_out {
    void *dst; /* n values */
    enum hdt_emit emit;
    size_t n;
    struct hdt_device_report *report;
};

/* Blocks of a quantizer. */
struct hdt_device_quant {
    enum hdt_quant_kind kind;
    size_t block;      /* values, 32 .. 1024, a power of two */
    size_t params_len; /* bytes of a block's parameters */
    size_t head_len;   /* of all blocks, with the zeros that fill them up to 16 */
    bool rotate;
};

/* Top-k: the layout of a whole block and of the last, shorter one. */
struct hdt_device_topk {
    struct hdt_topk_layout whole, rest; /* rest.n 0: there is none */
    unsigned bits;
};

struct hdt_device_codecs {
    size_t scratch_bytes;

    /* Only n, n_nonfinite and max_abs of fp32 values. */
    void (*look)(struct hdt_stream *s, const struct hdt_device_in *in);

    void (*cast_encode)(struct hdt_stream *s, enum hdt_cast_kind kind,
                        const struct hdt_device_in *in, void *dst);
    void (*cast_decode)(struct hdt_stream *s, enum hdt_cast_kind kind, const void *src,
                        const struct hdt_device_out *out);

    /* Whole frames: parameters, zeros, codes. Values without a coded form are counted in the guard;
     * the frame then is of no use. Rotation of a tensor's short last block included. */
    void (*quant_encode)(struct hdt_stream *s, const struct hdt_device_quant *q,
                         const struct hdt_device_in *in, void *dst);
    void (*quant_decode)(struct hdt_stream *s, const struct hdt_device_quant *q, const void *src,
                         const struct hdt_device_out *out);

    /* fp32. `residual` (n) may be NULL; it stays as it was when a value is not finite, which the
     * guard tells. */
    void (*topk_encode)(struct hdt_stream *s, const struct hdt_device_topk *t,
                        const struct hdt_device_in *in, float *residual, void *dst);
    void (*topk_decode)(struct hdt_stream *s, const struct hdt_device_topk *t, const void *src,
                        const struct hdt_device_out *out);

    /* As hdt_planes_split and hdt_planes_join: elements of 1, 2, 4 or 8 bytes; planes of any
     * alignment, fastest when all are aligned to 4. */
    void (*split)(struct hdt_stream *s, size_t size, bool rotate, const void *src, size_t n,
                  uint8_t *const planes[]);
    void (*join)(struct hdt_stream *s, size_t size, bool rotate, const uint8_t *const planes[],
                 size_t n, void *dst);

    /* dst += src, fp32 */
    void (*add)(struct hdt_stream *s, const void *src, size_t n, void *dst);

    /* dst = src, bytes of device memory */
    void (*copy)(struct hdt_stream *s, const void *src, size_t len, void *dst);
};

/* One call on the device. The members of `io` that are memory (src, dst) are the device's; io.guard
 * and io.state are not used. */
struct hdt_device_call {
    const struct hdt_device_codecs *codecs;
    struct hdt_stream *stream;
    void *scratch;                    /* device; see struct hdt_device_in */
    struct hdt_device_report *report; /* device */
    float *residual;                  /* device: topk's feedback, all zeros before the first frame;
                                         NULL: what is not sent is lost */
};

/* Has this spec, for tensors of this dtype, a form on the device? Not randk, lowrank nor "delta:",
 * whose memory is the host's. */
bool hdt_codec_device_takes(const struct hdt_codec_spec *spec, enum hdt_dtype dtype);

/* Queue the encoding of device memory io->src into io->dst; sets *coded_len. With `none`, io->dst
 * may be NULL: the tensor is the frame, and is only looked at. HDT_EINVAL as hdt_codec_encode, but
 * for what only the values tell: that is known when the stream has come that far and the report was
 * copied to the host, to hdt_codec_device_encoded. HDT_ENOTSUP: no such form on the device. */
enum hdt_status hdt_codec_device_encode(const struct hdt_device_call *call,
                                        const struct hdt_codec_io *io, size_t *coded_len,
                                        struct hdt_error *err);

/* What hdt_codec_encode would have returned, from the report on the host; sets io->guard. */
enum hdt_status hdt_codec_device_encoded(const struct hdt_codec_io *io,
                                         const struct hdt_device_report *report,
                                         struct hdt_error *err);

/* Queue the decoding of io->src into io->dst, both device memory; then, with the report on the
 * host, whether it was a coded form. As hdt_codec_decode. */
enum hdt_status hdt_codec_device_decode(const struct hdt_device_call *call,
                                        const struct hdt_codec_io *io, struct hdt_error *err);
enum hdt_status hdt_codec_device_decoded(const struct hdt_codec_io *io,
                                         const struct hdt_device_report *report,
                                         struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_DEVICE_H */
