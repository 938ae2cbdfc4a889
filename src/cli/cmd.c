/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/base/buf.h"
#include "src/base/near.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int hdt_cmd_fail(const struct hdt_error *err)
{
    fflush(stdout); /* what was said before it stands before it, in a file, too */
    hdt_error_print(err, "hdt");
    switch (err->status) {
    case HDT_ENOENT:
    case HDT_EPEER:
        return HDT_EXIT_NOT_FOUND;
    case HDT_ETIMEDOUT:
        return HDT_EXIT_TIMED_OUT;
    default:
        return HDT_EXIT_FAILED;
    }
}

void hdt_cmd_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    /* argp takes the part behind the last '/' of argv[0] as the name: it has none. */
    error_t rc = argp_parse(argp, argc, argv, 0, NULL, input);

    if (rc != 0) {
        exit(HDT_EXIT_USAGE);
    }
}

static void table_print(const struct hdt_cmd *const *table, const char *name, const char *intro,
                        FILE *out)
{
    fprintf(out, "Usage: %s COMMAND [ARGUMENT...]\n\n%s", name, intro);
    for (; *table; table++) {
        if ((*table)->summary) {
            fprintf(out, "  %-12s%s\n", (*table)->name, (*table)->summary);
        }
    }
    fprintf(out,
            "\n'%s COMMAND --help' says more. Exit codes: 0 done, 1 failed, 2 wrong command line,\n"
            "3 not found or not running, 4 timed out, 5 done but for what could not be reached.\n",
            name);
}

static int unknown_refuse(const struct hdt_cmd *const *table, const char *name, const char *word)
{
    struct hdt_near near;
    struct hdt_error err = {0};

    hdt_near_init(&near, word);
    for (; *table; table++) {
        if ((*table)->summary) {
            hdt_near_offer(&near, (*table)->name);
        }
    }
    hdt_error_set(&err, HDT_EINVAL, "unknown command '%.64s'", word);
    if (word[0] == '-') {
        hdt_error_set(&err, HDT_EINVAL, "unknown option '%.64s' before a command", word);
        hdt_error_hint(&err, "options follow the command: %s COMMAND %.64s ...", name, word);
    } else if (near.best) {
        hdt_error_hint(&err, "did you mean '%s %s'?", name, near.best);
    } else {
        hdt_error_hint(&err, "'%s --help' lists the commands", name);
    }
    hdt_error_print(&err, "hdt");
    return HDT_EXIT_USAGE;
}

int hdt_cmd_dispatch(const struct hdt_cmd *const *table, const char *intro, int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "--help";
    char *name;
    int rc;

    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "-?") == 0 ||
        strcmp(word, "help") == 0) {
        table_print(table, argv[0], intro, argc > 1 ? stdout : stderr);
        return argc > 1 ? HDT_EXIT_OK : HDT_EXIT_USAGE;
    }
    word = strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0 ? "version" : word;
    for (size_t i = 0; table[i]; i++) {
        if (strcmp(table[i]->name, word) == 0) {
            name = hdt_asprintf("%s %s", argv[0], word);
            argv[1] = name;
            rc = table[i]->run(argc - 1, argv + 1);
            free(name);
            return rc;
        }
    }
    return unknown_refuse(table, argv[0], word);
}
