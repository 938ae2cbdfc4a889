/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/backend_load.h"
#include "src/base/buf.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* A test program finds the modules of the build tree that it stands in. */
Test(backend_load, finds_the_cpu_backend_of_the_build_tree)
{
    const struct hdt_backend *backend = NULL;
    struct hdt_device_conf conf = {.n_threads = 2};
    struct hdt_device_info info;
    struct hdt_device *device;
    struct hdt_error err = {0};

    unsetenv("HDT_MODULE_PATH");
    cr_assert_eq(hdt_backend_load("cpu", &backend, &err), HDT_OK, "%s", err.msg);
    cr_expect_str_eq(backend->name, "cpu");
    cr_expect(backend->caps & HDT_BACKEND_HOST_MEMORY);
    cr_assert_eq(backend->device_open(&conf, &device, &err), HDT_OK);
    backend->device_info(device, &info);
    cr_expect_eq(info.n_threads, 2);
    cr_expect(info.memory_bytes > 0 && strlen(info.name) > 0);
    backend->device_close(device);
}

Test(backend_load, names_every_folder_tried)
{
    const struct hdt_backend *backend = NULL;
    struct hdt_error err = {0};

    setenv("HDT_MODULE_PATH", "/no/such:/nor/this", 1);
    cr_expect_eq(hdt_backend_load("abacus", &backend, &err), HDT_ENOENT);
    cr_expect(strstr(err.msg, "backend_abacus.so") && strstr(err.msg, "/no/such, /nor/this, "),
              "%s", err.msg);
    cr_expect(strstr(err.hint, "HDT_MODULE_PATH") != NULL);
    cr_expect_null(backend);
}

Test(backend_load, refuses_names_that_are_paths)
{
    const struct hdt_backend *backend = NULL;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_backend_load("../evil", &backend, &err), HDT_EINVAL);
    cr_expect_eq(hdt_backend_load("", &backend, &err), HDT_EINVAL);
}

/* A module of another interface number, built beside this test. */
Test(backend_load, refuses_another_interface)
{
    const struct hdt_backend *backend = NULL;
    struct hdt_error err = {0};

    setenv("HDT_MODULE_PATH", ".libs:tests/support/.libs", 1);
    cr_expect_eq(hdt_backend_load("oldabi", &backend, &err), HDT_EVERSION, "%s", err.msg);
    cr_expect_eq(hdt_backend_load("nosymbol", &backend, &err), HDT_ENOTSUP, "%s", err.msg);
    cr_expect_null(backend);
}
