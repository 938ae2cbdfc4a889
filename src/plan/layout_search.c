/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/plan/layout_search.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1024.0 * 1024 * 1024)

const char *const hdt_layout_objective_names[] = {"throughput", "cost", "energy", NULL};

#define MICRO_BATCH_DEFAULT 32
/* Candidates that are kept by estimate. */
#define POOL 384
/* Tasks of all simulations: some million of them are a second. */
#define TASKS_SMALL  INT64_C(20000000)
#define TASKS_LEAST  INT64_C(300000)
#define TASKS_DEVICE INT64_C(700)
#define TASKS_MOST   INT64_C(3500000)
/* Of more kinds more shapes are to be held against each other, where that is quick. */
#define MEDIUM_DEVICES 512
#define TASKS_KIND     INT64_C(600000)

unsigned hdt_layout_search_given(const struct hdt_layout_files *base)
{
    static const struct {
        const char *key;
        unsigned keep;
    } keys[] = {
        {"micro_batch", HDT_LAYOUT_KEEP_MICRO_BATCH},
        {"schedule", HDT_LAYOUT_KEEP_SCHEDULE},
        {"chunks", HDT_LAYOUT_KEEP_SCHEDULE},
        {"recompute", HDT_LAYOUT_KEEP_RECOMPUTE},
        {"offload", HDT_LAYOUT_KEEP_OFFLOAD},
        {"optimizer.sharded", HDT_LAYOUT_KEEP_SHARDED},
        {"sync", HDT_LAYOUT_KEEP_SYNC},
        {"sync_bucket", HDT_LAYOUT_KEEP_SYNC},
        {"all_reduce", HDT_LAYOUT_KEEP_ALL_REDUCE},
        {"wan.codec_ratio", HDT_LAYOUT_KEEP_CODEC},
        {"wan.codec_gb_per_s", HDT_LAYOUT_KEEP_CODEC},
        {"wan.sync_ratio", HDT_LAYOUT_KEEP_CODEC},
        {"wan.links", HDT_LAYOUT_KEEP_CODEC},
    };
    unsigned keep = 0;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        keep |= hdt_conf_has(base->doc, keys[i].key) ? keys[i].keep : 0;
    }
    return keep;
}

/* ---- setting up ---- */

static bool is_without(const struct hdt_layout_search_options *o, size_t site)
{
    for (size_t i = 0; i < o->n_without; i++) {
        if (o->without[i] == site) {
            return true;
        }
    }
    return false;
}

static void kind_tps(const struct search *s, struct search_kind *k)
{
    int64_t NH = s->base->model.NH;

    for (int64_t tp = 1; tp <= k->nodes->devices && k->n_tps < SEARCH_MAX_TPS; tp *= 2) {
        if (NH % tp == 0) {
            k->tps[k->n_tps++] = (int)tp;
        }
    }
}

static enum hdt_status kinds_fill(struct search *s, struct hdt_error *err)
{
    const struct hdt_cluster_file *cluster = &s->base->cluster;

    for (size_t i = 0; i < cluster->sites.n; i++) {
        const struct hdt_cluster_file_site *site = hdt_cluster_file_site(cluster, i);

        for (size_t n = 0; n < site->nodes.n && !is_without(s->options, i); n++) {
            struct search_kind *k = &s->kinds[s->n_kinds];

            if (s->n_kinds == SEARCH_MAX_KINDS) {
                return hdt_conf_error(s->base->doc, "cluster", err, HDT_EINVAL,
                                      "cannot plan '%.64s': more than %d kinds of nodes",
                                      cluster->name, SEARCH_MAX_KINDS);
            }
            *k = (struct search_kind){
                .site_idx = i, .nodes_idx = n, .nodes = hdt_cluster_file_nodes(site, n)};
            k->memory_bytes = hdt_cluster_file_memory_bytes(k->nodes);
            if (isnan(k->memory_bytes)) {
                hdt_conf_error(
                    s->base->doc, "cluster", err, HDT_EINVAL,
                    "cannot plan for nodes '%.64s' of site '%.64s': the memory of '%.64s' "
                    "is not known",
                    k->nodes->name, site->name, k->nodes->device->name);
                hdt_error_hint(err, "give these nodes memory_gb (hdt-cluster.yaml(5))");
                return HDT_EINVAL;
            }
            if (s->options->objective == HDT_LAYOUT_ENERGY &&
                isnan(k->nodes->device->power.tdp_w)) {
                hdt_conf_error(s->base->doc, "cluster", err, HDT_EINVAL,
                               "cannot plan for energy: the power of '%.64s' of nodes '%.64s' of "
                               "site '%.64s' is not known",
                               k->nodes->device->name, k->nodes->name, site->name);
                hdt_error_hint(err, "give the device power: {tdp_w: WATTS} (hdt-cluster.yaml(5))");
                return HDT_EINVAL;
            }
            kind_tps(s, k);
            s->n_kinds++;
        }
    }
    if (s->n_kinds == 0) {
        return hdt_conf_error(s->base->doc, "cluster", err, HDT_EINVAL,
                              "cannot plan '%.64s': no site is left", cluster->name);
    }
    return HDT_OK;
}

static const char *site_name(const struct search *s, size_t site)
{
    return hdt_cluster_file_site(&s->base->cluster, site)->name;
}

static enum hdt_status pin_check(const struct search *s, size_t idx, struct hdt_error *err)
{
    const struct hdt_layout_pin *p = &s->options->pins[idx];

    if (p->site_idx >= s->base->cluster.sites.n) {
        return hdt_error_set(err, HDT_EINVAL, "a pin names a site that the cluster does not have");
    }
    if (is_without(s->options, p->site_idx)) {
        hdt_error_set(err, HDT_EINVAL, "site '%.64s' is to be left out, but holds what is pinned",
                      site_name(s, p->site_idx));
        hdt_error_hint(err, "pin it to another site, or keep this one");
        return HDT_EINVAL;
    }
    if (p->parts & HDT_LAYOUT_PIN_LAYERS && (p->first_layer < 0 || p->last_layer < p->first_layer ||
                                             p->last_layer >= s->base->model.L)) {
        return hdt_error_set(
            err, HDT_EINVAL, "layers %lld to %lld are pinned, the model has 0 to %lld",
            (long long)p->first_layer, (long long)p->last_layer, (long long)s->base->model.L - 1);
    }
    for (size_t i = 0; i < idx; i++) {
        const struct hdt_layout_pin *q = &s->options->pins[i];
        bool meet = (p->parts & q->parts & (HDT_LAYOUT_PIN_EMBED | HDT_LAYOUT_PIN_HEAD)) ||
                    (p->parts & q->parts & HDT_LAYOUT_PIN_LAYERS &&
                     p->first_layer <= q->last_layer && q->first_layer <= p->last_layer);

        if (meet && p->site_idx != q->site_idx) {
            return hdt_error_set(err, HDT_EINVAL, "the same is pinned to '%.64s' and to '%.64s'",
                                 site_name(s, q->site_idx), site_name(s, p->site_idx));
        }
    }
    return HDT_OK;
}

/* Settings that are kept and contradict each other. */
static enum hdt_status kept_check(const struct search *s, struct hdt_error *err)
{
    const struct hdt_layout *l = &s->base->layout;
    unsigned keep = s->options->keep;

    if (keep & HDT_LAYOUT_KEEP_ALL_REDUCE && keep & HDT_LAYOUT_KEEP_SHARDED &&
        l->all_reduce == HDT_LAYOUT_TREE && l->optimizer.sharded) {
        return hdt_conf_error(s->base->doc, "all_reduce", err, HDT_EINVAL,
                              "trees add whole gradients, optimizer.sharded wants shares");
    }
    if (search_keeps_schedule(s) && l->schedule == HDT_SCHEDULE_INTERLEAVED && l->chunks < 2) {
        return hdt_conf_error(s->base->doc, "schedule", err, HDT_EINVAL,
                              "schedule interleaved needs 2 chunks at least");
    }
    return HDT_OK;
}

static void batches_fill(struct search *s)
{
    const struct hdt_layout *l = &s->base->layout;
    int64_t most =
        s->options->max_micro_batch > 0 ? s->options->max_micro_batch : MICRO_BATCH_DEFAULT;

    if (s->options->keep & HDT_LAYOUT_KEEP_MICRO_BATCH) {
        s->batches[s->n_batches++] = (int)l->micro_batch;
        return;
    }
    for (int64_t b = 1; b <= most && b <= l->global_batch && s->n_batches < SEARCH_MAX_BATCHES;
         b *= 2) {
        s->batches[s->n_batches++] = (int)b;
    }
}

static void paths_fill(struct search *s)
{
    const struct hdt_cluster_file *cluster = &s->base->cluster;
    size_t n = cluster->sites.n;

    s->paths = hdt_calloc(n * n, sizeof(s->paths[0]));
    s->leg_busy_s = hdt_calloc(2 * s->base->cluster.wan.n + 1, sizeof(s->leg_busy_s[0]));
    for (size_t a = 0; a < n; a++) {
        for (size_t b = 0; b < n; b++) {
            if (a != b) {
                hdt_cluster_file_path(cluster, a, b, &s->paths[a * n + b]);
            }
        }
    }
}

static enum hdt_status setup(struct search *s, const struct hdt_layout_files *base,
                             const struct hdt_layout_search_options *options, struct hdt_error *err)
{
    s->base = base;
    s->options = options;
    s->space = options->space;
    s->constants = options->constants ? options->constants : &hdt_stage_cost_fitted;
    s->start_us = hdt_clock_now_us();
    s->best_estimate_s = s->best_score = INFINITY;
    hdt_layout_model(base, &s->model);
    HDT_TRY(kinds_fill(s, err));
    HDT_TRY(kept_check(s, err));
    paths_fill(s);
    for (size_t i = 0; i < options->n_pins; i++) {
        HDT_TRY(pin_check(s, i, err));
    }
    batches_fill(s);
    hdt_seek_codecs_fill(s);
    s->units =
        hdt_calloc((size_t)s->n_kinds * SEARCH_MAX_TPS * SEARCH_MAX_BATCHES, sizeof(s->units[0]));
    for (int k = 0; k < s->n_kinds; k++) {
        HDT_TRY(hdt_seek_unit_check(s, k, err));
    }
    s->pool_cap = SEARCH_POOL;
    s->pool = hdt_malloc(s->pool_cap * sizeof(s->pool[0]));
    if (options->current) {
        hdt_seek_again_init(s);
    }
    return HDT_OK;
}

int64_t hdt_seek_tasks_of(const struct search *s)
{
    int64_t n_devices = hdt_cluster_file_n_devices(&s->base->cluster);
    int64_t n = TASKS_LEAST + TASKS_DEVICE * n_devices;

    if (n_devices <= MEDIUM_DEVICES && s->n_kinds > 2) {
        n += TASKS_KIND * (s->n_kinds - 2);
    }
    return n < TASKS_MOST ? n : TASKS_MOST;
}

static void teardown(struct search *s)
{
    for (int i = 0; s->units && i < s->n_kinds * SEARCH_MAX_TPS * SEARCH_MAX_BATCHES; i++) {
        if (s->units[i].is_known) {
            hdt_layout_part_release(&s->units[i].part);
        }
    }
    hdt_seek_codecs_release(s);
    hdt_seek_again_release(s);
    free(s->units);
    free(s->paths);
    free(s->leg_busy_s);
    free(s->founds);
    free(s->judged);
    free(s->pool);
    free(s->scratch);
    free(s);
}

/* ---- what comes of it ---- */

/* All devices at work all the time on layers alone. */
static double bound_of_all(struct search *s)
{
    double rate = 0;

    for (int k = 0; k < s->n_kinds; k++) {
        double best = 0;

        for (int t = 0; t < s->kinds[k].n_tps; t++) {
            for (int b = 0; b < s->n_batches; b++) {
                const struct search_unit *u = hdt_seek_unit_get(s, k, t, b);

                if (u) {
                    best = fmax(best, s->batches[b] / ((u->fwd_s + u->bwd_s) * s->kinds[k].tps[t]));
                }
            }
        }
        rate += best * (double)(s->kinds[k].nodes->count * s->kinds[k].nodes->devices);
    }
    return (double)s->base->model.L * (double)s->base->layout.global_batch / rate;
}

static void found_fill(struct search *s, const struct search_cand *c,
                       struct hdt_layout_found *found)
{
    *found = s->founds[c->found];
    hdt_seek_layout(s, c, &found->layout);
    found->move_s = c->move_s;
    found->total = c->score * (s->again.mover ? s->again.steps_left : 1);
    found->bound_s = c->bound_s;
    found->estimate_s = c->estimate_s;
}

static int simulated_compare(const void *a, const void *b)
{
    const struct search_cand *x = a, *y = b;
    double p = x->step_s > 0 ? x->score : INFINITY, q = y->step_s > 0 ? y->score : INFINITY;

    return p < q ? -1 : p > q;
}

static void top_fill(struct search *s, struct hdt_layout_search_result *result)
{
    const struct search_cand *taken[HDT_LAYOUT_SEARCH_TOP];

    taken[0] = &s->best;
    found_fill(s, &s->best, &result->top[result->n_top++]);
    qsort(s->pool, s->n_pool, sizeof(s->pool[0]), simulated_compare);
    for (size_t i = 0; i < s->n_pool && s->pool[i].step_s > 0; i++) {
        bool is_new = true;

        for (size_t k = 0; k < result->n_top && is_new; k++) {
            is_new = !hdt_seek_is_alike(taken[k], &s->pool[i]);
        }
        if (is_new && result->n_top < HDT_LAYOUT_SEARCH_TOP) {
            taken[result->n_top] = &s->pool[i];
            found_fill(s, &s->pool[i], &result->top[result->n_top]);
            hdt_seek_differs(s, &s->best, &s->pool[i], result->top[result->n_top].differs,
                             sizeof(result->top[0].differs));
            result->n_top++;
        }
    }
}

void hdt_seek_space(struct search *s)
{
    s->tasks_left = hdt_seek_tasks_of(s);
    hdt_seek_enumerate(s);
    if (s->is_small) {
        s->tasks_left = TASKS_SMALL;
    } else {
        hdt_seek_pool_cut(s, POOL);
        hdt_seek_generate(s);
    }
    hdt_seek_improve(s);
}

void hdt_seek_all(struct search *s)
{
    hdt_seek_space(s);
    if (!s->is_small) {
        hdt_seek_parts(s);
    }
}

static struct hdt_layout_search_other other_of(const struct search *s, const struct search_cand *c)
{
    return (struct hdt_layout_search_other){.is_known = c->step_s > 0,
                                            .step_s = c->step_s,
                                            .move_s = c->move_s,
                                            .total = c->score * s->again.steps_left};
}

enum hdt_status hdt_layout_search(const struct hdt_layout_files *base,
                                  const struct hdt_layout_search_options *options,
                                  struct hdt_layout_search_result *result, struct hdt_error *err)
{
    struct search *s = hdt_calloc(1, sizeof(*s));
    enum hdt_status status = setup(s, base, options, err);

    memset(result, 0, sizeof(*result));
    if (status == HDT_OK) {
        s->again.mover ? hdt_seek_again(s) : hdt_seek_all(s);
        if (s->best.step_s > 0) {
            top_fill(s, result);
            result->is_complete = s->is_small && !s->has_left_out && !s->is_cut &&
                                  !search_is_spent(s) &&
                                  options->objective == HDT_LAYOUT_THROUGHPUT;
            result->bound_s = bound_of_all(s);
            if (s->again.mover) {
                result->steps_left = s->again.steps_left;
                result->repair = other_of(s, &s->again.repair);
                result->fresh = other_of(s, &s->again.fresh);
            }
        } else {
            status = hdt_seek_refuse(s, err);
        }
    }
    result->is_cut = s->is_cut;
    result->n_candidates = s->n_candidates;
    result->n_estimated = s->n_estimated;
    result->n_simulated = s->n_simulated;
    result->n_misfits = s->n_misfits;
    result->elapsed_s = (double)(hdt_clock_now_us() - s->start_us) / 1e6;
    teardown(s);
    return status;
}

void hdt_layout_found_release(struct hdt_layout_found *found)
{
    hdt_conf_release(&hdt_layout_schema, &found->layout);
}

void hdt_layout_search_release(struct hdt_layout_search_result *result)
{
    for (size_t i = 0; i < result->n_top; i++) {
        hdt_layout_found_release(&result->top[i]);
    }
    memset(result, 0, sizeof(*result));
}

enum hdt_status hdt_layout_search_rate(const struct hdt_layout_files *files,
                                       const struct hdt_layout_search_options *options,
                                       struct hdt_layout_found *found, struct hdt_error *err)
{
    enum hdt_status status;

    memset(found, 0, sizeof(*found));
    hdt_layout_copy(&files->layout, &found->layout);
    status = hdt_seek_found_rate(files, options,
                                 options->constants ? options->constants : &hdt_stage_cost_fitted,
                                 found, err);
    if (status != HDT_OK) {
        hdt_layout_found_release(found);
    }
    return status;
}
