/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/devices.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/base/near.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* As much as the tables of settings take. */
#define TEXT_MAX     (1u << 20)
#define NAME_MAX_LEN 63

const char *const hdt_precision_names[] = {
    [HDT_PRECISION_FP32] = "fp32", [HDT_PRECISION_TF32] = "tf32", [HDT_PRECISION_BF16] = "bf16",
    [HDT_PRECISION_FP16] = "fp16", [HDT_PRECISION_FP8] = "fp8",   [HDT_PRECISION_INT8] = "int8",
    [HDT_N_PRECISIONS] = NULL};

const char *const hdt_device_kind_names[] = {[HDT_DEVICE_GPU] = "gpu",
                                             [HDT_DEVICE_NPU] = "npu",
                                             [HDT_DEVICE_TPU] = "tpu",
                                             [HDT_DEVICE_CPU] = "cpu",
                                             [HDT_DEVICE_CPU + 1] = NULL};

/* ---- the tables ---- */

#define FROM_HELP "Source of these values: an id of sources. Empty: they are all null."

/* No device of today comes near the bounds; a figure beyond them is in another unit. */
#define TFLOPS_ROW(precision, name_)                                                               \
 {                                                                                                 \
  .name = name_, .type = HDT_CONF_T_FLOAT,                                                         \
  .offset = offsetof(struct hdt_device_compute, tflops[precision]), .def = "null", .min = 0.01,    \
  .max = 1e5, .help = "Peak of dense products of " name_ ", 1e12 operations a second."             \
 }

static const struct hdt_conf_row compute_rows[] = {
    HDT_CONF_STRING(struct hdt_device_compute, from, "", FROM_HELP),
    TFLOPS_ROW(HDT_PRECISION_FP32, "fp32"),
    TFLOPS_ROW(HDT_PRECISION_TF32, "tf32"),
    TFLOPS_ROW(HDT_PRECISION_BF16, "bf16"),
    TFLOPS_ROW(HDT_PRECISION_FP16, "fp16"),
    TFLOPS_ROW(HDT_PRECISION_FP8, "fp8"),
    TFLOPS_ROW(HDT_PRECISION_INT8, "int8"),
    HDT_CONF_END};

static const struct hdt_conf_row memory_rows[] = {
    HDT_CONF_STRING(struct hdt_device_memory, from, "", FROM_HELP),
    HDT_CONF_OPTIONAL(struct hdt_device_memory, gb, 0.1, 1e5, "Size, in 2^30 bytes."),
    HDT_CONF_OPTIONAL(struct hdt_device_memory, gb_per_s, 1, 1e6, "Rate, 1e9 bytes a second."),
    HDT_CONF_END};

static const struct hdt_conf_row link_rows[] = {
    HDT_CONF_STRING(struct hdt_device_link, from, "", FROM_HELP),
    HDT_CONF_STRING(struct hdt_device_link, name, "",
                    "What joins the devices of a node, as NVLink 4."),
    HDT_CONF_OPTIONAL(struct hdt_device_link, gb_per_s, 0.01, 1e5,
                      "Rate of one device in one direction, all of its links together, 1e9 bytes a "
                      "second."),
    HDT_CONF_END};

static const struct hdt_conf_row power_rows[] = {
    HDT_CONF_STRING(struct hdt_device_power, from, "", FROM_HELP),
    HDT_CONF_OPTIONAL(struct hdt_device_power, tdp_w, 1, 1e5, "Limit of the board, in watts."),
    HDT_CONF_END};

const struct hdt_conf_row hdt_device_rows[] = {
    HDT_CONF_STRING(struct hdt_device, name, NULL, "Name. Example: H100-SXM5-80GB."),
    HDT_CONF_STRINGS(struct hdt_device, aliases, "",
                     "Other names of it; upper and lower case are the same."),
    HDT_CONF_STRING(struct hdt_device, vendor, "", "Maker."),
    HDT_CONF_ENUM(struct hdt_device, kind, "gpu", hdt_device_kind_names, "What it is."),
    HDT_CONF_SECTION(struct hdt_device, compute, compute_rows,
                     "Peak rates of matrix products, without sparsity."),
    HDT_CONF_SECTION(struct hdt_device, memory, memory_rows, "Its memory."),
    HDT_CONF_SECTION(struct hdt_device, link, link_rows, "Link to the other devices of a node."),
    HDT_CONF_SECTION(struct hdt_device, power, power_rows, "Power."),
    HDT_CONF_END};

static const struct hdt_conf_row source_rows[] = {
    HDT_CONF_STRING(struct hdt_device_source, id, NULL, "Short name. Example: h100."),
    HDT_CONF_STRING(struct hdt_device_source, title, NULL,
                    "What it is: data sheet, white paper, paper with its table."),
    HDT_CONF_STRING(struct hdt_device_source, url, NULL,
                    "Where it is. Example: \"https://www.nvidia.com/en-us/data-center/h100/\"."),
    HDT_CONF_END};

static const struct hdt_conf_row devices_rows[] = {
    HDT_CONF_LIST(struct hdt_devices, sources, source_rows, struct hdt_device_source,
                  "Where the values are from."),
    {.name = "devices",
     .type = HDT_CONF_T_LIST,
     .offset = offsetof(struct hdt_devices, items),
     .rows = hdt_device_rows,
     .item_size = sizeof(struct hdt_device),
     .help = "The devices. A value that no public source gives is null."},
    HDT_CONF_END};

const struct hdt_conf_schema hdt_devices_schema = {
    .name = "devices",
    .help = "A catalogue of devices: 'hdt device list --catalogue FILE' shows one.",
    .rows = devices_rows,
    .size = sizeof(struct hdt_devices),
};

/* ---- the index ---- */

struct hdt_device_name {
    const char *name;
    size_t device_idx;
    size_t alias_idx; /* its alias of that number from 1; 0: its name */
};

static const struct hdt_device *device_at(const struct hdt_devices *devices, size_t idx)
{
    return (const struct hdt_device *)devices->items.items + idx;
}

/* By name; equal ones in the order of the file. */
static int name_compare(const void *a, const void *b)
{
    const struct hdt_device_name *left = a, *right = b;
    int order = strcasecmp(left->name, right->name);

    if (order == 0 && left->device_idx != right->device_idx) {
        order = left->device_idx < right->device_idx ? -1 : 1;
    } else if (order == 0 && left->alias_idx != right->alias_idx) {
        order = left->alias_idx < right->alias_idx ? -1 : 1;
    }
    return order;
}

static int name_find(const void *word, const void *entry)
{
    return strcasecmp(word, ((const struct hdt_device_name *)entry)->name);
}

/* Where a name stands in the document. */
static char *name_key(const struct hdt_device_name *name, const char *list)
{
    if (name->alias_idx == 0) {
        return hdt_asprintf("%s[%zu].name", list, name->device_idx);
    }
    return hdt_asprintf("%s[%zu].aliases[%zu]", list, name->device_idx, name->alias_idx - 1);
}

static bool name_is_valid(const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)name[i]) && !strchr("._+-", name[i])) {
            return false;
        }
    }
    return len >= 1 && len <= NAME_MAX_LEN;
}

static enum hdt_status names_check_form(const struct hdt_devices *devices, const char *list,
                                        const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    for (size_t i = 0; i < devices->n_names; i++) {
        char *key;

        if (name_is_valid(devices->names[i].name)) {
            continue;
        }
        key = name_key(&devices->names[i], list);
        hdt_conf_error(doc, key, err, HDT_EINVAL, "'%.64s' is no name of a device",
                       devices->names[i].name);
        hdt_error_hint(err, "write 1 to %d letters, digits, '.', '_', '+' and '-'", NAME_MAX_LEN);
        free(key);
        return HDT_EINVAL;
    }
    return HDT_OK;
}

/* Names are sorted: equal ones are neighbours. */
static enum hdt_status names_check_twice(const struct hdt_devices *devices, const char *list,
                                         const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    for (size_t i = 1; i < devices->n_names; i++) {
        const struct hdt_device_name *one = &devices->names[i - 1], *two = one + 1;
        char *key;

        if (strcasecmp(one->name, two->name) != 0) {
            continue;
        }
        key = name_key(two, list);
        hdt_conf_error(doc, key, err, HDT_EINVAL, "the name '%s' is given twice, first to '%s'",
                       two->name, device_at(devices, one->device_idx)->name);
        hdt_error_hint(err, "upper and lower case are the same; remove or change one of the two");
        free(key);
        return HDT_EINVAL;
    }
    return HDT_OK;
}

static void names_collect(struct hdt_devices *devices)
{
    size_t n = devices->items.n;

    for (size_t i = 0; i < devices->items.n; i++) {
        n += device_at(devices, i)->aliases.n;
    }
    devices->names = hdt_calloc(n ? n : 1, sizeof(*devices->names));
    devices->n_names = 0;
    for (size_t i = 0; i < devices->items.n; i++) {
        const struct hdt_device *device = device_at(devices, i);

        devices->names[devices->n_names++] = (struct hdt_device_name){device->name, i, 0};
        for (size_t j = 0; j < device->aliases.n; j++) {
            devices->names[devices->n_names++] =
                (struct hdt_device_name){device->aliases.items[j], i, j + 1};
        }
    }
}

enum hdt_status hdt_devices_index(struct hdt_devices *devices, const char *key,
                                  const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    enum hdt_status status;

    names_collect(devices);
    status = names_check_form(devices, key, doc, err);
    if (status == HDT_OK) {
        qsort(devices->names, devices->n_names, sizeof(*devices->names), name_compare);
        status = names_check_twice(devices, key, doc, err);
    }
    if (status != HDT_OK) {
        hdt_devices_unindex(devices);
    }
    return status;
}

void hdt_devices_unindex(struct hdt_devices *devices)
{
    free(devices->names);
    devices->names = NULL;
    devices->n_names = 0;
}

const struct hdt_device *hdt_devices_find(const struct hdt_devices *devices, const char *name)
{
    const struct hdt_device_name *found = NULL;

    if (devices->n_names > 0) {
        found = bsearch(name, devices->names, devices->n_names, sizeof(*devices->names), name_find);
    }
    return found ? device_at(devices, found->device_idx) : NULL;
}

static void lower_case(const char *name, char out[NAME_MAX_LEN + 1])
{
    size_t i = 0;

    for (; name[i] && i < NAME_MAX_LEN; i++) {
        out[i] = (char)tolower((unsigned char)name[i]);
    }
    out[i] = '\0';
}

/* The name that a word is nearest to, upper and lower case the same; NULL: none is near. */
static const char *name_nearest(const struct hdt_devices *devices, const char *word)
{
    char low_word[NAME_MAX_LEN + 1], low_name[NAME_MAX_LEN + 1];
    const char *best = NULL;
    struct hdt_near near;
    unsigned before;

    lower_case(word, low_word);
    hdt_near_init(&near, low_word);
    for (size_t i = 0; i < devices->n_names; i++) {
        before = near.best ? near.best_distance : UINT_MAX;
        lower_case(devices->names[i].name, low_name);
        hdt_near_offer(&near, low_name);
        if (near.best && near.best_distance < before) {
            best = devices->names[i].name;
        }
    }
    return best;
}

enum hdt_status hdt_devices_get(const struct hdt_devices *devices, const char *name,
                                const struct hdt_device **device, struct hdt_error *err)
{
    const struct hdt_device *found = hdt_devices_find(devices, name);
    const char *near;

    if (found) {
        *device = found;
        return HDT_OK;
    }
    near = name_nearest(devices, name);
    hdt_error_set(err, HDT_ENOENT, "there is no device '%.64s' in the catalogue", name);
    if (near) {
        hdt_error_hint(err, "did you mean '%s'?", near);
    } else {
        hdt_error_hint(err, "'hdt device list' shows the catalogue; a cluster file may describe "
                            "devices of its own");
    }
    return HDT_ENOENT;
}

/* ---- sources ---- */

const struct hdt_device_source *hdt_devices_source(const struct hdt_devices *devices,
                                                   const char *id)
{
    const struct hdt_device_source *sources = devices->sources.items;

    for (size_t i = 0; i < devices->sources.n; i++) {
        if (strcmp(sources[i].id, id) == 0) {
            return &sources[i];
        }
    }
    return NULL;
}

static enum hdt_status sources_check(const struct hdt_devices *devices,
                                     const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    const struct hdt_device_source *sources = devices->sources.items;

    for (size_t i = 0; i < devices->sources.n; i++) {
        char key[64];

        if (sources[i].id[0] == '\0' || hdt_devices_source(devices, sources[i].id) != &sources[i]) {
            snprintf(key, sizeof(key), "sources[%zu].id", i);
            hdt_conf_error(doc, key, err, HDT_EINVAL, "the source id '%.64s' is %s", sources[i].id,
                           sources[i].id[0] ? "given twice" : "empty");
            hdt_error_hint(err, "each source needs an id of its own");
            return HDT_EINVAL;
        }
        if (strncmp(sources[i].url, "https://", 8) != 0 &&
            strncmp(sources[i].url, "http://", 7) != 0) {
            snprintf(key, sizeof(key), "sources[%zu].url", i);
            hdt_conf_error(doc, key, err, HDT_EINVAL, "'%.64s' is no address of a page",
                           sources[i].url);
            hdt_error_hint(err, "write it in full: https://...");
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

/* One group of values: those that are known have a source, and it is in the list. */
static enum hdt_status group_check(const struct hdt_devices *devices, size_t device_idx,
                                   const char *group, const char *from, bool is_known,
                                   const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    const struct hdt_device_source *sources = devices->sources.items;
    struct hdt_near near;
    char key[64];

    if (from[0] == '\0' && is_known) {
        snprintf(key, sizeof(key), "devices[%zu].%s", device_idx, group);
        hdt_conf_error(doc, key, err, HDT_EINVAL, "the %s of '%s' has values, but no source", group,
                       device_at(devices, device_idx)->name);
        hdt_error_hint(err, "add 'from:' with an id of the list of sources, or write null");
        return HDT_EINVAL;
    }
    if (from[0] == '\0' || hdt_devices_source(devices, from)) {
        return HDT_OK;
    }
    snprintf(key, sizeof(key), "devices[%zu].%s.from", device_idx, group);
    hdt_conf_error(doc, key, err, HDT_EINVAL, "there is no source '%.64s'", from);
    hdt_near_init(&near, from);
    for (size_t i = 0; i < devices->sources.n; i++) {
        hdt_near_offer(&near, sources[i].id);
    }
    if (near.best) {
        hdt_error_hint(err, "did you mean '%s'?", near.best);
    } else {
        hdt_error_hint(err, "add it to the list of sources");
    }
    return HDT_EINVAL;
}

static enum hdt_status device_check(const struct hdt_devices *devices, size_t idx,
                                    const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    const struct hdt_device *d = device_at(devices, idx);
    bool computes = false;

    for (int p = 0; p < HDT_N_PRECISIONS; p++) {
        computes = computes || !isnan(d->compute.tflops[p]);
    }
    HDT_TRY(group_check(devices, idx, "compute", d->compute.from, computes, doc, err));
    HDT_TRY(group_check(devices, idx, "memory", d->memory.from,
                        !isnan(d->memory.gb) || !isnan(d->memory.gb_per_s), doc, err));
    HDT_TRY(group_check(devices, idx, "link", d->link.from, !isnan(d->link.gb_per_s), doc, err));
    return group_check(devices, idx, "power", d->power.from, !isnan(d->power.tdp_w), doc, err);
}

/* ---- reading ---- */

static enum hdt_status devices_check(struct hdt_devices *devices, const struct hdt_conf_doc *doc,
                                     struct hdt_error *err)
{
    HDT_TRY(sources_check(devices, doc, err));
    for (size_t i = 0; i < devices->items.n; i++) {
        HDT_TRY(device_check(devices, i, doc, err));
    }
    return hdt_devices_index(devices, "devices", doc, err);
}

enum hdt_status hdt_devices_parse(const char *text, size_t len, const char *file,
                                  struct hdt_devices *devices, struct hdt_error *err)
{
    struct hdt_conf_doc *doc = NULL;
    enum hdt_status status;

    HDT_TRY(hdt_conf_parse(&hdt_devices_schema, text, len, file, devices, &doc, err));
    status = devices_check(devices, doc, err);
    hdt_conf_doc_free(doc);
    if (status != HDT_OK) {
        hdt_devices_release(devices);
    }
    return status;
}

enum hdt_status hdt_devices_load(const char *path, struct hdt_devices *devices,
                                 struct hdt_error *err)
{
    const char *file = path ? path : HDT_PKGDATADIR "/devices.yaml";
    struct hdt_buf text = {0};
    enum hdt_status status = hdt_file_read(file, TEXT_MAX, &text, err);

    if (status == HDT_OK) {
        status = hdt_devices_parse(hdt_buf_str(&text), text.len, file, devices, err);
    } else {
        hdt_error_prefix(err, "cannot read the catalogue of devices");
        hdt_error_hint(err, "%s",
                       path ? "is this the right file?"
                            : "HDT is not installed here: name the file by --catalogue, "
                              "in the source tree etc/devices.yaml");
    }
    hdt_buf_release(&text);
    return status;
}

void hdt_devices_release(struct hdt_devices *devices)
{
    hdt_devices_unindex(devices);
    hdt_conf_release(&hdt_devices_schema, devices);
}
