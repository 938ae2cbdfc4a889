/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/predict_impl.h"
#include "src/base/buf.h"
#include "src/base/error.h"
#include "src/base/file.h"

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

struct predict_data *hdt_predict_data_new(const char *folder)
{
    struct predict_data *data = hdt_calloc(1, sizeof(*data));

    csv_read(&data->devices, folder, "devices.csv");
    csv_read(&data->models, folder, "models.csv");
    csv_read(&data->profiles, folder, "profiles.csv");
    csv_read(&data->heads, folder, "heads.csv");
    csv_read(&data->links, folder, "links.csv");
    csv_read(&data->set_a, folder, "set_a.csv");
    csv_read(&data->set_b, folder, "set_b.csv");
    return data;
}

void hdt_predict_data_free(struct predict_data *data)
{
    free(data->devices.text);
    free(data->models.text);
    free(data->profiles.text);
    free(data->heads.text);
    free(data->links.text);
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

static bool same_pair(char *const *cells, const char *a, const char *b)
{
    return (strcmp(cells[2], a) == 0 && strcmp(cells[3], b) == 0) ||
           (strcmp(cells[2], b) == 0 && strcmp(cells[3], a) == 0);
}

double hdt_predict_rate(const struct predict_data *data, const char *set, const char *where,
                        const char *a, const char *b, int n)
{
    for (int i = 0; i < data->links.n_rows; i++) {
        char *const *c = data->links.cell[i];

        if (strcmp(c[0], set) == 0 && strcmp(c[1], where) == 0 && same_pair(c, a, b) &&
            (hdt_predict_int(c[4]) == 0 || hdt_predict_int(c[4]) == n)) {
            return hdt_predict_number(c[5]) * 1e9;
        }
    }
    give_up("no link", a);
}

static void points_read(struct predict_stage *s, const struct predict_data *data,
                        const char *model_name, const char *device, int tp)
{
    s->profile.points = s->points;
    for (int i = 0; i < data->profiles.n_rows; i++) {
        char *const *c = data->profiles.cell[i];

        if (strcmp(c[0], model_name) == 0 && strcmp(c[1], device) == 0 &&
            hdt_predict_int(c[2]) == tp) {
            HDT_ASSERT(s->profile.n_points < PREDICT_POINTS_MAX);
            s->points[s->profile.n_points++] =
                (struct hdt_stage_cost_point){.micro_batch = hdt_predict_int(c[3]),
                                              .fwd_s = hdt_predict_number(c[4]) * 1e-3,
                                              .bwd_s = hdt_predict_number(c[5]) * 1e-3};
        }
    }
    for (int i = 0; i < data->heads.n_rows; i++) {
        char *const *c = data->heads.cell[i];

        if (strcmp(c[0], model_name) == 0 && strcmp(c[1], device) == 0 &&
            hdt_predict_int(c[2]) == tp) {
            s->profile.head_fwd_s = hdt_predict_number(c[3]) * 1e-3;
        }
    }
}

void hdt_predict_stage_init(struct predict_stage *s, const struct predict_data *data,
                            const char *set, const char *model_name, const char *device, int tp)
{
    char *const *c = row_named(&data->devices, device);

    memset(s, 0, sizeof(*s));
    s->device.flop_per_s = hdt_predict_number(c[2]) * 1e12;
    s->device.bytes_per_s = hdt_predict_number(c[3]) * 1e9;
    s->device.framework_bytes = hdt_predict_number(c[4]) * 1e9;
    if (tp > 1) {
        s->device.ring_bytes_per_s = hdt_predict_rate(data, set, "inside", device, device, tp);
    }
    points_read(s, data, model_name, device, tp);
    s->stage.device = &s->device;
    s->stage.profile = &s->profile;
    s->stage.tp = tp;
}
