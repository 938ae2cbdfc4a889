/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/bigram.h"
#include "src/base/buf.h"
#include "src/base/error.h"

#include <math.h>
#include <stdlib.h>

#define V HDT_BIGRAM_VOCAB

struct hdt_bigram {
    uint64_t pairs[V][V]; /* [before][after] */
    uint64_t before[V];   /* sum of a row */
    int last;             /* the token before the next piece; -1: none yet */
};

struct hdt_bigram *hdt_bigram_new(void)
{
    struct hdt_bigram *bigram = hdt_calloc(1, sizeof(*bigram));

    bigram->last = -1;
    return bigram;
}

void hdt_bigram_free(struct hdt_bigram *bigram)
{
    free(bigram);
}

void hdt_bigram_count(struct hdt_bigram *bigram, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        HDT_ASSERT(tokens[i] >= 0 && tokens[i] < V);
        if (bigram->last >= 0) {
            bigram->pairs[bigram->last][tokens[i]]++;
            bigram->before[bigram->last]++;
        }
        bigram->last = tokens[i];
    }
}

void hdt_bigram_score(const struct hdt_bigram *bigram, const int32_t *tokens, size_t n,
                      double *nll_sum)
{
    for (size_t i = 1; i < n; i++) {
        int32_t a = tokens[i - 1], b = tokens[i];

        HDT_ASSERT(a >= 0 && a < V && b >= 0 && b < V);
        *nll_sum += log((double)(bigram->before[a] + V)) - log((double)(bigram->pairs[a][b] + 1));
    }
}
