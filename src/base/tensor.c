/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/tensor.h"

#include <strings.h>

static const struct {
    const char *name;
    const char *safetensors_name;
    size_t size;
} dtypes[HDT_DTYPE_COUNT] = {
    [HDT_DTYPE_NONE] = {"bytes", NULL, 1},
    [HDT_DTYPE_F32] = {"f32", "F32", 4},
    [HDT_DTYPE_BF16] = {"bf16", "BF16", 2},
    [HDT_DTYPE_F16] = {"f16", "F16", 2},
    [HDT_DTYPE_F64] = {"f64", "F64", 8},
    [HDT_DTYPE_I32] = {"i32", "I32", 4},
    [HDT_DTYPE_I64] = {"i64", "I64", 8},
    [HDT_DTYPE_U8] = {"u8", "U8", 1},
    [HDT_DTYPE_U16] = {"u16", "U16", 2},
    [HDT_DTYPE_U32] = {"u32", "U32", 4},
    [HDT_DTYPE_I8] = {"i8", "I8", 1},
    [HDT_DTYPE_F8E4M3] = {"f8e4m3", "F8_E4M3", 1},
    [HDT_DTYPE_F8E5M2] = {"f8e5m2", "F8_E5M2", 1},
};

static int dtype_is_known(enum hdt_dtype dtype)
{
    return (unsigned)dtype < HDT_DTYPE_COUNT;
}

size_t hdt_dtype_size(enum hdt_dtype dtype)
{
    return dtype_is_known(dtype) ? dtypes[dtype].size : 0;
}

const char *hdt_dtype_name(enum hdt_dtype dtype)
{
    return dtype_is_known(dtype) ? dtypes[dtype].name : "?";
}

const char *hdt_dtype_safetensors_name(enum hdt_dtype dtype)
{
    return dtype_is_known(dtype) ? dtypes[dtype].safetensors_name : NULL;
}

enum hdt_status hdt_dtype_parse(const char *name, enum hdt_dtype *dtype, struct hdt_error *err)
{
    for (int i = 1; i < HDT_DTYPE_COUNT; i++) {
        if (strcasecmp(name, dtypes[i].name) == 0 ||
            (dtypes[i].safetensors_name && strcasecmp(name, dtypes[i].safetensors_name) == 0)) {
            *dtype = (enum hdt_dtype)i;
            return HDT_OK;
        }
    }
    return hdt_error_set(err, HDT_EINVAL,
                         "'%s' is no data type; known are f32 bf16 f16 f64 i32 i64 u8 u16 u32 i8 "
                         "f8e4m3 f8e5m2",
                         name);
}
