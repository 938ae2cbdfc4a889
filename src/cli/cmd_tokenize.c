/* SPDX-License-Identifier: Apache-2.0 */
/* hdt tokenize: a text file to a token shard. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/base/buf.h"
#include "src/core/shard_sums.h"
#include "src/core/tokenizer.h"

#include <argp.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum tokenize_option { OPT_TOKENIZER = 256, OPT_MODEL, OPT_FORMAT, OPT_SUMS, OPT_JSON };

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "Shard to write (default: TEXT with .bin)", 0},
    {"tokenizer", OPT_TOKENIZER, "NAME", 0, "Kind of tokenizer (default byte)", 0},
    {"model", OPT_MODEL, "FILE", 0, "Model file of the tokenizer, if it needs one", 0},
    {"format", OPT_FORMAT, "raw|llmc", 0,
     "Form of the shard (default raw, with a .json beside "
     "it)",
     0},
    {"sums", OPT_SUMS, NULL, 0,
     "TEXT is a token shard of any program: only write digests for it, so that workers find a bit "
     "that flips in it",
     0},
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

struct tokenize_args {
    const char *text, *output, *tokenizer, *model;
    enum hdt_shard_format format;
    bool sums, json;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct tokenize_args *args = state->input;

    switch (key) {
    case 'o':
        args->output = arg;
        return 0;
    case OPT_TOKENIZER:
        args->tokenizer = arg;
        return 0;
    case OPT_MODEL:
        args->model = arg;
        return 0;
    case OPT_FORMAT:
        if (strcmp(arg, "raw") != 0 && strcmp(arg, "llmc") != 0) {
            argp_error(state, "--format '%s' is neither raw nor llmc", arg);
            return EINVAL;
        }
        args->format = strcmp(arg, "raw") == 0 ? HDT_SHARD_RAW : HDT_SHARD_LLMC;
        return 0;
    case OPT_SUMS:
        args->sums = true;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->text) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->text = arg;
        return 0;
    case ARGP_KEY_END:
        if (!args->text) {
            argp_error(state, "a text file is needed");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "TEXT",
    .doc = "Encode a text file as a token shard, for job.yaml's data.train and data.valid.",
};

/* Writing the shard would destroy the text. */
static bool is_same_file(const char *a, const char *b)
{
    struct stat st_a, st_b;

    return stat(a, &st_a) == 0 && stat(b, &st_b) == 0 && st_a.st_dev == st_b.st_dev &&
           st_a.st_ino == st_b.st_ino;
}

static enum hdt_status tokenize(const struct tokenize_args *args, const char *output,
                                uint64_t *n_tokens, struct hdt_error *err)
{
    struct hdt_tokenize_job job = {.text_path = args->text, .shard_path = output};
    struct hdt_tokenizer tok;
    enum hdt_status status;

    if (is_same_file(args->text, output)) {
        return hdt_error_set(err, HDT_EINVAL, "text and shard are the same file, '%s'", output);
    }
    HDT_TRY(hdt_tokenizer_init(&tok, args->tokenizer, args->model, err));
    job.shard.format = args->format;
    status = hdt_tokenize_file(&tok, &job, n_tokens, err);
    hdt_tokenizer_release(&tok);
    return status;
}

/* Digests for a shard that is there. */
static int sums_run(const struct tokenize_args *args)
{
    struct hdt_shard_options options_ = {0};
    struct hdt_error err = {0};
    struct hdt_shard *shard = NULL;
    enum hdt_status status;
    char *path = hdt_asprintf("%s" HDT_SHARD_SUMS_ENDING, args->text);

    unlink(path); /* those of before would refuse it */
    free(path);
    status = hdt_shard_open(args->text, &options_, &shard, &err);
    if (status == HDT_OK) {
        status = hdt_shard_sums_write(hdt_shard_path(shard), hdt_shard_path(shard),
                                      hdt_shard_dtype(shard), &err);
    }
    if (status == HDT_OK) {
        printf("%s" HDT_SHARD_SUMS_ENDING ": %" PRIu64 " tokens\n", hdt_shard_path(shard),
               hdt_shard_n_tokens(shard));
    }
    hdt_shard_close(shard);
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

static int tokenize_run(int argc, char **argv)
{
    struct tokenize_args args = {.tokenizer = "byte", .format = HDT_SHARD_RAW};
    struct hdt_error err = {0};
    uint64_t n_tokens = 0;
    char *output;
    json_t *json;
    int rc = HDT_EXIT_OK;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (args.sums) {
        return sums_run(&args);
    }
    output = args.output ? hdt_strdup(args.output) : hdt_asprintf("%s.bin", args.text);
    if (tokenize(&args, output, &n_tokens, &err) != HDT_OK) {
        rc = hdt_cmd_fail(&err);
    } else if (args.json) {
        json = json_pack("{s:s, s:s, s:I}", "shard", output, "tokenizer", args.tokenizer,
                         "n_tokens", (json_int_t)n_tokens);
        json_dumpf(json, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(json);
    } else {
        printf("%s: %" PRIu64 " tokens (%s)\n", output, n_tokens, args.tokenizer);
    }
    free(output);
    return rc;
}

const struct hdt_cmd hdt_cmd_tokenize = {"tokenize", "encode a text file as a token shard",
                                         tokenize_run, &argp, NULL};
