/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/shortage.h"

/* What a rate may be wrong by. Of a window without shortage a codec thread that comes a little late
 * would already be one. */
#define SHORTAGE_PART 20

void hdt_shortage_begin(struct hdt_shortage *shortage, int64_t now_us)
{
    if (shortage->since_us == 0) {
        shortage->since_us = now_us;
    }
}

void hdt_shortage_end(struct hdt_shortage *shortage, int64_t now_us)
{
    shortage->sum_us = hdt_shortage_sum_us(shortage, now_us);
    shortage->since_us = 0;
}

int64_t hdt_shortage_sum_us(const struct hdt_shortage *shortage, int64_t now_us)
{
    const bool lasts = shortage->since_us != 0 && now_us > shortage->since_us;

    return shortage->sum_us + (lasts ? now_us - shortage->since_us : 0);
}

bool hdt_shortage_is_small(int64_t sum_us, unsigned n_streams, int64_t window_us)
{
    return SHORTAGE_PART * sum_us <= (int64_t)n_streams * window_us;
}
