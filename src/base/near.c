/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/near.h"

#include <string.h>

#define NEAR_LEN_MAX 48 /* longer words are no typing error of a key */

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned least = a < b ? a : b;

    return least < c ? least : c;
}

/* How many letters must be changed, added, removed or swapped with their neighbour to make `a`
 * from `b` (optimal string alignment), over three rows of the usual table. */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned rows[3][NEAR_LEN_MAX + 1];
    unsigned *prev2 = rows[0], *prev = rows[1], *row = rows[2], *spare;
    size_t n_a = strlen(a), n_b = strlen(b);

    for (size_t j = 0; j <= n_b; j++) {
        prev[j] = (unsigned)j;
        prev2[j] = 0;
    }
    for (size_t i = 1; i <= n_a; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            unsigned change = prev[j - 1] + (a[i - 1] != b[j - 1]);

            row[j] = min3(prev[j] + 1, row[j - 1] + 1, change);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                prev2[j - 2] + 1 < row[j]) {
                row[j] = prev2[j - 2] + 1;
            }
        }
        spare = prev2;
        prev2 = prev;
        prev = row;
        row = spare;
    }
    return prev[n_b];
}

void hdt_near_init(struct hdt_near *near, const char *word)
{
    near->word = word;
    near->best = NULL;
    near->best_distance = 0;
}

void hdt_near_offer(struct hdt_near *near, const char *name)
{
    size_t n_word = strlen(near->word), n_name = strlen(name);
    size_t n = n_word > n_name ? n_word : n_name;
    unsigned distance;

    if (n > NEAR_LEN_MAX) {
        return;
    }
    distance = edit_distance(near->word, name);
    /* One letter in three may be wrong: "lisen" is near "listen", "mode" is not near "name". */
    if (distance > (n + 2) / 3 || distance >= n_name) {
        return;
    }
    if (!near->best || distance < near->best_distance) {
        near->best = name;
        near->best_distance = distance;
    }
}
