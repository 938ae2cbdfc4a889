/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/speed.h"
#include "src/cli/human.h"
#include "src/cli/validated.h"
#include "src/core/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- model FLOPs and peaks ------------------------------------------------------------------- */

static double step_flops(const struct hdt_planned *p, int64_t n_seqs)
{
    double forward = 0;

    for (int64_t unit = 0; unit < p->model.L + 2; unit++) {
        forward += hdt_model_unit_flops(&p->model, unit, n_seqs, p->result.plan.seq_len);
    }
    return 3 * forward; /* backward is twice as much */
}

/* Of "NAME (..., 16 of 132 multiprocessors, ...)" the part that computes. */
static double device_part(const char *device)
{
    const char *at = strstr(device, " of ");
    int n = 1, of = 1;

    while (at && at > device && at[-1] >= '0' && at[-1] <= '9') {
        at--;
    }
    return at && sscanf(at, "%d of %d multiprocessors", &n, &of) == 2 && n > 0 && n <= of
               ? (double)n / of
               : 1;
}

/* NaN: not in the catalogue, or nobody says. */
static double device_peak(const struct hdt_devices *devices, const char *device,
                          enum hdt_precision precision)
{
    const struct hdt_device *found;
    char name[64];

    hdt_human_device(device, sizeof(name) - 1, name, sizeof(name));
    for (char *at = name; (at = strchr(at, ' ')) != NULL;) {
        *at = '-'; /* as names of the catalogue are */
    }
    found = hdt_devices_find(devices, name);
    return found ? 1e12 * found->compute.tflops[precision] * device_part(device) : NAN;
}

/* "site/worker" -> its device; "": it is not of the cluster. */
static const char *worker_device(const struct hdt_planned *p, const char *address)
{
    char name[2 * HDT_NAME_CAP + 1];

    for (size_t i = 0; i < p->cluster.n_workers; i++) {
        const struct hdt_cluster_worker *worker = &p->cluster.workers[i];

        snprintf(name, sizeof(name), "%s/%s", worker->site, worker->name);
        if (strcmp(name, address) == 0) {
            return worker->device;
        }
    }
    return "";
}

static void peak_add(const struct hdt_planned *p, const struct hdt_devices *devices,
                     const char *address, struct hdt_speed *speed)
{
    const enum hdt_precision precision = p->job.precision == HDT_JOB_FP8    ? HDT_PRECISION_FP8
                                         : p->job.precision == HDT_JOB_BF16 ? HDT_PRECISION_BF16
                                                                            : HDT_PRECISION_FP32;
    const char *device = worker_device(p, address);
    const double peak = device_peak(devices, device, precision);

    if (isnan(peak) && !speed->unknown[0]) {
        hdt_human_device(device[0] ? device : address, sizeof(speed->unknown) - 1, speed->unknown,
                         sizeof(speed->unknown));
    }
    speed->peak_flops_per_s += peak;
}

void hdt_speed_of(const struct hdt_planned *planned, const json_t *ranks,
                  const struct hdt_devices *devices, double step_s, struct hdt_speed *speed)
{
    const struct hdt_plan *plan = &planned->result.plan;
    const int64_t n_seqs = plan->micro_batch * plan->n_micro_batches; /* of all replicas */
    const json_t *rank;
    size_t i;

    *speed = (struct hdt_speed){.tokens_per_s = (double)(n_seqs * plan->seq_len) / step_s,
                                .flops_per_s = step_flops(planned, n_seqs) / step_s,
                                .peak_flops_per_s = NAN};
    if (devices && json_array_size(ranks) > 0) {
        speed->peak_flops_per_s = 0;
        json_array_foreach(ranks, i, rank)
        {
            const char *address = json_string_value(json_object_get(rank, "worker"));

            peak_add(planned, devices, address ? address : "", speed);
        }
    }
    speed->utilization = speed->flops_per_s / speed->peak_flops_per_s;
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *hdt_speed_to_json(const struct hdt_speed *speed)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens_per_s", real_or_null(speed->tokens_per_s),
                     "model_flops_per_s", real_or_null(speed->flops_per_s), "peak_flops_per_s",
                     real_or_null(speed->peak_flops_per_s), "utilization",
                     real_or_null(speed->utilization));
}

/* Three digits, or all before the point. */
static const char *tera_text(double flops, char out[HDT_HUMAN_CAP])
{
    snprintf(out, HDT_HUMAN_CAP, flops < 999.5e12 ? "%.3g" : "%.0f", 1e-12 * flops);
    return out;
}

void hdt_speed_print(const struct hdt_speed *speed)
{
    const double percent = 100 * speed->utilization;
    char tokens[HDT_HUMAN_CAP], flops[HDT_HUMAN_CAP], peak[HDT_HUMAN_CAP];

    printf("speed       %s tokens/s, %s TFLOP/s of the model",
           hdt_human_count(speed->tokens_per_s, tokens), tera_text(speed->flops_per_s, flops));
    if (isfinite(speed->utilization)) {
        printf(percent < 10 ? ", %.2g %%" : ", %.0f %%", percent);
        printf(" of the devices' %s TFLOP/s", tera_text(speed->peak_flops_per_s, peak));
    } else if (speed->unknown[0]) {
        printf(" (no peak is known of '%s')", speed->unknown);
    }
    putchar('\n');
}

/* ---- ranks ----------------------------------------------------------------------------------- */

#define RANKS_SHOWN 32

enum column { FORWARD, BACKWARD, FRAMES, SYNC, STEP, WAITS, OTHER, N_COLUMNS };

static const char *const column_names[N_COLUMNS] = {"forward", "backward", "frames", "sync",
                                                    "step",    "waits",    "other"};

static enum column column_of(enum hdt_op_kind kind)
{
    switch (hdt_validated_class_of(kind)) {
    case HDT_VALIDATED_FORWARD:
        return FORWARD;
    case HDT_VALIDATED_BACKWARD:
        return BACKWARD;
    case HDT_VALIDATED_SEND:
    case HDT_VALIDATED_RECV:
        return FRAMES;
    case HDT_VALIDATED_SYNC:
        return SYNC;
    case HDT_VALIDATED_STEP:
        return STEP;
    default:
        return OTHER;
    }
}

static double number_of(const json_t *body, const char *key)
{
    return json_number_value(json_object_get(body, key));
}

/* Seconds by column; what no op and no wait accounts for is "other". */
static void rank_seconds(const json_t *rank, double seconds[N_COLUMNS])
{
    const json_t *ops = json_object_get(rank, "ops");
    double left = number_of(rank, "train_s");

    memset(seconds, 0, N_COLUMNS * sizeof(*seconds));
    for (int kind = 0; kind < HDT_OP_KIND_COUNT; kind++) {
        seconds[column_of((enum hdt_op_kind)kind)] +=
            number_of(ops, hdt_op_name((enum hdt_op_kind)kind));
    }
    seconds[WAITS] = number_of(rank, "train_wait_s");
    for (int i = 0; i < N_COLUMNS; i++) {
        left -= seconds[i];
    }
    seconds[OTHER] += fmax(0, left);
}

static const json_t *rank_find(const json_t *ranks, size_t which)
{
    const json_t *rank;
    size_t i;

    json_array_foreach(ranks, i, rank)
    {
        if (json_integer_value(json_object_get(rank, "rank")) == (json_int_t)which) {
            return rank;
        }
    }
    return NULL;
}

static void rank_print(const json_t *rank)
{
    const char *worker = json_string_value(json_object_get(rank, "worker"));
    const double train_s = number_of(rank, "train_s");
    double seconds[N_COLUMNS];
    char memory[HDT_HUMAN_CAP], name[24];

    printf("%-4lld %-16s %10s", (long long)json_integer_value(json_object_get(rank, "rank")),
           hdt_human_cut(worker ? worker : "?", 16, name, sizeof(name)),
           json_is_number(json_object_get(rank, "memory_bytes"))
               ? hdt_human_memory(number_of(rank, "memory_bytes"), memory)
               : "-");
    rank_seconds(rank, seconds);
    for (int i = 0; i < N_COLUMNS; i++) {
        printf(" %*.0f%%", (int)strlen(column_names[i]),
               train_s > 0 ? 100 * seconds[i] / train_s : 0);
    }
    putchar('\n');
}

void hdt_speed_print_ranks(const json_t *ranks)
{
    const size_t n = json_array_size(ranks);

    if (n == 0) {
        return;
    }
    printf("\n%-4s %-16s %10s", "rank", "worker", "memory");
    for (int i = 0; i < N_COLUMNS; i++) {
        printf("  %s", column_names[i]);
    }
    putchar('\n');
    for (size_t i = 0; i < n && i < RANKS_SHOWN; i++) {
        const json_t *rank = rank_find(ranks, i);

        if (rank) {
            rank_print(rank);
        }
    }
    if (n > RANKS_SHOWN) {
        printf("and %zu more (--json has them)\n", n - RANKS_SHOWN);
    }
    putchar('\n');
}
