/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_LOWRANK_H
#define HDT_COMPRESS_LOWRANK_H

/*
 * Low rank: PowerSGD (Vogels, Karimireddy & Jaggi 2019, arXiv 1905.13727, algorithm 1) over a flow
 * between two workers. A tensor is read as a matrix M (rows, columns); with the residual E and the
 * factor Q (columns, rank) of the last frame:
 *
 *     M += E;   P = M Q;   P made orthonormal;   Q = M^T P;   sent: P, Q;   E = M - P Q^T
 *
 * Where many workers average, P and Q are two rounds, as each needs the mean of the first. Between
 * two workers nothing is averaged, so one frame carries both, the receiver needs no memory, and a
 * frame that is lost with its receiver leaves nothing to agree on again. To send P alone against
 * the receiver's Q of last time would save half the bytes, but fits the matrix only as well as an
 * older gradient's row space does, and both ends would have to be restored together.
 *
 * Both factors travel as bf16; E takes up what that loses. Frame: P, component by component (rank,
 * rows), then Q (rank, columns): 2 rank (rows + columns) bytes.
 */
#include "compress/codec.h"
#include "compress/sparse_kernels.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Larger magnitudes are refused: of a diverged run, and their products would not be finite. */
#define HDT_LOWRANK_ABS_MAX 0x1p60f

struct hdt_lowrank {
    size_t n; /* values; the last row may be shorter */
    size_t rows, columns;
    size_t rank; /* not above rows and columns */
};

/* The matrix of n values: `columns` wide, or nearly square, a multiple of 8, when that is 0. */
struct hdt_lowrank hdt_lowrank_shape(size_t n, size_t columns, unsigned rank);

/* Length of a frame, bytes. */
size_t hdt_lowrank_len(const struct hdt_lowrank *shape);

/* Write the frame of the n fp32 values at src (bytes of any alignment). `residual` (n), `factor`
 * (rank, columns) are state: all zero at the beginning; `scratch` has rank (rows + columns) floats.
 * Sets *guard; its error is what the feedback still has to send. HDT_EINVAL when a value is NaN,
 * infinite or above HDT_LOWRANK_ABS_MAX; the state is as it was. */
enum hdt_status hdt_lowrank_encode(const struct hdt_lowrank *shape,
                                   const struct hdt_kernels *kernels,
                                   const struct hdt_sparse_kernels *sparse, const uint8_t *src,
                                   float *residual, float *factor, float *scratch, uint8_t *dst,
                                   struct hdt_codec_guard *guard, struct hdt_error *err);

/* Read a frame of src_len foreign bytes into n values at dst; with `add`, dst += value. HDT_EPROTO
 * when it is no such frame, or a factor is not finite. No memory but the caller's: factors are read
 * from the frame as they are needed. */
enum hdt_status hdt_lowrank_decode(const struct hdt_lowrank *shape, const uint8_t *src,
                                   size_t src_len, uint8_t *dst, bool add, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_LOWRANK_H */
