/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/backend_find.h"
#include "runtime/backend_load.h"
#include "src/base/buf.h"
#include "src/base/log.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_LEN_MAX  32
#define N_MODULES_MAX 32

/* What "auto" tries: fastest first. */
static const char *const auto_order[] = {"cuda", "cpu"};

struct op_row {
    const char *name;
    size_t offset;
};

#define OP(table, member)                                                                          \
 {                                                                                                 \
#  member, offsetof(struct table, member)                                                          \
 }
#define F32(member)   OP(hdt_ops, member)
#define MIXED(member) OP(hdt_mixed_ops, member)

static const struct op_row op_rows[] = {
    F32(gemm),          F32(rmsnorm_fwd),   F32(rmsnorm_bwd), F32(rope_fwd),   F32(rope_bwd),
    F32(attention_fwd), F32(attention_bwd), F32(swiglu_fwd),  F32(swiglu_bwd), F32(embedding_fwd),
    F32(embedding_bwd), F32(cross_entropy), F32(add),         F32(scale),      F32(zero),
    F32(cast),          F32(sumsq),         F32(adamw),
};

static const struct op_row mixed_rows[] = {
    MIXED(gemm),       MIXED(rmsnorm_fwd),   MIXED(rmsnorm_bwd),   MIXED(rope_fwd),
    MIXED(rope_bwd),   MIXED(attention_fwd), MIXED(attention_bwd), MIXED(swiglu_fwd),
    MIXED(swiglu_bwd), MIXED(cross_entropy), MIXED(adamw),
};

static const struct op_row fp8_rows[] = {OP(hdt_fp8_ops, quantize), OP(hdt_fp8_ops, gemm)};

#define N_OPS   (sizeof(op_rows) / sizeof(op_rows[0]))
#define N_MIXED (sizeof(mixed_rows) / sizeof(mixed_rows[0]))
#define N_FP8   (sizeof(fp8_rows) / sizeof(fp8_rows[0]))

typedef void any_fn(void);

HDT_STATIC_ASSERT(N_OPS * sizeof(any_fn *) == sizeof(struct hdt_ops), "a row for each op");
HDT_STATIC_ASSERT(N_MIXED * sizeof(any_fn *) == sizeof(struct hdt_mixed_ops),
                  "a row for each mixed op");
HDT_STATIC_ASSERT(N_FP8 * sizeof(any_fn *) == sizeof(struct hdt_fp8_ops), "a row for each fp8 op");

const char *hdt_backend_op_name(size_t idx)
{
    return idx < N_OPS ? op_rows[idx].name : NULL;
}

const char *hdt_backend_mixed_name(size_t idx)
{
    return idx < N_MIXED ? mixed_rows[idx].name : NULL;
}

const char *hdt_backend_fp8_name(size_t idx)
{
    return idx < N_FP8 ? fp8_rows[idx].name : NULL;
}

static bool is_there(const void *table, const struct op_row *row)
{
    any_fn *fn;

    memcpy(&fn, (const char *)table + row->offset, sizeof(fn));
    return fn != NULL;
}

bool hdt_backend_has_op(const struct hdt_backend *backend, size_t idx)
{
    HDT_ASSERT(idx < N_OPS);
    return is_there(backend->ops, &op_rows[idx]);
}

/* Appends the names of those that are not there, after `n_before` others; returns how many. */
static size_t rows_missing(const void *table, const struct op_row *rows, size_t n_rows,
                           const char *prefix, size_t n_before, struct hdt_buf *names)
{
    size_t n = 0;

    for (size_t i = 0; i < n_rows; i++) {
        if (is_there(table, &rows[i])) {
            continue;
        }
        if (names) {
            hdt_buf_appendf(names, "%s%s%s", n_before + n > 0 ? ", " : "", prefix, rows[i].name);
        }
        n++;
    }
    return n;
}

size_t hdt_backend_missing(const struct hdt_backend *backend, struct hdt_buf *names)
{
    size_t n = rows_missing(backend->ops, op_rows, N_OPS, "", 0, names);

    if (backend->mixed) {
        n += rows_missing(backend->mixed, mixed_rows, N_MIXED, "mixed ", n, names);
    }
    if (backend->fp8) {
        n += rows_missing(backend->fp8, fp8_rows, N_FP8, "fp8 ", n, names);
    }
    return n;
}

bool hdt_backend_has_fp8(const struct hdt_backend *backend, struct hdt_device *device)
{
    struct hdt_device_info info;

    if (!backend->mixed || !backend->fp8) {
        return false;
    }
    backend->device_info(device, &info);
    return info.has_fp8;
}

enum hdt_status hdt_backend_require_fp8(const struct hdt_backend *backend,
                                        struct hdt_device *device, struct hdt_error *err)
{
    struct hdt_device_info info;

    if (hdt_backend_has_fp8(backend, device)) {
        return HDT_OK;
    }
    backend->device_info(device, &info);
    hdt_error_set(err, HDT_ENOTSUP,
                  "cannot compute with products of fp8: backend '%s' has none on device '%s'",
                  backend->name, info.name);
    hdt_error_hint(err, "set precision: bf16 in the job, or give its stages to devices with FP8 "
                        "(NVIDIA compute capability 8.9 or newer)");
    return HDT_ENOTSUP;
}

enum hdt_status hdt_backend_require(const struct hdt_backend *backend, struct hdt_error *err)
{
    struct hdt_buf names = {0};
    enum hdt_status status = HDT_OK;

    if (hdt_backend_missing(backend, &names) > 0) {
        status = hdt_error_set(err, HDT_ENOTSUP, "cannot compute with backend '%s': it lacks %s",
                               backend->name, hdt_buf_str(&names));
        hdt_error_hint(err, "choose backend cpu, or install a module that has all ops");
    }
    hdt_buf_release(&names);
    return status;
}

/* The device of a backend that is loaded. */
static enum hdt_status device_open(const struct hdt_backend *backend,
                                   const struct hdt_device_conf *conf, struct hdt_device **device,
                                   struct hdt_error *err)
{
    int n_devices = 0;

    HDT_TRY(hdt_backend_require(backend, err));
    HDT_TRY(backend->device_count(&n_devices, err));
    if (n_devices == 0) {
        return hdt_error_set(err, HDT_ENOENT, "cannot use backend '%s': no device of it is here",
                             backend->name);
    }
    return backend->device_open(conf, device, err);
}

static enum hdt_status auto_open(const struct hdt_device_conf *conf,
                                 const struct hdt_backend **backend, struct hdt_device **device,
                                 struct hdt_error *err)
{
    struct hdt_buf passed_over = {0};
    struct hdt_error cause = {0}, first = {0}; /* first: of one that is here */
    enum hdt_status status = HDT_ENOENT;

    for (size_t i = 0; i < sizeof(auto_order) / sizeof(auto_order[0]); i++) {
        const struct hdt_backend *candidate;
        bool is_here;

        status = hdt_backend_load(auto_order[i], &candidate, &cause);
        is_here = status != HDT_ENOENT;
        if (status == HDT_OK) {
            status = device_open(candidate, conf, device, &cause);
        }
        if (status == HDT_OK) {
            *backend = candidate;
            break;
        }
        if (is_here) {
            first = first.status == HDT_OK ? cause : first;
            hdt_buf_appendf(&passed_over, "%s%s", passed_over.len ? "; " : "", cause.msg);
        }
    }
    if (status == HDT_OK && passed_over.len > 0) {
        hdt_log_info("backend %s chosen: %s", (*backend)->name, hdt_buf_str(&passed_over));
    } else if (status != HDT_OK) {
        cause = first.status != HDT_OK ? first : cause;
        status = cause.status;
        if (err) {
            *err = cause;
        }
    }
    hdt_buf_release(&passed_over);
    return status;
}

enum hdt_status hdt_backend_open(const char *name, const struct hdt_device_conf *conf,
                                 const struct hdt_backend **backend, struct hdt_device **device,
                                 struct hdt_error *err)
{
    const struct hdt_backend *loaded;

    if (name[0] == '\0' || strcmp(name, "auto") == 0) {
        return auto_open(conf, backend, device, err);
    }
    HDT_TRY(hdt_backend_load(name, &loaded, err));
    HDT_TRY(device_open(loaded, conf, device, err));
    *backend = loaded;
    return HDT_OK;
}

/* ---- list ------------------------------------------------------------------------------------ */

struct module {
    char name[NAME_LEN_MAX + 1];
    char *path;
};

/* The name in "backend_<name>.so"; false for any other file. */
static bool module_name(const char *file, char *name)
{
    static const char head[] = "backend_", tail[] = ".so";
    size_t len = strlen(file), head_len = strlen(head), tail_len = strlen(tail);

    if (len <= head_len + tail_len || len - head_len - tail_len > NAME_LEN_MAX ||
        strncmp(file, head, head_len) != 0 || strcmp(file + len - tail_len, tail) != 0) {
        return false;
    }
    memcpy(name, file + head_len, len - head_len - tail_len);
    name[len - head_len - tail_len] = '\0';
    return true;
}

/* Add the modules of a folder, except those of a name that is there: the first folder wins. */
static size_t modules_read(const char *folder, struct module *modules, size_t n)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    while (dir && n < N_MODULES_MAX && (entry = readdir(dir))) {
        size_t i = 0;

        if (!module_name(entry->d_name, modules[n].name)) {
            continue;
        }
        while (i < n && strcmp(modules[i].name, modules[n].name) != 0) {
            i++;
        }
        if (i == n) {
            modules[n++].path = hdt_asprintf("%s/%s", folder, entry->d_name);
        }
    }
    if (dir) {
        closedir(dir);
    }
    return n;
}

static int module_compare(const void *a, const void *b)
{
    return strcmp(((const struct module *)a)->name, ((const struct module *)b)->name);
}

/* One device of a backend that is loaded. */
static void device_tell(struct hdt_backend_found *found, int idx, const struct hdt_device_conf *as,
                        hdt_backend_found_fn *fn, void *arg)
{
    struct hdt_device_conf conf = *as;
    struct hdt_device_info info = {0};
    struct hdt_error err = {0};
    struct hdt_device *device;

    conf.device_idx = idx;
    found->device_idx = idx;
    found->error = &err;
    found->info = NULL;
    if (found->backend->device_open(&conf, &device, &err) == HDT_OK) {
        found->backend->device_info(device, &info);
        found->backend->device_close(device);
        found->info = &info;
    }
    fn(found, arg);
}

static void module_tell(const struct module *module, const struct hdt_device_conf *conf,
                        hdt_backend_found_fn *fn, void *arg)
{
    struct hdt_error err = {0};
    struct hdt_buf missing = {0};
    struct hdt_backend_found found = {
        .name = module->name, .path = module->path, .missing = "", .device_idx = -1, .error = &err};
    int n_devices = 0;

    if (hdt_backend_load_file(module->path, &found.backend, &err) == HDT_OK) {
        hdt_backend_missing(found.backend, &missing);
        found.missing = hdt_buf_str(&missing);
        if (found.backend->device_count(&n_devices, &err) == HDT_OK && n_devices == 0) {
            hdt_error_set(&err, HDT_ENOENT, "no device of backend '%s' is here", module->name);
        }
    }
    if (n_devices == 0) {
        fn(&found, arg);
    }
    for (int i = 0; i < n_devices; i++) {
        device_tell(&found, i, conf, fn, arg);
    }
    hdt_buf_release(&missing);
}

void hdt_backend_list(const struct hdt_device_conf *conf, hdt_backend_found_fn *fn, void *arg)
{
    struct module modules[N_MODULES_MAX];
    struct hdt_buf dirs = {0};
    size_t n = 0;

    hdt_backend_dirs(&dirs);
    for (size_t at = 0; at < dirs.len; at += strlen(dirs.data + at) + 1) {
        n = modules_read(dirs.data + at, modules, n);
    }
    qsort(modules, n, sizeof(modules[0]), module_compare);
    for (size_t i = 0; i < n; i++) {
        module_tell(&modules[i], conf, fn, arg);
        free(modules[i].path);
    }
    hdt_buf_release(&dirs);
}
