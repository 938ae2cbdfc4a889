/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptions of machines as people and other programs write them. Input: which (0 a catalogue of
 * devices, 1 a profile of layers, 2 the shape of a model, 3 a cluster), then the text. What is
 * taken can be asked; what is refused comes with a message.
 */
#include "config.h"

#include "src/core/cluster_file.h"
#include "src/core/layer_profile.h"
#include "src/core/model_shape.h"
#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <string.h>

static enum hdt_status fuzz_devices(const char *text, size_t len, struct hdt_error *err)
{
    struct hdt_devices devices;

    HDT_TRY(hdt_devices_parse(text, len, "fuzz", &devices, err));
    for (size_t i = 0; i < devices.items.n; i++) {
        const struct hdt_device *device = (const struct hdt_device *)devices.items.items + i;

        HDT_ASSERT(hdt_devices_find(&devices, device->name) == device);
    }
    hdt_devices_release(&devices);
    return HDT_OK;
}

static enum hdt_status fuzz_profile(const char *text, size_t len, struct hdt_error *err)
{
    struct hdt_layer_profile profile;
    struct hdt_layer_times times;

    HDT_TRY(hdt_layer_profile_parse(text, len, "fuzz", &profile, err));
    for (int kind = 0; hdt_layer_kind_names[kind]; kind++) {
        for (int64_t micro_batch = 1; micro_batch <= 65536; micro_batch *= 4) {
            if (hdt_layer_profile_times(&profile, (enum hdt_layer_kind)kind, 1, micro_batch, &times,
                                        err) == HDT_OK) {
                HDT_ASSERT(!(times.forward_s <= 0));
            }
        }
    }
    hdt_layer_profile_release(&profile);
    return HDT_OK;
}

static enum hdt_status fuzz_shape(const char *text, size_t len, struct hdt_error *err)
{
    json_t *json = json_loadb(text, len, JSON_DECODE_ANY, NULL);
    struct hdt_model_shape shape;
    enum hdt_status status;

    if (!json) {
        return HDT_OK;
    }
    status = hdt_model_shape_from_json(json, "fuzz", &shape, err);
    if (status == HDT_OK) {
        HDT_ASSERT(hdt_model_shape_n_params(&shape) > hdt_model_shape_layer_params(&shape));
    }
    json_decref(json);
    return status;
}

/* All ways and links of what was taken are asked; the catalogue has one device, X. */
static enum hdt_status fuzz_cluster(const char *text, size_t len, struct hdt_error *err)
{
    static const char catalogue_text[] =
        "sources: [{id: s, title: t, url: 'https://a'}]\n"
        "devices: [{name: X, link: {from: s, gb_per_s: 1}, memory: {from: s, gb: 1}}]\n";
    static struct hdt_devices catalogue;
    struct hdt_cluster_file cluster;
    struct hdt_cluster_file_path path;

    if (catalogue.n_names == 0) {
        HDT_ASSERT(hdt_devices_parse(catalogue_text, strlen(catalogue_text), "fuzz", &catalogue,
                                     NULL) == HDT_OK);
    }
    HDT_TRY(hdt_cluster_file_parse(text, len, "fuzz", &catalogue, &cluster, err));
    for (size_t i = 0; i < cluster.links.n; i++) {
        const struct hdt_link_curve *link = (const struct hdt_link_curve *)cluster.links.items + i;

        for (double bytes = 1; bytes < 1e12; bytes *= 10) {
            HDT_ASSERT(hdt_link_curve_bytes_per_s(link, bytes, 3) > 0);
        }
    }
    for (size_t i = 0; i < cluster.sites.n * cluster.sites.n; i++) {
        if (i / cluster.sites.n != i % cluster.sites.n) {
            hdt_cluster_file_path(&cluster, i / cluster.sites.n, i % cluster.sites.n, &path);
            HDT_ASSERT(path.n_legs >= 1 && path.loss < 1);
        }
    }
    hdt_cluster_file_release(&cluster);
    return HDT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static enum hdt_status (*const kinds[])(const char *, size_t, struct hdt_error *) = {
        fuzz_devices, fuzz_profile, fuzz_shape, fuzz_cluster};
    struct hdt_error err = {0};

    if (size < 1) {
        return 0;
    }
    if (kinds[data[0] % (sizeof(kinds) / sizeof(kinds[0]))]((const char *)data + 1, size - 1,
                                                            &err) != HDT_OK) {
        HDT_ASSERT(err.status != HDT_OK && err.msg[0] != '\0');
    }
    return 0;
}
