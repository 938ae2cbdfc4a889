/* SPDX-License-Identifier: Apache-2.0 */
/* hdt complete WORD...: what may stand in the place of the last word. For etc/hdt.bash-completion,
 * so that completion always fits the program; not listed. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/kinds.h"
#include "src/core/devices.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

static void candidate(const char *word, const char *begin)
{
    if (strncmp(word, begin, strlen(begin)) == 0) {
        puts(word);
    }
}

static void table_print(const struct argp *argp, const char *begin)
{
    char word[64];

    for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++) {
        if (o->name) {
            snprintf(word, sizeof(word), "--%s", o->name);
            candidate(word, begin);
        }
    }
}

/* Options of a command, and of the parsers that it shares with others. */
static void options_print(const struct argp *argp, const char *begin)
{
    table_print(argp, begin);
    for (const struct argp_child *c = argp->children; c && c->argp; c++) {
        table_print(c->argp, begin);
    }
    candidate("--help", begin);
}

/* hdt config COMMAND KIND KEY */
static void config_print(int n, char **words)
{
    const struct hdt_conf_schema *const *kind = hdt_kinds();

    for (; *kind; kind++) {
        if (n == 1) {
            candidate((*kind)->name, words[0]);
        } else if (n == 2 && strcmp((*kind)->name, words[0]) == 0) {
            hdt_conf_write_names(*kind, words[1], stdout);
        }
    }
}

/* hdt device show NAME; nothing where no catalogue is installed. */
static void devices_print(const char *begin)
{
    struct hdt_devices devices;

    if (hdt_devices_load(NULL, &devices, NULL) != HDT_OK) {
        return;
    }
    for (size_t i = 0; i < devices.items.n; i++) {
        candidate(((const struct hdt_device *)devices.items.items)[i].name, begin);
    }
    hdt_devices_release(&devices);
}

static const struct hdt_cmd *table_find(const struct hdt_cmd *const *table, const char *name)
{
    while (*table && strcmp((*table)->name, name) != 0) {
        table++;
    }
    return *table;
}

static int complete_run(int argc, char **argv)
{
    const struct hdt_cmd *const *table = hdt_cmds;
    const struct hdt_cmd *cmd = NULL;
    int i = 1;

    for (; i < argc - 1 && table; i++) {
        cmd = table_find(table, argv[i]);
        if (!cmd) {
            return HDT_EXIT_OK;
        }
        table = cmd->subs;
    }
    if (i >= argc) {
        return HDT_EXIT_OK;
    }
    for (; table && *table; table++) {
        if ((*table)->summary) {
            candidate((*table)->name, argv[argc - 1]);
        }
    }
    if (cmd && cmd->argp && argv[argc - 1][0] == '-') {
        options_print(cmd->argp, argv[argc - 1]);
    } else if (argc > 3 && strcmp(argv[1], "config") == 0) {
        config_print(argc - 3, argv + 3);
    } else if (argc == 4 && strcmp(argv[1], "device") == 0 && strcmp(argv[2], "show") == 0) {
        devices_print(argv[3]);
    }
    return HDT_EXIT_OK;
}

const struct hdt_cmd hdt_cmd_complete = {"complete", NULL, complete_run, NULL, NULL};
