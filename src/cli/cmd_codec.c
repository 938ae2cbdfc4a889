/* SPDX-License-Identifier: Apache-2.0 */
/* hdt codec: what codecs there are, and what they do. */
#include "config.h"

#include "compress/codec.h"
#include "src/base/buf.h"
#include "src/cli/cmd.h"
#include "src/cli/codec_bench.h"
#include "src/cli/codec_explain.h"

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* ---- list ---- */

static error_t list_option(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key == 'j') {
        *(bool *)state->input = true;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp_option list_options[] = {
    {"json", 'j', NULL, 0, "Print JSON", 0},
    {0},
};
static const struct argp list_argp = {
    .options = list_options,
    .parser = list_option,
    .doc = "Say which codecs there are, what each does, where it runs, and how a job writes it.",
};

static const char *place_of(const struct hdt_codec_ops *ops)
{
    return ops->caps & HDT_CODEC_AT_WORKER ? "worker" : "gateway";
}

static void list_json(const struct hdt_codec_word *words, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++) {
        const struct hdt_codec_ops *ops = hdt_codec_by_id(words[i].id);

        json_array_append_new(
            array, json_pack("{s:s,s:s,s:b,s:b,s:s,s:s}", "codec", words[i].name, "at",
                             place_of(ops), "exact", (ops->caps & HDT_CODEC_EXACT) != 0, "feedback",
                             (int)ops->has_state, "help", ops->help, "examples", words[i].texts));
    }
    json_dumpf(array, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(array);
}

static int list_run(int argc, char **argv)
{
    const struct hdt_codec_word *words;
    bool as_json = false;
    size_t n;

    hdt_cmd_parse(&list_argp, argc, argv, &as_json);
    words = hdt_codec_words(&n);
    if (as_json) {
        list_json(words, n);
        return HDT_EXIT_OK;
    }
    printf("%-9s  %-7s  %-5s  %s\n", "CODEC", "AT", "EXACT", "WHAT IT DOES; AS A JOB WRITES IT");
    for (size_t i = 0; i < n; i++) {
        const struct hdt_codec_ops *ops = hdt_codec_by_id(words[i].id);

        printf("%-9s  %-7s  %-5s  %s\n%-9s  %-7s  %-5s  %s\n", words[i].name, place_of(ops),
               ops->caps & HDT_CODEC_EXACT ? "yes" : "no", ops->help, "", "", "", words[i].texts);
    }
    printf(
        "\n'+lossless' may follow any but none and lossless, as in bf16+lossless; a gateway does it.\n");
    return HDT_EXIT_OK;
}

/* ---- the group ---- */

static const struct hdt_cmd list_cmd = {"list", "the codecs that there are", list_run, &list_argp,
                                        NULL};
static const struct hdt_cmd *const subs[] = {&hdt_cmd_codec_bench, &hdt_cmd_codec_explain,
                                             &list_cmd, NULL};

static int codec_run(int argc, char **argv)
{
    return hdt_cmd_dispatch(subs, "What is done to tensors on their way.\n\nCommands:\n", argc,
                            argv);
}

const struct hdt_cmd hdt_cmd_codec = {"codec", "codecs: list, measure on your own tensors, explain",
                                      codec_run, NULL, subs};
