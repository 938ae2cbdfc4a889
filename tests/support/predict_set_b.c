/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Set B: ranks in the order of nodes of four; a stage's replicas are neighbours, and so are the
 * ranks of a tensor-parallel group. All that leaves a node at once shares its link.
 */
#include "tests/support/predict_impl.h"
#include "src/base/error.h"

#include <stdio.h>
#include <string.h>

#define MODEL        "GPT-2-24L"
#define NODE_SIZE    4
#define LAST_NODE    3
#define GLOBAL_BATCH 32
#define FIRST_LAYER  2 /* entries of the list of layers that are layers */
#define LAST_LAYER   25

struct run {
    const struct predict_data *data;
    const struct hdt_stage_cost_constants *constants;
    struct hdt_stage_cost_model model;
    int tp, dp, pp;
    int cuts[PREDICT_STAGES_MAX + 1];
    int64_t micro_batch;
};

static int rank_of(const struct run *run, int stage, int replica)
{
    return (stage * run->dp + replica) * run->tp;
}

static int node_of(int rank)
{
    return rank / NODE_SIZE;
}

static const char *device_of(int rank)
{
    return node_of(rank) == LAST_NODE ? "T4" : "V100-SXM2-16GB";
}

static void run_read(struct run *run, char *const *row)
{
    int layers[PREDICT_STAGES_MAX], n_layers;

    hdt_predict_model(run->data, MODEL, &run->model, &n_layers);
    run->micro_batch = hdt_predict_int(row[0]);
    run->tp = hdt_predict_int(row[1]);
    run->dp = hdt_predict_int(row[2]);
    run->pp = hdt_predict_int(row[3]);
    HDT_ASSERT(hdt_predict_layers(row[4], layers) == run->pp);
    for (int i = 0; i < run->pp; i++) {
        run->cuts[i + 1] = run->cuts[i] + layers[i];
    }
}

static void stage_init(struct predict_stage *s, const struct run *run, int stage, int replica)
{
    int begin = run->cuts[stage], end = run->cuts[stage + 1];

    hdt_predict_stage_init(s, run->data, MODEL, device_of(rank_of(run, stage, replica)), run->tp);
    begin = begin < FIRST_LAYER ? FIRST_LAYER : begin;
    end = end > LAST_LAYER + 1 ? LAST_LAYER + 1 : end;
    s->stage.constants = run->constants;
    s->stage.model = &run->model;
    s->stage.micro_batch = run->micro_batch;
    s->stage.is_first = stage == 0;
    s->stage.is_last = stage == run->pp - 1;
    s->stage.n_layers = end > begin ? end - begin : 0;
}

static double rate(const struct run *run, int a, int b)
{
    return node_of(a) == node_of(b) ? hdt_predict_inside(run->data, device_of(a), 1)
                                    : hdt_predict_between(run->data, device_of(a), device_of(b), 1);
}

/* Of one rank to the next stage: replicas that leave the same node, with all their ranks, share. */
static double message_rate(const struct run *run, int stage, int replica)
{
    int a = rank_of(run, stage, replica), b = rank_of(run, stage + 1, replica), n = 0;

    if (node_of(a) == node_of(b)) {
        return rate(run, a, b);
    }
    for (int i = 0; i < run->dp; i++) {
        int src = rank_of(run, stage, i), dst = rank_of(run, stage + 1, i);

        n += node_of(src) == node_of(a) && node_of(dst) != node_of(a);
    }
    return rate(run, a, b) / (n * run->tp);
}

static void replica_play(const struct run *run, int replica, double *end_s)
{
    struct predict_pipeline p = {.n_stages = run->pp,
                                 .n_micro_batches = GLOBAL_BATCH / run->dp / run->micro_batch};

    for (int i = 0; i < run->pp; i++) {
        struct predict_stage s;

        stage_init(&s, run, i, replica);
        hdt_stage_cost_time(&s.stage, &p.fwd_s[i], &p.bwd_s[i]);
        if (i + 1 < run->pp) {
            hdt_stage_cost_message(&s.stage, message_rate(run, i, replica), &p.message[i]);
        }
    }
    hdt_predict_play(&p, end_s);
}

/* A ring through the replicas of a stage; each rank of a tensor-parallel group has one, and those
 * leave a node together. */
static double stage_finish_s(const struct run *run, int stage)
{
    double slowest = 0, step_s = 0, bytes = 0;

    for (int i = 0; i < run->dp; i++) {
        int a = rank_of(run, stage, i), b = rank_of(run, stage, (i + 1) % run->dp);
        double hop = rate(run, a, b), step;
        struct predict_stage s;

        if (node_of(a) != node_of(b)) {
            hop *= run->constants->ring_share / run->tp;
        }
        stage_init(&s, run, stage, i);
        bytes = hdt_stage_cost_grad_bytes(&s.stage);
        step = hdt_stage_cost_step_s(&s.stage);
        step_s = step > step_s ? step : step_s;
        slowest = slowest == 0 || hop < slowest ? hop : slowest;
    }
    return hdt_stage_cost_ring_s(run->dp, bytes, slowest) + step_s;
}

static double tied_s(const struct run *run)
{
    int n = run->dp * run->tp < NODE_SIZE ? run->dp * run->tp : NODE_SIZE;
    struct predict_stage s;

    stage_init(&s, run, 0, 0);
    return hdt_stage_cost_ring_s(2, hdt_stage_cost_tied_bytes(&s.stage),
                                 rate(run, 0, rank_of(run, run->pp - 1, 0)) / n);
}

static double run_time(const struct run *run)
{
    double end_s[PREDICT_STAGES_MAX] = {0}, all_s = 0;
    int last = run->pp - 1;

    for (int i = 0; i < run->dp; i++) {
        double one_s[PREDICT_STAGES_MAX];

        replica_play(run, i, one_s);
        for (int k = 0; k < run->pp; k++) {
            end_s[k] = one_s[k] > end_s[k] ? one_s[k] : end_s[k];
        }
    }
    if (last > 0) {
        end_s[0] = (end_s[0] > end_s[last] ? end_s[0] : end_s[last]) + tied_s(run);
        end_s[last] = end_s[0];
    }
    for (int i = 0; i < run->pp; i++) {
        double done_s = end_s[i] + stage_finish_s(run, i);

        all_s = done_s > all_s ? done_s : all_s;
    }
    return all_s;
}

size_t hdt_predict_set_b(const struct predict_data *data,
                         const struct hdt_stage_cost_constants *constants, struct predict_row *rows)
{
    const struct csv *csv = &data->set_b;

    for (int i = 0; i < csv->n_rows; i++) {
        char *const *c = csv->cell[i];
        struct run run = {.data = data, .constants = constants};
        struct predict_row *row = &rows[i];

        run_read(&run, c);
        memset(row, 0, sizeof(*row));
        snprintf(row->name, sizeof(row->name), "mbs %s tp %s dp %s pp %s", c[0], c[1], c[2], c[3]);
        snprintf(row->family, sizeof(row->family), "AMP");
        row->other_s = hdt_predict_number(c[5]);
        row->real_s = hdt_predict_number(c[6]);
        row->predicted_s = run_time(&run);
    }
    return (size_t)csv->n_rows;
}
