/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/job_rig.h"

#include "runtime/agent.h"
#include "runtime/cpu/cpu_device.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/core/shard.h"
#include "tests/support/fake_gateway.h"

#include <ftw.h>
#include <signal.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <string.h>
#include <unistd.h>

#define RIG_L          4 /* units: embedding, four blocks, head */
#define RIG_V          97
#define REPORTS        "step|eval|ckpt|ckpt.failed|saving|done|rank.done|failed"
#define RIG_WAIT_MS    60000
#define RIG_RELEASE_MS 10000 /* what is under way is cancelled, not waited for */

struct worker {
    struct hdt_worker_conf conf;
    struct hdt_device *device;
    struct hdt_agent *agent;
    pthread_t thread;
};

struct rig {
    char dir[64], socket[128];
    struct fake_gateway *gateway;
    struct worker workers[RIG_RANKS_MAX];
    int n_workers;
    uint32_t next_job, epoch;
};

static void must(bool ok, const char *what, const struct hdt_error *err)
{
    if (!ok) {
        fprintf(stderr, "rig: %s: %s\n", what, err ? err->msg : "");
        abort();
    }
}

/* ---- data ---- */

/* Text with something to learn: a token often follows from the one before it. */
static void shard_write(const char *path, uint32_t seed, int n)
{
    struct hdt_shard_options options = {.n_vocab = RIG_V};
    int32_t *tokens = hdt_malloc((size_t)n * sizeof(*tokens));
    struct hdt_shard_writer *writer;
    struct hdt_error err = {0};
    int i;

    for (i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] =
            i > 0 && seed >> 30 ? (tokens[i - 1] * 7 + 3) % RIG_V : (int32_t)((seed >> 8) % RIG_V);
    }
    must(hdt_shard_writer_open(path, &options, "none", &writer, &err) == HDT_OK, path, &err);
    must(hdt_shard_writer_append(writer, tokens, (size_t)n, &err) == HDT_OK, path, &err);
    must(hdt_shard_writer_finish(writer, &err) == HDT_OK, path, &err);
    free(tokens);
}

struct rig *hdt_rig_new(uint32_t seed)
{
    struct rig *rig = hdt_calloc(1, sizeof(*rig));
    char path[160];

    snprintf(rig->dir, sizeof(rig->dir), "/tmp/hdt-rig-XXXXXX");
    must(mkdtemp(rig->dir) != NULL, "mkdtemp", NULL);
    snprintf(rig->socket, sizeof(rig->socket), "%s/gw.sock", rig->dir);
    snprintf(path, sizeof(path), "%s/train.bin", rig->dir);
    shard_write(path, seed, 5000);
    snprintf(path, sizeof(path), "%s/valid.bin", rig->dir);
    shard_write(path, seed + 1, 300);
    rig->gateway = hdt_fake_gateway_new(rig->socket);
    rig->next_job = 1;
    return rig;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void hdt_rig_free(struct rig *rig)
{
    hdt_fake_gateway_free(rig->gateway);
    nftw(rig->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(rig);
}

const char *hdt_rig_dir(const struct rig *rig)
{
    return rig->dir;
}

/* ---- workers ---- */

static void *worker_thread(void *arg)
{
    hdt_agent_run(((struct worker *)arg)->agent);
    return NULL;
}

static void worker_start(struct rig *rig, int idx, const struct rig_run *run)
{
    struct worker *worker = &rig->workers[idx];
    struct hdt_device_conf device = {.n_threads = run->threads[idx] ? run->threads[idx] : 1};
    struct hdt_agent_conf conf = {.worker = &worker->conf,
                                  .backend = &hdt_backend_cpu,
                                  .memory_bytes =
                                      run->memory_bytes ? run->memory_bytes : (uint64_t)1 << 30,
                                  .version = "test"};
    struct hdt_error err = {0};
    struct hdt_buf text = {0};

    hdt_conf_defaults(&hdt_worker_conf_schema, &worker->conf);
    free(worker->conf.name);
    free(worker->conf.gateway);
    free(worker->conf.data_dir);
    free(worker->conf.state_dir);
    hdt_buf_appendf(&text, "w%d", idx);
    worker->conf.name = hdt_buf_detach(&text);
    hdt_buf_appendf(&text, "unix:%s", rig->socket);
    worker->conf.gateway = hdt_buf_detach(&text);
    worker->conf.data_dir = hdt_strdup(rig->dir);
    hdt_buf_appendf(&text, "%s/state%d", rig->dir, idx);
    worker->conf.state_dir = hdt_buf_detach(&text);
    must(hdt_backend_cpu.device_open(&device, &worker->device, &err) == HDT_OK, "device", &err);
    conf.device = worker->device;
    must(hdt_agent_new(&conf, &worker->agent, &err) == HDT_OK, "agent", &err);
    must(pthread_create(&worker->thread, NULL, worker_thread, worker) == 0, "thread", NULL);
}

static void worker_stop(struct worker *worker)
{
    if (!worker->agent) {
        return;
    }
    hdt_agent_stop(worker->agent);
    pthread_join(worker->thread, NULL);
    hdt_agent_free(worker->agent);
    hdt_backend_cpu.device_close(worker->device);
    hdt_conf_release(&hdt_worker_conf_schema, &worker->conf);
    memset(worker, 0, sizeof(*worker));
}

/* ---- the job ---- */

static void model_fill(const struct rig_run *run, struct hdt_model_config *model)
{
    *model = (struct hdt_model_config){.V = RIG_V,
                                       .C = 32,
                                       .F = 64,
                                       .L = RIG_L,
                                       .NH = 4,
                                       .NKV = 2,
                                       .HS = 8,
                                       .T = 32,
                                       .rms_norm_eps = 1e-5,
                                       .initializer_range = 0.05,
                                       .rope_theta = 10000,
                                       .tie_word_embeddings = run->tied,
                                       .bos_token_id = -1,
                                       .eos_token_id = -1};
}

static json_t *conf_json(const struct rig_run *run, uint32_t job)
{
    const char *codec = run->codec ? run->codec : "none";
    char site[16], ckpt_site[16], own[32];

    snprintf(site, sizeof(site), "s%d", run->data_rank);
    snprintf(ckpt_site, sizeof(ckpt_site), "s%d", run->ckpt_rank ? run->ckpt_rank : run->data_rank);
    snprintf(own, sizeof(own), "ckpt-%u", job);
    return json_pack(
        "{s:s,s:s,s:{s:s,s:s,s:s},s:{s:i,s:i,s:i},s:I,s:I,s:b,s:{s:f,s:f,s:i},s:{s:s,s:s},"
        "s:{s:i,s:s},s:{s:s,s:s,s:I,s:i},s:{s:I,s:i},s:{s:s},s:I}",
        "name", "rig", "model", "config.json", "data", "train", "train.bin", "valid", "valid.bin",
        "site", site, "batch", "micro_batch", 2, "n_micro_batches", 4, "seq_len", 16, "steps",
        (json_int_t)run->steps, "seed", (json_int_t)7, "recompute", (int)run->recompute,
        "optimizer", "lr", run->lr ? run->lr : 1e-2, "min_lr", 1e-4, "warmup_steps", 2, "codec",
        "activations", codec, "activation_grads", codec, "outer", "steps", run->outer_steps,
        "codec", run->outer_codec ? run->outer_codec : "none", "checkpoint", "dir",
        run->ckpt_name ? run->ckpt_name : own, "site", ckpt_site, "every",
        (json_int_t)run->checkpoint_every, "keep", 2, "eval", "every", (json_int_t)run->eval_every,
        "n_micro_batches", 3, "plan", "schedule", hdt_schedule_names[run->schedule],
        "progress_timeout", (json_int_t)5000);
}

static json_t *plan_json(const struct rig_run *run, const json_t *conf,
                         const struct hdt_model_config *model)
{
    struct hdt_plan plan = {0};
    struct hdt_error err = {0};
    struct hdt_job job;
    json_t *json;
    int i, unit = 0;

    must(hdt_conf_from_json(&hdt_job_schema, conf, "rig", &job, &err) == HDT_OK, "job", &err);
    plan.n_ranks = (size_t)run->n_ranks;
    plan.n_stages = (size_t)run->n_stages;
    plan.ranks = hdt_calloc(plan.n_ranks, sizeof(*plan.ranks));
    plan.stages = hdt_calloc(plan.n_stages, sizeof(*plan.stages));
    for (i = 0; i < run->n_ranks; i++) {
        snprintf(plan.ranks[i].site, HDT_NAME_CAP, "s%d", i);
        snprintf(plan.ranks[i].worker, HDT_NAME_CAP, "w%d", i);
    }
    for (i = 0; i < run->n_stages; i++) {
        bool first = i == 0 || run->replica[i] != run->replica[i - 1];
        int last = i;

        while (last + 1 < run->n_stages && run->replica[last + 1] == run->replica[i]) {
            last++;
        }
        unit = first ? 0 : unit;
        plan.stages[i].replica = run->replica[i];
        plan.stages[i].n_micro_batches = run->replica_mb[run->replica[i]];
        plan.stages[i].pos = first ? 0 : plan.stages[i - 1].pos + 1;
        plan.stages[i].rank = run->stage_rank[i];
        plan.stages[i].n_slices = 1;
        plan.stages[i].unit_begin = unit;
        unit += run->n_units[i];
        plan.stages[i].unit_end = unit;
        plan.stages[i].warmup = last - i;
        plan.stages[i].in_flight = plan.stages[i].warmup + 1 + run->n_more;
        plan.stages[i].recompute = run->recompute;
    }
    must(hdt_plan_complete(&plan, &job, model, &err) == HDT_OK, "plan", &err);
    json = hdt_plan_to_json(&plan);
    hdt_plan_release(&plan);
    hdt_conf_release(&hdt_job_schema, &job);
    return json;
}

static void tell_all(struct rig *rig, const struct rig_run *run, const char *type, uint32_t job,
                     const char *mode)
{
    char worker[16];
    json_t *body;
    int i;

    for (i = 0; i < run->n_ranks; i++) {
        snprintf(worker, sizeof(worker), "w%d", i);
        body = json_pack("{s:I,s:I,s:i}", "job", (json_int_t)job, "epoch", (json_int_t)rig->epoch,
                         "rank", i);
        if (mode) {
            json_object_set_new(body, "mode", json_string(mode));
        }
        hdt_fake_gateway_send(rig->gateway, worker, hdt_msg_new(type, NULL, body));
    }
}

static void assign_all(struct rig *rig, const struct rig_run *run, uint32_t job, const char *resume)
{
    struct hdt_model_config model;
    json_t *conf = conf_json(run, job), *plan, *model_json;
    char worker[16];
    int i;

    model_fill(run, &model);
    plan = plan_json(run, conf, &model);
    model_json = hdt_model_to_json(&model);
    for (i = 0; i < run->n_ranks; i++) {
        snprintf(worker, sizeof(worker), "w%d", i);
        hdt_fake_gateway_send(
            rig->gateway, worker,
            hdt_msg_new("assign", NULL,
                        json_pack("{s:I,s:I,s:i,s:O,s:O,s:O,s:s,s:s}", "job", (json_int_t)job,
                                  "epoch", (json_int_t)rig->epoch, "rank", i, "plan", plan, "conf",
                                  conf, "model", model_json, "resume", resume, "coordinator",
                                  "here")));
    }
    json_decref(conf);
    json_decref(plan);
    json_decref(model_json);
}

/* ---- following ---- */

static void take_text(const json_t *body, const char *key, char *text, size_t cap)
{
    const char *value = json_string_value(json_object_get(body, key));

    snprintf(text, cap, "%s", value ? value : "");
}

static void take_error(const json_t *body, struct rig_result *result)
{
    if (!result->error) {
        result->error = json_deep_copy(body);
    }
}

/* All ranks ready? */
static bool wait_ready(struct rig *rig, const struct rig_run *run, struct rig_result *result)
{
    json_t *msg;
    int i;

    for (i = 0; i < run->n_ranks && !result->error; i++) {
        msg = hdt_fake_gateway_take(rig->gateway, "ready|error", RIG_WAIT_MS);
        must(msg != NULL, "a worker is neither ready nor refuses", NULL);
        if (strcmp(hdt_msg_type(msg), "error") == 0) {
            take_error(hdt_msg_body(msg), result);
        } else {
            result->start_step =
                json_integer_value(json_object_get(hdt_msg_body(msg), "start_step"));
        }
        json_decref(msg);
    }
    return !result->error;
}

/* All ranks drop the epoch and say so; what they said before of it is forgotten. */
static void release_all(struct rig *rig, const struct rig_run *run, uint32_t job)
{
    json_t *msg;
    int i;

    tell_all(rig, run, "release", job, NULL);
    for (i = 0; i < run->n_ranks; i++) {
        msg = hdt_fake_gateway_take(rig->gateway, "released", RIG_RELEASE_MS);
        must(msg != NULL, "a worker does not let go of a job", NULL);
        must(json_integer_value(json_object_get(hdt_msg_body(msg), "epoch")) == rig->epoch,
             "released of another epoch", NULL);
        json_decref(msg);
    }
    while ((msg = hdt_fake_gateway_take(rig->gateway, "ready|error", 0))) {
        json_decref(msg);
    }
}

static void on_ckpt(const json_t *body, struct rig_result *result)
{
    result->n_ckpts++;
    result->ckpt_step = json_integer_value(json_object_get(body, "step"));
    take_text(body, "path", result->checkpoint, sizeof(result->checkpoint));
    take_text(body, "weights_digest", result->ckpt_digest, sizeof(result->ckpt_digest));
}

static void restart(struct rig *rig, const struct rig_run *run, uint32_t job,
                    struct rig_result *result)
{
    json_t *msg;

    while (run->checkpoint_every && result->n_ckpts == 0) {
        msg = hdt_fake_gateway_take(rig->gateway, "ckpt", RIG_WAIT_MS);
        must(msg != NULL, "no checkpoint is reported", NULL);
        on_ckpt(hdt_msg_body(msg), result);
        json_decref(msg);
    }
    if (!run->restart_at_once) {
        release_all(rig, run, job);
    }
    rig->epoch++;
    assign_all(rig, run, job, result->checkpoint);
    if (wait_ready(rig, run, result)) {
        tell_all(rig, run, "start", job, NULL);
    }
}

static void on_step(struct rig *rig, const struct rig_run *run, const json_t *body, uint32_t job,
                    struct rig_result *result)
{
    int64_t step = json_integer_value(json_object_get(body, "step"));
    char worker[16];

    must(step >= 1 && step <= RIG_STEPS_MAX, "step out of bounds", NULL);
    result->losses[step] = json_real_value(json_object_get(body, "loss"));
    result->outer_losses[step] = json_real_value(json_object_get(body, "outer_loss"));
    result->norms[step] = json_real_value(json_object_get(body, "grad_norm"));
    result->n_losses++;
    if (run->cut_every && step % run->cut_every == 0) {
        snprintf(worker, sizeof(worker), "w%d", (int)(step / run->cut_every) % run->n_ranks);
        hdt_fake_gateway_cut(rig->gateway, worker, run->cut_forgets);
        result->n_cuts++;
    }
    if (run->stop_after && step == run->stop_after) {
        tell_all(rig, run, "stop", job, "checkpoint");
    }
    if (run->lose_rank && step == 2) {
        worker_stop(&rig->workers[run->lose_rank]);
    }
    if (step == run->restart_after && rig->epoch == 1) {
        restart(rig, run, job, result);
    }
}

/* A limit on file sizes is a disk that is full, for all of this process: the pools of its workers
 * are there already. */
static void disk_fill(bool full)
{
    struct rlimit limit;

    signal(SIGXFSZ, SIG_IGN);
    must(getrlimit(RLIMIT_FSIZE, &limit) == 0, "getrlimit", NULL);
    limit.rlim_cur = full ? 20000 : limit.rlim_max;
    must(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit", NULL);
}

static void on_ckpt_failed(const struct rig_run *run, const json_t *body, struct rig_result *result)
{
    take_text(json_object_get(body, "error"), "msg", result->ckpt_error,
              sizeof(result->ckpt_error));
    if (++result->n_ckpts_failed == run->n_full) {
        disk_fill(false);
    }
}

static void on_report(struct rig *rig, const struct rig_run *run, const json_t *msg, uint32_t job,
                      struct rig_result *result)
{
    const char *type = hdt_msg_type(msg);
    const json_t *body = hdt_msg_body(msg);

    if (strcmp(type, "step") == 0) {
        on_step(rig, run, body, job, result);
    } else if (strcmp(type, "eval") == 0) {
        result->val_loss = json_real_value(json_object_get(body, "val_loss"));
    } else if (strcmp(type, "ckpt") == 0) {
        on_ckpt(body, result);
    } else if (strcmp(type, "ckpt.failed") == 0) {
        on_ckpt_failed(run, body, result);
    } else if (strcmp(type, "done") == 0) {
        take_text(body, "weights_digest", result->digest, sizeof(result->digest));
        result->stopped = json_is_true(json_object_get(body, "stopped"));
    } else if (strcmp(type, "rank.done") == 0) {
        int64_t rank = json_integer_value(json_object_get(body, "rank"));

        must(rank >= 0 && rank < RIG_RANKS_MAX, "rank out of bounds", NULL);
        take_text(body, "trace", result->traces[rank], sizeof(result->traces[rank]));
    } else if (strcmp(type, "failed") == 0) {
        take_error(json_object_get(body, "error"), result);
    }
}

static void follow(struct rig *rig, const struct rig_run *run, uint32_t job,
                   struct rig_result *result)
{
    int n_done = 0;
    json_t *msg;

    while (n_done < run->n_ranks && !result->error) {
        msg = hdt_fake_gateway_take(rig->gateway, REPORTS, RIG_WAIT_MS);
        must(msg != NULL, "nothing was reported for a long time", NULL);
        if (json_integer_value(json_object_get(hdt_msg_body(msg), "epoch")) == rig->epoch) {
            n_done += strcmp(hdt_msg_type(msg), "rank.done") == 0;
            on_report(rig, run, msg, job, result);
        }
        json_decref(msg);
    }
}

void hdt_rig_run(struct rig *rig, const struct rig_run *run, struct rig_result *result)
{
    uint32_t job = rig->next_job++;
    json_t *msg;
    int i;

    memset(result, 0, sizeof(*result));
    rig->epoch = 1;
    for (i = 0; i < run->n_ranks; i++) {
        worker_start(rig, i, run);
    }
    must(hdt_fake_gateway_wait_workers(rig->gateway, run->n_ranks, RIG_WAIT_MS), "workers", NULL);
    hdt_fake_gateway_flip(rig->gateway, run->flip_load ? run->n_flip : 0);
    assign_all(rig, run, job, run->resume ? run->resume : "");
    if (run->drop_first) {
        release_all(rig, run, job);
        rig->epoch++;
        assign_all(rig, run, job, "");
    }
    if (wait_ready(rig, run, result)) {
        if (run->stop_first) {
            tell_all(rig, run, "stop", job, "checkpoint");
        }
        if (run->n_full > 0) {
            disk_fill(true);
        }
        hdt_fake_gateway_flip(rig->gateway, run->flip_load ? 0 : run->n_flip);
        tell_all(rig, run, "start", job, NULL);
        follow(rig, run, job, result);
    }
    if (run->n_full > 0) {
        disk_fill(false);
    }
    hdt_fake_gateway_flip(rig->gateway, 0);
    tell_all(rig, run, "release", job, NULL);
    for (i = 0; i < run->n_ranks; i++) {
        worker_stop(&rig->workers[i]);
    }
    must(hdt_fake_gateway_wait_workers(rig->gateway, 0, RIG_WAIT_MS), "workers that do not go",
         NULL);
    while ((msg = hdt_fake_gateway_take(rig->gateway, "ready|released|error|" REPORTS, 0))) {
        json_decref(msg);
    }
}

void hdt_rig_result_release(struct rig_result *result)
{
    json_decref(result->error);
    memset(result, 0, sizeof(*result));
}
