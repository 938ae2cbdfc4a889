/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What the search over layouts makes of clusters that others planned for. Rows go to standard
 * error; sums to standard output, a name and a number a line.
 *
 *     bench_plan spaces FILE       against even layers, and one type a stage
 *     bench_plan ratio FILE        against the sum of its types of nodes alone, with as large a
 * batch for each device, and with the whole batch for each type bench_plan grid FILE         the
 * first over a grid of peaks, and what memory relief is of it bench_plan wan FILE          over
 * rates between sites, against groups of powers of two bench_plan speed FILE [SITE] how long it
 * takes, and again without a site
 *
 * Every baseline is planned by the same search, in a smaller space, and simulated by the same
 * simulator. All of it is predicted, nothing measured. */
#include "src/base/buf.h"
#include "src/plan/layout_search.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* What planners with even layers can say: alike replicas, but several types in a stage, each with
 * its own degree. */
#define SPACE_EVEN (HDT_LAYOUT_SPACE_EVEN | HDT_LAYOUT_SPACE_ALIKE)
/* The column 'uneven' of the table of planners: one type a stage, as many replicas of each stage,
 * uneven layers; it neither recomputed nor offloaded. */
#define SPACE_UNEVEN (HDT_LAYOUT_SPACE_PURE | HDT_LAYOUT_SPACE_ALIKE | HDT_LAYOUT_SPACE_NO_RELIEF)
/* Metis: groups of powers of two, what the link carries is not coded, 1F1B. */
#define SPACE_METIS                                                                                \
 (HDT_LAYOUT_SPACE_POWERS | HDT_LAYOUT_SPACE_FULL_LINK | HDT_LAYOUT_SPACE_1F1B |                   \
  HDT_LAYOUT_SPACE_ONE_RELIEF)

static void die(const char *what, const struct hdt_error *err)
{
    fprintf(stderr, "bench_plan: %s: %s %s\n", what, err->where, err->msg);
    exit(1);
}

/* ---- a cluster with something changed ---- */

struct change {
    const char *nodes;   /* only these; NULL: all */
    const double *peaks; /* times those of the cluster's own devices, in their order; NULL: none */
    double memory_gb;    /* of every device; 0: as it is */
    double wan_gbit;     /* of every link between sites; 0: as it is */
};

static void nodes_only(json_t *site, const char *name)
{
    json_t *nodes = json_object_get(site, "nodes");

    for (size_t i = json_array_size(nodes); i-- > 0;) {
        const char *is = json_string_value(json_object_get(json_array_get(nodes, i), "name"));

        if (strcmp(is, name) != 0) {
            json_array_remove(nodes, i);
        }
    }
    json_array_clear(json_object_get(site, "pairs"));
}

static void devices_change(json_t *cluster, const struct change *change)
{
    json_t *device;
    size_t i;

    json_array_foreach(json_object_get(cluster, "devices"), i, device)
    {
        json_t *compute = json_object_get(device, "compute");
        double bf16 = json_real_value(json_object_get(compute, "bf16"));

        json_object_set_new(compute, "bf16", json_real(bf16 * change->peaks[i]));
    }
}

static void sites_change(json_t *cluster, const struct change *change)
{
    json_t *site, *nodes;
    size_t i, k;

    json_array_foreach(json_object_get(cluster, "sites"), i, site)
    {
        if (change->nodes) {
            nodes_only(site, change->nodes);
        }
        json_array_foreach(json_object_get(site, "nodes"), k, nodes)
        {
            if (change->memory_gb > 0) {
                json_object_set_new(nodes, "memory_gb", json_real(change->memory_gb));
            }
        }
    }
}

static void cluster_change(json_t *cluster, const struct change *change)
{
    json_t *wan;
    size_t i;

    if (change->peaks) {
        devices_change(cluster, change);
    }
    sites_change(cluster, change);
    json_array_foreach(json_object_get(cluster, "wan"), i, wan)
    {
        if (change->wan_gbit > 0) {
            json_object_set_new(wan, "rate", json_integer((json_int_t)(1e9 * change->wan_gbit)));
        }
    }
}

/* The cluster as a file in memory; its descriptor. */
static int cluster_write(const json_t *json)
{
    struct hdt_cluster_file cluster;
    struct hdt_error err = {0};
    int fd = memfd_create("cluster.yaml", MFD_CLOEXEC);
    FILE *out = fdopen(dup(fd), "w");

    if (hdt_conf_from_json(&hdt_cluster_file_schema, json, "cluster", &cluster, &err) != HDT_OK) {
        die("changed cluster", &err);
    }
    hdt_conf_write(&hdt_cluster_file_schema, &cluster, out);
    fclose(out);
    hdt_conf_release(&hdt_cluster_file_schema, &cluster);
    return fd;
}

static void job_open(const char *path, const struct change *change, struct hdt_layout_files *files)
{
    struct hdt_layout_instead instead = {.catalogue = HDT_BENCH_SRCDIR "/etc/devices.yaml"};
    struct hdt_error err = {0};
    char name[40];
    json_t *json;
    int fd;

    if (hdt_layout_open_job(path, &instead, files, &err) != HDT_OK) {
        die(path, &err);
    }
    if (!change) {
        return;
    }
    json = hdt_conf_to_json(&hdt_cluster_file_schema, &files->cluster);
    hdt_layout_release(files);
    cluster_change(json, change);
    fd = cluster_write(json);
    json_decref(json);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    instead.cluster = name;
    if (hdt_layout_open_job(path, &instead, files, &err) != HDT_OK) {
        die(path, &err);
    }
    close(fd);
}

/* ---- searching ---- */

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What is wanted of a search. */
struct want {
    unsigned space;
    bool has_codec;                         /* int8 between sites may be used */
    const char *without;                    /* a site; NULL: none */
    const struct hdt_layout_files *current; /* a plan that runs; NULL: none */
    double time_limit_s;                    /* 0: none */
    struct hdt_layout *keep;                /* for the plan, to be released; NULL: not wanted */
};

struct plan {
    bool found;
    double step_s, tokens_per_s, seconds, total;
    double bound_s;  /* of all devices, busy all the time */
    bool has_relief; /* it recomputes or offloads */
    char text[160];
};

static void codec_add(const struct hdt_layout_files *files, struct hdt_layout_search_options *o)
{
    double value = files->layout.precision <= HDT_PRECISION_TF32 ? 4 : 2;
    double gradient = files->layout.fp32_gradients ? 4 : value;
    double coded = 1 + 4.0 / 128; /* int8, a scale of 4 bytes for 128 values */

    /* Read and written at 300 GB/s, the memory of the slowest of these devices (T4, L4). */
    o->codecs[o->n_codecs++] = (struct hdt_layout_codec){.name = "int8",
                                                         .ratio = coded / value,
                                                         .gb_per_s = 300 * value / (value + coded),
                                                         .sync_ratio = coded / gradient};
}

static bool has_relief(const struct hdt_layout *l)
{
    bool has = false;

    for (size_t i = 0; i < l->stages.n; i++) {
        has = has || hdt_layout_recompute(l, i) != HDT_LAYOUT_KEEP ||
              hdt_layout_offload(l, i) != HDT_LAYOUT_OFFLOAD_NONE;
    }
    return has;
}

/* "V100 4, V100 4, A100 16; 8 replicas of tp 4": what the first replica's stages are. */
static void plan_text(const struct hdt_layout *l, char *text, size_t cap)
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < l->stages.n && used + 40 < cap; i++) {
        const struct hdt_layout_stage *s = hdt_layout_stage(l, i);
        const struct hdt_layout_on *on = s->on.items;

        used += (size_t)snprintf(text + used, cap - used, "%s%.12s%s:%lldx%lld", i > 0 ? " " : "",
                                 on->nodes, s->on.n > 1 ? "+" : "", (long long)s->layers,
                                 (long long)on->tp);
    }
    snprintf(text + used, cap - used, "%s", used + 40 >= cap ? " ..." : "");
}

static struct plan plan_search(const struct hdt_layout_files *files, const struct want *want)
{
    struct hdt_layout_search_options o = {
        .space = want->space, .keep = hdt_layout_search_given(files) | HDT_LAYOUT_KEEP_CODEC};
    struct hdt_layout_search_result result;
    struct hdt_error err = {0};
    struct plan plan = {.step_s = INFINITY};
    double begin = now_s();
    enum hdt_status status;

    if (want->has_codec) {
        o.keep &= ~(unsigned)HDT_LAYOUT_KEEP_CODEC;
        codec_add(files, &o);
    }
    if (want->without) {
        o.without[o.n_without++] = hdt_cluster_file_find_site(&files->cluster, want->without);
    }
    o.current = want->current;
    o.time_limit_s = want->time_limit_s;
    status = hdt_layout_search(files, &o, &result, &err);
    plan.seconds = now_s() - begin;
    if (status == HDT_ENOMEM) {
        snprintf(plan.text, sizeof(plan.text), "%.150s", err.msg);
        return plan;
    }
    if (status != HDT_OK) {
        die(files->layout.name, &err);
    }
    plan.found = true;
    plan.step_s = result.top[0].prediction.step_s;
    plan.tokens_per_s = result.top[0].tokens_per_s;
    plan.total = result.top[0].total;
    plan.bound_s = result.bound_s;
    if (want->keep) {
        hdt_layout_copy(&result.top[0].layout, want->keep);
    }
    plan.has_relief = has_relief(&result.top[0].layout);
    plan_text(&result.top[0].layout, plan.text, sizeof(plan.text));
    hdt_layout_search_release(&result);
    return plan;
}

static void plan_print(const char *name, const struct plan *plan)
{
    fprintf(stderr, "    %-10s %9.4g s  %9.0f tokens/s  in %6.2f s%s  %s\n", name, plan->step_s,
            plan->tokens_per_s, plan->seconds, plan->has_relief ? ", relief" : "", plan->text);
}

/* ---- commands ---- */

static void spaces(const char *path)
{
    static const struct {
        const char *name, *sum;
        unsigned space;
    } all[] = {{"HDT", "", 0},
               {"even", "over_even", SPACE_EVEN},
               {"uneven", "over_uneven", SPACE_UNEVEN},
               {"even layers, uneven shares", "over_shares", HDT_LAYOUT_SPACE_EVEN}};
    struct hdt_layout_files files;
    struct plan p[4];

    job_open(path, NULL, &files);
    fprintf(stderr, "  %s\n", files.layout.name);
    for (size_t i = 0; i < 4; i++) {
        struct want want = {.space = all[i].space};

        p[i] = plan_search(&files, &want);
        plan_print(all[i].name, &p[i]);
    }
    printf("step_s %.6g\nseconds %.3f\n", p[0].step_s, p[0].seconds);
    for (size_t i = 1; i < 4; i++) {
        if (p[i].found) {
            printf("%s %.4f\n", all[i].sum, p[i].step_s / p[0].step_s);
        }
    }
    hdt_layout_release(&files);
}

/* One type of nodes alone; its batch is the whole one, or the share of its devices. */
static struct plan alone(const char *path, const struct change *change, bool is_whole)
{
    struct hdt_layout_files files;
    struct want want = {0};
    struct plan plan;
    double n_all;

    job_open(path, NULL, &files);
    n_all = (double)hdt_cluster_file_n_devices(&files.cluster);
    hdt_layout_release(&files);
    job_open(path, change, &files);
    if (!is_whole) {
        files.layout.global_batch =
            llround((double)files.layout.global_batch *
                    (double)hdt_cluster_file_n_devices(&files.cluster) / n_all);
    }
    plan = plan_search(&files, &want);
    hdt_layout_release(&files);
    return plan;
}

/* The same, unless it was asked before: points of a grid share their types. */
static struct plan alone_once(const char *path, const struct change *change, double peak,
                              bool is_whole)
{
    static struct {
        char nodes[16];
        double peak, memory_gb;
        bool is_whole;
        struct plan plan;
    } known[128];
    static size_t n;
    size_t i = 0;

    while (i < n && (strcmp(known[i].nodes, change->nodes) != 0 || known[i].peak != peak ||
                     known[i].memory_gb != change->memory_gb || known[i].is_whole != is_whole)) {
        i++;
    }
    if (i == n && n < sizeof(known) / sizeof(known[0])) {
        snprintf(known[n].nodes, sizeof(known[n].nodes), "%s", change->nodes);
        known[n].peak = peak;
        known[n].memory_gb = change->memory_gb;
        known[n].is_whole = is_whole;
        known[n++].plan = alone(path, change, is_whole);
    }
    return i < n ? known[i].plan : alone(path, change, is_whole);
}

/* Sum of what each type of nodes does alone, with the same job. Of a grid nodes are in the order of
 * the cluster's own devices. */
static double alone_sum(const char *path, const struct change *all, const char *const *nodes,
                        size_t n, bool is_whole, bool *has_relief_all)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        struct change change = *all;
        struct plan plan;

        change.nodes = nodes[i];
        plan = alone_once(path, &change, all->peaks ? all->peaks[i] : 1, is_whole);
        plan_print(nodes[i], &plan);
        has_relief_all[i] = plan.has_relief || !plan.found;
        sum += plan.found ? plan.tokens_per_s : 0;
    }
    return sum;
}

/* Names of the first site's nodes; they belong to `files`. */
static size_t nodes_of(const struct hdt_layout_files *files, const char *names[16])
{
    const struct hdt_cluster_file_site *site = hdt_cluster_file_site(&files->cluster, 0);
    size_t n = 0;

    for (; n < site->nodes.n && n < 16; n++) {
        names[n] = hdt_cluster_file_nodes(site, n)->name;
    }
    return n;
}

static void ratio(const char *path)
{
    struct hdt_layout_files files;
    struct change none = {0};
    struct want want = {0};
    const char *names[16];
    bool relief[16];
    struct plan plan;
    double sum, whole;
    size_t n;

    job_open(path, NULL, &files);
    fprintf(stderr, "  %s\n", files.layout.name);
    n = nodes_of(&files, names);
    plan = plan_search(&files, &want);
    plan_print("all", &plan);
    fprintf(stderr, "    alone, as large a batch for each device\n");
    sum = alone_sum(path, &none, names, n, false, relief);
    fprintf(stderr, "    alone, the whole batch for each type\n");
    whole = alone_sum(path, &none, names, n, true, relief);
    printf("ratio %.4f\nwhole %.4f\nmost %.4f\nseconds %.3f\n", plan.tokens_per_s / sum,
           plan.tokens_per_s / whole, plan.tokens_per_s * plan.step_s / plan.bound_s / sum,
           plan.seconds);
    hdt_layout_release(&files);
}

/* Peaks of B, C and D beside A's. */
static const double grid_b[] = {0.5, 1}, grid_cd[] = {0.25, 0.5, 1};

struct point {
    double ratio, relief; /* R; what memory for everything would bring to the types alone */
    double most;          /* R if all devices computed all the time */
    bool is_short;        /* C and D alone recompute or offload */
};

static struct point point(const char *path, const double peaks[4])
{
    static const char *const names[] = {"a", "b", "c", "d"};
    struct change change = {.peaks = peaks}, roomy = {.peaks = peaks, .memory_gb = 1000};
    struct hdt_layout_files files;
    struct want want = {0};
    struct plan plan;
    struct point p;
    bool relief[4], none[4];
    double sum, room;

    fprintf(stderr, "  peaks of B, C, D: %.2f %.2f %.2f of A's\n", peaks[1], peaks[2], peaks[3]);
    job_open(path, &change, &files);
    plan = plan_search(&files, &want);
    plan_print("all", &plan);
    sum = alone_sum(path, &change, names, 4, false, relief);
    fprintf(stderr, "    the same with memory for everything\n");
    room = alone_sum(path, &roomy, names, 4, false, none);
    p.ratio = plan.tokens_per_s / sum;
    p.relief = room / sum;
    p.most = plan.tokens_per_s * plan.step_s / plan.bound_s / sum;
    p.is_short = relief[2] && relief[3];
    fprintf(stderr, "    R %.4f = memory %.4f x balance %.4f, %.4f at most%s\n", p.ratio, p.relief,
            p.ratio / p.relief, p.most, p.is_short ? "; C and D alone recompute or offload" : "");
    hdt_layout_release(&files);
    return p;
}

static void grid(const char *path)
{
    double least = INFINITY, most = 0, sum = 0, relief = 0, low = INFINITY, high = 0;
    int n = 0, n_short = 0;

    for (size_t b = 0; b < sizeof(grid_b) / sizeof(grid_b[0]); b++) {
        for (size_t c = 0; c < sizeof(grid_cd) / sizeof(grid_cd[0]); c++) {
            for (size_t d = 0; d < sizeof(grid_cd) / sizeof(grid_cd[0]); d++) {
                double peaks[4] = {1, grid_b[b], grid_cd[c], grid_cd[d]};
                struct point p = point(path, peaks);

                n++;
                most = fmax(most, p.ratio);
                if (p.is_short) {
                    n_short++;
                    least = fmin(least, p.ratio);
                    sum += p.ratio;
                    relief += p.relief;
                    low = fmin(low, p.most);
                    high = fmax(high, p.most);
                }
            }
        }
    }
    printf("points %d\nshort %d\nleast %.4f\nmean %.4f\nmost %.4f\nrelief %.4f\n", n, n_short,
           least, sum / n_short, most, relief / n_short);
    printf("at_most_low %.4f\nat_most_high %.4f\n", low, high);
}

static void wan(const char *path)
{
    static const double rates[] = {0.1, 0.3, 1, 3, 10};
    struct want ours = {.has_codec = true}, metis = {.space = SPACE_METIS};
    double product = 0;
    size_t n = sizeof(rates) / sizeof(rates[0]);

    for (size_t i = 0; i < n; i++) {
        struct change change = {.wan_gbit = rates[i]};
        struct hdt_layout_files files;
        struct plan p[2];

        job_open(path, &change, &files);
        fprintf(stderr, "  %s, %g Gbit/s\n", files.layout.name, rates[i]);
        p[0] = plan_search(&files, &ours);
        p[1] = plan_search(&files, &metis);
        plan_print("HDT", &p[0]);
        plan_print("Metis-like", &p[1]);
        printf("over_metis:%g %.4f\n", rates[i], p[1].step_s / p[0].step_s);
        product += log(p[1].step_s / p[0].step_s);
        hdt_layout_release(&files);
    }
    printf("log_mean %.6f\n", product / (double)n);
}

/* The plan that was found runs, and a site is lost: in 0.9 s, and with all the time there is; how
 * much worse the first is for the 1000 steps that are counted with. */
static void again(const struct hdt_layout_files *files, const struct hdt_layout *runs,
                  const char *site)
{
    struct hdt_layout_files current;
    struct want want = {.without = site, .current = &current, .time_limit_s = 0.9};
    struct hdt_error err = {0};
    struct plan limited, whole;

    if (hdt_layout_derive(files, runs, &current, &err) != HDT_OK) {
        die(files->layout.name, &err);
    }
    limited = plan_search(files, &want);
    plan_print("without", &limited);
    want.time_limit_s = 0;
    whole = plan_search(files, &want);
    plan_print("no limit", &whole);
    printf("again_seconds %.3f\nagain_whole_seconds %.3f\nagain_over %.4f\n", limited.seconds,
           whole.seconds, limited.total / whole.total);
    hdt_layout_derived_release(&current);
}

static void speed(const char *path, const char *site)
{
    struct hdt_layout_files files;
    struct hdt_layout runs;
    struct want want = {.keep = &runs};
    struct rusage usage;
    struct plan plan;

    job_open(path, NULL, &files);
    fprintf(stderr, "  %s\n", files.layout.name);
    plan = plan_search(&files, &want);
    plan_print("all", &plan);
    printf("seconds %.3f\n", plan.seconds);
    if (plan.found && site) {
        again(&files, &runs, site);
    }
    if (plan.found) {
        hdt_conf_release(&hdt_layout_schema, &runs);
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("memory_gb %.3f\n", 1024.0 * (double)usage.ru_maxrss / 1e9);
    hdt_layout_release(&files);
}

int main(int argc, char **argv)
{
    const char *what = argc >= 3 ? argv[1] : "";

    if (strcmp(what, "spaces") == 0 && argc == 3) {
        spaces(argv[2]);
    } else if (strcmp(what, "ratio") == 0 && argc == 3) {
        ratio(argv[2]);
    } else if (strcmp(what, "grid") == 0 && argc == 3) {
        grid(argv[2]);
    } else if (strcmp(what, "wan") == 0 && argc == 3) {
        wan(argv[2]);
    } else if (strcmp(what, "speed") == 0 && argc <= 4) {
        speed(argv[2], argc == 4 ? argv[3] : NULL);
    } else {
        fprintf(stderr, "usage: bench_plan spaces|ratio|grid|wan|speed FILE [SITE]\n");
        return 2;
    }
    return 0;
}
