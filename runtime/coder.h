/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CODER_H
#define HDT_RUNTIME_CODER_H

/*
 * Codecs of tensors that lie in a device's memory. Where the backend has codecs (compress/device.h)
 * a tensor is encoded on the device and only the coded bytes cross to the host, into the frame's
 * slot; a frame that came crosses as it is and is decoded on the device. Where it has none, or not
 * this one (what codecs remember lies in host memory), the tensor crosses and the host codes it.
 *
 * A frame is handed over when it is whole: encoding runs at the memory's speed, far above what host
 * or link take, so that to cut it in pieces would win nothing; copies into slots run at full speed
 * where the port's memory is pinned.
 *
 * Belongs to one thread.
 */
#include "compress/codec.h"
#include "runtime/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_coder;

/* For fp32 tensors of up to `tensor_bytes`, on a stream of its own: the caller has waited for what
 * made a tensor, and a call returns when its work is done. Allocates, on the device: a coded tensor
 * and some KiB; on the host, pinned: one tensor. Free with hdt_coder_free. HDT_ENOMEM, HDT_EIO. */
enum hdt_status hdt_coder_new(const struct hdt_backend *backend, struct hdt_device *device,
                              size_t tensor_bytes, struct hdt_coder **coder, struct hdt_error *err);
void hdt_coder_free(struct hdt_coder *coder);

/* Device memory that a coder takes, bytes. */
uint64_t hdt_coder_bytes(const struct hdt_backend *backend, size_t tensor_bytes);

/* Is this codec's work done on the device? */
bool hdt_coder_is_device(const struct hdt_coder *coder, const struct hdt_codec_spec *spec);

/* As hdt_codec_encode, io->src being device memory and io->dst host memory; as hdt_codec_decode,
 * the other way round. io->spec is set, the dtype is F32. Besides their errors HDT_EIO: the
 * device's. */
enum hdt_status hdt_coder_encode(struct hdt_coder *coder, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, size_t *coded_len,
                                 struct hdt_error *err);
enum hdt_status hdt_coder_decode(struct hdt_coder *coder, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_CODER_H */
