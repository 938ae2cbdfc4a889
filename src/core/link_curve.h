/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_LINK_CURVE_H
#define HDT_CORE_LINK_CURVE_H

/*
 * What a link carries, by the size of a message and by how many devices of a node use it at once:
 * small messages cost latency, and the devices of a node share its network cards. Part of a cluster
 * file (src/core/cluster_file.h); its table is here.
 *
 * A rate is flat, or points that were measured, or the curve a x^2 + b x + c with
 * x = log2(bytes / 1e6). Between points the *time* is a straight line, which is what latency and
 * bandwidth give. Below the smallest size a message takes as long as one of that size; above the
 * largest the rate stays. GB are 1e9 bytes. Plain data: any thread.
 */
#include "src/base/conf.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_link_point {
    uint64_t bytes;
    double gb_per_s;
};

struct hdt_link_fit {
    double a, b, c;                /* NaN: there is none */
    uint64_t min_bytes, max_bytes; /* where it was fitted */
};

/* The rate when `devices` use the link at once: one of the three. */
struct hdt_link_rate {
    int64_t devices;
    double gb_per_s;             /* flat; NaN: not given */
    struct hdt_conf_list points; /* of struct hdt_link_point, ascending */
    struct hdt_link_fit fit;
};

enum hdt_link_duplex { HDT_LINK_FULL_DUPLEX, HDT_LINK_HALF_DUPLEX };
extern const char *const hdt_link_duplex_names[];

struct hdt_link_curve {
    char *name;
    int duplex;                 /* enum hdt_link_duplex */
    double latency_us;          /* of each message, beside what the rates say */
    bool nominal;               /* the rates are what was sold, not what was measured */
    double gb_per_s;            /* short for one flat rate; NaN: `rates` */
    struct hdt_conf_list rates; /* of struct hdt_link_rate, ascending in devices */
};

extern const struct hdt_conf_row hdt_link_curve_rows[];

/* Check what the table cannot; `key`: where the link stands in `doc`, as "links[2]". HDT_EINVAL
 * with file:line: no rate or two, sizes or counts out of order, a curve that falls to 0, a larger
 * message that takes less time. */
enum hdt_status hdt_link_curve_check(const struct hdt_link_curve *curve, const char *key,
                                     const struct hdt_conf_doc *doc, struct hdt_error *err);

/* Bytes a second for a message while `devices` (1 at least) use the link, without its latency;
 * between two counts of devices on the line through them, beyond them as at the nearest. */
double hdt_link_curve_bytes_per_s(const struct hdt_link_curve *curve, double bytes,
                                  int64_t devices);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_LINK_CURVE_H */
