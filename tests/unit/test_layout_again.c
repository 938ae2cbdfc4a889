/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Plans after a plan: what moves, by hand, and the search that counts it. Sums are made here anew
 * from the plans that come back: a step from the simulator, a move from the list of moves.
 */
#include "src/base/buf.h"
#include "src/plan/layout_search.h"
#include "tests/support/layout_job.h"
#include "tests/support/scratch.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Random changes where HDT_TEST_CHANGES does not say it. */
#if defined(__SANITIZE_ADDRESS__)
# define N_CHANGES 4
#else
# define N_CHANGES 16
#endif

#define MODEL                                                                                      \
 "{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":512,\"intermediate_size\":1024,"   \
 "\"num_hidden_layers\":8,\"num_attention_heads\":8,\"max_position_embeddings\":1024,"             \
 "\"tie_word_embeddings\":false}"
/* Parameters of a layer: 4 x 512 x 512, 3 x 512 x 1024, two norms of 512; of embedding and head. */
#define P 2622464.0
#define E 512000.0
#define H 512512.0
/* Bytes of a parameter: weights in bf16; in fp32, and two moments. */
#define W 2.0
#define S 12.0

/* Four sites with a node each; only neighbours have links, others go over b. */
#define SITE(name, devices)                                                                        \
 "  - {name: " name ", nodes: [{name: n, count: 1, device: X, devices: " devices ", inside: in}]}\n"
#define FOUR_OF(tflops, devices, ab, bc, bd)                                                       \
 "devices:\n  - {name: X, compute: {bf16: " tflops "}, memory: {gb: 10, gb_per_s: 1000}}\n"        \
 "links: [{name: in, gb_per_s: 100}]\nsites:\n" SITE("a", devices) SITE("b", devices)              \
     SITE("c", devices) SITE(                                                                      \
         "d",                                                                                      \
         devices) "wan:\n"                                                                         \
                  "  - {from: a, to: b, rate: " ab ", rtt_ms: 10, price_per_gb: 2}\n"              \
                  "  - {from: b, to: c, rate: " bc ", rtt_ms: 10}\n"                               \
                  "  - {from: b, to: d, rate: " bd ", rtt_ms: 10}\n"                               \
                  "  - {from: a, to: c, via: b}\n  - {from: a, to: d, via: b}\n  - {from: c, to: d, via: b}\n"
#define FOUR(ab, bc, bd) FOUR_OF("10", "2", ab, bc, bd)
#define JOB              "seq_len: 1024\nglobal_batch: 8\nattention: fused\n"

static void open_job(const char *cluster, const char *job, struct hdt_layout_files *files)
{
    struct hdt_error err = {0};

    cr_assert_eq(hdt_layout_job_open(cluster, MODEL, job, files, &err), HDT_OK, "%s: %s", err.where,
                 err.msg);
}

/* The same with its stages. */
static void open_plan(const char *cluster, const char *stages, struct hdt_layout_files *files)
{
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    char *text = hdt_asprintf("cluster: cluster.yaml\nmodel: model.json\n" JOB "%s", stages);
    struct hdt_error err = {0};

    hdt_scratch_init();
    hdt_scratch_write("model.json", MODEL, strlen(MODEL));
    hdt_scratch_write("cluster.yaml", cluster, strlen(cluster));
    hdt_scratch_write("layout.yaml", text, strlen(text));
    cr_assert_eq(hdt_layout_open(hdt_scratch_path("layout.yaml"), &instead, files, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    hdt_scratch_release();
    free(text);
}

static void moves_of(const char *cluster, const char *was, const char *is, const size_t *gone,
                     size_t n_gone, struct hdt_layout_moves *moves)
{
    struct hdt_layout_files from, to;
    struct hdt_layout_mover *mover;

    open_plan(cluster, was, &from);
    open_plan(cluster, is, &to);
    mover = hdt_layout_mover_new(&from, &to, gone, n_gone);
    hdt_layout_mover_list(mover, &to, moves);
    hdt_layout_mover_free(mover);
    hdt_layout_release(&from);
    hdt_layout_release(&to);
}

static void row_is(const struct hdt_layout_moves *moves, size_t row, int64_t first, int64_t last,
                   int from_site, size_t to_site, double bytes, double seconds)
{
    const struct hdt_layout_move *m = &moves->items[row];

    cr_assert_lt(row, moves->n);
    cr_expect_eq(m->first, first, "row %zu: %lld", row, (long long)m->first);
    cr_expect_eq(m->last, last, "row %zu: %lld", row, (long long)m->last);
    cr_expect_eq(m->is_stored, from_site < 0, "row %zu", row);
    cr_expect(from_site < 0 || m->from_site == (size_t)from_site, "row %zu", row);
    cr_expect_eq(m->to_site, to_site, "row %zu", row);
    cr_expect_float_eq(m->bytes, bytes, 1, "row %zu: %g, not %g", row, m->bytes, bytes);
    cr_expect_float_eq(m->seconds, seconds, 1e-9, "row %zu: %g, not %g", row, m->seconds, seconds);
}

/* ---- by hand ---- */

#define TWICE(rest)                                                                                   \
 rest                                                                                                 \
     "stages:\n  - {layers: 4, on: [{site: a, nodes: n, count: 1}, {site: b, nodes: n, count: 1}]}\n" \
     "  - {layers: 4, on: [{site: c, nodes: n, count: 1}, {site: d, nodes: n, count: 1}]}\n"
#define ONCE(rest)                                                                                 \
 rest "stages:\n  - {layers: 4, on: [{site: a, nodes: n, count: 1}]}\n"                            \
      "  - {layers: 2, on: [{site: b, nodes: n, count: 1}]}\n"                                     \
      "  - {layers: 2, on: [{site: d, nodes: n, count: 1}]}\n"

/* Two replicas, a and c, b and d. c is lost: a keeps 1 to 4, d keeps 7 and 8, b gets 5 and 6 from
 * d, which has them all. */
Test(layout_again, a_lost_site_by_hand)
{
    const size_t gone[] = {2};
    struct hdt_layout_moves moves;

    moves_of(FOUR("1gbit", "1gbit", "400mbit"), TWICE(""), ONCE(""), gone, 1, &moves);
    cr_expect_eq(moves.n_layers, 2);
    cr_expect_eq(moves.n_all, 10);
    cr_expect_float_eq(moves.wan_bytes, (W + S) * 2 * P, 1);
    cr_expect_eq(moves.site_bytes, 0);
    cr_expect_eq(moves.stored_bytes, 0);
    cr_expect_eq(moves.price, 0);
    cr_expect_float_eq(moves.seconds, (W + S) * 2 * P / 50e6, 1e-9);
    cr_expect_str_eq(moves.link, "d -> b");
    cr_assert_eq(moves.n, 1);
    row_is(&moves, 0, 5, 6, 3, 1, (W + S) * 2 * P, (W + S) * 2 * P / 50e6);
    hdt_layout_moves_release(&moves);
}

/* The same where replicas share the optimizer: a has the first half of 1 to 4, b the second, c
 * (lost) the first of 5 to 8, d the second. One replica wants the whole: a gets a half from b, b
 * weights and a half from d, and what c had comes from the checkpoint. */
Test(layout_again, a_lost_site_has_shards_that_nobody_has)
{
    const size_t gone[] = {2};
    const double half = S / 2, to_a = half * (4 * P + E), to_b = (W + half) * 2 * P;
    struct hdt_layout_moves moves;

    moves_of(FOUR("1gbit", "1gbit", "400mbit"), TWICE("optimizer: {sharded: true}\n"),
             ONCE("optimizer: {sharded: true}\n"), gone, 1, &moves);
    cr_expect_eq(moves.n_layers, 2);
    cr_expect_float_eq(moves.wan_bytes, to_a + to_b, 1);
    cr_expect_float_eq(moves.stored_bytes, half * 2 * P + half * (2 * P + H), 1);
    cr_expect_float_eq(moves.price, 2 * to_a / 1e9, 1e-9);
    cr_expect_float_eq(moves.seconds, to_b / 50e6, 1e-9);
    cr_expect_str_eq(moves.link, "d -> b");
    cr_assert_eq(moves.n, 4);
    row_is(&moves, 0, 0, 4, 1, 0, to_a, to_a / 125e6);
    row_is(&moves, 1, 5, 6, 3, 1, to_b, to_b / 50e6);
    row_is(&moves, 2, 5, 6, -1, 1, half * 2 * P, 0);
    row_is(&moves, 3, 7, 9, -1, 3, half * (2 * P + H), 0);
    hdt_layout_moves_release(&moves);
}

/* a goes idle: d gets 1 to 3 from it over b, b gets 4. Both cross the link from a to b. */
Test(layout_again, moves_share_a_link)
{
    static const char was[] = "stages:\n  - {layers: 4, on: [{site: a, nodes: n, count: 1}]}\n"
                              "  - {layers: 4, on: [{site: d, nodes: n, count: 1}]}\n";
    static const char is[] = "stages:\n  - {layers: 3, on: [{site: d, nodes: n, count: 1}]}\n"
                             "  - {layers: 1, on: [{site: b, nodes: n, count: 1}]}\n"
                             "  - {layers: 4, on: [{site: d, nodes: n, count: 1}]}\n";
    const double to_d = (W + S) * (3 * P + E), to_b = (W + S) * P;
    struct hdt_layout_moves moves;

    moves_of(FOUR("1gbit", "1gbit", "10gbit"), was, is, NULL, 0, &moves);
    cr_expect_eq(moves.n_layers, 5);
    cr_expect_float_eq(moves.wan_bytes, to_d + to_b, 1);
    cr_expect_float_eq(moves.seconds, (to_d + to_b) / 125e6, 1e-9);
    cr_expect_str_eq(moves.link, "a -> b");
    cr_assert_eq(moves.n, 2);
    row_is(&moves, 0, 0, 3, 0, 3, to_d, to_d / 125e6);
    row_is(&moves, 1, 4, 4, 0, 1, to_b, to_b / 125e6);
    hdt_layout_moves_release(&moves);
}

/* Three nodes of one site have a layer, one more gets it: from one of them, over the two links of
 * 10 GB/s at the same time; to two more it goes on different ones. */
Test(layout_again, inside_a_site_by_its_links)
{
    static const char cluster[] =
        "devices:\n  - {name: X, compute: {bf16: 10}, memory: {gb: 10, gb_per_s: 1000}}\n"
        "links: [{name: net, gb_per_s: 10}]\n"
        "sites: [{name: a, nodes: [{name: n, count: 4, device: X, devices: 1, between: net}]}]\n";
    static const char was[] = "stages:\n  - {layers: 8, on: [{nodes: n, count: 1}]}\n";
    static const char is[] = "stages:\n  - {layers: 8, on: [{nodes: n, count: 4}]}\n";
    const double all = (W + S) * (8 * P + E + H);
    struct hdt_layout_moves moves;

    moves_of(cluster, was, is, NULL, 0, &moves);
    cr_expect_eq(moves.n_layers, 30);
    cr_expect_float_eq(moves.site_bytes, 3 * all, 1);
    /* Each passes on what it has: no link carries it twice. */
    cr_expect_float_eq(moves.seconds, all / 10e9, 1e-9);
    hdt_layout_moves_release(&moves);
}

/* ---- the search ---- */

/* A step of a plan, and what has to move to it; released. */
static double sum_of(const struct hdt_layout_files *base, const struct hdt_layout_files *current,
                     const struct hdt_layout_search_options *o, const struct hdt_layout *layout,
                     double *move_s)
{
    struct hdt_layout_prediction p;
    struct hdt_layout_moves moves;
    struct hdt_layout_files files;
    struct hdt_layout_mover *mover = hdt_layout_mover_new(current, base, o->without, o->n_without);
    struct hdt_error err = {0};

    cr_assert_eq(hdt_layout_derive(base, layout, &files, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_predict(&files, &hdt_stage_cost_fitted, &p, &err), HDT_OK);
    hdt_layout_mover_list(mover, &files, &moves);
    *move_s = moves.seconds;
    hdt_layout_moves_release(&moves);
    hdt_layout_mover_free(mover);
    hdt_layout_derived_release(&files);
    return o->steps_left * p.step_s + *move_s;
}

/* One replica over a, b, c, d, two layers each. A layer takes 0.16 s of a micro-batch, and 2.9 s
 * over a link. c is lost, and one step is left: nobody moves what it has. 5 and 6, which nobody has
 * any more, come to b and d from the checkpoint, one each: with both at b or d, a stage would have
 * four layers; a would have to get the third over a link, for a head less beside d's three. */
Test(layout_again, keeps_what_need_not_move)
{
    static const char cluster[] = FOUR_OF("0.1", "1", "100mbit", "100mbit", "100mbit");
    static const char was[] = "stages:\n  - {layers: 2, on: [{site: a, nodes: n, count: 1}]}\n"
                              "  - {layers: 2, on: [{site: b, nodes: n, count: 1}]}\n"
                              "  - {layers: 2, on: [{site: c, nodes: n, count: 1}]}\n"
                              "  - {layers: 2, on: [{site: d, nodes: n, count: 1}]}\n";
    struct hdt_layout_files current, base;
    struct hdt_layout_search_options options = {
        .current = &current, .steps_left = 1, .without = {2}, .n_without = 1};
    struct hdt_layout_search_result result;
    struct hdt_error err = {0};
    const struct hdt_layout *l;

    open_plan(cluster, was, &current);
    open_job(cluster, JOB, &base);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    l = &result.top[0].layout;
    cr_expect_eq(result.top[0].move_s, 0);
    cr_expect(result.repair.is_known);
    cr_expect_eq(result.repair.move_s, 0);
    cr_expect_eq(result.steps_left, 1);
    cr_assert_eq(l->stages.n, 3);
    cr_expect_eq(hdt_layout_stage(l, 0)->layers, 2);
    cr_expect_eq(hdt_layout_stage(l, 1)->layers, 3);
    cr_expect_eq(hdt_layout_stage(l, 2)->layers, 3);
    for (size_t t = 0; t < 3; t++) {
        const struct hdt_layout_on *on = hdt_layout_stage(l, t)->on.items;

        cr_expect_str_eq(on->site, t == 0 ? "a" : t == 1 ? "b" : "d");
    }
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
    hdt_layout_release(&current);
}

/* The same where a move pays soon: then the step counts alone. */
Test(layout_again, moves_what_pays)
{
    static const char cluster[] = FOUR("10gbit", "10gbit", "10gbit");
    static const char was[] = "stages:\n  - {layers: 7, on: [{site: a, nodes: n, count: 1}]}\n"
                              "  - {layers: 1, on: [{site: b, nodes: n, count: 1}]}\n";
    struct hdt_layout_files current, base;
    struct hdt_layout_search_options options = {.current = &current, .steps_left = 1e9},
                                     fresh = {0};
    struct hdt_layout_search_result result, anew;
    struct hdt_error err = {0};
    double move_s;

    open_plan(cluster, was, &current);
    open_job(cluster, JOB, &base);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_search(&base, &fresh, &anew, &err), HDT_OK, "%s", err.msg);
    cr_expect_leq(result.top[0].prediction.step_s, anew.top[0].prediction.step_s * (1 + 1e-6));
    cr_expect_gt(result.top[0].move_s, 0);
    cr_expect_float_eq(sum_of(&base, &current, &options, &result.top[0].layout, &move_s) /
                           result.top[0].total,
                       1, 1e-9);
    cr_expect_float_eq(move_s, result.top[0].move_s, 1e-9);
    hdt_layout_search_release(&result);
    hdt_layout_search_release(&anew);
    hdt_layout_release(&base);
    hdt_layout_release(&current);
}

/* ---- at random ---- */

static int64_t random_in(struct values_rng *r, int64_t low, int64_t high)
{
    return low + (int64_t)hdt_values_below(r, (uint64_t)(high - low + 1));
}

/* Three or four sites of one or two kinds, up to 48 devices, none of which holds the model; links
 * of unlike rates. */
static char *random_cluster(struct values_rng *r, int *n_sites)
{
    struct hdt_buf b;

    *n_sites = (int)random_in(r, 3, 4);
    hdt_buf_init(&b);
    hdt_buf_append_str(&b, "devices:\n");
    for (int i = 0; i < 2; i++) {
        hdt_buf_appendf(&b,
                        "  - {name: D%d, compute: {bf16: 0.%02lld}, memory: {gb: 0.%lld, "
                        "gb_per_s: %lld}}\n",
                        i, (long long)random_in(r, 5, 99), (long long)random_in(r, 20, 60),
                        (long long)random_in(r, 50, 300));
    }
    hdt_buf_appendf(&b, "links:\n  - {name: in, gb_per_s: %lld}\n  - {name: out, gb_per_s: %lld}\n",
                    (long long)random_in(r, 20, 300), (long long)random_in(r, 1, 25));
    hdt_buf_append_str(&b, "sites:\n");
    for (int s = 0; s < *n_sites; s++) {
        int64_t devices = 1 << random_in(r, 0, 2);

        hdt_buf_appendf(&b,
                        "  - {name: s%d, nodes: [{name: k, count: %lld, device: D%lld, devices: "
                        "%lld, framework_gb: 0.05, between: out%s}]}\n",
                        s, (long long)random_in(r, 1, 3), (long long)random_in(r, 0, 1),
                        (long long)devices, devices > 1 ? ", inside: in" : "");
    }
    hdt_buf_append_str(&b, "wan:\n");
    for (int s = 0; s < *n_sites; s++) {
        for (int t = s + 1; t < *n_sites; t++) {
            hdt_buf_appendf(&b, "  - {from: s%d, to: s%d, rate: %lldmbit, rtt_ms: %lld}\n", s, t,
                            (long long)random_in(r, 5, 500), (long long)random_in(r, 0, 40));
        }
    }
    return hdt_buf_detach(&b);
}

/* The plan that comes back is by its sum no worse than the repair that moves least, and than what
 * is found where nothing runs; and its figures are those of its layout. */
static bool change_try(uint64_t seed)
{
    struct values_rng r = {seed};
    int n_sites;
    char *cluster = random_cluster(&r, &n_sites);
    struct hdt_layout_files base, current;
    struct hdt_layout_search_options options = {0};
    struct hdt_layout_search_result was, anew, again;
    struct hdt_error err = {0};
    double fresh, found, move_s, fresh_move_s;
    bool ok;

    open_job(cluster, JOB, &base);
    free(cluster);
    ok = hdt_layout_search(&base, &options, &was, &err) == HDT_OK;
    if (!ok) {
        hdt_layout_release(&base);
        return false;
    }
    cr_assert_eq(hdt_layout_derive(&base, &was.top[0].layout, &current, &err), HDT_OK);
    /* One that it uses. */
    options.without[0] =
        current.groups[random_in(&r, 0, (int64_t)(current.n_replicas * current.n_stages) - 1)]
            .site_idx;
    options.n_without = 1;
    ok = hdt_layout_search(&base, &options, &anew, &err) == HDT_OK;
    options.current = &current;
    options.steps_left = pow(10, (double)random_in(&r, 0, 5));
    cr_expect_eq(hdt_layout_search(&base, &options, &again, &err) == HDT_OK, ok, "seed %llu: %s",
                 (unsigned long long)seed, err.msg);
    if (ok) {
        fresh = sum_of(&base, &current, &options, &anew.top[0].layout, &fresh_move_s);
        found = sum_of(&base, &current, &options, &again.top[0].layout, &move_s);
        cr_expect_leq(found, fresh * (1 + 1e-9), "seed %llu: %.9g, anew %.9g",
                      (unsigned long long)seed, found, fresh);
        cr_expect_float_eq(found / again.top[0].total, 1, 1e-9, "seed %llu",
                           (unsigned long long)seed);
        cr_expect_float_eq(move_s, again.top[0].move_s, 1e-9 * (1 + move_s));
        cr_expect(!again.repair.is_known || found <= again.repair.total * (1 + 1e-9),
                  "seed %llu: %.9g, the repair %.9g", (unsigned long long)seed, found,
                  again.repair.total);
        cr_expect(again.fresh.is_known);
        cr_expect_float_eq(again.fresh.total / fresh, 1, 1e-9, "seed %llu: %.9g, %.9g",
                           (unsigned long long)seed, again.fresh.total, fresh);
        for (size_t i = 1; i < again.n_top; i++) {
            cr_expect_geq(again.top[i].total, again.top[0].total);
        }
        cr_log_info("seed %llu: %g steps: %.4g s, move %.3g s; anew %.4g s, move %.3g s; repair "
                    "%.4g s, move %.3g s",
                    (unsigned long long)seed, options.steps_left, again.top[0].prediction.step_s,
                    move_s, anew.top[0].prediction.step_s, fresh_move_s, again.repair.step_s,
                    again.repair.move_s);
        hdt_layout_search_release(&anew);
        hdt_layout_search_release(&again);
    }
    hdt_layout_derived_release(&current);
    hdt_layout_search_release(&was);
    hdt_layout_release(&base);
    return ok;
}

Test(layout_again, is_no_worse_than_the_repair_and_the_fresh_plan, .timeout = 900)
{
    const char *first = getenv("HDT_TEST_SEED"), *count = getenv("HDT_TEST_CHANGES");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 20261130;
    int n = count ? (int)strtol(count, NULL, 10) : N_CHANGES, n_fit = 0;

    cr_log_info("seed %llu", (unsigned long long)seed);
    for (int i = 0; i < n; i++) {
        n_fit += change_try(seed + (uint64_t)i);
    }
    cr_expect_geq(n_fit, n / 2);
}

/* A cut comes after what can be made of the plan that runs: that is what there is then. */
static bool ends_at_once(void *ctx, const struct hdt_layout_progress *progress)
{
    (void)ctx;
    return progress->n_estimated == 0;
}

Test(layout_again, a_cut_search_has_the_repair)
{
    static const char cluster[] = FOUR("1gbit", "1gbit", "1gbit");
    struct hdt_layout_files current, base;
    struct hdt_layout_search_options options = {
        .current = &current, .without = {2}, .n_without = 1, .on_progress = ends_at_once};
    struct hdt_layout_search_result result;
    struct hdt_error err = {0};

    open_plan(cluster, TWICE(""), &current);
    open_job(cluster, JOB, &base);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    cr_expect(result.is_cut);
    cr_expect(result.repair.is_known);
    cr_expect(!result.fresh.is_known);
    cr_expect_eq(result.steps_left, HDT_LAYOUT_SEARCH_STEPS);
    cr_expect_leq(result.top[0].total, result.repair.total);
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
    hdt_layout_release(&current);
}
