/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_DEVICES_H
#define HDT_CORE_DEVICES_H

/*
 * The catalogue of devices (etc/devices.yaml): what their makers say of them, each value with its
 * source. It serves predictions about devices that nobody has measured; a measured profile goes
 * before it.
 *
 * A number that no public source gives is NaN (null in the file): ask with isnan() before use.
 * Loaded data is only read afterwards: any thread.
 */
#include "src/base/conf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of input of a matrix product. */
enum hdt_precision {
    HDT_PRECISION_FP32,
    HDT_PRECISION_TF32,
    HDT_PRECISION_BF16,
    HDT_PRECISION_FP16,
    HDT_PRECISION_FP8,
    HDT_PRECISION_INT8,
    HDT_N_PRECISIONS,
};
extern const char *const hdt_precision_names[]; /* "fp32", ...; NULL-terminated */

enum hdt_device_kind { HDT_DEVICE_GPU, HDT_DEVICE_NPU, HDT_DEVICE_TPU, HDT_DEVICE_CPU };
extern const char *const hdt_device_kind_names[];

struct hdt_device_source {
    char *id;
    char *title;
    char *url;
};

/* `from` is the id of the source of the values beside it; "": they are all unknown, or the device
 * is a cluster file's own. */
struct hdt_device_compute {
    double tflops[HDT_N_PRECISIONS]; /* peak of dense products, 1e12 operations a second */
    char *from;
};
struct hdt_device_memory {
    double gb;       /* 2^30 bytes; of a processor unknown */
    double gb_per_s; /* 1e9 bytes a second */
    char *from;
};
struct hdt_device_link {
    char *name;      /* "NVLink 4" */
    double gb_per_s; /* of one device, one direction, all of its links; 1e9 bytes a second */
    char *from;
};
struct hdt_device_power {
    double tdp_w;
    char *from;
};

struct hdt_device {
    char *name;                      /* "H100-SXM5-80GB" */
    struct hdt_conf_strings aliases; /* "H100" */
    char *vendor;
    int kind; /* enum hdt_device_kind */
    struct hdt_device_compute compute;
    struct hdt_device_memory memory;
    struct hdt_device_link link;
    struct hdt_device_power power;
};

struct hdt_device_name; /* of the index */

struct hdt_devices {
    struct hdt_conf_list sources; /* of struct hdt_device_source */
    struct hdt_conf_list items;   /* of struct hdt_device */
    struct hdt_device_name *names;
    size_t n_names;
};

extern const struct hdt_conf_schema hdt_devices_schema;
/* The rows of one device, for other files that describe devices. */
extern const struct hdt_conf_row hdt_device_rows[];

/* Load a catalogue; `path` NULL: the installed one. To be released on success. HDT_ENOENT, HDT_EIO;
 * HDT_EINVAL with file:line: unknown keys, numbers out of bounds, names given twice, values without
 * a source. */
enum hdt_status hdt_devices_load(const char *path, struct hdt_devices *devices,
                                 struct hdt_error *err);
/* The same from memory; `file` names the text in messages. */
enum hdt_status hdt_devices_parse(const char *text, size_t len, const char *file,
                                  struct hdt_devices *devices, struct hdt_error *err);
void hdt_devices_release(struct hdt_devices *devices);

/* Check the names of devices->items and make them findable. `key`: where the list stands in `doc`,
 * for messages. For files that have devices of their own; hdt_devices_unindex undoes it. */
enum hdt_status hdt_devices_index(struct hdt_devices *devices, const char *key,
                                  const struct hdt_conf_doc *doc, struct hdt_error *err);
void hdt_devices_unindex(struct hdt_devices *devices);

/* By name or alias, upper and lower case the same; NULL: there is none. */
const struct hdt_device *hdt_devices_find(const struct hdt_devices *devices, const char *name);

/* As hdt_devices_find; HDT_ENOENT with the nearest name as hint. */
enum hdt_status hdt_devices_get(const struct hdt_devices *devices, const char *name,
                                const struct hdt_device **device, struct hdt_error *err);

/* The source of an id; NULL: there is none ("" too). */
const struct hdt_device_source *hdt_devices_source(const struct hdt_devices *devices,
                                                   const char *id);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_DEVICES_H */
