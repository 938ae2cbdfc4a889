/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The fixed order of a stage's items, or of a rank's where its stages take turns.
 *
 *   gpipe, 1f1b, wan   w forwards, pairs of forward and backward, the rest of the backwards: they
 *                      differ in w, which stands in the plan
 *   zb-h1, zb-mem      the same with a backward's first half in its place; the weights' half comes
 *                      when the next forward would find no room, or, once no forward is left, after
 *                      each first half, where the rank would wait for the next gradient
 *                      (arXiv 2401.10241: zb-h1 has the room of the first stage on all stages)
 *   interleaved        arXiv 2104.04473, section 2.2: micro-batches in groups, a group goes through
 *                      all stages of a rank before the next one
 *
 * The paper's groups have as many micro-batches as there are ranks, which must divide their number.
 * Here what is left over goes to the first groups, which then are a little larger: a short last
 * group can lock the ranks up, a longer one cannot (tests/unit/test_schedule_kinds.c plays them).
 */
#include "src/base/buf.h"
#include "src/core/schedule_impl.h"

#include <stdlib.h>
#include <string.h>

static void row_push(struct schedule_row *row, enum schedule_item_kind kind, int stage, int64_t mb)
{
    row->items[row->n_items++] = (struct schedule_item){kind, stage, mb};
}

/* ---- a stage ---- */

/* How far a data rank that does not hold stage 0 loads ahead of its own forwards: stage 0 runs
 * that much ahead of it. Less than the depth of the tokens' flow. */
static int64_t load_lead(const struct schedule_builder *b, int stage)
{
    const struct hdt_plan *plan = b->plan;
    int64_t lead = plan->stages[0].warmup - plan->stages[stage].warmup + 1;

    return min64(max64(lead, 1), (int64_t)plan->flows[b->tokens_flow].depth - 1);
}

/* Forward m of a stage; where the stage's rank loads for others, what is due is loaded before. */
static void row_push_forward(struct schedule_row *row, int64_t mb, int64_t lead, int64_t n_mb)
{
    if (lead >= 0) {
        for (int64_t m = mb == 0 ? 0 : mb + lead; m <= min64(mb + lead, n_mb - 1); m++) {
            row_push(row, ITEM_LOAD, -1, m);
        }
    }
    row_push(row, ITEM_FORWARD, row->stage, mb);
}

static void fill_pairs(const struct schedule_builder *b, struct schedule_row *row, int64_t warmup,
                       int64_t lead)
{
    int64_t n = b->n_mb;

    for (int64_t m = 0; m < n; m++) {
        if (m + warmup < n) {
            row_push_forward(row, m + warmup, lead, n);
        }
        row_push(row, ITEM_BACKWARD, row->stage, m);
    }
}

static void fill_halves(const struct schedule_builder *b, struct schedule_row *row, int64_t warmup,
                        int64_t lead)
{
    int64_t n = b->n_mb, n_weights = 0;
    int64_t room = min64(b->plan->stages[row->stage].in_flight, n);

    HDT_ASSERT(room >= min64(warmup + 1, n));
    for (int64_t m = 0; m < n; m++) {
        if (m + warmup < n) {
            if (m + warmup - n_weights == room) {
                row_push(row, ITEM_BACKWARD_WEIGHT, row->stage, n_weights++);
            }
            row_push_forward(row, m + warmup, lead, n);
        }
        row_push(row, ITEM_BACKWARD_INPUT, row->stage, m);
        if (m + warmup + 1 >= n) {
            row_push(row, ITEM_BACKWARD_WEIGHT, row->stage, n_weights++);
        }
    }
    while (n_weights < n) {
        row_push(row, ITEM_BACKWARD_WEIGHT, row->stage, n_weights++);
    }
}

static void fill_stage(const struct schedule_builder *b, struct schedule_row *row)
{
    const struct hdt_plan *plan = b->plan;
    bool loads = row->rank == plan->data_rank && b->tokens_flow >= 0 &&
                 hdt_schedule_first_stage(plan, row->rank) == row->stage;
    int64_t lead = loads ? load_lead(b, row->stage) : -1;
    int64_t warmup =
        b->phase == HDT_PHASE_EVAL ? b->n_mb : min64(plan->stages[row->stage].warmup, b->n_mb);

    for (int64_t m = 0; m < warmup; m++) {
        row_push_forward(row, m, lead, b->n_mb);
    }
    if (b->phase == HDT_PHASE_EVAL) {
        return;
    }
    if (hdt_schedule_is_split(plan->schedule)) {
        fill_halves(b, row, warmup, lead);
    } else {
        fill_pairs(b, row, warmup, lead);
    }
}

/* ---- stages in turns ---- */

/* A walk over (chunk, micro-batch) in the order of a rank's forwards, or of its backwards. */
struct walk {
    int n_chunks;
    bool is_bwd;
    int64_t n_mb, n_groups;
    int64_t group, begin, at; /* first micro-batch of the group; place in it */
    int turn;                 /* of the group's chunks, 0 first */
};

static struct walk walk_begin(int n_ranks, int n_chunks, int64_t n_mb, bool is_bwd)
{
    return (struct walk){
        .n_chunks = n_chunks, .is_bwd = is_bwd, .n_mb = n_mb, .n_groups = max64(1, n_mb / n_ranks)};
}

static int64_t walk_group_len(const struct walk *w)
{
    return w->n_mb / w->n_groups + (w->group < w->n_mb % w->n_groups);
}

static int64_t walk_next(struct walk *w, int *chunk)
{
    int64_t len = walk_group_len(w), mb = w->begin + w->at;

    *chunk = w->is_bwd ? w->n_chunks - 1 - w->turn : w->turn;
    if (++w->at == len) {
        w->at = 0;
        if (++w->turn == w->n_chunks) {
            w->turn = 0;
            w->begin += len;
            w->group++;
        }
    }
    return mb;
}

/* Forwards of rank r before its first backward. */
static int64_t turns_warmup(const struct walk *first, int n_ranks, int r)
{
    return min64(2 * (int64_t)(n_ranks - 1 - r) + (first->n_chunks - 1) * walk_group_len(first),
                 first->n_mb * first->n_chunks);
}

enum hdt_status hdt_schedule_turns(const struct hdt_plan *plan, int *n_ranks, int *n_chunks,
                                   struct hdt_error *err)
{
    size_t n = 1;

    while (n < plan->n_stages && plan->stages[n].rank != plan->stages[0].rank) {
        n++;
    }
    for (size_t s = 0; s < plan->n_stages; s++) {
        bool first = hdt_schedule_first_stage(plan, plan->stages[s].rank) == (int)(s % n);

        if (plan->n_stages % n != 0 || !first) {
            hdt_error_set(err, HDT_EINVAL,
                          "schedule interleaved needs the same ranks in the same order again and "
                          "again, stage %zu on rank %d is not so",
                          s, plan->stages[s].rank);
            hdt_error_hint(err, "name each worker of plan.cut equally often, in turns, or choose "
                                "another plan.schedule");
            return HDT_EINVAL;
        }
    }
    *n_ranks = (int)n;
    *n_chunks = (int)(plan->n_stages / n);
    return HDT_OK;
}

void hdt_schedule_turns_in_flight(int n_ranks, int n_chunks, int64_t n_mb, int64_t *in_flight)
{
    int64_t *now = hdt_calloc((size_t)n_chunks, sizeof(*now));

    memset(in_flight, 0, (size_t)n_ranks * (size_t)n_chunks * sizeof(*in_flight));
    for (int r = 0; r < n_ranks; r++) {
        struct walk fwd = walk_begin(n_ranks, n_chunks, n_mb, false);
        struct walk bwd = walk_begin(n_ranks, n_chunks, n_mb, true);
        int64_t warmup = turns_warmup(&fwd, n_ranks, r);
        int chunk;

        memset(now, 0, (size_t)n_chunks * sizeof(*now));
        for (int64_t i = 0; i < n_mb * n_chunks; i++) {
            int64_t *most;

            walk_next(&fwd, &chunk);
            most = &in_flight[chunk * n_ranks + r];
            now[chunk]++;
            *most = max64(*most, now[chunk]);
            if (i >= warmup) {
                walk_next(&bwd, &chunk);
                now[chunk]--;
            }
        }
    }
    free(now);
}

static void fill_turns(const struct schedule_builder *b, struct schedule_row *row)
{
    int n_ranks = 0, n_chunks = 0, chunk, r = hdt_schedule_first_stage(b->plan, row->rank);
    struct walk fwd, bwd;
    int64_t warmup, n, mb;

    hdt_schedule_turns(b->plan, &n_ranks, &n_chunks, NULL);
    fwd = walk_begin(n_ranks, n_chunks, b->n_mb, false);
    bwd = walk_begin(n_ranks, n_chunks, b->n_mb, true);
    warmup = turns_warmup(&fwd, n_ranks, r);
    n = b->n_mb * n_chunks;
    for (int64_t i = 0; i < n + warmup; i++) {
        if (i < n) {
            mb = walk_next(&fwd, &chunk);
            row_push(row, ITEM_FORWARD, chunk * n_ranks + r, mb);
        }
        if (i >= warmup) {
            mb = walk_next(&bwd, &chunk);
            row_push(row, ITEM_BACKWARD, chunk * n_ranks + r, mb);
        }
    }
}

/* ---- rows ---- */

void hdt_schedule_row_fill(const struct schedule_builder *b, struct schedule_row *row)
{
    size_t n_stages = row->stage == ROW_TURNS ? b->plan->n_stages : 1;

    /* Of a micro-batch at most: a load, a forward, two halves. */
    row->items = hdt_malloc(4 * n_stages * (size_t)b->n_mb * sizeof(row->items[0]));
    if (row->stage == ROW_TURNS) {
        fill_turns(b, row);
    } else if (row->stage != ROW_LOADS) {
        fill_stage(b, row);
    } else {
        for (int64_t m = 0; m < b->n_mb; m++) {
            row_push(row, ITEM_LOAD, -1, m);
        }
    }
}

static void rows_add(struct schedule_builder *b, int rank, int stage, int64_t ahead)
{
    b->rows[b->n_rows++] = (struct schedule_row){.rank = rank, .stage = stage, .ahead = ahead};
}

void hdt_schedule_rows(struct schedule_builder *b)
{
    const struct hdt_plan *plan = b->plan;
    bool turns = plan->schedule == HDT_SCHEDULE_INTERLEAVED && b->phase == HDT_PHASE_TRAIN;
    bool has_stage = hdt_schedule_first_stage(plan, plan->data_rank) >= 0;

    b->rows = hdt_calloc(plan->n_stages + 1, sizeof(b->rows[0]));
    for (size_t s = 0; s < plan->n_stages; s++) {
        int rank = plan->stages[s].rank;

        if (!turns) {
            rows_add(b, rank, (int)s, 0);
        } else if (hdt_schedule_first_stage(plan, rank) == (int)s) {
            rows_add(b, rank, ROW_TURNS, 0);
        }
    }
    /* Beside other work loads come early enough for stage 0 to find them, and not so early that
     * they wait for room in its flow. */
    if (!has_stage) {
        rows_add(b, plan->data_rank, ROW_LOADS, INT64_MAX);
    } else if (turns && b->tokens_flow >= 0) {
        rows_add(b, plan->data_rank, ROW_LOADS,
                 max64(1, (int64_t)plan->flows[b->tokens_flow].depth / 2));
    }
}
