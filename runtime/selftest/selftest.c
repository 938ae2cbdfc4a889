/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays stand at odd places between guard bytes, outputs start as NaN, and each op runs twice:
 * what is written beside an array, read before it was set, or comes out differently the second time
 * is a miss.
 */
#include "config.h"

#include "runtime/selftest/selftest.h"
#include "runtime/selftest/cases.h"

#include "runtime/backend_find.h"
#include "runtime/backend_load.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SEED        20240601u
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
    bool is_large;
    struct backend_array arrays[BACKEND_ARRAYS_MAX];
    int n_arrays;
    double *want[BACKEND_ARRAYS_MAX]; /* inputs, then the reference's results */
    char *input[BACKEND_ARRAYS_MAX];  /* as bytes, between guards */
    char *got[BACKEND_ARRAYS_MAX];
    char *cpu[BACKEND_ARRAYS_MAX];
    double seconds;
};

static uint64_t random_state = SEED;
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

/* ---- Values ---------------------------------------------------------------------------------- */

static double random_uniform(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 40) / 0x1p24;
}

static double random_normal(void)
{
    double sum = -2;

    for (int i = 0; i < 4; i++) {
        sum += random_uniform();
    }
    return sum * 1.7;
}

static double value_random(const struct backend_array *a, const struct backend_shape *s, size_t i)
{
    switch (a->fill) {
    case BACKEND_FILL_SQUARE:
        return 0.01 + random_uniform();
    case BACKEND_FILL_INDEX:
        return floor(random_uniform() * s->n_index);
    case BACKEND_FILL_LABEL:
        return i % 5 == 3 ? -100 : floor(random_uniform() * s->n_index);
    case BACKEND_FILL_WIDE:
        return random_normal() * exp2(floor(random_uniform() * 24) - 12);
    default:
        return random_normal();
    }
}

/* IEEE 754 binary16 of a float, bits dropped; beyond its range infinity. */
static uint16_t half_of(float f)
{
    uint32_t bits, mant, sign;
    int exp;

    memcpy(&bits, &f, sizeof(bits));
    sign = bits >> 16 & 0x8000;
    exp = (int)(bits >> 23 & 0xff) - 127 + 15;
    mant = bits & 0x7fffff;
    if (exp >= 31) {
        return (uint16_t)(sign | 0x7c00 | (isnan(f) ? 0x200 : 0));
    }
    if (exp > 0) {
        return (uint16_t)(sign | (uint32_t)exp << 10 | mant >> 13);
    }
    return (uint16_t)(sign | (exp < -10 ? 0 : (mant | 0x800000) >> (14 - exp)));
}

static double half_value(uint16_t half)
{
    const int exp = half >> 10 & 0x1f, mant = half & 0x3ff;
    double value = exp == 0 ? ldexp(mant, -24) : ldexp(1024 + mant, exp - 25);

    if (exp == 31) {
        value = mant ? (double)NAN : (double)INFINITY;
    }
    return half & 0x8000 ? -value : value;
}

/* E5M2 is the upper byte of a half; E4M3 a half of a 256th with other bits dropped, but for NaN. */
static uint8_t fp8_of(enum hdt_dtype dtype, float f)
{
    const uint16_t half = half_of(dtype == HDT_DTYPE_F8E5M2 ? f : f / 256);

    return (uint8_t)(dtype == HDT_DTYPE_F8E5M2 ? half >> 8
                                               : (half >> 8 & 0x80) | (half >> 7 & 0x7f));
}

static double fp8_value(enum hdt_dtype dtype, uint8_t code)
{
    if (dtype == HDT_DTYPE_F8E5M2) {
        return half_value((uint16_t)(code << 8));
    }
    return (code & 0x7f) == 0x7f
               ? (double)NAN
               : 256 * half_value((uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7));
}

/* Bytes of a value of the array's type; to 8 and 16-bit types by dropping bits, which is good
 * enough to make inputs. */
static void value_store(enum hdt_dtype dtype, double value, char *at)
{
    float f = (float)value;
    int32_t n = dtype == HDT_DTYPE_I32 ? (int32_t)value : 0;
    uint32_t bits;
    uint16_t half;

    switch (dtype) {
    case HDT_DTYPE_F64:
        memcpy(at, &value, sizeof(value));
        break;
    case HDT_DTYPE_I32:
        memcpy(at, &n, sizeof(n));
        break;
    case HDT_DTYPE_BF16:
        memcpy(&bits, &f, sizeof(bits));
        half = (uint16_t)(bits >> 16);
        memcpy(at, &half, sizeof(half));
        break;
    case HDT_DTYPE_F16:
        half = half_of(f);
        memcpy(at, &half, sizeof(half));
        break;
    case HDT_DTYPE_F8E4M3:
    case HDT_DTYPE_F8E5M2:
        *(uint8_t *)at = fp8_of(dtype, f);
        break;
    default:
        memcpy(at, &f, sizeof(f));
    }
}

static double value_load(enum hdt_dtype dtype, const char *at)
{
    double value = 0;
    float f;
    int32_t n;
    uint32_t bits = 0;
    uint16_t half;

    switch (dtype) {
    case HDT_DTYPE_F64:
        memcpy(&value, at, sizeof(value));
        return value;
    case HDT_DTYPE_I32:
        memcpy(&n, at, sizeof(n));
        return n;
    case HDT_DTYPE_BF16:
        memcpy((char *)&bits + 2, at, 2); /* little-endian */
        memcpy(&f, &bits, sizeof(f));
        return (double)f;
    case HDT_DTYPE_F16:
        memcpy(&half, at, sizeof(half));
        return half_value(half);
    case HDT_DTYPE_F8E4M3:
    case HDT_DTYPE_F8E5M2:
        return fp8_value(dtype, *(const uint8_t *)at);
    default:
        memcpy(&f, at, sizeof(f));
        return (double)f;
    }
}

/* Instead of random values: every pattern of a 16-bit type, or every upper half of a 32-bit one. */
static void patterns_store(const struct backend_array *a, char *at)
{
    for (uint32_t i = 0; i < 65536 && a->len >= 65536; i++) {
        uint32_t word = i << 16 | (i * 40503u & 0xffff);
        uint16_t half = (uint16_t)i;

        if (hdt_dtype_size(a->dtype) == 2) {
            memcpy(at + i * 2, &half, sizeof(half));
        } else {
            memcpy(at + i * 4, &word, sizeof(word));
        }
    }
}

/* ---- Trials ---------------------------------------------------------------------------------- */

static size_t array_bytes(const struct backend_array *a)
{
    return a->len * hdt_dtype_size(a->dtype);
}

/* Small trials stand one element off what an allocation gives: ops may ask for no more. */
static size_t array_offset(const struct trial *t, int i)
{
    return GUARD_BYTES + (t->is_large || t->c->is_mixed ? 0 : hdt_dtype_size(t->arrays[i].dtype));
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
            t->want[i][j] = value_random(a, &t->shape, j);
            if (t->c->is_mixed) { /* what prepare makes of it is of the value that the op gets */
                char bytes[8];

                value_store(a->dtype, t->want[i][j], bytes);
                t->want[i][j] = value_load(a->dtype, bytes);
            }
        }
    }
    if (t->c->prepare) {
        t->c->prepare(&t->shape, t->want);
    }
    for (int i = 0; i < t->n_arrays; i++) {
        const struct backend_array *a = &t->arrays[i];
        size_t size = hdt_dtype_size(a->dtype), room = array_room(t, i);
        char *at;

        t->input[i] = hdt_malloc(room);
        t->got[i] = hdt_malloc(room);
        t->cpu[i] = hdt_malloc(room);
        memset(t->input[i], GUARD, room);
        at = t->input[i] + array_offset(t, i);
        if (a->role == BACKEND_OUT) {
            memset(at, UNSET, array_bytes(a));
            continue;
        }
        for (size_t j = 0; j < a->len; j++) {
            value_store(a->dtype, t->want[i][j], at + j * size);
        }
        if (a->fill == BACKEND_FILL_WIDE) {
            patterns_store(a, at);
        }
        for (size_t j = 0; j < a->len; j++) {
            t->want[i][j] = value_load(a->dtype, at + j * size);
        }
    }
}

static void trial_init(struct trial *t, const struct backend_case *c,
                       const struct backend_shape *shape, bool is_large)
{
    *t = (struct trial){.c = c, .shape = *shape, .is_large = is_large};
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
        free(t->input[i]);
        free(t->got[i]);
        free(t->cpu[i]);
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
        double want = against ? value_load(a->dtype, against + at) : t->want[i][j];

        worst = fmax(worst, error_of(value_load(a->dtype, t->got[i] + at), want, floor_value));
    }
    return worst;
}

static bool guards_hold(const struct trial *t, int i)
{
    size_t first = array_offset(t, i), last = first + array_bytes(&t->arrays[i]);

    return memcmp(t->got[i], t->input[i], first) == 0 &&
           memcmp(t->got[i] + last, t->input[i] + last, GUARD_BYTES) == 0;
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

static void case_run(const struct backend_case *c, const struct backend_shape *shape, bool is_large,
                     const struct side *sides)
{
    struct trial t;

    trial_init(&t, c, shape, is_large);
    trial_run(&t, &sides[0], t.got, &t.seconds);
    if (sides[0].backend->caps & HDT_BACKEND_DETERMINISTIC) {
        trial_repeat(&t, &sides[0]);
    }
    if (!c->is_mixed) {
        trial_run(&t, &sides[1], t.cpu, NULL);
    }
    trial_judge(&t);
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

/* `here`: what a backend that is not here comes to. */
static void side_open(struct side *side, const char *name, int n_threads, must_fn *here)
{
    struct hdt_device_conf conf = {.n_threads = n_threads};
    struct hdt_error err = {0};
    int n_devices = 0;

    here(hdt_backend_load(name, &side->backend, &err), &err);
    here(side->backend->device_count(&n_devices, &err), &err);
    if (n_devices == 0) {
        here(hdt_error_set(&err, HDT_ENOENT, "no device of backend '%s' is here", name), &err);
    }
    here(side->backend->device_open(&conf, &side->device, &err), &err);
    must(side->backend->stream_new(side->device, &side->stream, &err), &err);
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

int hdt_selftest_run(const char *name, int n_threads, bool with_large)
{
    struct side sides[2];
    struct hdt_device_info info;
    struct hdt_buf missing = {0};

    side_open(&sides[0], name, n_threads, must_be_here);
    side_open(&sides[1], "cpu", n_threads, must);
    sides[0].backend->device_info(sides[0].device, &info);
    printf("backend %s: %s, %.1f GiB; seed %u\n\n%-14s %-32s %10s %10s %11s %9s\n", name, info.name,
           (double)info.memory_bytes / 0x1p30, SEED, "op", "size", "vs float64", "vs cpu", "us",
           "GB/s");
    device_check(&sides[0]);
    for (size_t i = 0; hdt_backend_op_name(i); i++) {
        if (hdt_backend_has_op(sides[0].backend, i)) {
            op_run(hdt_backend_op_name(i), hdt_backend_cases, hdt_n_backend_cases, sides,
                   with_large);
        }
    }
    mixed_check(sides, with_large);
    if (hdt_backend_missing(sides[0].backend, &missing) > 0) {
        printf("\nnot in this module: %s\n", hdt_buf_str(&missing));
    }
    hdt_buf_release(&missing);
    side_close(&sides[1]);
    side_close(&sides[0]);
    printf("\n%d misses\n", n_misses);
    return n_misses > 0;
}
