/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Layouts whose gradients are added while the backward goes on, whose replicas share the optimizer,
 * and which offload to hosts: on made-up machines, whose steps can be reckoned by hand. Computing
 * takes whole seconds by a profile, memory and links that are not asked about take no time to speak
 * of.
 */
#include "src/base/buf.h"
#include "src/plan/layout_sim.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct hdt_stage_cost_constants bare = {.matrix_share = 1, .ring_share = 0.5};

/* V 1000, C 500, F 1000, heads of 100. Layer: 2,501,000; embedding 500,000; head 500,500. */
#define MODEL(layers)                                                                              \
 "{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":500,\"intermediate_size\":1000,"   \
 "\"num_hidden_layers\":" layers ",\"num_attention_heads\":5,\"max_position_embeddings\":1000,"    \
 "\"tie_word_embeddings\":false}"
#define WIDE(vocab, is_tied)                                                                       \
 "{\"model_type\":\"llama\",\"vocab_size\":" vocab                                                 \
 ",\"hidden_size\":500,\"intermediate_size\":1000,"                                                \
 "\"num_hidden_layers\":2,\"num_attention_heads\":5,\"max_position_embeddings\":1000,"             \
 "\"tie_word_embeddings\":" is_tied "}"
#define P (2 * 2501000.0 + 500000 + 500500)
#define G (4 * P) /* bytes of all gradients */

/* A micro-batch of one: a second forward, two backward. */
#define PROFILE                                                                                    \
 "{\"model\":\"tiny\",\"device\":\"X\",\"layers\":[{\"kind\":\"block\",\"times\":["                \
 "{\"tp\":1,\"micro_batch\":1,\"forward_s\":1,\"backward_s\":2}]}]}"

/* Nodes of two devices on 0.01 GB/s, and on 0.1 GB/s; inside 0.1 GB/s. */
#define CLUSTER(host)                                                                              \
 "devices:\n  - {name: X, compute: {bf16: 10000}, memory: {gb: 1000, gb_per_s: 1e6}}\n"            \
 "links:\n  - {name: fast, gb_per_s: 0.1}\n  - {name: slow, gb_per_s: 0.01}\n"                     \
 "sites:\n  - name: a\n    nodes:\n"                                                               \
 "      - {name: slow, count: 4, device: X, devices: 2, inside: fast, between: slow}\n"            \
 "      - {name: fast, count: 8, device: X, devices: 1, between: fast}\n"                          \
 "      - {name: h, count: 4, device: X, devices: 2, inside: fast, between: fast, host: " host     \
 "}\n"
#define NO_HOST CLUSTER("{}")

static void write_text(const char *name, const char *text)
{
    hdt_scratch_write(name, text, strlen(text));
}

static enum hdt_status try_open(const char *cluster, const char *layout,
                                struct hdt_layout_files *files, struct hdt_error *err)
{
    char *text = hdt_asprintf("cluster: cluster.yaml\n%sprofiles:\n"
                              "  - {file: profile.json}\nseq_len: 1000\n%s",
                              strstr(layout, "model: ") ? "" : "model: model.json\n", layout);
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    enum hdt_status status;

    hdt_scratch_init();
    /* Two stages of two chunks need four layers. */
    write_text("model.json", strstr(layout, "chunks") ? MODEL("4") : MODEL("2"));
    write_text("deep.json", MODEL("12"));
    write_text("tied.json", WIDE("100000", "true"));
    write_text("wide.json", WIDE("160000", "false"));
    write_text("profile.json", PROFILE);
    write_text("cluster.yaml", cluster);
    write_text("layout.yaml", text);
    status = hdt_layout_open(hdt_scratch_path("layout.yaml"), &instead, files, err);
    hdt_scratch_release();
    free(text);
    return status;
}

static double step_of(const char *cluster, const char *layout)
{
    struct hdt_layout_files files;
    struct hdt_error err = {0};
    struct hdt_layout_prediction p;

    cr_assert_eq(try_open(cluster, layout, &files, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_assert_eq(hdt_layout_predict(&files, &bare, &p, &err), HDT_OK, "%s", err.msg);
    hdt_layout_release(&files);
    return p.step_s;
}

/* The head's products and the device's own passes take a few milliseconds. */
static void expect_step(double got, double want)
{
    cr_expect_float_eq(got, want, 2e-3 * want, "%.9g s, not %.9g s", got, want);
}

#define TWO(nodes) "global_batch: 2\nstages:\n  - {layers: 2, on: [{nodes: " nodes ", count: 2}]}\n"
#define THREE(nodes)                                                                               \
 "global_batch: 3\nstages:\n  - {layers: 2, on: [{nodes: " nodes ", count: 3}]}\n"
#define OVERLAPPED "sync: overlapped\nsync_bucket: 1MiB\n"
#define BOTH       "sync: both\nsync_bucket: 1MiB\n"

/* A ring of three: 4/3 of the bytes. At 0.1 GB/s each of 23 buckets takes 14 ms, and its piece of
 * the backward 174 ms: only the last one shows. */
Test(layout_overlap, all_but_the_last_bucket_are_hidden)
{
    double ring_s = 4.0 / 3 * G / 0.1e9;

    cr_assert_eq(ceil(G / (1 << 20)), 23);
    expect_step(step_of(NO_HOST, THREE("fast")), 6 + ring_s);
    expect_step(step_of(NO_HOST, OVERLAPPED THREE("fast")), 6 + ring_s / 23);
}

/* Two trees over three: 3/2 of the bytes. */
Test(layout_overlap, buckets_go_by_trees)
{
    double trees_s = 1.5 * G / 0.1e9;

    expect_step(step_of(NO_HOST, "all_reduce: tree\n" THREE("fast")), 6 + trees_s);
    expect_step(step_of(NO_HOST, "all_reduce: tree\n" OVERLAPPED THREE("fast")), 6 + trees_s / 23);
}

/* Three micro-batches of 6 s here, one there: all wait for the first. One of two samples takes as
 * long as one of one, for the device's own figures add nothing. Two replicas send G each way. */
Test(layout_overlap, replicas_have_their_own_shares)
{
    static const char stages[] =
        "global_batch: 4\nstages:\n  - {layers: 2, on: [{nodes: fast, count: 2}]}\nreplicas:\n";
    char *number = hdt_asprintf("%s  - {micro_batches: 3}\n  - {micro_batches: 1}\n", stages);
    char *size =
        hdt_asprintf("%s  - {micro_batch: 2, micro_batches: 1}\n  - {micro_batches: 2}\n", stages);

    expect_step(step_of(NO_HOST, number), 18 + G / 0.1e9);
    expect_step(step_of(NO_HOST, size), 12 + G / 0.1e9);
    free(number);
    free(size);
}

/* A layer again in the backward of one stage: 1 s more. */
Test(layout_overlap, a_stage_recomputes_alone)
{
#define PIPE(first)                                                                                \
 "global_batch: 1\nstages:\n  - {layers: 1, " first                                                \
 "on: [{nodes: fast}]}\n  - {layers: 1, on: [{nodes: fast}]}\n"
    expect_step(step_of(NO_HOST, PIPE("recompute: full, ")) - step_of(NO_HOST, PIPE("")), 1);
    expect_step(step_of(NO_HOST, "recompute: full\n" PIPE("")) -
                    step_of(NO_HOST, "recompute: full\n" PIPE("recompute: none, ")),
                1);
#undef PIPE
}

/* By levels: buckets go between the nodes while the next ones are added inside, and the slow link
 * is busy from the first one on. */
Test(layout_overlap, a_slow_link_is_busy_from_the_first_bucket_on)
{
    /* Two on each of two nodes: (2 - 1) / 2 twice, on both levels. */
    const char *four = "global_batch: 4\nall_reduce: hierarchical\nstages:\n"
                       "  - {layers: 2, on: [{nodes: slow, count: 4}]}\n";
    char *overlapped = hdt_asprintf(OVERLAPPED "%s", four);
    double inside_s = G / 0.1e9, nodes_s = G / 0.01e9, piece_s = 4.0 / 23;

    expect_step(step_of(NO_HOST, four), 6 + inside_s + nodes_s);
    /* The first bucket's piece and its way inside, then all buckets between the nodes. */
    expect_step(step_of(NO_HOST, overlapped),
                2 + fmax(4 + (inside_s + nodes_s) / 23, piece_s + inside_s / 23 + nodes_s));
    free(overlapped);
}

/* Where all replicas are on one node the inside level is the ring: chunks of a stage share its
 * links, and so do messages of the pipeline. */
Test(layout_overlap, a_node_alone_has_one_level)
{
    static const char *const cluster =
        "devices:\n  - {name: X, compute: {bf16: 10000}, memory: {gb: 1000, gb_per_s: 1e6}}\n"
        "links:\n  - {name: own, gb_per_s: 0.001, latency_us: 1e4}\n"
        "sites:\n  - {name: a, nodes: [{name: n, device: X, devices: 4, inside: own}]}\n";
    static const char *const stages = "schedule: interleaved\nchunks: 2\nglobal_batch: 8\n"
                                      "stages:\n  - {layers: 2, on: [{nodes: n, count: 2}]}\n"
                                      "  - {layers: 2, on: [{nodes: n, count: 2}]}\n";
    static const char *const syncs[] = {"", OVERLAPPED};

    for (size_t i = 0; i < 2; i++) {
        char *ring = hdt_asprintf("all_reduce: ring\n%s%s", syncs[i], stages);
        char *levels = hdt_asprintf("all_reduce: hierarchical\n%s%s", syncs[i], stages);

        cr_expect_float_eq(step_of(cluster, levels), step_of(cluster, ring), 1e-9, "%s", syncs[i]);
        free(ring);
        free(levels);
    }
}

/* One bucket begins when all is computed. */
Test(layout_overlap, one_bucket_is_after)
{
    double after_s = step_of(NO_HOST, THREE("fast"));

    cr_expect_float_eq(step_of(NO_HOST, "sync: overlapped\nsync_bucket: 100MB\n" THREE("fast")),
                       after_s, 1e-9);
}

/* Whatever the order, the bucket and who steps on what: with one stage a node, whose replicas do
 * not share links with the pipeline. */
Test(layout_overlap, never_takes_longer)
{
    static const char *const orders[] = {"gpipe", "1f1b", "zb-h1", "interleaved\nchunks: 2"};
    static const char *const buckets[] = {"1MiB", "3MiB", "7MiB", "100MB"};

    for (size_t i = 0; i < 4 * 4 * 2; i++) {
        const char *order = orders[i % 4], *bucket = buckets[i / 4 % 4];
        const char *sharded = i / 16 ? "true" : "false";
        int layers = strstr(order, "chunks") ? 2 : 1;
        char *text = hdt_asprintf("schedule: %s\noptimizer: {sharded: %s}\nglobal_batch: 8\n"
                                  "stages:\n  - {layers: %d, on: [{nodes: fast, count: 2}]}\n"
                                  "  - {layers: %d, on: [{nodes: fast, count: 2}]}\n",
                                  order, sharded, layers, layers);
        char *overlapped = hdt_asprintf("sync: overlapped\nsync_bucket: %s\n%s", bucket, text);
        char *both = hdt_asprintf("sync: both\nsync_bucket: %s\n%s", bucket, text);
        double after_s = step_of(NO_HOST, text), overlapped_s = step_of(NO_HOST, overlapped);
        double both_s = step_of(NO_HOST, both);

        cr_expect(overlapped_s <= after_s + 1e-9, "%s, %s, sharded %s: %g s, not %g s", order,
                  bucket, sharded, overlapped_s, after_s);
        cr_expect(both_s <= overlapped_s + 1e-9, "%s, %s, sharded %s: %g s, not %g s", order,
                  bucket, sharded, both_s, overlapped_s);
        cr_expect(i / 16 || fabs(both_s - overlapped_s) < 1e-9, "%s: nothing is gathered", order);
        free(both);
        free(overlapped);
        free(text);
    }
}

/* Half a ring for gradients of 4 bytes, half a ring for weights of 2. */
Test(layout_overlap, shards_are_reduced_and_gathered)
{
    double half_s = 2.0 / 3 * G / 0.1e9;

    expect_step(step_of(NO_HOST, "optimizer: {sharded: true}\n" THREE("fast")), 6 + 1.5 * half_s);
    expect_step(step_of(NO_HOST, "optimizer: {sharded: true}\n" OVERLAPPED THREE("fast")),
                6 + half_s / 23 + half_s / 2);
}

/* The first forward, of 2 s, is cut into a piece for each bucket of weights: all but the first
 * bucket come while a piece before is computed. */
Test(layout_overlap, all_but_the_first_weights_are_hidden)
{
    double half_s = 2.0 / 3 * G / 0.1e9;

    cr_assert_eq(ceil(G / 2 / (1 << 20)), 12);
    expect_step(step_of(NO_HOST, "optimizer: {sharded: true}\n" BOTH THREE("fast")),
                6 + half_s / 23 + half_s / 2 / 12);
    /* One bucket is waited for as a whole, before the step and not behind it. */
    cr_expect_float_eq(
        step_of(NO_HOST,
                "optimizer: {sharded: true}\nsync: both\nsync_bucket: 100MB\n" THREE("fast")),
        step_of(NO_HOST, "optimizer: {sharded: true}\n" THREE("fast")), 1e-9);
}

/* Of 165 million parameters weights take 2.2 s and gradients 4.4: longer than the first forward and
 * the last backward, of which one piece each shows. */
Test(layout_overlap, weights_may_take_longer_than_the_forward)
{
    double params = 2 * 2501000.0 + 2 * 160000 * 500.0 + 500,
           gather_s = 2.0 / 3 * 2 * params / 0.1e9;
    double n_gathers = ceil(2 * params / (1 << 20)), n_sums = ceil(4 * params / (1 << 20));

    expect_step(
        step_of(NO_HOST, "model: wide.json\noptimizer: {sharded: true}\n" BOTH THREE("fast")),
        gather_s + 2 / n_gathers + 4 / n_sums + 2 * gather_s);
}

/* A second stage has its weights before it has something to compute. */
Test(layout_overlap, weights_of_a_later_stage_come_in_the_bubble)
{
    static const char stages[] = "global_batch: 2\noptimizer: {sharded: true}\nstages:\n"
                                 "  - {layers: 1, on: [{nodes: fast, count: 2}]}\n"
                                 "  - {layers: 1, on: [{nodes: fast, count: 2}]}\n";
    char *overlapped = hdt_asprintf(OVERLAPPED "%s", stages),
         *both = hdt_asprintf(BOTH "%s", stages);
    /* Halves of two replicas: of the first stage's 6 buckets one shows. */
    double gather_s = 0.5 * 2 * (2501000.0 + 500000) / 0.1e9;

    cr_assert_eq(ceil(2 * (2501000.0 + 500000) / (1 << 20)), 6);
    cr_expect_float_eq(step_of(NO_HOST, overlapped) - step_of(NO_HOST, both),
                       gather_s - gather_s / 6, 1e-3);
    free(overlapped);
    free(both);
}

/* ---- hosts ---- */

#define HOST       "{gb: 1, gb_per_s: 0.01, memory_gb_per_s: 0.1}"
#define FAST_HOST  "{gb: 1, gb_per_s: 0.01, memory_gb_per_s: 10}"
#define ONE(nodes) "global_batch: 1\nstages:\n  - {layers: 2, on: [{nodes: " nodes "}]}\n"

/* Gradients go down; the step reads and writes 8 + 16 + 4 + 2 bytes a parameter while weights of 2
 * come up, and the longer of both counts. */
Test(layout_overlap, optimizer_on_the_host)
{
    double down_s = G / 0.01e9, host_s = 30 * P / 0.1e9, up_s = 2 * P / 0.01e9;

    cr_assert_gt(host_s, up_s);
    expect_step(step_of(CLUSTER(HOST), "offload: optimizer\n" ONE("h")), 6 + down_s + host_s);
    expect_step(step_of(CLUSTER(FAST_HOST), "offload: optimizer\n" ONE("h")), 6 + down_s + up_s);
    expect_step(step_of(CLUSTER(HOST), "offload: optimizer\n" OVERLAPPED ONE("h")),
                6 + down_s / 23 + host_s);
}

/* Two replicas of a node step on the same processors; when they share the optimizer, each half. */
Test(layout_overlap, devices_of_a_node_share_its_host)
{
    double ring_s = G / 0.1e9, down_s = G / 0.01e9, host_s = 30 * P / 0.1e9;

    expect_step(step_of(CLUSTER(HOST), "offload: optimizer\n" TWO("h")),
                6 + ring_s + down_s + 2 * host_s);
    expect_step(step_of(CLUSTER(HOST), "offload: optimizer\noptimizer: {sharded: true}\n" TWO("h")),
                6 + ring_s / 2 + down_s / 2 + host_s + ring_s / 4);
}

#define GPIPE(nodes)                                                                               \
 "schedule: gpipe\nglobal_batch: 4\nstages:\n  - {layers: 2, on: [{nodes: " nodes "}]}\n"
/* Bytes of a micro-batch: 2 layers of 17 T C + 2.5 NH T^2 values of 2. */
#define SLOT (2 * 2 * (17 * 1000 * 500 + 2.5 * 5 * 1e6))

/* 84e6 bytes are 0.84 s at 0.1 GB/s, less than any computation: nothing shows. At 0.01 GB/s they
 * are 8.4 s. Downs end at 10.4, 18.8, 27.2; forward 3 waits for the first and, since the first
 * micro-batch is asked back before it, for the second: it runs from 18.8 on. Ups end at 27.2, 35.6,
 * 44 and 52.4, and the last backward 4 s later. */
Test(layout_overlap, activations_on_the_host)
{
    cr_assert_float_eq(SLOT, 84e6, 1);
    expect_step(step_of(NO_HOST, GPIPE("h")), 24);
    expect_step(step_of(CLUSTER("{gb: 1, gb_per_s: 0.1}"), "offload: activations\n" GPIPE("h")),
                24);
    expect_step(step_of(CLUSTER("{gb: 1, gb_per_s: 0.01}"), "offload: activations\n" GPIPE("h")),
                56.4);
}

/* In 1F1B each way has a forward and a backward: 6 s. Bytes of a micro-batch, with the stage's
 * input, take 2.83 s, 5 s, 5.86 s. 24 micro-batches and 5 more to fill six stages, whose messages
 * take 10 ms each: 29 x 6 s, and 10 messages until the first gradients are back, and some later. */
Test(layout_overlap, activations_have_a_forward_and_a_backward_to_go)
{
    static const char *const rates[] = {"0.03", "0.017", "0.0145"};
    static const char *const layout =
        "model: deep.json\nschedule: 1f1b\nglobal_batch: 24\nstages:\n"
        "  - {layers: 2, on: [{nodes: h}]}\n  - {layers: 2, on: [{nodes: h}]}\n"
        "  - {layers: 2, on: [{nodes: h}]}\n  - {layers: 2, on: [{nodes: h}]}\n"
        "  - {layers: 2, on: [{nodes: h}]}\n  - {layers: 2, on: [{nodes: h}]}\n";
    double without_s = step_of(NO_HOST, layout);

    cr_expect(without_s >= 174.1 && without_s < 175, "%g", without_s);
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        char *cluster = hdt_asprintf("%.*s{gb: 4, gb_per_s: %s}}\n", (int)(strlen(NO_HOST) - 4),
                                     NO_HOST, rates[i]);
        char *offloaded = hdt_asprintf("offload: activations\n%s", layout);

        expect_step(step_of(cluster, offloaded), without_s);
        free(cluster);
        free(offloaded);
    }
}

/* The most that a rank has in the simulation is what its classes say, and less than without. */
Test(layout_overlap, memory_over_time_and_by_class_agree)
{
    static const char *const cases[] = {
        "offload: both\n" GPIPE("h"),
        "offload: activations\noptimizer: {moments: bf16}\n" GPIPE("h"),
        "offload: both\nschedule: interleaved\nchunks: 2\nglobal_batch: 8\nstages:\n"
        "  - {layers: 2, on: [{nodes: h}]}\n  - {layers: 2, on: [{nodes: h}]}\n"};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hdt_layout_files files;
        struct hdt_layout_sim *sim;
        struct hdt_sim_result result;
        struct hdt_error err = {0};

        cr_assert_eq(try_open(CLUSTER(HOST), cases[i], &files, &err), HDT_OK, "%s", err.msg);
        cr_assert_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_OK, "%s", err.msg);
        cr_assert_eq(hdt_sim_run(hdt_layout_sim_setup(sim), &result, &err), HDT_OK, "%s", err.msg);
        for (size_t k = 0; k < result.n_ranks; k++) {
            const struct hdt_stage_cost_memory *m = &hdt_layout_sim_rank(sim, k)->memory;

            /* Chunks of a rank do not have their most at the same time. */
            cr_expect((double)result.ranks[k].mem_peak <= m->total + 64 &&
                          (i == 2 || (double)result.ranks[k].mem_peak >= m->total - 64),
                      "case %zu rank %zu: %lld, not %.0f", i, k,
                      (long long)result.ranks[k].mem_peak, m->total);
            cr_expect_float_eq((double)result.ranks[k].mem_last, m->total - m->activations, 64,
                               "case %zu rank %zu", i, k);
        }
        if (i == 0) {
            const struct hdt_stage_cost_memory *m = &hdt_layout_sim_rank(sim, 0)->memory;

            cr_expect_float_eq(m->activations, 3 * SLOT, 1);
            cr_expect_float_eq(m->host_activations, 4 * SLOT, 1);
            cr_expect_float_eq(m->host_optimizer, 16 * P, 1);
            cr_expect_float_eq(m->moments + m->master, 0, 1e-9);
        }
        hdt_sim_result_release(&result);
        hdt_layout_sim_close(sim);
        hdt_layout_release(&files);
    }
}

/* One message each, with the line. The first line of a layout here is its sixth. */
Test(layout_overlap, refusals)
{
    static const struct {
        const char *host, *layout, *where, *words;
    } cases[] = {
        {"{gb_per_s: 1}", "offload: activations\n" GPIPE("h"), ":6:", "host.gb of nodes 'h'"},
        {"{gb: 1}", "offload: activations\n" GPIPE("h"), ":6:", "host.gb_per_s of nodes 'h'"},
        {"{gb: 1, gb_per_s: 1}", "offload: both\n" GPIPE("h"), ":6:", "host.memory_gb_per_s"},
        {HOST,
         "global_batch: 1\nstages:\n  - {layers: 2, offload: optimizer, on: [{nodes: fast}]}\n",
         ":8:", "stage 0 cannot offload"},
        {HOST,
         "offload: activations\nschedule: zb-h1\nglobal_batch: 1\nstages:\n"
         "  - {layers: 2, on: [{nodes: h}]}\n",
         ":6:", "schedule zb-h1 needs activations twice"},
        {HOST, "sync: sometimes\n" ONE("h"), ":6:", "sometimes"},
        {HOST, "optimizer: {moments: int4}\n" ONE("h"), ":6:", "int4"},
        {HOST, "sync_bucket: 10KiB\n" ONE("h"), ":6:", "sync_bucket"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *cluster =
            hdt_asprintf("%.*s%s}\n", (int)(strlen(NO_HOST) - 4), NO_HOST, cases[i].host);
        struct hdt_layout_files files;
        struct hdt_error err = {0};

        cr_assert_eq(try_open(cluster, cases[i].layout, &files, &err), HDT_EINVAL, "case %zu", i);
        cr_expect(strstr(err.where, cases[i].where), "case %zu: %s: %s", i, err.where, err.msg);
        cr_expect(strstr(err.msg, cases[i].words), "case %zu: %s: %s", i, err.where, err.msg);
        free(cluster);
    }
}

/* V 100000: first and last stage add 50e6 gradients of 4 bytes, 2 s, and only then those go down,
 * 20 s. The rest of a stage's, 10e6 bytes, goes down beside the last backward but for its last
 * bucket, or after. Both step on the same processors: 105e6 parameters. */
Test(layout_overlap, a_tied_table_goes_down_when_it_is_added)
{
    static const char *const layout = "model: tied.json\noffload: optimizer\nglobal_batch: 1\n"
                                      "stages:\n  - {layers: 1, on: [{nodes: h}]}\n"
                                      "  - {layers: 1, on: [{nodes: h}]}\n";
    double host_s = 30 * (2 * 50e6 + 2 * 2501000.0) / 0.1e9, rest_s = 4 * 2501000.0 / 0.01e9;
    char *overlapped = hdt_asprintf(OVERLAPPED "%s", layout);
    const char *cluster = CLUSTER("{gb: 4, gb_per_s: 0.01, memory_gb_per_s: 0.1}");

    expect_step(step_of(cluster, layout), 6.02 + 2 + 20 + rest_s + host_s);
    expect_step(step_of(cluster, overlapped), 6.02 + 2 + 20 + rest_s / 201 + host_s);
    free(overlapped);
}

/* 4 micro-batches of 84e6 bytes and 16 P bytes are 0.40237 GiB. */
Test(layout_overlap, a_host_that_is_too_small)
{
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_error err = {0};

    cr_assert_eq(try_open(CLUSTER("{gb: 0.4, gb_per_s: 1, memory_gb_per_s: 1}"),
                          "offload: both\n" GPIPE("h"), &files, &err),
                 HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_EINVAL);
    cr_expect(strstr(err.where, "layout.yaml:6:"), "%s", err.where);
    cr_expect(strstr(err.msg, "nodes 'h' has 0.4 GiB for it and would need 0.4024"), "%s", err.msg);
    hdt_layout_release(&files);
}

/* 165,002,500 gradients of 4 bytes are 630 buckets, each of them two tasks of 16000 replicas, which
 * have a forward and a backward besides. */
Test(layout_overlap, buckets_of_all_replicas_have_a_limit)
{
    const char *cluster =
        "devices:\n  - {name: X, compute: {bf16: 10000}, memory: {gb: 1000, gb_per_s: 1e6}}\n"
        "links:\n  - {name: fast, gb_per_s: 0.1}\n"
        "sites:\n  - {name: a, nodes: [{name: n, count: 16000, device: X, devices: 1, between: fast}]}\n";
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_error err = {0};

    cr_assert_eq(try_open(cluster,
                          "model: wide.json\n" OVERLAPPED "global_batch: 16000\nstages:\n"
                          "  - {layers: 2, on: [{nodes: n, count: 16000}]}\n",
                          &files, &err),
                 HDT_OK, "%s: %s", err.where, err.msg);
    cr_assert_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_EINVAL);
    cr_expect(strstr(err.where, "layout.yaml:"), "%s", err.where);
    cr_expect(strstr(err.msg, "stage 0, 20192000 tasks are more than 20000000"), "%s", err.msg);
    hdt_layout_release(&files);
}
