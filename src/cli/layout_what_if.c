/* SPDX-License-Identifier: Apache-2.0 */
/* --what-if: a cluster with one figure changed. */
#include "config.h"

#include "src/cli/layout_plan_args.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* "KEY:WHERE=VALUE" in its parts; `where` is empty: everywhere. */
struct what_if {
    const char *text;
    char key[16], where[2 * HDT_NAME_CAP + 2], value[32];
};

static enum hdt_status refuse(struct hdt_error *err, const char *text, const char *why)
{
    hdt_error_set(err, HDT_EINVAL, "--what-if '%.100s': %s", text, why);
    hdt_error_hint(err, "write wan=10gbit, rtt=20ms, loss=0.01 (also wan:site-a/site-b=10gbit), "
                        "memory=80 or count=16 (also memory:site-a.a100=80)");
    return HDT_EINVAL;
}

static enum hdt_status what_if_cut(const char *text, struct what_if *w, struct hdt_error *err)
{
    size_t key = strcspn(text, ":=");
    const char *equals = strchr(text, '='), *where = text[key] == ':' ? text + key + 1 : NULL;

    w->text = text;
    if (!equals || key == 0 || key >= sizeof(w->key) || strlen(equals + 1) >= sizeof(w->value) ||
        (where && (where > equals || (size_t)(equals - where) >= sizeof(w->where)))) {
        return refuse(err, text, "it is no KEY=VALUE");
    }
    snprintf(w->key, sizeof(w->key), "%.*s", (int)key, text);
    snprintf(w->where, sizeof(w->where), "%.*s", where ? (int)(equals - where) : 0,
             where ? where : "");
    snprintf(w->value, sizeof(w->value), "%s", equals + 1);
    return HDT_OK;
}

static enum hdt_status number_read(const struct what_if *w, double min, double max, double *number,
                                   struct hdt_error *err)
{
    char *end;

    *number = strtod(w->value, &end);
    if (end == w->value || *end != '\0' || !(*number >= min && *number <= max)) {
        char why[80];

        snprintf(why, sizeof(why), "the value is not a number from %g to %g", min, max);
        return refuse(err, w->text, why);
    }
    return HDT_OK;
}

/* ---- links between sites ---- */

/* "site-a/site-b", in either order. */
static bool is_link(const struct what_if *w, const struct hdt_cluster_file_wan *wan)
{
    char name[2 * HDT_NAME_CAP + 2];

    if (!w->where[0]) {
        return true;
    }
    snprintf(name, sizeof(name), "%.63s/%.63s", wan->from, wan->to);
    if (strcmp(name, w->where) == 0) {
        return true;
    }
    snprintf(name, sizeof(name), "%.63s/%.63s", wan->to, wan->from);
    return strcmp(name, w->where) == 0;
}

static void wan_set(const struct what_if *w, struct hdt_cluster_file_wan *wan, uint64_t rate,
                    double number)
{
    if (strcmp(w->key, "rtt") == 0) {
        wan->rtt_ms = number;
    } else if (strcmp(w->key, "loss") == 0) {
        wan->loss = number;
    } else {
        wan->rate = rate;
        free(wan->link_name);
        wan->link_name = hdt_strdup("");
    }
}

static enum hdt_status wan_change(struct hdt_cluster_file *cluster, const struct what_if *w,
                                  struct hdt_error *err)
{
    struct hdt_cluster_file_wan *wan = cluster->wan.items;
    uint64_t rate = 0;
    double number = 0;
    int64_t ms;
    size_t n = 0;

    if (strcmp(w->key, "rtt") == 0) {
        HDT_TRY(hdt_conf_parse_duration(w->value, &ms, err));
        number = (double)ms;
    } else if (strcmp(w->key, "loss") == 0) {
        HDT_TRY(number_read(w, 0, 0.9, &number, err));
    } else {
        HDT_TRY(hdt_conf_parse_rate(w->value, &rate, err));
        if (rate == 0) {
            return refuse(err, w->text, "max is no rate");
        }
    }
    for (size_t i = 0; i < cluster->wan.n; i++) {
        if (is_link(w, &wan[i]) && !wan[i].via[0]) {
            wan_set(w, &wan[i], rate, number);
            n++;
        }
    }
    return n > 0 ? HDT_OK
                 : refuse(err, w->text,
                          w->where[0] ? "there is no such link between sites"
                                      : "the cluster has no link between sites");
}

/* ---- nodes ---- */

/* "a100" or "site-a.a100". */
static bool is_nodes(const struct what_if *w, const struct hdt_cluster_file_site *site,
                     const struct hdt_cluster_file_nodes *nodes)
{
    char name[2 * HDT_NAME_CAP + 2];

    snprintf(name, sizeof(name), "%.63s.%.63s", site->name, nodes->name);
    return !w->where[0] || strcmp(w->where, nodes->name) == 0 || strcmp(w->where, name) == 0;
}

static enum hdt_status nodes_change(struct hdt_cluster_file *cluster, const struct what_if *w,
                                    struct hdt_error *err)
{
    bool is_memory = strcmp(w->key, "memory") == 0;
    double number;
    size_t n = 0;

    HDT_TRY(is_memory ? number_read(w, 0.1, 1e5, &number, err)
                      : number_read(w, 1, 1e6, &number, err));
    for (size_t i = 0; i < cluster->sites.n; i++) {
        struct hdt_cluster_file_site *site =
            (struct hdt_cluster_file_site *)cluster->sites.items + i;

        for (size_t k = 0; k < site->nodes.n; k++) {
            struct hdt_cluster_file_nodes *nodes =
                (struct hdt_cluster_file_nodes *)site->nodes.items + k;

            if (is_nodes(w, site, nodes)) {
                n++;
                nodes->memory_gb = is_memory ? number : nodes->memory_gb;
                nodes->count = is_memory ? nodes->count : (int64_t)number;
            }
        }
    }
    return n > 0 ? HDT_OK : refuse(err, w->text, "there are no such nodes");
}

enum hdt_status hdt_layout_what_if(struct hdt_cluster_file *cluster, const char *text,
                                   struct hdt_error *err)
{
    struct what_if w;

    HDT_TRY(what_if_cut(text, &w, err));
    if (strcmp(w.key, "wan") == 0 || strcmp(w.key, "rtt") == 0 || strcmp(w.key, "loss") == 0) {
        return wan_change(cluster, &w, err);
    }
    if (strcmp(w.key, "memory") == 0 || strcmp(w.key, "count") == 0) {
        return nodes_change(cluster, &w, err);
    }
    return refuse(err, text, "there is no such key");
}
