/* SPDX-License-Identifier: Apache-2.0 */
/* hdt link: what a link to another site can do, and why. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/gwoptions.h"
#include "src/cli/link_bench.h"
#include "src/cli/link_explain.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

enum link_option { OPT_JSON = 256 };

static const struct argp_option explain_options[] = {
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

struct explain_args {
    struct hdt_gwclient_conf client;
    const char *site;
    bool json;
};

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
    case ARGP_KEY_ARG:
        if (args->site) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->site = arg;
        return 0;
    case ARGP_KEY_END:
        if (!args->site) {
            argp_error(state, "a SITE is missing");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&hdt_gwoptions_argp, 0, NULL, 0}, {0}};
static const struct argp explain_argp = {
    .options = explain_options,
    .parser = explain_parse,
    .args_doc = "SITE",
    .doc =
        "Say why the link to a site is as fast as it is, in both directions: what limits it, why "
        "these streams, this congestion control, these chunks, and at which rates which codec "
        "pays.",
    .children = children,
};

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "";
}

static void way_print(const json_t *way)
{
    const json_t *line;
    size_t i;

    printf("-- %s to %s\n", text_of(way, "from"), text_of(way, "to"));
    json_array_foreach(json_object_get(way, "lines"), i, line)
    {
        printf("%-11s %s\n", text_of(line, "what"), text_of(line, "text"));
        if (text_of(line, "remedy")[0]) {
            printf("            remedy: %s\n", text_of(line, "remedy"));
        }
    }
}

static void explained_print(const json_t *result)
{
    const json_t *way, *codec;
    size_t i;

    json_array_foreach(json_object_get(result, "directions"), i, way)
    {
        way_print(way);
        putchar('\n');
    }
    printf("-- codecs, as fast as measured at these gateways\n");
    json_array_foreach(json_object_get(result, "codecs"), i, codec)
    {
        printf("%-8s %-4s %s\n", text_of(codec, "codec"), text_of(codec, "dtype"),
               text_of(codec, "text"));
    }
    if (text_of(result, "unheard")[0]) {
        printf("\nthe gateway there said nothing of its side: %s\n", text_of(result, "unheard"));
    }
}

static json_t *result_make(const json_t *facts, const json_t *other, const struct hdt_error *why)
{
    json_t *ways = json_array(), *way = hdt_link_explain(facts, other);
    const double rate = json_number_value(json_object_get(way, "rate_bits_per_s")) / 8;

    json_array_append_new(ways, way);
    if (other) {
        json_array_append_new(ways, hdt_link_explain(other, facts));
    }
    return json_pack("{s:s, s:s, s:o, s:o, s:s}", "site", text_of(facts, "site"), "peer",
                     text_of(facts, "peer"), "directions", ways, "codecs",
                     hdt_link_explain_codecs(facts, other, rate), "unheard", other ? "" : why->msg);
}

static enum hdt_status link_explain(struct hdt_gwclient *client, const char *site, json_t **result,
                                    struct hdt_error *err)
{
    struct hdt_error why = {0};
    json_t *facts, *other;

    HDT_TRY(hdt_gwclient_ask_link(client, site, &facts, &other, &why, err));
    *result = result_make(facts, other, &why);
    json_decref(facts);
    json_decref(other);
    return HDT_OK;
}

static int explain_run(int argc, char **argv)
{
    struct explain_args args = {0};
    struct hdt_gwclient *client;
    struct hdt_error err = {0};
    enum hdt_status status;
    bool heard;
    json_t *result;

    hdt_cmd_parse(&explain_argp, argc, argv, &args);
    if (hdt_gwclient_open(&args.client, &client, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    status = link_explain(client, args.site, &result, &err);
    hdt_gwclient_close(client);
    if (status != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (args.json) {
        json_dumpf(result, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        explained_print(result);
    }
    heard = text_of(result, "unheard")[0] == '\0';
    json_decref(result);
    return heard ? HDT_EXIT_OK : HDT_EXIT_PARTIAL;
}

static const struct hdt_cmd explain_cmd = {"explain", "why a link is as fast as it is", explain_run,
                                           &explain_argp, NULL};
static const struct hdt_cmd *const subs[] = {&hdt_cmd_link_bench, &explain_cmd, &hdt_cmd_link_echo,
                                             NULL};

static int link_run(int argc, char **argv)
{
    return hdt_cmd_dispatch(subs, "The links between this site and others.\n\nCommands:\n", argc,
                            argv);
}

const struct hdt_cmd hdt_cmd_link = {"link", "links between sites: bench, explain", link_run, NULL,
                                     subs};
