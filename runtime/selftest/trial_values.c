/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/selftest/trial_values.h"

#include <math.h>
#include <string.h>

static uint64_t random_state = HDT_TRIAL_SEED;

static double random_uniform(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 40) / 0x1p24;
}

static double random_normal(void)
{
    double sum = -2;

    for (int i = 0; i < 4; i++) {
        sum += random_uniform();
    }
    return sum * 1.7;
}

double hdt_trial_value(const struct backend_array *a, const struct backend_shape *s, size_t i)
{
    switch (a->fill) {
    case BACKEND_FILL_SQUARE:
        return 0.01 + random_uniform();
    case BACKEND_FILL_INDEX:
        return floor(random_uniform() * s->n_index);
    case BACKEND_FILL_LABEL:
        return i % 5 == 3 ? -100 : floor(random_uniform() * s->n_index);
    case BACKEND_FILL_WIDE:
        return random_normal() * exp2(floor(random_uniform() * 24) - 12);
    default:
        return random_normal();
    }
}

/* IEEE 754 binary16 of a float, bits dropped; beyond its range infinity. */
static uint16_t half_of(float f)
{
    uint32_t bits, mant, sign;
    int exp;

    memcpy(&bits, &f, sizeof(bits));
    sign = bits >> 16 & 0x8000;
    exp = (int)(bits >> 23 & 0xff) - 127 + 15;
    mant = bits & 0x7fffff;
    if (exp >= 31) {
        return (uint16_t)(sign | 0x7c00 | (isnan(f) ? 0x200 : 0));
    }
    if (exp > 0) {
        return (uint16_t)(sign | (uint32_t)exp << 10 | mant >> 13);
    }
    return (uint16_t)(sign | (exp < -10 ? 0 : (mant | 0x800000) >> (14 - exp)));
}

static double half_value(uint16_t half)
{
    const int exp = half >> 10 & 0x1f, mant = half & 0x3ff;
    double value = exp == 0 ? ldexp(mant, -24) : ldexp(1024 + mant, exp - 25);

    if (exp == 31) {
        value = mant ? (double)NAN : (double)INFINITY;
    }
    return half & 0x8000 ? -value : value;
}

/* E5M2 is the upper byte of a half; E4M3 a half of a 256th with other bits dropped, but for NaN. */
static uint8_t fp8_of(enum hdt_dtype dtype, float f)
{
    const uint16_t half = half_of(dtype == HDT_DTYPE_F8E5M2 ? f : f / 256);

    return (uint8_t)(dtype == HDT_DTYPE_F8E5M2 ? half >> 8
                                               : (half >> 8 & 0x80) | (half >> 7 & 0x7f));
}

static double fp8_value(enum hdt_dtype dtype, uint8_t code)
{
    if (dtype == HDT_DTYPE_F8E5M2) {
        return half_value((uint16_t)(code << 8));
    }
    return (code & 0x7f) == 0x7f
               ? (double)NAN
               : 256 * half_value((uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7));
}

void hdt_trial_store(enum hdt_dtype dtype, double value, char *at)
{
    float f = (float)value;
    int32_t n = dtype == HDT_DTYPE_I32 ? (int32_t)value : 0;
    uint32_t bits;
    uint16_t half;

    switch (dtype) {
    case HDT_DTYPE_F64:
        memcpy(at, &value, sizeof(value));
        break;
    case HDT_DTYPE_I32:
        memcpy(at, &n, sizeof(n));
        break;
    case HDT_DTYPE_BF16:
        memcpy(&bits, &f, sizeof(bits));
        half = (uint16_t)(bits >> 16);
        memcpy(at, &half, sizeof(half));
        break;
    case HDT_DTYPE_F16:
        half = half_of(f);
        memcpy(at, &half, sizeof(half));
        break;
    case HDT_DTYPE_F8E4M3:
    case HDT_DTYPE_F8E5M2:
        *(uint8_t *)at = fp8_of(dtype, f);
        break;
    default:
        memcpy(at, &f, sizeof(f));
    }
}

double hdt_trial_load(enum hdt_dtype dtype, const char *at)
{
    double value = 0;
    float f;
    int32_t n;
    uint32_t bits = 0;
    uint16_t half;

    switch (dtype) {
    case HDT_DTYPE_F64:
        memcpy(&value, at, sizeof(value));
        return value;
    case HDT_DTYPE_I32:
        memcpy(&n, at, sizeof(n));
        return n;
    case HDT_DTYPE_BF16:
        memcpy((char *)&bits + 2, at, 2); /* little-endian */
        memcpy(&f, &bits, sizeof(f));
        return (double)f;
    case HDT_DTYPE_F16:
        memcpy(&half, at, sizeof(half));
        return half_value(half);
    case HDT_DTYPE_F8E4M3:
    case HDT_DTYPE_F8E5M2:
        return fp8_value(dtype, *(const uint8_t *)at);
    default:
        memcpy(&f, at, sizeof(f));
        return (double)f;
    }
}

void hdt_trial_patterns(const struct backend_array *a, char *at)
{
    for (uint32_t i = 0; i < 65536 && a->len >= 65536; i++) {
        uint32_t word = i << 16 | (i * 40503u & 0xffff);
        uint16_t half = (uint16_t)i;

        if (hdt_dtype_size(a->dtype) == 2) {
            memcpy(at + i * 2, &half, sizeof(half));
        } else {
            memcpy(at + i * 4, &word, sizeof(word));
        }
    }
}
