/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_BIGRAM_H
#define HDT_CORE_BIGRAM_H

/*
 * The baseline that a trained byte model must beat: predict each byte from the one before it by
 * counting pairs in the training text, with one added to every count.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_BIGRAM_VOCAB 256

struct hdt_bigram; /* 512 KiB of counts; one thread at a time */

struct hdt_bigram *hdt_bigram_new(void);
void hdt_bigram_free(struct hdt_bigram *bigram);

/* Count the pairs of n tokens, each in [0, 256). A later call goes on where the last one ended, so
 * that a text may be given in pieces. */
void hdt_bigram_count(struct hdt_bigram *bigram, const int32_t *tokens, size_t n);

/* Add to *nll_sum the cross-entropy in nats of tokens 1 .. n - 1, each given the one before it:
 * n - 1 predictions (none for n < 2). For a held-out text in pieces let them overlap by one. */
void hdt_bigram_score(const struct hdt_bigram *bigram, const int32_t *tokens, size_t n,
                      double *nll_sum);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_BIGRAM_H */
