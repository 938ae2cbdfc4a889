/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/cluster_file.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct hdt_devices catalogue;

static void setup(void)
{
    struct hdt_error err = {0};

    cr_assert_eq(hdt_devices_load(CATALOGUE, &catalogue, &err), HDT_OK, "%s", err.msg);
}

static void teardown(void)
{
    hdt_devices_release(&catalogue);
}

TestSuite(cluster_file, .init = setup, .fini = teardown);

static enum hdt_status parse(const char *text, struct hdt_cluster_file *cluster,
                             struct hdt_error *err)
{
    return hdt_cluster_file_parse(text, strlen(text), "c.yaml", &catalogue, cluster, err);
}

static bool is_near(double got, double want)
{
    return fabs(got - want) <= 1e-9 * fabs(want);
}

/* ---- curves ---- */

/* A link in a cluster that is otherwise as small as one can be. */
static enum hdt_status curve_parse(const char *link, struct hdt_cluster_file *cluster,
                                   struct hdt_error *err)
{
    char text[2048];

    snprintf(text, sizeof(text),
             "sites: [{name: a, nodes: [{device: H100, devices: 1}]}]\nlinks:\n  - %s\n", link);
    return parse(text, cluster, err);
}

static double message_s(const struct hdt_link_curve *link, double bytes, int64_t devices)
{
    return link->latency_us / 1e6 + bytes / hdt_link_curve_bytes_per_s(link, bytes, devices);
}

static void curve_expect(const char *link, double bytes, int64_t devices, double want_s)
{
    struct hdt_cluster_file cluster;
    struct hdt_error err = {0};
    double got;

    cr_assert_eq(curve_parse(link, &cluster, &err), HDT_OK, "%s: %s", err.where, err.msg);
    got = message_s(cluster.links.items, bytes, devices);
    cr_expect(is_near(got, want_s), "%s, %g bytes, %lld devices: %.12g, not %.12g", link, bytes,
              (long long)devices, got, want_s);
    hdt_cluster_file_release(&cluster);
}

Test(cluster_file, a_flat_link_is_latency_and_rate)
{
    curve_expect("{name: l, latency_us: 5, gb_per_s: 2}", 1e6, 3, 5e-6 + 0.5e-3);
}

/* Points as published for two nodes of eight 400 Gbit/s cards (average milliseconds of a transfer):
 * 4 KiB 0.042, 1 MiB 0.072, 128 MiB 2.790. */
#define POINTS                                                                                     \
 "{name: l, rates: [{points: [{bytes: 4KiB, gb_per_s: 0.0975238095238095},"                        \
 " {bytes: 1MiB, gb_per_s: 14.5635555555556}, {bytes: 128MiB, gb_per_s: 48.1067125448029}]}]}"

Test(cluster_file, between_points_time_is_a_line)
{
    curve_expect(POINTS, 4096, 1, 0.042e-3);
    curve_expect(POINTS, 1048576, 1, 0.072e-3);
    /* Half way between 1 MiB and 128 MiB: half way between the times. */
    curve_expect(POINTS, (1048576.0 + 134217728.0) / 2, 1, (0.072e-3 + 2.790e-3) / 2);
    curve_expect(POINTS, 100, 1, 0.042e-3);           /* as the smallest */
    curve_expect(POINTS, 268435456, 1, 2 * 2.790e-3); /* at the rate of the largest */
}

/* The coefficients that were fitted to us-central1 - us-west1. By hand at x = 0: 0.37597 GB/s; at
 * x = 4 (16 MB): -0.00656 + 0.22464 + 0.37597 = 0.59405. */
#define FIT "{name: l, rates: [{fit: {a: -0.00041, b: 0.05616, c: 0.37597}}]}"

Test(cluster_file, a_fitted_curve_is_its_polynomial)
{
    curve_expect(FIT, 1e6, 1, 1e6 / 0.37597e9);
    curve_expect(FIT, 16e6, 1, 16e6 / 0.59405e9);
    curve_expect(FIT, 1e3, 1, 1e6 / 0.37597e9); /* as the smallest that it was fitted to */
}

/* A node's cards by how many devices send: published for a GH200 node, 22.9, 45.7 and 92.6 GB/s for
 * 1, 2 and 4. For 3 the line gives 69.15. */
#define SHARED                                                                                     \
 "{name: l, rates: [{devices: 1, gb_per_s: 22.9}, {devices: 2, gb_per_s: 45.7},"                   \
 " {devices: 4, gb_per_s: 92.6}]}"

Test(cluster_file, devices_share_a_card)
{
    curve_expect(SHARED, 1e9, 1, 1 / 22.9);
    curve_expect(SHARED, 1e9, 2, 1 / 45.7);
    curve_expect(SHARED, 1e9, 3, 1 / 69.15);
    curve_expect(SHARED, 1e9, 4, 1 / 92.6);
    curve_expect(SHARED, 1e9, 8, 1 / 92.6);
}

/* ---- whole files ---- */

struct bad {
    const char *text;
    const char *where, *msg, *hint; /* place and message as they are, a part of the hint */
};

#define A_B                                                                                        \
 "sites:\n"                                                                                        \
 "  - {name: a, nodes: [{device: H100, devices: 1}]}\n"                                            \
 "  - {name: b, nodes: [{device: A100, devices: 1}]}\n"
#define A_B_C A_B "  - {name: c, nodes: [{device: A100, devices: 1}]}\n"

static const struct bad bad_files[] = {
    {"sites:\n  - name: a\n    nodes:\n      - device: H1000\n", "c.yaml:4:17",
     "unknown device 'H1000'", "did you mean 'H100'?"},
    {"sites:\n  - name: a\n    nodes:\n      - {device: H100, devices: 0}\n", "c.yaml:4:33",
     "cannot set 'sites[0].nodes[0].devices': 0 is too small", "allowed: 1 to 1024"},
    {"sites:\n  - name: a\n    nodes:\n      - {device: H100, count: 2}\n", "c.yaml:4:9",
     "site 'a' has several nodes, but 'H100' no link between", "give between"},
    {"sites:\n  - name: a\n    nodes:\n      - {device: MI300A, devices: 4}\n", "c.yaml:4:9",
     "nodes of 4 'MI300A' have no link inside", "give inside"},
    {"links: [{name: lan, gb_per_s: 1}]\nsites:\n  - name: a\n    nodes:\n"
     "      - {device: H100, count: 2, between: wan}\n",
     "c.yaml:5:43", "there is no link 'wan'", "did you mean 'lan'?"},
    {A_B, "c.yaml:3:5", "there is no link from site 'a' to site 'b'", "via"},
    {A_B "wan:\n  - {from: a, to: b, rate: 1gbit, both_ways: false}\n", "c.yaml:5:3",
     "there is no link from site 'b' to site 'a'", "via"},
    {A_B "wan:\n  - {from: a, to: b}\n", "c.yaml:5:5", "the link from 'a' to 'b' has no rate",
     "1gbit"},
    {A_B "wan:\n  - {from: a, to: b, rate: 1gbit, via: a}\n", "c.yaml:5:5",
     "the link from 'a' to 'b' has more than one of rate, link and via", ""},
    {A_B "wan:\n  - {from: a, to: c, rate: 1gbit}\n", "c.yaml:5:19", "there is no site 'c'", ""},
    {A_B "wan:\n  - {from: a, to: b, rate: 1gbit}\n  - {from: b, to: a, rate: 2gbit}\n",
     "c.yaml:6:5", "there are two links from 'b' to 'a'", "both_ways: false"},
    {A_B "wan:\n  - {from: a, to: b, rate: 1gbit, loss: 2}\n", "c.yaml:5:41",
     "cannot set 'wan[0].loss': 2 is too large", "allowed: 0 to 0.9"},
    {A_B "wan:\n  - {from: a, to: a, rate: 1gbit}\n", "c.yaml:5:19", "site 'a' is both ends", ""},
    {A_B_C "wan:\n  - {from: a, to: b, via: c}\n  - {from: a, to: c, via: b}\n"
           "  - {from: b, to: c, rate: 1gbit}\n",
     "c.yaml:6:27", "the relays from 'a' to 'b' run in a circle, or over more than 16 links",
     "'c' must reach"},
    {A_B "wan:\n  - {from: a, to: b, via: a}\n", "c.yaml:5:27",
     "the relays from 'a' to 'b' run in a circle, or over more than 16 links", ""},
    {"links: [{name: l}]\nsites: [{name: a}]\n", "c.yaml:1:9", "the link 'l' has no rate", "rates"},
    {"links:\n - name: l\n   rates:\n    - gb_per_s: 1\n      points: [{bytes: 1, gb_per_s: 1}]\n"
     "sites: [{name: a}]\n",
     "c.yaml:4:7", "there is more than one rate", "one of gb_per_s, points and fit"},
    {"links:\n - name: l\n   rates:\n    - points:\n      - {bytes: 2KiB, gb_per_s: 1}\n"
     "      - {bytes: 1KiB, gb_per_s: 1}\nsites: [{name: a}]\n",
     "c.yaml:6:9", "the sizes of points must ascend", "sort"},
    {"links:\n - name: l\n   rates:\n    - points:\n      - {bytes: 1KiB, gb_per_s: 1}\n"
     "      - {bytes: 2KiB, gb_per_s: 9}\nsites: [{name: a}]\n",
     "c.yaml:6:9", "this message takes less time than the smaller one before it", "GB/s"},
    {"links:\n - name: l\n   rates:\n    - fit: {a: 0, b: 1, c: 1, min_bytes: 1KB}\n"
     "sites: [{name: a}]\n",
     "c.yaml:4:12", "the curve falls to no rate at all within its range", "min_bytes"},
    {"links:\n - name: l\n   rates:\n    - fit: {a: 0, b: 1}\nsites: [{name: a}]\n", "c.yaml:4:12",
     "the curve lacks a coefficient", "a, b and c"},
    {"sites: []\n", "c.yaml:1:8", "there are 0 sites, allowed are 1 to 1024", "a small cluster"},
    {"sites: [{name: a}, {name: a}]\n", "c.yaml:1:27", "'a' is the name of two sites", ""},
    {"devices: [{name: X}, {name: x}]\nsites: [{name: a}]\n", "c.yaml:1:29",
     "the name 'x' is given twice, first to 'X'", ""},
};

Test(cluster_file, refuses_with_place_cause_and_remedy)
{
    for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
        struct hdt_cluster_file cluster;
        struct hdt_error err = {0};

        cr_assert_eq(parse(bad_files[i].text, &cluster, &err), HDT_EINVAL, "%s", bad_files[i].text);
        cr_expect_str_eq(err.where, bad_files[i].where, "%s: %s", err.where, err.msg);
        cr_expect_str_eq(err.msg, bad_files[i].msg);
        cr_expect(strstr(err.hint, bad_files[i].hint), "%s: %s", err.msg, err.hint);
    }
}

Test(cluster_file, takes_devices_of_its_own_first)
{
    static const char text[] =
        "devices: [{name: H100, memory: {gb: 64}, link: {gb_per_s: 10}}]\n"
        "links: [{name: lan, gb_per_s: 1}, {name: lab, gb_per_s: 2}]\n"
        "sites: [{name: a, nodes: [{device: h100, devices: 2, between: lab},\n"
        " {device: A100-80GB, count: 3, memory_gb: 70, between: lan}]}]\n";
    struct hdt_cluster_file cluster;
    struct hdt_error err = {0};
    const struct hdt_cluster_file_nodes *own, *theirs;

    cr_assert_eq(parse(text, &cluster, &err), HDT_OK, "%s: %s", err.where, err.msg);
    own = hdt_cluster_file_nodes(hdt_cluster_file_site(&cluster, 0), 0);
    theirs = hdt_cluster_file_nodes(hdt_cluster_file_site(&cluster, 0), 1);
    cr_expect_str_eq(own->name, "h100");
    cr_expect_eq(hdt_cluster_file_memory_bytes(own), 64 * 1073741824.0);
    cr_expect_eq(hdt_cluster_file_memory_bytes(theirs), 70 * 1073741824.0);
    cr_expect(is_near(message_s(own->inside, 1e9, 2), 0.1));
    cr_expect_eq(theirs->device, hdt_devices_find(&catalogue, "A100-SXM4-80GB"));
    cr_expect(is_near(message_s(theirs->inside, 300e9, 8), 1)); /* NVLink 3 */
    cr_expect_eq(hdt_cluster_file_n_devices(&cluster), 2 + 3 * 8);
    hdt_cluster_file_release(&cluster);
}

Test(cluster_file, a_way_adds_up_its_legs)
{
    static const char text[] =
        A_B_C "wan:\n"
              "  - {from: a, to: c, rate: 800mbit, rtt_ms: 40, loss: 0.1, price_per_gb: 0.02}\n"
              "  - {from: c, to: b, rate: 8gbit, rtt_ms: 5, loss: 0.2, price_per_gb: 0.05}\n"
              "  - {from: a, to: b, via: c}\n";
    struct hdt_cluster_file cluster;
    struct hdt_cluster_file_path path;
    struct hdt_error err = {0};

    cr_assert_eq(parse(text, &cluster, &err), HDT_OK, "%s: %s", err.where, err.msg);
    hdt_cluster_file_path(&cluster, 0, 1, &path);
    cr_assert_eq(path.n_legs, 2);
    cr_expect_eq(hdt_cluster_file_leg_bytes_per_s(path.legs[0], 1e6), 1e8);
    cr_expect_eq(hdt_cluster_file_leg_bytes_per_s(path.legs[1], 1e6), 1e9);
    cr_expect(!path.reversed[0] && !path.reversed[1]);
    cr_expect(is_near(path.rtt_s, 0.045));
    cr_expect(is_near(path.loss, 1 - 0.9 * 0.8));
    cr_expect(is_near(path.price_per_gb, 0.07));
    hdt_cluster_file_path(&cluster, 1, 0, &path); /* and back, by both_ways */
    cr_assert_eq(path.n_legs, 2);
    cr_expect_eq(path.legs[0]->rate, 8000000000ull);
    cr_expect(path.reversed[0] && path.reversed[1]);
    hdt_cluster_file_path(&cluster, 0, 2, &path);
    cr_expect_eq(path.n_legs, 1);
    hdt_cluster_file_release(&cluster);
}

/* The clusters of published measurements load, and say what was published. */
Test(cluster_file, published_clusters_load)
{
    struct hdt_cluster_file cluster;
    struct hdt_error err = {0};
    const struct hdt_cluster_file_site *site;

    cr_assert_eq(hdt_cluster_file_load(CLUSTERS "/gh200.yaml", &catalogue, &cluster, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    cr_expect_eq(hdt_cluster_file_n_devices(&cluster), 256);
    hdt_cluster_file_release(&cluster);
    cr_assert_eq(hdt_cluster_file_load(CLUSTERS "/rtx.yaml", &catalogue, &cluster, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    site = hdt_cluster_file_site(&cluster, 0);
    cr_expect(is_near(message_s(hdt_cluster_file_nodes(site, 1)->between, 2.86e9, 1), 1));
    cr_expect(is_near(message_s(hdt_cluster_file_nodes(site, 2)->between, 0.115e9, 1), 1));
    hdt_cluster_file_release(&cluster);
    cr_assert_eq(hdt_cluster_file_load(CLUSTERS "/gcp.yaml", &catalogue, &cluster, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    cr_expect_eq(hdt_cluster_file_n_devices(&cluster), 32 + 96 + 32);
    site = hdt_cluster_file_site(&cluster, 0);
    cr_expect(is_near(message_s(hdt_cluster_file_nodes(site, 1)->between, 1e9, 4), 1 / 5.79));
    hdt_cluster_file_release(&cluster);
    cr_assert_eq(hdt_cluster_file_load(CLUSTERS "/amp.yaml", &catalogue, &cluster, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    cr_expect_eq(hdt_cluster_file_n_devices(&cluster), 16);
    hdt_cluster_file_release(&cluster);
}
