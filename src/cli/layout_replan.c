/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/layout_replan.h"
#include "src/base/buf.h"
#include "src/cli/human.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Lines of the list of moves in text; JSON has all. */
#define ROWS_SHOWN 24
/* A site and its nodes. */
#define NODES_CAP 144

void hdt_layout_replan_release(struct hdt_layout_replan *r)
{
    hdt_layout_moves_release(&r->moves);
}

double hdt_layout_replan_pays(const struct hdt_layout_search_other *from,
                              const struct hdt_layout_search_other *to)
{
    if (to->move_s <= from->move_s && to->step_s <= from->step_s) {
        return 0;
    }
    return to->step_s < from->step_s
               ? ceil((to->move_s - from->move_s) / (from->step_s - to->step_s))
               : INFINITY;
}

/* ---- text ---- */

/* "0.4 s a step faster (-7.1 %), 2 min more to move: pays after 300 of 1000 steps" */
static void against_print(const struct hdt_layout_replan *r,
                          const struct hdt_layout_search_other *from,
                          const struct hdt_layout_search_other *to, FILE *out)
{
    double pays = hdt_layout_replan_pays(from, to), gain_s = from->step_s - to->step_s;
    char step[HDT_HUMAN_CAP], move[HDT_HUMAN_CAP];

    fprintf(out, "%s a step %s (%+.1f %%)", hdt_human_time(fabs(gain_s), step),
            gain_s < 0 ? "slower" : "faster", 100 * (to->step_s / from->step_s - 1));
    if (to->move_s != from->move_s) {
        fprintf(out, ", %s %s to move", hdt_human_time(fabs(to->move_s - from->move_s), move),
                to->move_s > from->move_s ? "more" : "less");
    }
    if (pays == 0) {
        fprintf(out, ": it pays at once\n");
    } else if (gain_s < 0 && to->move_s < from->move_s) {
        fprintf(out, ": the other would pay after %.0f steps, %.0f are left\n",
                hdt_layout_replan_pays(to, from), r->steps_left);
    } else if (isinf(pays)) {
        fprintf(out, ": it never pays\n");
    } else {
        fprintf(out, ": it pays after %.0f step%s, %.0f are left\n", pays, pays == 1 ? "" : "s",
                r->steps_left);
    }
}

static bool is_same(const struct hdt_layout_search_other *a,
                    const struct hdt_layout_search_other *b)
{
    return a->step_s == b->step_s && a->move_s == b->move_s;
}

static void other_print(const struct hdt_layout_replan *r, const char *name,
                        const struct hdt_layout_search_other *other, FILE *out)
{
    char move[HDT_HUMAN_CAP];

    if (!other->is_known) {
        return;
    }
    if (is_same(other, &r->now)) {
        fprintf(out, "%-11sis the plan above\n", name);
        return;
    }
    fprintf(out, "%-11s%.4g s a step, %s to move; the plan above is ", name, other->step_s,
            other->move_s > 0 ? hdt_human_time(other->move_s, move) : "nothing");
    against_print(r, other, &r->now, out);
}

static void current_print(const struct hdt_layout_replan *r, FILE *out)
{
    struct hdt_layout_search_other was = {.step_s = r->was_step_s};

    if (isnan(r->was_step_s)) {
        fprintf(out, "current    cannot go on: %s\n", r->was_why);
        if (r->repair.is_known && is_same(&r->repair, &r->now)) {
            fprintf(out,
                    "           keep what is left of it: of %.0f steps left no other plan "
                    "pays\n",
                    r->steps_left);
        }
    } else if (r->goes_on) {
        fprintf(out,
                "current    keep: %.4g s a step as it runs; in the %.0f steps left no other "
                "plan pays\n",
                r->was_step_s, r->steps_left);
    } else {
        fprintf(out, "current    %.4g s a step as it runs; the plan above is ", r->was_step_s);
        against_print(r, &was, &r->now, out);
    }
}

/* "embedding", "3-7", "head": layers from 1. */
static void layers_text(const struct hdt_layout_replan *r, const struct hdt_layout_move *m,
                        char *text, size_t cap)
{
    const char *first = m->first == 0 ? "embed" : NULL;
    bool has_head = m->last == r->n_units - 1;
    char a[24], b[24];

    snprintf(a, sizeof(a), "%lld", (long long)m->first);
    snprintf(b, sizeof(b), "%lld", (long long)m->last);
    if (m->first == m->last) {
        snprintf(text, cap, "%s", first ? first : has_head ? "head" : a);
    } else {
        snprintf(text, cap, "%s-%s", first ? first : a, has_head ? "head" : b);
    }
}

static void nodes_text(const struct hdt_layout_replan *r, size_t site, size_t nodes, char *text,
                       size_t cap)
{
    const struct hdt_cluster_file_site *s = hdt_cluster_file_site(r->cluster, site);

    snprintf(text, cap, "%s.%s", s->name, hdt_cluster_file_nodes(s, nodes)->name);
}

static void from_text(const struct hdt_layout_replan *r, const struct hdt_layout_move *m,
                      char *text, size_t cap)
{
    if (m->is_stored) {
        snprintf(text, cap, "the checkpoint");
    } else {
        nodes_text(r, m->from_site, m->from_nodes, text, cap);
    }
}

static void rows_print(const struct hdt_layout_replan *r, FILE *out)
{
    const struct hdt_layout_moves *m = &r->moves;

    if (m->n == 0) {
        return;
    }
    fprintf(out, "           %-13s %-20s %-20s %10s %12s\n", "layers", "from", "to", "bytes",
            "alone");
    for (size_t i = 0; i < m->n && i < ROWS_SHOWN; i++) {
        char layers[48], from[NODES_CAP], to[NODES_CAP], cut[2][24];
        char bytes[HDT_HUMAN_CAP], t[HDT_HUMAN_CAP];

        layers_text(r, &m->items[i], layers, sizeof(layers));
        from_text(r, &m->items[i], from, sizeof(from));
        nodes_text(r, m->items[i].to_site, m->items[i].to_nodes, to, sizeof(to));
        fprintf(out, "           %-13s %-20s %-20s %10s %12s\n", layers,
                hdt_human_cut(from, 20, cut[0], sizeof(cut[0])),
                hdt_human_cut(to, 20, cut[1], sizeof(cut[1])),
                hdt_human_bytes(m->items[i].bytes, bytes), hdt_human_time(m->items[i].seconds, t));
    }
    if (m->n > ROWS_SHOWN) {
        fprintf(out, "           and %zu more (--json has all)\n", m->n - ROWS_SHOWN);
    }
}

static void moves_print(const struct hdt_layout_replan *r, FILE *out)
{
    const struct hdt_layout_moves *m = &r->moves;
    char site[HDT_HUMAN_CAP], wan[HDT_HUMAN_CAP], stored[HDT_HUMAN_CAP], t[HDT_HUMAN_CAP];

    if (m->n == 0) {
        fprintf(out, "moves      0 of %lld layers of nodes: nothing waits\n", (long long)m->n_all);
        return;
    }
    fprintf(out, "moves      %lld of %lld layers of nodes; %s inside sites, %s between sites",
            (long long)m->n_layers, (long long)m->n_all, hdt_human_bytes(m->site_bytes, site),
            hdt_human_bytes(m->wan_bytes, wan));
    if (m->stored_bytes > 0) {
        fprintf(out, ", %s from the checkpoint", hdt_human_bytes(m->stored_bytes, stored));
    }
    if (m->link[0]) {
        fprintf(out, "; %s, by %s\n", hdt_human_time(m->seconds, t), m->link);
    } else {
        fprintf(out, "; no link waits, the checkpoint's rate is not known\n");
    }
    rows_print(r, out);
}

void hdt_layout_replan_print(const struct hdt_layout_replan *r, FILE *out)
{
    if (!r->is_asked) {
        return;
    }
    current_print(r, out);
    if (!r->goes_on) {
        other_print(r, "repair", &r->repair, out);
        other_print(r, "anew", &r->fresh, out);
    }
    moves_print(r, out);
}

/* ---- JSON ---- */

static json_t *number(double n)
{
    return isfinite(n) ? json_real(n) : json_null();
}

static json_t *other_json(const struct hdt_layout_replan *r,
                          const struct hdt_layout_search_other *other)
{
    return other->is_known
               ? json_pack("{s:f, s:f, s:f, s:o}", "step_s", other->step_s, "move_s", other->move_s,
                           "total", other->total, "plan_pays_after_steps",
                           number(hdt_layout_replan_pays(other, &r->now)))
               : json_null();
}

static json_t *row_json(const struct hdt_layout_replan *r, const struct hdt_layout_move *m)
{
    char layers[48], from[NODES_CAP], to[NODES_CAP];

    layers_text(r, m, layers, sizeof(layers));
    from_text(r, m, from, sizeof(from));
    nodes_text(r, m->to_site, m->to_nodes, to, sizeof(to));
    return json_pack("{s:s, s:I, s:I, s:o, s:s, s:f, s:f}", "layers", layers, "first",
                     (json_int_t)m->first, "last", (json_int_t)m->last, "from",
                     m->is_stored ? json_null() : json_string(from), "to", to, "bytes", m->bytes,
                     "seconds", m->seconds);
}

json_t *hdt_layout_replan_json(const struct hdt_layout_replan *r)
{
    const struct hdt_layout_moves *m = &r->moves;
    struct hdt_layout_search_other was = {.step_s = r->was_step_s};
    json_t *rows = json_array();

    for (size_t i = 0; i < m->n; i++) {
        json_array_append_new(rows, row_json(r, &m->items[i]));
    }
    return json_pack(
        "{s:o, s:s, s:f, s:b, s:f, s:o, s:f, s:o, s:o, s:o, s:I, s:I, s:f, s:f, s:f, s:f, s:s, "
        "s:o}",
        "step_s", number(r->was_step_s), "cannot_go_on", r->was_why, "new_step_s", r->now.step_s,
        "goes_on", (int)r->goes_on, "steps_left", r->steps_left, "pays_after_steps",
        number(isnan(r->was_step_s) ? NAN : hdt_layout_replan_pays(&was, &r->now)), "total",
        r->now.total, "kept_total", number(r->was_total), "repair", other_json(r, &r->repair),
        "anew", other_json(r, &r->fresh), "layers_moved", (json_int_t)m->n_layers, "layers",
        (json_int_t)m->n_all, "site_bytes", m->site_bytes, "wan_bytes", m->wan_bytes,
        "stored_bytes", m->stored_bytes, "seconds", m->seconds, "link", m->link, "moves", rows);
}

/* ---- why ---- */

static void sum_explain(const struct hdt_layout_replan *r, const char *what,
                        const struct hdt_layout_search_other *other, json_t *lines)
{
    char *text;

    if (!other->is_known) {
        return;
    }
    text = r->by_time
               ? hdt_asprintf("%s: %.0f steps left x %.6g s + %.6g s of moving = %.6g s", what,
                              r->steps_left, other->step_s, other->move_s, other->total)
               : hdt_asprintf("%s: %.6g by the objective in the %.0f steps left, with %.6g "
                              "s of moving",
                              what, other->total, r->steps_left, other->move_s);
    json_array_append_new(lines, json_string(text));
    free(text);
}

void hdt_layout_replan_explain(const struct hdt_layout_replan *r, json_t *lines)
{
    struct hdt_layout_search_other was = {
        .is_known = !isnan(r->was_step_s), .step_s = r->was_step_s, .total = r->was_total};

    if (!r->is_asked) {
        return;
    }
    sum_explain(r, "the plan above", &r->now, lines);
    sum_explain(r, "the plan that runs, kept", &was, lines);
    sum_explain(r, "the repair that moves least", &r->repair, lines);
    sum_explain(r, "the quickest step where nothing ran", &r->fresh, lines);
}
