/* SPDX-License-Identifier: Apache-2.0 */
/* hdt device: the catalogue of devices. */
#include "config.h"

#include "src/base/buf.h"
#include "src/cli/cmd.h"
#include "src/core/devices.h"

#include <argp.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum device_option { OPT_JSON = 256, OPT_CATALOGUE };

struct device_args {
    const char *name, *catalogue;
    bool json, wants_name;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct device_args *args = state->input;

    switch (key) {
    case OPT_JSON:
        args->json = true;
        return 0;
    case OPT_CATALOGUE:
        args->catalogue = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (!args->wants_name || args->name) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->name = arg;
        return 0;
    case ARGP_KEY_END:
        if (args->wants_name && !args->name) {
            argp_error(state, "which device?");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {"catalogue", OPT_CATALOGUE, "FILE", 0, "Another catalogue than the installed one", 0},
    {0},
};

/* A number in a table: at most four digits; "-" is not known. */
static const char *number(double value, char out[16])
{
    if (isnan(value)) {
        snprintf(out, 16, "-");
    } else {
        snprintf(out, 16, value < 100 ? "%.3g" : "%.0f", value);
    }
    return out;
}

/* ---- list ---- */

static const struct argp list_argp = {
    .options = options,
    .parser = option_parse,
    .doc = "List the devices of the catalogue: peak rates of dense matrix products by precision "
           "(TFLOPS), memory (GB, GB/s), link to the other devices of a node (GB/s in one "
           "direction), power (W). \"-\": no public figure is known.",
};

static void list_print(const struct hdt_devices *devices)
{
    static const char *const heads[] = {"FP32", "TF32", "BF16", "FP16", "FP8",
                                        "INT8", "GB",   "GB/S", "LINK", "W"};
    char text[16];

    printf("%-15s  %-13s", "DEVICE", "VENDOR");
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        printf("  %5s", heads[i]);
    }
    for (size_t i = 0; i < devices->items.n; i++) {
        const struct hdt_device *d = (const struct hdt_device *)devices->items.items + i;

        printf("\n%-15s  %-13s", d->name, d->vendor);
        for (int p = 0; p < HDT_N_PRECISIONS; p++) {
            printf("  %5s", number(d->compute.tflops[p], text));
        }
        printf("  %5s", number(d->memory.gb, text));
        printf("  %5s", number(d->memory.gb_per_s, text));
        printf("  %5s", number(d->link.gb_per_s, text));
        printf("  %5s", number(d->power.tdp_w, text));
    }
    putchar('\n');
}

static void json_print(json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    putchar('\n');
    json_decref(json);
}

static int list_run(int argc, char **argv)
{
    struct device_args args = {0};
    struct hdt_devices devices;
    struct hdt_error err = {0};

    hdt_cmd_parse(&list_argp, argc, argv, &args);
    if (hdt_devices_load(args.catalogue, &devices, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (args.json) {
        json_print(hdt_conf_to_json(&hdt_devices_schema, &devices));
    } else {
        list_print(&devices);
    }
    hdt_devices_release(&devices);
    return HDT_EXIT_OK;
}

/* ---- show ---- */

static const struct argp show_argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "NAME",
    .doc = "Say what the catalogue knows of a device, and where each value is from. Upper and "
           "lower case of NAME are the same; aliases as \"H100\" will do.",
};

/* "80 GB", "no GB known" */
static void value_add(struct hdt_buf *line, double value, const char *unit)
{
    const char *sep = line->len > 0 ? ", " : "";

    if (isnan(value)) {
        hdt_buf_appendf(line, "%s%s not known", sep, unit);
    } else {
        hdt_buf_appendf(line, "%s%g %s", sep, value, unit);
    }
}

static void group_print(const struct hdt_devices *devices, const char *group, struct hdt_buf *line,
                        const char *from)
{
    const struct hdt_device_source *source = hdt_devices_source(devices, from);

    printf("  %-9s%s\n", group, hdt_buf_str(line));
    if (source) {
        printf("           from %s\n           %s\n", source->title, source->url);
    }
    hdt_buf_release(line);
}

static void show_print(const struct hdt_devices *devices, const struct hdt_device *d)
{
    struct hdt_buf compute = {0}, memory = {0}, link = {0}, power = {0};

    printf("%s: %s%s%s\n", d->name, d->vendor, d->vendor[0] ? " " : "",
           hdt_device_kind_names[d->kind]);
    for (size_t i = 0; i < d->aliases.n; i++) {
        printf("%s%s%s", i ? ", " : "  also     ", d->aliases.items[i],
               i + 1 == d->aliases.n ? "\n" : "");
    }
    for (int p = 0; p < HDT_N_PRECISIONS; p++) {
        hdt_buf_appendf(&compute, isnan(d->compute.tflops[p]) ? "%s%s -" : "%s%s %g", p ? ", " : "",
                        hdt_precision_names[p], d->compute.tflops[p]);
    }
    hdt_buf_append_str(&compute, " (dense, TFLOPS)");
    value_add(&memory, d->memory.gb, "GB");
    value_add(&memory, d->memory.gb_per_s, "GB/s");
    if (d->link.name[0]) {
        hdt_buf_append_str(&link, d->link.name);
    }
    value_add(&link, d->link.gb_per_s, "GB/s in one direction");
    value_add(&power, d->power.tdp_w, "W");
    group_print(devices, "compute", &compute, d->compute.from);
    group_print(devices, "memory", &memory, d->memory.from);
    group_print(devices, "link", &link, d->link.from);
    group_print(devices, "power", &power, d->power.from);
}

/* The device with the sources that its values name. */
static json_t *show_json(const struct hdt_devices *devices, const struct hdt_device *d)
{
    static const struct hdt_conf_schema schema = {
        .name = "device", .rows = hdt_device_rows, .size = sizeof(struct hdt_device)};
    const char *const from[] = {d->compute.from, d->memory.from, d->link.from, d->power.from};
    json_t *json = hdt_conf_to_json(&schema, d), *sources = json_object();

    for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
        const struct hdt_device_source *source = hdt_devices_source(devices, from[i]);

        if (source) {
            json_object_set_new(
                sources, source->id,
                json_pack("{s:s, s:s}", "title", source->title, "url", source->url));
        }
    }
    json_object_set_new(json, "sources", sources);
    return json;
}

static int show_run(int argc, char **argv)
{
    struct device_args args = {.wants_name = true};
    const struct hdt_device *device;
    struct hdt_devices devices;
    struct hdt_error err = {0};
    enum hdt_status status;

    hdt_cmd_parse(&show_argp, argc, argv, &args);
    if (hdt_devices_load(args.catalogue, &devices, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    status = hdt_devices_get(&devices, args.name, &device, &err);
    if (status == HDT_OK && args.json) {
        json_print(show_json(&devices, device));
    } else if (status == HDT_OK) {
        show_print(&devices, device);
    }
    hdt_devices_release(&devices);
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

/* ---- the group ---- */

static const struct hdt_cmd list_cmd = {"list", "the devices of the catalogue", list_run,
                                        &list_argp, NULL};
static const struct hdt_cmd show_cmd = {"show", "one device, and where each value is from",
                                        show_run, &show_argp, NULL};
static const struct hdt_cmd *const subs[] = {&list_cmd, &show_cmd, NULL};

static int device_run(int argc, char **argv)
{
    return hdt_cmd_dispatch(subs,
                            "Accelerators and processors, as their makers describe them.\n\n"
                            "Commands:\n",
                            argc, argv);
}

const struct hdt_cmd hdt_cmd_device = {"device", "devices and their public figures: list, show",
                                       device_run, NULL, subs};
