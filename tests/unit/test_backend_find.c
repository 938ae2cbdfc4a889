/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/backend_find.h"
#include "runtime/backend_load.h"
#include "src/base/buf.h"
#include "src/base/log.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* The build folder has a module named cuda with one op in tests/support/partial. */
static void modules_use(const char *path)
{
    setenv("HDT_MODULE_PATH", path, 1);
}

#define PARTIAL "tests/support/partial/.libs"

Test(backend_find, names_every_op)
{
    size_t n = 0;

    while (hdt_backend_op_name(n)) {
        n++;
    }
    cr_expect_eq(n, sizeof(struct hdt_ops) / sizeof(void (*)(void)));
    cr_expect_str_eq(hdt_backend_op_name(0), "gemm");
    cr_expect_str_eq(hdt_backend_op_name(n - 1), "adamw");
}

static void no_op(void)
{
}

/* A hole in the mixed table would be called in the middle of a step. */
Test(backend_find, refuses_a_mixed_table_with_a_hole)
{
    const struct hdt_backend *cpu = NULL;
    void (*all[sizeof(struct hdt_mixed_ops) / sizeof(void (*)(void))])(void);
    struct hdt_mixed_ops mixed;
    struct hdt_backend backend;
    struct hdt_error err = {0};
    size_t n = 0;

    unsetenv("HDT_MODULE_PATH");
    cr_assert_eq(hdt_backend_load("cpu", &cpu, &err), HDT_OK, "%s", err.msg);
    while (hdt_backend_mixed_name(n)) {
        all[n++] = no_op;
    }
    cr_assert_eq(n * sizeof(all[0]), sizeof(all));
    memcpy(&mixed, all, sizeof(mixed));
    backend = *cpu;
    backend.mixed = &mixed;
    cr_expect_eq(hdt_backend_require(&backend, &err), HDT_OK, "%s", err.msg);
    mixed.swiglu_bwd = NULL;
    mixed.adamw = NULL;
    cr_expect_eq(hdt_backend_missing(&backend, NULL), 2);
    cr_expect_eq(hdt_backend_require(&backend, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "lacks mixed swiglu_bwd, mixed adamw"), "%s", err.msg);
}

static void info_of_new(struct hdt_device *device, struct hdt_device_info *info)
{
    (void)device;
    *info = (struct hdt_device_info){.name = "a device with", .has_fp8 = true};
}

static void info_of_old(struct hdt_device *device, struct hdt_device_info *info)
{
    (void)device;
    *info = (struct hdt_device_info){.name = "a device without"};
}

/* By backend and by device; both names are said. */
Test(backend_find, fp8_is_by_device)
{
    static const struct hdt_mixed_ops mixed;
    static const struct hdt_fp8_ops fp8;
    struct hdt_backend backend = {
        .name = "mine", .mixed = &mixed, .fp8 = &fp8, .device_info = info_of_new};
    struct hdt_error err = {0};

    cr_expect(hdt_backend_has_fp8(&backend, NULL));
    cr_expect_eq(hdt_backend_require_fp8(&backend, NULL, &err), HDT_OK);
    backend.device_info = info_of_old;
    cr_expect_eq(hdt_backend_require_fp8(&backend, NULL, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "'mine'") && strstr(err.msg, "'a device without'") &&
                  strstr(err.hint, "precision: bf16"),
              "%s", err.msg);
    backend.device_info = info_of_new;
    backend.fp8 = NULL;
    cr_expect_not(hdt_backend_has_fp8(&backend, NULL));
    cr_expect_str_eq(hdt_backend_fp8_name(0), "quantize");
    cr_expect_null(hdt_backend_fp8_name(2));
}

Test(backend_find, opens_the_cpu_backend)
{
    struct hdt_device_conf conf = {.n_threads = 2};
    const struct hdt_backend *backend = NULL;
    struct hdt_device *device = NULL;
    struct hdt_error err = {0};

    unsetenv("HDT_MODULE_PATH");
    cr_assert_eq(hdt_backend_open("cpu", &conf, &backend, &device, &err), HDT_OK, "%s", err.msg);
    cr_expect_str_eq(backend->name, "cpu");
    cr_expect_eq(hdt_backend_missing(backend, NULL), 0);
    cr_expect_eq(hdt_backend_require(backend, &err), HDT_OK);
    backend->device_close(device);
}

/* One refusal, which says what is missing; nothing is handed out. */
Test(backend_find, refuses_to_compute_with_a_partial_module)
{
    struct hdt_device_conf conf = {.n_threads = 2};
    const struct hdt_backend *backend = NULL;
    struct hdt_device *device = NULL;
    struct hdt_error err = {0};

    modules_use(PARTIAL);
    cr_assert_eq(hdt_backend_load("cuda", &backend, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_backend_missing(backend, NULL), 17);
    backend = NULL;
    cr_assert_eq(hdt_backend_open("cuda", &conf, &backend, &device, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "gemm, rmsnorm_fwd, ") && strstr(err.msg, "adamw"), "%s", err.msg);
    cr_expect_null(strstr(err.msg, "zero"), "%s", err.msg);
    cr_expect(strstr(err.hint, "cpu") != NULL);
    cr_expect_null(backend);
    cr_expect_null(device);
}

/* "auto" passes the partial module over and says so in one line. */
Test(backend_find, auto_takes_the_next_one_and_says_why)
{
    struct hdt_device_conf conf = {.n_threads = 2};
    const struct hdt_backend *backend = NULL;
    struct hdt_device *device = NULL;
    struct hdt_error err = {0};
    struct hdt_buf lines = {0};
    const char *line;

    modules_use(PARTIAL);
    hdt_log_init("test", HDT_LOG_INFO);
    cr_assert_eq(hdt_backend_open("auto", &conf, &backend, &device, &err), HDT_OK, "%s", err.msg);
    cr_expect_str_eq(backend->name, "cpu");
    hdt_log_tail(10, &lines);
    line = strstr(hdt_buf_str(&lines), "backend cpu chosen");
    cr_assert(line != NULL, "%s", hdt_buf_str(&lines));
    cr_expect(strstr(line, "'cuda'") && strstr(line, "gemm"), "%s", line);
    cr_expect_null(strstr(line + 1, "backend cpu chosen"));
    backend->device_close(device);
    hdt_buf_release(&lines);
}

Test(backend_find, names_the_library_that_is_missing)
{
    const struct hdt_backend *backend = NULL;
    struct hdt_error err = {0};

    modules_use("tests/support/needy/.libs");
    cr_assert_eq(hdt_backend_load("needy", &backend, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "libgone-1.so: not found"), "%s", err.msg);
    cr_expect(strstr(err.hint, "install the package that has libgone-1.so"), "%s", err.hint);
}

struct seen {
    int n_cpu;
    int n_partial;
    int n_needy;
};

static void found_count(const struct hdt_backend_found *found, void *arg)
{
    struct seen *seen = arg;

    if (strcmp(found->name, "cpu") == 0) {
        seen->n_cpu++;
        cr_expect_eq(found->device_idx, 0);
        cr_expect(found->info && found->info->memory_bytes > 0);
        cr_expect_str_eq(found->missing, "");
        cr_expect_eq(found->error->status, HDT_OK);
    } else if (strstr(found->path, PARTIAL)) {
        seen->n_partial++;
        cr_expect_eq(found->device_idx, -1);
        cr_expect(found->backend && strstr(found->missing, "gemm"));
        cr_expect(strstr(found->error->msg, "on fire"), "%s", found->error->msg);
    } else if (strcmp(found->name, "needy") == 0) {
        seen->n_needy++;
        cr_expect_null(found->backend);
        cr_expect(strstr(found->error->msg, "not found"), "%s", found->error->msg);
    }
}

Test(backend_find, lists_modules_with_devices_and_errors)
{
    struct seen seen = {0};

    modules_use(PARTIAL ":tests/support/needy/.libs");
    hdt_backend_list(&(struct hdt_device_conf){0}, found_count, &seen);
    cr_expect_eq(seen.n_cpu, 1);
    cr_expect_eq(seen.n_partial, 1);
    cr_expect_eq(seen.n_needy, 1);
}

/* Only some devices have parts that can be left out. */
Test(backend_find, a_cpu_cannot_be_limited_to_multiprocessors)
{
    const struct hdt_device_conf conf = {.n_threads = 2, .sm_limit = 16};
    const struct hdt_backend *backend;
    struct hdt_device *device;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_backend_open("cpu", &conf, &backend, &device, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "to 16 multiprocessors") && strstr(err.msg, "2 threads"), "%s",
              err.msg);
}
