/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/layout_plan_args.h"
#include "src/base/buf.h"
#include "src/base/near.h"
#include "compress/codec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- words of the command line ---- */

enum layout_plan_option {
    OPT_OUTPUT = 512,
    OPT_SVG,
    OPT_MODEL,
    OPT_CATALOGUE,
    OPT_OBJECTIVE,
    OPT_DEVICE_PRICE,
    OPT_PIN,
    OPT_WITHOUT,
    OPT_WHAT_IF,
    OPT_COMPARE,
    OPT_CURRENT,
    OPT_STEPS_LEFT,
    OPT_TIME_LIMIT
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Of a layout, whose plan is searched:", 2},
    {"output", OPT_OUTPUT, "FILE", 0, "Write the plan: a layout for 'hdt simulate'", 2},
    {"svg", OPT_SVG, "FILE", 0, "Draw the step: ranks over time, and the critical path", 2},
    {"model", OPT_MODEL, "FILE", 0, "This config.json, not the layout's own", 2},
    {"catalogue", OPT_CATALOGUE, "FILE", 0, "Another catalogue of devices than the installed one",
     2},
    {"objective", OPT_OBJECTIVE, "NAME", 0,
     "What is to be best: throughput, cost (traffic between sites by its price, devices by "
     "--device-price) or energy [throughput]",
     2},
    {"device-price", OPT_DEVICE_PRICE, "PRICE", 0,
     "Price of a device that is used, by the hour, in the currency of the cluster's price_per_gb "
     "[0]",
     2},
    {"pin", OPT_PIN, "'layers=LIST site=SITE'", 0,
     "Keep layers at a site: embed (there come the raw tokens in), head (and the labels), numbers "
     "from 1 as 1-12; may be given several times",
     2},
    {"without", OPT_WITHOUT, "SITE", 0, "Do without this site; may be given several times", 2},
    {"what-if", OPT_WHAT_IF, "KEY=VALUE", 0,
     "Plan for another cluster, too, and compare: wan=10gbit, rtt=20ms, loss=0.01, memory=80, "
     "count=16, each also of one link or kind of nodes, as wan:site-a/site-b=10gbit or "
     "memory:site-a.a100=80; may be given several times",
     2},
    {"compare", OPT_COMPARE, "FILE", 0, "Compare with the plan in FILE, of the same job", 2},
    {"current", OPT_CURRENT, "FILE", 0,
     "The plan in FILE runs: keep what need not move, say what moves and what is gained", 2},
    {"steps-left", OPT_STEPS_LEFT, "N", 0,
     "With --current: steps that are still to be done, which moving has to pay in [1000]", 2},
    {"time-limit", OPT_TIME_LIMIT, "TIME", 0, "End the search after TIME, as 500ms or 10s", 2},
    {0},
};

static void text_add(struct hdt_layout_texts *texts, const char *text)
{
    texts->items = hdt_realloc(texts->items, (texts->n + 1) * sizeof(texts->items[0]));
    texts->items[texts->n++] = hdt_strdup(text);
}

static void texts_release(struct hdt_layout_texts *texts)
{
    for (size_t i = 0; i < texts->n; i++) {
        free(texts->items[i]);
    }
    free(texts->items);
}

void hdt_layout_plan_args_release(struct hdt_layout_plan_args *args)
{
    texts_release(&args->pins);
    texts_release(&args->without);
    texts_release(&args->what_if);
    memset(args, 0, sizeof(*args));
}

static void objective_parse(struct hdt_layout_plan_args *args, const char *text,
                            struct argp_state *state)
{
    for (int i = 0; hdt_layout_objective_names[i]; i++) {
        if (strcmp(hdt_layout_objective_names[i], text) == 0) {
            args->objective = i;
            return;
        }
    }
    argp_error(state, "--objective '%s' is none of throughput, cost, energy", text);
}

static void price_parse(struct hdt_layout_plan_args *args, const char *text,
                        struct argp_state *state)
{
    char *end;

    args->device_hour_price = strtod(text, &end);
    if (end == text || *end != '\0' || !(args->device_hour_price >= 0) ||
        args->device_hour_price > 1e6) {
        argp_error(state, "--device-price '%s' is not a number from 0 to 1e6", text);
    }
}

static void limit_parse(struct hdt_layout_plan_args *args, const char *text,
                        struct argp_state *state)
{
    struct hdt_error err = {0};
    int64_t ms = 0;

    if (hdt_conf_parse_duration(text, &ms, &err) != HDT_OK || ms <= 0) {
        argp_error(state, "--time-limit '%s' is not a time, as 500ms or 10s", text);
    }
    args->time_limit_s = 1e-3 * (double)ms;
}

static void steps_parse(struct hdt_layout_plan_args *args, const char *text,
                        struct argp_state *state)
{
    char *end;
    long long n = strtoll(text, &end, 10);

    if (end == text || *end != '\0' || n < 1 || n > 1000000000) {
        argp_error(state, "--steps-left '%s' is not a number of steps from 1 to 1e9", text);
    }
    args->steps_left = (double)n;
}

/* Where a file's name goes; NULL: the option takes none. */
static const char **file_of(struct hdt_layout_plan_args *args, int key)
{
    switch (key) {
    case OPT_OUTPUT:
        return &args->output;
    case OPT_SVG:
        return &args->svg;
    case OPT_MODEL:
        return &args->instead.model;
    case OPT_CATALOGUE:
        return &args->instead.catalogue;
    case OPT_COMPARE:
        return &args->compare;
    case OPT_CURRENT:
        return &args->current;
    default:
        return NULL;
    }
}

static struct hdt_layout_texts *texts_of(struct hdt_layout_plan_args *args, int key)
{
    return key == OPT_PIN       ? &args->pins
           : key == OPT_WITHOUT ? &args->without
           : key == OPT_WHAT_IF ? &args->what_if
                                : NULL;
}

static const char *name_of(int key)
{
    for (const struct argp_option *o = options; o->name || o->doc; o++) {
        if (o->key == key) {
            return o->name;
        }
    }
    return NULL;
}

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct hdt_layout_plan_args *args = state->input;
    const char **file = file_of(args, key);
    struct hdt_layout_texts *texts = texts_of(args, key);

    if (file) {
        *file = arg;
    } else if (texts) {
        text_add(texts, arg);
    } else if (key == OPT_OBJECTIVE) {
        objective_parse(args, arg, state);
    } else if (key == OPT_DEVICE_PRICE) {
        price_parse(args, arg, state);
    } else if (key == OPT_TIME_LIMIT) {
        limit_parse(args, arg, state);
    } else if (key == OPT_STEPS_LEFT) {
        steps_parse(args, arg, state);
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    args->given = name_of(key);
    return 0;
}

const struct argp hdt_layout_plan_argp = {.options = options, .parser = option_parse};

/* Words come behind all options, in their order: the first pin that lacks its site takes it. */
bool hdt_layout_plan_args_take(struct hdt_layout_plan_args *args, char *word)
{
    if (strncmp(word, "site=", 5) != 0) {
        return false;
    }
    for (size_t i = 0; i < args->pins.n; i++) {
        char *pin = args->pins.items[i];

        if (!strstr(pin, "site=")) {
            args->pins.items[i] = hdt_asprintf("%s %s", pin, word);
            free(pin);
            return true;
        }
    }
    return false;
}

/* ---- pins ---- */

static enum hdt_status pin_refuse(struct hdt_error *err, const char *text, const char *why)
{
    hdt_error_set(err, HDT_EINVAL, "--pin '%.100s': %s", text, why);
    hdt_error_hint(err, "write it as --pin 'layers=embed,head site=site-a' or 'layers=1-12 "
                        "site=site-a'; layers are counted from 1");
    return HDT_EINVAL;
}

static enum hdt_status site_find(const struct hdt_layout_files *files, const char *option,
                                 const char *name, size_t *idx, struct hdt_error *err)
{
    struct hdt_near near;

    *idx = hdt_cluster_file_find_site(&files->cluster, name);
    if (*idx < files->cluster.sites.n) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EINVAL, "%s: the cluster has no site '%.64s'", option, name);
    hdt_near_init(&near, name);
    for (size_t i = 0; i < files->cluster.sites.n; i++) {
        hdt_near_offer(&near, hdt_cluster_file_site(&files->cluster, i)->name);
    }
    hdt_error_hint(err, "it has '%.64s'",
                   near.best ? near.best : hdt_cluster_file_site(&files->cluster, 0)->name);
    return HDT_EINVAL;
}

/* "7" or "7-12", counted from 1. */
static bool range_read(const char *text, int64_t *first, int64_t *last)
{
    char *end;

    *first = *last = strtoll(text, &end, 10);
    if (end != text && *end == '-') {
        text = end + 1;
        *last = strtoll(text, &end, 10);
    }
    return end != text && *end == '\0' && *first >= 1 && *last >= *first;
}

static enum hdt_status pin_add(struct hdt_layout_search_options *o, const char *text,
                               const struct hdt_layout_pin *pin, struct hdt_error *err)
{
    if (o->n_pins == HDT_LAYOUT_SEARCH_MAX_PINS) {
        return pin_refuse(err, text, "there are too many pins");
    }
    o->pins[o->n_pins++] = *pin;
    return HDT_OK;
}

/* Embed and head of the list are one pin, each range of layers is one. */
static enum hdt_status pin_layers(const char *text, char *list, int64_t n_layers, size_t site_idx,
                                  struct hdt_layout_search_options *o, struct hdt_error *err)
{
    struct hdt_layout_pin ends = {.site_idx = site_idx};
    char *state = NULL;

    for (char *w = strtok_r(list, ",", &state); w; w = strtok_r(NULL, ",", &state)) {
        struct hdt_layout_pin pin = {.parts = HDT_LAYOUT_PIN_LAYERS, .site_idx = site_idx};

        if (strcmp(w, "embed") == 0) {
            ends.parts |= HDT_LAYOUT_PIN_EMBED;
        } else if (strcmp(w, "head") == 0) {
            ends.parts |= HDT_LAYOUT_PIN_HEAD;
        } else if (!range_read(w, &pin.first_layer, &pin.last_layer)) {
            return pin_refuse(err, text, "layers are embed, head, a number or a range");
        } else if (pin.last_layer > n_layers) {
            return pin_refuse(err, text, "the model has fewer layers");
        } else {
            pin.first_layer--;
            pin.last_layer--;
            HDT_TRY(pin_add(o, text, &pin, err));
        }
    }
    return ends.parts ? pin_add(o, text, &ends, err) : HDT_OK;
}

static enum hdt_status pin_read(const struct hdt_layout_files *files, const char *text,
                                struct hdt_layout_search_options *o, struct hdt_error *err)
{
    char *copy = hdt_strdup(text), *state = NULL, *layers = NULL, *site = NULL;
    enum hdt_status status = HDT_OK;
    size_t site_idx = 0;

    for (char *w = strtok_r(copy, " ", &state); w && status == HDT_OK;
         w = strtok_r(NULL, " ", &state)) {
        if (strncmp(w, "layers=", 7) == 0 && w[7] && !layers) {
            layers = w + 7;
        } else if (strncmp(w, "site=", 5) == 0 && w[5] && !site) {
            site = w + 5;
        } else {
            status = pin_refuse(err, text, "it has layers=LIST and site=SITE, once each");
        }
    }
    if (status == HDT_OK && (!layers || !site)) {
        status = pin_refuse(err, text, !layers ? "it lacks layers=" : "it lacks site=");
    }
    if (status == HDT_OK) {
        status = site_find(files, "--pin", site, &site_idx, err);
    }
    if (status == HDT_OK) {
        status = pin_layers(text, layers, files->model.L, site_idx, o, err);
    }
    free(copy);
    return status;
}

/* ---- codecs ---- */

/* Least bytes a second of the memory of any device: who codes there is bound by it. */
static double slowest_memory(const struct hdt_layout_files *files)
{
    double least = INFINITY;

    for (size_t i = 0; i < files->cluster.sites.n; i++) {
        const struct hdt_cluster_file_site *site = hdt_cluster_file_site(&files->cluster, i);

        for (size_t k = 0; k < site->nodes.n; k++) {
            double rate = hdt_cluster_file_nodes(site, k)->device->memory.gb_per_s;

            least = rate < least ? rate : least;
        }
    }
    return isfinite(least) ? least : NAN;
}

/* What a codec leaves of a value, from its own count for a long tensor of fp32. */
static enum hdt_status coded_bytes(const char *name, double *bytes, struct hdt_error *err)
{
    const size_t n = 1u << 20;
    struct hdt_codec_spec spec;
    size_t bound;

    HDT_TRY(hdt_codec_spec_parse(name, &spec, err));
    if (spec.gateway != HDT_CODEC_NONE || spec.worker > HDT_CODEC_INT4 ||
        (spec.flags & HDT_CODEC_DELTA)) {
        hdt_error_set(err, HDT_EINVAL, "--codec '%.32s': what it leaves depends on the data", name);
        hdt_error_hint(err, "a layout takes none, bf16, fp16, fp8, int8 and int4; of others give "
                            "wan.codec_ratio in the layout");
        return HDT_EINVAL;
    }
    HDT_TRY(
        hdt_codec_bound(hdt_codec_spec_worker(&spec), &spec, HDT_DTYPE_F32, 4 * n, &bound, err));
    *bytes = (double)bound / (double)n;
    return HDT_OK;
}

static enum hdt_status codec_add(const struct hdt_layout_files *files, const char *name,
                                 struct hdt_layout_search_options *o, struct hdt_error *err)
{
    const struct hdt_layout *l = &files->layout;
    double value = l->precision <= HDT_PRECISION_TF32 ? 4 : 2;
    double gradient = l->fp32_gradients ? 4 : value, bytes;
    struct hdt_layout_codec *codec = &o->codecs[o->n_codecs];

    if (o->n_codecs == HDT_LAYOUT_SEARCH_CODECS) {
        return hdt_error_set(err, HDT_EINVAL, "--codec: more than %d codecs",
                             HDT_LAYOUT_SEARCH_CODECS);
    }
    HDT_TRY(coded_bytes(name, &bytes, err));
    snprintf(codec->name, sizeof(codec->name), "%s", name);
    codec->ratio = fmin(1, bytes / value);
    codec->sync_ratio = fmin(1, bytes / gradient);
    /* Read whole, written coded. */
    codec->gb_per_s =
        strcmp(name, "none") == 0 ? NAN : slowest_memory(files) * value / (value + bytes);
    o->n_codecs++;
    return HDT_OK;
}

static enum hdt_status codecs_read(const struct hdt_layout_plan_args *args,
                                   const struct hdt_layout_files *files,
                                   struct hdt_layout_search_options *o, struct hdt_error *err)
{
    char *copy = args->codec ? hdt_strdup(args->codec) : NULL, *state = NULL;
    enum hdt_status status = HDT_OK;

    for (char *w = copy ? strtok_r(copy, ",", &state) : NULL; w && status == HDT_OK;
         w = strtok_r(NULL, ",", &state)) {
        status = codec_add(files, w, o, err);
    }
    free(copy);
    return status;
}

/* ---- options ---- */

/* What the layout's file says itself is kept, unless the command line says more. */
static unsigned kept(const struct hdt_layout_plan_args *args, const struct hdt_layout_files *files)
{
    unsigned keep = hdt_layout_search_given(files);

    keep |= args->schedule ? HDT_LAYOUT_KEEP_SCHEDULE : 0;
    return args->codec ? keep & ~(unsigned)HDT_LAYOUT_KEEP_CODEC : keep | HDT_LAYOUT_KEEP_CODEC;
}

enum hdt_status hdt_layout_plan_options(const struct hdt_layout_plan_args *args,
                                        const struct hdt_layout_files *files,
                                        struct hdt_layout_search_options *o, struct hdt_error *err)
{
    memset(o, 0, sizeof(*o));
    o->objective = (enum hdt_layout_objective)args->objective;
    o->device_hour_price = args->device_hour_price;
    o->time_limit_s = args->time_limit_s;
    o->keep = kept(args, files);
    HDT_TRY(codecs_read(args, files, o, err));
    for (size_t i = 0; i < args->pins.n; i++) {
        HDT_TRY(pin_read(files, args->pins.items[i], o, err));
    }
    for (size_t i = 0; i < args->without.n; i++) {
        if (o->n_without == HDT_LAYOUT_SEARCH_MAX_GONE) {
            return hdt_error_set(err, HDT_EINVAL, "--without: more than %d sites",
                                 HDT_LAYOUT_SEARCH_MAX_GONE);
        }
        HDT_TRY(
            site_find(files, "--without", args->without.items[i], &o->without[o->n_without], err));
        o->n_without++;
    }
    return HDT_OK;
}
