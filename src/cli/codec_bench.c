/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hdt codec bench: every codec over the tensors of a safetensors file, on one core. A tensor is
 * read in pieces, each piece goes through all codecs, and only sums are kept, so that a file may be
 * larger than memory.
 *
 * Codecs of workers take fp32, as stages exchange it; bf16 and fp16 tensors are widened for those
 * that take nothing else. Ratios always compare with the bytes of the file, so that what widening
 * adds is nobody's gain.
 */
#include "config.h"

#include "compress/codec_ctx.h"
#include "compress/trial.h"
#include "src/base/buf.h"
#include "src/cli/codec_bench.h"
#include "src/cli/human.h"
#include "src/core/safetensors.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPECS_MAX  64
#define PIECE      ((size_t)64 << 20) /* a multiple of every element */
#define SECONDS    10
#define SECONDS_TO 3600

enum bench_option { OPT_JSON = 256, OPT_CODEC, OPT_SECONDS };

/* Classes of tensors by their number of values, smallest first. */
static const struct {
    const char *name;
    uint64_t below;
} classes[] = {
    {"fewer than 64 Ki values", (uint64_t)64 << 10},
    {"64 Ki to 1 Mi values", (uint64_t)1 << 20},
    {"1 Mi values and more", UINT64_MAX},
};
#define N_CLASSES (sizeof(classes) / sizeof(classes[0]))

/* A codec over a class of tensors. */
struct cell {
    struct hdt_codec_trial sums;
    uint64_t file_bytes;
};

struct row {
    struct hdt_codec_spec spec;
    struct cell cells[N_CLASSES];
    uint64_t n_refused; /* tensors, or pieces of one, that the codec does not take */
    char why[HDT_ERROR_MSG_CAP];
};

struct bench {
    const char *path;
    struct hdt_safetensors *file;
    struct hdt_codec_ctx *ctx;
    struct row *rows; /* (n_rows) */
    size_t n_rows;
    int seconds, budget_ms;
    bool json;
    uint8_t *raw, *wide; /* a piece as it is in the file, and as fp32 */
    uint64_t file_bytes, n_class[N_CLASSES];
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct bench *b = state->input;
    struct hdt_error err = {0};
    char *end;
    long seconds;

    switch (key) {
    case OPT_JSON:
        b->json = true;
        return 0;
    case OPT_SECONDS:
        seconds = strtol(arg, &end, 10);
        if (end == arg || *end != '\0' || seconds < 1 || seconds > SECONDS_TO) {
            argp_error(state, "--seconds %s: it is a number from 1 to %d", arg, SECONDS_TO);
            return EINVAL;
        }
        b->seconds = (int)seconds;
        return 0;
    case OPT_CODEC:
        if (b->n_rows == SPECS_MAX) {
            argp_error(state, "more than %d codecs", SPECS_MAX);
            return EINVAL;
        }
        if (hdt_codec_spec_parse(arg, &b->rows[b->n_rows].spec, &err) != HDT_OK) {
            argp_error(state, "--codec %s: %s (%s)", arg, err.msg, err.hint);
            return EINVAL;
        }
        b->n_rows++;
        return 0;
    case ARGP_KEY_ARG:
        if (b->path) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        b->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!b->path) {
            argp_error(state, "a safetensors file is needed");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"codec", OPT_CODEC, "TEXT", 0, "This codec only; may be given several times", 0},
    {"seconds", OPT_SECONDS, "N", 0, "Time to spend, beyond once through [10]", 0},
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0},
};
static const struct argp bench_argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "FILE",
    .doc = "Measure every codec on the tensors of a safetensors file, by one core: bytes saved, "
           "the least that a code of single bytes could leave, rates, relative error.",
};

/* ---- measuring ---- */

static size_t class_of(const struct hdt_safetensors_entry *entry)
{
    uint64_t n = entry->len / hdt_dtype_size(entry->dtype);
    size_t c = 0;

    while (n >= classes[c].below && c + 1 < N_CLASSES) {
        c++;
    }
    return c;
}

/* The piece as fp32. false: its dtype does not widen. */
static bool piece_widen(struct bench *b, enum hdt_dtype dtype, size_t n)
{
    switch (dtype) {
    case HDT_DTYPE_BF16:
        b->ctx->kernels->bf16_decode(b->raw, n, b->wide);
        return true;
    case HDT_DTYPE_F16:
        b->ctx->kernels->f16_decode(b->raw, n, b->wide);
        return true;
    default:
        return false;
    }
}

static void row_refuse(struct row *row, const char *tensor, const char *why)
{
    if (row->n_refused++ == 0) {
        snprintf(row->why, sizeof(row->why), "%.80s: %.160s", tensor, why);
    }
}

static enum hdt_status piece_run(struct bench *b, const struct hdt_safetensors_entry *entry,
                                 size_t len, struct hdt_error *err)
{
    const size_t n = len / hdt_dtype_size(entry->dtype);
    const bool widened = piece_widen(b, entry->dtype, n);

    for (size_t i = 0; i < b->n_rows; i++) {
        struct row *row = &b->rows[i];
        struct cell *cell = &row->cells[class_of(entry)];
        const bool direct = hdt_codec_trial_takes(&row->spec, entry->dtype);
        enum hdt_status status;

        if (!direct && !widened) {
            row_refuse(row, entry->name, "values of this type are not taken");
            continue;
        }
        status = hdt_codec_trial_run(b->ctx, &row->spec, direct ? entry->dtype : HDT_DTYPE_F32,
                                     direct ? b->raw : b->wide, direct ? len : 4 * n, b->budget_ms,
                                     &cell->sums, err);
        if (status == HDT_EINVAL) {
            row_refuse(row, entry->name, err->msg);
            continue;
        }
        HDT_TRY(status);
        cell->file_bytes += len;
    }
    return HDT_OK;
}

static enum hdt_status file_run(struct bench *b, struct hdt_error *err)
{
    for (size_t i = 0; i < hdt_safetensors_n(b->file); i++) {
        const struct hdt_safetensors_entry *entry = hdt_safetensors_at(b->file, i);

        b->n_class[class_of(entry)]++;
        b->file_bytes += entry->len;
        for (uint64_t at = 0; at < entry->len; at += PIECE) {
            size_t len = entry->len - at < PIECE ? (size_t)(entry->len - at) : PIECE;

            HDT_TRY(hdt_safetensors_read_part(b->file, entry, at, len, b->raw, err));
            HDT_TRY(piece_run(b, entry, len, err));
        }
    }
    return HDT_OK;
}

static enum hdt_status bench_open(struct bench *b, struct hdt_error *err)
{
    enum hdt_status status = hdt_safetensors_open(b->path, &b->file, err);
    uint64_t n_pieces = 0, largest = 0;

    if (status != HDT_OK) {
        hdt_error_hint(err, "it must be a safetensors file, as checkpoints and 'hdt export' have");
        return status;
    }
    for (size_t i = 0; i < hdt_safetensors_n(b->file); i++) {
        uint64_t len = hdt_safetensors_at(b->file, i)->len;

        n_pieces += (len + PIECE - 1) / PIECE;
        largest = len > largest ? len : largest;
    }
    if (n_pieces == 0) {
        hdt_error_set(err, HDT_EINVAL, "'%s' holds no values", b->path);
        hdt_error_hint(err, "name a file with tensors, as a checkpoint's model.safetensors");
        return HDT_EINVAL;
    }
    largest = largest < PIECE ? largest : PIECE;
    b->raw = hdt_malloc(largest);
    b->wide = hdt_malloc(2 * largest);
    b->budget_ms = (int)((uint64_t)b->seconds * 1000 / (2 * n_pieces * b->n_rows));
    return hdt_codec_ctx_new(HDT_CODEC_TRIAL_CHUNK, &b->ctx, err);
}

/* ---- what came out ---- */

static struct cell row_total(const struct row *row)
{
    struct cell total = {0};

    for (size_t c = 0; c < N_CLASSES; c++) {
        const struct hdt_codec_trial *from = &row->cells[c].sums;
        struct hdt_codec_trial *to = &total.sums;

        to->n_tensors += from->n_tensors;
        to->n_values += from->n_values;
        to->plain_bytes += from->plain_bytes;
        to->coded_bytes += from->coded_bytes;
        to->floor_bytes += from->floor_bytes;
        to->encode_s += from->encode_s;
        to->decode_s += from->decode_s;
        to->err_sq += from->err_sq;
        to->ref_sq += from->ref_sq;
        total.file_bytes += row->cells[c].file_bytes;
    }
    return total;
}

/* 0 when there is nothing to divide by: a tensor of one value only has a floor of no bits. */
static double quotient(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void cell_print(const struct row *row, const struct cell *cell)
{
    const struct hdt_codec_trial *s = &cell->sums;
    char text[HDT_CODEC_SPEC_TEXT], error[32];

    hdt_codec_spec_format(&row->spec, text);
    if (s->n_tensors == 0) {
        printf("  %-24s  takes none of them\n", text);
        return;
    }
    snprintf(error, sizeof(error), "%.4f %%", 100 * hdt_codec_trial_error(s));
    printf("  %-24s  %7.3f  %7.3f  %8.2f  %8.2f  %10s\n", text,
           quotient((double)cell->file_bytes, (double)s->coded_bytes),
           quotient((double)cell->file_bytes, s->floor_bytes),
           quotient((double)s->plain_bytes, s->encode_s) / 1e9,
           quotient((double)s->plain_bytes, s->decode_s) / 1e9, s->ref_sq > 0 ? error : "none");
}

static void table_print(const struct bench *b)
{
    char size[HDT_HUMAN_CAP];
    size_t c;

    printf("%s: %zu tensors, %s\n", b->path, hdt_safetensors_n(b->file),
           hdt_human_bytes((double)b->file_bytes, size));
    printf("  %-24s  %7s  %7s  %8s  %8s  %10s\n", "CODEC", "RATIO", "FLOOR", "ENCODE", "DECODE",
           "ERROR");
    for (size_t i = 0; i < b->n_rows; i++) {
        struct cell total = row_total(&b->rows[i]);

        cell_print(&b->rows[i], &total);
    }
    for (c = 0; c < N_CLASSES; c++) {
        if (b->n_class[c] == 0 || b->n_class[c] == hdt_safetensors_n(b->file)) {
            continue;
        }
        printf("tensors of %s: %" PRIu64 "\n", classes[c].name, b->n_class[c]);
        for (size_t i = 0; i < b->n_rows; i++) {
            cell_print(&b->rows[i], &b->rows[i].cells[c]);
        }
    }
    printf("Ratio: bytes of the file to bytes on the wire; floor: the best that a code of single\n"
           "bytes could reach behind the codec; rates in GB/s of one core, of what the codec\n"
           "takes; error: root of the squared errors over that of the squared values.\n");
    for (size_t i = 0; i < b->n_rows; i++) {
        char text[HDT_CODEC_SPEC_TEXT];

        if (b->rows[i].n_refused > 0) {
            hdt_codec_spec_format(&b->rows[i].spec, text);
            printf("%s leaves out %" PRIu64 ", first %s\n", text, b->rows[i].n_refused,
                   b->rows[i].why);
        }
    }
}

static json_t *cell_json(const struct cell *cell)
{
    const struct hdt_codec_trial *s = &cell->sums;

    return json_pack("{s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f}", "tensors", (json_int_t)s->n_tensors,
                     "values", (json_int_t)s->n_values, "bytes", (json_int_t)cell->file_bytes,
                     "coded_bytes", (json_int_t)s->coded_bytes, "ratio",
                     quotient((double)cell->file_bytes, (double)s->coded_bytes), "floor",
                     quotient((double)cell->file_bytes, s->floor_bytes), "encode_bytes_per_s",
                     quotient((double)s->plain_bytes, s->encode_s), "decode_bytes_per_s",
                     quotient((double)s->plain_bytes, s->decode_s), "error",
                     hdt_codec_trial_error(s));
}

static void json_print(const struct bench *b)
{
    json_t *array = json_array(), *json;

    for (size_t i = 0; i < b->n_rows; i++) {
        const struct row *row = &b->rows[i];
        struct cell total = row_total(row);
        json_t *one = json_object(), *by_size = json_object();
        char text[HDT_CODEC_SPEC_TEXT];

        hdt_codec_spec_format(&row->spec, text);
        json_object_set_new(one, "codec", json_string(text));
        json_object_set_new(one, "total", cell_json(&total));
        for (size_t c = 0; c < N_CLASSES; c++) {
            if (b->n_class[c] > 0) {
                json_object_set_new(by_size, classes[c].name, cell_json(&row->cells[c]));
            }
        }
        json_object_set_new(one, "by_size", by_size);
        json_object_set_new(one, "left_out", json_integer((json_int_t)row->n_refused));
        json_object_set_new(one, "why", row->n_refused ? json_string(row->why) : json_null());
        json_array_append_new(array, one);
    }
    json = json_pack("{s:s,s:I,s:I,s:o}", "file", b->path, "tensors",
                     (json_int_t)hdt_safetensors_n(b->file), "bytes", (json_int_t)b->file_bytes,
                     "codecs", array);
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

static void specs_default(struct bench *b)
{
    struct hdt_codec_spec specs[SPECS_MAX];
    size_t n = hdt_codec_trial_specs(specs, SPECS_MAX);

    b->n_rows = n < SPECS_MAX ? n : SPECS_MAX;
    for (size_t i = 0; i < b->n_rows; i++) {
        b->rows[i].spec = specs[i];
    }
}

static int bench_run(int argc, char **argv)
{
    struct bench b = {.seconds = SECONDS, .rows = hdt_calloc(SPECS_MAX, sizeof(*b.rows))};
    struct hdt_error err = {0};
    enum hdt_status status;

    hdt_cmd_parse(&bench_argp, argc, argv, &b);
    if (b.n_rows == 0) {
        specs_default(&b);
    }
    status = bench_open(&b, &err);
    if (status == HDT_OK) {
        status = file_run(&b, &err);
    }
    if (status == HDT_OK && b.json) {
        json_print(&b);
    } else if (status == HDT_OK) {
        table_print(&b);
    }
    hdt_codec_ctx_free(b.ctx);
    hdt_safetensors_close(b.file);
    free(b.raw);
    free(b.wide);
    free(b.rows);
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_codec_bench = {"bench", "measure codecs on a file's tensors",
                                            bench_run, &bench_argp, NULL};
