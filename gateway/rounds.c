/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/rounds.h"

#define ROUNDS_FILLER_MAX 1e12 /* bytes */
#define ROUNDS_LONG_RTTS  100  /* of a round that takes as long the search is a small part */
#define ROUNDS_NEXT_RTTS  12   /* of filler in the next one, at least, */
#define ROUNDS_NEXT_S     0.3
#define ROUNDS_TIMED_RTTS 4    /* of it that are timed, or the search was not over */
#define ROUNDS_GROWN      1.15 /* of the best round: TCP still finds more */
#define ROUNDS_LESS       0.85 /* of the same: this one was held up */

bool hdt_rounds_answered(struct hdt_rounds *rounds, double bytes_per_s, double timed_s,
                         uint64_t filler, double rtt_s)
{
    const double best = rounds->best_bytes_per_s;
    const bool is_long = (double)filler > ROUNDS_LONG_RTTS * rtt_s * bytes_per_s;
    const bool counts = rounds->is_held && bytes_per_s >= ROUNDS_LESS * best &&
                        timed_s >= ROUNDS_TIMED_RTTS * rtt_s;

    rounds->n++;
    rounds->last_bytes_per_s = bytes_per_s;
    if (bytes_per_s > best) {
        rounds->best_bytes_per_s = bytes_per_s;
    }
    if (rounds->n > 1 && bytes_per_s > rounds->warm_bytes_per_s) {
        rounds->warm_bytes_per_s = bytes_per_s;
    }
    if (rounds->is_held && bytes_per_s > rounds->held_bytes_per_s) {
        rounds->held_bytes_per_s = bytes_per_s;
    }
    if (is_long || counts || rounds->n >= HDT_ROUNDS_MAX) {
        return true;
    }
    /* The last one that there may be is held whatever the others found. */
    rounds->is_held = rounds->is_held || rounds->is_known || rounds->n == HDT_ROUNDS_MAX - 1 ||
                      (best > 0 && bytes_per_s <= ROUNDS_GROWN * best);
    return false;
}

uint64_t hdt_rounds_filler(double bytes_per_s, double rtt_s)
{
    const double s = ROUNDS_NEXT_RTTS * rtt_s;
    const double bytes = bytes_per_s * (s > ROUNDS_NEXT_S ? s : ROUNDS_NEXT_S);

    return (uint64_t)(bytes < ROUNDS_FILLER_MAX ? bytes : ROUNDS_FILLER_MAX) + 1;
}

double hdt_rounds_rate(const struct hdt_rounds *rounds)
{
    const double warm = rounds->warm_bytes_per_s, held = rounds->held_bytes_per_s;

    if (held > 0 && held >= ROUNDS_LESS * warm) {
        return held;
    }
    return warm > 0 ? warm : rounds->last_bytes_per_s;
}
