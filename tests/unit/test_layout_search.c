/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The search over layouts. An oracle tries every layout of small random clusters: every way of each
 * replica, every cut, size and share, every relief, and simulates all that fit. It shares nothing
 * with the search but the simulator.
 */
#include "src/base/buf.h"
#include "src/plan/layout_search.h"
#include "tests/support/layout_job.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Clusters that are compared where HDT_TEST_CLUSTERS does not say it. */
#if defined(__SANITIZE_ADDRESS__)
# define N_CLUSTERS 6
#else
# define N_CLUSTERS 40
#endif

static int64_t random_in(struct values_rng *r, int64_t low, int64_t high)
{
    return low + (int64_t)hdt_values_below(r, (uint64_t)(high - low + 1));
}

/* ---- random clusters ---- */

/* Up to three kinds of nodes in up to two sites, five devices at most. */
static char *random_cluster(struct values_rng *r, int *n_sites)
{
    struct hdt_buf b;
    int n_kinds = (int)random_in(r, 1, 3), left = 5;

    *n_sites = n_kinds > 1 ? (int)random_in(r, 1, 2) : 1;
    hdt_buf_init(&b);
    hdt_buf_append_str(&b, "devices:\n");
    for (int i = 0; i < 3; i++) {
        hdt_buf_appendf(&b,
                        "  - {name: D%d, compute: {bf16: %lld}, memory: {gb: %lld.%lld, gb_per_s: "
                        "%lld}}\n",
                        i, (long long)random_in(r, 30, 400), (long long)random_in(r, 4, 9),
                        (long long)random_in(r, 0, 9), (long long)random_in(r, 500, 3000));
    }
    hdt_buf_appendf(&b, "links:\n  - {name: in, gb_per_s: %lld}\n  - {name: out, gb_per_s: %lld}\n",
                    (long long)random_in(r, 20, 300), (long long)random_in(r, 1, 25));
    hdt_buf_append_str(&b, "sites:\n");
    for (int s = 0; s < *n_sites; s++) {
        hdt_buf_appendf(&b, "  - name: s%d\n    nodes:\n", s);
        for (int k = 0; k < n_kinds; k++) {
            int64_t devices = random_in(r, 1, 2);
            int64_t count = random_in(r, 1, 2);

            if (k % *n_sites != s) {
                continue;
            }
            while (count * devices > left - (n_kinds - 1 - k) && count * devices > 1) {
                count > 1 ? count-- : devices--;
            }
            left -= (int)(count * devices);
            hdt_buf_appendf(&b,
                            "      - {name: k%d, count: %lld, device: D%d, devices: %lld, "
                            "framework_gb: 1, inside: in, between: out}\n",
                            k, (long long)count, k, (long long)devices);
        }
    }
    if (*n_sites > 1) {
        hdt_buf_appendf(&b, "wan:\n  - {from: s0, to: s1, rate: %lldgbit, rtt_ms: %lld}\n",
                        (long long)random_in(r, 1, 20), (long long)random_in(r, 0, 40));
    }
    return hdt_buf_detach(&b);
}

static char *random_model(struct values_rng *r)
{
    return hdt_asprintf("{\"model_type\":\"llama\",\"vocab_size\":%lld,\"hidden_size\":1024,"
                        "\"intermediate_size\":%lld,\"num_hidden_layers\":%lld,"
                        "\"num_attention_heads\":16,\"max_position_embeddings\":4096,"
                        "\"tie_word_embeddings\":false}",
                        (long long)random_in(r, 2000, 32000), (long long)random_in(r, 2048, 16384),
                        (long long)random_in(r, 2, 5));
}

static char *random_job(struct values_rng *r)
{
    return hdt_asprintf("seq_len: %lld\nglobal_batch: %lld\nattention: fused\n",
                        (long long)(512 * random_in(r, 1, 8)), (long long)random_in(r, 2, 6));
}

/* ---- the oracle ---- */

#define MOST 5

struct way {
    int kind[MOST], tp[MOST];
};

struct oracle {
    const struct hdt_layout_files *base;
    struct hdt_layout layout;
    struct hdt_layout_stage stages[MOST];
    struct hdt_layout_on on[MOST][MOST];
    struct hdt_layout_replicas replicas[MOST];
    int kinds[MOST][MOST]; /* of `on` */
    int n_stages, n_replicas;
    struct hdt_layout_mover *mover; /* a plan that runs; NULL: none does */
    double steps_left;
    const char *gone; /* a site that is not used; NULL: all are */
    double best_s;    /* of a step, with its share of what has to move */
    int64_t n_tried;
    struct hdt_buf best; /* in words */
};

/* The n-th kind of nodes of the cluster; NULL: there are no more. */
static const struct hdt_cluster_file_nodes *kind_at(const struct hdt_cluster_file *c, int n,
                                                    const char **site)
{
    for (size_t i = 0; i < c->sites.n; i++) {
        const struct hdt_cluster_file_site *s = hdt_cluster_file_site(c, i);

        if ((size_t)n < s->nodes.n) {
            *site = c->sites.n > 1 ? s->name : "";
            return hdt_cluster_file_nodes(s, (size_t)n);
        }
        n -= (int)s->nodes.n;
    }
    return NULL;
}

static void oracle_note(struct oracle *o)
{
    hdt_buf_clear(&o->best);
    for (int t = 0; t < o->n_stages; t++) {
        hdt_buf_appendf(&o->best, "%s%lld layers, recompute %d:", t ? "; " : "",
                        (long long)o->stages[t].layers, o->stages[t].recompute - 1);
        for (int r = 0; r < o->n_replicas; r++) {
            hdt_buf_appendf(&o->best, " %s/%lld", o->on[t][r].nodes, (long long)o->on[t][r].tp);
        }
    }
    for (int r = 0; r < o->n_replicas; r++) {
        hdt_buf_appendf(&o->best, "; %lld of %lld", (long long)o->replicas[r].micro_batches,
                        (long long)o->replicas[r].micro_batch);
    }
    hdt_buf_append_str(&o->best, o->layout.optimizer.sharded ? "; sharded\n" : "\n");
}

/* A step's share of what has to move. */
static double oracle_moves(const struct oracle *o, const struct hdt_layout_files *files)
{
    struct hdt_layout_moves moves = {0};
    double seconds;

    if (o->mover) {
        hdt_layout_mover_list(o->mover, files, &moves);
    }
    seconds = moves.seconds;
    hdt_layout_moves_release(&moves);
    return o->mover ? seconds / o->steps_left : 0;
}

static void oracle_simulate(struct oracle *o)
{
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_sim_result result;
    bool fits = true;

    if (hdt_layout_derive(o->base, &o->layout, &files, NULL) != HDT_OK) {
        return;
    }
    cr_assert_eq(hdt_layout_sim_open(&files, &hdt_stage_cost_fitted, &sim, NULL), HDT_OK);
    for (size_t i = 0; i < files.n_stages * files.n_replicas; i++) {
        fits = fits && hdt_layout_sim_rank(sim, i)->memory.total <=
                           hdt_cluster_file_memory_bytes(files.groups[i].nodes);
    }
    o->n_tried++;
    if (fits) {
        double step_s;

        cr_assert_eq(hdt_sim_run(hdt_layout_sim_setup(sim), &result, NULL), HDT_OK);
        step_s = result.makespan_s + oracle_moves(o, &files);
        if (step_s < o->best_s) {
            o->best_s = step_s;
            oracle_note(o);
        }
        hdt_sim_result_release(&result);
    }
    hdt_layout_sim_close(sim);
    hdt_layout_derived_release(&files);
}

/* Every relief of every stage, sharded or not. */
static void oracle_reliefs(struct oracle *o, int stage)
{
    if (stage == o->n_stages) {
        for (int sharded = 0; sharded < 2; sharded++) {
            o->layout.optimizer.sharded = sharded;
            oracle_simulate(o);
        }
        return;
    }
    for (int r = HDT_LAYOUT_KEEP; r <= HDT_LAYOUT_FULL; r += HDT_LAYOUT_FULL) {
        o->stages[stage].recompute = 1 + r;
        oracle_reliefs(o, stage + 1);
    }
}

static void oracle_layers(struct oracle *o, int stage, int64_t left)
{
    if (stage + 1 == o->n_stages) {
        o->stages[stage].layers = left;
        oracle_reliefs(o, 0);
        return;
    }
    for (int64_t n = 1; n < left; n++) {
        o->stages[stage].layers = n;
        oracle_layers(o, stage + 1, left - n);
    }
}

/* Every size and number of each replica's micro-batches. */
static void oracle_shares(struct oracle *o, int replica, int64_t left)
{
    if (replica == o->n_replicas) {
        if (left == 0) {
            oracle_layers(o, 0, o->base->model.L);
        }
        return;
    }
    for (int64_t one = 1; one <= 2; one++) {
        for (int64_t n = 1; n * one <= left; n++) {
            o->replicas[replica] =
                (struct hdt_layout_replicas){.count = 1, .micro_batch = one, .micro_batches = n};
            oracle_shares(o, replica + 1, left - n * one);
        }
    }
}

/* Every place of every group. Ways are compared from replica to replica: their order is all the
 * same but for who is the neighbour in a ring. */
static void oracle_places(struct oracle *o, int replica, int stage, bool is_equal)
{
    const char *site;
    const struct hdt_cluster_file_nodes *nodes;

    if (stage == o->n_stages) {
        replica++;
        stage = 0;
        is_equal = true;
    }
    if (replica == o->n_replicas) {
        oracle_shares(o, 0, o->base->layout.global_batch);
        return;
    }
    for (int k = 0; (nodes = kind_at(&o->base->cluster, k, &site)); k++) {
        for (int64_t tp = 1; tp <= nodes->devices; tp *= 2) {
            struct hdt_layout_on *on = &o->on[stage][replica], *before = on - 1;
            int order = 1;

            if (replica > 0 && is_equal) {
                order = k - o->kinds[stage][replica - 1];
                order = order ? order : (tp > before->tp) - (tp < before->tp);
            }
            if (order < 0 || (o->gone && strcmp(site, o->gone) == 0)) {
                continue;
            }
            o->kinds[stage][replica] = k;
            *on = (struct hdt_layout_on){
                .site = (char *)site, .nodes = nodes->name, .count = 1, .tp = tp};
            oracle_places(o, replica, stage + 1, is_equal && order == 0);
        }
    }
}

static double oracle_best(const struct hdt_layout_files *base,
                          const struct hdt_layout_search_options *options, struct hdt_buf *best,
                          int64_t *n_tried)
{
    struct oracle o = {.base = base, .layout = base->layout, .best_s = INFINITY};
    int n_devices = (int)hdt_cluster_file_n_devices(&base->cluster);

    o.steps_left = options->steps_left;
    if (options->current) {
        o.mover =
            hdt_layout_mover_new(options->current, base, options->without, options->n_without);
    }
    if (options->n_without > 0) {
        o.gone = hdt_cluster_file_site(&base->cluster, options->without[0])->name;
    }
    hdt_buf_init(&o.best);
    o.layout.sync = HDT_LAYOUT_SYNC_OVERLAPPED;
    for (o.n_replicas = 1; o.n_replicas <= n_devices; o.n_replicas++) {
        for (o.n_stages = 1; o.n_stages * o.n_replicas <= n_devices && o.n_stages <= base->model.L;
             o.n_stages++) {
            memset(o.stages, 0, sizeof(o.stages));
            for (int t = 0; t < o.n_stages; t++) {
                o.stages[t].on =
                    (struct hdt_conf_list){.items = o.on[t], .n = (size_t)o.n_replicas};
            }
            o.layout.stages = (struct hdt_conf_list){.items = o.stages, .n = (size_t)o.n_stages};
            o.layout.replicas =
                (struct hdt_conf_list){.items = o.replicas, .n = (size_t)o.n_replicas};
            oracle_places(&o, 0, 0, true);
        }
    }
    hdt_layout_mover_free(o.mover);
    *n_tried = o.n_tried;
    *best = o.best;
    return o.best_s;
}

/* A plan of fewer choices runs: even, alike replicas, micro-batches of one sequence. Perhaps a site
 * is lost. False: there is none; else `held` is to be released after it. */
static bool current_make(struct values_rng *r, const struct hdt_layout_files *base, int n_sites,
                         struct hdt_layout_search_options *options,
                         struct hdt_layout_search_result *held, struct hdt_layout_files *current)
{
    struct hdt_layout_search_options few = *options;

    few.max_micro_batch = 1;
    few.space = HDT_LAYOUT_SPACE_EVEN | HDT_LAYOUT_SPACE_ALIKE;
    if (hdt_layout_search(base, &few, held, NULL) != HDT_OK) {
        return false;
    }
    cr_assert_eq(hdt_layout_derive(base, &held->top[0].layout, current, NULL), HDT_OK);
    options->current = current;
    options->steps_left = pow(10, (double)random_in(r, 0, 3));
    if (n_sites > 1 && random_in(r, 0, 1)) {
        options->without[0] = (size_t)random_in(r, 0, n_sites - 1);
        options->n_without = 1;
    }
    return true;
}

/* How much longer the found step is than the oracle's (negative: of a space that the search has
 * and the oracle does not, as another order of replicas); NAN: nothing fits, as both say. */
static double against_oracle(uint64_t seed, bool runs)
{
    struct values_rng r = {seed};
    int n_sites;
    char *cluster = random_cluster(&r, &n_sites), *model = random_model(&r), *job = random_job(&r);
    struct hdt_layout_search_options options = {
        .max_micro_batch = 2,
        .keep = HDT_LAYOUT_KEEP_SCHEDULE | HDT_LAYOUT_KEEP_ALL_REDUCE | HDT_LAYOUT_KEEP_OFFLOAD};
    struct hdt_layout_search_result result, held;
    struct hdt_layout_files base, current;
    struct hdt_error err = {0};
    double best_s, found_s = INFINITY;
    struct hdt_buf best;
    int64_t n_tried;

    cr_assert_eq(hdt_layout_job_open(cluster, model, job, &base, &err), HDT_OK, "%s: %s", err.where,
                 err.msg);
    base.layout.sync = HDT_LAYOUT_SYNC_OVERLAPPED;
    options.keep |= HDT_LAYOUT_KEEP_SYNC;
    runs = runs && current_make(&r, &base, n_sites, &options, &held, &current);
    best_s = oracle_best(&base, &options, &best, &n_tried);
    if (hdt_layout_search(&base, &options, &result, &err) == HDT_OK) {
        found_s = runs ? result.top[0].total / options.steps_left : result.top[0].prediction.step_s;
        hdt_layout_search_release(&result);
    }
    if (runs) {
        hdt_layout_derived_release(&current);
        hdt_layout_search_release(&held);
    }
    cr_expect_eq(isinf(best_s), isinf(found_s), "seed %llu: one of two says that nothing fits",
                 (unsigned long long)seed);
    if (isinf(best_s) != isinf(found_s) || found_s > best_s * (1 + 1e-9)) {
        cr_log_info("seed %llu: found %.9g s, the best of %lld is %.9g s: %s%s%s\n%s",
                    (unsigned long long)seed, found_s, (long long)n_tried, best_s,
                    hdt_buf_str(&best), cluster, model, job);
    }
    hdt_buf_release(&best);
    hdt_layout_release(&base);
    free(cluster);
    free(model);
    free(job);
    return isinf(best_s) && isinf(found_s) ? NAN : found_s / best_s - 1;
}

static void clusters_try(int n, bool runs)
{
    int n_exact = 0, n_fit = 0;
    double worst = 0, least = 0;
    const char *first = getenv("HDT_TEST_SEED"), *count = getenv("HDT_TEST_CLUSTERS");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 20261129;

    n = count ? (int)strtol(count, NULL, 10) : n;
    cr_log_info("seed %llu", (unsigned long long)seed);
    for (int i = 0; i < n; i++) {
        double more = against_oracle(seed + (uint64_t)i, runs);

        if (!isnan(more)) {
            n_fit++;
            n_exact += more <= 1e-9;
            worst = fmax(worst, more);
            least = fmin(least, more);
        }
    }
    cr_log_info("%d clusters with a plan: as good in %d, at worst %.3g %% slower, at best %.3g %%",
                n_fit, n_exact, 100 * worst, 100 * least);
    cr_expect_leq(worst, 0.01);
    cr_expect_geq(n_exact, 0.95 * n_fit);
    cr_expect_geq(n_fit, n / 3);
}

Test(layout_search, is_as_good_as_trying_all, .timeout = 900)
{
    clusters_try(N_CLUSTERS, false);
}

/* By what is left of the job, the move from a plan that runs counted. */
Test(layout_search, is_as_good_as_trying_all_where_a_plan_runs, .timeout = 900)
{
    clusters_try(N_CLUSTERS / 2, true);
}

/* ---- what is asked for ---- */

#define DEVICES "devices:\n  - {name: X, compute: {bf16: 100}, memory: {gb: 16, gb_per_s: 1000}}\n"
#define LINKS   "links:\n  - {name: in, gb_per_s: 100}\n  - {name: out, gb_per_s: 10}\n"
#define SITE(name, count)                                                                          \
 "  - name: " name "\n    nodes: [{name: n, count: " count                                         \
 ", device: X, devices: 2, inside: in, between: out}]\n"
#define TWO_SITES                                                                                  \
 DEVICES LINKS "sites:\n" SITE("a", "2")                                                           \
     SITE("b", "4") "wan:\n  - {from: a, to: b, rate: 1gbit, rtt_ms: 20}\n"
#define MODEL                                                                                      \
 "{\"model_type\":\"llama\",\"vocab_size\":32000,\"hidden_size\":2048,\"intermediate_size\":5632," \
 "\"num_hidden_layers\":16,\"num_attention_heads\":16,\"max_position_embeddings\":65536,"          \
 "\"tie_word_embeddings\":false}"
#define JOB "seq_len: 2048\nglobal_batch: 32\nattention: fused\n"

static enum hdt_status search_in(const char *job, const struct hdt_layout_search_options *options,
                                 struct hdt_layout_files *base,
                                 struct hdt_layout_search_result *result, struct hdt_error *err)
{
    enum hdt_status status;

    cr_assert_eq(hdt_layout_job_open(TWO_SITES, MODEL, job, base, err), HDT_OK, "%s: %s",
                 err->where, err->msg);
    status = hdt_layout_search(base, options, result, err);
    if (status != HDT_OK) {
        hdt_layout_release(base);
    }
    return status;
}

static bool stage_is_in(const struct hdt_layout *layout, size_t stage, const char *site)
{
    const struct hdt_layout_stage *s = hdt_layout_stage(layout, stage);
    const struct hdt_layout_on *on = s->on.items;
    bool is_in = true;

    for (size_t i = 0; i < s->on.n; i++) {
        is_in = is_in && strcmp(on[i].site, site) == 0;
    }
    return is_in;
}

/* Site b alone would do, and is twice as large. */
Test(layout_search, pins_hold_in_all_that_is_returned)
{
    struct hdt_layout_search_options options = {
        .pins =
            {{.parts = HDT_LAYOUT_PIN_EMBED | HDT_LAYOUT_PIN_HEAD, .site_idx = 0},
             {.parts = HDT_LAYOUT_PIN_LAYERS, .first_layer = 7, .last_layer = 7, .site_idx = 1}},
        .n_pins = 2};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(search_in(JOB, &options, &base, &result, &err), HDT_OK, "%s", err.msg);
    cr_assert_gt(result.n_top, 0);
    for (size_t i = 0; i < result.n_top; i++) {
        const struct hdt_layout *l = &result.top[i].layout;
        int64_t first = 0;

        cr_expect(stage_is_in(l, 0, "a"));
        cr_expect(stage_is_in(l, l->stages.n - 1, "a"));
        for (size_t t = 0; t < l->stages.n; t++) {
            int64_t n = hdt_layout_stage(l, t)->layers;

            cr_expect(first > 7 || first + n <= 7 || stage_is_in(l, t, "b"));
            first += n;
        }
    }
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
}

Test(layout_search, a_site_that_is_left_out_is_not_used)
{
    struct hdt_layout_search_options options = {.without = {1}, .n_without = 1};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(search_in(JOB, &options, &base, &result, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < result.n_top; i++) {
        for (size_t t = 0; t < result.top[i].layout.stages.n; t++) {
            cr_expect(stage_is_in(&result.top[i].layout, t, "a"));
        }
    }
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
}

Test(layout_search, says_why_there_is_no_plan)
{
    struct hdt_layout_search_options options = {
        .without = {0},
        .n_without = 1,
        .pins = {{.parts = HDT_LAYOUT_PIN_EMBED, .site_idx = 0}},
        .n_pins = 1};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(search_in(JOB, &options, &base, &result, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "holds what is pinned"), "%s", err.msg);
    options.n_pins = options.n_without = 0;
    cr_assert_eq(search_in("seq_len: 65536\nglobal_batch: 32\n", &options, &base, &result, &err),
                 HDT_ENOMEM);
    cr_expect(strstr(err.msg, "nodes 'n' that has 16"), "%s", err.msg);
    cr_expect(err.hint[0]);
}

/* The plan simulated again, as `hdt simulate` does, takes as long; a second search finds it again;
 * the others differ in more than a layer. */
Test(layout_search, finds_the_same_again)
{
    struct hdt_layout_search_options options = {.objective = HDT_LAYOUT_THROUGHPUT};
    struct hdt_layout_search_result one, two;
    struct hdt_layout_files base, again, files;
    struct hdt_layout_prediction p;
    struct hdt_error err = {0};

    cr_assert_eq(search_in(JOB, &options, &base, &one, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(search_in(JOB, &options, &again, &two, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(one.n_top, two.n_top);
    for (size_t i = 0; i < one.n_top; i++) {
        const struct hdt_layout_found *f = &one.top[i];

        cr_expect_eq(f->prediction.step_s, two.top[i].prediction.step_s);
        cr_assert_eq(hdt_layout_derive(&base, &f->layout, &files, &err), HDT_OK, "%s", err.msg);
        cr_assert_eq(hdt_layout_predict(&files, &hdt_stage_cost_fitted, &p, &err), HDT_OK);
        cr_expect_eq(p.step_s, f->prediction.step_s);
        cr_expect_leq(p.memory_bytes, 16 * 1024.0 * 1024 * 1024);
        cr_expect_geq(p.step_s, one.bound_s);
        cr_expect_eq(i > 0, f->differs[0] != '\0');
        cr_expect(f->limit_text[0]);
        hdt_layout_derived_release(&files);
    }
    hdt_layout_search_release(&one);
    hdt_layout_search_release(&two);
    hdt_layout_release(&base);
    hdt_layout_release(&again);
}

/* Ends the search at its first question: long before all is written down. */
static bool ends_at_once(void *ctx, const struct hdt_layout_progress *progress)
{
    (void)ctx;
    return progress->n_estimated == 0;
}

/* Too many devices for trying all: the cut comes before anything has been simulated. */
#define MANY_SITES                                                                                 \
 DEVICES LINKS "sites:\n" SITE("a", "16")                                                          \
     SITE("b", "16") "wan:\n  - {from: a, to: b, rate: 10gbit, rtt_ms: 20}\n"

Test(layout_search, a_cut_search_gives_the_best_so_far)
{
    struct hdt_layout_search_options options = {.on_progress = ends_at_once};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_layout_job_open(MANY_SITES, MODEL, JOB, &base, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    cr_expect(result.is_cut);
    cr_expect_gt(result.top[0].prediction.step_s, 0);
    cr_expect_leq(result.n_simulated, 64);
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
}

/* Trees, which the job keeps, do not shard. */
Test(layout_search, trees_are_kept)
{
    struct hdt_layout_search_options options = {.keep = HDT_LAYOUT_KEEP_ALL_REDUCE};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_layout_job_open(MANY_SITES, MODEL, JOB "all_reduce: tree\n", &base, &err),
                 HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < result.n_top; i++) {
        cr_expect_eq(result.top[i].layout.all_reduce, HDT_LAYOUT_TREE);
        cr_expect(!result.top[i].layout.optimizer.sharded);
    }
    hdt_layout_search_release(&result);
    options.keep |= HDT_LAYOUT_KEEP_SHARDED;
    base.layout.optimizer.sharded = true;
    cr_expect_eq(hdt_layout_search(&base, &options, &result, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "trees"), "%s", err.msg);
    hdt_layout_release(&base);
}

Test(layout_search, chunks_are_kept)
{
    struct hdt_layout_search_options options = {.keep = HDT_LAYOUT_KEEP_SCHEDULE};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_layout_job_open(MANY_SITES, MODEL, JOB "schedule: interleaved\nchunks: 2\n",
                                     &base, &err),
                 HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < result.n_top; i++) {
        cr_expect_eq(result.top[i].layout.schedule, HDT_SCHEDULE_INTERLEAVED);
        cr_expect_eq(result.top[i].layout.chunks, 2);
    }
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
}

/* Joules of a device whose power nobody knows. */
Test(layout_search, energy_needs_the_power)
{
    struct hdt_layout_search_options options = {.objective = HDT_LAYOUT_ENERGY};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(search_in(JOB, &options, &base, &result, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "power of 'X'"), "%s", err.msg);
    cr_expect(strstr(err.hint, "tdp_w"), "%s", err.hint);
}

/* A cut that no balance comes to: b is as large as a, and holds two layers of 16. */
Test(layout_search, borders_go_where_layers_are_pinned)
{
    struct hdt_layout_search_options options = {
        .pins =
            {{.parts = HDT_LAYOUT_PIN_LAYERS, .first_layer = 0, .last_layer = 13, .site_idx = 0},
             {.parts = HDT_LAYOUT_PIN_LAYERS, .first_layer = 14, .last_layer = 15, .site_idx = 1}},
        .n_pins = 2};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_layout_job_open(MANY_SITES, MODEL, JOB, &base, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < result.n_top; i++) {
        const struct hdt_layout *l = &result.top[i].layout;
        int64_t at_a = 0;

        for (size_t t = 0; t < l->stages.n; t++) {
            bool is_a = stage_is_in(l, t, "a");

            cr_expect(is_a || stage_is_in(l, t, "b"));
            at_a += is_a ? hdt_layout_stage(l, t)->layers : 0;
        }
        cr_expect_eq(at_a, 14);
    }
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
}

/* A kind whose figures nobody knows is not left idle in silence. */
Test(layout_search, names_what_is_not_known)
{
    static const char cluster[] =
        "devices:\n  - {name: X, compute: {bf16: 100}, memory: {gb: 16, gb_per_s: 1000}}\n"
        "  - {name: Y, compute: {fp16: 100}, memory: {gb: 16, gb_per_s: 1000}}\n" LINKS
        "sites:\n  - name: a\n    nodes:\n"
        "      - {name: x, count: 2, device: X, devices: 2, inside: in, between: out}\n"
        "      - {name: y, count: 2, device: Y, devices: 2, inside: in, between: out}\n";
    struct hdt_layout_search_options options = {0};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_layout_job_open(cluster, MODEL, JOB, &base, &err), HDT_OK, "%s: %s", err.where,
                 err.msg);
    cr_expect_eq(hdt_layout_search(&base, &options, &result, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "Y") || strstr(err.where, "Y"), "%s: %s", err.where, err.msg);
    hdt_layout_release(&base);
}

Test(layout_search, simulates_no_more_than_it_may)
{
    struct hdt_layout_search_options options = {.n_simulations = 3};
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_layout_job_open(MANY_SITES, MODEL, JOB, &base, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    cr_expect_leq(result.n_simulated, 3);
    cr_expect(!result.is_complete);
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
}
