/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ratio, entropy floor, rates and error of every codec of the table on one core, over values like
 * those of a training run (normally distributed, with a scale that differs from channel to channel)
 * and over the tensors of safetensors files (fp32, as bench_tensors writes them).
 *
 *     bench_codec [--ms N] [--kernels scalar|best] [--threads N] [FILE.safetensors...]
 *
 * fp32 tensors go through every codec, and as bf16 through those that change no bit. A line for
 * each, whose columns are: set, dtype, codec, ratio, floor, least share of the floor that a tensor
 * of WORST_MIN values or more reaches (with lossless), encode and decode in GB/s of the plain side,
 * error in percent. "zstd-1" is plain zstd, "memcpy" a copy of each tensor: peers in the same call.
 * A file's tensors are taken one by one, for N ms in each direction in all; with --threads, that
 * many threads do the same at once and rates are added.
 */
#include "config.h"

#include "compress/codec_ctx.h"
#include "compress/trial.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/safetensors.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define N_NORMAL    ((size_t)1 << 20)
#define N_CHANNEL   512
#define SPECS_MAX   64
#define THREADS_MAX 64
#define WORST_MIN   4096

struct tensor {
    uint8_t *f32, *bf16;
    size_t n;
};

struct set {
    const char *name;
    struct tensor *tensors;
    size_t n_tensors;
};

struct result {
    struct hdt_codec_trial sums;
    double worst; /* floor / coded bytes of the tensor that is farthest from its floor */
};

struct bench {
    double ms;
    bool scalar;
    int n_threads;
};

/* One thread's part of a case. */
struct part {
    const struct bench *bench;
    const struct set *set;
    const struct hdt_codec_spec *spec;
    bool as_bf16;
    struct result result;
};

static void die(const struct hdt_error *err)
{
    hdt_error_print(err, "bench_codec");
    exit(1);
}

/* ---- sets ---- */

static float random_normal(uint64_t *state)
{
    float sum = 0;

    for (int i = 0; i < 12; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) * 0x1p-24f;
    }
    return sum - 6.0f;
}

static void tensor_cast(struct tensor *tensor)
{
    tensor->bf16 = hdt_malloc(2 * tensor->n + 1);
    hdt_kernels_best()->bf16_encode(tensor->f32, tensor->n, tensor->bf16);
}

static struct set set_normal(void)
{
    struct set set = {.name = "normal", .n_tensors = 1};
    float gain[N_CHANNEL], *x = hdt_malloc(4 * N_NORMAL);
    uint64_t state = 1;

    for (size_t c = 0; c < N_CHANNEL; c++) {
        gain[c] = expf(0.5f * random_normal(&state));
    }
    for (size_t i = 0; i < N_NORMAL; i++) {
        x[i] = gain[i % N_CHANNEL] * random_normal(&state);
    }
    set.tensors = hdt_calloc(1, sizeof(*set.tensors));
    set.tensors[0].f32 = (uint8_t *)x;
    set.tensors[0].n = N_NORMAL;
    tensor_cast(&set.tensors[0]);
    return set;
}

static struct set set_read(const char *path)
{
    struct set set = {0};
    struct hdt_safetensors *file;
    struct hdt_error err = {0};
    const char *slash = strrchr(path, '/');

    if (hdt_safetensors_open(path, &file, &err) != HDT_OK) {
        die(&err);
    }
    set.name =
        hdt_asprintf("%.*s", (int)strcspn(slash ? slash + 1 : path, "."), slash ? slash + 1 : path);
    set.tensors = hdt_calloc(hdt_safetensors_n(file) + 1, sizeof(*set.tensors));
    for (size_t i = 0; i < hdt_safetensors_n(file); i++) {
        const struct hdt_safetensors_entry *entry = hdt_safetensors_at(file, i);
        struct tensor *tensor = &set.tensors[set.n_tensors];

        if (entry->dtype != HDT_DTYPE_F32 || entry->len == 0) {
            continue;
        }
        tensor->f32 = hdt_malloc(entry->len);
        tensor->n = entry->len / 4;
        if (hdt_safetensors_read(file, entry, tensor->f32, &err) != HDT_OK) {
            die(&err);
        }
        tensor_cast(tensor);
        set.n_tensors++;
    }
    hdt_safetensors_close(file);
    return set;
}

static void set_release(struct set *set)
{
    for (size_t i = 0; i < set->n_tensors; i++) {
        free(set->tensors[i].f32);
        free(set->tensors[i].bf16);
    }
    free(set->tensors);
}

/* ---- a codec over a set ---- */

static void *part_run(void *arg)
{
    struct part *part = arg;
    const struct set *set = part->set;
    const int budget_ms = (int)(part->bench->ms / (double)set->n_tensors);
    struct hdt_codec_ctx *ctx;
    struct hdt_error err = {0};

    if (hdt_codec_ctx_new(HDT_CODEC_TRIAL_CHUNK, &ctx, &err) != HDT_OK) {
        die(&err);
    }
    if (part->bench->scalar) {
        ctx->kernels = &hdt_kernels_scalar;
        ctx->planes_kernels = &hdt_planes_scalar;
    }
    part->result.worst = 1;
    for (size_t i = 0; i < set->n_tensors; i++) {
        const struct tensor *t = &set->tensors[i];
        struct hdt_codec_trial one = part->result.sums;
        double share;

        if (hdt_codec_trial_run(ctx, part->spec, part->as_bf16 ? HDT_DTYPE_BF16 : HDT_DTYPE_F32,
                                part->as_bf16 ? t->bf16 : t->f32, (part->as_bf16 ? 2 : 4) * t->n,
                                budget_ms, &one, &err) != HDT_OK) {
            continue; /* a tensor that this codec refuses; the line counts what was taken */
        }
        share = (one.floor_bytes - part->result.sums.floor_bytes) /
                (double)(one.coded_bytes - part->result.sums.coded_bytes);
        if (t->n >= WORST_MIN && share < part->result.worst) {
            part->result.worst = share;
        }
        part->result.sums = one;
    }
    hdt_codec_ctx_free(ctx);
    return NULL;
}

static void line_print(const struct set *set, const char *dtype, const char *codec,
                       const struct hdt_codec_trial *s, double worst)
{
    const double plain = (double)s->plain_bytes, floor = s->floor_bytes;

    printf("%-17s %-5s %-26s %8.3f %8.3f ", set->name, dtype, codec, plain / (double)s->coded_bytes,
           floor > 0 ? plain / floor : 0);
    if (worst > 0) {
        printf("%7.4f", worst);
    } else {
        printf("%7s", "-");
    }
    printf(" %8.2f %8.2f %9.4f\n", plain / s->encode_s / 1e9, plain / s->decode_s / 1e9,
           100 * hdt_codec_trial_error(s));
    fflush(stdout);
}

static void case_run(const struct bench *b, const struct set *set,
                     const struct hdt_codec_spec *spec, bool as_bf16)
{
    struct part parts[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    char text[HDT_CODEC_SPEC_TEXT], name[HDT_CODEC_SPEC_TEXT + 32];
    struct hdt_codec_trial sums;
    double encode = 0, decode = 0;

    for (int i = 0; i < b->n_threads; i++) {
        parts[i] = (struct part){.bench = b, .set = set, .spec = spec, .as_bf16 = as_bf16};
        if (pthread_create(&threads[i], NULL, part_run, &parts[i]) != 0) {
            exit(1);
        }
    }
    for (int i = 0; i < b->n_threads; i++) {
        pthread_join(threads[i], NULL);
        encode += 1 / parts[i].result.sums.encode_s;
        decode += 1 / parts[i].result.sums.decode_s;
    }
    sums = parts[0].result.sums;
    hdt_codec_spec_format(spec, text);
    if (sums.n_tensors == 0) {
        return;
    }
    sums.encode_s = 1 / encode;
    sums.decode_s = 1 / decode;
    snprintf(name, sizeof(name), b->n_threads > 1 ? "%s*%d" : "%s", text, b->n_threads);
    line_print(set, as_bf16 ? "bf16" : "f32", name, &sums,
               spec->gateway == HDT_CODEC_LOSSLESS ? parts[0].result.worst : 0);
}

/* ---- peers ---- */

struct peer {
    uint8_t *coded, *back;
    size_t room;
};

/* Seconds of the fastest of the passes that fit into the budget. */
static double peer_time(const struct peer *p, const uint8_t *data, size_t len, size_t *coded_len,
                        int side, double budget_s)
{
    double best = 1e9, begin = (double)hdt_clock_now_ns() * 1e-9, end = begin + budget_s, now;

    do {
        if (side == 0) {
            memcpy(p->back, data, len);
        } else if (side == 1) {
            *coded_len = ZSTD_compress(p->coded, p->room, data, len, 1);
        } else if (ZSTD_decompress(p->back, len, p->coded, *coded_len) != len) {
            exit(1);
        }
        now = (double)hdt_clock_now_ns() * 1e-9;
        best = now - begin < best ? now - begin : best;
        begin = now;
    } while (now < end);
    return best;
}

static void peers_run(const struct bench *b, const struct set *set, bool as_bf16)
{
    struct hdt_codec_trial zstd = {0}, copy = {0};
    const size_t size = as_bf16 ? 2 : 4;
    const double budget_s = b->ms / 1e3 / (double)set->n_tensors;

    for (size_t i = 0; i < set->n_tensors; i++) {
        const struct tensor *t = &set->tensors[i];
        const uint8_t *data = as_bf16 ? t->bf16 : t->f32;
        const size_t len = size * t->n;
        struct peer p = {.room = ZSTD_compressBound(len)};
        size_t coded_len = 0;

        p.coded = hdt_malloc(p.room);
        p.back = hdt_malloc(len);
        memset(p.back, 1, len);
        zstd.encode_s += peer_time(&p, data, len, &coded_len, 1, budget_s);
        zstd.decode_s += peer_time(&p, data, len, &coded_len, 2, budget_s);
        copy.encode_s += peer_time(&p, data, len, &coded_len, 0, budget_s);
        zstd.plain_bytes += len;
        zstd.coded_bytes += coded_len;
        copy.coded_bytes += len;
        zstd.floor_bytes +=
            hdt_codec_floor_bytes(as_bf16 ? HDT_DTYPE_BF16 : HDT_DTYPE_F32, data, len);
        free(p.coded);
        free(p.back);
    }
    copy.plain_bytes = zstd.plain_bytes;
    copy.floor_bytes = zstd.floor_bytes;
    copy.decode_s = copy.encode_s;
    line_print(set, as_bf16 ? "bf16" : "f32", "memcpy", &copy, 0);
    line_print(set, as_bf16 ? "bf16" : "f32", "zstd-1", &zstd, 0);
}

/* ---- all ---- */

static void set_run(const struct bench *b, const struct set *set)
{
    struct hdt_codec_spec specs[SPECS_MAX];
    size_t n = hdt_codec_trial_specs(specs, SPECS_MAX);

    for (int as_bf16 = 0; as_bf16 < 2; as_bf16++) {
        if (b->n_threads == 1) {
            peers_run(b, set, as_bf16);
        }
        for (size_t i = 0; i < n && i < SPECS_MAX; i++) {
            if (!as_bf16 || specs[i].worker == HDT_CODEC_NONE) {
                case_run(b, set, &specs[i], as_bf16);
            }
        }
    }
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_codec [--ms N] [--kernels scalar|best] [--threads N] "
                    "[FILE.safetensors...]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = {.ms = 150, .n_threads = 1};
    struct set set;
    int at = 1;

    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        if (strcmp(argv[at], "--ms") == 0) {
            b.ms = strtod(argv[at + 1], NULL);
        } else if (strcmp(argv[at], "--kernels") == 0) {
            b.scalar = strcmp(argv[at + 1], "scalar") == 0;
        } else if (strcmp(argv[at], "--threads") == 0) {
            b.n_threads = (int)strtol(argv[at + 1], NULL, 10);
        } else {
            return usage();
        }
    }
    if (b.n_threads < 1 || b.n_threads > THREADS_MAX || (at < argc && argv[at][0] == '-')) {
        return usage();
    }
    printf("%-17s %-5s %-26s %8s %8s %7s %8s %8s %9s\n", "set", "dtype", "codec", "ratio", "floor",
           "worst", "encode", "decode", "error%");
    set = set_normal();
    set_run(&b, &set);
    set_release(&set);
    for (; at < argc; at++) {
        set = set_read(argv[at]);
        set_run(&b, &set);
        set_release(&set);
        free((char *)set.name);
    }
    return 0;
}
