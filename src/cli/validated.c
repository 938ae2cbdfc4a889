/* SPDX-License-Identifier: Apache-2.0 */
/* A run's folder, read. */
#include "config.h"

#include "src/cli/validated_impl.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/base/median.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define METRICS_MAX    ((size_t)1 << 30)
#define STEP_COUNT_MAX 10000000

/* ---- plan.json ---- */

static enum hdt_status plan_json_take(struct hdt_validated *v, const json_t *json,
                                      struct hdt_error *err)
{
    struct hdt_planned *p = &v->planned;
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};

    HDT_TRY(hdt_planned_from_json(p, json, err));
    if (!json_object_get(json, "cluster")) {
        hdt_error_set(err, HDT_ENOENT, "the run does not say what cluster it was planned with");
        hdt_error_hint(err, "only jobs that 'hdt submit' planned can be compared");
        return HDT_ENOENT;
    }
    return hdt_cost_play(&in, &p->result.plan, true, &p->result.cost, err);
}

static enum hdt_status plan_json_load(struct hdt_validated *v, json_t **out, struct hdt_error *err)
{
    char *path = hdt_asprintf("%s/plan.json", v->run_dir);
    json_error_t json_err;
    enum hdt_status status;

    *out = NULL;
    if (!hdt_file_exists(path)) {
        status = hdt_error_set(err, HDT_ENOENT, "no run in '%s': it has no plan.json", v->run_dir);
        hdt_error_hint(err, "give the folder that 'hdt submit' names at its end (metrics), on the "
                            "machine of the gateway that the job was submitted to");
    } else if (!(*out = json_load_file(path, JSON_REJECT_DUPLICATES, &json_err))) {
        status = hdt_error_set(err, HDT_EINVAL, "cannot read '%s': %s", path, json_err.text);
    } else {
        status = plan_json_take(v, *out, err);
    }
    free(path);
    return status;
}

/* ---- metrics.jsonl ---- */

struct metrics {
    int64_t epoch;
    double *step_s; /* by step; 0: none */
    double *busy_s; /* [step * n_ranks + rank]; < 0: the rank was not heard of then */
    size_t n, n_ranks;
    int64_t first; /* lowest step with a time */
};

static void metrics_grow(struct metrics *m, size_t step)
{
    if (step >= m->n) {
        size_t n = 2 * step + 64;

        m->step_s = hdt_realloc(m->step_s, n * sizeof(double));
        m->busy_s = hdt_realloc(m->busy_s, n * m->n_ranks * sizeof(double));
        memset(m->step_s + m->n, 0, (n - m->n) * sizeof(double));
        for (size_t i = m->n * m->n_ranks; i < n * m->n_ranks; i++) {
            m->busy_s[i] = -1;
        }
        m->n = n;
    }
}

/* An outer step ends a round of so many steps, the last of which has all of it in its time: what a
 * step takes is the mean. */
static void metrics_round(struct metrics *m, size_t last, json_int_t n_steps)
{
    size_t first = last, n = 0;
    double sum_s = 0;

    while (first > 0 && n < (size_t)n_steps && m->step_s[first] > 0) {
        sum_s += m->step_s[first--];
        n++;
    }
    for (size_t i = 0; i < n; i++) {
        m->step_s[last - i] = sum_s / (double)n;
    }
}

static void metrics_line(struct metrics *m, const json_t *line)
{
    json_int_t n_round = json_integer_value(json_object_get(line, "outer_steps"));
    json_int_t step = json_integer_value(json_object_get(line, "step"));
    double step_s = json_number_value(json_object_get(line, "step_s"));
    const json_t *epoch = json_object_get(line, "epoch"), *rank;
    size_t i;

    if (step < 1 || step > STEP_COUNT_MAX || !(step_s > 0) ||
        (epoch && json_integer_value(epoch) != m->epoch)) {
        return;
    }
    metrics_grow(m, (size_t)step);
    m->step_s[step] = step_s;
    m->first = m->first == 0 || step < m->first ? step : m->first;
    json_array_foreach(json_object_get(line, "ranks"), i, rank)
    {
        json_int_t r = json_integer_value(json_object_get(rank, "rank"));

        if (r >= 0 && r < (json_int_t)m->n_ranks) {
            m->busy_s[(size_t)step * m->n_ranks + (size_t)r] =
                json_number_value(json_object_get(rank, "busy_s"));
        }
    }
    if (n_round > 1) {
        metrics_round(m, (size_t)step, n_round);
    }
}

static void metrics_parse(struct metrics *m, char *text)
{
    char *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *json = json_loads(line, 0, NULL); /* the last one may be cut off */

        metrics_line(m, json);
        json_decref(json);
    }
}

/* Medians over the steps that are not the first ones. */
static enum hdt_status metrics_take(struct hdt_validated *v, const struct metrics *m,
                                    struct hdt_error *err)
{
    double *values = hdt_calloc(m->n + 1, sizeof(double));

    for (size_t r = 0; r <= m->n_ranks; r++) {
        size_t n = 0;

        for (size_t step = (size_t)m->first + VALIDATED_N_WARM; step < m->n; step++) {
            double value = r == m->n_ranks ? m->step_s[step] : m->busy_s[step * m->n_ranks + r];

            if (m->step_s[step] > 0 && value >= 0) {
                values[n++] = value;
            }
        }
        if (r < m->n_ranks) {
            v->ranks[r].measured_busy_s = n > 0 ? hdt_median(values, n) : -1;
        } else {
            v->n_steps = n;
            v->measured_step_s = hdt_median(values, n);
        }
    }
    free(values);
    if (v->n_steps == 0) {
        hdt_error_set(err, HDT_EINVAL,
                      "the run has too few steps to compare: %d and more are "
                      "needed",
                      VALIDATED_N_WARM + 1);
        return HDT_EINVAL;
    }
    return HDT_OK;
}

static enum hdt_status metrics_load(struct hdt_validated *v, int64_t epoch, struct hdt_error *err)
{
    struct metrics m = {.epoch = epoch, .n_ranks = v->planned.result.plan.n_ranks};
    char *path = hdt_asprintf("%s/metrics.jsonl", v->run_dir);
    struct hdt_buf text = {0};
    enum hdt_status status = hdt_file_read(path, METRICS_MAX, &text, err);

    free(path);
    if (status == HDT_OK) {
        metrics_parse(&m, text.data ? text.data : (char[]){""});
        status = metrics_take(v, &m, err);
    }
    hdt_buf_release(&text);
    free(m.step_s);
    free(m.busy_s);
    return status;
}

/* ---- traces ---- */

static bool path_ends(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');

    return strcmp(slash ? slash + 1 : path, name) == 0;
}

/* In the run's folder, or where its worker said that it wrote it. */
static char *trace_path(const struct hdt_validated *v, const json_t *traces, size_t rank)
{
    char name[48], *path;
    const json_t *item;
    size_t i;

    snprintf(name, sizeof(name), "trace-rank%zu.json", rank);
    path = hdt_asprintf("%s/%s", v->run_dir, name);
    if (hdt_file_exists(path)) {
        return path;
    }
    json_array_foreach(traces, i, item)
    {
        if (json_is_string(item) && path_ends(json_string_value(item), name) &&
            hdt_file_exists(json_string_value(item))) {
            free(path);
            return hdt_strdup(json_string_value(item));
        }
    }
    free(path);
    return NULL;
}

static void missing_add(struct hdt_validated *v, size_t rank)
{
    const struct hdt_plan_rank *r = &v->planned.result.plan.ranks[rank];
    size_t used = strlen(v->missing);

    snprintf(v->missing + used, sizeof(v->missing) - used, "%strace-rank%zu.json (%.64s/%.64s)",
             used ? ", " : "", rank, r->site, r->worker);
}

static enum hdt_status traces_load(struct hdt_validated *v, const json_t *traces,
                                   struct hdt_error *err)
{
    for (size_t i = 0; i < v->planned.result.plan.n_ranks; i++) {
        struct hdt_validated_rank *rank = &v->ranks[i];
        char *path = trace_path(v, traces, i);
        enum hdt_status status;

        if (!path) {
            missing_add(v, i);
            continue;
        }
        status = hdt_timeline_read(path, &v->planned.result.plan, &rank->ops, &rank->n_ops, err);
        free(path);
        HDT_TRY(status);
        rank->has_trace = true;
    }
    return HDT_OK;
}

enum hdt_status hdt_validated_load(struct hdt_validated *v, const char *run_dir,
                                   struct hdt_error *err)
{
    enum hdt_status status;
    json_t *json;

    memset(v, 0, sizeof(*v));
    v->run_dir = hdt_strdup(run_dir);
    status = plan_json_load(v, &json, err);
    if (status == HDT_OK) {
        v->ranks = hdt_calloc(v->planned.result.plan.n_ranks, sizeof(*v->ranks));
        v->predicted_step_s = v->planned.result.cost.step_s;
        status = metrics_load(v, json_integer_value(json_object_get(json, "epoch")), err);
    }
    if (status == HDT_OK) {
        status = traces_load(v, json_object_get(json, "traces"), err);
    }
    if (status == HDT_OK) {
        hdt_validated_compare(v);
    }
    json_decref(json);
    if (status != HDT_OK) {
        hdt_validated_release(v);
    }
    return status;
}

void hdt_validated_release(struct hdt_validated *v)
{
    for (size_t i = 0; v->ranks && i < v->planned.result.plan.n_ranks; i++) {
        free(v->ranks[i].ops);
    }
    free(v->ranks);
    free(v->stages);
    free(v->edges);
    free(v->run_dir);
    hdt_planned_release(&v->planned);
    memset(v, 0, sizeof(*v));
}
