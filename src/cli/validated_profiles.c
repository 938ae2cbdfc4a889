/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Profiles as a run corrects them. What an op took in the run is not what a profile counts: the
 * prediction adds the fixed cost of an op to it, and what gateways take of the processors. So each
 * time of a profile is multiplied by what the stage's op took against its prediction, both without
 * the fixed cost; a stage of blocks alone gets the median of its op, divided by the blocks. In an
 * op of several kinds of layers all are as wrong as the op: it does not tell them apart. Kinds that
 * a rank does not have stay as they were.
 */
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/cli/validated_impl.h"
#include "src/core/profile_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The least that is left of an op without its fixed cost. */
#define WORK_MIN_S 1e-9

/* One rank, and the profile that its plan was made with. */
struct corrected {
    const struct hdt_validated *v;
    struct hdt_cost_inputs in;
    const struct hdt_cluster_worker *worker;
    int rank;
};

static const struct hdt_plan *plan_of(const struct corrected *c)
{
    return &c->v->planned.result.plan;
}

/* Work of the op as it was measured, given its predicted work and both lengths of it. */
static double work_measured(const struct corrected *c, double work_s, double predicted_s,
                            double measured_s)
{
    double fixed_s = c->worker->profile.op_overhead_s;

    return fmax((work_s + fixed_s) * measured_s / predicted_s - fixed_s, WORK_MIN_S);
}

/* Work of a stage's op by the profile. */
static double stage_work(const struct corrected *c, const struct hdt_plan_stage *s,
                         enum hdt_op_kind kind)
{
    double fwd_s, bwd_s, step_s, input_s = 0, weight_s = 0;

    hdt_cost_stage_times(&c->in, &c->worker->profile, s->unit_begin, s->unit_end, &fwd_s, &bwd_s,
                         &step_s);
    switch (kind) {
    case HDT_OP_FORWARD:
        return fwd_s;
    case HDT_OP_BACKWARD:
        return bwd_s;
    case HDT_OP_STEP:
        return step_s;
    default:
        /* It is there: the plan was played with it. */
        hdt_cost_stage_halves(&c->in, c->worker, s->unit_begin, s->unit_end, &input_s, &weight_s,
                              NULL);
        return kind == HDT_OP_BACKWARD_INPUT ? input_s : weight_s;
    }
}

/* What times of this kind of op are to be multiplied by: 1 where nothing was measured. */
static double kind_factor(const struct corrected *c, enum hdt_op_kind kind)
{
    const struct hdt_plan *plan = plan_of(c);
    double before_s = 0, after_s = 0;

    for (size_t i = 0; i < plan->n_stages; i++) {
        const struct hdt_validated_stage *s = &c->v->stages[i];
        double work_s;

        if (plan->stages[i].rank != c->rank || s->predicted_s[kind] <= 0 ||
            s->measured_s[kind] < 0) {
            continue;
        }
        work_s = stage_work(c, &plan->stages[i], kind);
        before_s += work_s;
        after_s += work_measured(c, work_s, s->predicted_s[kind], s->measured_s[kind]);
    }
    return before_s > 0 ? after_s / before_s : 1;
}

/* The optimizer's step is one op of the rank, for all of its stages. */
static double step_factor(const struct corrected *c)
{
    const struct hdt_validated_rank *rank = &c->v->ranks[c->rank];
    double work_s = 0;

    for (size_t i = 0; i < plan_of(c)->n_stages; i++) {
        work_s += plan_of(c)->stages[i].rank == c->rank
                      ? stage_work(c, &plan_of(c)->stages[i], HDT_OP_STEP)
                      : 0;
    }
    if (work_s <= 0 || rank->predicted_op_s[HDT_OP_STEP] <= 0 || rank->op_s[HDT_OP_STEP] < 0) {
        return 1;
    }
    return work_measured(c, work_s, rank->predicted_op_s[HDT_OP_STEP], rank->op_s[HDT_OP_STEP]) /
           work_s;
}

/* Kinds of layers among the rank's stages. */
struct parts {
    bool embedding, blocks, head;
};

static struct parts parts_of(const struct corrected *c)
{
    int64_t n_units = hdt_model_n_units(&c->v->planned.model);
    struct parts parts = {0};

    for (size_t i = 0; i < plan_of(c)->n_stages; i++) {
        const struct hdt_plan_stage *s = &plan_of(c)->stages[i];

        if (s->rank == c->rank) {
            int64_t begin = s->unit_begin > 1 ? s->unit_begin : 1;
            int64_t end = s->unit_end < n_units ? s->unit_end : n_units - 1;

            parts.embedding = parts.embedding || s->unit_begin == 0;
            parts.head = parts.head || s->unit_end == n_units;
            parts.blocks = parts.blocks || begin < end;
        }
    }
    return parts;
}

/* An embedding's backward is all in the weights' half, a head's in the other. */
static void split_correct(const struct corrected *c, struct parts parts, struct hdt_profile *p)
{
    double input = kind_factor(c, HDT_OP_BACKWARD_INPUT);
    double weight = kind_factor(c, HDT_OP_BACKWARD_WEIGHT);
    double before_s = p->block_bwd_input_s + p->block_bwd_weight_s;

    p->embed_bwd_s *= parts.embedding ? weight : 1;
    p->head_bwd_s *= parts.head ? input : 1;
    if (parts.blocks) {
        p->block_bwd_input_s *= input;
        p->block_bwd_weight_s *= weight;
        p->block_bwd_s *= (p->block_bwd_input_s + p->block_bwd_weight_s) / before_s;
    }
}

/* Halves that the run did not do keep their shares. A forward that was done again is known from
 * FORWARD. */
static void whole_correct(const struct corrected *c, struct parts parts, double block_fwd_s,
                          struct hdt_profile *p)
{
    double factor = kind_factor(c, HDT_OP_BACKWARD), again_s, before_s = p->block_bwd_s;

    p->embed_bwd_s *= parts.embedding ? factor : 1;
    p->head_bwd_s *= parts.head ? factor : 1;
    if (parts.blocks && before_s > 0) {
        again_s = c->in.job->recompute ? block_fwd_s : 0;
        p->block_bwd_s =
            factor * (before_s + again_s) - (c->in.job->recompute ? p->block_fwd_s : 0);
        p->block_bwd_s = fmax(p->block_bwd_s, WORK_MIN_S);
        p->block_bwd_input_s *= p->block_bwd_s / before_s;
        p->block_bwd_weight_s *= p->block_bwd_s / before_s;
    }
}

/* ---- codecs of the worker ---- */

/* The flow of a stage's op that sends or takes a frame of an edge; -1: it is no such op. */
static int edge_flow(const struct hdt_plan *plan, int stage, int kind)
{
    bool grad = kind == HDT_OP_SEND_BACKWARD || kind == HDT_OP_RECV_BACKWARD;
    bool sends = kind == HDT_OP_SEND_FORWARD || kind == HDT_OP_SEND_BACKWARD;

    if (!sends && kind != HDT_OP_RECV_FORWARD && kind != HDT_OP_RECV_BACKWARD) {
        return -1;
    }
    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];

        if (f->kind == (grad ? HDT_FLOW_ACTIVATION_GRAD : HDT_FLOW_ACTIVATION) &&
            (sends ? f->src_stage : f->dst_stage) == stage) {
            return (int)i;
        }
    }
    return -1;
}

/* Bytes of fp32 a second through frames that are cast, or copied; `rate` where none was seen. */
static double frames_rate(const struct corrected *c, bool casts, double rate)
{
    const struct hdt_plan *plan = plan_of(c);
    double n_values =
        (double)plan->micro_batch * (double)plan->seq_len * (double)c->v->planned.model.C;
    double bytes = 0, sum_s = 0;

    for (size_t i = 0; i < plan->n_stages * HDT_OP_KIND_COUNT; i++) {
        int stage = (int)(i / HDT_OP_KIND_COUNT), kind = (int)(i % HDT_OP_KIND_COUNT);
        const struct hdt_validated_stage *s = &c->v->stages[stage];
        int flow = plan->stages[stage].rank == c->rank ? edge_flow(plan, stage, kind) : -1;
        const struct hdt_codec_spec *codec = flow >= 0 ? &plan->flows[flow].codec : NULL;

        if (codec && (codec->worker != HDT_CODEC_NONE) == casts && s->predicted_s[kind] > 0 &&
            s->measured_s[kind] >= 0) {
            bytes += 4 * n_values;
            sum_s += work_measured(c, hdt_cost_cast(&c->worker->profile, codec, n_values),
                                   s->predicted_s[kind], s->measured_s[kind]);
        }
    }
    return sum_s > 0 ? bytes / sum_s : rate;
}

static struct hdt_profile profile_correct(const struct corrected *c)
{
    struct hdt_profile p = c->worker->profile;
    struct parts parts = parts_of(c);
    double block_fwd_s = p.block_fwd_s, forward = kind_factor(c, HDT_OP_FORWARD);

    p.embed_fwd_s *= parts.embedding ? forward : 1;
    p.block_fwd_s *= parts.blocks ? forward : 1;
    p.head_fwd_s *= parts.head ? forward : 1;
    if (hdt_schedule_is_split(plan_of(c)->schedule)) {
        split_correct(c, parts, &p);
    } else {
        whole_correct(c, parts, block_fwd_s, &p);
    }
    p.step_s_per_param *= step_factor(c);
    p.cast_bytes_per_s = frames_rate(c, true, p.cast_bytes_per_s);
    p.copy_bytes_per_s = frames_rate(c, false, p.copy_bytes_per_s);
    return p;
}

/* ---- files ---- */

static enum hdt_status profile_write(const struct corrected *c, const char *path,
                                     struct hdt_error *err)
{
    const struct hdt_planned *planned = &c->v->planned;
    char *note = hdt_asprintf("corrected by rank %d of the run in %s", c->rank, c->v->run_dir);
    const struct hdt_profile_file_head head = {.model = planned->job.model,
                                               .device = c->worker->device,
                                               .source = "hdt plan --validate",
                                               .note = note,
                                               .n_threads = c->worker->n_threads,
                                               .seq_len = c->worker->profile.seq_len,
                                               .precision = hdt_cost_precision(&c->in, c->worker)};
    struct hdt_profile profile = profile_correct(c);
    struct hdt_layer_profile file;
    enum hdt_status status;

    hdt_profile_file_begin(&file, &head, &planned->model);
    hdt_profile_file_add(&file, &profile, NAN);
    status = hdt_profile_file_write(&file, path, err);
    hdt_layer_profile_release(&file);
    free(note);
    return status;
}

/* The cluster of the run, in which the files are named. Takes `cluster`. */
static enum hdt_status cluster_write(json_t *cluster, const char *dir, struct hdt_error *err)
{
    char *path = hdt_asprintf("%s/cluster.json", dir);
    char *text = json_dumps(cluster, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    struct hdt_buf bytes = {0};
    enum hdt_status status;

    hdt_buf_appendf(&bytes, "%s\n", text);
    status = hdt_file_write(path, &bytes, 0644, HDT_FILE_REPLACE, err);
    hdt_buf_release(&bytes);
    free(text);
    free(path);
    json_decref(cluster);
    return status;
}

static bool rank_has_stage(const struct hdt_plan *plan, int rank)
{
    for (size_t i = 0; i < plan->n_stages; i++) {
        if (plan->stages[i].rank == rank) {
            return true;
        }
    }
    return false;
}

static enum hdt_status none_refuse(const struct hdt_validated *v, struct hdt_error *err)
{
    hdt_error_set(err, HDT_ENOENT,
                  "the run in %s corrects no profile: no trace of a rank that computed is here, or "
                  "none has steps after the first two",
                  v->run_dir);
    if (v->missing[0]) {
        hdt_error_hint(err, "copy %s to %s", v->missing, v->run_dir);
    } else {
        hdt_error_hint(err, "let a run have more steps");
    }
    return HDT_ENOENT;
}

enum hdt_status hdt_validated_write_profiles(const struct hdt_validated *v, const char *dir,
                                             size_t *n_written, struct hdt_error *err)
{
    const struct hdt_planned *p = &v->planned;
    const struct hdt_plan *plan = &p->result.plan;
    struct corrected c = {.v = v, .in = {&p->job, &p->model, &p->cluster}};
    json_t *cluster, *workers;

    HDT_TRY(hdt_dir_make(dir, 0755, err));
    *n_written = 0;
    cluster = hdt_cluster_to_json(&p->cluster);
    workers = json_object_get(cluster, "workers");
    for (c.rank = 0; c.rank < (int)plan->n_ranks; c.rank++) {
        const struct hdt_plan_rank *r = &plan->ranks[c.rank];
        char name[32], *path;
        enum hdt_status status;
        int64_t first, last;

        c.worker = hdt_cost_find_worker(&p->cluster, r->site, r->worker);
        if (!hdt_validated_steps(v, &v->ranks[c.rank], &first, &last) ||
            !rank_has_stage(plan, c.rank)) {
            continue;
        }
        snprintf(name, sizeof(name), "rank%d.json", c.rank);
        path = hdt_asprintf("%s/%s", dir, name);
        status = profile_write(&c, path, err);
        free(path);
        if (status != HDT_OK) {
            json_decref(cluster);
            return status;
        }
        json_object_set_new(json_array_get(workers, (size_t)(c.worker - p->cluster.workers)),
                            "profile_file", json_string(name));
        ++*n_written;
    }
    if (*n_written == 0) {
        json_decref(cluster);
        return none_refuse(v, err);
    }
    return cluster_write(cluster, dir, err);
}
