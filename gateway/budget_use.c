/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/budget_use.h"
#include "src/base/clock.h"

#define WEIGHT_MAX 1000000u

void hdt_budgets_look(struct hdt_budgets *budgets, int64_t now_us, int64_t wall_us)
{
    if (budgets->n == 0 ||
        (budgets->looked_us != 0 && now_us - budgets->looked_us < HDT_US_PER_S)) {
        return;
    }
    budgets->looked_us = now_us;
    for (unsigned i = 0; i < budgets->n; i++) {
        struct hdt_budget_use *use = &budgets->uses[i];
        const bool is_on = hdt_budget_is_on(&budgets->all[i], wall_us);

        if (is_on && !use->is_on) {
            use->bucket.at_us = 0;
        }
        if (!is_on) {
            use->held_since_us = 0;
        }
        use->is_on = is_on;
    }
}

uint32_t hdt_budgets_of(const struct hdt_budgets *budgets, const char *peer, const char *job,
                        enum hdt_prio prio)
{
    uint32_t fit = 0;

    for (unsigned i = 0; i < budgets->n; i++) {
        fit |= (uint32_t)hdt_budget_fits(&budgets->all[i], peer, job, prio) << i;
    }
    return fit;
}

/* The i-th, when it fits and is on. */
static struct hdt_budget_use *use_of(struct hdt_budgets *budgets, uint32_t fit, unsigned i)
{
    return (fit >> i & 1) != 0 && budgets->uses[i].is_on ? &budgets->uses[i] : NULL;
}

/* What waited may have been taken away meanwhile: not more than its cap made it wait. */
static void budget_note_held(struct hdt_budget_use *use, int64_t wait_us, int64_t now_us)
{
    if (use->held_since_us != 0) {
        use->held_us +=
            (now_us < use->held_until_us ? now_us : use->held_until_us) - use->held_since_us;
    }
    use->held_since_us = wait_us > 0 ? now_us : 0;
    use->held_until_us = now_us + wait_us;
}

bool hdt_budgets_allow(struct hdt_budgets *budgets, uint32_t fit, double least_burst,
                       int64_t now_us)
{
    int64_t wait_us = 0;

    for (unsigned i = 0; i < budgets->n; i++) {
        const double rate = (double)budgets->all[i].rate_bits_per_s / 8;
        const double burst = rate * HDT_BUDGET_BURST_S;
        struct hdt_budget_use *use = use_of(budgets, fit, i);
        int64_t own_us;

        if (use == NULL || rate == 0) {
            continue;
        }
        own_us =
            hdt_bucket_wait(&use->bucket, rate, burst > least_burst ? burst : least_burst, now_us);
        budget_note_held(use, own_us, now_us);
        wait_us = own_us > wait_us ? own_us : wait_us;
    }
    if (wait_us > 0 && (budgets->held_until_us == 0 || now_us + wait_us < budgets->held_until_us)) {
        budgets->held_until_us = now_us + wait_us;
    }
    return wait_us == 0;
}

void hdt_budgets_spend(struct hdt_budgets *budgets, uint32_t fit, size_t len)
{
    for (unsigned i = 0; i < budgets->n; i++) {
        struct hdt_budget_use *use = use_of(budgets, fit, i);

        if (use != NULL) {
            hdt_bucket_spend(&use->bucket, (double)len);
            use->sent_bytes += len;
        }
    }
}

unsigned hdt_budgets_weight(const struct hdt_budgets *budgets, uint32_t fit)
{
    uint64_t weight = 1;

    for (unsigned i = 0; i < budgets->n; i++) {
        if ((fit >> i & 1) != 0 && budgets->uses[i].is_on) {
            weight *= budgets->all[i].weight;
            weight = weight < WEIGHT_MAX ? weight : WEIGHT_MAX;
        }
    }
    return (unsigned)weight;
}

uint64_t hdt_budgets_cap(const struct hdt_budgets *budgets, uint32_t fit)
{
    uint64_t cap = 0;

    for (unsigned i = 0; i < budgets->n; i++) {
        const uint64_t rate = budgets->all[i].rate_bits_per_s;

        if ((fit >> i & 1) != 0 && budgets->uses[i].is_on && rate != 0 &&
            (cap == 0 || rate < cap)) {
            cap = rate;
        }
    }
    return cap;
}
