/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/bucket.h"
#include "src/base/clock.h"

static void bucket_fill(struct hdt_bucket *bucket, double per_s, double burst, int64_t now_us)
{
    if (bucket->at_us == 0) {
        bucket->n = burst;
    } else {
        bucket->n += per_s * (double)(now_us - bucket->at_us) / (double)HDT_US_PER_S;
    }
    bucket->at_us = now_us;
    if (bucket->n > burst) {
        bucket->n = burst;
    }
}

bool hdt_bucket_take(struct hdt_bucket *bucket, double per_s, double burst, int64_t now_us)
{
    bucket_fill(bucket, per_s, burst, now_us);
    if (bucket->n < 1) {
        return false;
    }
    bucket->n -= 1;
    return true;
}

void hdt_bucket_give(struct hdt_bucket *bucket)
{
    bucket->n += 1;
}

int64_t hdt_bucket_wait(struct hdt_bucket *bucket, double per_s, double burst, int64_t now_us)
{
    bucket_fill(bucket, per_s, burst, now_us);
    return bucket->n > 0 ? 0 : 1 + (int64_t)(-bucket->n / per_s * (double)HDT_US_PER_S);
}

void hdt_bucket_spend(struct hdt_bucket *bucket, double n)
{
    bucket->n -= n;
}
