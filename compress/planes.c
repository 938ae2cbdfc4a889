/* SPDX-License-Identifier: Apache-2.0 */
/* Scalar planes, the definition, and which table runs here. */
#include "config.h"

#include "compress/planes.h"
#include "src/base/error.h"

#include <string.h>

static inline uint32_t load_u32(const uint8_t *src, size_t i)
{
    uint32_t u;

    memcpy(&u, src + 4 * i, 4);
    return u;
}

static void scalar_split2(const uint8_t *src, size_t n, bool rotate, uint8_t *const planes[])
{
    for (size_t i = 0; i < n; i++) {
        uint16_t u;

        memcpy(&u, src + 2 * i, 2);
        if (rotate) {
            u = (uint16_t)(u << 1 | u >> 15);
        }
        planes[0][i] = (uint8_t)u;
        planes[1][i] = (uint8_t)(u >> 8);
    }
}

static void scalar_split4(const uint8_t *src, size_t n, bool rotate, uint8_t *const planes[])
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = load_u32(src, i);

        if (rotate) {
            u = u << 1 | u >> 31;
        }
        planes[0][i] = (uint8_t)u;
        planes[1][i] = (uint8_t)(u >> 8);
        planes[2][i] = (uint8_t)(u >> 16);
        planes[3][i] = (uint8_t)(u >> 24);
    }
}

static void scalar_join2(const uint8_t *const planes[], size_t n, bool rotate, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t u = (uint16_t)(planes[0][i] | planes[1][i] << 8);

        if (rotate) {
            u = (uint16_t)(u >> 1 | u << 15);
        }
        memcpy(dst + 2 * i, &u, 2);
    }
}

static void scalar_join4(const uint8_t *const planes[], size_t n, bool rotate, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)planes[0][i] | (uint32_t)planes[1][i] << 8 |
                     (uint32_t)planes[2][i] << 16 | (uint32_t)planes[3][i] << 24;

        if (rotate) {
            u = u >> 1 | u << 31;
        }
        memcpy(dst + 4 * i, &u, 4);
    }
}

const struct hdt_planes_kernels hdt_planes_scalar = {
    .name = "scalar",
    .split2 = scalar_split2,
    .split4 = scalar_split4,
    .join2 = scalar_join2,
    .join4 = scalar_join4,
};

/* Slowest first; each needs what those before it need. */
static const struct hdt_planes_kernels *const tables[] = {
    &hdt_planes_scalar,
#ifdef HDT_PLANES_X86
    &hdt_planes_avx2,
    &hdt_planes_avx512,
#endif
};

const struct hdt_planes_kernels *const *hdt_planes_all(size_t *n)
{
    *n = 1;
#ifdef HDT_PLANES_X86
    if (__builtin_cpu_supports("avx2")) {
        *n = 2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
            *n = 3;
        }
    }
#endif
    return tables;
}

/* Elements of 8 bytes are rare (f64, i64): scalar only. */
static void split8(const uint8_t *src, size_t n, bool rotate, uint8_t *const planes[])
{
    for (size_t i = 0; i < n; i++) {
        uint64_t u;

        memcpy(&u, src + 8 * i, 8);
        u = rotate ? (u << 1 | u >> 63) : u;
        for (int p = 0; p < 8; p++) {
            planes[p][i] = (uint8_t)(u >> (8 * p));
        }
    }
}

static void join8(const uint8_t *const planes[], size_t n, bool rotate, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t u = 0;

        for (int p = 0; p < 8; p++) {
            u |= (uint64_t)planes[p][i] << (8 * p);
        }
        u = rotate ? (u >> 1 | u << 63) : u;
        memcpy(dst + 8 * i, &u, 8);
    }
}

bool hdt_planes_rotates(enum hdt_dtype dtype)
{
    return dtype == HDT_DTYPE_F32 || dtype == HDT_DTYPE_BF16 || dtype == HDT_DTYPE_F16 ||
           dtype == HDT_DTYPE_F64;
}

void hdt_planes_split(const struct hdt_planes_kernels *k, size_t size, bool rotate,
                      const uint8_t *src, size_t n, uint8_t *const planes[])
{
    switch (size) {
    case 1:
        memcpy(planes[0], src, n);
        break;
    case 2:
        k->split2(src, n, rotate, planes);
        break;
    case 4:
        k->split4(src, n, rotate, planes);
        break;
    default:
        HDT_ASSERT(size == 8);
        split8(src, n, rotate, planes);
    }
}

void hdt_planes_join(const struct hdt_planes_kernels *k, size_t size, bool rotate,
                     const uint8_t *const planes[], size_t n, uint8_t *dst)
{
    switch (size) {
    case 1:
        memcpy(dst, planes[0], n);
        break;
    case 2:
        k->join2(planes, n, rotate, dst);
        break;
    case 4:
        k->join4(planes, n, rotate, dst);
        break;
    default:
        HDT_ASSERT(size == 8);
        join8(planes, n, rotate, dst);
    }
}
