/* SPDX-License-Identifier: Apache-2.0 */
/* hdt eval: loss of a model on a held-out shard, beside what counting byte pairs gives. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/worker_run.h"
#include "src/base/buf.h"
#include "src/core/bigram.h"
#include "src/core/shard.h"

#include <argp.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 65536 /* tokens read at a time */

enum eval_option {
    OPT_CHECKPOINT = 256,
    OPT_DATA,
    OPT_SEQ,
    OPT_MAX_TOKENS,
    OPT_BIGRAM,
    OPT_THREADS,
    OPT_JSON,
};

static const struct argp_option options[] = {
    {"checkpoint", OPT_CHECKPOINT, "DIR", 0,
     "Folder of the checkpoint, or of checkpoints: the "
     "newest one (required)",
     0},
    {"data", OPT_DATA, "FILE", 0, "Token shard, unseen in training (required)", 0},
    {"seq", OPT_SEQ, "N", 0, "Tokens of context (default: the model's)", 0},
    {"max-tokens", OPT_MAX_TOKENS, "N", 0, "Only the first N tokens of the shard", 0},
    {"bigram", OPT_BIGRAM, "FILE", 0,
     "Also count byte pairs in this training shard and say which "
     "loss they give: a model should be clearly below",
     0},
    {"threads", OPT_THREADS, "N", 0, "Threads; 0: one a core (default 0)", 0},
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

struct eval_args {
    const char *checkpoint, *data, *seq, *max_tokens, *bigram, *threads;
    bool json;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct eval_args *args = state->input;

    switch (key) {
    case OPT_CHECKPOINT:
        args->checkpoint = arg;
        return 0;
    case OPT_DATA:
        args->data = arg;
        return 0;
    case OPT_SEQ:
        args->seq = arg;
        return 0;
    case OPT_MAX_TOKENS:
        args->max_tokens = arg;
        return 0;
    case OPT_BIGRAM:
        args->bigram = arg;
        return 0;
    case OPT_THREADS:
        args->threads = arg;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected '%s'", arg);
        return EINVAL;
    case ARGP_KEY_END:
        if (!args->checkpoint || !args->data) {
            argp_error(state, "--checkpoint DIR and --data FILE are needed");
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
    .args_doc = "--checkpoint DIR --data FILE",
    .doc = "Say how well a trained model predicts a text: mean loss in nats a token (hdt-worker "
           "does the work, on this machine).",
};

static enum hdt_status shard_open_bytes(const char *path, struct hdt_shard **shard,
                                        struct hdt_error *err)
{
    struct hdt_shard_options options_ = {.n_vocab = HDT_BIGRAM_VOCAB};
    enum hdt_status status = hdt_shard_open(path, &options_, shard, err);

    if (status != HDT_OK) {
        hdt_error_prefix(err, "cannot count byte pairs");
    }
    return status;
}

static enum hdt_status pairs_count(struct hdt_bigram *bigram, const char *path, int32_t *piece,
                                   struct hdt_error *err)
{
    struct hdt_shard *shard;
    enum hdt_status status;
    uint64_t n_tokens;

    HDT_TRY(shard_open_bytes(path, &shard, err));
    n_tokens = hdt_shard_n_tokens(shard);
    status = HDT_OK;
    for (uint64_t pos = 0; pos < n_tokens && status == HDT_OK; pos += PIECE) {
        size_t n = n_tokens - pos < PIECE ? (size_t)(n_tokens - pos) : PIECE;

        status = hdt_shard_read(shard, pos, n, piece, err);
        if (status == HDT_OK) {
            hdt_bigram_count(bigram, piece, n);
        }
    }
    hdt_shard_close(shard);
    return status;
}

/* Mean loss over the first max_tokens (0: all) of a shard; pieces overlap by one token. */
static enum hdt_status pairs_score(const struct hdt_bigram *bigram, const struct eval_args *args,
                                   int32_t *piece, double *loss, struct hdt_error *err)
{
    uint64_t max_tokens = args->max_tokens ? strtoull(args->max_tokens, NULL, 10) : 0;
    struct hdt_shard *shard;
    enum hdt_status status = HDT_OK;
    uint64_t n_tokens;
    double sum = 0;

    HDT_TRY(shard_open_bytes(args->data, &shard, err));
    n_tokens = hdt_shard_n_tokens(shard);
    n_tokens = max_tokens && max_tokens < n_tokens ? max_tokens : n_tokens;
    for (uint64_t pos = 0; pos + 1 < n_tokens && status == HDT_OK; pos += PIECE - 1) {
        size_t n = n_tokens - pos < PIECE ? (size_t)(n_tokens - pos) : PIECE;

        status = hdt_shard_read(shard, pos, n, piece, err);
        if (status == HDT_OK) {
            hdt_bigram_score(bigram, piece, n, &sum);
        }
    }
    hdt_shard_close(shard);
    if (status == HDT_OK && n_tokens < 2) {
        status = hdt_error_set(err, HDT_EINVAL, "'%s' has fewer than two tokens", args->data);
    }
    *loss = n_tokens > 1 ? sum / (double)(n_tokens - 1) : 0;
    return status;
}

static enum hdt_status bigram_loss(const struct eval_args *args, double *loss,
                                   struct hdt_error *err)
{
    int32_t *piece = hdt_malloc(PIECE * sizeof(*piece));
    struct hdt_bigram *bigram = hdt_bigram_new();
    enum hdt_status status = pairs_count(bigram, args->bigram, piece, err);

    if (status == HDT_OK) {
        status = pairs_score(bigram, args, piece, loss, err);
    }
    hdt_bigram_free(bigram);
    free(piece);
    return status;
}

static void worker_args_make(const struct eval_args *args, struct hdt_worker_args *worker)
{
    hdt_worker_args_add(worker, "--task", "eval");
    hdt_worker_args_add(worker, "--checkpoint", args->checkpoint);
    hdt_worker_args_add(worker, "--data", args->data);
    if (args->seq) {
        hdt_worker_args_add(worker, "--seq", args->seq);
    }
    if (args->max_tokens) {
        hdt_worker_args_add(worker, "--max-tokens", args->max_tokens);
    }
    if (args->threads) {
        hdt_worker_args_add(worker, "--threads", args->threads);
    }
    if (args->json) {
        hdt_worker_args_add(worker, "--json", NULL);
    }
}

/* The worker's JSON with our figure added; as it came when it is no JSON object. */
static void json_print(const struct hdt_buf *text, const double *pairs_loss)
{
    json_t *json = json_loadb(hdt_buf_str(text), text->len, 0, NULL);

    if (!json_is_object(json)) {
        fputs(hdt_buf_str(text), stdout);
    } else {
        if (pairs_loss) {
            json_object_set_new(json, "bigram_loss", json_real(*pairs_loss));
        }
        json_dumpf(json, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(json);
}

static int eval_run(int argc, char **argv)
{
    struct eval_args args = {0};
    struct hdt_worker_args worker = {0};
    struct hdt_buf text = {0};
    struct hdt_error err = {0};
    enum hdt_status status = HDT_OK;
    double pairs_loss = 0;
    int rc = HDT_EXIT_OK;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (args.bigram) {
        status = bigram_loss(&args, &pairs_loss, &err);
    }
    if (status == HDT_OK) {
        worker_args_make(&args, &worker);
        status = hdt_worker_run(&worker, args.json ? &text : NULL, &rc, &err);
    }
    if (status == HDT_OK && rc == HDT_EXIT_OK && args.json) {
        json_print(&text, args.bigram ? &pairs_loss : NULL);
    } else if (status == HDT_OK && rc == HDT_EXIT_OK && args.bigram) {
        printf("counting byte pairs gives loss %.4f (%.2f bits a byte)\n", pairs_loss,
               pairs_loss / M_LN2);
    }
    hdt_worker_args_release(&worker);
    hdt_buf_release(&text);
    return status == HDT_OK ? rc : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_eval = {"eval", "loss of a trained model on a held-out text", eval_run,
                                     &argp, NULL};
