/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays stand between guard bytes, outputs start as NaN, and each op runs twice:
 * what is written beside an array, read before it was set, or comes out differently the second time
 * is a miss.
 */
#include "config.h"

#include "runtime/selftest/selftest.h"
#include "runtime/selftest/cases.h"
#include "runtime/selftest/codecs.h"
#include "runtime/selftest/trial_values.h"

#include "runtime/backend_find.h"
#include "runtime/backend_load.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GUARD_BYTES 512
#define GUARD       0xa5
#define UNSET       0xff    /* as bytes of a float: NaN */
#define WIDE_FLOOR  0x1p-14 /* smallest normal float16: below it errors are absolute */
#define TIME_MIN_S  0.02    /* of repeated runs, to tell a rate */
#define COPY_BYTES  ((size_t)64 << 20)

/* A backend that is open, with a stream. */
struct side {
    const struct hdt_backend *backend;
    struct hdt_device *device;
    struct hdt_stream *stream;
};

/* One case with one shape: inputs, what must come out, and what came out of each side. */
struct trial {
    const struct backend_case *c;
    struct backend_shape shape;
    struct backend_array arrays[BACKEND_ARRAYS_MAX];
    int n_arrays;
    int n_off; /* elements that the arrays stand off what an allocation gives */
    double *want[BACKEND_ARRAYS_MAX]; /* inputs, then the reference's results */
    char *bytes[BACKEND_ARRAYS_MAX];  /* the inputs as the op gets them */
    char *input[BACKEND_ARRAYS_MAX];  /* as bytes, between guards */
    char *got[BACKEND_ARRAYS_MAX];
    char *cpu[BACKEND_ARRAYS_MAX];
    double seconds;
};

static int n_misses;

static void miss(const char *what, const char *why)
{
    printf("MISS: %s: %s\n", what, why);
    n_misses++;
}

static void must(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "selftest");
        exit(1);
    }
}

/* As must, of the backend that is tried: it may not be here, which is no failure. */
static void must_be_here(enum hdt_status status, const struct hdt_error *err)
{
    if (status == HDT_ENOENT || status == HDT_ENOTSUP) {
        hdt_error_print(err, "selftest");
        exit(HDT_SELFTEST_NOT_HERE);
    }
    must(status, err);
}

static double seconds_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* ---- Trials ---------------------------------------------------------------------------------- */

static size_t array_bytes(const struct backend_array *a)
{
    return a->len * hdt_dtype_size(a->dtype);
}

static size_t array_offset(const struct trial *t, int i)
{
    return GUARD_BYTES + (size_t)t->n_off * hdt_dtype_size(t->arrays[i].dtype);
}

static size_t array_room(const struct trial *t, int i)
{
    return array_offset(t, i) + array_bytes(&t->arrays[i]) + GUARD_BYTES;
}

/* The inputs: as float64, and as the bytes that the op gets. */
static void trial_fill(struct trial *t)
{
    for (int i = 0; i < t->n_arrays; i++) {
        const struct backend_array *a = &t->arrays[i];

        t->want[i] = hdt_calloc(a->len, sizeof(double));
        for (size_t j = 0; j < a->len; j++) {
            t->want[i][j] = hdt_trial_value(a, &t->shape, j);
            if (t->c->is_mixed) { /* what prepare makes of it is of the value that the op gets */
                char bytes[8];

                hdt_trial_store(a->dtype, t->want[i][j], bytes);
                t->want[i][j] = hdt_trial_load(a->dtype, bytes);
            }
        }
    }
    if (t->c->prepare) {
        t->c->prepare(&t->shape, t->want);
    }
    for (int i = 0; i < t->n_arrays; i++) {
        const struct backend_array *a = &t->arrays[i];
        size_t size = hdt_dtype_size(a->dtype);
        char *at = hdt_malloc(array_bytes(a));

        t->bytes[i] = at;
        if (a->role == BACKEND_OUT) {
            memset(at, UNSET, array_bytes(a));
            continue;
        }
        for (size_t j = 0; j < a->len; j++) {
            hdt_trial_store(a->dtype, t->want[i][j], at + j * size);
        }
        if (a->fill == BACKEND_FILL_WIDE) {
            hdt_trial_patterns(a, at);
        }
        for (size_t j = 0; j < a->len; j++) {
            t->want[i][j] = hdt_trial_load(a->dtype, at + j * size);
        }
    }
}

/* The arrays between guards, so many elements off what an allocation gives. */
static void trial_place(struct trial *t, int n_off)
{
    t->n_off = n_off;
    for (int i = 0; i < t->n_arrays; i++) {
        const size_t room = array_room(t, i);

        t->input[i] = hdt_malloc(room);
        t->got[i] = hdt_malloc(room);
        t->cpu[i] = hdt_malloc(room);
        memset(t->input[i], GUARD, room);
        memcpy(t->input[i] + array_offset(t, i), t->bytes[i], array_bytes(&t->arrays[i]));
    }
}

static void trial_clear(struct trial *t)
{
    for (int i = 0; i < t->n_arrays; i++) {
        free(t->input[i]);
        free(t->got[i]);
        free(t->cpu[i]);
    }
}

static void trial_init(struct trial *t, const struct backend_case *c,
                       const struct backend_shape *shape)
{
    *t = (struct trial){.c = c, .shape = *shape};
    c->describe(shape, t->arrays);
    while (t->n_arrays < BACKEND_ARRAYS_MAX && t->arrays[t->n_arrays].name) {
        t->n_arrays++;
    }
    trial_fill(t);
    c->reference(shape, t->want);
}

static void trial_release(struct trial *t)
{
    for (int i = 0; i < t->n_arrays; i++) {
        free(t->want[i]);
        free(t->bytes[i]);
    }
}

/* Seconds of one run, from enough of them. What the arrays hold does not matter any more. */
static double trial_time(const struct trial *t, const struct side *side, void *const *at)
{
    double start = seconds_now(), passed = 0;
    struct hdt_error err = {0};
    int n = 0;

    for (int batch = 1; passed < TIME_MIN_S; batch *= 2) {
        for (int i = 0; i < batch; i++) {
            t->c->launch(side->backend, side->stream, &t->shape, at);
        }
        must(side->backend->stream_wait(side->stream, &err), &err);
        n += batch;
        passed = seconds_now() - start;
    }
    return passed / n;
}

/* Run the op on one side; results, with the guards, go to `out`. */
static void trial_run(struct trial *t, const struct side *side, char *const *out, double *seconds)
{
    const struct hdt_backend *b = side->backend;
    void *mem[BACKEND_ARRAYS_MAX], *at[BACKEND_ARRAYS_MAX];
    struct hdt_error err = {0};

    for (int i = 0; i < t->n_arrays; i++) {
        must(b->alloc(side->device, array_room(t, i), &mem[i], &err), &err);
        at[i] = (char *)mem[i] + array_offset(t, i);
        b->copy(side->stream, mem[i], t->input[i], array_room(t, i), HDT_COPY_TO_DEVICE);
    }
    t->c->launch(b, side->stream, &t->shape, at);
    for (int i = 0; i < t->n_arrays; i++) {
        b->copy(side->stream, out[i], mem[i], array_room(t, i), HDT_COPY_FROM_DEVICE);
    }
    must(b->stream_wait(side->stream, &err), &err);
    if (seconds) {
        *seconds = trial_time(t, side, at);
    }
    for (int i = 0; i < t->n_arrays; i++) {
        b->free(side->device, mem[i]);
    }
}

/* ---- Comparison ------------------------------------------------------------------------------ */

static double error_of(double got, double want, double floor_value)
{
    if (isnan(want) || isnan(got)) {
        return isnan(want) && isnan(got) ? 0 : INFINITY;
    }
    if (isinf(want) || isinf(got)) {
        return want == got ? 0 : INFINITY;
    }
    return want == got ? 0 : fabs(got - want) / fmax(fabs(want), floor_value);
}

/* Root mean square: what an error of a sum whose terms cancel is relative to. */
static double array_size(const double *x, size_t len)
{
    double sum = 0;

    for (size_t i = 0; i < len; i++) {
        sum += x[i] * x[i];
    }
    return len > 0 ? sqrt(sum / (double)len) : 0;
}

static double largest_error(const struct trial *t, int i, const char *against)
{
    const struct backend_array *a = &t->arrays[i];
    size_t size = hdt_dtype_size(a->dtype);
    double floor_value = t->c->is_wide ? WIDE_FLOOR : array_size(t->want[i], a->len), worst = 0;

    for (size_t j = 0; j < a->len; j++) {
        size_t at = array_offset(t, i) + j * size;
        double want = against ? hdt_trial_load(a->dtype, against + at) : t->want[i][j];

        worst = fmax(worst, error_of(hdt_trial_load(a->dtype, t->got[i] + at), want, floor_value));
    }
    return worst;
}

static bool guards_hold(const struct trial *t, int i)
{
    size_t first = array_offset(t, i), last = first + array_bytes(&t->arrays[i]);

    return memcmp(t->got[i], t->input[i], first) == 0 &&
           memcmp(t->got[i] + last, t->input[i] + last, GUARD_BYTES) == 0;
}

/* Whether array i is, bit for bit, the rounding to nearest even of another as it came out. */
static bool rounding_holds(const struct trial *t, int i)
{
    const int from = t->arrays[i].rounds - 1;
    const char *wide = t->got[from] + array_offset(t, from),
               *narrow = t->got[i] + array_offset(t, i);

    for (size_t j = 0; j < t->arrays[i].len; j++) {
        uint32_t bits;
        uint16_t half;

        memcpy(&bits, wide + j * sizeof(bits), sizeof(bits));
        memcpy(&half, narrow + j * sizeof(half), sizeof(half));
        if (half != (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)) {
            return false;
        }
    }
    return true;
}

/* What is wrong with array i, or NULL. */
static const char *array_verdict(const struct trial *t, int i, double *error64, double *error_cpu)
{
    const struct backend_array *a = &t->arrays[i];
    size_t at = array_offset(t, i), bytes = array_bytes(a);

    if (!guards_hold(t, i)) {
        return "bytes beside the array were written";
    }
    if (a->role == BACKEND_IN) {
        return memcmp(t->got[i], t->input[i], array_room(t, i)) ? "an input was written" : NULL;
    }
    *error64 = largest_error(t, i, NULL);
    *error_cpu = t->c->is_mixed ? 0 : largest_error(t, i, t->cpu[i]);
    if (!(*error64 <= a->tolerance)) {
        return "too far from float64";
    }
    if (t->c->is_exact && memcmp(t->got[i] + at, t->cpu[i] + at, bytes) != 0) {
        return "other bits than the cpu backend's";
    }
    if (a->rounds > 0 && !rounding_holds(t, i)) {
        return "not the float32 result rounded to nearest even";
    }
    return *error_cpu <= 2 * a->tolerance ? NULL : "too far from the cpu backend";
}

static void shape_text(const struct backend_shape *s, char *text, size_t text_cap)
{
    if (s->len > 0 && s->dst != HDT_DTYPE_NONE) {
        snprintf(text, text_cap, "%zu %s to %s", s->len, hdt_dtype_name(s->src),
                 hdt_dtype_name(s->dst));
    } else if (s->len > 0) {
        snprintf(text, text_cap, "%zu", s->len);
    } else if (s->head_size > 0) {
        snprintf(text, text_cap, "%d x %d/%d, heads %d/%d x %d", s->n, s->t, s->k, s->n_heads,
                 s->n_kv_heads, s->head_size);
    } else if (s->n_index > 0) {
        snprintf(text, text_cap, "%d x %d of %d", s->n, s->c, s->n_index);
    } else if (s->k > 0) {
        snprintf(text, text_cap, "%d x %d x %d (%d)", s->n, s->c, s->k, s->flags);
    } else {
        snprintf(text, text_cap, "%d x %d", s->n, s->c);
    }
}

/* Bytes that an op reads and writes at least. */
static double trial_bytes(const struct trial *t)
{
    double bytes = 0;

    for (int i = 0; i < t->n_arrays; i++) {
        bytes += (double)array_bytes(&t->arrays[i]) * (t->arrays[i].role == BACKEND_INOUT ? 2 : 1);
    }
    return bytes;
}

/* Compare and print a row of the table. */
static void trial_judge(const struct trial *t)
{
    double worst64 = 0, worst_cpu = 0;
    char shape[64];

    shape_text(&t->shape, shape, sizeof(shape));
    if (t->n_off > 0) {
        snprintf(shape + strlen(shape), sizeof(shape) - strlen(shape), " +%d", t->n_off);
    }
    for (int i = 0; i < t->n_arrays; i++) {
        double error64 = 0, error_cpu = 0;
        const char *wrong = array_verdict(t, i, &error64, &error_cpu);
        char what[128];

        worst64 = fmax(worst64, error64);
        worst_cpu = fmax(worst_cpu, error_cpu);
        if (wrong) {
            snprintf(what, sizeof(what), "%s (%s), %s, errors %.2g and %.2g", t->c->op, shape,
                     t->arrays[i].name, error64, error_cpu);
            miss(what, wrong);
        }
    }
    printf("%-14s %-32s %10.2g %10.2g %11.1f %9.2f\n", t->c->op, shape, worst64, worst_cpu,
           t->seconds * 1e6, trial_bytes(t) / t->seconds / 1e9);
    fflush(stdout);
}

/* A second run must give the bits of the first. */
static void trial_repeat(struct trial *t, const struct side *side)
{
    bool same = true;

    trial_run(t, side, t->cpu, NULL);
    for (int i = 0; i < t->n_arrays; i++) {
        same = same && memcmp(t->got[i], t->cpu[i], array_room(t, i)) == 0;
    }
    if (!same) {
        miss(t->c->op, "the same arguments gave other bits");
    }
}

static void trial_do(struct trial *t, int n_off, const struct side *sides)
{
    trial_place(t, n_off);
    trial_run(t, &sides[0], t->got, &t->seconds);
    if (sides[0].backend->caps & HDT_BACKEND_DETERMINISTIC) {
        trial_repeat(t, &sides[0]);
    }
    if (!t->c->is_mixed) {
        trial_run(t, &sides[1], t->cpu, NULL);
    }
    trial_judge(t);
    trial_clear(t);
}

/* Small shapes of float32 one element off what an allocation gives, since ops may ask for no more,
 * and like all others aligned, which may be other kernels. */
static void case_run(const struct backend_case *c, const struct backend_shape *shape, bool is_large,
                     const struct side *sides)
{
    struct trial t;

    trial_init(&t, c, shape);
    if (!is_large && !c->is_mixed) {
        trial_do(&t, 1, sides);
    }
    trial_do(&t, 0, sides);
    trial_release(&t);
}

/* ---- Everything but ops ---------------------------------------------------------------------- */

static void bytes_fill(unsigned char *bytes, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++) {
        bytes[i] = (unsigned char)(i * 31 + i / 257 + seed);
    }
}

/* Host to device on one stream, within the device and back on another that waits for the first by
 * an event. */
static void copies_check(const struct side *side, unsigned char *from, unsigned char *to)
{
    const struct hdt_backend *b = side->backend;
    struct hdt_error err = {0};
    struct hdt_stream *second;
    struct hdt_event *event;
    void *a, *c;

    must(b->stream_new(side->device, &second, &err), &err);
    must(b->event_new(side->device, &event, &err), &err);
    must(b->alloc(side->device, COPY_BYTES, &a, &err), &err);
    must(b->alloc(side->device, COPY_BYTES, &c, &err), &err);
    for (unsigned round = 0; round < 4; round++) {
        bytes_fill(from, COPY_BYTES, round);
        memset(to, 0, COPY_BYTES);
        b->copy(side->stream, a, from, COPY_BYTES, HDT_COPY_TO_DEVICE);
        b->event_record(event, side->stream);
        b->event_wait(event, second);
        b->copy(second, c, a, COPY_BYTES, HDT_COPY_ON_DEVICE);
        b->copy(second, to, c, COPY_BYTES, HDT_COPY_FROM_DEVICE);
        must(b->stream_wait(second, &err), &err);
        if (!b->event_done(event)) {
            miss("event", "not done although work behind it is");
        }
        if (memcmp(from, to, COPY_BYTES) != 0) {
            miss("copy", "other bytes came back than went out");
        }
    }
    b->free(side->device, a);
    b->free(side->device, c);
    b->event_free(event);
    b->stream_free(second);
}

static void copy_rate(const struct side *side, const char *name, void *host,
                      enum hdt_copy_kind kind)
{
    const struct hdt_backend *b = side->backend;
    struct hdt_error err = {0};
    double start, seconds;
    void *mem, *dst, *src;

    must(b->alloc(side->device, COPY_BYTES, &mem, &err), &err);
    dst = kind == HDT_COPY_TO_DEVICE ? mem : host;
    src = kind == HDT_COPY_TO_DEVICE ? host : mem;
    b->copy(side->stream, dst, src, COPY_BYTES, kind);
    must(b->stream_wait(side->stream, &err), &err);
    start = seconds_now();
    for (int i = 0; i < 4; i++) {
        b->copy(side->stream, dst, src, COPY_BYTES, kind);
    }
    must(b->stream_wait(side->stream, &err), &err);
    seconds = (seconds_now() - start) / 4;
    printf("%-14s %-32zu %10s %10s %11.1f %9.2f\n", name, COPY_BYTES, "-", "-", seconds * 1e6,
           (double)COPY_BYTES / seconds / 1e9);
    b->free(side->device, mem);
}

/* Memory that is freed with work queued on it and given out again: that work must not reach it. */
static void reuse_check(const struct side *side, unsigned char *from, unsigned char *to)
{
    const struct hdt_backend *b = side->backend;
    struct hdt_error err = {0};
    struct hdt_stream *second;
    void *old, *new;

    must(b->stream_new(side->device, &second, &err), &err);
    must(b->alloc(side->device, COPY_BYTES, &old, &err), &err);
    bytes_fill(from, COPY_BYTES, 1);
    for (int i = 0; i < 8; i++) {
        b->copy(side->stream, old, from, COPY_BYTES, HDT_COPY_TO_DEVICE);
    }
    b->free(side->device, old);
    must(b->alloc(side->device, COPY_BYTES, &new, &err), &err);
    memset(to, 7, COPY_BYTES);
    b->copy(second, new, to, COPY_BYTES, HDT_COPY_TO_DEVICE);
    must(b->stream_wait(second, &err), &err);
    must(b->stream_wait(side->stream, &err), &err);
    b->copy(second, from, new, COPY_BYTES, HDT_COPY_FROM_DEVICE);
    must(b->stream_wait(second, &err), &err);
    if (memcmp(from, to, COPY_BYTES) != 0) {
        miss("free", "work of the memory's former owner reached the new one");
    }
    b->free(side->device, new);
    b->stream_free(second);
}

static void memory_check(const struct side *side)
{
    const struct hdt_backend *b = side->backend;
    struct hdt_error err = {0};
    void *mem = NULL;

#ifndef HDT_SANITIZE /* which ends the program at such a size */
    if (b->alloc(side->device, (size_t)1 << 46, &mem, &err) != HDT_ENOMEM || err.msg[0] == '\0') {
        miss("alloc", "64 TiB were not refused with HDT_ENOMEM and a message");
    }
#endif
    must(b->alloc(side->device, 1, &mem, &err), &err);
    if ((uintptr_t)mem % 256 != 0) {
        miss("alloc", "not aligned to 256 bytes");
    }
    b->free(side->device, mem);
    b->free(side->device, NULL);
    must(b->stream_wait(side->stream, &err), &err);
}

static void device_check(const struct side *side)
{
    const struct hdt_backend *b = side->backend;
    struct hdt_error err = {0};
    void *pinned, *registered = aligned_alloc(4096, COPY_BYTES);

    HDT_ASSERT(registered);
    memory_check(side);
    must(b->host_alloc(side->device, COPY_BYTES, &pinned, &err), &err);
    if (b->host_register) {
        must(b->host_register(side->device, registered, COPY_BYTES, &err), &err);
    }
    copies_check(side, pinned, registered);
    reuse_check(side, pinned, registered);
    copy_rate(side, "to device", pinned, HDT_COPY_TO_DEVICE);
    copy_rate(side, "from device", registered, HDT_COPY_FROM_DEVICE);
    if (b->host_unregister) {
        b->host_unregister(side->device, registered);
    }
    b->host_free(side->device, pinned);
    free(registered);
}

/* ---- main ------------------------------------------------------------------------------------ */

typedef void must_fn(enum hdt_status status, const struct hdt_error *err);

/* `here`: what a device that is not here comes to. */
static void side_open(struct side *side, const struct hdt_backend *backend,
                      const struct hdt_device_conf *conf, must_fn *here)
{
    struct hdt_error err = {0};
    int n_devices = 0;

    side->backend = backend;
    here(backend->device_count(&n_devices, &err), &err);
    if (n_devices == 0) {
        here(hdt_error_set(&err, HDT_ENOENT, "no device of backend '%s' is here", backend->name),
             &err);
    }
    here(backend->device_open(conf, &side->device, &err), &err);
    must(backend->stream_new(side->device, &side->stream, &err), &err);
}

static void side_close(struct side *side)
{
    side->backend->stream_free(side->stream);
    side->backend->device_close(side->device);
}

static bool shape_is_set(const struct backend_shape *s)
{
    return s->len > 0 || s->n > 0;
}

static void shapes_run(const struct backend_case *c, const struct side *sides, bool with_large)
{
    for (size_t j = 0; j < sizeof(c->shapes) / sizeof(c->shapes[0]); j++) {
        if (shape_is_set(&c->shapes[j])) {
            case_run(c, &c->shapes[j], false, sides);
        }
    }
    if (with_large) {
        case_run(c, &c->large, true, sides);
    }
}

/* All cases of an op. */
static void op_run(const char *name, const struct backend_case *cases, size_t n,
                   const struct side *sides, bool with_large)
{
    int n_cases = 0;

    for (size_t i = 0; i < n; i++) {
        if (strcmp(cases[i].op, name) == 0) {
            n_cases++;
            shapes_run(&cases[i], sides, with_large);
        }
    }
    if (n_cases == 0) {
        miss(name, "no case tests this op");
    }
}

static void mixed_check(const struct side *sides, bool with_large)
{
    const struct hdt_backend *b = sides[0].backend;
    const bool has_fp8 = hdt_backend_has_fp8(b, sides[0].device);

    if (b->mixed) {
        printf("\nmixed precision\n");
    }
    for (size_t i = 0; b->mixed && hdt_backend_mixed_name(i); i++) {
        op_run(hdt_backend_mixed_name(i), hdt_mixed_cases, hdt_n_mixed_cases, sides, with_large);
    }
    if (b->fp8) {
        printf("\nproducts of FP8%s\n", has_fp8 ? "" : ": not on this device");
    }
    for (size_t i = 0; has_fp8 && hdt_backend_fp8_name(i); i++) {
        op_run(hdt_backend_fp8_name(i), hdt_fp8_cases, hdt_n_fp8_cases, sides, with_large);
    }
}

/* The first row of the table. */
static void head_print(const struct side *side)
{
    struct hdt_device_info info;

    side->backend->device_info(side->device, &info);
    printf("backend %s: %s, %.1f GiB; seed %u\n\n%-14s %-32s %10s %10s %11s %9s\n",
           side->backend->name, info.name, (double)info.memory_bytes / 0x1p30, HDT_TRIAL_SEED, "op",
           "size", "vs float64", "vs cpu", "us", "GB/s");
}

static void all_run(const struct side *sides, bool with_large)
{
    const struct hdt_backend *b = sides[0].backend;
    struct hdt_buf missing = {0};

    head_print(&sides[0]);
    device_check(&sides[0]);
    for (size_t i = 0; hdt_backend_op_name(i); i++) {
        if (hdt_backend_has_op(b, i)) {
            op_run(hdt_backend_op_name(i), hdt_backend_cases, hdt_n_backend_cases, sides,
                   with_large);
        }
    }
    mixed_check(sides, with_large);
    if (b->codecs) {
        printf("\n");
        n_misses += hdt_selftest_codecs(b, sides[0].device, sides[0].stream);
    }
    if (hdt_backend_missing(b, &missing) > 0) {
        printf("\nnot in this module: %s\n", hdt_buf_str(&missing));
    }
    hdt_buf_release(&missing);
}

int hdt_selftest_backend(const struct hdt_backend *backend, const struct hdt_selftest_conf *conf)
{
    const struct hdt_device_conf cpu = {.n_threads = conf->device.n_threads};
    const struct hdt_backend *cpu_backend;
    struct hdt_error err = {0};
    struct side sides[2];

    n_misses = 0;
    must(hdt_backend_load("cpu", &cpu_backend, &err), &err);
    side_open(&sides[0], backend, &conf->device, must_be_here);
    side_open(&sides[1], cpu_backend, &cpu, must);
    if (conf->mixed_op) {
        op_run(conf->mixed_op, hdt_mixed_cases, hdt_n_mixed_cases, sides, conf->with_large);
    } else {
        all_run(sides, conf->with_large);
    }
    side_close(&sides[1]);
    side_close(&sides[0]);
    printf("\n%d misses\n", n_misses);
    return n_misses;
}

int hdt_selftest_run(const char *name, const struct hdt_selftest_conf *conf)
{
    const struct hdt_backend *backend;
    struct hdt_error err = {0};

    must_be_here(hdt_backend_load(name, &backend, &err), &err);
    return hdt_selftest_backend(backend, conf) > 0;
}
