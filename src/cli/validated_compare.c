/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Both timelines are cut into steps and every microsecond of a rank's step is put into one class:
 * the ops by what they do, the gaps by the op that ended them. The largest cause is found by
 * playing the plan again with one measured figure at a time in place of its prediction: a sum of
 * classes would blame the rank that waits.
 */
#include "src/cli/validated_impl.h"
#include "src/base/buf.h"
#include "src/base/median.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CELLS_MAX  (1 << 22) /* steps times micro-batches that are looked at: the last ones */
#define SAME_SHARE 0.02

const char *hdt_validated_class_name(enum hdt_validated_class c)
{
    static const char *const names[] = {
        "forward", "backward",        "send",           "recv",          "load",   "sync",
        "step",    "wait for frames", "wait for slots", "wait for sync", "between"};

    HDT_STATIC_ASSERT(sizeof(names) / sizeof(names[0]) == HDT_VALIDATED_CLASS_COUNT, "all named");
    return names[c];
}

/* The gap in front of an op. */
static enum hdt_validated_class gap_class(enum hdt_op_kind kind)
{
    switch (hdt_validated_class_of(kind)) {
    case HDT_VALIDATED_SEND:
        return HDT_VALIDATED_WAIT_CREDIT;
    case HDT_VALIDATED_RECV:
        return HDT_VALIDATED_WAIT_FRAME;
    case HDT_VALIDATED_SYNC:
        return HDT_VALIDATED_WAIT_SYNC;
    default:
        return HDT_VALIDATED_BETWEEN;
    }
}

/* ---- predicted ---- */

static void predicted_fill(struct hdt_validated *v, int rank)
{
    const struct hdt_cost *cost = &v->planned.result.cost;
    struct hdt_validated_rank *out = &v->ranks[rank];
    double end_s = NAN, first_s = NAN, last_s = 0;
    size_t count[HDT_OP_KIND_COUNT] = {0};
    enum hdt_op_kind first = HDT_OP_LOAD;

    for (size_t i = 0; i < cost->n_ops; i++) {
        const struct hdt_cost_op *op = &cost->ops[i];
        double busy_s = op->end_s - op->start_s;

        if (op->rank != rank) {
            continue;
        }
        if (isnan(end_s)) {
            first_s = op->start_s;
            first = op->op.kind;
        } else {
            out->rows[gap_class(op->op.kind)].predicted_s += op->start_s - end_s;
        }
        out->rows[hdt_validated_class_of(op->op.kind)].predicted_s += busy_s;
        out->predicted_op_s[op->op.kind] =
            (count[op->op.kind]++ ? out->predicted_op_s[op->op.kind] : 0) + busy_s;
        out->predicted_busy_s += busy_s;
        end_s = last_s = op->end_s;
    }
    for (int kind = 0; kind < HDT_OP_KIND_COUNT; kind++) {
        out->predicted_op_s[kind] =
            count[kind] ? out->predicted_op_s[kind] / (double)count[kind] : -1;
    }
    /* Steps follow one another: what is left of the period is in front of the first op. */
    if (!isnan(end_s)) {
        out->rows[gap_class(first)].predicted_s +=
            fmax(0, v->predicted_step_s - (last_s - first_s));
    }
}

/* ---- measured ---- */

bool hdt_validated_steps(const struct hdt_validated *v, const struct hdt_validated_rank *rank,
                         int64_t *first, int64_t *last)
{
    int64_t low = INT64_MAX, high = -1, most = CELLS_MAX / v->planned.result.plan.n_micro_batches;

    for (size_t i = 0; i < rank->n_ops; i++) {
        const struct hdt_timeline_op *op = &rank->ops[i];

        if (!op->eval && op->step >= 0) {
            low = op->step < low ? op->step : low;
            high = op->step > high ? op->step : high;
        }
    }
    *first = high >= 0 && high - low >= most ? high - most + 1 : low + VALIDATED_N_WARM;
    *last = high;
    return high >= 0 && *first <= *last;
}

struct step_len {
    double s;
    size_t step;
};

static int step_len_compare(const void *a, const void *b)
{
    const struct step_len *x = a, *y = b;

    return x->s != y->s ? (x->s > y->s) - (x->s < y->s) : (x->step > y->step) - (x->step < y->step);
}

/* Means over the steps that are neither among the shortest nor among the longest quarter. Medians
 * of each class would not add up to a step: what is now one wait and now another has no median. */
static void measured_means(struct hdt_validated_rank *out, const double *sums, size_t n_steps)
{
    struct step_len *lens = hdt_calloc(n_steps, sizeof(*lens));
    const size_t n_classes = HDT_VALIDATED_CLASS_COUNT, cut = n_steps / 4;

    for (size_t s = 0; s < n_steps; s++) {
        lens[s].step = s;
        for (size_t c = 0; c < n_classes; c++) {
            lens[s].s += sums[s * n_classes + c];
        }
    }
    qsort(lens, n_steps, sizeof(*lens), step_len_compare);
    for (size_t i = cut; i < n_steps - cut; i++) {
        for (size_t c = 0; c < n_classes; c++) {
            out->rows[c].measured_s +=
                sums[lens[i].step * n_classes + c] / (double)(n_steps - 2 * cut);
        }
    }
    free(lens);
}

/* Steps of a trace that stand for all of them: where outer steps end rounds, whole rounds. */
static bool measured_steps(const struct hdt_validated *v, const struct hdt_validated_rank *rank,
                           int64_t *first, int64_t *last)
{
    int64_t first_end = -1, last_end = -1;

    if (!hdt_validated_steps(v, rank, first, last)) {
        return false;
    }
    for (size_t i = 0; i < rank->n_ops; i++) {
        const struct hdt_timeline_op *op = &rank->ops[i];

        if (op->kind == HDT_OP_OUTER_SYNC && op->step >= *first && op->step <= *last) {
            first_end = first_end < 0 || op->step < first_end ? op->step : first_end;
            last_end = op->step > last_end ? op->step : last_end;
        }
    }
    if (last_end > first_end) { /* else there is no whole one, and part of one has to do */
        *first = first_end + 1;
        *last = last_end;
    }
    return true;
}

/* Each step of a round is the mean of its round: only the last has the outer step, and the wait for
 * the other replicas. */
static void rounds_even(const struct hdt_validated_rank *rank, int64_t first, size_t n_steps,
                        double *sums)
{
    const size_t n_classes = HDT_VALIDATED_CLASS_COUNT;
    bool *ends = hdt_calloc(n_steps, sizeof(*ends));
    size_t begin = 0;

    for (size_t i = 0; i < rank->n_ops; i++) {
        int64_t s = rank->ops[i].step - first;

        if (rank->ops[i].kind == HDT_OP_OUTER_SYNC && s >= 0 && s < (int64_t)n_steps) {
            ends[s] = true;
        }
    }
    for (size_t s = 0; s < n_steps; s++) {
        for (size_t c = 0; ends[s] && c < n_classes; c++) {
            double sum = 0;

            for (size_t k = begin; k <= s; k++) {
                sum += sums[k * n_classes + c];
            }
            for (size_t k = begin; k <= s; k++) {
                sums[k * n_classes + c] = sum / (double)(s + 1 - begin);
            }
        }
        begin = ends[s] ? s + 1 : begin;
    }
    free(ends);
}

static void measured_fill(const struct hdt_validated *v, struct hdt_validated_rank *out)
{
    int64_t first, last;
    size_t n_steps, n_classes = HDT_VALIDATED_CLASS_COUNT;
    double *sums, end_us = NAN;
    double cpu_us[HDT_VALIDATED_CLASS_COUNT] = {0}, dur_us[HDT_VALIDATED_CLASS_COUNT] = {0};

    if (!measured_steps(v, out, &first, &last)) {
        return;
    }
    n_steps = (size_t)(last - first + 1);
    sums = hdt_calloc(n_steps * n_classes, sizeof(double));
    for (size_t i = 0; i < out->n_ops; i++) {
        const struct hdt_timeline_op *op = &out->ops[i];

        if (!op->eval && op->step >= first && op->step <= last) {
            double *step = &sums[(size_t)(op->step - first) * n_classes];

            step[hdt_validated_class_of(op->kind)] += op->dur_us / 1e6;
            step[gap_class(op->kind)] += isnan(end_us) ? 0 : fmax(0, op->start_us - end_us) / 1e6;
            cpu_us[hdt_validated_class_of(op->kind)] += op->cpu_us;
            dur_us[hdt_validated_class_of(op->kind)] += op->dur_us;
        }
        end_us = op->start_us + op->dur_us;
    }
    rounds_even(out, first, n_steps, sums);
    measured_means(out, sums, n_steps);
    for (size_t c = 0; c < n_classes; c++) {
        out->rows[c].cpu_share = dur_us[c] > 0 ? fmin(1, cpu_us[c] / dur_us[c]) : 0;
    }
    free(sums);
}

static void measured_ops(const struct hdt_validated *v, struct hdt_validated_rank *out)
{
    double *values = hdt_calloc(out->n_ops + 1, sizeof(double));
    int64_t first, last;
    bool any = measured_steps(v, out, &first, &last);

    for (int kind = 0; kind < HDT_OP_KIND_COUNT; kind++) {
        size_t n = 0;
        double sum_s = 0;

        for (size_t i = 0; any && i < out->n_ops; i++) {
            const struct hdt_timeline_op *op = &out->ops[i];

            if ((int)op->kind == kind && !op->eval && op->step >= first && op->step <= last) {
                sum_s += op->dur_us / 1e6;
                values[n++] = op->dur_us / 1e6;
            }
        }
        out->op_s[kind] = n ? hdt_median(values, n) : -1;
        if (n > 0 && kind == HDT_OP_OUTER_SYNC) { /* a step has its share, as in the prediction */
            out->op_s[kind] = sum_s / (double)(last - first + 1);
        }
    }
    free(values);
}

/* A rank of another replica than the first says nothing of its steps: its trace does. */
static void measured_busy(struct hdt_validated_rank *out)
{
    if (out->measured_busy_s < 0) {
        out->measured_busy_s = 0;
        for (int c = 0; c <= HDT_VALIDATED_STEP; c++) {
            out->measured_busy_s += out->rows[c].measured_s;
        }
    }
}

/* ---- edges ---- */

static bool flow_is_edge(const struct hdt_plan *plan, const struct hdt_plan_flow *f)
{
    return (f->kind == HDT_FLOW_ACTIVATION || f->kind == HDT_FLOW_ACTIVATION_GRAD) &&
           strcmp(plan->ranks[f->src_rank].site, plan->ranks[f->dst_rank].site) != 0;
}

/* When SEND of each micro-batch of steps [first, last] ended, by step and micro-batch. */
static double *sends_of(const struct hdt_validated *v, const struct hdt_plan_flow *f, int64_t first,
                        int64_t last)
{
    const struct hdt_validated_rank *src = &v->ranks[f->src_rank];
    int64_t n_mb = v->planned.result.plan.n_micro_batches;
    enum hdt_op_kind kind =
        f->kind == HDT_FLOW_ACTIVATION ? HDT_OP_SEND_FORWARD : HDT_OP_SEND_BACKWARD;
    double *ends = hdt_calloc((size_t)((last - first + 1) * n_mb), sizeof(double));

    for (size_t i = 0; i < src->n_ops; i++) {
        const struct hdt_timeline_op *op = &src->ops[i];

        if (op->kind == kind && op->stage == f->src_stage && !op->eval && op->step >= first &&
            op->step <= last && op->mb >= 0) {
            ends[(op->step - first) * n_mb + op->mb] = op->start_us + op->dur_us;
        }
    }
    return ends;
}

static void edge_measure(const struct hdt_validated *v, struct hdt_validated_edge *edge)
{
    const struct hdt_plan *plan = &v->planned.result.plan;
    const struct hdt_plan_flow *f = &plan->flows[edge->flow];
    const struct hdt_validated_rank *dst = &v->ranks[f->dst_rank];
    int64_t first, last;
    double *ends, *values;

    if (!hdt_validated_steps(v, dst, &first, &last) || v->ranks[f->src_rank].n_ops == 0) {
        return;
    }
    ends = sends_of(v, f, first, last);
    values = hdt_calloc(dst->n_ops + 1, sizeof(double));
    for (size_t i = 0; i < dst->n_ops; i++) {
        const struct hdt_timeline_op *op = &dst->ops[i];
        enum hdt_op_kind kind =
            f->kind == HDT_FLOW_ACTIVATION ? HDT_OP_RECV_FORWARD : HDT_OP_RECV_BACKWARD;
        double sent_us;

        if (op->kind != kind || op->stage != f->dst_stage || op->eval || op->step < first ||
            op->mb < 0 || op->arrived_us == 0) {
            continue;
        }
        sent_us = ends[(op->step - first) * plan->n_micro_batches + op->mb];
        if (sent_us != 0) {
            values[edge->n_frames++] = (op->arrived_us - sent_us) / 1e6;
        }
    }
    edge->measured_s = hdt_median(values, edge->n_frames);
    free(values);
    free(ends);
}

/* Mean over a step's frames of the played timeline. */
static double edge_predicted(const struct hdt_validated *v, const struct hdt_plan_flow *f)
{
    const struct hdt_cost *cost = &v->planned.result.cost;
    bool fwd = f->kind == HDT_FLOW_ACTIVATION;
    enum hdt_op_kind send = fwd ? HDT_OP_SEND_FORWARD : HDT_OP_SEND_BACKWARD;
    enum hdt_op_kind recv = fwd ? HDT_OP_RECV_FORWARD : HDT_OP_RECV_BACKWARD;
    double sum_s = 0;

    /* Each frame is sent and received once in a step. */
    for (size_t i = 0; i < cost->n_ops; i++) {
        const struct hdt_cost_op *op = &cost->ops[i];

        if (op->op.kind == recv && op->op.stage == f->dst_stage) {
            sum_s += op->arrived_s;
        } else if (op->op.kind == send && op->op.stage == f->src_stage) {
            sum_s -= op->end_s;
        }
    }
    return sum_s / (double)v->planned.result.plan.stages[f->src_stage].n_micro_batches;
}

static void edge_fill(struct hdt_validated *v, size_t flow)
{
    const struct hdt_planned *p = &v->planned;
    const struct hdt_plan *plan = &p->result.plan;
    const struct hdt_plan_flow *f = &plan->flows[flow];
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    struct hdt_validated_edge *edge;
    struct hdt_cost_transfer t;
    double n_values = (double)plan->micro_batch * (double)plan->seq_len * (double)p->model.C;

    if (hdt_cost_transfer(&in, plan->ranks[f->src_rank].site, plan->ranks[f->dst_rank].site,
                          &f->codec, n_values, &t, NULL) != HDT_OK) {
        return;
    }
    v->edges = hdt_realloc(v->edges, (v->n_edges + 1) * sizeof(*v->edges));
    edge = &v->edges[v->n_edges++];
    *edge = (struct hdt_validated_edge){
        .flow = (int)flow,
        .bytes = t.wire_bytes * (double)plan->stages[f->src_stage].n_micro_batches};
    edge->predicted_s = edge_predicted(v, f);
    edge_measure(v, edge);
    if (edge->n_frames > 0 && edge->measured_s > t.latency_s) {
        edge->goodput_bytes_per_s = t.wire_bytes / (edge->measured_s - t.latency_s);
    }
}

/* ---- the cause ---- */

struct given {
    double *op_s, *late_s;
    size_t n_ops, n_flows;
};

static void given_clear(struct given *g)
{
    for (size_t i = 0; i < g->n_ops; i++) {
        g->op_s[i] = -1;
    }
    memset(g->late_s, 0, g->n_flows * sizeof(double));
}

static double given_step(const struct hdt_validated *v, const struct given *g)
{
    const struct hdt_planned *p = &v->planned;
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    struct hdt_cost_given given = {g->op_s, g->late_s};
    struct hdt_cost cost;
    double step_s = 0;

    if (hdt_cost_play_given(&in, &p->result.plan, &given, &cost, NULL) == HDT_OK) {
        step_s = cost.step_s;
        hdt_cost_release(&cost);
    }
    return step_s;
}

/* The measured times of one class of ops at a rank; of all classes with HDT_VALIDATED_CLASS_COUNT.
 */
static void given_rank(const struct hdt_validated *v, struct given *g, size_t rank, int class)
{
    for (int kind = 0; kind < HDT_OP_KIND_COUNT; kind++) {
        double op_s = v->ranks[rank].op_s[kind];

        if (op_s >= 0 && (class == HDT_VALIDATED_CLASS_COUNT ||
                          class == (int)hdt_validated_class_of((enum hdt_op_kind)kind))) {
            g->op_s[rank * HDT_OP_KIND_COUNT + (size_t)kind] = op_s;
        }
    }
}

static void given_edge(const struct hdt_validated *v, struct given *g, size_t i)
{
    const struct hdt_validated_edge *edge = &v->edges[i];

    if (edge->n_frames > 0) {
        g->late_s[edge->flow] = edge->measured_s - edge->predicted_s;
    }
}

struct cause {
    double weight_s;
    size_t rank, edge;
    int class; /* HDT_VALIDATED_CLASS_COUNT: an edge */
};

static void cause_offer(struct cause *best, const struct cause *next, double sign)
{
    if (sign * next->weight_s > sign * best->weight_s) {
        *best = *next;
    }
}

static struct cause cause_find(const struct hdt_validated *v, struct given *g, double sign)
{
    struct cause best = {.class = -1};

    for (size_t r = 0; r < v->planned.result.plan.n_ranks; r++) {
        for (int c = 0; c <= HDT_VALIDATED_STEP; c++) {
            struct cause next = {.rank = r, .class = c};

            given_clear(g);
            given_rank(v, g, r, c);
            next.weight_s = given_step(v, g) - v->predicted_step_s;
            cause_offer(&best, &next, sign);
        }
    }
    for (size_t i = 0; i < v->n_edges; i++) {
        struct cause next = {.edge = i, .class = HDT_VALIDATED_CLASS_COUNT};

        given_clear(g);
        given_edge(v, g, i);
        next.weight_s = given_step(v, g) - v->predicted_step_s;
        cause_offer(&best, &next, sign);
    }
    return best;
}

static void cause_rank_words(const struct hdt_validated *v, const struct cause *c, char *out,
                             size_t cap)
{
    const struct hdt_plan_rank *r = &v->planned.result.plan.ranks[c->rank];
    const struct hdt_validated_row *row = &v->ranks[c->rank].rows[c->class];
    size_t used =
        (size_t)snprintf(out, cap, "%s of rank %zu (%.40s/%.40s) takes %.1f ms a step, not %.1f",
                         hdt_validated_class_name((enum hdt_validated_class)c->class), c->rank,
                         r->site, r->worker, 1e3 * row->measured_s, 1e3 * row->predicted_s);

    if (row->cpu_share > 0 && row->cpu_share < 0.97 && used < cap) {
        snprintf(out + used, cap - used, " (others had its core for %.0f %% of that)",
                 100 * (1 - row->cpu_share));
    }
}

static void cause_words(struct hdt_validated *v, const struct cause *c, double diff_s)
{
    const struct hdt_plan *plan = &v->planned.result.plan;
    char what[240];

    if (c->class < 0 || fabs(c->weight_s) < 0.1 * fabs(diff_s)) {
        snprintf(what, sizeof(what),
                 v->missing[0] ? "the traces of the workers would say why"
                               : "no op and no frame explains a tenth of it");
    } else if (c->class == HDT_VALIDATED_CLASS_COUNT) {
        const struct hdt_validated_edge *e = &v->edges[c->edge];
        const struct hdt_plan_flow *f = &plan->flows[e->flow];

        snprintf(what, sizeof(what), "%s %.40s -> %.40s come after %.1f ms, not %.1f",
                 f->kind == HDT_FLOW_ACTIVATION ? "activations" : "gradients",
                 plan->ranks[f->src_rank].site, plan->ranks[f->dst_rank].site, 1e3 * e->measured_s,
                 1e3 * e->predicted_s);
    } else {
        cause_rank_words(v, c, what, sizeof(what));
    }
    snprintf(v->cause, sizeof(v->cause),
             "a step is %.1f ms (%.1f %%) %s than predicted: %s, which alone makes %+.1f ms",
             1e3 * fabs(diff_s), 100 * fabs(diff_s) / v->predicted_step_s,
             diff_s > 0 ? "longer" : "shorter", what, 1e3 * c->weight_s);
    if (c->class < 0 || fabs(c->weight_s) < 0.1 * fabs(diff_s)) {
        *strstr(v->cause, ", which alone") = '\0';
    }
}

static void cause_fill(struct hdt_validated *v)
{
    size_t n_ranks = v->planned.result.plan.n_ranks, n_flows = v->planned.result.plan.n_flows;
    double diff_s = v->measured_step_s - v->predicted_step_s;
    struct given g = {hdt_calloc(n_ranks * HDT_OP_KIND_COUNT, sizeof(double)),
                      hdt_calloc(n_flows + 1, sizeof(double)), n_ranks * HDT_OP_KIND_COUNT,
                      n_flows};
    struct cause cause;

    given_clear(&g);
    for (size_t r = 0; r < n_ranks; r++) {
        given_rank(v, &g, r, HDT_VALIDATED_CLASS_COUNT);
    }
    for (size_t i = 0; i < v->n_edges; i++) {
        given_edge(v, &g, i);
    }
    v->given_step_s = given_step(v, &g);
    cause = cause_find(v, &g, diff_s < 0 ? -1 : 1);
    if (fabs(diff_s) < SAME_SHARE * v->predicted_step_s) {
        snprintf(v->cause, sizeof(v->cause), "a step takes what was predicted, within %.0f %%",
                 100 * SAME_SHARE);
    } else {
        cause_words(v, &cause, diff_s);
    }
    free(g.op_s);
    free(g.late_s);
}

void hdt_validated_compare(struct hdt_validated *v)
{
    const struct hdt_plan *plan = &v->planned.result.plan;

    for (size_t i = 0; i < plan->n_ranks; i++) {
        predicted_fill(v, (int)i);
        measured_fill(v, &v->ranks[i]);
        measured_ops(v, &v->ranks[i]);
        measured_busy(&v->ranks[i]);
    }
    hdt_validated_stages(v);
    for (size_t i = 0; i < plan->n_flows; i++) {
        if (flow_is_edge(plan, &plan->flows[i])) {
            edge_fill(v, i);
        }
    }
    cause_fill(v);
}
