/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_WIRE_H
#define HDT_RUNTIME_WIRE_H

/* Little-endian numbers at unaligned places, for the records of sync.h and state.h. */
#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void hdt_wire_put_u16(uint8_t *p, uint16_t v)
{
    v = htole16(v);
    memcpy(p, &v, sizeof(v));
}

static inline void hdt_wire_put_u32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof(v));
}

static inline void hdt_wire_put_u64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof(v));
}

static inline uint64_t hdt_wire_f64_bits(double value)
{
    uint64_t v;

    memcpy(&v, &value, sizeof(v));
    return v;
}

static inline double hdt_wire_bits_f64(uint64_t v)
{
    double value;

    memcpy(&value, &v, sizeof(value));
    return value;
}

static inline void hdt_wire_put_f64(uint8_t *p, double value)
{
    hdt_wire_put_u64(p, hdt_wire_f64_bits(value));
}

static inline uint16_t hdt_wire_get_u16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return le16toh(v);
}

static inline uint32_t hdt_wire_get_u32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return le32toh(v);
}

static inline uint64_t hdt_wire_get_u64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return le64toh(v);
}

static inline double hdt_wire_get_f64(const uint8_t *p)
{
    return hdt_wire_bits_f64(hdt_wire_get_u64(p));
}

#endif /* HDT_RUNTIME_WIRE_H */
