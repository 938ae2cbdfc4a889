/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/codec_table.h"

/* The slower of a worker's codec and its gateway's, both in bytes of the tensor. */
static double end_rate(double worker, double gateway, double up)
{
    gateway *= up;
    return worker <= 0 ? gateway : gateway <= 0 || worker < gateway ? worker : gateway;
}

static json_t *row_json(const struct hdt_adapt_input *in, const struct hdt_adapt_table *table,
                        size_t i)
{
    const struct hdt_adapt_candidate *c = &in->candidates[i];
    const struct hdt_adapt_row *row = &table->rows[i];
    const double up = c->frame_bytes > 0 ? in->tensor_bytes / c->frame_bytes : 1;
    char codec[HDT_CODEC_SPEC_TEXT], why[HDT_ADAPT_TEXT];

    hdt_codec_spec_format(&c->spec, codec);
    hdt_adapt_why_text(in, table, i, why);
    return json_pack(
        "{s:s, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s}", "codec", codec,
        "chosen", (int)i == table->chosen, "encode_bytes_per_s",
        end_rate(c->encode_bytes_per_s, c->gw_encode_bytes_per_s, up), "decode_bytes_per_s",
        end_rate(c->decode_bytes_per_s, c->gw_decode_bytes_per_s, up), "ratio", row->ratio, "error",
        c->error, "goodput_bytes_per_s", row->goodput_bytes_per_s, "pace_s", row->pace_s, "alone_s",
        row->alone_s, "step_s", row->step_s, "full_below_bytes_per_s", row->full_below_bytes_per_s,
        "none_above_bytes_per_s", row->none_above_bytes_per_s, "why", why);
}

json_t *hdt_codec_table_json(const struct hdt_adapt_input *in, const struct hdt_adapt_table *table)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < table->n; i++) {
        json_array_append_new(rows, row_json(in, table, i));
    }
    return rows;
}
