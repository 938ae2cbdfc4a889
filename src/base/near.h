/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_NEAR_H
#define HDT_BASE_NEAR_H

/* "Did you mean ...?": the nearest of some names to a word that was not found. Any thread. */

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_near {
    const char *word;
    const char *best;       /* NULL: none is near */
    unsigned best_distance; /* letters to change, add, remove or swap */
};

/* Begin with `word`, which is borrowed. */
void hdt_near_init(struct hdt_near *near, const char *word);

/* Offer a name (borrowed); one letter in three may differ. The first of equally near ones stays. */
void hdt_near_offer(struct hdt_near *near, const char *name);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_NEAR_H */
