/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_SIM_SIM_SVG_H
#define HDT_SIM_SIM_SVG_H

/* A recorded simulation as a picture: a row a rank, its ops by kind over time with their
 * micro-batches, what it sends and the memory that it takes below them, the critical path marked.
 */
#include "src/sim/sim_path.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_sim_chart {
    const char *title;
    /* What stands in front of a rank's row; NULL: its number. Written to `text`. */
    void (*rank_name)(void *ctx, int rank, char *text, size_t cap);
    void *ctx;
    double from_s, to_s;             /* what is shown; time is written from from_s on */
    const struct hdt_sim_path *path; /* marked; NULL: none */
};

/* HDT_EIO. More than 128 ranks: as many rows, evenly spread over them, and the picture says so. */
enum hdt_status hdt_sim_svg_write(const struct hdt_sim_result *result,
                                  const struct hdt_sim_chart *chart, const char *path,
                                  struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_SIM_SIM_SVG_H */
