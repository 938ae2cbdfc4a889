/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_TENSOR_H
#define HDT_BASE_TENSOR_H

/* Data types and shapes of tensors, as they stand in memory, in files and on the wire. */
#include "src/base/error.h"

#include <stdint.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are part of the wire protocol (doc/protocol.md): never renumber. */
enum hdt_dtype {
    HDT_DTYPE_NONE = 0, /* bytes without a type */
    HDT_DTYPE_F32 = 1,
    HDT_DTYPE_BF16 = 2,
    HDT_DTYPE_F16 = 3,
    HDT_DTYPE_F64 = 4,
    HDT_DTYPE_I32 = 5,
    HDT_DTYPE_I64 = 6,
    HDT_DTYPE_U8 = 7,
    HDT_DTYPE_U16 = 8,
    HDT_DTYPE_U32 = 9,
    HDT_DTYPE_I8 = 10,
    HDT_DTYPE_F8E4M3 = 11,
    HDT_DTYPE_F8E5M2 = 12,
    HDT_DTYPE_COUNT
};

#define HDT_TENSOR_MAX_DIMS 4

/* Bytes of one element; 1 for HDT_DTYPE_NONE; 0 for a number that is no dtype. */
size_t hdt_dtype_size(enum hdt_dtype dtype);

/* "f32", "bf16", ...; "?" for a number that is no dtype. */
const char *hdt_dtype_name(enum hdt_dtype dtype);

/* Name as safetensors writes it ("F32", "BF16", "U16"); NULL when the format has no such type. */
const char *hdt_dtype_safetensors_name(enum hdt_dtype dtype);

/* Inverse of hdt_dtype_name and of hdt_dtype_safetensors_name (upper or lower case).
 * HDT_EINVAL with the list of known names. */
enum hdt_status hdt_dtype_parse(const char *name, enum hdt_dtype *dtype, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_TENSOR_H */
