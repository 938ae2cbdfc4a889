/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/op_check.h"
#include "src/base/buf.h"
#include "runtime/selftest/ref_ops.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define N_THREADS 4
#define OUT_MAX   400000

/* ---- Random values, and float and double copies of them -------------------------------------- */

static uint64_t random_state = OP_SEED;

static double random_value(void)
{
    double sum = 0;

    for (int i = 0; i < 4; i++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(random_state >> 40) / 0x1p24 - 0.5;
    }
    return (double)(float)(sum * 1.7);
}

struct op_array hdt_op_array_new(size_t len)
{
    struct op_array a = {
        .f = hdt_calloc(len, sizeof(float)), .d = hdt_calloc(len, sizeof(double)), .len = len};

    for (size_t i = 0; i < len; i++) {
        a.d[i] = random_value();
        a.f[i] = (float)a.d[i];
    }
    return a;
}

void hdt_op_array_free(struct op_array *a)
{
    free(a->f);
    free(a->d);
}

/* ---- Running an op on all kernels and thread counts ------------------------------------------ */

static const struct hdt_cpu_kernels *const all_kernels[] = {
    &hdt_cpu_kernels_base,
#ifdef HAVE_X86_64_V3
    &hdt_cpu_kernels_v3,
#endif
};

static bool kernels_can_run(const struct hdt_cpu_kernels *kernels)
{
#ifdef HAVE_X86_64_V3
    return kernels != &hdt_cpu_kernels_v3 ||
           (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
#else
    return kernels != NULL;
#endif
}

static void case_run(const struct op_case *c, const struct hdt_cpu_kernels *kernels, int n_threads,
                     float *out)
{
    struct hdt_device_conf conf = {.n_threads = n_threads};
    struct hdt_device *device;
    struct hdt_stream *stream;

    cr_assert_eq(hdt_backend_cpu.device_open(&conf, &device, NULL), HDT_OK);
    device->kernels = kernels;
    cr_assert_eq(hdt_backend_cpu.stream_new(device, &stream, NULL), HDT_OK);
    c->run(stream, c->arg, out);
    cr_assert_eq(hdt_backend_cpu.stream_wait(stream, NULL), HDT_OK);
    hdt_backend_cpu.stream_free(stream);
    hdt_backend_cpu.device_close(device);
}

static size_t case_len(const struct op_case *c)
{
    size_t len = 0;

    for (int i = 0; i < OP_PARTS_MAX; i++) {
        len += c->parts[i].len;
    }
    return len;
}

static void case_compare(const struct op_case *c, const char *isa, const float *out)
{
    for (int i = 0; i < OP_PARTS_MAX && c->parts[i].len > 0; i++) {
        double nmse = hdt_ref_nmse(out, c->parts[i].want, c->parts[i].len);

        cr_expect(nmse < OP_TOLERANCE, "%s, %s kernels, %s: normalised squared error %g (seed %u)",
                  c->name, isa, c->parts[i].name, nmse, OP_SEED);
        out += c->parts[i].len;
    }
}

void hdt_op_case_check(const struct op_case *c)
{
    size_t len = case_len(c);
    float *one = hdt_calloc(len, sizeof(*one)), *many = hdt_calloc(len, sizeof(*many));

    cr_assert(len > 0 && len <= OUT_MAX);
    for (size_t k = 0; k < sizeof(all_kernels) / sizeof(all_kernels[0]); k++) {
        if (!kernels_can_run(all_kernels[k])) {
            continue;
        }
        case_run(c, all_kernels[k], 1, one);
        case_compare(c, all_kernels[k]->isa, one);
        for (int n = 2; n <= N_THREADS; n++) {
            case_run(c, all_kernels[k], n, many);
            cr_expect_eq(memcmp(one, many, len * sizeof(*one)), 0,
                         "%s, %s kernels: %d threads give other bits than one", c->name,
                         all_kernels[k]->isa, n);
        }
    }
    free(one);
    free(many);
}

void hdt_op_case_run_base(const struct op_case *c, float *out)
{
    case_run(c, &hdt_cpu_kernels_base, 1, out);
}
