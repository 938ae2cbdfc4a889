/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/profile_task.h"
#include "runtime/backend_find.h"
#include "runtime/profile.h"
#include "src/base/buf.h"
#include "src/core/profile_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As of a model that is used: longer ones are asked for. */
#define SEQ_LEN_MAX 2048

/* The folder of a config.json, else the file's name without ".json". To be freed. */
static char *model_name(const char *path)
{
    const char *file = strrchr(path, '/'), *begin = path;
    int len;

    file = file ? file + 1 : path;
    if (strcmp(file, "config.json") == 0 && file > path + 1) {
        for (begin = file - 1; begin > path && begin[-1] != '/'; begin--) {
        }
        return hdt_asprintf("%.*s", (int)(file - 1 - begin), begin);
    }
    len = (int)strlen(file);
    len -= len > 5 && strcmp(file + len - 5, ".json") == 0 ? 5 : 0;
    return hdt_asprintf("%.*s", len, file);
}

static void line_print(const struct hdt_profile *p, double recompute_s)
{
    char recompute[16] = "-";

    if (!isnan(recompute_s)) {
        snprintf(recompute, sizeof(recompute), "%.3f", 1e3 * recompute_s);
    }
    printf("%-11lld %9.3f %9.3f %9.3f %9.3f %10s %9.3f %9.3f\n", (long long)p->micro_batch,
           1e3 * p->block_fwd_s, 1e3 * p->block_bwd_s, 1e3 * p->block_bwd_input_s,
           1e3 * p->block_bwd_weight_s, recompute, 1e3 * (p->embed_fwd_s + p->embed_bwd_s),
           1e3 * (p->head_fwd_s + p->head_bwd_s));
    fflush(stdout);
}

static enum hdt_status measure(const struct hdt_profile_task *task,
                               const struct hdt_backend *backend, struct hdt_device *device,
                               struct hdt_profile_shape *shape, struct hdt_layer_profile *file,
                               struct hdt_error *err)
{
    struct hdt_profile profile;
    double recompute_s;

    printf("%-11s %9s %9s %9s %9s %10s %9s %9s\n", "ms of one", "forward", "backward", "input",
           "weight", "recompute", "embedding", "head");
    for (int i = 0; i < task->n_micro_batches; i++) {
        shape->micro_batch = task->micro_batches[i];
        HDT_TRY(hdt_profile_measure(backend, device, shape, &profile, err));
        HDT_TRY(hdt_profile_measure_recompute(backend, device, shape, &profile, &recompute_s, err));
        hdt_profile_file_add(file, &profile, recompute_s);
        line_print(&profile, recompute_s);
    }
    return HDT_OK;
}

/* Minutes of measuring are not for a folder that is not there. */
static enum hdt_status folder_check(const char *path, struct hdt_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? hdt_asprintf("%.*s", (int)(slash - path) + 1, path) : hdt_strdup(".");
    const bool is_there = access(folder, W_OK) == 0;

    if (!is_there) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot create '%s'", path);
    }
    free(folder);
    return is_there ? HDT_OK : HDT_EIO;
}

enum hdt_status hdt_profile_task_run(const struct hdt_profile_task *task,
                                     const struct hdt_backend *backend, struct hdt_device *device,
                                     struct hdt_error *err)
{
    struct hdt_profile_shape shape = {0};
    struct hdt_profile_file_head head = {.note = ""};
    struct hdt_layer_profile file;
    struct hdt_device_info info;
    char *model, *source;
    enum hdt_status status;

    if (task->precision == HDT_JOB_BF16 && !backend->mixed) {
        hdt_error_set(err, HDT_ENOTSUP, "cannot measure in bf16: backend '%s' computes in fp32",
                      backend->name);
        hdt_error_hint(err, "jobs with precision: bf16 run in fp32 there: measure with "
                            "--precision fp32");
        return HDT_ENOTSUP;
    }
    if (task->precision == HDT_JOB_FP8) {
        HDT_TRY(hdt_backend_require_fp8(backend, device, err));
    }
    HDT_TRY(hdt_model_load(task->model, &shape.model, err));
    HDT_TRY(folder_check(task->path, err));
    shape.seq_len = task->seq_len                 ? task->seq_len
                    : shape.model.T < SEQ_LEN_MAX ? shape.model.T
                                                  : SEQ_LEN_MAX;
    backend->device_info(device, &info);
    model = model_name(task->model);
    source = hdt_asprintf("hdt-worker %s, backend %s", task->version, backend->name);
    head.model = model;
    head.device = info.name;
    head.source = source;
    head.n_threads = backend->caps & HDT_BACKEND_HOST_MEMORY ? task->n_threads : 0;
    head.seq_len = shape.seq_len;
    head.precision = shape.precision = task->precision;
    hdt_profile_file_begin(&file, &head, &shape.model);
    status = measure(task, backend, device, &shape, &file, err);
    if (((struct hdt_layer *)file.layers.items)[0].times.n >
        0) { /* a larger one may not have fit */
        struct hdt_error late = {0};
        enum hdt_status written = hdt_profile_file_write(&file, task->path, &late);

        if (written != HDT_OK && status == HDT_OK) {
            *err = late;
            status = written;
        }
    }
    hdt_layer_profile_release(&file);
    free(model);
    free(source);
    return status;
}
