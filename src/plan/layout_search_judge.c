/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Candidates as layouts, and those held against the simulator. */
#include "src/base/buf.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Gradients in a few buckets: nearly all of an all-reduce goes beside the backward, and what is
 * simulated stays small. */
#define BUCKETS 8

/* ---- as a layout ---- */

static void on_add(const struct search *s, struct hdt_conf_list *list, struct search_cell cell,
                   int64_t n)
{
    const struct search_kind *k = &s->kinds[cell.kind];
    const struct hdt_cluster_file *cluster = &s->base->cluster;
    struct hdt_layout_on *all = list->items, *last = list->n > 0 ? &all[list->n - 1] : NULL;
    const char *site =
        cluster->sites.n > 1 ? hdt_cluster_file_site(cluster, k->site_idx)->name : "";

    if (last && last->tp == k->tps[cell.tp] && strcmp(last->nodes, k->nodes->name) == 0 &&
        strcmp(last->site, site) == 0) {
        last->count += n;
        return;
    }
    all[list->n++] = (struct hdt_layout_on){.site = hdt_strdup(site),
                                            .nodes = hdt_strdup(k->nodes->name),
                                            .count = n,
                                            .tp = k->tps[cell.tp]};
}

static void stage_write(const struct search *s, const struct search_cand *c, int stage,
                        bool one_relief, struct hdt_layout_stage *out)
{
    *out = (struct hdt_layout_stage){.layers = c->layers[stage]};
    if (!one_relief) {
        out->recompute = 1 + c->recompute[stage];
        out->offload = 1 + c->offload[stage];
    }
    out->on.items = hdt_calloc((size_t)c->n_classes, sizeof(struct hdt_layout_on));
    for (int i = 0; i < c->n_classes; i++) {
        on_add(s, &out->on, c->cells[i][stage], c->classes[i].n);
    }
}

static void replicas_add(const struct search *s, struct hdt_conf_list *list,
                         const struct search_class *cl, int64_t n, int64_t n_mb)
{
    struct hdt_layout_replicas *all = list->items, *last = list->n > 0 ? &all[list->n - 1] : NULL;
    int64_t one = s->batches[cl->batch];

    if (n == 0) {
        return;
    }
    if (last && last->micro_batch == one && last->micro_batches == n_mb) {
        last->count += n;
        return;
    }
    all[list->n++] =
        (struct hdt_layout_replicas){.count = n, .micro_batch = one, .micro_batches = n_mb};
}

static void replicas_write(const struct search *s, const struct search_cand *c,
                           struct hdt_layout *layout)
{
    struct hdt_conf_list *list = &layout->replicas;
    struct hdt_layout_replicas *first;

    *list = (struct hdt_conf_list){
        .items = hdt_calloc(2 * (size_t)c->n_classes, sizeof(struct hdt_layout_replicas))};
    for (int i = 0; i < c->n_classes; i++) {
        const struct search_class *cl = &c->classes[i];

        replicas_add(s, list, cl, c->more_last ? 0 : cl->n_more, cl->n_mb + 1);
        replicas_add(s, list, cl, cl->n - cl->n_more, cl->n_mb);
        replicas_add(s, list, cl, c->more_last ? cl->n_more : 0, cl->n_mb + 1);
    }
    first = list->items;
    layout->micro_batch = first->micro_batch;
    if (list->n == 1) {
        list->n = 0;
    }
}

static bool has_one_relief(const struct search_cand *c)
{
    for (int t = 1; t < c->n_stages; t++) {
        if (c->recompute[t] != c->recompute[0] || c->offload[t] != c->offload[0]) {
            return false;
        }
    }
    return true;
}

uint64_t hdt_seek_bucket(struct search *s, const struct search_cand *c)
{
    uint64_t least = s->base->layout.sync_bucket, mib = 1 << 20;
    double most = 0;

    if (s->options->keep & HDT_LAYOUT_KEEP_SYNC) {
        return least;
    }
    for (int t = 0; t < c->n_stages; t++) {
        struct hdt_stage_cost cost;

        hdt_seek_stage_cost(s, c, 0, t, &cost);
        most = fmax(most, hdt_stage_cost_grad_bytes(&cost));
    }
    most = ceil(most / BUCKETS / (double)mib) * (double)mib;
    return most > (double)least ? (uint64_t)most : least;
}

void hdt_seek_layout(struct search *s, const struct search_cand *c, struct hdt_layout *layout)
{
    struct hdt_layout like = s->base->layout;
    bool one = has_one_relief(c);
    struct hdt_layout_stage *stages;

    like.stages = like.replicas = (struct hdt_conf_list){.n = 0};
    if (!s->choices[c->codec].is_given) {
        like.wan.links = (struct hdt_conf_list){.n = 0};
    }
    hdt_layout_copy(&like, layout);
    free(layout->stages.items);
    free(layout->replicas.items);
    stages = hdt_calloc((size_t)c->n_stages, sizeof(stages[0]));
    for (int t = 0; t < c->n_stages; t++) {
        stage_write(s, c, t, one, &stages[t]);
    }
    layout->stages = (struct hdt_conf_list){.items = stages, .n = (size_t)c->n_stages};
    replicas_write(s, c, layout);
    layout->schedule = c->schedule;
    layout->chunks = c->chunks;
    layout->sync =
        c->sync == HDT_LAYOUT_SYNC_BOTH && !c->sharded && !(s->options->keep & HDT_LAYOUT_KEEP_SYNC)
            ? HDT_LAYOUT_SYNC_OVERLAPPED /* nothing to gather */
            : c->sync;
    layout->sync_bucket = hdt_seek_bucket(s, c);
    layout->all_reduce = c->all_reduce;
    layout->optimizer.sharded = c->sharded;
    layout->recompute = one ? c->recompute[0] : HDT_LAYOUT_KEEP;
    layout->offload = one ? c->offload[0] : HDT_LAYOUT_OFFLOAD_NONE;
    if (!s->choices[c->codec].is_given) {
        hdt_seek_codecs_write(s, c, layout);
    }
    layout->measured = (struct hdt_layout_measured){.step_s = NAN, .memory_gb = NAN};
}

/* ---- simulated ---- */

int64_t hdt_seek_tasks(const struct search_cand *c)
{
    int64_t n = 0;

    for (int i = 0; i < c->n_classes; i++) {
        n += c->classes[i].n * (c->classes[i].n_mb + (c->classes[i].n_more > 0));
    }
    n *= 6 * (int64_t)c->n_stages * c->chunks;
    for (int i = 0; i < c->n_classes; i++) {
        n += c->classes[i].n * c->n_stages * (2 * BUCKETS + 8);
    }
    return n;
}

/* Room for what a simulation said. */
static struct hdt_layout_found *found_new(struct search *s)
{
    if (s->n_founds == s->founds_cap) {
        s->founds_cap = s->founds_cap ? 2 * s->founds_cap : 32;
        s->founds = hdt_realloc(s->founds, s->founds_cap * sizeof(s->founds[0]));
    }
    memset(&s->founds[s->n_founds], 0, sizeof(s->founds[0]));
    return &s->founds[s->n_founds];
}

static uint64_t hash_add(uint64_t hash, const void *data, size_t len)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3; /* FNV-1a */
    }
    return hash;
}

/* What a candidate is, as hdt_seek_is_same has it; 0: its links have codecs of their own, whose
 * number may be another's before. */
static uint64_t hash_of(const struct search *s, const struct search_cand *c)
{
    uint8_t all[] = {c->schedule,   c->chunks, c->sharded,  c->sync,
                     c->all_reduce, c->codec,  c->more_last};
    size_t n = (size_t)c->n_stages;
    uint64_t hash = hash_add(0xcbf29ce484222325, all, sizeof(all));

    if (s->choices[c->codec].by_pair) {
        return 0;
    }
    hash = hash_add(hash, c->layers, n * sizeof(c->layers[0]));
    hash = hash_add(hash, c->recompute, n);
    hash = hash_add(hash, c->offload, n);
    for (int i = 0; i < c->n_classes; i++) {
        const struct search_class *cl = &c->classes[i];
        int64_t own[] = {cl->n, cl->batch, cl->n_mb, cl->n_more};

        hash = hash_add(hash, own, sizeof(own));
        hash = hash_add(hash, c->cells[i], n * sizeof(c->cells[0][0]));
    }
    return hash ? hash : 1;
}

/* What a simulation of the same has said; NULL: there was none. */
static const struct search_judged *judged_find(const struct search *s, uint64_t hash)
{
    for (size_t i = 0; i < s->n_judged; i++) {
        if (s->judged[i].hash == hash && hash != 0) {
            return &s->judged[i];
        }
    }
    return NULL;
}

static void judged_add(struct search *s, uint64_t hash, int found)
{
    if (s->n_judged == s->judged_cap) {
        s->judged_cap = s->judged_cap ? 2 * s->judged_cap : 64;
        s->judged = hdt_realloc(s->judged, s->judged_cap * sizeof(s->judged[0]));
    }
    s->judged[s->n_judged++] = (struct search_judged){hash, found, s->part};
}

static void judged_take(struct search *s, struct search_cand *c, int found)
{
    c->step_s = s->founds[found].prediction.step_s;
    hdt_seek_move(s, c);
    c->score = s->founds[found].objective + c->move;
    c->found = found;
    if (s->best.step_s <= 0 || c->score < s->best.score) {
        s->best = *c;
    }
}

/* Simulate; false: it does not fit. Else s->founds has one more. */
static bool simulate(struct search *s, struct search_cand *c)
{
    struct hdt_layout layout;
    struct hdt_layout_files files;
    struct hdt_layout_found *found = NULL;
    bool fits = false;

    hdt_seek_layout(s, c, &layout);
    c->step_s = 0;
    if (hdt_seek_pins_hold(s, c) &&
        hdt_layout_derive(s->base, &layout, &files, &s->why) == HDT_OK) {
        found = found_new(s);
        fits = hdt_seek_found_rate(&files, s->options, s->constants, found, NULL) == HDT_OK;
        hdt_layout_derived_release(&files);
    }
    hdt_conf_release(&hdt_layout_schema, &layout);
    s->n_simulated++;
    /* What does not fit is not played. */
    s->tasks_left -= fits ? hdt_seek_tasks(c) : hdt_seek_tasks(c) / 4;
    s->n_founds += fits;
    return fits;
}

bool hdt_seek_judge(struct search *s, struct search_cand *c)
{
    uint64_t hash = hash_of(s, c);
    const struct search_judged *known = judged_find(s, hash);
    bool fits = known ? known->found >= 0 : simulate(s, c);

    c->step_s = 0;
    /* A part of the search goes the same way, whatever another one has found out. */
    if (known && known->part != s->part) {
        s->tasks_left -= fits ? hdt_seek_tasks(c) : hdt_seek_tasks(c) / 4;
    }
    if (fits) {
        judged_take(s, c, known ? known->found : (int)s->n_founds - 1);
    }
    if (!known && hash != 0) {
        judged_add(s, hash, fits ? c->found : -1);
    }
    return fits;
}
