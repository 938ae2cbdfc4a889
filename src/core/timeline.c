/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Viewers colour by category. */
static const char *op_category(enum hdt_op_kind kind)
{
    switch (kind) {
    case HDT_OP_FORWARD:
    case HDT_OP_BACKWARD:
    case HDT_OP_BACKWARD_INPUT:
    case HDT_OP_BACKWARD_WEIGHT:
    case HDT_OP_STEP:
        return "compute";
    case HDT_OP_LOAD:
        return "data";
    default:
        return "transfer";
    }
}

static void separator_write(struct hdt_timeline *t)
{
    fputs(t->first ? "\n" : ",\n", t->out);
    t->first = false;
}

static void name_write(struct hdt_timeline *t, const char *what, int rank, int thread)
{
    separator_write(t);
    fprintf(t->out, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", what,
            t->pid_base + rank, thread);
}

enum hdt_status hdt_timeline_open(struct hdt_timeline *t, const char *path, struct hdt_error *err)
{
    memset(t, 0, sizeof(*t));
    snprintf(t->path, sizeof(t->path), "%s", path);
    t->first = true;
    t->out = fopen(path, "we");
    if (!t->out) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write the trace '%s'", path);
    }
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", t->out);
    return HDT_OK;
}

void hdt_timeline_add_rank(struct hdt_timeline *t, const struct hdt_plan *plan, int rank)
{
    const struct hdt_plan_rank *r = &plan->ranks[rank];

    /* Names of sites and workers hold nothing that JSON would escape. */
    name_write(t, "process_name", rank, 0);
    fprintf(t->out, "\"%srank %d: %s/%s\"}}", t->group ? t->group : "", rank, r->site, r->worker);
    name_write(t, "thread_name", rank, 0);
    fprintf(t->out, "\"rank %d\"}}", rank);
    for (size_t i = 0; i < plan->n_stages; i++) {
        if (plan->stages[i].rank == rank) {
            name_write(t, "thread_name", rank, (int)i + 1);
            fprintf(t->out, "\"stage %zu\"}}", i);
        }
    }
}

void hdt_timeline_add_op(struct hdt_timeline *t, const struct hdt_timeline_op *op)
{
    const char *comma = "";

    separator_write(t);
    fprintf(t->out,
            "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,"
            "\"tid\":%d,\"args\":{",
            hdt_op_name(op->kind), op_category(op->kind), op->start_us, op->dur_us,
            t->pid_base + op->rank, op->stage + 1);
    if (op->step >= 0) {
        fprintf(t->out, "\"step\":%" PRId64, op->step);
        comma = ",";
    }
    if (op->mb >= 0) {
        fprintf(t->out, "%s\"mb\":%" PRId64, comma, op->mb);
        comma = ",";
    }
    if (op->eval) {
        fprintf(t->out, "%s\"eval\":true", comma);
        comma = ",";
    }
    if (op->arrived_us != 0) {
        fprintf(t->out, "%s\"arrived\":%.3f", comma, op->arrived_us);
        comma = ",";
    }
    if (op->cpu_us > 0) {
        fprintf(t->out, "%s\"cpu_us\":%.1f", comma, op->cpu_us);
    }
    fputs("}}", t->out);
}

enum hdt_status hdt_timeline_close(struct hdt_timeline *t, struct hdt_error *err)
{
    bool failed;

    fputs("\n]}\n", t->out);
    failed = ferror(t->out) != 0;
    if (fclose(t->out) != 0 || failed) {
        return hdt_error_set(err, HDT_EIO, "cannot write the trace '%s': the disk refused",
                             t->path);
    }
    return HDT_OK;
}
