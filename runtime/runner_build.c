/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* From "assign" to "ready": everything that can be refused is refused here, before a step is run,
 * and all memory that training will use is taken here. */
#include "runtime/runner_impl.h"
#include "src/core/ckpt_files.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRACE_EVENTS 65536 /* 4.5 MiB: some thousand steps of a small job */

/* ---- the message ---- */

static char *path_join(const char *dir, const char *path)
{
    struct hdt_buf buf = {0};

    if (path[0] == '/' || path[0] == '\0') {
        return hdt_strdup(path);
    }
    hdt_buf_appendf(&buf, "%s/%s", dir, path);
    return hdt_buf_detach(&buf);
}

static enum hdt_status parse_job(struct hdt_runner *r, const json_t *conf, const json_t *model,
                                 const json_t *plan, struct hdt_error *err)
{
    char where[64];

    snprintf(where, sizeof(where), "job %lld", r->number);
    HDT_TRY(hdt_conf_from_json(&hdt_job_schema, conf, where, &r->job, err));
    r->has_job = true;
    HDT_TRY(hdt_model_from_json(model, where, &r->model, err));
    HDT_TRY(hdt_job_check(&r->job, &r->model, NULL, err));
    HDT_TRY(hdt_plan_from_json(plan, &r->model, &r->plan, err));
    HDT_TRY(hdt_plan_check_codecs(&r->plan, &r->job, err));
    if (r->rank < 0 || (size_t)r->rank >= r->plan.n_ranks) {
        return hdt_error_set(err, HDT_EPROTO, "cannot take rank %d of job %lld: its plan has %zu",
                             r->rank, r->number, r->plan.n_ranks);
    }
    if (r->plan.n_replicas > 1 && r->job.outer.steps == 0) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot take job %lld: its plan has %d replicas, but outer.steps is 0",
                             r->number, r->plan.n_replicas);
    }
    r->replica = hdt_plan_rank_replica(&r->plan, r->rank);
    r->leader = hdt_plan_replica_root(&r->plan, r->replica);
    return HDT_OK;
}

/* As the coordinator derives them. It has settled the job's own timeout; without a knob (a rig that
 * plays the coordinator) that one stands for both. */
static void derive_deadlines(struct hdt_runner *r, int64_t knob_ms)
{
    if (knob_ms < HDT_DEADLINES_KNOB_MIN_MS || knob_ms > HDT_DEADLINES_KNOB_MAX_MS) {
        knob_ms = r->job.progress_timeout > HDT_DEADLINES_KNOB_MIN_MS ? r->job.progress_timeout
                                                                      : HDT_DEADLINES_KNOB_MIN_MS;
    }
    hdt_deadlines_derive(&r->deadlines, knob_ms, r->job.progress_timeout);
}

enum hdt_status hdt_runner_parse(struct hdt_runner *r, struct hdt_error *err)
{
    const char *resume = "", *coordinator = "", *submitted = "";
    json_int_t job, epoch, number, knob_ms, resume_step = -1;
    json_t *conf, *model, *plan;
    int rank;

    r->assign_body = (json_t *)(uintptr_t)hdt_msg_body(r->assign);
    number = -1;
    knob_ms = 0;
    HDT_TRY(hdt_msg_unpack(r->assign, err, "{s:I,s:I,s:i,s:o,s:o,s:o,s?:s,s?:I,s:s,s?:I,s?:s,s?:I}",
                           "job", &job, "epoch", &epoch, "rank", &rank, "plan", &plan, "conf",
                           &conf, "model", &model, "resume", &resume, "resume_step", &resume_step,
                           "coordinator", &coordinator, "number", &number, "submitted", &submitted,
                           "knob_ms", &knob_ms));
    if (job < 0 || job > UINT32_MAX || epoch < 0 || epoch > UINT32_MAX) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot take job %lld, epoch %lld: not numbers of one", (long long)job,
                             (long long)epoch);
    }
    r->job_id = (uint32_t)job;
    r->number = number >= 0 ? number : job;
    r->epoch = (uint32_t)epoch;
    r->rank = rank;
    snprintf(r->submitted, sizeof(r->submitted), "%s", submitted);
    r->job_json = conf;
    HDT_TRY(parse_job(r, conf, model, plan, err));
    derive_deadlines(r, knob_ms);
    r->coordinator = hdt_strdup(coordinator);
    r->resume_step = resume_step;
    r->resume = path_join(r->conf.data_dir, resume);
    r->dir = path_join(r->conf.data_dir, r->job.checkpoint.dir);
    return HDT_OK;
}

/* ---- memory ---- */

static void stage_conf_fill(const struct hdt_runner *r, const struct hdt_plan_stage *stage,
                            struct hdt_stage_conf *conf)
{
    memset(conf, 0, sizeof(*conf));
    conf->model = r->model;
    conf->first_unit = (int)stage->unit_begin;
    conf->n_units = (int)(stage->unit_end - stage->unit_begin);
    conf->B = (int)r->plan.micro_batch;
    conf->T = (int)r->plan.seq_len;
    conf->n_slots = (int)r->train.n_slots[stage - r->plan.stages];
    conf->recompute = stage->recompute;
    conf->fp8 = r->job.precision == HDT_JOB_FP8;
    conf->mixed = conf->fp8 || (r->job.precision == HDT_JOB_BF16 && r->conf.backend->mixed);
    conf->halves = hdt_schedule_is_split(r->plan.schedule);
    conf->seed = (uint64_t)r->job.seed;
    conf->alive = r->alive;
}

static bool has_eval(const struct hdt_runner *r)
{
    return r->job.data.valid && r->job.data.valid[0] != '\0';
}

/* Of one activation. */
static size_t n_values(const struct hdt_runner *r)
{
    return (size_t)(r->plan.micro_batch * r->plan.seq_len * r->model.C);
}

/* What codecs keep, twice: their states and the copy of them that a checkpoint takes. */
static uint64_t feedback_bytes(const struct hdt_runner *r)
{
    uint64_t bytes = 0;
    int end = -1;

    while (hdt_state_next_end(&r->plan, r->rank, &end)) {
        if (end >= 2 * (int)r->plan.n_flows) {
            bytes += hdt_state_unit_end_bytes(&r->plan, &r->model, end);
            continue;
        }
        const struct hdt_plan_flow *flow = &r->plan.flows[end / 2];
        bool has_fresh = flow->kind == HDT_FLOW_ACTIVATION && has_eval(r);

        bytes += (2 + has_fresh) * hdt_codec_state_mem(&flow->codec, n_values(r), 1);
    }
    return bytes;
}

/* Add up what the rank will take and compare it with what it may. */
static enum hdt_status build_measure(struct hdt_runner *r, struct hdt_error *err)
{
    uint64_t pool = hdt_port_job_bytes(&r->plan, r->rank), snapshot = 0;
    struct hdt_stage_bytes bytes;
    struct hdt_device_info info;
    struct hdt_stage_conf conf;
    size_t i;

    r->conf.backend->device_info(r->conf.device, &info);
    if (r->job.checkpoint.every > 0) {
        snapshot = hdt_state_snapshot_bytes(&r->plan, &r->model, r->rank);
    }
    r->memory_bytes = pool + snapshot + feedback_bytes(r) + hdt_runner_outer_bytes(r);
    if (!(r->conf.backend->caps & HDT_BACKEND_HOST_MEMORY)) {
        r->memory_bytes += hdt_coder_bytes(r->conf.backend, n_values(r) * sizeof(float));
    }
    for (i = 0; i < r->plan.n_stages; i++) {
        if (r->plan.stages[i].rank == r->rank) {
            stage_conf_fill(r, &r->plan.stages[i], &conf);
            HDT_TRY(hdt_stage_measure(&conf, &bytes, err));
            r->memory_bytes += bytes.total + info.stream_bytes;
        }
    }
    if (r->memory_bytes > r->conf.memory_bytes) {
        hdt_error_set(
            err, HDT_ENOMEM,
            "cannot take rank %d of job %lld: it needs %llu MiB (%llu of them flows, %llu a "
            "snapshot for checkpoints), this worker may use %llu MiB",
            r->rank, r->number, (unsigned long long)(r->memory_bytes >> 20),
            (unsigned long long)(pool >> 20), (unsigned long long)(snapshot >> 20),
            (unsigned long long)(r->conf.memory_bytes >> 20));
        hdt_error_hint(err, "use more workers, a smaller micro_batch, or recompute: true in the "
                            "job; or raise 'memory' in worker.yaml");
        return HDT_ENOMEM;
    }
    return HDT_OK;
}

/* ---- parts ---- */

static enum hdt_status build_schedules(struct hdt_runner *r, struct hdt_error *err)
{
    HDT_TRY(hdt_schedule_build(&r->plan, r->rank, HDT_PHASE_TRAIN, r->plan.n_micro_batches,
                               &r->train, err));
    if (has_eval(r)) {
        HDT_TRY(hdt_schedule_build(&r->plan, r->rank, HDT_PHASE_EVAL, r->job.eval.n_micro_batches,
                                   &r->eval, err));
    }
    return HDT_OK;
}

static enum hdt_status shard_open(struct hdt_runner *r, const char *name, struct hdt_shard **shard,
                                  struct hdt_error *err)
{
    struct hdt_shard_options options = {.n_vocab = (uint32_t)r->model.V};
    char *path = path_join(r->conf.data_dir, name);
    enum hdt_status status = hdt_shard_open(path, &options, shard, err);

    if (status == HDT_ENOENT) {
        hdt_error_hint(err,
                       "the shard must be on this worker's machine; a relative path starts at "
                       "its data_dir, %s",
                       r->conf.data_dir);
    }
    free(path);
    return status;
}

static enum hdt_status build_data(struct hdt_runner *r, struct hdt_error *err)
{
    size_t n = (size_t)(r->plan.micro_batch * r->plan.seq_len);

    if (r->rank != r->plan.data_rank) {
        return HDT_OK;
    }
    r->tokens = hdt_calloc(n, sizeof(*r->tokens));
    r->labels = hdt_calloc(n, sizeof(*r->labels));
    HDT_TRY(shard_open(r, r->job.data.train, &r->train_shard, err));
    HDT_TRY(
        hdt_sampler_init(&r->sampler, r->train_shard, (uint64_t)r->job.seed, r->plan.seq_len, err));
    if (has_eval(r)) {
        HDT_TRY(shard_open(r, r->job.data.valid, &r->valid_shard, err));
    }
    return HDT_OK;
}

static enum hdt_status build_stages(struct hdt_runner *r, struct hdt_error *err)
{
    struct hdt_stage_conf conf;
    uint64_t tokens = hdt_runner_replica_samples(r) * (uint64_t)r->plan.seq_len;
    size_t i;

    if (r->job.precision == HDT_JOB_BF16 && !r->conf.backend->mixed) {
        hdt_log_info("job %lld, rank %d: backend %s has no products of bf16, it computes in fp32",
                     r->number, r->rank, r->conf.backend->name);
    }
    r->stages = hdt_calloc(r->plan.n_stages, sizeof(*r->stages));
    for (i = 0; i < r->plan.n_stages; i++) {
        if (r->plan.stages[i].rank != r->rank) {
            continue;
        }
        stage_conf_fill(r, &r->plan.stages[i], &conf);
        HDT_TRY(hdt_runner_stop_check(r, err)); /* before each, which may take seconds */
        HDT_TRY(hdt_stage_new(r->conf.backend, r->conf.device, &conf, &r->stages[i], err));
        hdt_stage_set_loss_scale(r->stages[i], (float)(1.0 / (double)tokens));
    }
    return HDT_OK;
}

/* What codes tensors when the device's memory cannot be touched. */
static enum hdt_status build_coder(struct hdt_runner *r, struct hdt_error *err)
{
    if (r->conf.backend->caps & HDT_BACKEND_HOST_MEMORY) {
        return HDT_OK;
    }
    return hdt_coder_new(r->conf.backend, r->conf.device, n_values(r) * sizeof(float), &r->coder,
                         err);
}

struct hdt_codec_state *hdt_runner_codec_state(const struct hdt_runner *r, int flow)
{
    struct hdt_codec_state *fresh = r->flows[flow].eval_state;

    if (r->phase == HDT_PHASE_TRAIN || !fresh) {
        return r->flows[flow].state;
    }
    hdt_codec_state_reset(fresh);
    return fresh;
}

/* What the codec of a flow keeps at this rank. */
static enum hdt_status build_feedback(struct hdt_runner *r, size_t flow, struct hdt_error *err)
{
    const struct hdt_plan_flow *f = &r->plan.flows[flow];
    struct runner_flow *own = &r->flows[flow];
    bool is_src = f->src_rank == r->rank;

    if ((!is_src && f->dst_rank != r->rank) || !hdt_state_keeps_feedback(f, is_src)) {
        return HDT_OK;
    }
    HDT_TRY(hdt_codec_state_new(&f->codec, n_values(r), 1, &own->state, err));
    r->feedback[2 * flow + !is_src] = own->state;
    if (f->kind == HDT_FLOW_ACTIVATION && has_eval(r)) {
        HDT_TRY(hdt_codec_state_new(&f->codec, n_values(r), 1, &own->eval_state, err));
    }
    return HDT_OK;
}

static enum hdt_status build_codecs(struct hdt_runner *r, struct hdt_error *err)
{
    r->flows = hdt_calloc(r->plan.n_flows + 1, sizeof(*r->flows));
    r->feedback = hdt_calloc(2 * r->plan.n_flows + 1, sizeof(*r->feedback));
    for (size_t i = 0; i < r->plan.n_flows; i++) {
        r->flows[i].spec = r->plan.flows[i].codec;
        r->flows[i].codec = hdt_codec_spec_worker(&r->flows[i].spec);
        HDT_TRY(build_feedback(r, i, err));
    }
    return HDT_OK;
}

static enum hdt_status build_flows(struct hdt_runner *r, struct hdt_error *err)
{
    struct hdt_port_job_conf conf = {.job = r->job_id,
                                     .number = r->number,
                                     .epoch = r->epoch,
                                     .rank = r->rank,
                                     .plan = &r->plan,
                                     .progress_timeout_ms = r->deadlines.rank_us / HDT_US_PER_MS,
                                     .inspect_hash = true};
    const struct hdt_pool *pool;
    struct hdt_port_job *port;

    HDT_TRY(build_codecs(r, err));
    hdt_runner_build_edges(r);
    HDT_TRY(hdt_codec_ctx_new(0, &r->codec_ctx, err));
    HDT_TRY(hdt_port_job_open(r->conf.port, &conf, &port, err));
    pthread_mutex_lock(&r->lock);
    r->port = port;
    if (r->stop == HDT_RUNNER_ABORT) {
        hdt_port_job_cancel(port, &r->why);
    }
    pthread_mutex_unlock(&r->lock);
    pool = hdt_port_job_pool(port);
    if (pool->base && r->conf.backend->host_register) {
        HDT_TRY(r->conf.backend->host_register(r->conf.device, pool->base, pool->len, err));
    }
    return HDT_OK;
}

static void build_sync(struct hdt_runner *r)
{
    uint32_t n = (uint32_t)hdt_model_n_tensors(&r->model);

    hdt_sync_total_init(&r->total, n);
    r->items = hdt_calloc(n, sizeof(*r->items));
    r->sumsq = hdt_calloc(n, sizeof(*r->sumsq));
    r->ups = hdt_calloc(r->plan.n_ranks, sizeof(*r->ups));
    for (size_t i = 0; i < r->plan.n_ranks; i++) {
        r->ups[i].step = -1; /* not heard of */
    }
    hdt_trace_init(&r->trace, TRACE_EVENTS);
}

static struct hdt_ckpt_owner owner_of(const struct hdt_runner *r)
{
    struct hdt_ckpt_owner owner = {.job = r->job_id, .epoch = r->epoch, .number = r->number};

    snprintf(owner.name, sizeof(owner.name), "%s", r->job.name);
    snprintf(owner.coordinator, sizeof(owner.coordinator), "%s", r->coordinator);
    snprintf(owner.submitted, sizeof(owner.submitted), "%s", r->submitted);
    return owner;
}

/* Another job's checkpoints beyond the step that this one starts from would be overwritten, hours
 * from now: better said at once. */
static enum hdt_status check_owner(const struct hdt_runner *r, struct hdt_error *err)
{
    struct hdt_ckpt_owner owner = owner_of(r);

    return r->rank == r->plan.checkpoint_rank
               ? hdt_ckpt_check_owner(r->dir, &owner, r->start_step, err)
               : HDT_OK;
}

static enum hdt_status build_state(struct hdt_runner *r, struct hdt_error *err)
{
    struct hdt_state_conf conf = {.plan = &r->plan,
                                  .model = &r->model,
                                  .rank = r->rank,
                                  .port = r->port,
                                  .stages = r->stages,
                                  .feedback = r->feedback,
                                  .edges = r->edges,
                                  .momentum = hdt_runner_outer_momentum(r),
                                  .dir = r->dir,
                                  .keep = r->job.checkpoint.keep,
                                  .owner = owner_of(r),
                                  .job = r->job_json,
                                  .newest_step = r->epoch > 1 ? r->resume_step : -1,
                                  .background = r->job.checkpoint.every > 0,
                                  .alive = r->alive,
                                  .saved = hdt_runner_report_ckpt,
                                  .failed = hdt_runner_report_ckpt_failed,
                                  .user = r};
    struct hdt_ckpt_meta meta;

    HDT_TRY(hdt_state_new(&conf, &r->state, err));
    if (r->resume[0] == '\0') {
        return check_owner(r, err);
    }
    HDT_TRY(hdt_state_load(r->state, r->resume, &meta, err));
    r->start_step = meta.step;
    r->start_samples = meta.samples;
    r->start_tokens = meta.tokens;
    if (r->rank == r->plan.checkpoint_rank && meta.seed != (uint64_t)r->job.seed) {
        hdt_log_warn("job %lld: resumed with seed %lld, trained with %llu: samples come in another "
                     "order, so that some of this epoch's are seen again",
                     r->number, (long long)r->job.seed, (unsigned long long)meta.seed);
    }
    hdt_log_info("job %lld: resumed after step %lld", r->number, (long long)meta.step);
    return check_owner(r, err);
}

static void say_alive(void *user, json_t *msg)
{
    hdt_port_send(user, msg);
}

static void build_alive(struct hdt_runner *r)
{
    const struct hdt_alive_conf conf = {.say = say_alive,
                                        .user = r->conf.port,
                                        .coordinator = r->coordinator,
                                        .job = r->job_id,
                                        .epoch = r->epoch,
                                        .rank = r->rank,
                                        .interval_us = r->deadlines.alive_us};

    r->alive = hdt_alive_new(&conf);
}

enum hdt_status hdt_runner_build(struct hdt_runner *r, struct hdt_error *err)
{
    if (r->rank == r->plan.checkpoint_rank && hdt_ckpt_probe(r->dir, err) != HDT_OK) {
        hdt_error_hint(err, "correct checkpoint.dir, or let the user of hdt-worker write there");
        return HDT_EIO;
    }
    build_alive(r);
    HDT_TRY(build_schedules(r, err));
    HDT_TRY(build_measure(r, err));
    HDT_TRY(build_data(r, err));
    HDT_TRY(build_stages(r, err));
    HDT_TRY(build_coder(r, err));
    build_sync(r);
    HDT_TRY(build_flows(r, err));
    HDT_TRY(hdt_runner_stop_check(r, err));
    HDT_TRY(hdt_runner_build_outer(r, err));
    HDT_TRY(build_state(r, err));
    r->outer_begin_step = r->start_step;
    return hdt_runner_outer_begin(r, err);
}

static void unbuild_flows(struct hdt_runner *r)
{
    const struct hdt_pool *pool;
    struct hdt_port_job *port;

    pthread_mutex_lock(&r->lock);
    port = r->port;
    r->port = NULL;
    pthread_mutex_unlock(&r->lock);
    if (!port) {
        return;
    }
    pool = hdt_port_job_pool(port);
    if (pool->base && r->conf.backend->host_unregister) {
        r->conf.backend->host_unregister(r->conf.device, pool->base);
    }
    hdt_port_job_close(port);
}

void hdt_runner_unbuild(struct hdt_runner *r)
{
    size_t i;

    hdt_state_free(r->state);
    hdt_runner_unbuild_outer(r);
    unbuild_flows(r);
    for (i = 0; r->stages && i < r->plan.n_stages; i++) {
        hdt_stage_free(r->stages[i]);
    }
    hdt_coder_free(r->coder);
    for (i = 0; r->flows && i < r->plan.n_flows; i++) {
        hdt_codec_state_free(r->flows[i].state);
        hdt_codec_state_free(r->flows[i].eval_state);
    }
    hdt_runner_unbuild_edges(r);
    hdt_codec_ctx_free(r->codec_ctx);
    hdt_alive_free(r->alive);
    hdt_shard_close(r->train_shard);
    hdt_shard_close(r->valid_shard);
    hdt_schedule_release(&r->train);
    hdt_schedule_release(&r->eval);
    hdt_sync_total_release(&r->total);
    hdt_trace_release(&r->trace);
    hdt_plan_release(&r->plan);
    if (r->has_job) {
        hdt_conf_release(&hdt_job_schema, &r->job);
    }
    free(r->feedback);
    free(r->edges);
    free(r->stages);
    free(r->flows);
    free(r->tokens);
    free(r->labels);
    free(r->items);
    free(r->sumsq);
    free(r->ups);
}
