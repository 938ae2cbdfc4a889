/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_REPEAT_H
#define HDT_BASE_REPEAT_H

/*
 * Messages that say the same: of one stream after the other, of every rank, of one peer again and
 * again. Two texts say the same when they differ only in whom they are of ("rank 3", "stream 7",
 * "flow 2", "frame 41", a port after an address) and in durations ("12.1 s", "40 ms"); numbers of
 * jobs and steps count as different. The first is said, the others of the next minute are counted
 * and said in one line.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_REPEAT_TEXT_CAP 320
#define HDT_REPEAT_WINDOW_S 60

struct hdt_repeat_key {
    uint64_t hash;
    char word[12]; /* of whom it is: "rank"; "": nobody */
    int number;    /* -1: none */
};

/* What remains of the text when whom it is of is left out. */
void hdt_repeat_key(const char *text, struct hdt_repeat_key *key);

/* "1-3, 5": the bits that are set. Returns out. */
char *hdt_repeat_ranges(uint64_t bits, char *out, size_t cap);

struct hdt_repeat_entry {
    uint64_t hash, others; /* others: bit n: number n was among those not said */
    int64_t first_us;      /* 0: free */
    uint64_t n;            /* not said */
    int tag;               /* the caller's */
    char word[12];
    char text[HDT_REPEAT_TEXT_CAP];
};

#define HDT_REPEAT_ENTRIES 64

/* Starts as zeros. One thread at a time. */
struct hdt_repeat {
    struct hdt_repeat_entry entries[HDT_REPEAT_ENTRIES];
};

/* true: say it. false: it was said within the last minute and is counted. */
bool hdt_repeat_pass(struct hdt_repeat *repeat, const char *text, int tag, int64_t now_us);

/* A minute that is over and had repeats: true, and the text with "(also streams 1-7, 12 times in
 * 60 s)". With `all`, minutes that are not over, too. To be called until it is false. */
bool hdt_repeat_due(struct hdt_repeat *repeat, int64_t now_us, bool all,
                    struct hdt_repeat_entry *due);
/* That line. Returns out. */
char *hdt_repeat_line(const struct hdt_repeat_entry *due, int64_t now_us, char *out, size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_REPEAT_H */
