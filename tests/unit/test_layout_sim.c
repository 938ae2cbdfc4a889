/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Layouts on made-up machines, whose steps can be reckoned by hand: computing takes whole seconds
 * by a profile, memory and links that are not asked about take no time to speak of.
 */
#include "src/plan/layout_sim.h"
#include "src/base/buf.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Nothing that a run spends beside the profile and the wire. */
static const struct hdt_stage_cost_constants bare = {.matrix_share = 1, .ring_share = 0.5};

/* V 1000, C 500, F 1000, heads of 125. Layer: 500 x 500 x 4 of the attention, 3 x 500 x 1000, two
 * norms of 500: 2,501,000. Embedding 500,000; head as much and a norm: 500,500. */
#define MODEL(layers)                                                                              \
 "{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":500,\"intermediate_size\":1000,"   \
 "\"num_hidden_layers\":" layers ",\"num_attention_heads\":4,\"max_position_embeddings\":1000,"    \
 "\"tie_word_embeddings\":false}"
#define GRADS_2_LAYERS (4.0 * (2 * 2501000 + 500000 + 500500)) /* bytes */

/* A micro-batch of one: a second forward, two backward. At degree 4 0.4 s and 0.8 s. */
#define PROFILE                                                                                    \
 "{\"model\":\"tiny\",\"device\":\"X\",\"layers\":[{\"kind\":\"block\",\"times\":["                \
 "{\"tp\":1,\"micro_batch\":1,\"forward_s\":1,\"backward_s\":2},"                                  \
 "{\"tp\":4,\"micro_batch\":1,\"forward_s\":0.4,\"backward_s\":0.8}]}]}"

/* The rate of a node's link: 0.01 GB/s. Rates inside: 0.1 GB/s where it is asked for. */
#define DEVICE                                                                                     \
 "devices:\n  - {name: X, compute: {bf16: 10000}, memory: {gb: 1000, gb_per_s: 1e6}}\n"
#define LINKS                                                                                      \
 "links:\n  - {name: fast, gb_per_s: 1e5}\n  - {name: slow, gb_per_s: 0.01}\n"                     \
 "  - {name: sold, gb_per_s: 0.01, nominal: true}\n  - {name: inside, gb_per_s: 0.1}\n"            \
 "  - {name: half, gb_per_s: 0.01, duplex: half}\n"
#define ONE_SITE(between)                                                                          \
 DEVICE LINKS                                                                                      \
     "sites:\n  - {name: a, nodes: [{name: n, count: 8, device: X, devices: 4, inside: fast, "     \
     "between: " between "}]}\n"
/* 8 mbit are 1e6 bytes a second. */
#define TWO_SITES(wan)                                                                                     \
 DEVICE LINKS                                                                                              \
     "sites:\n"                                                                                            \
     "  - {name: a, nodes: [{name: n, count: 4, device: X, devices: 4, inside: inside, between: slow}]}\n" \
     "  - {name: b, nodes: [{name: n, count: 4, device: X, devices: 4, inside: inside, between: slow}]}\n" \
     "wan:\n  - {from: a, to: b, " wan "}\n"

static void write_text(const char *name, const char *text)
{
    hdt_scratch_write(name, text, strlen(text));
}

static void open_with_profile(const char *profile, const char *model, const char *cluster,
                              const char *layout, struct hdt_layout_files *files)
{
    char *text = hdt_asprintf("cluster: cluster.yaml\nmodel: model.json\nprofiles:\n"
                              "  - {file: profile.json}\nseq_len: 1000\n%s",
                              layout);
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    struct hdt_error err = {0};

    hdt_scratch_init();
    write_text("model.json", model);
    write_text("profile.json", profile);
    write_text("cluster.yaml", cluster);
    write_text("layout.yaml", text);
    cr_assert_eq(hdt_layout_open(hdt_scratch_path("layout.yaml"), &instead, files, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    hdt_scratch_release();
    free(text);
}

static void open_layout(const char *model, const char *cluster, const char *layout,
                        struct hdt_layout_files *files)
{
    open_with_profile(PROFILE, model, cluster, layout, files);
}

static double step_of_files(struct hdt_layout_files *files)
{
    struct hdt_error err = {0};
    struct hdt_layout_prediction p;

    cr_assert_eq(hdt_layout_predict(files, &bare, &p, &err), HDT_OK, "%s", err.msg);
    hdt_layout_release(files);
    return p.step_s;
}

static double step_of(const char *model, const char *cluster, const char *layout)
{
    struct hdt_layout_files files;

    open_layout(model, cluster, layout, &files);
    return step_of_files(&files);
}

/* What is fast above takes a few milliseconds together: the head's products, the optimizer. */
static void expect_step(double got, double want)
{
    cr_expect_float_eq(got, want, 2e-3 * want, "%.9g s, not %.9g s", got, want);
}

#define TWO_STAGES "stages:\n  - {layers: 1, on: [{nodes: n}]}\n  - {layers: 1, on: [{nodes: n}]}\n"

/* 1F1B: the last stage works all the time but for one forward and one backward of the first. */
Test(layout_sim, pipeline_fills_and_drains)
{
    expect_step(step_of(MODEL("2"), ONE_SITE("fast"), "global_batch: 4\n" TWO_STAGES),
                (4 + 2 - 1) * 3);
}

/* Degree 2 is not measured: 0.2 + 0.8 / tp through 1 and 0.4, so 0.6 s and 1.2 s. */
Test(layout_sim, degrees_between)
{
    expect_step(step_of(MODEL("2"), ONE_SITE("fast"),
                        "global_batch: 1\nstages:\n  - {layers: 2, on: [{nodes: n, tp: 2}]}\n"),
                2 * (0.6 + 1.2));
}

/* Interleaved with two chunks has half the bubble (Narayanan et al. 2021): (m + 1/2) x 3 x 2. */
Test(layout_sim, interleaved_halves_the_bubble)
{
    const char *stages = "stages:\n  - {layers: 2, on: [{nodes: n}]}\n"
                         "  - {layers: 2, on: [{nodes: n}]}\n";
    char *plain = hdt_asprintf("global_batch: 4\n%s", stages);
    char *chunks = hdt_asprintf("global_batch: 4\nschedule: interleaved\nchunks: 2\n%s", stages);

    expect_step(step_of(MODEL("4"), ONE_SITE("fast"), plain), (4 + 1) * 6);
    expect_step(step_of(MODEL("4"), ONE_SITE("fast"), chunks), (4 + 0.5) * 6);
    free(plain);
    free(chunks);
}

/* A message is 1000 x 500 x 2 bytes. With a codec of half of it: 1 s there, 0.5 s on the wire, 0.1
 * s of the round trip, 1 s here; forward and back. Then a round trip for the norm. */
#define ACROSS                                                                                     \
 "stages:\n  - {layers: 1, on: [{site: a, nodes: n}]}\n"                                           \
 "  - {layers: 1, on: [{site: b, nodes: n}]}\n"
#define HALF "wan: {codec_ratio: 0.5, codec_gb_per_s: 0.001}\n"
Test(layout_sim, edge_between_sites)
{
    expect_step(
        step_of(MODEL("2"), TWO_SITES("rate: 8mbit, rtt_ms: 200"), "global_batch: 1\n" HALF ACROSS),
        2 * 3 + 2 * (1 + 0.5 + 0.1 + 1) + 0.2);
}

/* What is lost is sent again. */
Test(layout_sim, edge_with_loss)
{
    expect_step(
        step_of(MODEL("2"), TWO_SITES("rate: 8mbit, loss: 0.2"), "global_batch: 1\n" ACROSS),
        2 * 3 + 2 * (1 / 0.8));
}

/* Two replicas share the way: 2 s for each message. Groups of four make messages whole: two rounds
 * of 3/4 of one in the first stage's forward, two in its backward, one in the last stage's forward.
 * Then stage by stage both add gradients over 0.01 GB/s, at the same time but on links of other
 * nodes: (2
 * - 1) / 2 x 2 = 1 time the bytes. */
Test(layout_sim, replicas_share_the_wan)
{
    double last = 4.0 * (2501000 + 500500); /* the larger one */
    double rounds_s = 5 * 0.75 * 1e6 / 0.1e9;

    expect_step(step_of(MODEL("2"), TWO_SITES("rate: 8mbit"),
                        "global_batch: 2\nstages:\n"
                        "  - {layers: 1, on: [{site: a, nodes: n, count: 2, tp: 4}]}\n"
                        "  - {layers: 1, on: [{site: b, nodes: n, count: 2, tp: 4}]}\n"),
                2 * 1.2 + 2 * 2 + rounds_s + last / 0.01e9);
}

/* A ring of three nodes: 2 x 2 / 3 of the bytes over each node's link; of one that is nominal half
 * of the rate is had. */
#define THREE "global_batch: 3\nstages:\n  - {layers: 2, on: [{nodes: n, count: 3, tp: 4}]}\n"
Test(layout_sim, ring_of_nodes)
{
    double ring_s = 2.0 * 2 / 3 * GRADS_2_LAYERS / 0.01e9;

    expect_step(step_of(MODEL("2"), ONE_SITE("slow"), THREE), 2 * 1.2 + ring_s);
    expect_step(step_of(MODEL("2"), ONE_SITE("sold"), THREE), 2 * 1.2 + 2 * ring_s);
}

#define BY_TREES(n)                                                                                \
 "all_reduce: tree\nglobal_batch: " n "\nstages:\n  - {layers: 2, on: [{nodes: n, count: " n       \
 ", tp: 4}]}\n"
/* Two trees over three: 0-2-1 and 1-0-2, half of the bytes up and down each edge: nodes 0 and 2
 * send three halves. Over four 0-2-{1, 3} and 3-1-{2, 0}: node 2 sends three of the first and one
 * of the second, and so it is for whoever has two children. With 0.1 s for a hop, 3 edges to the
 * root of eight, and back: 0.6 s, where a ring has 14 hops. */
Test(layout_sim, trees_of_nodes)
{
    double bytes_s = GRADS_2_LAYERS / 0.01e9;
    const char *far = DEVICE "links:\n  - {name: fast, gb_per_s: 1e5}\n"
                             "  - {name: far, gb_per_s: 0.01, latency_us: 100000}\n"
                             "sites:\n  - {name: a, nodes: [{name: n, count: 8, device: X, "
                             "devices: 4, inside: fast, between: far}]}\n";

    expect_step(step_of(MODEL("2"), ONE_SITE("slow"), BY_TREES("2")), 2 * 1.2 + bytes_s);
    expect_step(step_of(MODEL("2"), ONE_SITE("slow"), BY_TREES("3")), 2 * 1.2 + 1.5 * bytes_s);
    expect_step(step_of(MODEL("2"), ONE_SITE("sold"), BY_TREES("3")), 2 * 1.2 + 2 * 1.5 * bytes_s);
    expect_step(step_of(MODEL("2"), ONE_SITE("slow"), BY_TREES("4")), 2 * 1.2 + 2 * bytes_s);
    expect_step(step_of(MODEL("2"), far, BY_TREES("8")), 2 * 1.2 + 2 * bytes_s + 6 * 0.1);
    expect_step(step_of(MODEL("2"), far,
                        "all_reduce: ring\nglobal_batch: 8\nstages:\n"
                        "  - {layers: 2, on: [{nodes: n, count: 8, tp: 4}]}\n"),
                2 * 1.2 + 2 * 7.0 / 8 * bytes_s + 14 * 0.1);
}

/* Two replicas on a node are a chain, and trees go over the four nodes. Alone on a node two
 * replicas send all bytes to each other, of four those between carry them twice each way. Up and
 * down again are three hops in such a node, and an edge of two nodes, two of three. */
#define CLOSE                                                                                      \
 DEVICE "links:\n  - {name: near, gb_per_s: 0.1, latency_us: 100000}\n"                            \
        "  - {name: far, gb_per_s: 0.01, latency_us: 1000000}\n"                                   \
        "sites:\n  - {name: a, nodes: [{name: n, count: 8, device: X, devices: 4, "                \
        "inside: near, between: far}]}\n"
#define BY_TREES_OF(tp, n)                                                                         \
 "all_reduce: tree\nglobal_batch: " n "\nstages:\n  - {layers: 2, on: [{nodes: n, count: " n       \
 ", tp: " tp "}]}\n"
Test(layout_sim, trees_with_chains_in_nodes)
{
    double near_s = GRADS_2_LAYERS / 0.1e9, far_s = GRADS_2_LAYERS / 0.01e9;

    expect_step(step_of(MODEL("2"), ONE_SITE("slow"), BY_TREES_OF("2", "8")),
                2 * (0.6 + 1.2) + 2 * far_s);
    expect_step(step_of(MODEL("2"), CLOSE, BY_TREES_OF("1", "2")), 6 + near_s + 2 * 0.1);
    expect_step(step_of(MODEL("2"), CLOSE, BY_TREES_OF("1", "4")), 6 + 2 * near_s + 2 * 3 * 0.1);
    expect_step(step_of(MODEL("2"), CLOSE, BY_TREES_OF("1", "8")), 6 + far_s + 2 * (3 * 0.1 + 1));
    expect_step(step_of(MODEL("2"), CLOSE, BY_TREES_OF("1", "12")),
                6 + 1.5 * far_s + 2 * (3 * 0.1 + 2 * 1));
}

/* What goes both ways goes one after the other: of two nodes each link has all bytes out and in, by
 * trees as by a ring. Of a ring of three it is 4 / 3 each way, and by trees three halves. */
Test(layout_sim, half_duplex_carries_both_ways)
{
    double bytes_s = GRADS_2_LAYERS / 0.01e9;

    expect_step(
        step_of(MODEL("2"), ONE_SITE("half"),
                "global_batch: 2\nstages:\n  - {layers: 2, on: [{nodes: n, count: 2, tp: 4}]}\n"),
        2 * 1.2 + 2 * bytes_s);
    expect_step(step_of(MODEL("2"), ONE_SITE("half"), BY_TREES("2")), 2 * 1.2 + 2 * bytes_s);
    expect_step(step_of(MODEL("2"), ONE_SITE("half"), THREE), 2 * 1.2 + 2 * 4.0 / 3 * bytes_s);
    expect_step(step_of(MODEL("2"), ONE_SITE("half"), BY_TREES("3")), 2 * 1.2 + 3 * bytes_s);
}

/* A ring through two sites crosses the way between them once in each direction, and twice when it
 * goes there and back and there again. */
#define FOUR(first, second, third, fourth)                                                         \
 "all_reduce: ring\nglobal_batch: 4\nstages:\n  - layers: 2\n    on:\n"                            \
 "      - {site: " first ", nodes: n, tp: 4}\n      - {site: " second ", nodes: n, tp: 4}\n"       \
 "      - {site: " third ", nodes: n, tp: 4}\n      - {site: " fourth ", nodes: n, tp: 4}\n"
Test(layout_sim, ring_that_crosses_a_link_twice)
{
    double ring_s = 2 * 3.0 / 4 * GRADS_2_LAYERS / 1e6;

    expect_step(step_of(MODEL("2"), TWO_SITES("rate: 8mbit"), FOUR("a", "a", "b", "b")),
                2 * 1.2 + ring_s);
    expect_step(step_of(MODEL("2"), TWO_SITES("rate: 8mbit"), FOUR("a", "b", "a", "b")),
                2 * 1.2 + 2 * ring_s);
}

/* A stage without layers between two others has nothing to add. Four messages of 1e6 bytes, of
 * which the last stage's gradient shares its way with the sum of that stage. */
Test(layout_sim, stage_without_gradients)
{
    static const char *const ways[] = {"ring", "hierarchical", "tree"};

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        char *layout = hdt_asprintf("all_reduce: %s\nglobal_batch: 2\nstages:\n"
                                    "  - {layers: 1, on: [{nodes: n, count: 2, tp: 4}]}\n"
                                    "  - {layers: 0, on: [{nodes: n, count: 2, tp: 4}]}\n"
                                    "  - {layers: 1, on: [{nodes: n, count: 2, tp: 4}]}\n",
                                    ways[i]);

        expect_step(step_of(MODEL("2"), ONE_SITE("slow"), layout),
                    2 * 1.2 + 5 * 1e6 / 0.01e9 + 4.0 * 3001000 / 0.01e9);
        free(layout);
    }
}

/* What is counted are the bytes that are sent, however slowly. Of a nominal link inside a node half
 * of the rate is had, too: 2 x 3 / 4 of the bytes at 0.05 GB/s. */
Test(layout_sim, nominal_links)
{
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_sim_result result;
    struct hdt_error err;
    const char *inside = DEVICE "links:\n  - {name: own, gb_per_s: 0.1, nominal: true}\n"
                                "sites:\n  - {name: a, nodes: [{name: n, device: X, devices: 4, "
                                "inside: own}]}\n";

    open_layout(MODEL("2"), ONE_SITE("sold"), THREE, &files);
    cr_assert_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_sim_run(hdt_layout_sim_setup(sim), &result, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < result.n_links; i++) {
        cr_expect_float_eq(result.links[i].bytes, 2.0 * 2 / 3 * GRADS_2_LAYERS, 1, "%s",
                           hdt_layout_sim_link(sim, i)->from);
        expect_step(result.links[i].busy_s, 2 * 2.0 * 2 / 3 * GRADS_2_LAYERS / 0.01e9);
    }
    hdt_sim_result_release(&result);
    hdt_layout_sim_close(sim);
    hdt_layout_release(&files);
    expect_step(step_of(MODEL("2"), inside,
                        "global_batch: 4\nstages:\n  - {layers: 2, on: [{nodes: n, count: 4}]}\n"),
                6 + 2.0 * 3 / 4 * GRADS_2_LAYERS / 0.05e9);
}

/* Two sites, a replica at each: both gradients cross, in pieces of half of them. The curve has
 * 0.001 GB/s at 1 MB, which is a message of 1000 tokens, and 0.005 GB/s at a piece. */
#define GRADS_TEXT "12005000" /* GRADS_2_LAYERS / 2 */
#define CURVE                                                                                      \
 DEVICE "links:\n  - {name: fast, gb_per_s: 1e5}\n"                                                \
        "  - {name: far, rates: [{points: [{bytes: 1MB, gb_per_s: 0.001}, "                        \
        "{bytes: " GRADS_TEXT ", gb_per_s: 0.005}]}]}\n"                                           \
        "sites:\n"                                                                                 \
        "  - {name: a, nodes: [{name: n, count: 4, device: X, devices: 1, between: fast}]}\n"      \
        "  - {name: b, nodes: [{name: n, count: 4, device: X, devices: 1, between: fast}]}\n"      \
        "wan:\n  - {from: a, to: b, link: far}\n"
Test(layout_sim, ring_has_the_rate_of_its_pieces)
{
    double want = 6 + GRADS_2_LAYERS / 0.005e9;

    expect_step(step_of(MODEL("2"), CURVE,
                        "global_batch: 2\nstages:\n  - layers: 2\n    on:\n"
                        "      - {site: a, nodes: n}\n      - {site: b, nodes: n}\n"),
                want);
}

/* Trees halve the bytes, however many they are over. 0 at one site, 1 and 2 at the other: 0-2-1 and
 * 1-0-2 have three halves on the way between them. */
Test(layout_sim, trees_have_the_rate_of_halves)
{
    expect_step(step_of(MODEL("2"), CURVE,
                        "all_reduce: tree\nglobal_batch: 3\nstages:\n  - layers: 2\n    on:\n"
                        "      - {site: a, nodes: n}\n      - {site: b, nodes: n, count: 2}\n"),
                6 + 1.5 * GRADS_2_LAYERS / 0.005e9);
}

/* Two replicas: all bytes each way, and what is lost again; up and down are a round trip, the norm
 * is one. Two at each site: 0-2-{1, 3} and 3-1-{2, 0} cross with four halves each way, and a leaf
 * is two crossings from its root. */
Test(layout_sim, trees_over_two_sites)
{
    const char *cluster = TWO_SITES("rate: 8mbit, rtt_ms: 200, loss: 0.2");
    double bytes_s = GRADS_2_LAYERS / 0.8 / 1e6;

    expect_step(step_of(MODEL("2"), cluster,
                        "all_reduce: tree\nglobal_batch: 2\nstages:\n  - layers: 2\n    on:\n"
                        "      - {site: a, nodes: n, tp: 4}\n      - {site: b, nodes: n, tp: 4}\n"),
                2 * 1.2 + bytes_s + 0.2 + 0.2);
    expect_step(step_of(MODEL("2"), cluster,
                        "all_reduce: tree\nglobal_batch: 4\nstages:\n  - layers: 2\n    on:\n"
                        "      - {site: a, nodes: n, count: 2, tp: 4}\n"
                        "      - {site: b, nodes: n, count: 2, tp: 4}\n"),
                2 * 1.2 + 2 * bytes_s + 0.4 + 0.2);
}

/* Two stages on two nodes, two replicas of each on a node: between the nodes each of a stage's two
 * devices there sends half of a half. The curve has 0.005 GB/s at that, 0.004 at half of it. The
 * last stage begins when it has computed, two seconds before the first one: from then on the
 * nodes' links are busy. */
#define SHARES                                                                                     \
 DEVICE "links:\n  - {name: fast, gb_per_s: 1e5}\n"                                                \
        "  - {name: far, rates: [{points: [{bytes: 1500500, gb_per_s: 0.004}, "                    \
        "{bytes: 3001000, gb_per_s: 0.005}]}]}\n"                                                  \
        "sites:\n  - name: a\n    nodes:\n"                                                        \
        "      - {name: m, device: X, devices: 4, inside: fast, between: far}\n"                   \
        "      - {name: n, device: X, devices: 4, inside: fast, between: far}\n"
Test(layout_sim, devices_of_a_stage_share_its_bytes)
{
    expect_step(step_of(MODEL("2"), SHARES,
                        "all_reduce: hierarchical\nglobal_batch: 4\nstages:\n"
                        "  - layers: 1\n    on: [{nodes: m, count: 2}, {nodes: n, count: 2}]\n"
                        "  - layers: 1\n    on: [{nodes: m, count: 2}, {nodes: n, count: 2}]\n"),
                4 + GRADS_2_LAYERS / 0.005e9);
}

/* By levels: in each node two replicas share out and gather, (2 - 1) / 2 x 2 of the bytes at 0.1
 * GB/s; between the two nodes of a site the same over 0.01 GB/s; between the sites the same over
 * 1e7 bytes a second, and two rounds of 0.1 s; then a round trip for the norm. `sync_ratio` is of
 * what goes between sites. */
#define LEVELS                                                                                     \
 "global_batch: 8\nstages:\n  - layers: 2\n    on:\n"                                              \
 "      - {site: a, nodes: n, count: 4, tp: 1}\n      - {site: b, nodes: n, count: 4, tp: 1}\n"
Test(layout_sim, all_reduce_by_levels)
{
    const char *cluster = TWO_SITES("rate: 80mbit, rtt_ms: 200");
    char *small = hdt_strdup(cluster), *at = small;
    double G = GRADS_2_LAYERS;

    while ((at = strstr(at, "devices: 4"))) { /* nodes of two devices */
        at[9] = '2';
    }
    expect_step(step_of(MODEL("2"), small, LEVELS), 6 + G / 0.1e9 + G / 0.01e9 + G / 1e7 + 0.4);
    expect_step(step_of(MODEL("2"), small, "wan: {sync_ratio: 0.25}\n" LEVELS),
                6 + G / 0.1e9 + G / 0.01e9 + 0.25 * G / 1e7 + 0.4);
    free(small);
}

/* Three sites in a row, 1e7 bytes a second from a to b and 1e6 from b to c, whose frames relay at b
 * from a to c. */
#define IN_A_ROW                                                                                   \
 DEVICE LINKS                                                                                      \
     "sites:\n"                                                                                    \
     "  - {name: a, nodes: [{name: n, count: 4, device: X, devices: 4, inside: fast, between: "    \
     "fast}]}\n"                                                                                   \
     "  - {name: b, nodes: [{name: n, count: 4, device: X, devices: 4, inside: fast, between: "    \
     "fast}]}\n"                                                                                   \
     "  - {name: c, nodes: [{name: n, count: 4, device: X, devices: 4, inside: fast, between: "    \
     "fast}]}\n"                                                                                   \
     "wan:\n  - {from: a, to: b, rate: 80mbit, rtt_ms: 20}\n"                                      \
     "  - {from: b, to: c, rate: 8mbit, rtt_ms: 200}\n  - {from: a, to: c, via: b}\n"
/* For all a codec of half, 1e6 bytes a second; none from a to b; a quarter at 2e6 from c to b. */
#define ITS_OWN                                                                                    \
 "wan:\n  codec_ratio: 0.5\n  codec_gb_per_s: 0.001\n  links:\n"                                   \
 "    - {from: a, to: b, codec_ratio: 1, codec_gb_per_s: 0}\n"                                     \
 "    - {from: c, to: b, codec_ratio: 0.25, codec_gb_per_s: 0.002}\n"

/* A frame by itself, there: coded, on the wire, half a round trip, decoded. */
static double frame_s(double ratio, double codec_bytes_per_s, double bytes_per_s, double rtt_s)
{
    const double bytes = 1000.0 * 500 * 2;

    return 2 * bytes / codec_bytes_per_s + ratio * bytes / bytes_per_s + rtt_s / 2;
}

Test(layout_sim, each_link_has_its_codec)
{
    double near_s = frame_s(1, INFINITY, 1e7, 0.02), far_s = frame_s(0.25, 2e6, 1e6, 0.2);
    double relayed_s = frame_s(0.5, 1e6, 1e6, 0.22); /* at the pace of the slower leg */

    cr_expect_float_eq(near_s, 0.11, 1e-12);
    cr_expect_float_eq(far_s, 1.35, 1e-12);
    expect_step(step_of(MODEL("3"), IN_A_ROW,
                        "global_batch: 1\n" ITS_OWN "stages:\n"
                        "  - {layers: 1, on: [{site: a, nodes: n}]}\n"
                        "  - {layers: 1, on: [{site: b, nodes: n}]}\n"
                        "  - {layers: 1, on: [{site: c, nodes: n}]}\n"),
                3 * 3 + 2 * (near_s + far_s) + 0.22);
    expect_step(step_of(MODEL("2"), IN_A_ROW,
                        "global_batch: 1\n" ITS_OWN "stages:\n"
                        "  - {layers: 1, on: [{site: a, nodes: n}]}\n"
                        "  - {layers: 1, on: [{site: c, nodes: n}]}\n"),
                2 * 3 + 2 * relayed_s + 0.22);
}

/* A ring over three sites: two thirds of the bytes twice over each hop, and all hops take as long
 * as the slowest: from b to c a quarter of them at 1e6 bytes a second, from c to a a half at 2e6,
 * from a to b all at 1e7. Links carry what their codecs leave. */
#define AROUND                                                                                     \
 DEVICE LINKS "sites:\n"                                                                           \
              "  - {name: a, nodes: [{name: n, count: 1, device: X, devices: 1}]}\n"               \
              "  - {name: b, nodes: [{name: n, count: 1, device: X, devices: 1}]}\n"               \
              "  - {name: c, nodes: [{name: n, count: 1, device: X, devices: 1}]}\n"               \
              "wan:\n  - {from: a, to: b, rate: 80mbit}\n  - {from: b, to: c, rate: 8mbit}\n"      \
              "  - {from: c, to: a, rate: 16mbit}\n"
#define SUMS                                                                                       \
 "global_batch: 3\nwan:\n  links:\n    - {from: b, to: c, sync_ratio: 0.25}\n"                     \
 "    - {from: a, to: c, sync_ratio: 0.5}\nstages:\n  - layers: 2\n    on:\n"                      \
 "      - {site: a, nodes: n}\n      - {site: b, nodes: n}\n      - {site: c, nodes: n}\n"
Test(layout_sim, sums_have_the_codec_of_each_link)
{
    static const struct {
        const char *from, *to;
        double ratio, bytes_per_s;
    } hops[] = {{"a", "b", 1, 1e7}, {"b", "c", 0.25, 1e6}, {"c", "a", 0.5, 2e6}};
    double part = 2.0 * 2 / 3 * GRADS_2_LAYERS, slowest_s = 0;
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_sim_result result;
    struct hdt_error err = {0};
    int n_seen = 0;

    for (int i = 0; i < 3; i++) {
        slowest_s = fmax(slowest_s, part * hops[i].ratio / hops[i].bytes_per_s);
    }
    expect_step(step_of(MODEL("2"), AROUND, SUMS), 2 * 3 + slowest_s);
    open_layout(MODEL("2"), AROUND, SUMS, &files);
    cr_assert_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_sim_run(hdt_layout_sim_setup(sim), &result, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < result.n_links; i++) {
        const struct hdt_layout_link *link = hdt_layout_sim_link(sim, i);

        for (int k = 0; k < 3; k++) {
            if (strcmp(link->from, hops[k].from) == 0 && strcmp(link->to, hops[k].to) == 0) {
                n_seen++;
                cr_expect_float_eq(result.links[i].bytes, part * hops[k].ratio, 1, "%s -> %s: %g",
                                   link->from, link->to, result.links[i].bytes);
            }
        }
    }
    cr_expect_eq(n_seen, 3);
    hdt_sim_result_release(&result);
    hdt_layout_sim_close(sim);
    hdt_layout_release(&files);
}

/* Micro-batches that are kept: all, those of the stages behind, and in zero-bubble those of the
 * first stage everywhere. */
Test(layout_sim, schedules_keep_what_they_do)
{
    static const struct {
        const char *schedule;
        int64_t first, last;
    } cases[] = {{"gpipe", 6, 6}, {"1f1b", 2, 1}, {"zb-h1", 2, 2}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text = hdt_asprintf("global_batch: 6\nschedule: %s\n" TWO_STAGES, cases[i].schedule);
        struct hdt_layout_files files;
        struct hdt_layout_sim *sim;
        struct hdt_error err;

        open_layout(MODEL("2"), ONE_SITE("fast"), text, &files);
        cr_assert_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_OK, "%s", err.msg);
        cr_expect_eq(hdt_layout_sim_rank(sim, 0)->n_in_flight, cases[i].first, "%s",
                     cases[i].schedule);
        cr_expect_eq(hdt_layout_sim_rank(sim, 1)->n_in_flight, cases[i].last, "%s",
                     cases[i].schedule);
        hdt_layout_sim_close(sim);
        hdt_layout_release(&files);
        free(text);
    }
}

/* The most that a rank has in the simulation is what its classes say. */
Test(layout_sim, memory_over_time_and_by_class_agree)
{
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_sim_result result;
    struct hdt_error err;

    open_layout(MODEL("2"), ONE_SITE("fast"), "global_batch: 6\n" TWO_STAGES, &files);
    cr_assert_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_sim_run(hdt_layout_sim_setup(sim), &result, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < result.n_ranks; i++) {
        cr_expect_float_eq((double)result.ranks[i].mem_peak,
                           hdt_layout_sim_rank(sim, i)->memory.total, 64);
    }
    hdt_sim_result_release(&result);
    hdt_layout_sim_close(sim);
    hdt_layout_release(&files);
}

static double activations_of(const char *model, const char *layout)
{
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_error err;
    double bytes;

    open_layout(model, ONE_SITE("fast"), layout, &files);
    cr_assert_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_OK, "%s", err.msg);
    bytes = hdt_layout_sim_rank(sim, 0)->memory.activations;
    hdt_layout_sim_close(sim);
    hdt_layout_release(&files);
    return bytes;
}

/* Of a layer, T 1000, C 500 and 4 heads, values of 2 bytes: 17 T C and 2.5 NH T^2; the latter are 4
 * bytes a row when the attention is fused, and none are kept when they are computed again. */
Test(layout_sim, attention_that_is_kept)
{
    const char *one = "global_batch: 1\nstages: [{layers: 1, on: [{nodes: n}]}]\n";
    char *fused = hdt_asprintf("attention: fused\n%s", one);
    char *again = hdt_asprintf("recompute: selective\n%s", one);

    cr_expect_float_eq(activations_of(MODEL("1"), one), 2 * (17 * 5e5 + 2.5 * 4e6), 1);
    cr_expect_float_eq(activations_of(MODEL("1"), fused), 2 * 17 * 5e5 + 4 * 4e3, 1);
    cr_expect_float_eq(activations_of(MODEL("1"), again), 2 * 17 * 5e5, 1);
    free(fused);
    free(again);
}

/* Two chunks of a layer: T C for its input and T C for the chunk's in each of at most 4 + 4 places,
 * and 18.5e6 values of the one layer that is at work. */
Test(layout_sim, one_layer_is_at_work)
{
    double bytes = activations_of(
        MODEL("4"), "global_batch: 4\nrecompute: full\nschedule: interleaved\nchunks: 2\nstages:\n"
                    "  - {layers: 2, on: [{nodes: n}]}\n  - {layers: 2, on: [{nodes: n}]}\n");
    double places = (bytes - 2 * 18.5e6) / (2 * 2 * 5e5);

    cr_expect_float_eq(places, round(places), 1e-6);
    cr_expect(places >= 4 && places <= 8, "%g places", places);
}

/* All that hdt-worker --profile writes counts: forward and backward of the embedding 0.25 and 0.5
 * s, of two layers 1 and 2, of the head 3 and 4 s, a forward again 0.75 s, and 1 us a parameter. */
#define WHOLE_PROFILE                                                                              \
 "{\"model\":\"tiny\",\"device\":\"X\",\"optimizer_s_per_param\":1e-6,\"layers\":["                \
 "{\"kind\":\"embedding\",\"times\":[{\"tp\":1,\"micro_batch\":1,\"forward_s\":0.25,"              \
 "\"backward_s\":0.5}]},"                                                                          \
 "{\"kind\":\"block\",\"times\":[{\"tp\":1,\"micro_batch\":1,\"forward_s\":1,"                     \
 "\"backward_s\":2,\"recompute_s\":0.75}]},"                                                       \
 "{\"kind\":\"head\",\"times\":[{\"tp\":1,\"micro_batch\":1,\"forward_s\":3,"                      \
 "\"backward_s\":4}]}]}"
Test(layout_sim, whole_profile_counts)
{
    struct hdt_layout_files files;

    open_with_profile(WHOLE_PROFILE, MODEL("2"), ONE_SITE("fast"),
                      "recompute: full\nglobal_batch: 1\nstages: [{layers: 2, on: [{nodes: n}]}]\n",
                      &files);
    expect_step(step_of_files(&files),
                0.25 + 2 * 1 + 3 + 4 + 2 * (2 + 0.75) + 0.5 + 1e-6 * GRADS_2_LAYERS / 4);
}

/* Four replicas over one link on which a message alone takes 0.25 s. Two micro-batches of a replica
 * are under way, each for a forward, a message, a forward and a backward, a message, a backward: 6
 * s and two messages, so that one takes 3.25 s when messages are alone and 4 s when four meet each
 * time. They do when nothing sets replicas apart; else they meet at first and no more soon after.
 */
Test(layout_sim, replicas_drift_apart)
{
    struct hdt_stage_cost_constants apart = bare;
    struct hdt_layout_files files;
    struct hdt_layout_prediction p;
    struct hdt_error err = {0};
    const char *layout = "global_batch: 256\nstages:\n"
                         "  - {layers: 1, on: [{site: a, nodes: n, count: 4, tp: 1}]}\n"
                         "  - {layers: 1, on: [{site: b, nodes: n, count: 4, tp: 1}]}\n";

    open_layout(MODEL("2"), TWO_SITES("rate: 32mbit"), layout, &files);
    cr_assert_eq(hdt_layout_predict(&files, &bare, &p, &err), HDT_OK, "%s", err.msg);
    cr_expect_geq(p.step_s, 64 * 4.0);
    apart.drift = 0.02;
    cr_assert_eq(hdt_layout_predict(&files, &apart, &p, &err), HDT_OK, "%s", err.msg);
    cr_expect(p.step_s > 64 * 3.25 && p.step_s < 64 * 3.6, "%g s", p.step_s);
    hdt_layout_release(&files);
}

/* 32 stages with 65536 micro-batches: 2 x 32 computations and 31 messages there and back, each of
 * two halves with two ends, are 312 tasks of a micro-batch, 20.4 million. With one half 12.3. */
Test(layout_sim, too_many_tasks)
{
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_error err = {0};
    struct hdt_buf text = {0};

    hdt_buf_appendf(&text, "global_batch: 65536\nexchange: paired\nstages:\n");
    for (int i = 0; i < 32; i++) {
        hdt_buf_appendf(&text, "  - {layers: %d, on: [{nodes: n}]}\n", i < 2);
    }
    open_layout(MODEL("2"), ONE_SITE("fast"), hdt_buf_str(&text), &files);
    cr_expect_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "20447232 tasks are more than 20000000"), "%s", err.msg);
    hdt_layout_release(&files);
    hdt_buf_release(&text);
}

/* Of 1000 micro-batches of 65536 samples: 37 MB each of two layers. 4.8e15 bytes, and a sequence of
 * a million tokens has a thousand times as many and more. */
#define LONG_MODEL                                                                                 \
 "{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":500,\"intermediate_size\":1000,"   \
 "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"max_position_embeddings\":16777216,"         \
 "\"tie_word_embeddings\":false}"
Test(layout_sim, absurd_memory)
{
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_error err = {0};

    open_layout(LONG_MODEL, ONE_SITE("fast"),
                "micro_batch: 65536\nglobal_batch: 65536000\n"
                "stages: [{layers: 2, on: [{nodes: n}]}]\n",
                &files);
    files.layout.seq_len = 1000000;
    cr_expect_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "stage 0 needs"), "%s", err.msg);
    hdt_layout_release(&files);
}

/* Links of two sites whose nodes have one name are told apart. */
Test(layout_sim, links_have_their_site_in_their_name)
{
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_error err = {0};
    size_t n;

    open_layout(MODEL("2"), TWO_SITES("rate: 8mbit"), "global_batch: 1\n" ACROSS, &files);
    cr_assert_eq(hdt_layout_sim_open(&files, &bare, &sim, &err), HDT_OK, "%s", err.msg);
    n = hdt_layout_sim_setup(sim)->n_links;
    for (size_t i = 0; i < n; i++) {
        const struct hdt_layout_link *one = hdt_layout_sim_link(sim, i);

        cr_expect(one->to[0] || strncmp(one->from, "a.n.0", 5) == 0 ||
                      strncmp(one->from, "b.n.0", 5) == 0,
                  "%s", one->from);
        for (size_t k = 0; k < i; k++) {
            const struct hdt_layout_link *two = hdt_layout_sim_link(sim, k);

            cr_expect(strcmp(one->from, two->from) != 0 || strcmp(one->to, two->to) != 0, "%s",
                      one->from);
        }
    }
    hdt_layout_sim_close(sim);
    hdt_layout_release(&files);
}
