/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Set A: nodes each of which holds one replica of one stage; stages of a replica are on different
 * nodes, so are replicas of a stage.
 */
#include "tests/support/predict_impl.h"
#include "src/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLICAS_MAX 16
#define DEVICE_CAP   16

struct cell {
    char device[DEVICE_CAP];
    int tp;
};

struct run {
    const struct predict_data *data;
    const struct hdt_stage_cost_constants *constants;
    const char *model_name;
    struct hdt_stage_cost_model model;
    int n_stages, n_replicas;
    int layers[PREDICT_STAGES_MAX];
    int64_t micro_batch, n_micro_batches;
    struct cell cells[PREDICT_STAGES_MAX][REPLICAS_MAX];
};

/* "1x3090/8+2x2080/8" */
static int cells_read(char *text, struct cell *cells)
{
    int n = 0;
    char *group, *save;

    for (group = strtok_r(text, "+", &save); group; group = strtok_r(NULL, "+", &save)) {
        struct cell cell;
        int count;

        HDT_ASSERT(sscanf(group, "%dx%15[^/]/%d", &count, cell.device, &cell.tp) == 3);
        while (count-- > 0) {
            HDT_ASSERT(n < REPLICAS_MAX);
            cells[n++] = cell;
        }
    }
    return n;
}

static void run_read(struct run *run, char *const *row)
{
    char text[256], *stage, *save;
    int n_layers;

    run->model_name = row[0];
    hdt_predict_model(run->data, row[0], &run->model, &n_layers);
    snprintf(text, sizeof(text), "%s", row[2]);
    for (stage = strtok_r(text, ";", &save); stage; stage = strtok_r(NULL, ";", &save)) {
        char one[64];

        snprintf(one, sizeof(one), "%s", stage);
        run->n_replicas = cells_read(one, run->cells[run->n_stages++]);
    }
    HDT_ASSERT(hdt_predict_layers(row[3], run->layers) == run->n_stages);
    run->micro_batch = hdt_predict_int(row[4]);
    run->n_micro_batches = hdt_predict_int(row[5]) / run->n_replicas / run->micro_batch;
}

static void stage_init(struct predict_stage *s, const struct run *run, int stage, int replica)
{
    const struct cell *cell = &run->cells[stage][replica];

    hdt_predict_stage_init(s, run->data, run->model_name, cell->device, cell->tp);
    s->stage.constants = run->constants;
    s->stage.model = &run->model;
    s->stage.micro_batch = run->micro_batch;
    s->stage.is_first = stage == 0;
    s->stage.is_last = stage == run->n_stages - 1;
    s->stage.n_layers = run->layers[stage] - s->stage.is_first - s->stage.is_last;
}

/* That each rank of a tensor-parallel group gets. */
static double rank_rate(const struct run *run, const struct cell *a, const struct cell *b)
{
    return hdt_predict_between(run->data, a->device, b->device, a->tp) / a->tp;
}

static void replica_play(const struct run *run, int replica, double *end_s)
{
    struct predict_pipeline p = {.n_stages = run->n_stages,
                                 .n_micro_batches = run->n_micro_batches};

    for (int i = 0; i < run->n_stages; i++) {
        struct predict_stage s;

        stage_init(&s, run, i, replica);
        hdt_stage_cost_time(&s.stage, &p.fwd_s[i], &p.bwd_s[i]);
        if (i + 1 < run->n_stages) {
            hdt_stage_cost_message(
                &s.stage, rank_rate(run, &run->cells[i][replica], &run->cells[i + 1][replica]),
                &p.message[i]);
        }
    }
    hdt_predict_play(&p, end_s);
}

/* Gradients of a stage over its replicas, then the optimizer where it takes longest. */
static double stage_finish_s(const struct run *run, int stage)
{
    const struct cell *cells = run->cells[stage];
    double step_s = 0, rate = 0, bytes = 0;

    for (int i = 0; i < run->n_replicas; i++) {
        struct predict_stage s;
        double hop, step;

        stage_init(&s, run, stage, i);
        step = hdt_stage_cost_step_s(&s.stage);
        step_s = step > step_s ? step : step_s;
        bytes = hdt_stage_cost_grad_bytes(&s.stage);
        if (run->n_replicas > 1) {
            hop = rank_rate(run, &cells[i], &cells[(i + 1) % run->n_replicas]);
            rate = rate == 0 || hop < rate ? hop : rate;
        }
    }
    return hdt_stage_cost_ring_s(run->n_replicas, bytes, rate) + step_s;
}

static double run_time(const struct run *run)
{
    double end_s[PREDICT_STAGES_MAX] = {0}, all_s = 0;
    int last = run->n_stages - 1;

    for (int i = 0; i < run->n_replicas; i++) {
        double one_s[PREDICT_STAGES_MAX];

        replica_play(run, i, one_s);
        for (int k = 0; k < run->n_stages; k++) {
            end_s[k] = one_s[k] > end_s[k] ? one_s[k] : end_s[k];
        }
    }
    if (last > 0) {
        struct predict_stage s;
        double rate = rank_rate(run, &run->cells[0][0], &run->cells[last][0]);

        stage_init(&s, run, 0, 0);
        end_s[0] = end_s[0] > end_s[last] ? end_s[0] : end_s[last];
        end_s[0] += hdt_stage_cost_ring_s(2, hdt_stage_cost_tied_bytes(&s.stage), rate);
        end_s[last] = end_s[0];
    }
    for (int i = 0; i < run->n_stages; i++) {
        double done_s = end_s[i] + stage_finish_s(run, i);

        all_s = done_s > all_s ? done_s : all_s;
    }
    return all_s;
}

static double run_memory(const struct run *run)
{
    double most = 0;

    for (int i = 0; i < run->n_stages; i++) {
        int64_t n_in_flight = run->n_stages - i;

        for (int k = 0; k < run->n_replicas; k++) {
            struct predict_stage s;
            struct hdt_stage_cost_memory memory;

            stage_init(&s, run, i, k);
            hdt_stage_cost_memory(
                &s.stage, n_in_flight < run->n_micro_batches ? n_in_flight : run->n_micro_batches,
                &memory);
            most = memory.total > most ? memory.total : most;
        }
    }
    return most;
}

size_t hdt_predict_set_a(const struct predict_data *data,
                         const struct hdt_stage_cost_constants *constants, struct predict_row *rows)
{
    const struct csv *csv = &data->set_a;

    for (int i = 0; i < csv->n_rows; i++) {
        char *const *c = csv->cell[i];
        struct run run = {.data = data, .constants = constants};
        struct predict_row *row = &rows[i];

        run_read(&run, c);
        memset(row, 0, sizeof(*row));
        snprintf(row->name, sizeof(row->name), "%s, %s nodes, %s, micro-batch %s of %s", c[0], c[1],
                 c[3], c[4], c[5]);
        snprintf(row->family, sizeof(row->family), "%s",
                 strcmp(run.cells[0][0].device, "GH200-96GB") == 0 ? "GH" : "RTX");
        row->real_s = hdt_predict_number(c[6]);
        row->real_gb = hdt_predict_number(c[8]);
        row->other_s = hdt_predict_number(c[9]);
        row->predicted_s = run_time(&run);
        row->predicted_gb = run_memory(&run) / 1e9;
    }
    return (size_t)csv->n_rows;
}
