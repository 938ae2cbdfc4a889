/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/predict_play.h"
#include "src/base/buf.h"
#include "src/base/error.h"

#include <stdlib.h>
#include <string.h>

enum op_kind { OP_NONE, OP_SEND_GRAD, OP_RECV_ACT, OP_RECV_GRAD, OP_SEND_ACT, OP_FWD, OP_BWD };

#define SLOTS 3 /* of a step: two messages, one computation */

struct op {
    enum op_kind kind;
    int64_t micro_batch;
};

struct stage {
    int64_t step;
    int slot;
    double now_s;
};

struct play {
    const struct predict_pipeline *p;
    struct stage stages[PREDICT_STAGES_MAX];
    double *arrive_s[PREDICT_STAGES_MAX][2]; /* by edge and direction; < 0: not sent */
    double free_s[PREDICT_STAGES_MAX][2];    /* links, one for each direction */
};

/* The micro-batch of a step; out of range before the first and after the last one. */
static int64_t micro_batch_at(const struct predict_pipeline *p, int stage, int64_t step, bool *fwd)
{
    int64_t odd_step = step & 1, odd_stage = stage & 1;

    *fwd = odd_step == odd_stage;
    if (*fwd) {
        return (step - odd_step) / 2 - stage / 2;
    }
    return odd_step == 0 ? step / 2 - p->n_stages + (stage + 1) / 2
                         : (step - 1) / 2 - p->n_stages + 1 + stage / 2;
}

static bool is_valid(const struct predict_pipeline *p, int64_t micro_batch)
{
    return micro_batch >= 0 && micro_batch < p->n_micro_batches;
}

static struct op op_at(const struct predict_pipeline *p, int stage, int64_t step, int slot)
{
    bool fwd, before_fwd, has_prev = stage > 0, has_next = stage + 1 < p->n_stages;
    int64_t now = micro_batch_at(p, stage, step, &fwd);
    int64_t before = step > 0 ? micro_batch_at(p, stage, step - 1, &before_fwd) : -1;
    bool is_now = is_valid(p, now), is_before = is_valid(p, before);
    struct op none = {.kind = OP_NONE};

    if (slot == 2) {
        return is_now ? (struct op){fwd ? OP_FWD : OP_BWD, now} : none;
    }
    if (slot == 0) {
        if (fwd) {
            return is_before && has_prev ? (struct op){OP_SEND_GRAD, before} : none;
        }
        return is_now && has_next ? (struct op){OP_RECV_GRAD, now} : none;
    }
    if (fwd) {
        return is_now && has_prev ? (struct op){OP_RECV_ACT, now} : none;
    }
    return is_before && has_next ? (struct op){OP_SEND_ACT, before} : none;
}

static void send(struct play *play, struct stage *s, int edge, bool is_grad, int64_t micro_batch)
{
    const struct hdt_stage_cost_message *m = &play->p->message[edge];
    double *link_free_s = &play->free_s[edge][is_grad], sent_s = s->now_s + m->end_s;
    double start_s = sent_s > *link_free_s ? sent_s : *link_free_s;
    double arrive_s = start_s + m->wire_s, gone_s = arrive_s - m->eager_share * m->wire_s;

    *link_free_s = arrive_s;
    play->arrive_s[edge][is_grad][micro_batch] = arrive_s;
    s->now_s = m->eager_share < 1 && gone_s > sent_s ? gone_s : sent_s;
}

static bool recv(struct play *play, struct stage *s, int edge, bool is_grad, int64_t micro_batch)
{
    double arrive_s = play->arrive_s[edge][is_grad][micro_batch];

    if (arrive_s < 0) {
        return false;
    }
    s->now_s = (arrive_s > s->now_s ? arrive_s : s->now_s) + play->p->message[edge].end_s;
    return true;
}

/* False: it waits for what another stage has not sent. */
static bool op_run(struct play *play, int stage)
{
    struct stage *s = &play->stages[stage];
    struct op op = op_at(play->p, stage, s->step, s->slot);
    bool done = true;

    switch (op.kind) {
    case OP_FWD:
        s->now_s += play->p->fwd_s[stage];
        break;
    case OP_BWD:
        s->now_s += play->p->bwd_s[stage];
        break;
    case OP_SEND_ACT:
        send(play, s, stage, false, op.micro_batch);
        break;
    case OP_SEND_GRAD:
        send(play, s, stage - 1, true, op.micro_batch);
        break;
    case OP_RECV_ACT:
        done = recv(play, s, stage - 1, false, op.micro_batch);
        break;
    case OP_RECV_GRAD:
        done = recv(play, s, stage, true, op.micro_batch);
        break;
    case OP_NONE:
        break;
    }
    if (done && ++s->slot == SLOTS) {
        s->slot = 0;
        s->step++;
    }
    return done;
}

void hdt_predict_play(const struct predict_pipeline *pipeline, double *end_s)
{
    int64_t n_steps = 2 * (pipeline->n_micro_batches + pipeline->n_stages - 1);
    struct play play = {.p = pipeline};
    bool moved = true;

    HDT_ASSERT(pipeline->n_stages <= PREDICT_STAGES_MAX);
    for (int i = 0; i < 2 * pipeline->n_stages; i++) {
        double *times = hdt_calloc((size_t)pipeline->n_micro_batches, sizeof(double));

        for (int64_t k = 0; k < pipeline->n_micro_batches; k++) {
            times[k] = -1;
        }
        play.arrive_s[i / 2][i % 2] = times;
    }
    while (moved) {
        moved = false;
        for (int i = 0; i < pipeline->n_stages; i++) {
            while (play.stages[i].step < n_steps && op_run(&play, i)) {
                moved = true;
            }
        }
    }
    for (int i = 0; i < pipeline->n_stages; i++) {
        HDT_ASSERT(play.stages[i].step == n_steps);
        end_s[i] = play.stages[i].now_s;
        free(play.arrive_s[i][0]);
        free(play.arrive_s[i][1]);
    }
}
