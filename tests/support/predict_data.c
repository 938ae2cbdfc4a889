/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/predict_impl.h"
#include "src/base/buf.h"
#include "src/base/error.h"
#include "src/base/file.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)64 << 10)

static _Noreturn void give_up(const char *what, const char *which)
{
    fprintf(stderr, "predict: %s: %s\n", what, which);
    abort();
}

double hdt_predict_number(const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0') {
        give_up("not a number", text);
    }
    return value;
}

int hdt_predict_int(const char *text)
{
    return (int)hdt_predict_number(text);
}

int hdt_predict_layers(const char *text, int *layers)
{
    char *end;
    int n = 0;

    for (;;) {
        HDT_ASSERT(n < PREDICT_STAGES_MAX);
        layers[n++] = (int)strtol(text, &end, 10);
        if (*end != '-') {
            HDT_ASSERT(*end == '\0');
            return n;
        }
        text = end + 1;
    }
}

static void line_split(struct csv *csv, char *line)
{
    char **cells = csv->cell[csv->n_rows++];

    HDT_ASSERT(csv->n_rows < CSV_ROWS_MAX);
    for (int i = 0; i < CSV_COLUMNS_MAX && line; i++) {
        cells[i] = line;
        line = strchr(line, ',');
        if (line) {
            *line++ = '\0';
        }
    }
}

static void csv_read(struct csv *csv, const char *folder, const char *name)
{
    struct hdt_buf buf;
    struct hdt_error err;
    char path[512], *line, *save;

    hdt_buf_init(&buf);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (hdt_file_read(path, FILE_MAX, &buf, &err) != HDT_OK) {
        give_up(path, err.msg);
    }
    csv->text = hdt_calloc(buf.len + 1, 1);
    memcpy(csv->text, buf.data, buf.len);
    hdt_buf_release(&buf);
    for (line = strtok_r(csv->text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (line[0] != '#') {
            line_split(csv, line);
        }
    }
}

static void clusters_load(struct predict_data *data, const char *folder)
{
    static const char *const names[PREDICT_CLUSTERS] = {"gh200", "rtx", "amp"};
    struct hdt_error err;
    char path[512];

    for (int i = 0; i < PREDICT_CLUSTERS; i++) {
        snprintf(path, sizeof(path), "%s/clusters/%s.yaml", folder, names[i]);
        if (hdt_cluster_file_load(path, &data->catalogue, &data->clusters[i], &err) != HDT_OK) {
            give_up(err.where, err.msg);
        }
    }
}

static void profiles_load(struct predict_data *data, const char *folder)
{
    struct dirent *entry;
    struct hdt_error err;
    char path[512];
    DIR *dir;

    snprintf(path, sizeof(path), "%s/profiles", folder);
    dir = opendir(path);
    if (!dir) {
        give_up("cannot open", path);
    }
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        HDT_ASSERT(data->n_profiles < PREDICT_PROFILES_MAX);
        snprintf(path, sizeof(path), "%s/profiles/%.90s", folder, entry->d_name);
        if (hdt_layer_profile_load(path, &data->profiles[data->n_profiles++], &err) != HDT_OK) {
            give_up(err.where, err.msg);
        }
    }
    closedir(dir);
}

struct predict_data *hdt_predict_data_new(const char *srcdir)
{
    struct predict_data *data = hdt_calloc(1, sizeof(*data));
    struct hdt_error err;
    char path[512], folder[400];

    snprintf(path, sizeof(path), "%s/etc/devices.yaml", srcdir);
    if (hdt_devices_load(path, &data->catalogue, &err) != HDT_OK) {
        give_up(path, err.msg);
    }
    snprintf(folder, sizeof(folder), "%s/tests/data/predict", srcdir);
    clusters_load(data, folder);
    profiles_load(data, folder);
    csv_read(&data->devices, folder, "devices.csv");
    csv_read(&data->models, folder, "models.csv");
    csv_read(&data->set_a, folder, "set_a.csv");
    csv_read(&data->set_b, folder, "set_b.csv");
    return data;
}

void hdt_predict_data_free(struct predict_data *data)
{
    for (int i = 0; i < PREDICT_CLUSTERS; i++) {
        hdt_cluster_file_release(&data->clusters[i]);
    }
    for (int i = 0; i < data->n_profiles; i++) {
        hdt_layer_profile_release(&data->profiles[i]);
    }
    hdt_devices_release(&data->catalogue);
    free(data->devices.text);
    free(data->models.text);
    free(data->set_a.text);
    free(data->set_b.text);
    free(data);
}

static char *const *row_named(const struct csv *csv, const char *name)
{
    for (int i = 0; i < csv->n_rows; i++) {
        if (strcmp(csv->cell[i][0], name) == 0) {
            return csv->cell[i];
        }
    }
    give_up("nothing is known of it", name);
}

void hdt_predict_model(const struct predict_data *data, const char *name,
                       struct hdt_stage_cost_model *model, int *n_layers)
{
    char *const *c = row_named(&data->models, name);

    *n_layers = hdt_predict_int(c[1]);
    *model = (struct hdt_stage_cost_model){
        .C = hdt_predict_number(c[2]),
        .NH = hdt_predict_number(c[3]),
        .T = hdt_predict_number(c[4]),
        .V = hdt_predict_number(c[5]),
        .layer_params = hdt_predict_number(c[6]),
        .embed_params = hdt_predict_number(c[7]),
        .head_params = hdt_predict_number(c[8]),
        .layer_kept = hdt_predict_number(c[9]),
        .value_bytes = hdt_predict_number(c[10]),
        .grad_bytes = hdt_predict_number(c[11]),
    };
}

/* The one site of the cluster that has the device, and the position of its nodes. */
static const struct hdt_cluster_file_site *site_with(const struct predict_data *data,
                                                     const char *device, size_t *nodes_idx)
{
    for (int i = 0; i < PREDICT_CLUSTERS; i++) {
        const struct hdt_cluster_file_site *site = hdt_cluster_file_site(&data->clusters[i], 0);

        for (*nodes_idx = 0; *nodes_idx < site->nodes.n; ++*nodes_idx) {
            if (strcmp(hdt_cluster_file_nodes(site, *nodes_idx)->device->name, device) == 0) {
                return site;
            }
        }
    }
    give_up("no cluster has it", device);
}

double hdt_predict_between(const struct predict_data *data, const char *a, const char *b, int n)
{
    const double bytes = 1e9; /* the rates of these clusters are the same for all sizes */
    size_t a_idx, b_idx;
    const struct hdt_cluster_file_site *site = site_with(data, a, &a_idx);

    HDT_ASSERT(site_with(data, b, &b_idx) == site);
    return n * bytes / hdt_cluster_file_between_s(site, a_idx, b_idx, bytes, n);
}

double hdt_predict_inside(const struct predict_data *data, const char *device, int n)
{
    size_t idx;
    const struct hdt_cluster_file_site *site = site_with(data, device, &idx);

    return hdt_link_curve_bytes_per_s(hdt_cluster_file_nodes(site, idx)->inside, 1e9, n);
}

static const struct hdt_layer_profile *profile_of(const struct predict_data *data,
                                                  const char *model_name, const char *device)
{
    for (int i = 0; i < data->n_profiles; i++) {
        if (strcmp(data->profiles[i].model, model_name) == 0 &&
            strcmp(data->profiles[i].device, device) == 0) {
            return &data->profiles[i];
        }
    }
    give_up("no profile is of it", device);
}

/* AMP's profiles are of forwards only: it takes three times a forward for both directions. */
static void points_read(struct predict_stage *s, const struct hdt_layer_profile *profile, int tp)
{
    const struct hdt_layer *block = hdt_layer_profile_layer(profile, HDT_LAYER_BLOCK);
    const struct hdt_layer *head = hdt_layer_profile_layer(profile, HDT_LAYER_HEAD);
    const struct hdt_layer_times *times = block->times.items;

    s->profile.points = s->points;
    for (size_t i = 0; i < block->times.n; i++) {
        const struct hdt_layer_times *t = &times[i];

        if (t->tp == tp) {
            HDT_ASSERT(s->profile.n_points < PREDICT_POINTS_MAX);
            s->points[s->profile.n_points++] = (struct hdt_stage_cost_point){
                .micro_batch = t->micro_batch,
                .fwd_s = t->forward_s,
                .bwd_s = isnan(t->backward_s) ? 2 * t->forward_s : t->backward_s};
        }
    }
    times = head ? head->times.items : NULL;
    for (size_t i = 0; head && i < head->times.n; i++) {
        if (times[i].tp == tp && times[i].micro_batch == 1) {
            s->profile.head_fwd_s = times[i].forward_s;
        }
    }
}

static double peak_flop_per_s(const struct hdt_device *device, char *const *cells)
{
    if (cells[3][0] != '\0') {
        return hdt_predict_number(cells[3]) * 1e12;
    }
    for (int i = 0; i < HDT_N_PRECISIONS; i++) {
        if (strcmp(cells[1], hdt_precision_names[i]) == 0) {
            return device->compute.tflops[i] * 1e12;
        }
    }
    give_up("no precision", cells[1]);
}

void hdt_predict_stage_init(struct predict_stage *s, const struct predict_data *data,
                            const char *model_name, const char *device, int tp)
{
    char *const *c = row_named(&data->devices, device);
    const struct hdt_device *known = hdt_devices_find(&data->catalogue, device);

    HDT_ASSERT(known);
    memset(s, 0, sizeof(*s));
    s->device.flop_per_s = peak_flop_per_s(known, c);
    s->device.bytes_per_s = known->memory.gb_per_s * 1e9;
    s->device.framework_bytes = hdt_predict_number(c[2]) * 1e9;
    if (tp > 1) {
        s->device.ring_bytes_per_s = hdt_predict_inside(data, device, tp);
    }
    points_read(s, profile_of(data, model_name, device), tp);
    s->stage.device = &s->device;
    s->stage.profile = &s->profile;
    s->stage.tp = tp;
}
