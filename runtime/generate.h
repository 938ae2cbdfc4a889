/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_GENERATE_H
#define HDT_RUNTIME_GENERATE_H

/* What a trained model is used for: sampling text, and judging text that it has not seen. Both need
 * a stage that holds the whole model. */
#include "runtime/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_sampling {
    double temperature; /* 0: always the likeliest token */
    int top_k;          /* only the k likeliest tokens; 0: all */
    uint64_t seed;      /* same seed, same text */
};

/* Called with each new token; return false to stop. */
typedef bool hdt_generate_fn(void *arg, int32_t token);

/*
 * Continue `prompt` (n_prompt >= 1 tokens) by up to n_new tokens, each handed to fn as soon as it
 * is known. When the context is full its newer half is kept and run again. Blocks until done.
 * HDT_EINVAL: a prompt token outside the vocabulary, or settings that make no sense.
 */
enum hdt_status hdt_generate(struct hdt_stage *stage, const struct hdt_sampling *sampling,
                             const int32_t *prompt, int n_prompt, int n_new, hdt_generate_fn *fn,
                             void *arg, struct hdt_error *err);

/*
 * Mean loss (nats a token) of a token stream, cut into windows of T tokens that follow one another:
 * every token but the first is predicted once, from its own window. Blocks. HDT_EINVAL: fewer than
 * two tokens, or one outside the vocabulary.
 */
enum hdt_status hdt_evaluate(struct hdt_stage *stage, const int32_t *tokens, size_t n_tokens,
                             double *mean_loss, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_GENERATE_H */
