/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Plain SVG 1.1: rectangles, lines and text, no scripts, no fonts of its own, so that every viewer
 * and converter shows it. Ops narrower than half a pixel are drawn together with their neighbours
 * of the same kind: the file is as large as the picture, not as the run.
 */
#include "src/base/buf.h"
#include "src/sim/sim_svg.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX   128
#define LEFT       150.0 /* names */
#define PLOT       1180.0
#define RIGHT      170.0 /* shares */
#define TOP        78.0  /* title, legend */
#define BOTTOM     44.0  /* axis */
#define NARROW     0.5   /* pixels */
#define N_TICKS    10
#define CHAR_WIDTH 6.2 /* of a digit of 10 pixels */

/* What is told apart by colour (Okabe and Ito's palette, safe for colour-blind eyes). */
enum look {
    LOOK_FORWARD,
    LOOK_BACKWARD,
    LOOK_BACKWARD_WEIGHT,
    LOOK_STEP,
    LOOK_COLLECTIVE,
    LOOK_COMM,
    LOOK_SENDING,
    LOOK_FLIGHT,
    LOOK_PATH,
    LOOK_COUNT
};

static const struct {
    const char *fill, *text, *name;
} looks[LOOK_COUNT] = {
    [LOOK_FORWARD] = {"#0072b2", "#ffffff", "forward"},
    [LOOK_BACKWARD] = {"#009e73", "#ffffff", "backward"},
    [LOOK_BACKWARD_WEIGHT] = {"#8fd3bd", "#000000", "backward of weights"},
    [LOOK_STEP] = {"#e69f00", "#000000", "optimizer step"},
    [LOOK_COLLECTIVE] = {"#cc79a7", "#000000", "collective, host's memory"},
    [LOOK_COMM] = {"#7f7f7f", "#ffffff", "rank's own time for frames"},
    [LOOK_SENDING] = {"#56b4e9", "#000000", "frame queued or on the wire"},
    [LOOK_FLIGHT] = {"#c9e4f6", "#000000", "frame in flight"},
    [LOOK_PATH] = {"#d55e00", "#000000", "critical path"},
};

struct svg {
    FILE *out;
    const struct hdt_sim_result *result;
    const struct hdt_sim_chart *chart;
    size_t n_rows;
    double row, lane; /* pixels: of a row, of its ops */
    bool used[LOOK_COUNT];
    bool *on_path;   /* by span */
    int64_t *last;   /* by rank: its last span */
    int64_t mem_top; /* largest peak of all ranks */
};

/* A rectangle that may still grow towards earlier times. */
struct band {
    bool open;
    enum look look;
    double x, end, y, height;
    int64_t mb; /* -1: none, or several */
};

static enum look span_look(const struct hdt_sim_span *span)
{
    switch (span->op.kind) {
    case HDT_OP_FORWARD:
        return LOOK_FORWARD;
    case HDT_OP_BACKWARD:
    case HDT_OP_BACKWARD_INPUT:
        return LOOK_BACKWARD;
    case HDT_OP_BACKWARD_WEIGHT:
        return LOOK_BACKWARD_WEIGHT;
    case HDT_OP_STEP:
        return LOOK_STEP;
    default:
        return span->kind == HDT_SIM_GROUP || span->kind == HDT_SIM_JOIN ? LOOK_COLLECTIVE
                                                                         : LOOK_COMM;
    }
}

static void text_write(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&') {
            fprintf(out, "&#%d;", *text);
        } else {
            fputc(*text, out);
        }
    }
}

static void label_write(const struct svg *s, double x, double y, int size, const char *anchor,
                        const char *fill, const char *text)
{
    fprintf(s->out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\" fill=\"%s\">",
            x, y, size, anchor, fill);
    text_write(s->out, text);
    fputs("</text>\n", s->out);
}

static void rect_write(const struct svg *s, double x, double y, double width, double height,
                       const char *fill)
{
    fprintf(s->out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n", x,
            y, width, height, fill);
}

/* Pixels of a time, within the plot. */
static double time_x(const struct svg *s, double t)
{
    double part = (t - s->chart->from_s) / (s->chart->to_s - s->chart->from_s);

    return LEFT + PLOT * fmin(1, fmax(0, part));
}

/* ---- bands ---- */

static void band_close(struct svg *s, struct band *b)
{
    double width = b->end - b->x;
    char text[24];

    if (!b->open) {
        return;
    }
    b->open = false;
    s->used[b->look] = true;
    /* A gap of a quarter pixel tells two of one kind apart. */
    rect_write(s, b->x, b->y, fmax(width - (width > 3 ? 0.25 : 0), 0.15), b->height,
               looks[b->look].fill);
    snprintf(text, sizeof(text), "%lld", (long long)b->mb);
    if (b->mb >= 0 && b->height >= 11 && width > CHAR_WIDTH * (double)strlen(text) + 2) {
        label_write(s, b->x + width / 2, b->y + b->height / 2 + 3.5, 10, "middle",
                    looks[b->look].text, text);
    }
}

/* Spans of a row come from the last to the first. */
static void band_add(struct svg *s, struct band *b, enum look look, double from_s, double to_s,
                     int64_t mb)
{
    double x = time_x(s, from_s), end = time_x(s, to_s);

    if (end <= x) {
        return;
    }
    if (b->open && b->look == look && b->x - end < NARROW &&
        (end - x < NARROW || b->end - b->x < NARROW)) {
        b->x = x < b->x ? x : b->x;
        b->mb = -1;
        return;
    }
    band_close(s, b);
    b->open = true;
    b->look = look;
    b->x = x;
    b->end = end;
    b->mb = mb;
}

/* ---- a row ---- */

static bool span_shown(const struct svg *s, const struct hdt_sim_span *span)
{
    return span->start_s < s->chart->to_s && fmax(span->end_s, span->arrive_s) > s->chart->from_s;
}

static void ops_write(struct svg *s, int rank, double y)
{
    struct band ops = {.y = y, .height = s->lane};
    struct band path = {.y = y - 2, .height = 2};

    for (int64_t i = s->last[rank]; i >= 0; i = s->result->spans[i].prev) {
        const struct hdt_sim_span *span = &s->result->spans[i];

        if (!span_shown(s, span)) {
            continue;
        }
        band_add(s, &ops, span_look(span), span->start_s, span->end_s, span->op.mb);
        if (s->on_path && s->on_path[i]) {
            band_add(s, &path, LOOK_PATH, span->start_s, span->end_s, -1);
        }
    }
    band_close(s, &ops);
    band_close(s, &path);
}

/* Frames that the rank sends: until the last byte has left, and until it has come. */
static void frames_write(struct svg *s, int rank, double y, double height)
{
    struct band flight = {.y = y, .height = height};
    struct band sending = flight;

    for (int64_t i = s->last[rank]; i >= 0; i = s->result->spans[i].prev) {
        const struct hdt_sim_span *span = &s->result->spans[i];

        if (span->kind == HDT_SIM_SEND && span_shown(s, span)) {
            band_add(s, &flight, LOOK_FLIGHT, span->left_s, span->arrive_s, -1);
        }
    }
    band_close(s, &flight);
    for (int64_t i = s->last[rank]; i >= 0; i = s->result->spans[i].prev) {
        const struct hdt_sim_span *span = &s->result->spans[i];

        if (span->kind == HDT_SIM_SEND && span_shown(s, span)) {
            band_add(s, &sending, LOOK_SENDING, span->sent_s, span->left_s, -1);
        }
    }
    band_close(s, &sending);
}

static void point_write(const struct svg *s, double x, double y, double height, int64_t bytes)
{
    fprintf(s->out, "%.1f,%.1f ", x, y + height * (1 - (double)bytes / (double)s->mem_top));
}

/* An outline of the memory that the rank takes, `height` for the most that any takes. From the
 * last span to the first: it changes where one begins and where one ends. */
static void memory_write(const struct svg *s, int rank, double y, double height)
{
    double last_x = -1;

    fprintf(s->out, "<polyline fill=\"none\" stroke=\"#555555\" stroke-width=\"1\" points=\"");
    for (int64_t i = s->last[rank]; i >= 0; i = s->result->spans[i].prev) {
        const struct hdt_sim_span *span = &s->result->spans[i];
        double x = time_x(s, span->start_s), end = time_x(s, span->end_s);

        if (!span_shown(s, span) || (last_x >= 0 && last_x - x < NARROW)) {
            continue;
        }
        if (last_x >= 0) {
            point_write(s, last_x, y, height, span->mem_end);
        }
        point_write(s, end, y, height, span->mem_end);
        point_write(s, end, y, height, span->mem_begin);
        point_write(s, x, y, height, span->mem_begin);
        last_x = x;
    }
    fputs("\"/>\n", s->out);
}

static void row_write(struct svg *s, int rank, double y)
{
    const struct hdt_sim_rank_result *r = &s->result->ranks[rank];
    char name[64], shares[64];
    double under = y + s->lane + 1, frames = fmax(2, s->row * 0.14);

    snprintf(name, sizeof(name), "rank %d", rank);
    if (s->chart->rank_name) {
        s->chart->rank_name(s->chart->ctx, rank, name, sizeof(name));
    }
    rect_write(s, LEFT, y, PLOT, s->lane, "#eeeeee");
    ops_write(s, rank, y);
    frames_write(s, rank, under, frames);
    if (s->mem_top > 0 && s->row >= 40) {
        memory_write(s, rank, under + frames + 1, s->row - s->lane - frames - 6);
    }
    if (s->row >= 9) {
        label_write(s, LEFT - 6, y + s->lane / 2 + 3.5, s->row >= 14 ? 11 : 8, "end", "#000000",
                    name);
        snprintf(shares, sizeof(shares), "busy %.0f %%, bubble %.0f %%",
                 100 * r->use_s[HDT_SIM_BUSY] / fmax(r->window_s, 1e-300),
                 100 * r->use_s[HDT_SIM_BUBBLE] / fmax(r->window_s, 1e-300));
        label_write(s, LEFT + PLOT + 6, y + s->lane / 2 + 3.5, s->row >= 14 ? 11 : 8, "start",
                    "#000000", shares);
    }
    if (s->mem_top > 0 && s->row >= 40) {
        bool is_large = r->mem_peak >= 1000000000;

        snprintf(shares, sizeof(shares), "memory %.3g %s at most",
                 (double)r->mem_peak / (is_large ? 1e9 : 1e6), is_large ? "GB" : "MB");
        label_write(s, LEFT + PLOT + 6, y + s->row - 6, 10, "start", "#555555", shares);
    }
}

/* ---- around the rows ---- */

/* 1, 2 or 5 times a power of ten, so that there are about N_TICKS of them. */
static double tick_step(double span_s)
{
    double rough = span_s / N_TICKS, power = pow(10, floor(log10(rough)));

    return power * (rough > 5 * power ? 10 : rough > 2 * power ? 5 : rough > power ? 2 : 1);
}

static void axis_write(const struct svg *s)
{
    double span_s = s->chart->to_s - s->chart->from_s, step_s = tick_step(span_s);
    double y = TOP + s->row * (double)s->n_rows + 4;
    const char *unit = span_s < 2e-3 ? "µs" : span_s < 2 ? "ms" : "s";
    double per_unit = span_s < 2e-3 ? 1e6 : span_s < 2 ? 1e3 : 1;
    char text[64];

    for (int i = 0; (double)i * step_s <= span_s * (1 + 1e-9); i++) {
        double x = time_x(s, s->chart->from_s + (double)i * step_s);

        fprintf(s->out,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#999999\" "
                "stroke-width=\"0.5\" stroke-dasharray=\"2,3\"/>\n",
                x, TOP - 4, x, y);
        snprintf(text, sizeof(text), "%.6g", (double)i * step_s * per_unit);
        label_write(s, x, y + 13, 11, "middle", "#000000", text);
    }
    snprintf(text, sizeof(text), "time in %s", unit);
    label_write(s, LEFT + PLOT / 2, y + 30, 12, "middle", "#000000", text);
}

/* Of what is in the picture; numbers in the bars are micro-batches. */
static void legend_write(const struct svg *s)
{
    double x = LEFT;

    for (int i = 0; i < LOOK_COUNT; i++) {
        if (s->used[i]) {
            rect_write(s, x, 46, 14, i == LOOK_PATH ? 3 : 12, looks[i].fill);
            label_write(s, x + 18, 56, 11, "start", "#000000", looks[i].name);
            x += 18 + 6.1 * (double)strlen(looks[i].name) + 16;
        }
    }
    label_write(s, x, 56, 11, "start", "#555555",
                s->mem_top > 0 && s->row >= 40 ? "numbers: micro-batch; line: memory"
                                               : "numbers: micro-batch");
}

static void head_write(const struct svg *s)
{
    double width = LEFT + PLOT + RIGHT, height = TOP + s->row * (double)s->n_rows + BOTTOM;
    char text[96];

    fprintf(s->out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\">\n",
            width, height, width, height);
    rect_write(s, 0, 0, width, height, "#ffffff");
    label_write(s, LEFT, 28, 16, "start", "#000000", s->chart->title);
    if (s->n_rows < s->result->n_ranks) {
        snprintf(text, sizeof(text), "%zu of %zu ranks are shown", s->n_rows, s->result->n_ranks);
        label_write(s, LEFT + PLOT + RIGHT - 8, 28, 12, "end", "#d55e00", text);
    }
}

static void svg_init(struct svg *s)
{
    const struct hdt_sim_result *result = s->result;
    const struct hdt_sim_path *path = s->chart->path;

    s->n_rows = result->n_ranks < ROWS_MAX ? result->n_ranks : ROWS_MAX;
    s->row = s->n_rows <= 12 ? 56 : s->n_rows <= 32 ? 26 : s->n_rows <= 64 ? 14 : 9;
    s->lane = s->row >= 40 ? 24 : floor(0.68 * s->row);
    s->last = hdt_malloc(result->n_ranks * sizeof(s->last[0]));
    for (size_t i = 0; i < result->n_ranks; i++) {
        s->last[i] = -1;
        s->mem_top =
            result->ranks[i].mem_peak > s->mem_top ? result->ranks[i].mem_peak : s->mem_top;
    }
    for (size_t i = 0; i < result->n_spans; i++) {
        s->last[result->spans[i].rank] = (int64_t)i;
    }
    if (path) {
        s->on_path = hdt_calloc(result->n_spans + 1, sizeof(s->on_path[0]));
        for (size_t i = 0; i < path->n_spans; i++) {
            s->on_path[path->spans[i]] = true;
        }
    }
}

enum hdt_status hdt_sim_svg_write(const struct hdt_sim_result *result,
                                  const struct hdt_sim_chart *chart, const char *path,
                                  struct hdt_error *err)
{
    struct svg s = {.result = result, .chart = chart};
    bool failed;

    s.out = fopen(path, "we");
    if (!s.out) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write the chart '%s'", path);
    }
    svg_init(&s);
    head_write(&s);
    for (size_t i = 0; i < s.n_rows; i++) {
        row_write(&s, (int)(i * result->n_ranks / s.n_rows), TOP + s.row * (double)i + 4);
    }
    legend_write(&s);
    axis_write(&s);
    fputs("</svg>\n", s.out);
    free(s.last);
    free(s.on_path);
    failed = ferror(s.out) != 0;
    if (fclose(s.out) != 0 || failed) {
        return hdt_error_set(err, HDT_EIO, "cannot write the chart '%s': the disk refused", path);
    }
    return HDT_OK;
}
