/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Whether the self-test of devices tells a wrong one from a right one. */
#include "runtime/backend_find.h"
#include "runtime/backend_load.h"
#include "runtime/selftest/codecs.h"
#include "runtime/selftest/selftest.h"
#include "src/base/buf.h"
#include "tests/support/host_codecs.h"
#include "tests/support/mixed_ref.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static const struct hdt_backend *cpu_backend(void)
{
    const struct hdt_backend *cpu;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_backend_load("cpu", &cpu, &err), HDT_OK, "%s", err.msg);
    return cpu;
}

static int misses_of(const struct hdt_backend *backend, const char *mixed_op)
{
    const struct hdt_selftest_conf conf = {.device = {.n_threads = 2}, .mixed_op = mixed_op};

    return hdt_selftest_backend(backend, &conf);
}

/* In attention probabilities are rounded before the second product as well, which costs more than
 * the last rounding does. */
static bool is_attention(const char *op)
{
    return strncmp(op, "attention", strlen("attention")) == 0;
}

Test(selftest, takes_mixed_ops_that_round_to_nearest)
{
    const struct hdt_backend *ref = hdt_mixed_ref(cpu_backend());

    for (size_t i = 0; hdt_backend_mixed_name(i); i++) {
        const char *op = hdt_backend_mixed_name(i);

        cr_expect_eq(misses_of(ref, op), 0, "%s", op);
    }
}

Test(selftest, refuses_mixed_ops_that_cut_bits_off)
{
    const struct hdt_backend *ref = hdt_mixed_ref_truncating(cpu_backend());

    for (size_t i = 0; hdt_backend_mixed_name(i); i++) {
        const char *op = hdt_backend_mixed_name(i);

        cr_expect(is_attention(op) || misses_of(ref, op) > 0, "%s", op);
    }
}

/* One bit of the codes of int8 and int4 is another. */
static void quant_wrong(struct hdt_stream *s, const struct hdt_device_quant *q,
                        const struct hdt_device_in *in, void *dst)
{
    uint8_t *bytes = dst;

    hdt_host_codecs.quant_encode(s, q, in, dst);
    if (in->n > 64) {
        bytes[in->n / 2] ^= 1;
    }
}

static uint64_t count_up(void *arg)
{
    return ++*(uint64_t *)arg;
}

/* Misses of some codecs, of a tensor of 777 values that go up and down. */
static int codec_misses(const struct hdt_device_codecs *codecs)
{
    static const char *const texts[] = {"none", "bf16", "fp16", "int8", "int8:minmax", "int4"};
    uint64_t state = 0;
    const struct hdt_codec_contents contents = {.random = count_up, .arg = &state};
    const struct hdt_device_conf conf = {.n_threads = 1};
    struct hdt_codec_trial *t = hdt_calloc(1, sizeof(*t));
    struct hdt_backend backend = *cpu_backend();
    struct hdt_codec_side side;
    struct hdt_device *device;
    struct hdt_stream *stream;
    int n_misses;

    backend.codecs = codecs;
    cr_assert_eq(backend.device_open(&conf, &device, NULL), HDT_OK);
    cr_assert_eq(backend.stream_new(device, &stream, NULL), HDT_OK);
    hdt_codec_side_open(&side, &backend, device, stream);
    t->side = &side;
    t->contents = &contents;
    t->content = "waves";
    t->dtype = HDT_DTYPE_F32;
    t->n = 777;
    for (size_t i = 0; i < t->n; i++) {
        const float x = (float)((i * 37) % 101) / 50 - 1;

        memcpy(t->plain + i * sizeof(x), &x, sizeof(x));
    }
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        size_t len;

        cr_assert_eq(hdt_codec_spec_parse(texts[i], &t->spec, NULL), HDT_OK);
        t->text = texts[i];
        len = hdt_codec_trial_encode(t, NULL);
        cr_assert_gt(len, 0);
        hdt_codec_trial_decode(t, len, false);
        hdt_codec_trial_decode(t, len, true);
    }
    n_misses = t->n_misses;
    cr_expect_gt(t->n_checks, 6 * 6);
    hdt_codec_side_close(&side);
    backend.stream_free(stream);
    backend.device_close(device);
    free(t);
    return n_misses;
}

Test(selftest, takes_codecs_that_are_the_definition)
{
    cr_expect_eq(codec_misses(&hdt_host_codecs), 0);
}

Test(selftest, refuses_codecs_with_a_wrong_bit)
{
    struct hdt_device_codecs codecs = hdt_host_codecs;

    codecs.quant_encode = quant_wrong;
    cr_expect_eq(codec_misses(&codecs), 3); /* of the three that quantize */
}
