/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hdt codec explain: which codec pays where, and why.
 *
 * Three sources, one table. The edges of a running job report the table that their worker chose by.
 * For a site it is worked out here: rates of the codecs as measured on this machine, of the
 * lossless one as the gateways have it, and what the link carries. For a plan it is the same, but
 * nobody says what the gateways take for lossless: as if it took no time.
 */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/codec_explain.h"
#include "src/cli/gwoptions.h"
#include "src/cli/human.h"
#include "src/cli/link_explain.h"
#include "compress/ladder.h"
#include "compress/rate.h"
#include "src/core/codec_table.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RATE_BUDGET_MS 20
#define TENSOR_BYTES   (4.0 * 1024 * 1024)
#define N_FRAMES       8
#define ERROR_BUDGET   0.02 /* of a job that says nothing */
#define N_EDGES        2    /* of a link: activations, and their gradients back */

/* Ratios of the lossless codec where none was seen; the planner's. */
#define LOSSLESS_F32  1.15
#define LOSSLESS_BF16 1.30
#define LOSSLESS_INT8 1.10

enum codec_option { OPT_JSON = 256, OPT_TENSOR, OPT_FRAMES, OPT_BUDGET };

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {"tensor", OPT_TENSOR, "BYTES", 0, "Of a site: bytes of fp32 in a frame (4194304)", 0},
    {"frames", OPT_FRAMES, "N", 0, "Of a site: frames of a step (8)", 0},
    {"error-budget", OPT_BUDGET, "X", 0,
     "Of a site or plan: largest relative error, as codec.error_budget of a job (0.02)", 0},
    {0},
};

struct explain_args {
    struct hdt_gwclient_conf client;
    const char *what; /* NULL: all that runs */
    struct hdt_codec_case base;
    bool json;
};

static error_t number_parse(struct argp_state *state, const char *arg, double least, double most,
                            double *out)
{
    char *end;
    const double x = strtod(arg, &end);

    if (end == arg || *end != '\0' || !(x >= least && x <= most)) {
        argp_error(state, "'%s' is not a number from %g to %g", arg, least, most);
        return EINVAL;
    }
    *out = x;
    return 0;
}

static error_t explain_parse(int key, char *arg, struct argp_state *state)
{
    struct explain_args *args = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->client;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case OPT_TENSOR:
        return number_parse(state, arg, 4, 1 << 30, &args->base.tensor_bytes);
    case OPT_FRAMES:
        return number_parse(state, arg, 1, 1e6, &args->base.n_frames);
    case OPT_BUDGET:
        return number_parse(state, arg, 0, 1, &args->base.error_budget);
    case ARGP_KEY_ARG:
        if (args->what) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->what = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&hdt_gwoptions_argp, 0, NULL, 0}, {0}};
static const struct argp explain_argp = {
    .options = options,
    .parser = explain_parse,
    .args_doc = "[SITE | JOB | PLAN.JSON]",
    .doc = "Say which codec pays on an edge, and why: of the edges of a running job (its number or "
           "name; without an argument, of all), of the link to a site, or of a plan that 'hdt plan "
           "--json' wrote.",
    .children = children,
};

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "";
}

static double real_of(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

/* ---- a table worked out here ---- */

static double lossless_ratio(const struct hdt_codec_case *at, enum hdt_dtype frame)
{
    switch (frame) {
    case HDT_DTYPE_F32:
        return at->ratio_f32 > 1 ? at->ratio_f32 : LOSSLESS_F32;
    case HDT_DTYPE_BF16:
        return at->ratio_bf16 > 1 ? at->ratio_bf16 : LOSSLESS_BF16;
    case HDT_DTYPE_I8:
        return LOSSLESS_INT8;
    default:
        return 1;
    }
}

static void candidate_fill(const struct hdt_codec_case *at, const struct hdt_codec_spec *spec,
                           struct hdt_adapt_candidate *c)
{
    const struct hdt_codec_ops *codec = hdt_codec_by_id(spec->worker);
    struct hdt_codec_rate rate;
    size_t bytes = (size_t)at->tensor_bytes / 4 * 4;

    memset(c, 0, sizeof(*c));
    c->spec = *spec;
    c->error = hdt_codec_expected_error(spec);
    hdt_codec_bound(codec, spec, HDT_DTYPE_F32, bytes, &bytes, NULL);
    c->frame_bytes = (double)bytes;
    c->gw_ratio = 1;
    if (spec->gateway != HDT_CODEC_NONE) {
        c->gw_ratio = lossless_ratio(at, hdt_codec_coded_dtype(codec, HDT_DTYPE_F32));
        c->gw_encode_bytes_per_s = at->gw_encode_bytes_per_s;
        c->gw_decode_bytes_per_s = at->gw_decode_bytes_per_s;
    }
    if (hdt_codec_rate_measure(codec, HDT_DTYPE_F32, RATE_BUDGET_MS, &rate, NULL) == HDT_OK) {
        c->encode_bytes_per_s = rate.encode_bytes_per_s;
        c->decode_bytes_per_s = rate.decode_bytes_per_s;
    }
}

static int by_error(const void *a, const void *b)
{
    const struct hdt_adapt_candidate *x = a, *y = b;

    if (x->error != y->error) {
        return x->error < y->error ? -1 : 1;
    }
    return (int)x->spec.gateway - (int)y->spec.gateway;
}

/* Each codec whose error does not depend on the tensor, alone and with lossless behind it. */
static size_t candidates_make(const struct hdt_codec_case *at,
                              struct hdt_adapt_candidate out[HDT_ADAPT_MAX])
{
    const struct hdt_codec_word *words;
    size_t n_words, n = 0;

    words = hdt_codec_words(&n_words);
    for (size_t i = 0; i < n_words; i++) {
        struct hdt_codec_spec spec = hdt_codec_spec_default(words[i].id);

        if (words[i].id == HDT_CODEC_LOSSLESS || hdt_codec_expected_error(&spec) >= 1) {
            continue;
        }
        for (int lossless = 0; lossless < 2 && n < HDT_ADAPT_MAX; lossless++) {
            spec.gateway = lossless ? HDT_CODEC_LOSSLESS : HDT_CODEC_NONE;
            candidate_fill(at, &spec, &out[n++]);
        }
    }
    qsort(out, n, sizeof(*out), by_error);
    return n;
}

json_t *hdt_codec_case_explain(const struct hdt_codec_case *at)
{
    struct hdt_adapt_candidate candidates[HDT_ADAPT_MAX];
    struct hdt_adapt_input in = {.goodput_bytes_per_s = at->link_bytes_per_s,
                                 .rtt_s = at->rtt_s,
                                 .tensor_bytes = at->tensor_bytes,
                                 .n_frames = at->n_frames,
                                 .error_budget = at->error_budget,
                                 .least_gain = HDT_ADAPT_LEAST_GAIN / N_EDGES,
                                 .exact_cost = HDT_ADAPT_EXACT_COST / N_EDGES,
                                 .now_us = 1,
                                 .measured_us = 1,
                                 .current = -1,
                                 .candidates = candidates};
    struct hdt_adapt_table table;

    in.n = candidates_make(at, candidates);
    hdt_adapt_choose(&in, &table);
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:o}", "edge", at->name, "link_bytes_per_s",
                     at->link_bytes_per_s, "rtt_s", at->rtt_s, "tensor_bytes", at->tensor_bytes,
                     "frames", at->n_frames, "error_budget", at->error_budget, "table",
                     hdt_codec_table_json(&in, &table));
}

/* ---- printing ---- */

static void row_print(const json_t *row)
{
    char encode[HDT_HUMAN_CAP], decode[HDT_HUMAN_CAP], goodput[HDT_HUMAN_CAP];
    char pace[HDT_HUMAN_CAP], full[HDT_HUMAN_CAP], none[HDT_HUMAN_CAP];
    const double above = real_of(row, "none_above_bytes_per_s");

    printf("%c %-16s %10s %10s %6.2f %8.2g %11s %9s %11s %11s  %s\n",
           json_is_true(json_object_get(row, "chosen")) ? '*' : ' ', text_of(row, "codec"),
           hdt_human_rate(real_of(row, "encode_bytes_per_s"), encode),
           hdt_human_rate(real_of(row, "decode_bytes_per_s"), decode), real_of(row, "ratio"),
           real_of(row, "error"),
           real_of(row, "goodput_bytes_per_s") > 0
               ? hdt_human_rate(real_of(row, "goodput_bytes_per_s"), goodput)
               : "-",
           hdt_human_time(real_of(row, "pace_s"), pace),
           above > 0 ? hdt_human_rate(real_of(row, "full_below_bytes_per_s"), full) : "-",
           above > 0 ? hdt_human_rate(above, none) : "-", text_of(row, "why"));
}

static void edge_print(const json_t *edge)
{
    const json_t *row, *table = json_object_get(edge, "table");
    char rate[HDT_HUMAN_CAP];
    size_t i;

    printf("-- %s\n", text_of(edge, "edge"));
    if (text_of(edge, "codec")[0]) {
        printf(
            "%s now, %s in the plan; %.0f frames, relative error %.2g, at worst %.2g; %.0f steps "
            "up, %.0f down, %.0f changes for speed\n",
            text_of(edge, "codec"), text_of(edge, "planned"), real_of(edge, "codec_frames"),
            real_of(edge, "error"), real_of(edge, "worst_error"), real_of(edge, "steps_up"),
            real_of(edge, "steps_down"), real_of(edge, "changes"));
    }
    if (!json_is_array(table)) {
        printf("%s\n\n",
               json_is_true(json_object_get(edge, "live"))
                   ? "nothing is chosen yet: the gateway has not said what the link carries"
                   : "the job names this codec: nothing is chosen");
        return;
    }
    printf("the link carries %s; relative error up to %.2g is allowed\n",
           real_of(edge, "link_bytes_per_s") > 0
               ? hdt_human_rate(real_of(edge, "link_bytes_per_s"), rate)
               : "an unknown rate",
           real_of(edge, "error_budget"));
    printf("  %-16s %10s %10s %6s %8s %11s %9s %11s %11s\n", "codec", "encode", "decode", "ratio",
           "error", "tensors at", "a frame", "full below", "none above");
    json_array_foreach(table, i, row)
    {
        row_print(row);
    }
    putchar('\n');
}

/* ---- sources ---- */

static bool is_number(const char *text)
{
    return text[0] && text[strspn(text, "0123456789")] == '\0';
}

/* Of the jobs in a status, that is called so: its number; -1: none. */
static json_int_t job_number(const json_t *status, const char *what)
{
    const json_t *job;
    size_t i;

    json_array_foreach(json_object_get(status, "jobs"), i, job)
    {
        if (strcmp(text_of(job, "name"), what) == 0) {
            return json_integer_value(json_object_get(job, "number"));
        }
    }
    return is_number(what) ? (json_int_t)strtoll(what, NULL, 10) : -1;
}

/* The edges that begin at this site's workers; `number` -1: of all jobs. */
static json_t *edges_of_jobs(const json_t *status, json_int_t number)
{
    json_t *edges = json_array();
    const json_t *flow;
    size_t i;

    json_array_foreach(json_object_get(status, "flows"), i, flow)
    {
        const json_t *codec = json_object_get(flow, "codec");
        const json_int_t own = json_integer_value(json_object_get(flow, "number"));
        json_t *edge;

        if (json_is_object(codec) && (number < 0 || own == number)) {
            edge = json_deep_copy(codec);
            json_object_set_new(edge, "edge",
                                json_sprintf("job %lld, flow %lld, %s -> %s", (long long)own,
                                             json_integer_value(json_object_get(flow, "flow")),
                                             text_of(status, "site"), text_of(flow, "peer_site")));
            json_array_append_new(edges, edge);
        }
    }
    return edges;
}

/* What the gateways' answers say of the lossless codec and of the link. */
static void case_of_link(const json_t *facts, const json_t *other, struct hdt_codec_case *at)
{
    json_t *way = hdt_link_explain(facts, other), *codecs;
    const json_t *codec;
    size_t i;

    at->link_bytes_per_s = real_of(way, "rate_bits_per_s") / 8;
    at->rtt_s = real_of(facts, "min_rtt_ms") / 1e3;
    codecs = hdt_link_explain_codecs(facts, other, at->link_bytes_per_s);
    json_array_foreach(codecs, i, codec)
    {
        if (strcmp(text_of(codec, "codec"), "lossless") != 0) {
            continue;
        }
        if (strcmp(text_of(codec, "dtype"), "bf16") == 0) {
            at->ratio_bf16 = real_of(codec, "ratio");
        } else {
            at->ratio_f32 = real_of(codec, "ratio");
            at->gw_encode_bytes_per_s = real_of(codec, "encode_bits_per_s") / 8;
            at->gw_decode_bytes_per_s = real_of(codec, "decode_bits_per_s") / 8;
        }
    }
    json_decref(codecs);
    json_decref(way);
}

static enum hdt_status edges_of_link(struct hdt_gwclient *client, const char *site,
                                     struct hdt_codec_case at, json_t **edges,
                                     struct hdt_error *err)
{
    struct hdt_error ignored = {0};
    json_t *facts, *other;

    HDT_TRY(hdt_gwclient_ask_link(client, site, &facts, &other, &ignored, err));
    snprintf(at.name, sizeof(at.name), "%.63s -> %.63s", hdt_gwclient_site(client), site);
    case_of_link(facts, other, &at);
    *edges = json_pack("[o]", hdt_codec_case_explain(&at));
    json_decref(facts);
    json_decref(other);
    return HDT_OK;
}

static enum hdt_status edges_live(const struct explain_args *args, json_t **edges,
                                  struct hdt_error *err)
{
    struct hdt_gwclient_request request = {.type = "status", .expect = "status.is"};
    struct hdt_gwclient *client;
    enum hdt_status status;
    json_int_t number = -1;
    json_t *said = NULL;

    HDT_TRY(hdt_gwclient_open(&args->client, &client, err));
    status = hdt_gwclient_ask(client, &request, &said, err);
    if (status == HDT_OK && args->what) {
        number = job_number(said, args->what);
    }
    if (status == HDT_OK && args->what && number < 0) {
        status = edges_of_link(client, args->what, args->base, edges, err);
    } else if (status == HDT_OK) {
        *edges = edges_of_jobs(said, number);
        if (json_array_size(*edges) == 0) {
            json_decref(*edges);
            status = hdt_error_set(err, HDT_ENOENT,
                                   "no edge of %s%s with a codec to explain begins at site %s",
                                   args->what ? "job " : "a running job",
                                   args->what ? args->what : "", hdt_gwclient_site(client));
            hdt_error_hint(err, "codecs none and lossless lose nothing and are not chosen in the "
                                "run; name a site to see what its link would gain");
        }
    }
    json_decref(said);
    hdt_gwclient_close(client);
    return status;
}

/* Frames of a flow in a step: the micro-batches of its replica. */
static double frames_of(const json_t *plan, const json_t *flow)
{
    const json_int_t stage = json_integer_value(json_object_get(flow, "src_stage"));
    const json_t *stages = json_object_get(plan, "stages");
    const double n = real_of(json_array_get(stages, (size_t)stage), "n_micro_batches");

    return n > 0 ? n : real_of(plan, "n_micro_batches");
}

/* The edges of "hdt plan --json" between sites. */
json_t *hdt_codec_explain_plan(const json_t *planned, const struct hdt_codec_case *base)
{
    const json_t *edge, *plan = json_object_get(planned, "plan");
    json_t *edges = json_array();
    size_t i;

    json_array_foreach(json_object_get(planned, "edges"), i, edge)
    {
        struct hdt_codec_case at = *base;

        if (strcmp(text_of(edge, "from"), text_of(edge, "to")) == 0) {
            continue;
        }
        snprintf(at.name, sizeof(at.name), "flow %lld (%.32s, %.63s -> %.63s), %.63s in the plan",
                 json_integer_value(json_object_get(edge, "flow")), text_of(edge, "kind"),
                 text_of(edge, "from"), text_of(edge, "to"), text_of(edge, "codec"));
        at.link_bytes_per_s = real_of(edge, "rate_bits_per_s") / 8;
        at.rtt_s = real_of(edge, "rtt_ms") / 1e3;
        at.tensor_bytes = real_of(edge, "tensor_bytes");
        at.n_frames = frames_of(
            plan, json_array_get(json_object_get(plan, "flows"),
                                 (size_t)json_integer_value(json_object_get(edge, "flow"))));
        json_array_append_new(edges, hdt_codec_case_explain(&at));
    }
    return edges;
}

static enum hdt_status edges_of_file(const struct explain_args *args, json_t **edges,
                                     struct hdt_error *err)
{
    json_error_t why;
    json_t *planned = json_load_file(args->what, 0, &why);

    if (!planned || !json_is_object(json_object_get(planned, "plan")) ||
        !json_is_array(json_object_get(planned, "edges"))) {
        hdt_error_set(err, HDT_EINVAL, "'%s' is no plan: %s", args->what,
                      planned ? "it has no \"plan\" and \"edges\"" : why.text);
        hdt_error_hint(err, "make one with 'hdt plan --json JOB.YAML'");
        json_decref(planned);
        return HDT_EINVAL;
    }
    *edges = hdt_codec_explain_plan(planned, &args->base);
    json_decref(planned);
    return HDT_OK;
}

static int explain_run(int argc, char **argv)
{
    struct explain_args args = {
        .base = {.tensor_bytes = TENSOR_BYTES, .n_frames = N_FRAMES, .error_budget = ERROR_BUDGET}};
    struct hdt_error err = {0};
    enum hdt_status status;
    const json_t *edge;
    json_t *edges = NULL;
    size_t i;

    hdt_cmd_parse(&explain_argp, argc, argv, &args);
    status = args.what && access(args.what, R_OK) == 0 ? edges_of_file(&args, &edges, &err)
                                                       : edges_live(&args, &edges, &err);
    if (status != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (args.json) {
        json_dumpf(edges, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        putchar('\n');
    } else {
        json_array_foreach(edges, i, edge)
        {
            edge_print(edge);
        }
    }
    json_decref(edges);
    return HDT_EXIT_OK;
}

const struct hdt_cmd hdt_cmd_codec_explain = {"explain", "which codec pays on an edge, and why",
                                              explain_run, &explain_argp, NULL};
