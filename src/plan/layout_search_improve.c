/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * From the best of the pool: first step by step as the estimate says, then the best of those
 * simulated, then step by step as the simulator says, while there is work left to be spent. The
 * order of steps is fixed, so that the same inputs lead the same way.
 */
#include "src/base/buf.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Those that are about as likely quicker than the best one as not are simulated. */
#define ROUND_SLACK 1.005
/* Shapes that are improved by simulation, where they take no longer than the best times this. */
#define N_SHAPES   6
#define NEXT_SHAPE 1.05
/* Of each form so many shapes are simulated before those of others. */
#define N_OF_FORM 6
/* Estimates of each, times its stages and some more. */
#define CLIMB_WORK 3000
/* Steps that lower less than this share are not taken. */
#define LEAST_GAIN 1e-4

/* How a neighbour is rated: filled and estimated, or simulated. False: it is none. */
struct climb {
    struct search *s;
    struct search_cand at;
    bool simulated;
    int64_t left; /* estimates */
};

static bool rate(struct climb *m, struct search_cand *c)
{
    struct search *s = m->s;

    if (!hdt_seek_goes_on(s) || !hdt_seek_places(s, c) || !hdt_seek_fits(s, c)) {
        return false;
    }
    if (!m->simulated) {
        if (m->left-- <= 0) {
            return false;
        }
        hdt_seek_offer(s, c);
        return c->score < m->at.score * (1 - LEAST_GAIN);
    }
    if (!hdt_seek_pins_hold(s, c) || search_is_spent(s) || s->tasks_left < hdt_seek_tasks(c)) {
        return false;
    }
    hdt_seek_estimate(s, c);
    if (s->options->objective == HDT_LAYOUT_THROUGHPUT && c->bound_s + c->move >= m->at.score) {
        return false;
    }
    /* What the estimate finds much worse than where we are is not worth the work. */
    if (c->score > 1.03 * hdt_seek_score(s, &m->at, m->at.estimate_s) &&
        c->schedule == m->at.schedule) {
        return false;
    }
    return hdt_seek_judge(s, c) && c->score < m->at.score * (1 - LEAST_GAIN);
}

static bool take(struct climb *m, const struct search_cand *c)
{
    m->at = *c;
    return true;
}

/* ---- steps ---- */

static bool step_refill(struct climb *m, struct search_cand *c)
{
    if (!m->simulated && m->left <= 0) {
        return false;
    }
    return hdt_seek_places(m->s, c) && hdt_seek_fill(m->s, c) && rate(m, c) && take(m, c);
}

/* A layer from one stage to another. */
static bool step_layer(struct climb *m, int from, int to)
{
    struct search_cand c = m->at;

    if (from == to || c.layers[from] < 2 || m->s->space & HDT_LAYOUT_SPACE_EVEN) {
        return false;
    }
    c.layers[from]--;
    c.layers[to]++;
    return hdt_seek_relieve(m->s, &c) && hdt_seek_share(m->s, &c) && rate(m, &c) && take(m, &c);
}

/* Stages by how long they take, slowest first. */
static void stages_rank(struct climb *m, int *order)
{
    double own[SEARCH_MAX_STAGES];

    for (int t = 0; t < m->at.n_stages; t++) {
        int i = t;
        double fwd_s, bwd_s;

        hdt_seek_stage_time(m->s, &m->at, 0, t, &fwd_s, &bwd_s);
        while (i > 0 && own[i - 1] < fwd_s + bwd_s) {
            own[i] = own[i - 1];
            order[i] = order[i - 1];
            i--;
        }
        own[i] = fwd_s + bwd_s;
        order[i] = t;
    }
}

/* Between all stages where they are few; else from the slowest to those that have room. */
static bool layers_climb(struct climb *m)
{
    int order[SEARCH_MAX_STAGES], n = m->at.n_stages, most = n <= 6 ? n : 4;
    bool moved = false;

    stages_rank(m, order);
    for (int from = 0; from < most; from++) {
        for (int to = 0; to < most; to++) {
            moved = step_layer(m, order[from], order[n - 1 - to]) || moved;
        }
    }
    return moved;
}

/* Does the stage stand at the end of a run of alike ones? */
static bool is_edge(const struct search_cand *c, int class_idx, int stage)
{
    const struct search_cell *cells = c->cells[class_idx];

    return stage == 0 || stage + 1 == c->n_stages ||
           memcmp(&cells[stage], &cells[stage - 1], sizeof(cells[0])) != 0 ||
           memcmp(&cells[stage], &cells[stage + 1], sizeof(cells[0])) != 0;
}

static bool order_climb(struct climb *m)
{
    bool moved = false;

    for (int i = 0; i < m->at.n_classes; i++) {
        for (int a = 0; a < m->at.n_stages; a++) {
            for (int b = a + 1; b < m->at.n_stages; b++) {
                struct search_cand c = m->at;
                struct search_cell swap = c.cells[i][a];

                if (memcmp(&c.cells[i][a], &c.cells[i][b], sizeof(swap)) == 0 ||
                    (c.n_stages > 8 && !is_edge(&c, i, a) && !is_edge(&c, i, b))) {
                    continue;
                }
                c.cells[i][a] = c.cells[i][b];
                c.cells[i][b] = swap;
                moved = step_refill(m, &c) || moved;
            }
        }
    }
    return moved;
}

static bool batch_climb(struct climb *m)
{
    bool moved = false;

    for (int step = -1; step <= 1; step += 2) {
        for (int i = -1; i < m->at.n_classes; i++) {
            struct search_cand c = m->at;
            bool is_in = true;

            for (int k = 0; k < c.n_classes; k++) {
                c.classes[k].batch += i < 0 || i == k ? step : 0;
                is_in = is_in && c.classes[k].batch >= 0 && c.classes[k].batch < m->s->n_batches;
            }
            moved = (is_in && step_refill(m, &c)) || moved;
        }
    }
    return moved;
}

static bool degree_climb(struct climb *m)
{
    bool moved = false;

    if (m->s->space & HDT_LAYOUT_SPACE_ONE_TP) {
        return false;
    }
    for (int i = 0; i < m->at.n_classes; i++) {
        for (int t = 0; t < m->at.n_stages; t++) {
            for (int step = -1; step <= 1; step += 2) {
                struct search_cand c = m->at;
                int tp = c.cells[i][t].tp + step;

                if (tp >= 0 && tp < m->s->kinds[c.cells[i][t].kind].n_tps) {
                    c.cells[i][t].tp = (uint8_t)tp;
                    moved = step_refill(m, &c) || moved;
                }
            }
        }
    }
    return moved;
}

static bool replicas_climb(struct climb *m)
{
    bool moved = false;

    if (m->s->space & HDT_LAYOUT_SPACE_POWERS) {
        return false;
    }
    for (int i = 0; i < m->at.n_classes; i++) {
        for (int step = -1; step <= 1; step += 2) {
            struct search_cand c = m->at;

            c.classes[i].n += step;
            moved = (c.classes[i].n >= 1 && step_refill(m, &c)) || moved;
        }
    }
    return moved;
}

static bool stages_climb(struct climb *m)
{
    bool moved = false;

    for (int t = 0; t < m->at.n_stages && m->at.n_stages > 1; t++) {
        struct search_cand c = m->at;

        for (int i = 0; i < c.n_classes; i++) {
            memmove(&c.cells[i][t], &c.cells[i][t + 1],
                    sizeof(c.cells[0][0]) * (size_t)(c.n_stages - 1 - t));
        }
        c.n_stages--;
        moved = step_refill(m, &c) || moved;
    }
    return moved;
}

/* A replica more or less of what a class does. */
static bool share_climb(struct climb *m)
{
    bool moved = false;

    if (m->s->space & HDT_LAYOUT_SPACE_ALIKE) {
        return false;
    }
    for (int from = 0; from < m->at.n_classes; from++) {
        for (int to = 0; to < m->at.n_classes; to++) {
            struct search_cand c = m->at;
            struct search_class *a = &c.classes[from], *b = &c.classes[to];
            int64_t give = (int64_t)a->n * m->s->batches[a->batch];

            if (from == to || a->n_mb < 2 || give % m->s->batches[b->batch] != 0) {
                continue;
            }
            give = give / m->s->batches[b->batch] + b->n_more;
            a->n_mb--;
            b->n_mb += give / b->n;
            b->n_more = (int)(give % b->n);
            moved = (rate(m, &c) && take(m, &c)) || moved;
        }
    }
    return moved;
}

static bool relief_climb(struct climb *m)
{
    bool moved = false;

    if (m->s->space & (HDT_LAYOUT_SPACE_NO_RELIEF | HDT_LAYOUT_SPACE_ONE_RELIEF) ||
        hdt_schedule_is_split((enum hdt_schedule_kind)m->at.schedule)) {
        return false;
    }
    for (int t = 0; t < m->at.n_stages; t++) {
        for (int r = 0; r < 3 * 4; r++) {
            struct search_cand c = m->at;

            if (c.recompute[t] == 0 && c.offload[t] == 0) {
                break;
            }
            if ((m->s->options->keep & HDT_LAYOUT_KEEP_RECOMPUTE && r / 4 != c.recompute[t]) ||
                (m->s->options->keep & HDT_LAYOUT_KEEP_OFFLOAD && r % 4 != c.offload[t])) {
                continue;
            }
            c.recompute[t] = (uint8_t)(r / 4);
            c.offload[t] = (uint8_t)(r % 4);
            moved = (rate(m, &c) && take(m, &c)) || moved;
        }
    }
    return moved;
}

/* Replicas in another order: who meets whom on a link, and who is whose neighbour in a ring. */
static bool turn_climb(struct climb *m)
{
    struct search_cand c = m->at;
    int n = c.n_classes;
    bool moved;

    c.more_last = !c.more_last;
    moved = rate(m, &c) && take(m, &c);
    c = m->at;
    for (int i = 0; i < n; i++) {
        c.classes[i] = m->at.classes[n - 1 - i];
        memcpy(c.cells[i], m->at.cells[n - 1 - i], sizeof(c.cells[i]));
    }
    return (n > 1 && rate(m, &c) && take(m, &c)) || moved;
}

static bool schedule_climb(struct climb *m)
{
    static const uint8_t kinds[] = {HDT_SCHEDULE_1F1B, HDT_SCHEDULE_ZB_H1, HDT_SCHEDULE_ZB_MEM,
                                    HDT_SCHEDULE_WAN};
    const unsigned space = m->s->space;
    bool moved = false;

    if (search_keeps_schedule(m->s) || space & HDT_LAYOUT_SPACE_1F1B || m->at.n_stages < 2) {
        return false;
    }
    for (size_t i = 0; i < sizeof(kinds); i++) {
        struct search_cand c = m->at;

        if (c.schedule == kinds[i]) {
            continue;
        }
        c.schedule = kinds[i];
        c.chunks = 1;
        moved = (hdt_seek_relieve(m->s, &c) && rate(m, &c) && take(m, &c)) || moved;
    }
    for (int chunks = 2; chunks <= 4 && m->simulated; chunks++) {
        struct search_cand c = m->at;
        bool has = true;

        for (int t = 0; t < c.n_stages; t++) {
            has = has && c.layers[t] >= chunks;
        }
        c.schedule = HDT_SCHEDULE_INTERLEAVED;
        c.chunks = (uint8_t)chunks;
        moved = (has && hdt_seek_relieve(m->s, &c) && rate(m, &c) && take(m, &c)) || moved;
    }
    return moved;
}

static bool sync_climb(struct climb *m)
{
    bool moved = false;
    struct search_cand c = m->at;

    if (!(m->s->options->keep & HDT_LAYOUT_KEEP_SYNC)) {
        c.sync = c.sync == HDT_LAYOUT_SYNC_AFTER ? HDT_LAYOUT_SYNC_BOTH : HDT_LAYOUT_SYNC_AFTER;
        moved = (rate(m, &c) && take(m, &c)) || moved;
    }
    c = m->at;
    if (!(m->s->options->keep & HDT_LAYOUT_KEEP_SHARDED)) {
        c.sharded = !c.sharded;
        if (!c.sharded || c.all_reduce != HDT_LAYOUT_TREE) {
            moved = (rate(m, &c) && take(m, &c)) || moved;
        }
    }
    for (int i = HDT_LAYOUT_AUTO;
         !(m->s->options->keep & HDT_LAYOUT_KEEP_ALL_REDUCE) && i <= HDT_LAYOUT_TREE; i++) {
        c = m->at;
        c.all_reduce = (uint8_t)i;
        if (i != m->at.all_reduce && !(i == HDT_LAYOUT_TREE && c.sharded) && m->simulated) {
            moved = (rate(m, &c) && take(m, &c)) || moved;
        }
    }
    return moved;
}

/* ---- codecs ---- */

/* Where the search was cut before anything was simulated, so many are tried for one that fits. */
#define N_LAST 64

static bool judges_on(struct search *s)
{
    return !search_is_spent(s) &&
           (hdt_seek_goes_on(s) ||
            (s->best.step_s <= 0 && s->again.n_kept == 0 && s->n_simulated - s->n_before < N_LAST));
}

/* So many ways to give each link a codec are tried all; of more, one link at a time. */
#define CODEC_WAYS 64

/* A choice that was made for this candidate, which is where we are in all else. Is it better? Then
 * we are there. */
static bool codec_rate(struct climb *m, int made, const struct search_pair *pairs, int n)
{
    struct search *s = m->s;
    struct search_cand c = m->at;
    int codec = made;
    bool better = false, by_time = s->options->objective == HDT_LAYOUT_THROUGHPUT;

    for (int k = 0; k < s->n_choices && codec == made; k++) {
        codec = hdt_seek_choice_is_same(s, k, made, pairs, n) ? k : made;
    }
    c.codec = (uint8_t)codec;
    if (!hdt_seek_choice_is_same(s, codec, m->at.codec, pairs, n) && judges_on(s) &&
        s->tasks_left >= hdt_seek_tasks(&c)) {
        double at = hdt_seek_score(s, &m->at, m->at.estimate_s);

        hdt_seek_estimate(s, &c);
        if (s->is_small ||
            (!(by_time && c.bound_s + c.move >= m->at.score) && c.score <= 1.03 * at)) {
            better = hdt_seek_judge(s, &c) && c.score < m->at.score;
        }
    }
    if (better) {
        m->at = c;
    }
    if (m->at.codec != made && s->best.codec != made) {
        hdt_seek_choice_take_back(s);
    }
    return better;
}

static int64_t codec_ways(int n_codecs, int n_pairs)
{
    int64_t n = 1;

    for (int i = 0; i < n_pairs && n <= CODEC_WAYS; i++) {
        n *= n_codecs;
    }
    return n;
}

/* Another codec on links of the plan. */
static bool codec_climb(struct climb *m)
{
    struct search_pair pairs[SEARCH_MAX_PAIRS];
    int n = hdt_seek_pairs(m->s, &m->at, pairs), n_codecs = m->s->n_codecs;
    int64_t n_ways = codec_ways(n_codecs, n);
    bool all = n_ways <= CODEC_WAYS;
    double from = m->at.score;

    if (n_codecs < 2) {
        return false;
    }
    n_ways = all ? n_ways : (int64_t)n * n_codecs;
    for (int64_t way = 0; way < n_ways && n > 0; way++) {
        int made = hdt_seek_choice_make(m->s, m->at.codec);
        int64_t rest = way;

        if (made < 0) {
            break;
        }
        for (int i = 0; i < n && all; i++) {
            hdt_seek_choice_set(m->s, made, &pairs[i], (int)(rest % n_codecs));
            rest /= n_codecs;
        }
        if (!all) {
            hdt_seek_choice_set(m->s, made, &pairs[way / n_codecs], (int)(way % n_codecs));
        }
        codec_rate(m, made, pairs, n);
    }
    return m->at.score < from * (1 - LEAST_GAIN);
}

/* ---- climbing ---- */

static int score_compare(const void *a, const void *b)
{
    const struct search_cand *x = a, *y = b;

    if (x->score != y->score) {
        return x->score < y->score ? -1 : 1;
    }
    /* The same for every sort: by what they are. */
    return memcmp(x->layers, y->layers, sizeof(x->layers));
}

/* Best first, none twice. */
static void pool_sort(struct search *s)
{
    size_t n = 0;

    qsort(s->pool, s->n_pool, sizeof(s->pool[0]), score_compare);
    for (size_t i = 0; i < s->n_pool; i++) {
        bool is_new = true;

        for (size_t k = n; k-- > 0 && is_new && s->pool[k].score >= s->pool[i].score;) {
            is_new = !hdt_seek_is_same(&s->pool[k], &s->pool[i]);
        }
        if (is_new) {
            s->pool[n++] = s->pool[i];
        }
    }
    s->n_pool = n;
}

/* pool_put wants a heap: what is sorted, worst first, is one. */
static void pool_heap(struct search *s)
{
    for (size_t a = 0, b = s->n_pool; a + 1 < b; a++) {
        struct search_cand swap = s->pool[a];

        s->pool[a] = s->pool[--b];
        s->pool[b] = swap;
    }
}

void hdt_seek_pool_cut(struct search *s, size_t cap)
{
    pool_sort(s);
    s->n_pool = s->n_pool < cap ? s->n_pool : cap;
    s->pool_cap = cap;
    pool_heap(s);
}

static void climb_by_estimate(struct search *s, const struct search_cand *from)
{
    struct climb m = {
        .s = s, .at = *from, .left = (s->n_kinds > 4 ? 1 : 3) * CLIMB_WORK / (8 + from->n_stages)};

    for (int round = 0; round < 6 && hdt_seek_goes_on(s); round++) {
        bool moved = layers_climb(&m);

        moved = batch_climb(&m) || moved;
        moved = degree_climb(&m) || moved;
        moved = order_climb(&m) || moved;
        moved = replicas_climb(&m) || moved;
        moved = stages_climb(&m) || moved;
        moved = share_climb(&m) || moved;
        moved = relief_climb(&m) || moved;
        moved = schedule_climb(&m) || moved;
        if (!moved) {
            return;
        }
    }
}

static void climb_by_simulation(struct search *s, const struct search_cand *from)
{
    struct climb m = {.s = s, .at = *from, .simulated = true};
    struct search_cand coded = {.n_stages = 0};

    for (int round = 0; round < 4 && hdt_seek_goes_on(s); round++) {
        bool moved = schedule_climb(&m);

        moved = codec_climb(&m) || moved;
        coded = m.at;

        moved = sync_climb(&m) || moved;
        moved = (s->is_small && turn_climb(&m)) || moved;
        moved = layers_climb(&m) || moved;
        moved = relief_climb(&m) || moved;
        moved = share_climb(&m) || moved;
        moved = batch_climb(&m) || moved;
        moved = degree_climb(&m) || moved;
        moved = order_climb(&m) || moved;
        if (!moved) {
            break;
        }
    }
    /* What was moved since, or is a little better than where we went from. */
    m.at = s->best;
    if (hdt_seek_goes_on(s) && !hdt_seek_is_same(&m.at, &coded)) {
        codec_climb(&m);
    }
}

/* Of a small cluster, where that is quick: from the best plan of each codec, too, since what holds
 * in another schedule is not always what is best in this one. */
static void codecs_climb(struct search *s)
{
    for (int k = 0; s->is_small && s->n_choices > 1 && k < s->n_choices; k++) {
        const struct search_cand *best = NULL;
        struct search_cand from;

        for (size_t i = 0; i < s->n_pool; i++) {
            const struct search_cand *c = &s->pool[i];

            best = c->codec == k && (!best || c->score < best->score) ? c : best;
        }
        if (!best || !judges_on(s) || s->tasks_left < hdt_seek_tasks(best)) {
            continue;
        }
        from = *best;
        if (from.step_s > 0 || hdt_seek_judge(s, &from)) {
            climb_by_simulation(s, &from);
        }
    }
}

bool hdt_seek_is_alike(const struct search_cand *a, const struct search_cand *b)
{
    bool alike = a->n_stages == b->n_stages && a->n_classes == b->n_classes &&
                 a->schedule == b->schedule && a->sharded == b->sharded && a->codec == b->codec;

    for (int i = 0; alike && i < a->n_classes; i++) {
        alike = a->classes[i].n == b->classes[i].n && a->classes[i].batch == b->classes[i].batch &&
                memcmp(a->cells[i], b->cells[i], (size_t)a->n_stages * sizeof(a->cells[0][0])) == 0;
    }
    return alike;
}

/* How much longer a candidate takes than was estimated, by those like it that were simulated: what
 * replicas cost that meet on links is much the same for all of a shape. 0: none was. `n`: how many.
 */
static double error_of(const struct search *s, const struct search_cand *c,
                       bool (*is_of)(const struct search_cand *a, const struct search_cand *b),
                       int *n)
{
    double least = 0;

    *n = 0;
    for (size_t i = 0; i < s->n_pool; i++) {
        const struct search_cand *b = &s->pool[i];

        if (b->step_s > 0 && is_of(b, c)) {
            double error = b->step_s / b->estimate_s;

            least = least > 0 ? search_min(least, error) : error;
            ++*n;
        }
    }
    return least;
}

/* Is it worth to be simulated? In the first round one of each shape is, of a form only the first
 * few; in the second those that are quicker than the best one if they err as much as those like
 * them. */
static bool is_wanted(const struct search *s, const struct search_cand *c, int round)
{
    double error, form_error;
    int n, n_of_form;

    if (s->is_small || s->best.step_s <= 0) {
        return true;
    }
    error = error_of(s, c, hdt_seek_is_of_shape, &n);
    form_error = error_of(s, c, hdt_seek_is_of_form, &n_of_form);
    if (round == 0) {
        return n == 0 && n_of_form < N_OF_FORM;
    }
    return c->score * (n > 0 ? error : form_error) < ROUND_SLACK * s->best.score;
}

/* Hold those at the top against the simulator, until what is left cannot be better, or the work is
 * spent: half of it, the rest is for steps. */
static void pool_round(struct search *s, int round)
{
    int64_t keep = s->is_small ? 0 : s->tasks_left / 2;

    for (size_t i = 0; i < s->n_pool && judges_on(s); i++) {
        struct search_cand *c = &s->pool[i];

        if (c->step_s > 0 || (s->best.step_s > 0 && c->bound_s + c->move >= s->best.score &&
                              s->options->objective == HDT_LAYOUT_THROUGHPUT)) {
            continue;
        }
        if (!is_wanted(s, c, round)) {
            continue;
        }
        if (s->best.step_s > 0 && (s->tasks_left - keep < hdt_seek_tasks(c) ||
                                   (!s->is_small && c->score > 1.1 * s->best.score))) {
            s->has_left_out = true;
            if (!s->is_small) {
                return;
            }
            continue;
        }
        if (!hdt_seek_judge(s, c)) {
            c->score = INFINITY;
            c->step_s = 0;
        }
    }
}

static void pool_judge(struct search *s)
{
    pool_sort(s);
    pool_round(s, 0);
    if (!s->is_small) {
        pool_round(s, 1);
    }
}

/* The best that was simulated of those whose form or shape is none of these; NULL: there is none
 * that is near the best one. */
static const struct search_cand *
next_of(const struct search *s, const struct search_cand *from, int n,
        bool (*is_of)(const struct search_cand *a, const struct search_cand *b))
{
    const struct search_cand *best = NULL;

    for (size_t i = 0; i < s->n_pool; i++) {
        const struct search_cand *c = &s->pool[i];
        bool is_new = c->step_s > 0 && c->score < NEXT_SHAPE * s->best.score;

        for (int k = 0; k < n && is_new; k++) {
            is_new = !is_of(&from[k], c);
        }
        best = is_new && (!best || c->score < best->score) ? c : best;
    }
    return best;
}

static const struct search_cand *next_shape(const struct search *s, const struct search_cand *from,
                                            int n)
{
    const struct search_cand *next = next_of(s, from, n, hdt_seek_is_of_form);

    return next ? next : next_of(s, from, n, hdt_seek_is_of_shape);
}

/* A climb leaves half of the work to those from other shapes, while there are some. */
static void climb_in_turn(struct search *s, const struct search_cand *from, bool is_last)
{
    int64_t keep = s->is_small || is_last ? 0 : s->tasks_left / 2;

    s->tasks_left -= keep;
    climb_by_simulation(s, from);
    s->tasks_left += keep;
}

/* Where there is work left, from other shapes, too: what is a little slower may be quicker with
 * another schedule, or other layers. */
static void shapes_climb(struct search *s, const struct search_cand *first)
{
    struct search_cand from[N_SHAPES];
    int n = 1;

    from[0] = *first;
    while (n < N_SHAPES && !s->is_small && judges_on(s)) {
        const struct search_cand *next = next_shape(s, from, n);

        if (!next) {
            return;
        }
        from[n] = *next;
        n++;
        climb_in_turn(s, &from[n - 1], n == N_SHAPES || !next_shape(s, from, n));
    }
}

void hdt_seek_climb(struct search *s, const struct search_cand *from)
{
    climb_in_turn(s, from, !next_shape(s, from, 1));
    codecs_climb(s);
    shapes_climb(s, from);
}

void hdt_seek_improve(struct search *s)
{
    struct search_cand *starts = hdt_calloc(SEARCH_STARTS, sizeof(starts[0]));
    size_t n;

    pool_sort(s);
    n = hdt_seek_starts(s, starts);
    pool_heap(s);
    for (size_t i = 0; i < n && hdt_seek_goes_on(s); i++) {
        climb_by_estimate(s, &starts[i]);
    }
    free(starts);
    pool_judge(s);
    if (s->best.step_s > 0) {
        struct search_cand best = s->best;

        hdt_seek_climb(s, &best);
    }
}
