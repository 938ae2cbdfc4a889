/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/devices.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static enum hdt_status parse(const char *text, struct hdt_devices *devices, struct hdt_error *err)
{
    return hdt_devices_parse(text, strlen(text), "d.yaml", devices, err);
}

#define SOURCES                                                                                    \
 "sources:\n"                                                                                      \
 "  - {id: sheet, title: Data sheet, url: 'https://a.example/x.pdf'}\n"

Test(devices, unknown_values_are_nan)
{
    static const char text[] = SOURCES "devices:\n"
                                       "  - name: X1\n"
                                       "    aliases: [x-one]\n"
                                       "    compute: {from: sheet, bf16: 312, fp8: null}\n"
                                       "    memory: {gb: null}\n";
    struct hdt_devices devices;
    struct hdt_error err = {0};
    const struct hdt_device *d;

    cr_assert_eq(parse(text, &devices, &err), HDT_OK, "%s: %s", err.where, err.msg);
    d = hdt_devices_find(&devices, "x1");
    cr_assert(d);
    cr_expect_eq(d, hdt_devices_find(&devices, "X-ONE"));
    cr_expect_eq(d->compute.tflops[HDT_PRECISION_BF16], 312);
    cr_expect(isnan(d->compute.tflops[HDT_PRECISION_FP8]));
    cr_expect(isnan(d->compute.tflops[HDT_PRECISION_FP32]));
    cr_expect(isnan(d->memory.gb) && isnan(d->memory.gb_per_s));
    cr_expect(isnan(d->link.gb_per_s) && isnan(d->power.tdp_w));
    cr_expect_str_eq(hdt_devices_source(&devices, d->compute.from)->title, "Data sheet");
    cr_expect_null(hdt_devices_source(&devices, ""));
    cr_expect_null(hdt_devices_find(&devices, "X2"));
    hdt_devices_release(&devices);
}

struct bad {
    const char *text;
    const char *where, *msg, *hint; /* place and message as they are, a part of the hint */
};

static const struct bad bad_files[] = {
    {"devices:\n  - {name: X, compute: {fp23: 1}}\n", "d.yaml:2:25",
     "unknown key 'devices[0].compute.fp23'", "did you mean 'fp32'?"},
    {SOURCES "devices:\n  - name: X\n    compute: {from: sheet, bf16: 1e9}\n", "d.yaml:5:34",
     "cannot set 'devices[0].compute.bf16': 1e9 is too large", "allowed: 0.01 to 100000"},
    {SOURCES "devices:\n  - name: X\n    power: {from: sheet, tdp_w: -3}\n", "d.yaml:5:33",
     "cannot set 'devices[0].power.tdp_w': -3 is too small", "allowed: 1 to 100000"},
    {"devices:\n  - name: X\n  - name: Y\n    aliases: [Z, x]\n", "d.yaml:4:18",
     "the name 'x' is given twice, first to 'X'", "upper and lower case are the same"},
    {"devices:\n  - name: X\n    compute: {bf16: 1}\n", "d.yaml:3:14",
     "the compute of 'X' has values, but no source", "write null"},
    {SOURCES "devices:\n  - name: X\n    memory: {from: shet, gb: 1}\n", "d.yaml:5:20",
     "there is no source 'shet'", "did you mean 'sheet'?"},
    {"sources:\n  - {id: a, title: t, url: 'https://a'}\n  - {id: a, title: t, url: 'https://b'}\n",
     "d.yaml:3:10", "the source id 'a' is given twice", ""},
    {"sources:\n  - {id: a, title: t, url: data sheet}\n", "d.yaml:2:28",
     "'data sheet' is no address of a page", "https://"},
    {"devices:\n  - name: 'X 1'\n", "d.yaml:2:11", "'X 1' is no name of a device", "letters"},
    {"devices:\n  - vendor: V\n", "d.yaml:2:5", "missing key 'devices[0].name'", ""},
};

Test(devices, refuses_with_place_cause_and_remedy)
{
    for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
        struct hdt_devices devices;
        struct hdt_error err = {0};

        cr_assert_eq(parse(bad_files[i].text, &devices, &err), HDT_EINVAL, "%s", bad_files[i].text);
        cr_expect_str_eq(err.where, bad_files[i].where);
        cr_expect_str_eq(err.msg, bad_files[i].msg);
        cr_expect(strstr(err.hint, bad_files[i].hint), "%s", err.hint);
    }
}

Test(devices, a_name_that_is_not_there_has_a_neighbour)
{
    struct hdt_devices devices;
    struct hdt_error err = {0};
    const struct hdt_device *d = NULL;

    cr_assert_eq(hdt_devices_load(CATALOGUE, &devices, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_expect_eq(hdt_devices_get(&devices, "h100-sxm6-80gb", &d, &err), HDT_ENOENT);
    cr_expect_str_eq(err.hint, "did you mean 'H100-SXM5-80GB'?");
    cr_expect_null(d);
    hdt_devices_release(&devices);
    cr_expect_eq(hdt_devices_load("/nowhere/devices.yaml", &devices, &err), HDT_ENOENT);
}

/* The makers that a catalogue of this field cannot leave out, and how many devices it has. */
Test(devices, the_catalogue_covers_the_field)
{
    static const char *const vendors[] = {"NVIDIA",    "AMD",   "Intel", "Huawei",
                                          "Cambricon", "Hygon", "MetaX", "Moore Threads",
                                          "Iluvatar",  "Google"};
    struct hdt_devices devices;
    struct hdt_error err = {0};
    size_t n_accelerators = 0, n_cpus = 0;

    cr_assert_eq(hdt_devices_load(CATALOGUE, &devices, &err), HDT_OK, "%s: %s", err.where, err.msg);
    for (size_t v = 0; v < sizeof(vendors) / sizeof(vendors[0]); v++) {
        bool found = false;

        for (size_t i = 0; i < devices.items.n; i++) {
            const struct hdt_device *d = (const struct hdt_device *)devices.items.items + i;

            found = found || (strcmp(d->vendor, vendors[v]) == 0 && d->kind != HDT_DEVICE_CPU);
        }
        cr_expect(found, "no accelerator of %s", vendors[v]);
    }
    for (size_t i = 0; i < devices.items.n; i++) {
        const struct hdt_device *d = (const struct hdt_device *)devices.items.items + i;

        n_accelerators += d->kind != HDT_DEVICE_CPU;
        n_cpus += d->kind == HDT_DEVICE_CPU;
    }
    cr_expect_geq(n_accelerators, 25);
    cr_expect_geq(n_cpus, 2);
    hdt_devices_release(&devices);
}

/* As nvidia-smi calls them, "-" for blanks, with the dense bf16 peak that their data sheets give.
 */
Test(devices, the_driver_s_names_are_known)
{
    static const struct {
        const char *name;
        double bf16;
    } known[] = {
        {"NVIDIA-H200", 989.5},
        {"NVIDIA-H100-80GB-HBM3", 989.4},
        {"NVIDIA-A100-SXM4-80GB", 312},
        {"NVIDIA-L40S", 362.05},
        {"NVIDIA-A100-PCIE-40GB", 312},
        {"NVIDIA-H100-PCIe", 756.5},
        {"NVIDIA-GeForce-RTX-4090", 165.2},
    };
    struct hdt_devices devices;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_devices_load(CATALOGUE, &devices, &err), HDT_OK, "%s: %s", err.where, err.msg);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const struct hdt_device *d = hdt_devices_find(&devices, known[i].name);

        cr_assert(d, "%s", known[i].name);
        cr_expect(fabs(d->compute.tflops[HDT_PRECISION_BF16] / known[i].bf16 - 1) < 0.002, "%s: %g",
                  known[i].name, d->compute.tflops[HDT_PRECISION_BF16]);
    }
    hdt_devices_release(&devices);
}

/* Figures that other people took from the same data sheets: the table of devices in the source of
 * the planner FlashFlex (TFLOPS of fp16, GB). Where theirs is the figure with sparsity (A10, L4)
 * ours must be half of it. */
Test(devices, figures_are_dense)
{
    static const struct {
        const char *name;
        double fp16, gb;
    } theirs[] = {
        {"A5000", 111.1, 24}, {"A6000", 154.8, 48},    {"L40", 181, 48},
        {"A100", 312, 80},    {"A10", 250.0 / 2, 24},  {"L4", 242.0 / 2, 24},
        {"T4", 65, 16},       {"RTX-4090", 165.2, 24}, {"H100-PCIe", 1513.0 / 2, 80},
    };
    struct hdt_devices devices;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_devices_load(CATALOGUE, &devices, &err), HDT_OK, "%s: %s", err.where, err.msg);
    for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++) {
        const struct hdt_device *d = hdt_devices_find(&devices, theirs[i].name);

        cr_assert(d, "%s", theirs[i].name);
        cr_expect(fabs(d->compute.tflops[HDT_PRECISION_FP16] / theirs[i].fp16 - 1) < 0.002,
                  "%s: %g", theirs[i].name, d->compute.tflops[HDT_PRECISION_FP16]);
        cr_expect_eq(d->memory.gb, theirs[i].gb, "%s: %g", theirs[i].name, d->memory.gb);
    }
    /* Precisions of fewer bits are never slower, where both are known. */
    for (size_t i = 0; i < devices.items.n; i++) {
        const struct hdt_device *d = (const struct hdt_device *)devices.items.items + i;
        const double *t = d->compute.tflops;

        cr_expect(!(t[HDT_PRECISION_FP8] < t[HDT_PRECISION_BF16]), "%s", d->name);
        cr_expect(!(t[HDT_PRECISION_FP16] < t[HDT_PRECISION_TF32]), "%s", d->name);
        cr_expect(!(t[HDT_PRECISION_TF32] < t[HDT_PRECISION_FP32]), "%s", d->name);
    }
    hdt_devices_release(&devices);
}
