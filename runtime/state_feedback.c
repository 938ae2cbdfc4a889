/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feedback of codecs, and the guards of those that have none, on their way to and from checkpoint
 * files. What an end of an edge keeps is one
 * run of bytes, copied when the save begins, as the tensors are; it follows on the tensors of its
 * rank, in slabs of the same frames, and lies in a file named by the edge, so that a plan which
 * cuts the model there finds it again, whatever its ranks and flows are.
 *
 * What is not there, or is of another codec, is no failure: the end starts with nothing owed, and
 * says so. The bits are then not those of the uninterrupted run.
 */
#include "config.h"

#include "runtime/state_impl.h"

#include "compress/codec.h"
#include "src/base/buf.h"
#include "src/base/log.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only what a decoder must know of the past is kept at the receiver. */
bool hdt_state_keeps_feedback(const struct hdt_plan_flow *flow, bool is_src)
{
    return hdt_codec_spec_has_state(&flow->codec) &&
           (is_src || (flow->codec.flags & HDT_CODEC_DELTA) != 0);
}

bool hdt_state_keeps_guard(const struct hdt_plan_flow *flow, bool is_src)
{
    const double error = hdt_codec_expected_error(&flow->codec);

    return is_src && flow->src_rank != flow->dst_rank &&
           (flow->kind == HDT_FLOW_ACTIVATION || flow->kind == HDT_FLOW_ACTIVATION_GRAD) &&
           !hdt_codec_spec_has_state(&flow->codec) && error > 0 && error < 1;
}

static bool end_keeps(const struct hdt_plan_flow *flow, bool is_src)
{
    return hdt_state_keeps_feedback(flow, is_src) || hdt_state_keeps_guard(flow, is_src);
}

bool hdt_state_next_end(const struct hdt_plan *plan, int rank, int *end)
{
    for (++*end; (size_t)*end < 2 * plan->n_flows; ++*end) {
        const struct hdt_plan_flow *flow = &plan->flows[*end / 2];
        bool is_src = *end % 2 == 0;

        if ((is_src ? flow->src_rank : flow->dst_rank) == rank && end_keeps(flow, is_src)) {
            return true;
        }
    }
    for (; *end < hdt_state_n_ends(plan); ++*end) {
        struct state_unit unit;

        if (hdt_state_unit_of(plan, *end, &unit) && hdt_state_unit_is_of(plan, rank, &unit)) {
            return true;
        }
    }
    return false;
}

static void end_name(const struct hdt_state *state, int end, char name[HDT_PLAN_EDGE_NAME])
{
    struct state_unit unit;

    if (hdt_state_unit_of(state->conf.plan, end, &unit)) {
        if (unit.is_outer) {
            snprintf(name, HDT_PLAN_EDGE_NAME, "outer-%lld", (long long)unit.unit);
        } else {
            snprintf(name, HDT_PLAN_EDGE_NAME, "replica%d-moments-%lld", unit.replica,
                     (long long)unit.unit);
        }
        return;
    }
    hdt_plan_edge_name(state->conf.plan, &state->conf.plan->flows[end / 2], end % 2 == 0, name);
}

/* ---- life ---- */

enum hdt_status hdt_state_feedback_init(struct hdt_state *state, struct hdt_error *err)
{
    const struct hdt_plan *plan = state->conf.plan;
    struct state_feedback *item;
    struct state_unit unit;
    int end = -1;

    state->feedback = hdt_calloc((size_t)hdt_state_n_ends(plan) + 1, sizeof(*state->feedback));
    while (state->conf.feedback && hdt_state_next_end(plan, state->conf.rank, &end)) {
        item = &state->feedback[state->n_feedback++];
        item->end = end;
        if (hdt_state_unit_of(plan, end, &unit)) {
            item->len = (size_t)hdt_state_unit_end_bytes(plan, state->conf.model, end);
            item->only_loads = unit.is_outer && unit.replica > 0;
        } else {
            item->codec = state->conf.feedback[end];
            item->edge = state->conf.edges[end / 2];
            HDT_ASSERT(item->codec || item->edge);
            item->len =
                item->codec ? hdt_codec_state_bytes(item->codec) : (size_t)HDT_LADDER_GUARD_BYTES;
        }
        item->bytes = malloc(item->len);
        if (!item->bytes) {
            return hdt_error_set(err, HDT_ENOMEM,
                                 "cannot make room for checkpoints: %zu MiB of feedback wanted",
                                 item->len >> 20);
        }
    }
    return HDT_OK;
}

void hdt_state_feedback_release(struct hdt_state *state)
{
    for (size_t i = 0; i < state->n_feedback; i++) {
        free(state->feedback[i].bytes);
    }
    free(state->feedback);
}

/* ---- saving ---- */

enum hdt_status hdt_state_feedback_take(struct hdt_state *state, struct hdt_error *err)
{
    for (size_t i = 0; i < state->n_feedback; i++) {
        struct state_feedback *item = &state->feedback[i];
        struct state_unit unit;

        if (hdt_state_unit_of(state->conf.plan, item->end, &unit)) {
            HDT_TRY(hdt_state_unit_copy(state, &unit, item->bytes, false, err));
        } else if (item->codec) {
            hdt_codec_state_save(item->codec, item->bytes);
        } else {
            hdt_edge_guard_save(item->edge, item->bytes);
        }
        item->xxh3 = XXH3_64bits(item->bytes, item->len);
    }
    return HDT_OK;
}

/* The head of a slab that begins at byte `pos` of an end. */
static void slab_pack(const struct hdt_state *state, int end, uint64_t pos, bool is_last,
                      uint64_t xxh3, void *slot)
{
    struct hdt_state_header header;

    hdt_state_header_fill(state, &header);
    header.tensor = (uint32_t)end;
    header.offset = pos;
    header.flags = HDT_STATE_FEEDBACK | (is_last ? HDT_STATE_SEALED : 0);
    header.xxh3 = is_last ? xxh3 : 0;
    hdt_state_header_pack(&header, slot);
}

enum hdt_status hdt_state_feedback_send(struct hdt_state *state, int flow, struct hdt_error *err)
{
    for (size_t i = 0; i < state->n_feedback; i++) {
        const struct state_feedback *item = &state->feedback[i];
        size_t pos, len, cap;
        void *slot;

        for (pos = 0; pos < item->len && !item->only_loads; pos += len) {
            HDT_TRY(hdt_port_send_get(state->conf.port, flow, &slot, &cap, err));
            len = hdt_state_slab_len(cap, item->len - pos);
            slab_pack(state, item->end, pos, pos + len == item->len, item->xxh3, slot);
            memcpy((uint8_t *)slot + HDT_STATE_HEADER_LEN, item->bytes + pos, len);
            hdt_port_send_commit(state->conf.port, flow, HDT_STATE_HEADER_LEN + len, len,
                                 HDT_DTYPE_F32);
            hdt_state_moved(state);
        }
    }
    return HDT_OK;
}

static bool end_is_saved(const struct hdt_plan *plan, uint32_t end)
{
    struct state_unit unit;

    if (end < 2 * plan->n_flows) {
        return end_keeps(&plan->flows[end / 2], end % 2 == 0);
    }
    return end < INT_MAX && hdt_state_unit_of(plan, (int)end, &unit) &&
           hdt_state_unit_is_saved(&unit);
}

enum hdt_status hdt_state_feedback_write(const struct hdt_state *state,
                                         struct hdt_ckpt_writer *writer,
                                         const struct hdt_state_header *header, const void *data,
                                         size_t len, struct hdt_error *err)
{
    const struct hdt_plan *plan = state->conf.plan;
    char name[HDT_PLAN_EDGE_NAME];

    if (!end_is_saved(plan, header->tensor)) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot save: feedback of end %u came, which has none",
                             header->tensor);
    }
    end_name(state, (int)header->tensor, name);
    HDT_TRY(hdt_ckpt_writer_feedback(writer, name, header->offset, data, len, err));
    return header->flags & HDT_STATE_SEALED
               ? hdt_ckpt_writer_seal_feedback(writer, name, header->xxh3, err)
               : HDT_OK;
}

enum hdt_status hdt_state_feedback_write_own(const struct hdt_state *state,
                                             struct hdt_ckpt_writer *writer, struct hdt_error *err)
{
    for (size_t i = 0; i < state->n_feedback; i++) {
        const struct state_feedback *item = &state->feedback[i];
        const struct hdt_state_header header = {
            .tensor = (uint32_t)item->end, .flags = HDT_STATE_SEALED, .xxh3 = item->xxh3};

        if (!item->only_loads) {
            HDT_TRY(hdt_state_feedback_write(state, writer, &header, item->bytes, item->len, err));
        }
    }
    return HDT_OK;
}

/* ---- loading ---- */

static enum hdt_status item_load(struct hdt_state *state, struct state_feedback *item,
                                 struct hdt_error *err)
{
    struct state_unit unit;

    if (hdt_state_unit_of(state->conf.plan, item->end, &unit)) {
        return hdt_state_unit_copy(state, &unit, item->bytes, true, err);
    }
    return item->codec ? hdt_codec_state_load(item->codec, item->bytes, item->len, err)
                       : hdt_edge_guard_load(item->edge, item->bytes, item->len, err);
}

/* The bytes are there, all of them: take them over, if they are of this codec and tensor. A guard
 * without them begins as that of a new run. */
static void feedback_use(struct hdt_state *state, struct state_feedback *item, uint64_t len)
{
    char name[HDT_PLAN_EDGE_NAME], codec[HDT_CODEC_SPEC_TEXT];
    struct hdt_error why = {0};
    struct state_unit unit;

    if (len == 0) {
        hdt_error_set(&why, HDT_ENOENT, "the checkpoint has none");
    } else if (len != item->len) {
        hdt_error_set(&why, HDT_EINVAL, "that of the checkpoint is of another codec or tensor");
    } else if (item_load(state, item, &why) == HDT_OK) {
        return;
    }
    end_name(state, item->end, name);
    if (hdt_state_unit_of(state->conf.plan, item->end, &unit)) {
        hdt_log_info("%s: %s; it begins with %s", name, why.msg,
                     unit.is_outer ? "zeros" : "the first replica's");
        return;
    }
    if (!item->codec) {
        hdt_log_info("the guard of %s begins with the planned codec, %s: %s", name,
                     hdt_codec_spec_format(&state->conf.plan->flows[item->end / 2].codec, codec),
                     why.msg);
        return;
    }
    hdt_codec_state_reset(item->codec);
    hdt_log_warn("feedback of %s (%s) starts with zeros: %s", name,
                 hdt_codec_spec_format(&state->conf.plan->flows[item->end / 2].codec, codec),
                 why.msg);
}

enum hdt_status hdt_state_feedback_load_own(struct hdt_state *state,
                                            const struct hdt_ckpt_reader *reader,
                                            struct hdt_error *err)
{
    for (size_t i = 0; i < state->n_feedback; i++) {
        struct state_feedback *item = &state->feedback[i];
        char name[HDT_PLAN_EDGE_NAME];
        uint64_t len = 0, xxh3;

        end_name(state, item->end, name);
        if (hdt_ckpt_reader_find_feedback(reader, name, &len, &xxh3) && len == item->len) {
            HDT_TRY(hdt_ckpt_reader_feedback(reader, name, 0, item->len, item->bytes, err));
            if (XXH3_64bits(item->bytes, item->len) != xxh3) {
                return hdt_error_set(err, HDT_ECRC,
                                     "cannot load the feedback of %s: it was "
                                     "damaged on its way",
                                     name);
            }
        }
        feedback_use(state, item, len);
    }
    return HDT_OK;
}

enum hdt_status hdt_state_feedback_serve(struct hdt_state *state,
                                         const struct hdt_ckpt_reader *reader,
                                         struct state_peer *peer, struct hdt_error *err)
{
    char name[HDT_PLAN_EDGE_NAME];
    uint64_t len = 0, xxh3 = 0;
    void *slot;
    size_t cap, n;

    end_name(state, peer->end, name);
    hdt_ckpt_reader_find_feedback(reader, name, &len, &xxh3);
    HDT_TRY(hdt_port_send_get(state->conf.port, peer->flow, &slot, &cap, err));
    n = hdt_state_slab_len(cap, len - peer->pos);
    slab_pack(state, peer->end, peer->pos, peer->pos + n == len, xxh3, slot);
    if (n > 0) {
        HDT_TRY(hdt_ckpt_reader_feedback(reader, name, peer->pos, n,
                                         (uint8_t *)slot + HDT_STATE_HEADER_LEN, err));
    }
    hdt_port_send_commit(state->conf.port, peer->flow, HDT_STATE_HEADER_LEN + n, n, HDT_DTYPE_F32);
    peer->pos += n;
    peer->end_done = peer->pos == len;
    return HDT_OK;
}

enum hdt_status hdt_state_feedback_receive(struct hdt_state *state, struct state_feedback *item,
                                           uint64_t *pos, const struct hdt_state_header *header,
                                           const void *data, size_t len, struct hdt_error *err)
{
    bool fits = *pos + len <= item->len;

    if (!(header->flags & HDT_STATE_FEEDBACK) || (int64_t)header->tensor != item->end ||
        header->offset != *pos || (len == 0 && !(header->flags & HDT_STATE_SEALED))) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot load a checkpoint: %zu bytes of %u at %llu came where the "
                             "feedback of end %d at %llu was expected",
                             len, header->tensor, (unsigned long long)header->offset, item->end,
                             (unsigned long long)*pos);
    }
    if (fits && len > 0) {
        memcpy(item->bytes + *pos, data, len);
    }
    *pos += len;
    if (!(header->flags & HDT_STATE_SEALED)) {
        return HDT_OK;
    }
    if (*pos == item->len && XXH3_64bits(item->bytes, item->len) != header->xxh3) {
        return hdt_error_set(err, HDT_ECRC,
                             "cannot load feedback: it was damaged on its way: its digest is "
                             "%016llx, that of what came %016llx",
                             (unsigned long long)header->xxh3,
                             (unsigned long long)XXH3_64bits(item->bytes, item->len));
    }
    feedback_use(state, item, *pos);
    return HDT_OK;
}
