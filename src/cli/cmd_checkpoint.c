/* SPDX-License-Identifier: Apache-2.0 */
/* hdt checkpoint: what a folder of checkpoints holds, whether it is whole, and copies of it. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/human.h"
#include "src/core/ckpt.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum checkpoint_option { OPT_JSON = 256 };

struct checkpoint_args {
    const char *path[2];
    int n_paths, n_wanted;
    bool json;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct checkpoint_args *args = state->input;

    switch (key) {
    case OPT_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->n_paths == args->n_wanted) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->path[args->n_paths++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (args->n_paths < args->n_wanted) {
            argp_error(state, args->n_wanted == 1 ? "a folder is needed"
                                                  : "two folders are needed: from where to where");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static struct checkpoint_args args_parse(const struct argp *argp, int n_wanted, int argc,
                                         char **argv)
{
    struct checkpoint_args args = {.n_wanted = n_wanted};

    hdt_cmd_parse(argp, argc, argv, &args);
    return args;
}

static json_t *found_json(const struct hdt_ckpt_found *found)
{
    json_t *json = json_pack("{s:s,s:I,s:b,s:s,s:I,s:{s:I,s:s,s:s,s:I}}", "path", found->path,
                             "step", (json_int_t)found->step, "complete", found->complete, "saved",
                             found->saved, "bytes", (json_int_t)found->bytes, "job", "number",
                             (json_int_t)found->owner.number, "name", found->owner.name, "site",
                             found->owner.coordinator, "epoch", (json_int_t)found->owner.epoch);

    json_object_set_new(json, "why", found->complete ? json_null() : json_string(found->why.msg));
    return json;
}

static void json_print(json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

/* ---- list ---- */

static void list_print(const struct hdt_ckpt_found *found, size_t n)
{
    char size[HDT_HUMAN_CAP], job[96];

    printf("%12s  %-20s  %-24s  %10s  %s\n", "STEP", "SAVED", "JOB", "SIZE", "STATE");
    for (size_t i = 0; i < n; i++) {
        snprintf(job, sizeof(job), "%" PRId64 " %s", found[i].owner.number, found[i].owner.name);
        printf("%12" PRId64 "  %-20s  %-24s  %10s  %s\n", found[i].step,
               found[i].saved[0] ? found[i].saved : "-", found[i].owner.name[0] ? job : "-",
               found[i].bytes > 0 ? hdt_human_bytes((double)found[i].bytes, size) : "-",
               found[i].complete ? "complete" : "damaged");
    }
    for (size_t i = 0; i < n; i++) {
        if (!found[i].complete) {
            printf("step %" PRId64 ": %s\n", found[i].step, found[i].why.msg);
        }
    }
}

static const struct argp list_argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "DIR",
    .doc =
        "Say which checkpoints a folder holds, or of one checkpoint's folder what it is: step, time, job, size, and whether all files are "
        "there with the sizes that the manifest says. 'hdt checkpoint verify' reads every byte.",
};

static int list_run(int argc, char **argv)
{
    struct checkpoint_args args = args_parse(&list_argp, 1, argc, argv);
    struct hdt_ckpt_found *found;
    struct hdt_error err = {0};
    json_t *array;
    size_t n;

    if (hdt_ckpt_list(args.path[0], &found, &n, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (n == 0 && hdt_ckpt_look(args.path[0], &found[0])) { /* there is room for one */
        n = 1;
    }
    if (n == 0 && !args.json) {
        printf("there is no checkpoint in '%s'\n", args.path[0]);
    } else if (args.json) {
        array = json_array();
        for (size_t i = 0; i < n; i++) {
            json_array_append_new(array, found_json(&found[i]));
        }
        json_print(array);
    } else {
        list_print(found, n);
    }
    free(found);
    return HDT_EXIT_OK;
}

/* ---- verify ---- */

static const struct argp verify_argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "DIR",
    .doc = "Read every byte of a checkpoint and compare all digests. DIR is a step's folder, or a "
           "folder of checkpoints: the newest one. Exit status 0: it is whole; 1: it is not, and "
           "the message says where.",
};

static int verify_run(int argc, char **argv)
{
    struct checkpoint_args args = args_parse(&verify_argp, 1, argc, argv);
    const struct hdt_ckpt_open how = {0};
    const struct hdt_ckpt_meta *meta;
    struct hdt_ckpt_reader *reader;
    struct hdt_error err = {0};
    char size[HDT_HUMAN_CAP];

    if (hdt_ckpt_reader_open(args.path[0], &how, &reader, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    meta = hdt_ckpt_reader_meta(reader);
    if (args.json) {
        json_print(json_pack("{s:s,s:I,s:I,s:b}", "path", hdt_ckpt_reader_path(reader), "step",
                             (json_int_t)meta->step, "bytes",
                             (json_int_t)hdt_ckpt_reader_bytes(reader), "whole", 1));
    } else {
        printf("%s: step %" PRId64 " of job %" PRId64
               " (%s), %s, every byte is as it was written\n",
               hdt_ckpt_reader_path(reader), meta->step, meta->owner.number, meta->owner.name,
               hdt_human_bytes((double)hdt_ckpt_reader_bytes(reader), size));
    }
    hdt_ckpt_reader_close(reader);
    return HDT_EXIT_OK;
}

/* ---- copy ---- */

static const struct argp copy_argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "FROM TO",
    .doc = "Copy a checkpoint. FROM is a step's folder, or a folder of checkpoints: the newest "
           "one. TO is a new name, or a folder that is there, into which the copy goes as step-N. "
           "What is read is verified, so is what was written, and only then has the copy its "
           "name.",
};

static int copy_run(int argc, char **argv)
{
    struct checkpoint_args args = args_parse(&copy_argp, 2, argc, argv);
    struct hdt_ckpt_found made;
    struct hdt_error err = {0};
    char size[HDT_HUMAN_CAP];

    if (hdt_ckpt_copy(args.path[0], args.path[1], &made, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (args.json) {
        json_print(found_json(&made));
    } else {
        printf("%s: step %" PRId64 ", %s\n", made.path, made.step,
               hdt_human_bytes((double)made.bytes, size));
    }
    return HDT_EXIT_OK;
}

/* ---- the group ---- */

static const struct hdt_cmd list_cmd = {"list", "list a folder's checkpoints", list_run, &list_argp,
                                        NULL};
static const struct hdt_cmd verify_cmd = {"verify", "read every byte and compare digests",
                                          verify_run, &verify_argp, NULL};
static const struct hdt_cmd copy_cmd = {"copy", "copy one, verified on both sides", copy_run,
                                        &copy_argp, NULL};
static const struct hdt_cmd *const subs[] = {&list_cmd, &verify_cmd, &copy_cmd, NULL};

static int checkpoint_run(int argc, char **argv)
{
    return hdt_cmd_dispatch(subs, "Checkpoints, on the machine where they lie.\n\nCommands:\n",
                            argc, argv);
}

const struct hdt_cmd hdt_cmd_checkpoint = {"checkpoint", "checkpoints: list, verify, copy",
                                           checkpoint_run, NULL, subs};
