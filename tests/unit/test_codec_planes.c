/* SPDX-License-Identifier: Apache-2.0 */
/* Planes are the bytes that the definition says, in every table, at every length and alignment. */
#include "config.h"

#include "compress/planes.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <string.h>

#define N_MAX 700
#define SLACK 16

/* Byte p of element i, rotated left by a bit: bit by bit. */
static uint8_t plane_byte(const uint8_t *src, size_t size, bool rotate, size_t i, size_t p)
{
    const size_t n_bits = 8 * size;
    unsigned byte = 0;

    for (size_t b = 0; b < 8; b++) {
        size_t bit = (8 * p + b + n_bits - (rotate ? 1 : 0)) % n_bits;

        byte |= (unsigned)(src[size * i + bit / 8] >> bit % 8 & 1) << b;
    }
    return (uint8_t)byte;
}

static void check_table(const struct hdt_planes_kernels *k, size_t size, bool rotate,
                        const uint8_t *src, size_t n)
{
    static uint8_t mem[8 * (N_MAX + SLACK)], back[8 * N_MAX + SLACK];
    uint8_t *planes[8] = {0};

    memset(mem, 0xa5, sizeof(mem));
    memset(back, 0xa5, sizeof(back));
    for (size_t p = 0; p < size; p++) {
        planes[p] = mem + p * (n + 1); /* a byte between them, which must stay; n sets alignment */
    }
    hdt_planes_split(k, size, rotate, src, n, planes);
    for (size_t p = 0; p < size; p++) {
        for (size_t i = 0; i < n; i++) {
            cr_assert_eq(planes[p][i], plane_byte(src, size, rotate, i, p),
                         "%s: size %zu rotate %d n %zu element %zu plane %zu", k->name, size,
                         rotate, n, i, p);
        }
        cr_assert_eq(planes[p][n], 0xa5, "%s writes behind a plane of %zu", k->name, n);
    }
    hdt_planes_join(k, size, rotate, (const uint8_t *const *)planes, n, back + 1);
    cr_assert_eq(memcmp(back + 1, src, size * n), 0, "%s: size %zu n %zu", k->name, size, n);
    cr_assert(back[0] == 0xa5 && back[1 + size * n] == 0xa5);
}

Test(codec_planes, every_table_cuts_and_joins_as_defined)
{
    static uint8_t src[8 * N_MAX + SLACK];
    const struct hdt_planes_kernels *const *tables;
    struct values_rng rng;
    size_t n_tables;

    hdt_values_rng_init(&rng, "every_table_cuts_and_joins_as_defined");
    for (size_t i = 0; i < sizeof(src); i++) {
        src[i] = (uint8_t)hdt_values_below(&rng, 256);
    }
    tables = hdt_planes_all(&n_tables);
    for (size_t t = 0; t < n_tables; t++) {
        for (size_t n = 0; n <= N_MAX; n += n < 140 ? 1 : 1 + hdt_values_below(&rng, 60)) {
            const uint8_t *at = src + hdt_values_below(&rng, SLACK);

            for (size_t size = 1; size <= 8; size *= 2) {
                check_table(tables[t], size, false, at, n);
                if (size > 1) {
                    check_table(tables[t], size, true, at, n);
                }
            }
        }
    }
}
