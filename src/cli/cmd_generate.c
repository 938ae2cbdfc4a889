/* SPDX-License-Identifier: Apache-2.0 */
/* hdt generate: continue a text with a trained model. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/worker_run.h"

#include <argp.h>
#include <stddef.h>

enum generate_option {
    OPT_CHECKPOINT = 256,
    OPT_PROMPT,
    OPT_TOKENS,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_SEED,
    OPT_THREADS,
    OPT_JSON,
};

static const struct argp_option options[] = {
    {"checkpoint", OPT_CHECKPOINT, "DIR", 0,
     "Folder of the checkpoint, or of checkpoints: the "
     "newest one (required)",
     0},
    {"prompt", OPT_PROMPT, "TEXT", 0, "Text to continue (required)", 0},
    {"tokens", OPT_TOKENS, "N", 0, "Tokens to add (default 100)", 0},
    {"temperature", OPT_TEMPERATURE, "X", 0, "0 always takes the likeliest token (default 0.8)", 0},
    {"top-k", OPT_TOP_K, "K", 0, "Choose among the K likeliest tokens; 0: all (default 0)", 0},
    {"seed", OPT_SEED, "N", 0, "Same seed, same text (default 1)", 0},
    {"threads", OPT_THREADS, "N", 0, "Threads; 0: one a core (default 0)", 0},
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

struct generate_args {
    const char *checkpoint, *prompt, *tokens, *temperature, *top_k, *seed, *threads;
    int json;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct generate_args *args = state->input;

    switch (key) {
    case OPT_CHECKPOINT:
        args->checkpoint = arg;
        return 0;
    case OPT_PROMPT:
        args->prompt = arg;
        return 0;
    case OPT_TOKENS:
        args->tokens = arg;
        return 0;
    case OPT_TEMPERATURE:
        args->temperature = arg;
        return 0;
    case OPT_TOP_K:
        args->top_k = arg;
        return 0;
    case OPT_SEED:
        args->seed = arg;
        return 0;
    case OPT_THREADS:
        args->threads = arg;
        return 0;
    case OPT_JSON:
        args->json = 1;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected '%s'; quote the text after --prompt", arg);
        return EINVAL;
    case ARGP_KEY_END:
        if (!args->checkpoint || !args->prompt) {
            argp_error(state, "--checkpoint DIR and --prompt TEXT are needed");
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
    .args_doc = "--checkpoint DIR --prompt TEXT",
    .doc = "Continue a text with a trained model, on this machine (hdt-worker does the work).",
};

static int generate_run(int argc, char **argv)
{
    struct generate_args args = {
        .tokens = "100", .temperature = "0.8", .top_k = "0", .seed = "1", .threads = "0"};
    struct hdt_worker_args worker = {0};
    struct hdt_error err = {0};
    enum hdt_status status;
    int rc = HDT_EXIT_OK;

    hdt_cmd_parse(&argp, argc, argv, &args);
    hdt_worker_args_add(&worker, "--task", "generate");
    hdt_worker_args_add(&worker, "--checkpoint", args.checkpoint);
    hdt_worker_args_add(&worker, "--prompt", args.prompt);
    hdt_worker_args_add(&worker, "--tokens", args.tokens);
    hdt_worker_args_add(&worker, "--temperature", args.temperature);
    hdt_worker_args_add(&worker, "--top-k", args.top_k);
    hdt_worker_args_add(&worker, "--seed", args.seed);
    hdt_worker_args_add(&worker, "--threads", args.threads);
    if (args.json) {
        hdt_worker_args_add(&worker, "--json", NULL);
    }
    status = hdt_worker_run(&worker, NULL, &rc, &err);
    hdt_worker_args_release(&worker);
    return status == HDT_OK ? rc : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_generate = {"generate", "continue a text with a trained model",
                                         generate_run, &argp, NULL};
