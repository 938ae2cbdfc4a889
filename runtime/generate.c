/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/generate.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64: one 64-bit state, good enough to choose tokens, the same on every machine. */
static double random_unit(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

struct choice {
    float logit;
    int32_t token;
};

/* Likeliest first; equal ones by number, so that the order is always the same. */
static int choice_compare(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;

    if (x->logit != y->logit) {
        return x->logit < y->logit ? 1 : -1;
    }
    return x->token < y->token ? -1 : x->token > y->token;
}

/* Choose among V logits; choices (V) is scratch. */
static int32_t token_sample(const struct hdt_sampling *sampling, const float *logits, int V,
                            struct choice *choices, uint64_t *state)
{
    int k = sampling->top_k > 0 && sampling->top_k < V ? sampling->top_k : V;
    double sum = 0, target;

    for (int i = 0; i < V; i++) {
        choices[i] = (struct choice){.logit = logits[i], .token = i};
    }
    qsort(choices, (size_t)V, sizeof(*choices), choice_compare);
    if (sampling->temperature <= 0) {
        return choices[0].token;
    }
    for (int i = 0; i < k; i++) {
        sum += exp(((double)choices[i].logit - (double)choices[0].logit) / sampling->temperature);
    }
    target = random_unit(state) * sum;
    for (int i = 0; i < k; i++) {
        target -=
            exp(((double)choices[i].logit - (double)choices[0].logit) / sampling->temperature);
        if (target < 0) {
            return choices[i].token;
        }
    }
    return choices[k - 1].token;
}

struct generator {
    struct hdt_stage *stage;
    int32_t *context; /* (T) tokens that stand in the stage's cache, then those to run */
    float *logits;    /* (V) */
    struct choice *choices;
    int T, V;
    int n_cached; /* tokens of the context that were run */
    int n;        /* tokens in the context */
};

/* A full context keeps its newer half, which is run again at its new positions. */
static void context_append(struct generator *gen, int32_t token)
{
    if (gen->n == gen->T) {
        int keep = gen->T / 2;

        memmove(gen->context, gen->context + gen->n - keep, (size_t)keep * sizeof(int32_t));
        gen->n = keep;
        gen->n_cached = 0;
    }
    gen->context[gen->n++] = token;
}

static enum hdt_status context_run(struct generator *gen, struct hdt_error *err)
{
    HDT_TRY(hdt_stage_decode(gen->stage, gen->context + gen->n_cached, gen->n_cached,
                             gen->n - gen->n_cached, gen->logits, err));
    gen->n_cached = gen->n;
    for (int i = 0; i < gen->V; i++) {
        if (!isfinite(gen->logits[i])) {
            hdt_error_set(err, HDT_EINVAL,
                          "cannot generate: the model gives token %d the logit %g, which is no "
                          "number to choose by",
                          i, (double)gen->logits[i]);
            hdt_error_hint(err, "its training has diverged: use an earlier checkpoint");
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

static enum hdt_status settings_check(const struct hdt_sampling *sampling, int n_prompt, int n_new,
                                      struct hdt_error *err)
{
    if (!(sampling->temperature >= 0 && sampling->temperature <= 100) || sampling->top_k < 0) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot sample with temperature %g and top-k %d: temperature is 0 to "
                             "100, top-k 0 or more",
                             sampling->temperature, sampling->top_k);
    }
    if (n_prompt < 1 || n_new < 0) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot continue a prompt of %d tokens by %d: it takes at least one",
                             n_prompt, n_new);
    }
    return HDT_OK;
}

static enum hdt_status text_generate(struct generator *gen, const struct hdt_sampling *sampling,
                                     int n_new, hdt_generate_fn *fn, void *arg,
                                     struct hdt_error *err)
{
    uint64_t state = sampling->seed;

    for (int i = 0; i < n_new; i++) {
        int32_t token;

        HDT_TRY(context_run(gen, err));
        token = token_sample(sampling, gen->logits, gen->V, gen->choices, &state);
        if (!fn(arg, token)) {
            return HDT_OK;
        }
        context_append(gen, token);
    }
    return HDT_OK;
}

enum hdt_status hdt_generate(struct hdt_stage *stage, const struct hdt_sampling *sampling,
                             const int32_t *prompt, int n_prompt, int n_new, hdt_generate_fn *fn,
                             void *arg, struct hdt_error *err)
{
    const struct hdt_stage_conf *conf = hdt_stage_conf(stage);
    struct generator gen = {.stage = stage, .T = conf->T, .V = (int)conf->model.V};
    enum hdt_status status;
    int from;

    HDT_TRY(settings_check(sampling, n_prompt, n_new, err));
    gen.context = hdt_calloc((size_t)gen.T, sizeof(*gen.context));
    gen.logits = hdt_calloc((size_t)gen.V, sizeof(*gen.logits));
    gen.choices = hdt_calloc((size_t)gen.V, sizeof(*gen.choices));
    from = n_prompt > gen.T ? n_prompt - gen.T : 0;
    for (int i = from; i < n_prompt; i++) {
        gen.context[gen.n++] = prompt[i];
    }
    status = text_generate(&gen, sampling, n_new, fn, arg, err);
    free(gen.choices);
    free(gen.logits);
    free(gen.context);
    return status;
}

/* Tokens and labels of the micro-batch whose first token is `at`; rows beyond the end are padded
 * with token 0 and count nothing. Returns the labelled rows. */
static size_t batch_fill(const int32_t *stream, size_t n_stream, size_t at, int n, int32_t *tokens,
                         int32_t *labels)
{
    size_t n_labels = 0;

    for (int i = 0; i < n; i++) {
        size_t pos = at + (size_t)i;
        bool inside = pos + 1 < n_stream;

        tokens[i] = inside ? stream[pos] : 0;
        labels[i] = inside ? stream[pos + 1] : -1;
        n_labels += inside;
    }
    return n_labels;
}

enum hdt_status hdt_evaluate(struct hdt_stage *stage, const int32_t *stream, size_t n_stream,
                             double *mean_loss, struct hdt_error *err)
{
    const struct hdt_stage_conf *conf = hdt_stage_conf(stage);
    int n = conf->B * conf->T;
    int32_t *tokens, *labels;
    size_t n_labels = 0;
    double total = 0, loss;
    enum hdt_status status = HDT_OK;

    if (n_stream < 2) {
        return hdt_error_set(err, HDT_EINVAL, "cannot evaluate on %zu tokens: it takes two",
                             n_stream);
    }
    tokens = hdt_calloc((size_t)n, sizeof(*tokens));
    labels = hdt_calloc((size_t)n, sizeof(*labels));
    for (size_t at = 0; at + 1 < n_stream && status == HDT_OK; at += (size_t)n) {
        n_labels += batch_fill(stream, n_stream, at, n, tokens, labels);
        status = hdt_stage_set_tokens(stage, 0, tokens, err);
        if (status == HDT_OK) {
            status = hdt_stage_set_labels(stage, 0, labels, err);
        }
        if (status == HDT_OK) {
            hdt_stage_forward(stage, 0, HDT_STAGE_EVAL);
            status = hdt_stage_loss(stage, 0, &loss, err);
            total += loss;
        }
    }
    free(labels);
    free(tokens);
    if (status == HDT_OK) {
        *mean_loss = total / (double)n_labels;
    }
    return status;
}
