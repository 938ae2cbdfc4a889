/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles of workers, written to a file and read back from it. */
#include "config.h"

#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/core/profile_file.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct hdt_model_config model = {
    .V = 256, .C = 32, .F = 96, .L = 4, .NH = 4, .NKV = 2, .HS = 8, .T = 64};

/* At micro-batch 1; twice as long at 2. */
static const struct hdt_profile one = {.valid = true,
                                       .micro_batch = 1,
                                       .seq_len = 64,
                                       .embed_fwd_s = 1e-5,
                                       .embed_bwd_s = 2e-5,
                                       .block_fwd_s = 1e-3,
                                       .block_bwd_s = 2.25e-3,
                                       .block_bwd_input_s = 1.25e-3,
                                       .block_bwd_weight_s = 1.125e-3,
                                       .head_fwd_s = 5e-4,
                                       .head_bwd_s = 1e-12,
                                       .step_s_per_param = 2e-9,
                                       .op_overhead_s = 1e-6,
                                       .cast_bytes_per_s = 5e9,
                                       .copy_bytes_per_s = 1e10};

static struct hdt_profile times_two(void)
{
    struct hdt_profile p = one;

    p.micro_batch = 2;
    p.embed_fwd_s *= 2;
    p.embed_bwd_s *= 2;
    p.block_fwd_s *= 2;
    p.block_bwd_s *= 2;
    p.block_bwd_input_s *= 2;
    p.block_bwd_weight_s *= 2;
    p.head_fwd_s *= 2;
    return p;
}

static char *profile_write(void)
{
    static const struct hdt_profile_file_head head = {.model = "m",
                                                      .device = "d",
                                                      .source = "a test",
                                                      .note = "n",
                                                      .n_threads = 3,
                                                      .seq_len = 64};
    struct hdt_profile two = times_two();
    struct hdt_layer_profile file;
    struct hdt_error err = {0};
    char *path = hdt_strdup(hdt_scratch_path("p.json"));

    hdt_profile_file_begin(&file, &head, &model);
    hdt_profile_file_add(&file, &one, 1.5e-3);
    hdt_profile_file_add(&file, &two, NAN);
    cr_assert_eq(hdt_profile_file_write(&file, path, &err), HDT_OK, "%s", err.msg);
    hdt_layer_profile_release(&file);
    return path;
}

static enum hdt_status profile_read(const char *path, int64_t micro_batch, struct hdt_profile *p,
                                    struct hdt_error *err)
{
    const struct hdt_profile_file_want want = {&model, micro_batch, 64, 3, HDT_JOB_FP32};

    return hdt_profile_file_read(path, &want, p, err);
}

#define NEAR(a, b) cr_expect(fabs((a) - (b)) <= 1e-8 * fabs(b), "%g is not %g", a, b)

TestSuite(profile_file, .init = hdt_scratch_init, .fini = hdt_scratch_release);

Test(profile_file, what_was_written_is_read_back)
{
    struct hdt_profile p = {
        .host = "host", .cpus = "0-3", .cast_bytes_per_s = 1, .run_factor = 1.2};
    struct hdt_error err = {0};
    char *path = profile_write();

    cr_assert_eq(profile_read(path, 1, &p, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_expect(p.valid);
    cr_expect_eq(p.micro_batch, 1);
    cr_expect_eq(p.seq_len, 64);
    NEAR(p.embed_fwd_s, 1e-5);
    NEAR(p.embed_bwd_s, 2e-5);
    NEAR(p.block_fwd_s, 1e-3);
    NEAR(p.block_bwd_s, 2.25e-3);
    NEAR(p.block_bwd_input_s, 1.25e-3);
    NEAR(p.block_bwd_weight_s, 1.125e-3);
    NEAR(p.head_fwd_s, 5e-4);
    NEAR(p.head_bwd_s, 1e-9); /* no less than a nanosecond */
    NEAR(p.step_s_per_param, 2e-9);
    NEAR(p.op_overhead_s, 1e-6);
    NEAR(p.cast_bytes_per_s, 5e9);
    NEAR(p.copy_bytes_per_s, 1e10);
    /* The machine is the cluster's to say. */
    cr_expect_str_eq(p.host, "host");
    cr_expect_str_eq(p.cpus, "0-3");
    cr_expect_eq(p.run_factor, 0); /* was said of other times */
    cr_assert_eq(profile_read(path, 3, &p, &err), HDT_OK, "%s: %s", err.where, err.msg);
    NEAR(p.block_fwd_s, 3e-3); /* along the line */
    free(path);
}

Test(profile_file, says_what_it_is_of)
{
    struct hdt_layer_profile file;
    struct hdt_layer_times times;
    struct hdt_error err = {0};
    char *path = profile_write();

    cr_assert_eq(hdt_layer_profile_load(path, &file, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_expect_str_eq(file.model, "m");
    cr_expect_str_eq(file.precision, "fp32");
    cr_expect_eq(file.threads, 3);
    cr_expect_eq(file.shape.num_key_value_heads, 2);
    cr_expect_eq(strlen(file.date), strlen("2026-01-31"));
    /* Two norms of 32; q and o 32 x 32, k and v 32 x 16; gate, up and down 32 x 96. */
    cr_expect_eq(hdt_layer_profile_layer(&file, HDT_LAYER_BLOCK)->params,
                 2 * 32 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 96);
    cr_assert_eq(hdt_layer_profile_times(&file, HDT_LAYER_BLOCK, 1, 1, &times, &err), HDT_OK);
    NEAR(times.recompute_s, 1.5e-3);
    hdt_layer_profile_release(&file);
    free(path);
}

/* What was measured in bf16 is for those that compute in it, and for no others. */
Test(profile_file, is_of_one_precision)
{
    const struct hdt_profile_file_head head = {.model = "m",
                                               .device = "d",
                                               .source = "s",
                                               .note = "",
                                               .n_threads = 3,
                                               .seq_len = 64,
                                               .precision = HDT_JOB_BF16};
    struct hdt_profile_file_want want = {&model, 1, 64, 3, HDT_JOB_BF16};
    struct hdt_layer_profile file;
    struct hdt_error err = {0};
    struct hdt_profile p = {0};
    char *path = hdt_strdup(hdt_scratch_path("bf16.json"));

    hdt_profile_file_begin(&file, &head, &model);
    hdt_profile_file_add(&file, &one, NAN);
    cr_expect_str_eq(file.precision, "bf16");
    cr_assert_eq(hdt_profile_file_write(&file, path, &err), HDT_OK, "%s", err.msg);
    hdt_layer_profile_release(&file);
    cr_expect_eq(hdt_profile_file_read(path, &want, &p, &err), HDT_OK, "%s", err.msg);
    want.precision = HDT_JOB_FP8;
    cr_expect_eq(hdt_profile_file_read(path, &want, &p, &err), HDT_EINVAL);
    cr_expect(strstr(err.hint, "--precision fp8"), "%s", err.hint);
    want.precision = HDT_JOB_FP32;
    cr_expect_eq(hdt_profile_file_read(path, &want, &p, &err), HDT_EINVAL);
    cr_expect(strstr(err.hint, "--precision fp32"), "%s", err.hint);
    free(path);
    path = profile_write();
    want.precision = HDT_JOB_BF16;
    cr_expect_eq(hdt_profile_file_read(path, &want, &p, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "measured in fp32") && strstr(err.msg, "in bf16"), "%s", err.msg);
    free(path);
}

/* The file with one text in place of another. */
static void text_replace(const char *path, const char *old, const char *new)
{
    struct hdt_buf text = {0}, out = {0};
    const char *at;

    cr_assert_eq(hdt_file_read(path, 1 << 20, &text, NULL), HDT_OK);
    at = strstr(hdt_buf_str(&text), old);
    cr_assert(at, "%s", old);
    hdt_buf_appendf(&out, "%.*s%s%s", (int)(at - text.data), text.data, new, at + strlen(old));
    cr_assert_eq(hdt_file_write(path, &out, 0644, HDT_FILE_REPLACE, NULL), HDT_OK);
    hdt_buf_release(&text);
    hdt_buf_release(&out);
}

Test(profile_file, refuses_with_place_and_cause)
{
    static const struct {
        const char *old, *new, *place, *msg;
        int64_t micro_batch;
    } bad[] = {
        {"\"hidden_size\": 32", "\"hidden_size\": 48", "p.json:4:20",
         "the profile was measured with shape.hidden_size 48, the job has 32", 1},
        {"\"seq_len\": 64", "\"seq_len\": 128", "p.json:14:14",
         "the profile was measured with seq_len 128, the job has 64", 1},
        {"\"precision\": \"fp32\"", "\"precision\": \"bf16\"",
         "p.json:", "the profile was measured in bf16, the worker computes this job in fp32", 1},
        {"\"threads\": 3", "\"threads\": 16",
         "p.json:", "the profile was measured with 16 threads, the worker has 3", 1},
        {"\"forward_s\": 1e-5", "\"forward_s\": null", "p.json:22:13",
         "the profile does not say how long the forward of embedding takes at micro-batch 1", 1},
        {"\"optimizer_s_per_param\": 2e-9", "\"optimizer_s_per_param\": null", "p.json:18:28",
         "the profile does not say how long the optimizer takes", 1},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hdt_profile p = {.micro_batch = 77};
        struct hdt_error err = {0};
        char *path = profile_write();

        text_replace(path, bad[i].old, bad[i].new);
        cr_expect_eq(profile_read(path, bad[i].micro_batch, &p, &err), HDT_EINVAL);
        cr_expect(strstr(err.where, bad[i].place), "%s: %s", err.where, err.msg);
        cr_expect_str_eq(err.msg, bad[i].msg);
        cr_expect_eq(p.micro_batch, 77);
        free(path);
    }
}
