/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/arrival.h"

/* Half of the samples, twice as far apart. */
static void arrival_thin(struct hdt_arrival *arrival)
{
    for (unsigned i = 0; 2 * i < arrival->n; i++) {
        arrival->at[i] = arrival->at[2 * i];
    }
    arrival->n = (arrival->n + 1) / 2;
    arrival->step = 2 * (arrival->step > 0 ? arrival->step : 1);
    while (arrival->step < arrival->n_bytes / HDT_ARRIVAL_SAMPLES) {
        arrival->step *= 2;
    }
}

void hdt_arrival_add(struct hdt_arrival *arrival, uint64_t bytes, int64_t now_us)
{
    arrival->n_bytes += bytes;
    arrival->last_us = now_us;
    if (arrival->n > 0 && arrival->n_bytes - arrival->at[arrival->n - 1].n_bytes < arrival->step) {
        return;
    }
    if (arrival->n == HDT_ARRIVAL_SAMPLES) {
        arrival_thin(arrival);
    }
    arrival->at[arrival->n].n_bytes = arrival->n_bytes;
    arrival->at[arrival->n].us = now_us;
    arrival->n++;
}

void hdt_arrival_rate(const struct hdt_arrival *arrival, bool is_warm, uint64_t *bytes, int64_t *us)
{
    const uint64_t all = arrival->n_bytes;
    double least = 0;

    *bytes = 0;
    *us = 0;
    for (unsigned i = 0; i < arrival->n && arrival->at[i].n_bytes < all; i++) {
        const uint64_t rest = all - arrival->at[i].n_bytes;
        const int64_t took_us = arrival->last_us - arrival->at[i].us;
        const bool is_early = !is_warm && rest > all - all / 4, is_late = rest < all - all / 2;

        /* Of a few large records the first has to do. */
        if (is_early || took_us <= 0 || (is_late && *us > 0)) {
            continue;
        }
        if (*us == 0 || (double)rest / (double)took_us < least) {
            least = (double)rest / (double)took_us;
            *bytes = rest;
            *us = took_us;
        }
    }
}
