/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_CMD_H
#define HDT_CLI_CMD_H

/*
 * Sub-commands of `hdt`: one table (hdt_main.c), one file each (cmd_<name>.c). To add one: write
 * its file with a `const struct hdt_cmd hdt_cmd_<name>`, name it below and in the table.
 */
#include "src/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exit codes of all sub-commands, for scripts. */
enum hdt_exit {
    HDT_EXIT_OK = 0,
    HDT_EXIT_FAILED = 1,    /* what was asked for failed; the message says why */
    HDT_EXIT_USAGE = 2,     /* the command line is wrong; nothing was done */
    HDT_EXIT_NOT_FOUND = 3, /* a file, job or certificate is not there, or nothing answers */
    HDT_EXIT_TIMED_OUT = 4, /* no progress before the deadline */
    HDT_EXIT_PARTIAL = 5,   /* done, but for what could not be reached */
};

struct argp;

struct hdt_cmd {
    const char *name;
    const char *summary; /* one line, lower case, no period */
    /* argv[0] is the whole name ("hdt ca init"), for messages. Returns an enum hdt_exit. NULL for
     * a group. */
    int (*run)(int argc, char **argv);
    const struct argp *argp;           /* its options, for completion; may be NULL */
    const struct hdt_cmd *const *subs; /* a group's sub-commands, NULL-terminated; else NULL */
};

/* Print the error as "hdt: ..." with its hint; returns the exit code that its status means. */
int hdt_cmd_fail(const struct hdt_error *err);

/* Parse with argp: --help, --usage and errors end the process (0 or HDT_EXIT_USAGE). argv[0] names
 * the command in what is printed. */
void hdt_cmd_parse(const struct argp *argp, int argc, char **argv, void *input);

/* Run the sub-command that argv[1] names, from a NULL-terminated table; without one, or with
 * --help, list them. `intro` stands on top of that list. */
int hdt_cmd_dispatch(const struct hdt_cmd *const *table, const char *intro, int argc, char **argv);

/* The top table, NULL-terminated. */
extern const struct hdt_cmd *const hdt_cmds[];

extern const struct hdt_cmd hdt_cmd_ca;
extern const struct hdt_cmd hdt_cmd_checkpoint;
extern const struct hdt_cmd hdt_cmd_cluster;
extern const struct hdt_cmd hdt_cmd_codec;
extern const struct hdt_cmd hdt_cmd_complete;
extern const struct hdt_cmd hdt_cmd_config;
extern const struct hdt_cmd hdt_cmd_device;
extern const struct hdt_cmd hdt_cmd_doctor;
extern const struct hdt_cmd hdt_cmd_eval;
extern const struct hdt_cmd hdt_cmd_export;
extern const struct hdt_cmd hdt_cmd_generate;
extern const struct hdt_cmd hdt_cmd_link;
extern const struct hdt_cmd hdt_cmd_logs;
extern const struct hdt_cmd hdt_cmd_plan;
extern const struct hdt_cmd hdt_cmd_simulate;
extern const struct hdt_cmd hdt_cmd_status;
extern const struct hdt_cmd hdt_cmd_stop;
extern const struct hdt_cmd hdt_cmd_submit;
extern const struct hdt_cmd hdt_cmd_tokenize;
extern const struct hdt_cmd hdt_cmd_version;

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_CMD_H */
