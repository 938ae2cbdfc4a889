/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu backend's device: host memory, streams that run their work at once, events that are
 * always reached. */
#include "config.h"

#include "runtime/cpu/cpu_device.h"
#include "src/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_OPENBLAS
# include <cblas.h>
#endif

#define MEMORY_ALIGN  256
#define N_THREADS_MAX 1024

struct hdt_event {
    char unused;
};

static const struct hdt_cpu_kernels *kernels_choose(void)
{
#ifdef HAVE_X86_64_V3
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &hdt_cpu_kernels_v3;
    }
#endif
    return &hdt_cpu_kernels_base;
}

static int threads_of_machine(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n < 1 ? 1 : n > N_THREADS_MAX ? N_THREADS_MAX : (int)n;
}

static enum hdt_status cpu_device_count(int *n_devices, struct hdt_error *err)
{
    (void)err;
    *n_devices = 1;
    return HDT_OK;
}

static enum hdt_status cpu_device_open(const struct hdt_device_conf *conf,
                                       struct hdt_device **device_out, struct hdt_error *err)
{
    int n_threads = conf->n_threads > 0 ? conf->n_threads : threads_of_machine();
    struct hdt_device *device;

    if (conf->device_idx != 0) {
        return hdt_error_set(err, HDT_EINVAL, "cannot open cpu device %d: there is only device 0",
                             conf->device_idx);
    }
    if (conf->sm_limit != 0) {
        hdt_error_set(err, HDT_ENOTSUP,
                      "cannot limit the cpu device to %d multiprocessors: it has none, but %d "
                      "threads",
                      conf->sm_limit, n_threads);
        hdt_error_hint(err, "limit its threads, or choose backend cuda");
        return HDT_ENOTSUP;
    }
    if (n_threads > N_THREADS_MAX) {
        return hdt_error_set(err, HDT_EINVAL, "cannot open cpu device: %d threads, at most %d",
                             n_threads, N_THREADS_MAX);
    }
#ifdef HAVE_OPENBLAS
    openblas_set_num_threads(1);
#endif
    device = hdt_calloc(1, sizeof(*device));
    device->kernels = kernels_choose();
    if (hdt_pool_new(n_threads, &device->pool, err) != HDT_OK) {
        free(device);
        return HDT_ENOMEM;
    }
    *device_out = device;
    return HDT_OK;
}

static void cpu_device_close(struct hdt_device *device)
{
    if (device) {
        hdt_pool_free(device->pool);
        free(device);
    }
}

/* "model name : AMD EPYC ..." of the first processor. */
static void processor_name(char *name, size_t name_cap)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(name, name_cap, "CPU");
    while (file && fgets(line, sizeof(line), file)) {
        char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;

        if (value) {
            value += strspn(value, ": \t");
            value[strcspn(value, "\n")] = '\0';
            snprintf(name, name_cap, "%s", value);
            break;
        }
    }
    if (file) {
        fclose(file);
    }
}

static void cpu_device_info(struct hdt_device *device, struct hdt_device_info *info)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    char name[64];
    const char *blas = "own gemm";

#ifdef HAVE_OPENBLAS
    blas = "OpenBLAS";
#endif
    processor_name(name, sizeof(name));
    *info = (struct hdt_device_info){
        .memory_bytes = pages > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0,
        .n_threads = hdt_pool_n_threads(device->pool),
    };
    snprintf(info->name, sizeof(info->name), "%s (%d thread%s, %s, %s)", name, info->n_threads,
             info->n_threads == 1 ? "" : "s", device->kernels->isa, blas);
}

static enum hdt_status cpu_alloc(struct hdt_device *device, size_t bytes, void **mem,
                                 struct hdt_error *err)
{
    size_t rounded = (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;

    (void)device;
    *mem = rounded >= bytes ? aligned_alloc(MEMORY_ALIGN, rounded ? rounded : MEMORY_ALIGN) : NULL;
    if (!*mem) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot allocate %zu bytes of memory", bytes);
    }
    return HDT_OK;
}

static void cpu_free(struct hdt_device *device, void *mem)
{
    (void)device;
    free(mem);
}

static enum hdt_status cpu_stream_new(struct hdt_device *device, struct hdt_stream **stream,
                                      struct hdt_error *err)
{
    (void)err;
    *stream = hdt_calloc(1, sizeof(**stream));
    (*stream)->device = device;
    return HDT_OK;
}

static void cpu_stream_free(struct hdt_stream *stream)
{
    if (stream) {
        free(stream->scratch);
        free(stream);
    }
}

static enum hdt_status cpu_stream_wait(struct hdt_stream *stream, struct hdt_error *err)
{
    if (stream->error.status != HDT_OK && err) {
        *err = stream->error;
    }
    return stream->error.status;
}

static enum hdt_status cpu_event_new(struct hdt_device *device, struct hdt_event **event,
                                     struct hdt_error *err)
{
    (void)device;
    (void)err;
    *event = hdt_calloc(1, sizeof(**event));
    return HDT_OK;
}

static void cpu_event_free(struct hdt_event *event)
{
    free(event);
}

static void cpu_event_record(struct hdt_event *event, struct hdt_stream *stream)
{
    (void)event;
    (void)stream;
}

static void cpu_event_wait(struct hdt_event *event, struct hdt_stream *stream)
{
    (void)event;
    (void)stream;
}

static bool cpu_event_done(struct hdt_event *event)
{
    (void)event;
    return true;
}

#define COPY_TILE_BYTES ((size_t)1 << 20)

struct copy_task {
    char *dst;
    const char *src;
    size_t bytes;
};

static void copy_tile(void *arg, int tile, int thread)
{
    const struct copy_task *task = arg;
    size_t at = (size_t)tile * COPY_TILE_BYTES;
    size_t left = task->bytes - at;

    (void)thread;
    memcpy(task->dst + at, task->src + at, left < COPY_TILE_BYTES ? left : COPY_TILE_BYTES);
}

static void cpu_copy(struct hdt_stream *stream, void *dst, const void *src, size_t bytes,
                     enum hdt_copy_kind kind)
{
    struct copy_task task = {.dst = dst, .src = src, .bytes = bytes};

    (void)kind;
    if (stream->error.status != HDT_OK) {
        return;
    }
    hdt_pool_run(stream->device->pool, copy_tile, &task,
                 (int)((bytes + COPY_TILE_BYTES - 1) / COPY_TILE_BYTES));
}

void *hdt_cpu_scratch(struct hdt_stream *s, size_t bytes)
{
    struct hdt_error err = {0};

    if (bytes > s->scratch_bytes) {
        free(s->scratch);
        s->scratch = NULL;
        s->scratch_bytes = 0;
        if (cpu_alloc(s->device, bytes, &s->scratch, &err) != HDT_OK) {
            s->error = err;
            return NULL;
        }
        s->scratch_bytes = bytes;
    }
    return s->scratch;
}

const struct hdt_backend hdt_backend_cpu = {
    .abi = HDT_BACKEND_ABI,
    .caps = HDT_BACKEND_HOST_MEMORY | HDT_BACKEND_DETERMINISTIC,
    .name = "cpu",
    .about = "processor cores, float32; the definition of every op",
    .device_count = cpu_device_count,
    .device_open = cpu_device_open,
    .device_close = cpu_device_close,
    .device_info = cpu_device_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_alloc,
    .host_free = cpu_free,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .stream_wait = cpu_stream_wait,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_done = cpu_event_done,
    .copy = cpu_copy,
    .ops = &hdt_cpu_ops,
};
