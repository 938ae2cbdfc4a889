/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_BUCKET_H
#define HDT_GATEWAY_BUCKET_H

/* A bucket of tokens that fills with time; the clock is given, microseconds. */
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_bucket {
    double n;      /* tokens; below 0: owed */
    int64_t at_us; /* as of then; 0: full */
};

/* Take one if there is one. */
bool hdt_bucket_take(struct hdt_bucket *bucket, double per_s, double burst, int64_t now_us);
void hdt_bucket_give(struct hdt_bucket *bucket);

/* For who learns afterwards how many it took, and owes them: microseconds until there is one, or
 * part of one; 0: now. */
int64_t hdt_bucket_wait(struct hdt_bucket *bucket, double per_s, double burst, int64_t now_us);
void hdt_bucket_spend(struct hdt_bucket *bucket, double n);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_BUCKET_H */
