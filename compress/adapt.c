/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table is worked out anew each time: sixteen rows of a dozen divisions cost a microsecond, and
 * nothing has to be kept in step with what changes.
 *
 * Two rules keep the choice from swinging. The share that a less exact codec must save is larger
 * than that which a more exact one may cost: between the two nothing changes, since each figure has
 * noise of some percent. And a change must rest on a goodput that was measured after the last
 * change, since what the old codec did to the link says little of the new one. A guard's bar and a
 * budget that is overrun are no matter of taste: they change the codec at once.
 */
#include "config.h"

#include "compress/adapt.h"
#include "src/base/error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double time_of(double bytes, double bytes_per_s)
{
    return bytes_per_s > 0 ? bytes / bytes_per_s : 0;
}

/* The least of two rates, of which 0 is no limit. */
static double slower_of(double a, double b)
{
    return a <= 0 ? b : b <= 0 ? a : fmin(a, b);
}

/* Rate of all codings, in bytes of the tensor. */
static double codec_rate(const struct hdt_adapt_candidate *c, double tensor_bytes)
{
    const double up = c->frame_bytes > 0 ? tensor_bytes / c->frame_bytes : 1;

    return slower_of(slower_of(c->encode_bytes_per_s, c->decode_bytes_per_s),
                     slower_of(c->gw_encode_bytes_per_s * up, c->gw_decode_bytes_per_s * up));
}

static void cross(const struct hdt_adapt_candidate *c, double gw_ratio, double goodput,
                  struct hdt_adapt_crossing *out)
{
    const double chunks = fmax(1, c->frame_bytes / HDT_ADAPT_CHUNK_BYTES);

    out->wire_bytes = c->frame_bytes / fmax(1, gw_ratio);
    out->link_s = time_of(out->wire_bytes, goodput);
    out->alone_s = (out->encode_s + out->decode_s) / chunks +
                   fmax(out->link_s, out->encode_s * (1 - 1 / chunks));
}

void hdt_adapt_cross(const struct hdt_adapt_candidate *c, double goodput_bytes_per_s,
                     struct hdt_adapt_crossing *crossing)
{
    struct hdt_adapt_crossing plain = {0};

    *crossing =
        (struct hdt_adapt_crossing){.encode_s = time_of(c->frame_bytes, c->gw_encode_bytes_per_s),
                                    .decode_s = time_of(c->frame_bytes, c->gw_decode_bytes_per_s)};
    cross(c, c->gw_ratio, goodput_bytes_per_s, crossing);
    cross(c, 1, goodput_bytes_per_s, &plain);
    if (goodput_bytes_per_s > 0 && crossing->alone_s > HDT_ADAPT_LEAVES_OUT * plain.alone_s) {
        *crossing = plain;
    }
}

/* Break-even rates are those of the codec as it is meant, also where gateways leave theirs out. */
static void row_rates(const struct hdt_adapt_input *in, const struct hdt_adapt_candidate *c,
                      const struct hdt_adapt_crossing *way, struct hdt_adapt_row *row)
{
    const double all = codec_rate(c, in->tensor_bytes);
    const double coded_bytes = c->frame_bytes / fmax(1, c->gw_ratio);
    const double ratio = coded_bytes > 0 ? in->tensor_bytes / coded_bytes : 1;
    const bool is_used = way->wire_bytes < c->frame_bytes;

    row->codec_bytes_per_s =
        is_used ? all : slower_of(c->encode_bytes_per_s, c->decode_bytes_per_s);
    row->goodput_bytes_per_s =
        in->goodput_bytes_per_s > 0
            ? slower_of(row->codec_bytes_per_s, in->goodput_bytes_per_s * row->ratio)
            : 0;
    row->full_below_bytes_per_s = ratio > 1 ? all / ratio : 0;
    row->none_above_bytes_per_s = ratio > 1 ? all : 0;
}

/* All that one codec says by itself: `stations` but the turn. */
static void row_fill(const struct hdt_adapt_input *in, const struct hdt_adapt_candidate *c,
                     struct hdt_adapt_row *row, double stations[HDT_ADAPT_STATIONS])
{
    const double encode_s = time_of(in->tensor_bytes, c->encode_bytes_per_s);
    const double decode_s = time_of(in->tensor_bytes, c->decode_bytes_per_s);
    const double threads = fmax(1, in->gw_threads);
    struct hdt_adapt_crossing way;

    hdt_adapt_cross(c, in->goodput_bytes_per_s, &way);
    row->wire_bytes = way.wire_bytes;
    row->ratio = way.wire_bytes > 0 ? in->tensor_bytes / way.wire_bytes : 1;
    row->src_held_s =
        in->src_share * (threads * way.encode_s + way.wire_bytes * in->send_s_per_byte);
    row->dst_held_s =
        in->dst_share * (threads * way.decode_s + way.wire_bytes * in->recv_s_per_byte);
    stations[HDT_ADAPT_AT_SRC] = in->src_busy_s + encode_s + row->src_held_s;
    stations[HDT_ADAPT_AT_SRC_GATEWAY] = way.encode_s;
    stations[HDT_ADAPT_AT_LINK] = way.link_s;
    stations[HDT_ADAPT_AT_DST_GATEWAY] = way.decode_s;
    stations[HDT_ADAPT_AT_DST] = in->dst_busy_s + decode_s + row->dst_held_s;
    row->alone_s = encode_s + way.alone_s + in->rtt_s / 2 + decode_s;
    row->turn_s = stations[HDT_ADAPT_AT_SRC] + stations[HDT_ADAPT_AT_DST] + in->beyond_s +
                  row->alone_s - encode_s - decode_s;
    row_rates(in, c, &way, row);
}

/* The rest, when it is known how long the way back takes. */
static void row_pace(const struct hdt_adapt_input *in, double back_s, struct hdt_adapt_row *row,
                     double stations[HDT_ADAPT_STATIONS])
{
    row->turn_s += back_s;
    stations[HDT_ADAPT_AT_TURN] = in->in_flight > 0 ? row->turn_s / in->in_flight : 0;
    row->slowest = HDT_ADAPT_AT_LINK;
    for (int i = 0; i < HDT_ADAPT_STATIONS; i++) {
        if (stations[i] > stations[row->slowest]) {
            row->slowest = (enum hdt_adapt_station)i;
        }
    }
    row->pace_s = stations[row->slowest];
    row->step_s = (fmax(1, in->n_frames) - 1) * row->pace_s + row->alone_s;
}

static void rows_fill(const struct hdt_adapt_input *in, struct hdt_adapt_table *table)
{
    double stations[HDT_ADAPT_MAX][HDT_ADAPT_STATIONS];

    for (size_t i = 0; i < in->n; i++) {
        row_fill(in, &in->candidates[i], &table->rows[i], stations[i]);
    }
    for (size_t i = 0; i < in->n; i++) {
        const size_t back = in->current >= 0 ? (size_t)in->current : i;

        row_pace(in, table->rows[back].alone_s, &table->rows[i], stations[i]);
    }
}

static bool may_use(const struct hdt_adapt_input *in, size_t i)
{
    return !in->candidates[i].is_barred && in->candidates[i].error <= in->error_budget;
}

static int fastest(const struct hdt_adapt_input *in, const struct hdt_adapt_table *table)
{
    int best = -1;

    for (size_t i = 0; i < in->n; i++) {
        if (may_use(in, i) && (best < 0 || table->rows[i].step_s < table->rows[best].step_s)) {
            best = (int)i;
        }
    }
    return best;
}

static int first_allowed(const struct hdt_adapt_input *in)
{
    int i = 0;

    while ((size_t)i + 1 < in->n && !may_use(in, (size_t)i)) {
        i++;
    }
    return i;
}

static bool is_fresh(const struct hdt_adapt_input *in)
{
    return in->goodput_bytes_per_s > 0 && in->measured_us > in->changed_us &&
           in->now_us - in->measured_us <= in->fresh_us;
}

/* The most exact of those that are as good as the fastest. */
static int preferred(const struct hdt_adapt_input *in, const struct hdt_adapt_table *table)
{
    const int best = fastest(in, table);

    for (int i = 0; i < best; i++) {
        if (may_use(in, (size_t)i) &&
            table->rows[i].step_s <= (1 + in->exact_cost) * table->rows[best].step_s) {
            return i;
        }
    }
    return best;
}

static bool pays(const struct hdt_adapt_input *in, const struct hdt_adapt_table *table, int best)
{
    return best < in->current ||
           table->rows[best].step_s < (1 - in->least_gain) * table->rows[in->current].step_s;
}

static int choose(const struct hdt_adapt_input *in, const struct hdt_adapt_table *table)
{
    const bool has_current = in->current >= 0 && may_use(in, (size_t)in->current);
    const int best = preferred(in, table);

    if (best < 0) {
        return 0;
    }
    if (!has_current) {
        return in->goodput_bytes_per_s > 0 ? best : first_allowed(in);
    }
    return is_fresh(in) && pays(in, table, best) ? best : in->current;
}

static enum hdt_adapt_why why_of(const struct hdt_adapt_input *in,
                                 const struct hdt_adapt_table *table, size_t i)
{
    if ((int)i == table->chosen) {
        return HDT_ADAPT_CHOSEN;
    }
    if (in->candidates[i].is_barred) {
        return HDT_ADAPT_BARRED;
    }
    if (in->candidates[i].error > in->error_budget) {
        return HDT_ADAPT_OVER_BUDGET;
    }
    if (table->rows[i].step_s >= table->rows[table->chosen].step_s) {
        return HDT_ADAPT_SLOWER;
    }
    return is_fresh(in) ? HDT_ADAPT_HELD : HDT_ADAPT_STALE;
}

void hdt_adapt_choose(const struct hdt_adapt_input *in, struct hdt_adapt_table *table)
{
    HDT_ASSERT(in->n >= 1 && in->n <= HDT_ADAPT_MAX);
    HDT_ASSERT(in->current < (int)in->n);
    memset(table, 0, sizeof(*table));
    table->n = in->n;
    rows_fill(in, table);
    table->chosen = choose(in, table);
    for (size_t i = 0; i < in->n; i++) {
        table->rows[i].why = why_of(in, table, i);
    }
}

void hdt_adapt_why_text(const struct hdt_adapt_input *in, const struct hdt_adapt_table *table,
                        size_t i, char text[HDT_ADAPT_TEXT])
{
    static const char *const stations[HDT_ADAPT_STATIONS] = {
        [HDT_ADAPT_AT_SRC] = "the sending worker",
        [HDT_ADAPT_AT_SRC_GATEWAY] = "the sending gateway",
        [HDT_ADAPT_AT_LINK] = "the link",
        [HDT_ADAPT_AT_DST_GATEWAY] = "the receiving gateway",
        [HDT_ADAPT_AT_DST] = "the receiving worker",
        [HDT_ADAPT_AT_TURN] = "the way there and back",
    };
    const struct hdt_adapt_row *row = &table->rows[i], *best = &table->rows[table->chosen];
    const double gain = best->step_s > 0 ? 1 - row->step_s / best->step_s : 0;

    switch (row->why) {
    case HDT_ADAPT_CHOSEN:
        snprintf(text, HDT_ADAPT_TEXT, "chosen: %s sets the pace", stations[row->slowest]);
        return;
    case HDT_ADAPT_SLOWER:
        snprintf(text, HDT_ADAPT_TEXT, "%.2f times the time: %s sets the pace",
                 best->step_s > 0 ? row->step_s / best->step_s : 1, stations[row->slowest]);
        return;
    case HDT_ADAPT_HELD:
        snprintf(text, HDT_ADAPT_TEXT, "saves %.1f %% of the time, which is not worth its error",
                 100 * gain);
        return;
    case HDT_ADAPT_STALE:
        snprintf(text, HDT_ADAPT_TEXT, "saves %.1f %% of the time by figures that are too old",
                 100 * gain);
        return;
    case HDT_ADAPT_OVER_BUDGET:
        snprintf(text, HDT_ADAPT_TEXT, "relative error %.2g is above the budget of %.2g",
                 in->candidates[i].error, in->error_budget);
        return;
    case HDT_ADAPT_BARRED:
        snprintf(text, HDT_ADAPT_TEXT, "the guard has stepped up from it");
        return;
    }
    text[0] = '\0';
}
