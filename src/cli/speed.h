/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_SPEED_H
#define HDT_CLI_SPEED_H

/*
 * How fast a job trained and what its ranks' time went to, for people and as JSON.
 *
 * Model FLOPs of a step: of each of its tokens, 6 for each parameter of a matrix (2 forward, 4
 * backward; of the embedding, a look-up, none) and 6 L NH HS T for attention, of whose square the
 * causal half counts. What is computed again does not count. Utilization is that a second over the
 * peaks of the devices of all ranks (of a device that is limited to some of its multiprocessors,
 * their share), dense products of the job's precision by the catalogue.
 */
#include "src/cli/planned.h"
#include "src/core/devices.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_speed {
    double tokens_per_s;
    double flops_per_s;      /* of the model */
    double peak_flops_per_s; /* of all devices; NaN: one of them is not in the catalogue */
    double utilization;      /* NaN: so */
    char unknown[64];        /* the first device that is not in the catalogue; "": there is none */
};

/* `ranks`: as in the event "done" of doc/protocol.md; `step_s` > 0. Without ranks, or without a
 * catalogue (`devices` NULL), no peak is known. */
void hdt_speed_of(const struct hdt_planned *planned, const json_t *ranks,
                  const struct hdt_devices *devices, double step_s, struct hdt_speed *speed);

/* "tokens_per_s", ... of struct hdt_speed; numbers that are not known are null. New reference. */
json_t *hdt_speed_to_json(const struct hdt_speed *speed);

/* One line. */
void hdt_speed_print(const struct hdt_speed *speed);

/* A table of the ranks: memory, shares of their training time by kind of op. Nothing is printed
 * without any. */
void hdt_speed_print_ranks(const json_t *ranks);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_SPEED_H */
