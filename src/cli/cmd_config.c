/* SPDX-License-Identifier: Apache-2.0 */
/* hdt config: everything that the tables of settings know. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/kinds.h"
#include "src/base/buf.h"
#include "src/base/near.h"

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const struct hdt_conf_schema *const kinds[] = {
    &hdt_gateway_conf_schema,
    &hdt_worker_conf_schema,
    &hdt_job_schema,
    &hdt_cluster_file_schema,
    &hdt_devices_schema,
    &hdt_layout_schema,
    NULL,
};

const struct hdt_conf_schema *const *hdt_kinds(void)
{
    return kinds;
}

enum config_option { OPT_JSON = 256 };

struct config_args {
    const char *words[2];
    int n_words, min_words, max_words;
    bool json;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct config_args *args = state->input;

    switch (key) {
    case OPT_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->n_words == args->max_words) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->words[args->n_words++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (args->n_words < args->min_words) {
            argp_error(state, "too few arguments");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The schema that a word names; NULL after a message. */
static const struct hdt_conf_schema *kind_find(const char *word)
{
    struct hdt_error err = {0};
    struct hdt_near near;

    hdt_near_init(&near, word);
    for (size_t i = 0; kinds[i]; i++) {
        if (strcmp(kinds[i]->name, word) == 0) {
            return kinds[i];
        }
        hdt_near_offer(&near, kinds[i]->name);
    }
    hdt_error_set(&err, HDT_EINVAL, "unknown kind of settings '%.64s'", word);
    if (near.best) {
        hdt_error_hint(&err, "did you mean '%s'?", near.best);
    } else {
        hdt_error_hint(&err, "write gateway, worker, job, cluster, layout or devices");
    }
    hdt_error_print(&err, "hdt");
    return NULL;
}

static const struct argp example_argp = {
    .parser = option_parse,
    .args_doc = "gateway|worker|job|cluster|layout|devices",
    .doc = "Print a commented settings file to start from. What must be changed or confirmed "
           "stands as a setting; defaults stand behind a '#'.",
};

static int example_run(int argc, char **argv)
{
    struct config_args args = {.min_words = 1, .max_words = 1};
    const struct hdt_conf_schema *schema;

    hdt_cmd_parse(&example_argp, argc, argv, &args);
    schema = kind_find(args.words[0]);
    if (!schema) {
        return HDT_EXIT_USAGE;
    }
    hdt_conf_write_example(schema, stdout);
    return HDT_EXIT_OK;
}

/* Values of the example that nobody has replaced yet; paths have the file's folder before them. */
static enum hdt_status placeholders_refuse(json_t *json, const char *name, const char *file,
                                           struct hdt_error *err)
{
    static const char placeholder[] = "CHANGE-ME";
    const char *text = json_string_value(json), *key;
    size_t len = text ? strlen(text) : 0, i;
    enum hdt_status status = HDT_OK;
    json_t *item;

    if (len >= sizeof(placeholder) - 1 &&
        strcmp(text + len - (sizeof(placeholder) - 1), placeholder) == 0) {
        hdt_error_set(err, HDT_EINVAL, "'%s' is still %s", name, placeholder);
        hdt_error_where(err, "%s", file);
        hdt_error_hint(err, "write your own value; 'hdt config explain' says what it is");
        return HDT_EINVAL;
    }
    json_object_foreach(json, key, item)
    {
        char *inner = hdt_asprintf("%s%s%s", name, name[0] ? "." : "", key);

        status = status == HDT_OK ? placeholders_refuse(item, inner, file, err) : status;
        free(inner);
    }
    json_array_foreach(json, i, item)
    {
        status = status == HDT_OK ? placeholders_refuse(item, name, file, err) : status;
    }
    return status;
}

static const struct argp_option check_options[] = {
    {"json", OPT_JSON, NULL, 0, "Print the settings as they are in effect, as JSON", 0},
    {0},
};
static const struct argp check_argp = {
    .options = check_options,
    .parser = option_parse,
    .args_doc = "gateway|worker|job|cluster|layout|devices FILE",
    .doc = "Check a settings file: names, types, bounds, required settings. The daemons' "
           "--check-config looks at certificates and addresses too.",
};

static int check_run(int argc, char **argv)
{
    struct config_args args = {.min_words = 2, .max_words = 2};
    const struct hdt_conf_schema *schema;
    struct hdt_error err = {0};
    json_t *json;
    void *conf;
    int rc = HDT_EXIT_OK;

    hdt_cmd_parse(&check_argp, argc, argv, &args);
    schema = kind_find(args.words[0]);
    if (!schema) {
        return HDT_EXIT_USAGE;
    }
    conf = hdt_calloc(1, schema->size);
    if (hdt_conf_load(schema, args.words[1], conf, NULL, &err) != HDT_OK) {
        free(conf);
        return hdt_cmd_fail(&err);
    }
    json = hdt_conf_to_json(schema, conf);
    if (placeholders_refuse(json, "", args.words[1], &err) != HDT_OK) {
        rc = hdt_cmd_fail(&err);
    } else if (args.json) {
        json_dumpf(json, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        printf("%s: good %s settings\n", args.words[1], schema->name);
    }
    json_decref(json);
    hdt_conf_release(schema, conf);
    free(conf);
    return rc;
}

static const struct argp explain_argp = {
    .parser = option_parse,
    .args_doc = "gateway|worker|job|cluster|layout|devices [KEY]",
    .doc = "Say what a setting is: its form, bounds, default and use. Without KEY, all of them.",
};

static int explain_run(int argc, char **argv)
{
    struct config_args args = {.min_words = 1, .max_words = 2};
    const struct hdt_conf_schema *schema;
    struct hdt_error err = {0};

    hdt_cmd_parse(&explain_argp, argc, argv, &args);
    schema = kind_find(args.words[0]);
    if (!schema) {
        return HDT_EXIT_USAGE;
    }
    if (hdt_conf_explain(schema, args.words[1], stdout, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    return HDT_EXIT_OK;
}

static const struct argp mdoc_argp = {.parser = option_parse,
                                      .args_doc = "gateway|worker|job|cluster|layout|devices"};

static int mdoc_run(int argc, char **argv)
{
    struct config_args args = {.min_words = 1, .max_words = 1};
    const struct hdt_conf_schema *schema;

    hdt_cmd_parse(&mdoc_argp, argc, argv, &args);
    schema = kind_find(args.words[0]);
    if (!schema) {
        return HDT_EXIT_USAGE;
    }
    hdt_conf_write_mdoc(schema, stdout);
    return HDT_EXIT_OK;
}

static const struct hdt_cmd example_cmd = {"example", "print a commented file to start from",
                                           example_run, &example_argp, NULL};
static const struct hdt_cmd check_cmd = {"check", "check a file", check_run, &check_argp, NULL};
static const struct hdt_cmd explain_cmd = {"explain", "say what a setting is", explain_run,
                                           &explain_argp, NULL};
/* For the manual pages of this source tree: not listed. */
static const struct hdt_cmd mdoc_cmd = {"mdoc", NULL, mdoc_run, &mdoc_argp, NULL};
static const struct hdt_cmd *const subs[] = {&example_cmd, &check_cmd, &explain_cmd, &mdoc_cmd,
                                             NULL};

static int config_run(int argc, char **argv)
{
    return hdt_cmd_dispatch(subs,
                            "Settings files: gateway (hdt-gateway), worker (hdt-worker), job (hdt "
                            "submit), cluster, layout and devices (predictions).\n\nCommands:\n",
                            argc, argv);
}

const struct hdt_cmd hdt_cmd_config = {"config", "settings files: example, check, explain",
                                       config_run, NULL, subs};
