/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What `hdt plan LAYOUT.yaml` makes of its command line, and what it says of a plan that it has:
 * what leaves a site, what moves, the file it writes. */
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/cli/layout_plan.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL                                                                                      \
 "{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":512,\"intermediate_size\":1024,"   \
 "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"max_position_embeddings\":1024,"             \
 "\"tie_word_embeddings\":false}"
#define CLUSTER                                                                                     \
 "devices:\n"                                                                                       \
 "  - {name: X, compute: {bf16: 10}, memory: {gb: 10, gb_per_s: 1000}}\n"                           \
 "links:\n  - {name: fast, gb_per_s: 100}\n  - {name: net, gb_per_s: 10}\n"                         \
 "sites:\n"                                                                                         \
 "  - {name: a, nodes: [{name: n, count: 4, device: X, devices: 2, inside: fast, between: net}]}\n" \
 "  - {name: b, nodes: [{name: n, count: 4, device: X, devices: 2, inside: fast, between: net}]}\n" \
 "wan:\n  - {from: a, to: b, rate: 1gbit, rtt_ms: 10}\n"
#define HEAD                                                                                       \
 "cluster: cluster.yaml\nmodel: model.json\nseq_len: 1024\nglobal_batch: 8\nattention: fused\n"

/* Parameters of a layer: 4 x 512 x 512, 3 x 512 x 1024, two norms of 512. */
#define LAYER_PARAMS 2622464.0
/* bf16, fp32 and two moments. */
#define STATE_BYTES 14.0

static void setup(void)
{
    hdt_scratch_init();
    hdt_scratch_write("model.json", MODEL, strlen(MODEL));
    hdt_scratch_write("cluster.yaml", CLUSTER, strlen(CLUSTER));
}

TestSuite(layout_plan, .init = setup, .fini = hdt_scratch_release);

static void open_layout(const char *name, const char *text, struct hdt_layout_files *files)
{
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    struct hdt_error err = {0};

    hdt_scratch_write(name, text, strlen(text));
    cr_assert_eq(hdt_layout_open(hdt_scratch_path(name), &instead, files, &err), HDT_OK, "%s: %s",
                 err.where, err.msg);
}

static void open_job(const char *text, struct hdt_layout_files *files)
{
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    struct hdt_error err = {0};

    hdt_scratch_write("job.yaml", text, strlen(text));
    cr_assert_eq(hdt_layout_open_job(hdt_scratch_path("job.yaml"), &instead, files, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
}

/* ---- the command line ---- */

Test(layout_plan, pins_name_layers_from_1)
{
    char *pins[] = {"layers=embed,head,2-3 site=b", "site=a layers=4"}, *gone[] = {"a"};
    struct hdt_layout_plan_args args = {.pins = {pins, 2}, .without = {gone, 1}};
    struct hdt_layout_search_options o;
    struct hdt_layout_files files;
    struct hdt_error err = {0};

    open_job(HEAD "schedule: 1f1b\nsync_bucket: 2MiB\n", &files);
    cr_assert_eq(hdt_layout_plan_options(&args, &files, &o, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(o.n_pins, 3);
    cr_expect_eq(o.pins[0].parts, HDT_LAYOUT_PIN_LAYERS);
    cr_expect_eq(o.pins[0].first_layer, 1);
    cr_expect_eq(o.pins[0].last_layer, 2);
    cr_expect_eq(o.pins[1].parts, HDT_LAYOUT_PIN_EMBED | HDT_LAYOUT_PIN_HEAD);
    cr_expect_eq(o.pins[1].site_idx, 1);
    cr_expect_eq(o.pins[2].first_layer, 3);
    cr_expect_eq(o.pins[2].site_idx, 0);
    cr_expect_eq(o.n_without, 1);
    cr_expect_eq(o.without[0], 0);
    /* What the file says is kept; codecs are only searched when they are asked for. */
    cr_expect_eq(o.keep, HDT_LAYOUT_KEEP_SCHEDULE | HDT_LAYOUT_KEEP_SYNC | HDT_LAYOUT_KEEP_CODEC);
    hdt_layout_release(&files);
}

Test(layout_plan, pins_that_cannot_be)
{
    static const struct {
        char *pin;
        const char *why;
    } cases[] = {
        {"layers=embed", "lacks site="},          {"site=a", "lacks layers="},
        {"layers=5 site=a", "fewer layers"},      {"layers=0 site=a", "a number or a range"},
        {"layers=3-2 site=a", "or a range"},      {"layers=body site=a", "embed, head"},
        {"layers=1 site=c", "no site 'c'"},       {"layers=1 site=a site=b", "once each"},
        {"layers=1 place=a site=a", "once each"},
    };
    struct hdt_layout_files files;

    open_job(HEAD, &files);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *pins[] = {cases[i].pin};
        struct hdt_layout_plan_args args = {.pins = {pins, 1}};
        struct hdt_layout_search_options o;
        struct hdt_error err = {0};

        cr_expect_eq(hdt_layout_plan_options(&args, &files, &o, &err), HDT_EINVAL, "%s",
                     cases[i].pin);
        cr_expect(strstr(err.msg, cases[i].why), "'%s' is not '%s'", err.msg, cases[i].why);
    }
    hdt_layout_release(&files);
}

/* A byte for each value and 4 for each block: of bf16 half and a little, of fp32 a quarter. */
Test(layout_plan, codecs_count_what_they_leave)
{
    struct hdt_layout_plan_args args = {.codec = "none,int8,bf16"},
                                lossless = {.codec = "lossless"};
    struct hdt_layout_search_options o;
    struct hdt_layout_files files;
    struct hdt_error err = {0};

    open_job(HEAD, &files);
    cr_assert_eq(hdt_layout_plan_options(&args, &files, &o, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(o.n_codecs, 3);
    cr_expect_eq(o.codecs[0].ratio, 1);
    cr_expect(isnan(o.codecs[0].gb_per_s));
    cr_expect(o.codecs[1].ratio > 0.5 && o.codecs[1].ratio < 0.57, "%g", o.codecs[1].ratio);
    cr_expect_float_eq(o.codecs[1].sync_ratio, o.codecs[1].ratio / 2, 1e-12);
    cr_expect_eq(o.codecs[2].ratio, 1);
    cr_expect_float_eq(o.codecs[2].sync_ratio, 0.5, 1e-4);
    cr_expect_eq(o.keep & HDT_LAYOUT_KEEP_CODEC, 0);
    cr_expect_eq(hdt_layout_plan_options(&lossless, &files, &o, &err), HDT_EINVAL);
    hdt_layout_release(&files);
}

Test(layout_plan, what_if_changes_what_it_names)
{
    struct hdt_layout_files files;
    struct hdt_error err = {0};
    const struct hdt_cluster_file_wan *wan;

    open_job(HEAD, &files);
    wan = files.cluster.wan.items;
    cr_assert_eq(hdt_layout_what_if(&files.cluster, "wan:b/a=10gbit", &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_what_if(&files.cluster, "rtt=25ms", &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_what_if(&files.cluster, "memory:b.n=20", &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_what_if(&files.cluster, "count=7", &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(wan->rate, 10000000000u);
    cr_expect_eq(wan->rtt_ms, 25);
    /* As the file has it: all that the device has. */
    cr_expect(
        isnan(hdt_cluster_file_nodes(hdt_cluster_file_site(&files.cluster, 0), 0)->memory_gb));
    cr_expect_eq(hdt_cluster_file_nodes(hdt_cluster_file_site(&files.cluster, 1), 0)->memory_gb,
                 20);
    cr_expect_eq(hdt_cluster_file_nodes(hdt_cluster_file_site(&files.cluster, 1), 0)->count, 7);
    cr_expect_eq(hdt_layout_what_if(&files.cluster, "wan:a/c=10gbit", &err), HDT_EINVAL);
    cr_expect_eq(hdt_layout_what_if(&files.cluster, "wan=max", &err), HDT_EINVAL);
    cr_expect_eq(hdt_layout_what_if(&files.cluster, "memory:c.n=20", &err), HDT_EINVAL);
    cr_expect_eq(hdt_layout_what_if(&files.cluster, "loss=1.5", &err), HDT_EINVAL);
    cr_expect_eq(hdt_layout_what_if(&files.cluster, "speed=2", &err), HDT_EINVAL);
    hdt_layout_release(&files);
}

/* ---- what leaves a site ---- */

static double flow_bytes(const struct hdt_layout_flows *flows, const char *from,
                         enum hdt_layout_flow_kind kind)
{
    double sum = 0;

    for (size_t i = 0; i < flows->n; i++) {
        const struct hdt_layout_flow *f = &flows->items[i];

        sum += strcmp(f->from, from) == 0 && (kind == HDT_LAYOUT_FLOW_COUNT || f->kind == kind)
                   ? f->bytes
                   : 0;
    }
    return sum;
}

/* What the simulator counts on a link between sites when it plays the step. */
static double played_bytes(const struct hdt_layout_sim *sim, const char *from)
{
    const struct hdt_sim_setup *setup = hdt_layout_sim_setup(sim);
    struct hdt_sim_result result;
    struct hdt_error err = {0};
    double bytes = 0;

    cr_assert_eq(hdt_sim_run(setup, &result, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < result.n_links; i++) {
        const struct hdt_layout_link *link = hdt_layout_sim_link(sim, i);

        bytes += link->to[0] && strcmp(link->from, from) == 0 ? result.links[i].bytes : 0;
    }
    hdt_sim_result_release(&result);
    return bytes;
}

/* Two replicas of three stages, a - b - a: 4 micro-batches each of 1024 x 512 values of 2 bytes go
 * over and come back, and gradients of them the other way; replicas are at one site. */
Test(layout_plan, flows_are_what_the_simulator_plays)
{
    static const char text[] =
        HEAD "stages:\n  - {layers: 1, on: [{site: a, nodes: n, count: 2}]}\n"
             "  - {layers: 2, on: [{site: b, nodes: n, count: 2}]}\n"
             "  - {layers: 1, on: [{site: a, nodes: n, count: 2}]}\n";
    const double one = 8 * 1024 * 512 * 2.0;
    struct hdt_layout_files files;
    struct hdt_layout_flows flows;
    struct hdt_layout_sim *sim;
    struct hdt_error err = {0};

    open_layout("layout.yaml", text, &files);
    cr_assert_eq(hdt_layout_sim_open(&files, &hdt_stage_cost_fitted, &sim, &err), HDT_OK, "%s",
                 err.msg);
    hdt_layout_flows_init(&flows, &files, sim);
    cr_expect_eq(flow_bytes(&flows, "a", HDT_LAYOUT_FLOW_ACTIVATIONS), one);
    cr_expect_eq(flow_bytes(&flows, "a", HDT_LAYOUT_FLOW_GRADIENTS), one);
    cr_expect_eq(flow_bytes(&flows, "b", HDT_LAYOUT_FLOW_ACTIVATIONS), one);
    cr_expect_float_eq(flow_bytes(&flows, "a", HDT_LAYOUT_FLOW_COUNT), played_bytes(sim, "a"), 1);
    cr_expect_float_eq(flow_bytes(&flows, "b", HDT_LAYOUT_FLOW_COUNT), played_bytes(sim, "b"), 1);
    /* Raw tokens and labels are at a only: no flow has them. */
    cr_expect(flows.has_tokens[0] && !flows.has_tokens[1]);
    cr_expect(flows.has_labels[0] && !flows.has_labels[1]);
    cr_expect_eq(flow_bytes(&flows, "a", HDT_LAYOUT_FLOW_LABELS), 0);
    hdt_layout_flows_release(&flows);
    hdt_layout_sim_close(sim);
    hdt_layout_release(&files);
}

/* Replicas at two sites add gradients over the link, in buckets too; a head elsewhere needs labels.
 */
Test(layout_plan, flows_of_gradients_and_labels)
{
    static const char *const texts[] = {
        HEAD
        "sync: after\nstages:\n  - {layers: 4, on: [{site: a, nodes: n}, {site: b, nodes: n}]}\n",
        HEAD "sync: overlapped\nsync_bucket: 1MiB\nstages:\n"
             "  - {layers: 4, on: [{site: a, nodes: n}, {site: b, nodes: n}]}\n",
        HEAD "optimizer: {sharded: true}\nstages:\n"
             "  - {layers: 4, on: [{site: a, nodes: n}, {site: b, nodes: n}]}\n",
    };
    static const char ends[] = HEAD "stages:\n  - {layers: 2, on: [{site: a, nodes: n}]}\n"
                                    "  - {layers: 2, on: [{site: b, nodes: n}]}\n";
    struct hdt_layout_files files;
    struct hdt_layout_flows flows;
    struct hdt_layout_sim *sim;
    struct hdt_error err = {0};

    for (size_t i = 0; i < 3; i++) {
        open_layout("layout.yaml", texts[i], &files);
        cr_assert_eq(hdt_layout_sim_open(&files, &hdt_stage_cost_fitted, &sim, &err), HDT_OK, "%s",
                     err.msg);
        hdt_layout_flows_init(&flows, &files, sim);
        cr_expect_gt(flow_bytes(&flows, "a", HDT_LAYOUT_FLOW_SYNC), 4 * 4 * LAYER_PARAMS / 2);
        cr_expect_float_eq(flow_bytes(&flows, "a", HDT_LAYOUT_FLOW_COUNT), played_bytes(sim, "a"),
                           1);
        hdt_layout_flows_release(&flows);
        hdt_layout_sim_close(sim);
        hdt_layout_release(&files);
    }
    open_layout("layout.yaml", ends, &files);
    cr_assert_eq(hdt_layout_sim_open(&files, &hdt_stage_cost_fitted, &sim, &err), HDT_OK, "%s",
                 err.msg);
    hdt_layout_flows_init(&flows, &files, sim);
    cr_expect(flows.has_labels[0] && flows.has_labels[1] && !flows.has_tokens[1]);
    cr_expect_eq(flow_bytes(&flows, "a", HDT_LAYOUT_FLOW_LABELS), 8 * 1024 * 4.0);
    hdt_layout_flows_release(&flows);
    hdt_layout_sim_close(sim);
    hdt_layout_release(&files);
}

/* ---- what moves ---- */

#define TWO(first, second)                                                                         \
 HEAD "stages:\n  - {layers: " first ", on: [{site: a, nodes: n, tp: 2}]}\n"                       \
      "  - {layers: " second ", on: [{site: a, nodes: n, tp: 2}]}\n"

static void moves_of(const struct hdt_layout_files *from, const struct hdt_layout_files *to,
                     const size_t *gone, size_t n_gone, struct hdt_layout_moves *moves)
{
    struct hdt_layout_mover *mover = hdt_layout_mover_new(from, to, gone, n_gone);

    hdt_layout_mover_list(mover, to, moves);
    hdt_layout_mover_free(mover);
}

/* A cut that moves by one layer: that layer goes from node to node, at 10 GB/s. */
Test(layout_plan, a_cut_moves_one_layer)
{
    struct hdt_layout_files from, to;
    struct hdt_layout_moves moves;

    open_layout("from.yaml", TWO("2", "2"), &from);
    open_layout("to.yaml", TWO("3", "1"), &to);
    moves_of(&from, &to, NULL, 0, &moves);
    cr_expect_eq(moves.n_layers, 1);
    cr_expect_eq(moves.n_all, 6);
    cr_expect_float_eq(moves.site_bytes, STATE_BYTES * LAYER_PARAMS, 1);
    cr_expect_eq(moves.wan_bytes, 0);
    cr_expect_float_eq(moves.seconds, STATE_BYTES * LAYER_PARAMS / 10e9, 1e-9);
    hdt_layout_moves_release(&moves);
    moves_of(&from, &from, NULL, 0, &moves);
    cr_expect_eq(moves.n_layers, 0);
    hdt_layout_moves_release(&moves);
    hdt_layout_release(&from);
    hdt_layout_release(&to);
}

/* The second stage goes to the other site: two layers and the head over 1 Gbit/s, once, though two
 * replicas take them. */
Test(layout_plan, a_site_is_entered_once)
{
    static const char was[] =
        HEAD "stages:\n  - {layers: 2, on: [{site: a, nodes: n, count: 2, tp: 2}]}\n"
             "  - {layers: 2, on: [{site: a, nodes: n, count: 2, tp: 2}]}\n";
    static const char is[] =
        HEAD "stages:\n  - {layers: 2, on: [{site: a, nodes: n, count: 2, tp: 2}]}\n"
             "  - {layers: 2, on: [{site: b, nodes: n, count: 2, tp: 2}]}\n";
    const double head = 512 * 1000 + 512, bytes = STATE_BYTES * (2 * LAYER_PARAMS + head);
    struct hdt_layout_files from, to;
    struct hdt_layout_moves moves;

    open_layout("from.yaml", was, &from);
    open_layout("to.yaml", is, &to);
    moves_of(&from, &to, NULL, 0, &moves);
    cr_expect_eq(moves.n_layers, 6);
    cr_expect_float_eq(moves.wan_bytes, bytes, 1);
    cr_expect_float_eq(moves.site_bytes, bytes, 1);
    cr_expect_float_eq(moves.seconds, 8 * bytes / 1e9, 1e-6);
    hdt_layout_moves_release(&moves);
    hdt_layout_release(&from);
    hdt_layout_release(&to);
}

/* A cluster without its second site: what only that had comes from a checkpoint. */
Test(layout_plan, what_a_lost_site_had_is_stored)
{
    static const char was[] = HEAD "stages:\n  - {layers: 2, on: [{site: a, nodes: n, tp: 2}]}\n"
                                   "  - {layers: 2, on: [{site: b, nodes: n, tp: 2}]}\n";
    static const char is[] =
        "cluster: one.yaml\nmodel: model.json\nseq_len: 1024\nglobal_batch: 8\n"
        "attention: fused\nstages: [{layers: 4, on: [{nodes: n, tp: 2}]}]\n";
    char *one = hdt_strdup(CLUSTER), *b = strstr(one, "  - {name: b");
    struct hdt_layout_files from, to;
    struct hdt_layout_moves moves;

    *b = '\0';
    hdt_scratch_write("one.yaml", one, strlen(one));
    free(one);
    open_layout("from.yaml", was, &from);
    open_layout("to.yaml", is, &to);
    moves_of(&from, &to, NULL, 0, &moves);
    cr_expect_eq(moves.n_layers, 3);
    cr_expect_eq(moves.n_all, 6);
    cr_expect_float_eq(moves.stored_bytes, STATE_BYTES * (2 * LAYER_PARAMS + 512 * 1000 + 512), 1);
    cr_expect_eq(moves.wan_bytes + moves.site_bytes, 0);
    hdt_layout_moves_release(&moves);
    hdt_layout_release(&from);
    hdt_layout_release(&to);
}

/* The same where the cluster still has the site, but nothing can come from there. */
Test(layout_plan, what_a_site_had_that_is_done_without_is_stored)
{
    static const char was[] = HEAD "stages:\n  - {layers: 2, on: [{site: a, nodes: n, tp: 2}]}\n"
                                   "  - {layers: 2, on: [{site: b, nodes: n, tp: 2}]}\n";
    static const char is[] = HEAD "stages: [{layers: 4, on: [{site: a, nodes: n, tp: 2}]}]\n";
    const size_t gone[] = {1};
    struct hdt_layout_files from, to;
    struct hdt_layout_moves moves;

    open_layout("from.yaml", was, &from);
    open_layout("to.yaml", is, &to);
    moves_of(&from, &to, gone, 1, &moves);
    cr_expect_eq(moves.n_layers, 3);
    cr_expect_float_eq(moves.stored_bytes, STATE_BYTES * (2 * LAYER_PARAMS + 512 * 1000 + 512), 1);
    cr_expect_eq(moves.wan_bytes + moves.site_bytes, 0);
    hdt_layout_moves_release(&moves);
    hdt_layout_release(&from);
    hdt_layout_release(&to);
}

/* ---- all of it ---- */

/* The file is a layout that simulates to the step that was found, wherever it lies. */
Test(layout_plan, what_is_written_is_what_was_found)
{
    char *layout, *output;
    struct hdt_layout_plan_args args = {
        .instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"}};
    struct hdt_layout_planned planned;
    struct hdt_layout_prediction is;
    struct hdt_layout_files files;
    struct hdt_error err = {0};

    hdt_scratch_write("job.yaml", HEAD, strlen(HEAD));
    cr_assert_eq(hdt_dir_make(hdt_scratch_path("deep/er"), 0755, &err), HDT_OK);
    layout = hdt_strdup(hdt_scratch_path("job.yaml"));
    output = hdt_strdup(hdt_scratch_path("deep/er/plan.yaml"));
    args.layout = layout;
    cr_assert_eq(hdt_layout_plan(&planned, &args, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_assert_eq(hdt_layout_planned_write(&planned, output, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_open(output, &args.instead, &files, &err), HDT_OK, "%s: %s", err.where,
                 err.msg);
    cr_expect_str_eq(strstr(files.layout.cluster, "../../cluster.yaml"), "../../cluster.yaml");
    cr_assert_eq(hdt_layout_predict(&files, &hdt_stage_cost_fitted, &is, &err), HDT_OK, "%s",
                 err.msg);
    cr_expect_eq(is.step_s, planned.best->prediction.step_s);
    hdt_layout_release(&files);
    hdt_layout_planned_release(&planned);
    free(layout);
    free(output);
}

/* What the job says of a link is in the file, in the table and in the reasons. */
Test(layout_plan, links_are_written_and_shown)
{
    static const char job[] =
        HEAD "wan:\n  links: [{from: b, to: a, codec_ratio: 0.25, codec_gb_per_s: 2}]\n";
    char *pins[] = {"layers=embed site=a", "layers=head site=b"};
    struct hdt_layout_plan_args args = {
        .pins = {pins, 2}, .instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"}};
    struct hdt_layout_planned planned;
    struct hdt_layout_prediction is;
    struct hdt_layout_files files;
    struct hdt_error err = {0};
    char *layout, *output, *text = NULL, *reasons;
    json_t *lines;
    size_t len;
    FILE *out;

    hdt_scratch_write("job.yaml", job, strlen(job));
    layout = hdt_strdup(hdt_scratch_path("job.yaml"));
    output = hdt_strdup(hdt_scratch_path("plan.yaml"));
    args.layout = layout;
    cr_assert_eq(hdt_layout_plan(&planned, &args, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_assert_eq(hdt_layout_planned_write(&planned, output, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_open(output, &args.instead, &files, &err), HDT_OK, "%s: %s", err.where,
                 err.msg);
    cr_assert_eq(files.layout.wan.links.n, 1);
    cr_expect_eq(hdt_layout_wan_between(&files, 0, 1).codec_ratio, 0.25);
    cr_expect_eq(hdt_layout_wan_between(&files, 1, 0).codec_gb_per_s, 2);
    cr_assert_eq(hdt_layout_predict(&files, &hdt_stage_cost_fitted, &is, &err), HDT_OK, "%s",
                 err.msg);
    cr_expect_eq(is.step_s, planned.best->prediction.step_s);
    out = open_memstream(&text, &len);
    hdt_layout_planned_print(&planned, out);
    fclose(out);
    cr_expect(strstr(text, "links      a/b: 0.25 of activations' bytes, 1 of gradients'"), "%s",
              text);
    cr_assert_eq(hdt_layout_explain(&planned, &lines, &err), HDT_OK, "%s", err.msg);
    reasons = json_dumps(lines, 0);
    cr_expect(strstr(reasons, "between a and b: 0.25 of activations' bytes"), "%s", reasons);
    json_decref(lines);
    free(reasons);
    free(text);
    hdt_layout_release(&files);
    hdt_layout_planned_release(&planned);
    free(layout);
    free(output);
}

/* ---- the plan that runs ---- */

#define RUNS                                                                                       \
 "schedule: 1f1b\nstages:\n  - {layers: 2, on: [{site: a, nodes: n, tp: 2}]}\n"                    \
 "  - {layers: 2, on: [{site: a, nodes: n, tp: 2}]}\n"

static double steps_left; /* --steps-left; 0: not given */

static void plan_beside(const char *job, const char *runs, char *pin,
                        struct hdt_layout_planned *planned)
{
    static char *pins[1];
    static struct hdt_layout_plan_args args;
    struct hdt_error err = {0};
    char *layout, *current;

    hdt_scratch_write("job.yaml", job, strlen(job));
    hdt_scratch_write("runs.yaml", runs, strlen(runs));
    layout = hdt_strdup(hdt_scratch_path("job.yaml"));
    current = hdt_strdup(hdt_scratch_path("runs.yaml"));
    pins[0] = pin;
    args = (struct hdt_layout_plan_args){
        .layout = layout,
        .current = current,
        .steps_left = steps_left,
        .pins = {pins, pin ? 1 : 0},
        .instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"}};
    cr_assert_eq(hdt_layout_plan(planned, &args, &err), HDT_OK, "%s: %s", err.where, err.msg);
    free(layout);
    free(current);
}

/* A second a step for five of moving; half a second more takes one more step. */
Test(layout_plan, a_move_pays_after_so_many_steps)
{
    const struct hdt_layout_search_other was = {.step_s = 10}, is = {.step_s = 9, .move_s = 5},
                                         late = {.step_s = 9, .move_s = 5.5}, slow = {.step_s = 11},
                                         quick = {.step_s = 9};

    cr_expect_eq(hdt_layout_replan_pays(&was, &is), 5);
    cr_expect_eq(hdt_layout_replan_pays(&was, &late), 6);
    cr_expect_eq(hdt_layout_replan_pays(&was, &quick), 0);
    cr_expect(isinf(hdt_layout_replan_pays(&was, &slow)));
    cr_expect_eq(hdt_layout_replan_pays(&is, &quick), 0);
}

/* Eight devices of which four are used; two steps are left, then a million: the plan that runs is
 * kept while no other one gains more than it moves. */
Test(layout_plan, what_does_not_pay_is_not_moved)
{
    const double steps[] = {2, 1e6};
    struct hdt_layout_planned planned;

    for (size_t i = 0; i < 2; i++) {
        const struct hdt_layout_replan *r = &planned.replan;

        steps_left = steps[i];
        plan_beside(HEAD, HEAD RUNS, NULL, &planned);
        cr_expect_eq(r->steps_left, steps[i]);
        cr_expect_eq(r->goes_on, r->was_total <= 1.001 * planned.result.top[0].total);
        cr_expect_float_eq(r->now.total / (steps[i] * r->now.step_s + r->moves.seconds), 1, 1e-9);
        cr_expect_leq(r->now.total, r->was_total * (1 + 1e-9));
        cr_expect(!r->goes_on || r->moves.n == 0);
        cr_expect_leq(r->now.total, 1.001 * r->fresh.total);
        hdt_layout_planned_release(&planned);
    }
    steps_left = 0;
}

/* It runs at a, where nothing may be seen any more. */
Test(layout_plan, what_runs_must_hold_to_the_pins)
{
    char *pins[] = {"layers=embed,head site=b"};
    struct hdt_layout_planned planned;
    const struct hdt_layout_group *groups;

    plan_beside(HEAD, HEAD RUNS, pins[0], &planned);
    groups = planned.laid.files.groups;
    cr_expect(isnan(planned.replan.was_step_s));
    cr_expect(!planned.replan.goes_on);
    cr_expect(strstr(planned.replan.was_why, "pinned to 'b'"), "%s", planned.replan.was_why);
    for (size_t r = 0; r < planned.laid.files.n_replicas; r++) {
        cr_expect_eq(groups[r * planned.laid.files.n_stages].site_idx, 1);
        cr_expect_eq(groups[(r + 1) * planned.laid.files.n_stages - 1].site_idx, 1);
    }
    hdt_layout_planned_release(&planned);
}

/* What the job's file decides counts for what runs, too. */
Test(layout_plan, what_runs_must_be_as_the_job_says)
{
    struct hdt_layout_planned planned;

    plan_beside(HEAD "schedule: gpipe\n", HEAD RUNS, NULL, &planned);
    cr_expect(isnan(planned.replan.was_step_s));
    cr_expect(strstr(planned.replan.was_why, "schedule"), "%s", planned.replan.was_why);
    cr_expect_eq(planned.best->layout.schedule, HDT_SCHEDULE_GPIPE);
    hdt_layout_planned_release(&planned);
}

/* A plan that goes on is written as one of the cluster that there is now. */
Test(layout_plan, what_goes_on_names_the_cluster_of_the_job)
{
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    static const char head[] =
        "cluster: now.yaml\nmodel: model.json\nseq_len: 1024\nglobal_batch: 8\nattention: fused\n";
    char *now = hdt_strdup(CLUSTER), *rate = strstr(now, "{name: net, gb_per_s: 10}"), *job;
    struct hdt_layout_planned planned;
    struct hdt_layout_prediction is;
    struct hdt_layout_files files;
    struct hdt_error err = {0};
    char *output, *current;

    memcpy(rate, "{name: net, gb_per_s: 5 }", 25);
    hdt_scratch_write("now.yaml", now, strlen(now));
    job = hdt_strdup(head);
    plan_beside(HEAD, HEAD RUNS, NULL, &planned);
    current = hdt_strdup(hdt_scratch_path("best.yaml"));
    cr_assert_eq(hdt_layout_planned_write(&planned, current, &err), HDT_OK, "%s", err.msg);
    hdt_layout_planned_release(&planned);
    {
        struct hdt_layout_plan_args args = {.current = current, .instead = instead};
        char *layout;

        hdt_scratch_write("job.yaml", job, strlen(job));
        layout = hdt_strdup(hdt_scratch_path("job.yaml"));
        output = hdt_strdup(hdt_scratch_path("out.yaml"));
        args.layout = layout;
        cr_assert_eq(hdt_layout_plan(&planned, &args, &err), HDT_OK, "%s: %s", err.where, err.msg);
        cr_expect(planned.replan.goes_on);
        cr_assert_eq(hdt_layout_planned_write(&planned, output, &err), HDT_OK, "%s", err.msg);
        free(layout);
    }
    cr_assert_eq(hdt_layout_open(output, &instead, &files, &err), HDT_OK, "%s: %s", err.where,
                 err.msg);
    cr_expect(strstr(files.layout.cluster, "now.yaml"), "%s", files.layout.cluster);
    cr_assert_eq(hdt_layout_predict(&files, &hdt_stage_cost_fitted, &is, &err), HDT_OK, "%s",
                 err.msg);
    cr_expect_eq(is.step_s, planned.best->prediction.step_s);
    hdt_layout_release(&files);
    hdt_layout_planned_release(&planned);
    free(job);
    free(now);
    free(output);
    free(current);
}
