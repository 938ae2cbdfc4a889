/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The choice is made anew when the gateway has said something new of the link, not for each frame:
 * between two messages nothing has changed but noise.
 *
 * Bits. What the guard does follows from the tensors alone, so a run that is repeated steps at the
 * same frames. What the choice does follows from clocks: two runs with `lossy` and "auto" differ.
 */
#include "runtime/edge.h"

#include "compress/rate.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/codec_table.h"

#include <stdio.h>
#include <string.h>

/* Each codec, both directions: some ten passes of a piece, of which the best counts. */
#define RATE_BUDGET_MS 20

/* A step that changes codecs must rest on a rate that is not older; the gateway says one each
 * second while frames go. */
#define FRESH_US (10 * HDT_US_PER_S)

/* Weight of the last frame in the figures of a rung. */
#define NEWS 0.2

/* An error that was seen so many frames ago says nothing of the next one. */
#define ERROR_FRAMES HDT_LADDER_CALM_FRAMES

/* Ratios of the lossless codec before it has been seen at work: the planner's. */
#define GW_RATIO_F32  1.15
#define GW_RATIO_BF16 1.30
#define GW_RATIO_INT8 1.10

static const struct hdt_codec_ops *rung_codec(const struct hdt_edge *edge, int rung)
{
    return hdt_codec_by_id(edge->ladder.rungs[rung].worker);
}

static void name_of(const struct hdt_edge *edge, int rung, char text[HDT_CODEC_SPEC_TEXT])
{
    hdt_codec_spec_format(&edge->ladder.rungs[rung], text);
}

static double blend(double old, double news)
{
    return old > 0 ? old + NEWS * (news - old) : news;
}

void hdt_edge_init(struct hdt_edge *edge, const struct hdt_edge_conf *conf)
{
    struct hdt_codec_rate rate;
    int i;

    memset(edge, 0, sizeof(*edge));
    edge->conf = *conf;
    hdt_ladder_init(&edge->ladder, &conf->planned, conf->is_live, conf->error_budget,
                    conf->tensor_bytes, conf->frame_cap);
    hdt_ladder_guard_init(&edge->guard, &edge->ladder);
    edge->rung = edge->ladder.planned;
    for (i = 0; conf->is_src && edge->ladder.is_live && i < edge->ladder.n; i++) {
        if (hdt_codec_rate_measure(rung_codec(edge, i), HDT_DTYPE_F32, RATE_BUDGET_MS, &rate,
                                   NULL) == HDT_OK) {
            /* A device's rate is known when it has coded a frame. */
            edge->rungs[i].encode_bytes_per_s =
                conf->coder && hdt_coder_is_device(conf->coder, &edge->ladder.rungs[i])
                    ? 0
                    : rate.encode_bytes_per_s;
            edge->rungs[i].decode_bytes_per_s = rate.decode_bytes_per_s;
        }
    }
}

/* ---- the choice ---- */

static double expected_gw_ratio(const struct hdt_edge *edge, int rung)
{
    switch (hdt_codec_coded_dtype(rung_codec(edge, rung), HDT_DTYPE_F32)) {
    case HDT_DTYPE_BF16:
        return GW_RATIO_BF16;
    case HDT_DTYPE_I8:
        return GW_RATIO_INT8;
    case HDT_DTYPE_F32:
        return GW_RATIO_F32;
    default:
        return 1;
    }
}

static double rung_error(const struct hdt_edge *edge, int rung)
{
    const struct hdt_edge_rung *r = &edge->rungs[rung];
    const bool is_seen = r->error_frame > 0 && edge->n_frames - r->error_frame < ERROR_FRAMES;

    return is_seen ? r->error : hdt_codec_expected_error(&edge->ladder.rungs[rung]);
}

static void candidate_fill(const struct hdt_edge *edge, int rung, struct hdt_adapt_candidate *c)
{
    const struct hdt_edge_rung *r = &edge->rungs[rung];
    const struct hdt_codec_spec *spec = &edge->ladder.rungs[rung];
    size_t bytes = edge->conf.tensor_bytes;

    memset(c, 0, sizeof(*c));
    c->spec = *spec;
    hdt_codec_bound(rung_codec(edge, rung), spec, HDT_DTYPE_F32, bytes, &bytes, NULL);
    c->frame_bytes = (double)bytes;
    c->encode_bytes_per_s = r->encode_bytes_per_s;
    c->decode_bytes_per_s = r->decode_bytes_per_s;
    c->gw_ratio = 1;
    if (spec->gateway != HDT_CODEC_NONE) {
        c->gw_encode_bytes_per_s = edge->figures.gw_encode_bytes_per_s;
        c->gw_decode_bytes_per_s = edge->figures.gw_decode_bytes_per_s;
        c->gw_ratio = r->gw_ratio > 0 ? r->gw_ratio : expected_gw_ratio(edge, rung);
    }
    c->error = rung_error(edge, rung);
    c->is_barred = rung > edge->guard.least;
}

static void edge_changed(struct hdt_edge *edge, int to, int64_t step, int64_t now_us)
{
    const struct hdt_adapt_row *rows = edge->table.rows;
    char before[HDT_CODEC_SPEC_TEXT], after[HDT_CODEC_SPEC_TEXT];

    name_of(edge, edge->rung, before);
    name_of(edge, to, after);
    hdt_log_info("%s, step %lld: %s in place of %s: the link carries %.4g Mbit/s, so that a step's "
                 "frames take %.3g s rather than %.3g s",
                 edge->conf.name, (long long)step, after, before,
                 8e-6 * edge->figures.goodput_bytes_per_s, rows[to].step_s,
                 rows[edge->rung].step_s);
    edge->rung = to;
    edge->changed_us = now_us;
    edge->n_changes++;
}

static void edge_choose(struct hdt_edge *edge, int64_t step)
{
    struct hdt_adapt_input *in = &edge->input;
    const double n_live = edge->conf.n_live > 1 ? edge->conf.n_live : 1;
    int i;

    *in = (struct hdt_adapt_input){.goodput_bytes_per_s = edge->figures.goodput_bytes_per_s,
                                   .rtt_s = edge->figures.rtt_s,
                                   .tensor_bytes = (double)edge->conf.tensor_bytes,
                                   .n_frames = edge->conf.n_frames,
                                   .src_busy_s = edge->src_busy_s,
                                   .dst_busy_s = edge->conf.dst_busy_s,
                                   .src_share = edge->conf.src_share,
                                   .dst_share = edge->conf.dst_share,
                                   .gw_threads = edge->figures.gw_threads,
                                   .send_s_per_byte = edge->figures.send_s_per_byte,
                                   .recv_s_per_byte = edge->figures.recv_s_per_byte,
                                   .in_flight = edge->conf.in_flight,
                                   .beyond_s = edge->conf.beyond_s,
                                   .error_budget = edge->ladder.error_budget,
                                   .least_gain = HDT_ADAPT_LEAST_GAIN / n_live,
                                   .exact_cost = HDT_ADAPT_EXACT_COST / n_live,
                                   .measured_us = edge->figures.measured_us,
                                   .changed_us = edge->changed_us,
                                   .now_us = hdt_clock_now_us(),
                                   .fresh_us = FRESH_US,
                                   .current = edge->rung,
                                   .candidates = edge->candidates,
                                   .n = (size_t)edge->ladder.n};
    for (i = 0; i < edge->ladder.n; i++) {
        candidate_fill(edge, i, &edge->candidates[i]);
    }
    hdt_adapt_choose(in, &edge->table);
    if (edge->table.chosen != edge->rung) {
        edge_changed(edge, edge->table.chosen, step, in->now_us);
    }
    edge->chosen_us = in->now_us;
}

void hdt_edge_set_figures(struct hdt_edge *edge, const struct hdt_edge_figures *figures,
                          int64_t step)
{
    const uint64_t plain = figures->plain_bytes - edge->figures.plain_bytes;
    const uint64_t coded = figures->coded_bytes - edge->figures.coded_bytes;
    struct hdt_edge_rung *r = &edge->rungs[edge->rung];

    /* Bytes since the last figures are of the present rung, unless it changed in between. */
    if (figures->plain_bytes > edge->figures.plain_bytes && coded > 0 && coded <= plain &&
        edge->changed_us < edge->chosen_us) {
        r->gw_ratio = blend(r->gw_ratio, (double)plain / (double)coded);
    }
    edge->figures = *figures;
    if (edge->ladder.is_live) {
        edge_choose(edge, step);
    }
}

void hdt_edge_set_busy(struct hdt_edge *edge, double src_busy_s)
{
    const double held_s = edge->table.n > 0 ? edge->table.rows[edge->rung].src_held_s : 0;
    const double codec_s = (double)edge->encode_ns / 1e9 / edge->conf.n_frames + held_s;

    edge->encode_ns = 0;
    if (src_busy_s > 0) {
        src_busy_s = src_busy_s > codec_s ? src_busy_s - codec_s : 0;
        edge->src_busy_s = blend(edge->src_busy_s, src_busy_s);
    }
}

/* ---- frames ---- */

static void edge_note(struct hdt_edge *edge, const struct hdt_codec_guard *seen, int64_t took_ns)
{
    struct hdt_edge_rung *r = &edge->rungs[edge->rung];
    const double error = hdt_codec_guard_error(seen);

    edge->n_frames++;
    edge->encode_ns += took_ns;
    r->error = r->error_frame > 0 ? blend(r->error, error) : error;
    r->error_frame = edge->n_frames;
    if (took_ns > 0) {
        r->encode_bytes_per_s =
            blend(r->encode_bytes_per_s, (double)edge->conf.tensor_bytes * 1e9 / (double)took_ns);
    }
    edge->worst_error = error > edge->worst_error ? error : edge->worst_error;
    hdt_codec_guard_add(&edge->total, seen);
}

/* The guard does not let the frame pass: the next rung, and a word. */
static void edge_step_up(struct hdt_edge *edge, enum hdt_ladder_verdict verdict,
                         const struct hdt_codec_guard *seen, int64_t step)
{
    char before[HDT_CODEC_SPEC_TEXT], after[HDT_CODEC_SPEC_TEXT];

    name_of(edge, edge->rung, before);
    name_of(edge, edge->guard.least, after);
    if (verdict == HDT_LADDER_NONFINITE) {
        hdt_log_warn("%s, step %lld: %s cannot carry %llu of %llu values; %s from now on",
                     edge->conf.name, (long long)step, before,
                     (unsigned long long)seen->n_nonfinite, (unsigned long long)seen->n, after);
    } else {
        hdt_log_warn("%s, step %lld: the relative error of %s would be %.3g, more than %.3g; %s "
                     "from now on",
                     edge->conf.name, (long long)step, before, hdt_codec_guard_error(seen),
                     hdt_ladder_limit(&edge->ladder, edge->rung), after);
    }
    edge->rung = edge->guard.least;
    edge->changed_us = hdt_clock_now_us();
}

static void edge_left(struct hdt_edge *edge, int64_t step)
{
    char after[HDT_CODEC_SPEC_TEXT];

    if (!hdt_ladder_left(&edge->guard, &edge->ladder)) {
        return;
    }
    name_of(edge, edge->guard.least, after);
    hdt_log_info("%s, step %lld: calm for long: %s may be used again", edge->conf.name,
                 (long long)step, after);
    edge->rungs[edge->guard.least].error_frame = 0;
    if (!edge->ladder.is_live) {
        edge->rung = edge->guard.least;
    }
}

enum hdt_status hdt_edge_encode(struct hdt_edge *edge, struct hdt_codec_ctx *ctx,
                                struct hdt_codec_io *io, int64_t step, size_t *len, uint8_t *mark,
                                struct hdt_error *err)
{
    enum hdt_ladder_verdict verdict;
    enum hdt_status status;
    struct hdt_error why;
    int64_t took_ns;

    HDT_ASSERT(io->guard != NULL);
    do {
        took_ns = hdt_clock_now_ns();
        io->spec = &edge->ladder.rungs[edge->rung];
        memset(io->guard, 0, sizeof(*io->guard));
        memset(&why, 0, sizeof(why));
        status = edge->conf.coder
                     ? hdt_coder_encode(edge->conf.coder, ctx, io, len, &why)
                     : hdt_codec_encode(rung_codec(edge, edge->rung), ctx, io, len, &why);
        took_ns = hdt_clock_now_ns() - took_ns;
        verdict =
            hdt_ladder_check(&edge->guard, &edge->ladder, edge->rung, io->guard, status != HDT_OK);
        if (verdict != HDT_LADDER_PASS) {
            edge_step_up(edge, verdict, io->guard, step);
        }
    } while (verdict != HDT_LADDER_PASS);
    *mark = edge->rung == edge->ladder.planned ? 0 : (uint8_t)(1 + edge->rung);
    if (status == HDT_OK) {
        edge_note(edge, io->guard, took_ns);
        edge_left(edge, step);
    } else if (err) {
        *err = why;
    }
    return status;
}

void hdt_edge_put_back(struct hdt_edge *edge, const struct hdt_edge *kept)
{
    edge->guard = kept->guard;
    edge->rung = kept->rung;
    edge->encode_ns = kept->encode_ns;
}

void hdt_edge_guard_save(const struct hdt_edge *edge, uint8_t mem[HDT_LADDER_GUARD_BYTES])
{
    hdt_ladder_guard_save(&edge->guard, &edge->ladder, mem);
}

enum hdt_status hdt_edge_guard_load(struct hdt_edge *edge, const void *mem, size_t len,
                                    struct hdt_error *err)
{
    HDT_TRY(hdt_ladder_guard_load(&edge->guard, &edge->ladder, mem, len, err));
    if (!edge->ladder.is_live || edge->rung > edge->guard.least) {
        edge->rung = edge->guard.least;
    }
    return HDT_OK;
}

static int rung_of_mark(const struct hdt_edge *edge, uint8_t mark)
{
    return mark == 0 ? edge->ladder.planned : mark - 1;
}

enum hdt_dtype hdt_edge_dtype(const struct hdt_edge *edge, uint8_t mark)
{
    return hdt_codec_coded_dtype(rung_codec(edge, rung_of_mark(edge, mark)), HDT_DTYPE_F32);
}

enum hdt_status hdt_edge_decode(const struct hdt_edge *edge, struct hdt_codec_ctx *ctx,
                                struct hdt_codec_io *io, uint8_t mark, struct hdt_error *err)
{
    const int rung = rung_of_mark(edge, mark);
    char text[HDT_LADDER_TEXT];

    if (rung >= edge->ladder.n) {
        hdt_ladder_text(&edge->ladder, text);
        hdt_error_set(err, HDT_EPROTO,
                      "%s: a frame came that was made by codec %u; this end was told of %d: %s",
                      edge->conf.name, mark, edge->ladder.n, text);
        hdt_error_hint(err, "do both workers run the same version, with the same plan?");
        return HDT_EPROTO;
    }
    io->spec = &edge->ladder.rungs[rung];
    return edge->conf.coder ? hdt_coder_decode(edge->conf.coder, ctx, io, err)
                            : hdt_codec_decode(rung_codec(edge, rung), ctx, io, err);
}

/* ---- telling ---- */

bool hdt_edge_is_of_note(const struct hdt_edge *edge)
{
    return edge->ladder.n > 1 || hdt_codec_expected_error(&edge->conf.planned) > 0;
}

json_t *hdt_edge_json(const struct hdt_edge *edge)
{
    char codec[HDT_CODEC_SPEC_TEXT], planned[HDT_CODEC_SPEC_TEXT];
    json_t *json;

    name_of(edge, edge->rung, codec);
    name_of(edge, edge->ladder.planned, planned);
    json = json_pack(
        "{s:s, s:s, s:b, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:f}", "codec",
        codec, "planned", planned, "live", edge->ladder.is_live, "codec_frames",
        (json_int_t)edge->n_frames, "values", (json_int_t)edge->total.n, "nonfinite",
        (json_int_t)edge->total.n_nonfinite, "max_abs", (double)edge->total.max_abs, "error",
        hdt_codec_guard_error(&edge->total), "worst_error", edge->worst_error, "steps_up",
        (json_int_t)edge->guard.n_up, "steps_down", (json_int_t)edge->guard.n_down, "coded_again",
        (json_int_t)edge->guard.n_again, "changes", (json_int_t)edge->n_changes, "link_bytes_per_s",
        edge->figures.goodput_bytes_per_s, "error_budget", edge->ladder.error_budget);
    if (edge->table.n > 0) {
        json_object_set_new(json, "table", hdt_codec_table_json(&edge->input, &edge->table));
    }
    return json;
}
