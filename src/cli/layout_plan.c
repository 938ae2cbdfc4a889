/* SPDX-License-Identifier: Apache-2.0 */
/* hdt plan LAYOUT.yaml: reads, searches, and asks what else there is to know. */
#include "config.h"

#include "src/cli/layout_plan.h"
#include "src/base/buf.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Clusters of more devices are asked what one plan gains, not searched again. */
#define GAIN_MAX_DEVICES 2048
#define GAIN_SIMULATIONS 200

#define GIB (1024.0 * 1024 * 1024)

/* The plan that runs stays where what is left takes no more than so much of the best one. */
#define WORTH_IT  1.001
#define STEPS_ANY 1e15 /* so many that no move costs */

/* ---- reading ---- */

/* A layout's file names its cluster, in the first column; a job has no such setting. */
bool hdt_layout_plan_is_for(const char *path)
{
    FILE *in = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    bool is = false;

    while (in && !is && getline(&line, &cap, in) >= 0) {
        is = strncmp(line, "cluster:", 8) == 0;
    }
    free(line);
    if (in) {
        fclose(in);
    }
    return is;
}

/* The job on its own cluster. */
static enum hdt_status job_open(const struct hdt_layout_plan_args *args,
                                struct hdt_layout_files *files, struct hdt_error *err)
{
    HDT_TRY(hdt_layout_open_job(args->layout, &args->instead, files, err));
    if (args->schedule) {
        int kind = 0;

        while (hdt_schedule_names[kind] && strcmp(hdt_schedule_names[kind], args->schedule) != 0) {
            kind++;
        }
        if (!hdt_schedule_names[kind]) {
            hdt_layout_release(files);
            return hdt_error_set(err, HDT_EINVAL, "--schedule: there is no '%.32s'",
                                 args->schedule);
        }
        files->layout.schedule = kind;
    }
    return HDT_OK;
}

/* A cluster as a file of this process's own; its descriptor, or -1. */
static int cluster_file(const struct hdt_cluster_file *cluster, struct hdt_error *err)
{
    int fd = memfd_create("what-if.yaml", MFD_CLOEXEC), copy = fd < 0 ? -1 : dup(fd);
    FILE *out = copy < 0 ? NULL : fdopen(copy, "w");
    bool ok = out != NULL;

    if (ok) {
        hdt_conf_write(&hdt_cluster_file_schema, cluster, out);
        ok = !ferror(out);
        ok = fclose(out) == 0 && ok;
    }
    if (!ok) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot keep a changed cluster in memory");
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    return fd;
}

/* The same job on its cluster with some figures changed. */
static enum hdt_status changed_open(const struct hdt_layout_plan_args *args, char *const *changes,
                                    size_t n, struct hdt_layout_files *files, struct hdt_error *err)
{
    struct hdt_layout_plan_args changed = *args;
    enum hdt_status status = HDT_OK;
    char path[40];
    int fd = -1;

    HDT_TRY(job_open(args, files, err));
    if (n == 0) {
        return HDT_OK;
    }
    for (size_t i = 0; i < n && status == HDT_OK; i++) {
        status = hdt_layout_what_if(&files->cluster, changes[i], err);
    }
    if (status == HDT_OK) {
        fd = cluster_file(&files->cluster, err);
        status = fd < 0 ? HDT_EIO : HDT_OK;
    }
    hdt_layout_release(files);
    HDT_TRY(status);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    changed.instead.cluster = path;
    status = job_open(&changed, files, err);
    close(fd);
    return status;
}

/* ---- searching ---- */

static volatile sig_atomic_t is_interrupted;

static void interrupt_note(int sig)
{
    (void)sig;
    is_interrupted = 1;
}

static bool goes_on(void *ctx, const struct hdt_layout_progress *progress)
{
    (void)ctx;
    (void)progress;
    return !is_interrupted;
}

/* Ctrl-C ends a search, not the program: the best so far is shown. */
static enum hdt_status search(const struct hdt_layout_files *files,
                              struct hdt_layout_search_options *options,
                              struct hdt_layout_search_result *result, struct hdt_error *err)
{
    struct sigaction note = {.sa_handler = interrupt_note, .sa_flags = (int)SA_RESETHAND}, old;
    enum hdt_status status;

    options->on_progress = goes_on;
    sigaction(SIGINT, &note, &old);
    status = hdt_layout_search(files, options, result, err);
    sigaction(SIGINT, &old, NULL);
    return status;
}

/* --what-if: the best plan of the cluster as it is. */
static enum hdt_status before_search(struct hdt_layout_planned *p, struct hdt_error *err)
{
    struct hdt_layout_search_options options;
    struct hdt_layout_search_result result;
    struct hdt_layout_files files;
    enum hdt_status status;

    HDT_TRY(job_open(p->args, &files, err));
    status = hdt_layout_plan_options(p->args, &files, &options, err);
    if (status == HDT_OK) {
        status = search(&files, &options, &result, err);
        if (status == HDT_OK) {
            p->before_step_s = result.top[0].prediction.step_s;
            p->before_is_cut = result.is_cut;
            hdt_layout_copy(&result.top[0].layout, &p->before);
            hdt_layout_search_release(&result);
        } else if (status == HDT_ENOMEM || status == HDT_ETIMEDOUT) {
            snprintf(p->before_why, sizeof(p->before_why), "%s", err->msg);
            status = HDT_OK;
        }
    }
    hdt_layout_release(&files);
    return status;
}

/* ---- what more would bring ---- */

/* What it would bring is an extra: where it cannot be said, it is left out. */
static void gain_add(struct hdt_layout_planned *p, char *change, const char *what)
{
    struct hdt_layout_search_options options = p->options;
    struct hdt_layout_search_result result;
    struct hdt_layout_gain *gain = &p->gains[p->n_gains];
    struct hdt_layout_files files, derived;
    struct hdt_layout_found found;
    struct hdt_error unsaid = {0}, *err = &unsaid;
    char **changes = hdt_calloc(p->args->what_if.n + 1, sizeof(changes[0]));
    enum hdt_status status;

    for (size_t i = 0; i < p->args->what_if.n; i++) {
        changes[i] = p->args->what_if.items[i];
    }
    changes[p->args->what_if.n] = change;
    status = changed_open(p->args, changes, p->args->what_if.n + 1, &files, err);
    free(changes);
    if (status != HDT_OK) {
        return;
    }
    snprintf(gain->what, sizeof(gain->what), "%s", what);
    gain->step_s = NAN;
    status = hdt_layout_derive(&files, &p->best->layout, &derived, err);
    if (status == HDT_OK) {
        status = hdt_layout_search_rate(&derived, &options, &found, err);
        hdt_layout_derived_release(&derived);
    }
    if (status == HDT_OK) {
        gain->step_s = found.prediction.step_s;
        hdt_layout_found_release(&found);
    }
    if (status == HDT_OK && p->args->time_limit_s <= 0 && !p->args->current && !is_interrupted &&
        !p->result.is_cut && hdt_cluster_file_n_devices(&files.cluster) <= GAIN_MAX_DEVICES) {
        options.n_simulations = GAIN_SIMULATIONS;
        if (search(&files, &options, &result, err) == HDT_OK) {
            /* Of a search that was cut short nothing is said but what the same plan gains. */
            gain->is_searched = !result.is_cut;
            gain->step_s =
                result.is_cut ? gain->step_s : fmin(gain->step_s, result.top[0].prediction.step_s);
            hdt_layout_search_release(&result);
        }
    }
    p->n_gains += status == HDT_OK;
    hdt_layout_release(&files);
}

/* 1 Gbit/s more on the link between sites that is busy longest. */
static void gain_wan(struct hdt_layout_planned *p)
{
    double busy_s;
    const struct hdt_layout_flow *flow = hdt_layout_flows_busiest(&p->flows, &busy_s);
    const struct hdt_cluster_file_wan *wan = p->files.cluster.wan.items;
    char change[3 * HDT_NAME_CAP], what[3 * HDT_NAME_CAP];

    for (size_t i = 0; flow && i < p->files.cluster.wan.n; i++) {
        bool is = (strcmp(wan[i].from, flow->from) == 0 && strcmp(wan[i].to, flow->to) == 0) ||
                  (strcmp(wan[i].from, flow->to) == 0 && strcmp(wan[i].to, flow->from) == 0);

        if (!is || wan[i].via[0]) {
            continue;
        }
        snprintf(change, sizeof(change), "wan:%.63s/%.63s=%.0fbit", wan[i].from, wan[i].to,
                 8 * hdt_cluster_file_leg_bytes_per_s(&wan[i], 1e9) + 1e9);
        snprintf(what, sizeof(what), "1 Gbit/s more between %.63s and %.63s", wan[i].from,
                 wan[i].to);
        gain_add(p, change, what);
        return;
    }
}

/* 1 GiB more for each device of the kind that has the least left. */
static void gain_memory(struct hdt_layout_planned *p)
{
    const struct hdt_layout_group *fullest = NULL;
    char change[3 * HDT_NAME_CAP], what[3 * HDT_NAME_CAP];
    double most = 0;

    for (size_t i = 0; i < p->laid.files.n_replicas * p->laid.files.n_stages; i++) {
        const struct hdt_layout_group *group = &p->laid.files.groups[i];
        double share = hdt_layout_sim_rank(p->laid.sim, i)->memory.total /
                       hdt_cluster_file_memory_bytes(group->nodes);

        if (share > most) {
            most = share;
            fullest = group;
        }
    }
    if (!fullest) {
        return;
    }
    snprintf(change, sizeof(change), "memory:%.63s.%.63s=%.6g",
             hdt_cluster_file_site(&p->files.cluster, fullest->site_idx)->name,
             fullest->nodes->name, hdt_cluster_file_memory_bytes(fullest->nodes) / GIB + 1);
    snprintf(what, sizeof(what), "1 GB more for each device of %.63s", fullest->nodes->name);
    gain_add(p, change, what);
}

/* ---- other plans of the same job ---- */

static enum hdt_status job_differs(const char *path, const char *what, struct hdt_error *err)
{
    hdt_error_set(err, HDT_EINVAL, "the plan is of another job: its %s differs", what);
    hdt_error_where(err, "%s", path);
    hdt_error_hint(err, "plans are compared for one model, batch, sequence and precision");
    return HDT_EINVAL;
}

static bool cluster_is_same(const struct hdt_cluster_file *a, const struct hdt_cluster_file *b)
{
    json_t *x = hdt_conf_to_json(&hdt_cluster_file_schema, a);
    json_t *y = hdt_conf_to_json(&hdt_cluster_file_schema, b);
    bool is = json_equal(x, y);

    json_decref(x);
    json_decref(y);
    return is;
}

static bool shape_is_same(const struct hdt_model_shape *a, const struct hdt_model_shape *b)
{
    return a->family == b->family && a->V == b->V && a->C == b->C && a->F == b->F && a->L == b->L &&
           a->NH == b->NH && a->NKV == b->NKV && a->HS == b->HS && a->E == b->E &&
           a->is_gated == b->is_gated && a->has_tied_head == b->has_tied_head;
}

static enum hdt_status job_check(const struct hdt_layout_files *a, const struct hdt_layout_files *b,
                                 const char *path, struct hdt_error *err)
{
    const struct hdt_layout *x = &a->layout, *y = &b->layout;
    const char *what = !shape_is_same(&a->model, &b->model)           ? "model"
                       : x->global_batch != y->global_batch           ? "global_batch"
                       : x->seq_len != y->seq_len                     ? "seq_len"
                       : x->precision != y->precision                 ? "precision"
                       : x->fp32_gradients != y->fp32_gradients       ? "fp32_gradients"
                       : x->attention != y->attention                 ? "attention"
                       : x->optimizer.moments != y->optimizer.moments ? "optimizer.moments"
                       : a->n_profiles != b->n_profiles               ? "list of profiles"
                                                                      : NULL;

    return what ? job_differs(path, what, err) : HDT_OK;
}

static bool all_fit(const struct hdt_layout_files *files)
{
    struct hdt_layout_sim *sim;
    bool fits = true;

    if (hdt_layout_sim_open(files, &hdt_stage_cost_fitted, &sim, NULL) != HDT_OK) {
        return false;
    }
    for (size_t i = 0; i < files->n_replicas * files->n_stages; i++) {
        fits = fits && !(hdt_layout_sim_rank(sim, i)->memory.total >
                         hdt_cluster_file_memory_bytes(files->groups[i].nodes));
    }
    hdt_layout_sim_close(sim);
    return fits;
}

/* --compare: on the cluster of the job, which must be the other plan's, too. */
static enum hdt_status compare(struct hdt_layout_planned *p, struct hdt_error *err)
{
    struct hdt_layout_instead instead = p->args->instead;
    struct hdt_layout_files other, derived;
    enum hdt_status status;

    HDT_TRY(hdt_layout_open(p->args->compare, &instead, &other, err));
    status = job_check(&p->files, &other, p->args->compare, err);
    if (status == HDT_OK && p->args->what_if.n == 0 &&
        !cluster_is_same(&p->files.cluster, &other.cluster)) {
        status = job_differs(p->args->compare, "cluster", err);
    }
    if (status == HDT_OK) {
        status = hdt_layout_derive(&p->files, &other.layout, &derived, err);
    }
    if (status == HDT_OK) {
        p->other_fits = all_fit(&derived);
        if (p->other_fits) {
            status = hdt_layout_search_rate(&derived, &p->options, &p->other, err);
        } else {
            hdt_layout_copy(&derived.layout, &p->other.layout);
            p->other.prediction.step_s = NAN;
        }
        p->other_path = status == HDT_OK ? hdt_strdup(p->args->compare) : NULL;
        hdt_layout_derived_release(&derived);
    }
    hdt_layout_release(&other);
    return status;
}

/* The plan that runs, as a plan of this job: of its cluster, model and profiles. */
static void current_adopt(const struct hdt_layout *job, const struct hdt_layout *current,
                          struct hdt_layout *copy)
{
    struct hdt_layout like = *current;

    like.name = job->name;
    like.cluster = job->cluster;
    like.model = job->model;
    like.profiles = job->profiles;
    like.measured = (struct hdt_layout_measured){.step_s = NAN, .memory_gb = NAN};
    hdt_layout_copy(&like, copy);
}

/* Can the plan that runs go on? Then p->kept rates it. */
static void current_rate(struct hdt_layout_planned *p, const struct hdt_layout *current)
{
    struct hdt_layout_replan *r = &p->replan;
    struct hdt_layout_files derived;
    struct hdt_layout layout;
    struct hdt_error err = {0};

    r->was_step_s = r->was_total = NAN;
    current_adopt(&p->files.layout, current, &layout);
    if (hdt_layout_derive(&p->files, &layout, &derived, &err) != HDT_OK) {
        snprintf(r->was_why, sizeof(r->was_why), "%s", err.msg);
        hdt_conf_release(&hdt_layout_schema, &layout);
        return;
    }
    if (hdt_layout_search_holds(&p->files, &derived, &p->options, r->was_why, sizeof(r->was_why)) &&
        !all_fit(&derived)) {
        snprintf(r->was_why, sizeof(r->was_why), "it does not fit into the memory");
    }
    if (!r->was_why[0]) {
        if (hdt_layout_search_rate(&derived, &p->options, &p->kept, &err) == HDT_OK) {
            r->was_step_s = p->kept.prediction.step_s;
            r->was_total = p->kept.objective * p->result.steps_left;
        } else {
            snprintf(r->was_why, sizeof(r->was_why), "%s", err.msg);
        }
    }
    hdt_layout_derived_release(&derived);
    hdt_conf_release(&hdt_layout_schema, &layout);
}

/* --current: the plan that runs goes on unless another one is better by what is left, its move
 * counted. */
static enum hdt_status current_weigh(struct hdt_layout_planned *p,
                                     const struct hdt_layout_files *current, struct hdt_error *err)
{
    struct hdt_layout_replan *r = &p->replan;
    struct hdt_layout_mover *mover;
    struct hdt_layout_files derived;

    r->goes_on = !isnan(r->was_total) && r->was_total <= WORTH_IT * p->best->total;
    if (r->goes_on) {
        p->kept.total = r->was_total;
        p->best = &p->kept;
    }
    HDT_TRY(hdt_layout_derive(&p->files, &p->best->layout, &derived, err));
    mover = hdt_layout_mover_new(current, &p->files, p->options.without, p->options.n_without);
    hdt_layout_mover_list(mover, &derived, &r->moves);
    hdt_layout_mover_free(mover);
    hdt_layout_derived_release(&derived);
    r->is_asked = true;
    r->by_time = p->options.objective == HDT_LAYOUT_THROUGHPUT;
    r->steps_left = p->result.steps_left;
    r->now = (struct hdt_layout_search_other){.is_known = true,
                                              .step_s = p->best->prediction.step_s,
                                              .move_s = p->best->move_s,
                                              .total = p->best->total};
    r->repair = p->result.repair;
    r->fresh = p->result.fresh;
    r->cluster = &p->files.cluster;
    r->n_units = p->files.model.L + 2;
    return HDT_OK;
}

/* ---- all of it ---- */

static enum hdt_status current_open(const struct hdt_layout_planned *p,
                                    struct hdt_layout_files *current, struct hdt_error *err)
{
    struct hdt_layout_instead instead = {.catalogue = p->args->instead.catalogue,
                                         .model = p->args->instead.model};
    enum hdt_status status;

    HDT_TRY(hdt_layout_open(p->args->current, &instead, current, err));
    status = job_check(&p->files, current, p->args->current, err);
    if (status != HDT_OK) {
        hdt_layout_release(current);
    }
    return status;
}

static enum hdt_status look_closer(struct hdt_layout_planned *p, struct hdt_error *err)
{
    HDT_TRY(hdt_laid_out_derive(&p->laid, &p->files, &p->best->layout, err));
    hdt_layout_flows_init(&p->flows, &p->laid.files, p->laid.sim);
    if (!is_interrupted) {
        gain_wan(p);
        gain_memory(p);
    }
    return p->args->compare ? compare(p, err) : HDT_OK;
}

/* From a plan that runs; NULL: none does. */
static enum hdt_status search_from(struct hdt_layout_planned *p,
                                   const struct hdt_layout_files *current, double steps_left,
                                   struct hdt_error *err)
{
    enum hdt_status status;

    p->options.current = current;
    p->options.steps_left = steps_left;
    status = search(&p->files, &p->options, &p->result, err);
    p->options.current = NULL; /* what is asked beside the plan is of one step */
    p->options.steps_left = 0;
    p->has_result = status == HDT_OK;
    return status;
}

/* On a changed cluster the search begins at the plan of the unchanged one, too, as if it cost
 * nothing to move from: so that a faster link or device makes no plan worse. */
static enum hdt_status changed_search(struct hdt_layout_planned *p, struct hdt_error *err)
{
    struct hdt_layout_files before;
    struct hdt_error unfit = {0};
    enum hdt_status status;

    if (p->before.stages.n == 0 ||
        hdt_layout_derive(&p->files, &p->before, &before, &unfit) != HDT_OK) {
        return search_from(p, NULL, 0, err);
    }
    status = search_from(p, &before, STEPS_ANY, err);
    hdt_layout_derived_release(&before);
    return status;
}

static enum hdt_status plan_with(struct hdt_layout_planned *p, struct hdt_layout_files *current,
                                 struct hdt_error *err)
{
    HDT_TRY(current ? search_from(p, current, p->args->steps_left, err) : changed_search(p, err));
    p->best = &p->result.top[0];
    if (current) {
        current_rate(p, &current->layout);
        HDT_TRY(current_weigh(p, current, err));
    }
    return look_closer(p, err);
}

enum hdt_status hdt_layout_plan(struct hdt_layout_planned *p,
                                const struct hdt_layout_plan_args *args, struct hdt_error *err)
{
    struct hdt_layout_files current;
    enum hdt_status status;

    memset(p, 0, sizeof(*p));
    is_interrupted = 0;
    p->args = args;
    p->before_step_s = NAN;
    HDT_TRY(changed_open(args, args->what_if.items, args->what_if.n, &p->files, err));
    HDT_TRY(hdt_layout_plan_options(args, &p->files, &p->options, err));
    if (args->what_if.n > 0) {
        HDT_TRY(before_search(p, err));
    }
    if (!args->current) {
        return plan_with(p, NULL, err);
    }
    HDT_TRY(current_open(p, &current, err));
    status = plan_with(p, &current, err);
    hdt_layout_release(&current);
    return status;
}

void hdt_layout_planned_release(struct hdt_layout_planned *p)
{
    hdt_layout_flows_release(&p->flows);
    hdt_layout_replan_release(&p->replan);
    if (p->laid.sim) {
        hdt_laid_out_release(&p->laid);
    }
    if (p->has_result) {
        hdt_layout_search_release(&p->result);
    }
    if (p->other_path) {
        hdt_layout_found_release(&p->other);
        free(p->other_path);
    }
    if (p->kept.layout.name) {
        hdt_layout_found_release(&p->kept);
    }
    if (p->before.stages.n > 0) {
        hdt_conf_release(&hdt_layout_schema, &p->before);
    }
    if (p->files.doc) {
        hdt_layout_release(&p->files);
    }
    memset(p, 0, sizeof(*p));
}
