/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/burst.h"

#define BURST_AS_MUCH 0.85 /* of what the others carry: probes of a second differ by a tenth */
#define BURST_LASTING                                                                              \
 10u /* loaded windows in a row are load that lasts; and as many pauses,                           \
        without such a row between them, are its end */

void hdt_burst_probed(struct hdt_burst *burst, double first_bytes_per_s, double others_bytes_per_s)
{
    burst->first_bytes_per_s = first_bytes_per_s;
    burst->others_bytes_per_s = others_bytes_per_s;
    burst->one_will_do =
        first_bytes_per_s > 0 && first_bytes_per_s >= BURST_AS_MUCH * others_bytes_per_s;
}

bool hdt_burst_window(struct hdt_burst *burst, bool is_loaded, bool is_stuck)
{
    const bool used_one = hdt_burst_uses_one(burst);

    if (is_loaded) {
        burst->n_row++;
    } else {
        burst->n_row = 0;
        burst->n_pauses++;
    }
    if (burst->n_row >= BURST_LASTING || is_stuck) {
        burst->is_bulk = true;
        burst->n_pauses = 0;
    } else if (burst->n_pauses >= BURST_LASTING) {
        burst->is_bulk = false;
        burst->n_pauses = 0;
    }
    return hdt_burst_uses_one(burst) != used_one;
}

bool hdt_burst_uses_one(const struct hdt_burst *burst)
{
    return burst->one_will_do && !burst->is_bulk;
}
