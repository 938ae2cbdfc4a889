/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/repeat.h"
#include "src/base/clock.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Whom a message may be of. Their plural is the word and an 's'. */
static const char *const words[] = {"rank", "stream", "flow", "frame", "chunk", "client", "thread"};

static uint64_t hash_add(uint64_t hash, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3ull; /* FNV-1a */
    }
    return hash;
}

static size_t number_len(const char *text)
{
    size_t len = strspn(text, "0123456789");

    if (len > 0 && text[len] == '.' && isdigit((unsigned char)text[len + 1])) {
        len += 1 + strspn(text + len + 1, "0123456789");
    }
    return len;
}

/* The word of `words` that ends at `at`, with a blank behind it; NULL. */
static const char *word_before(const char *text, const char *at)
{
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const size_t len = strlen(words[i]);

        if ((size_t)(at - text) > len && at[-1] == ' ' &&
            strncmp(at - 1 - len, words[i], len) == 0 &&
            ((size_t)(at - text) == len + 1 || !isalpha((unsigned char)at[-2 - (long)len]))) {
            return words[i];
        }
    }
    return NULL;
}

static bool is_duration(const char *behind)
{
    return (strncmp(behind, " s", 2) == 0 && !isalpha((unsigned char)behind[2])) ||
           (strncmp(behind, " ms", 3) == 0 && !isalpha((unsigned char)behind[3])) ||
           strncmp(behind, " more like this", 15) == 0;
}

/* Of "10.0.0.2:48122" and "[::1]:48122": a stream's own, another each time. */
static bool is_port(const char *text, const char *at)
{
    return at - text >= 2 && at[-1] == ':' && (isdigit((unsigned char)at[-2]) || at[-2] == ']');
}

void hdt_repeat_key(const char *text, struct hdt_repeat_key *key)
{
    const char *p = text;

    key->hash = 0xcbf29ce484222325ull;
    key->word[0] = '\0';
    key->number = -1;
    while (*p) {
        const size_t len = number_len(p);
        const char *word = len > 0 ? word_before(text, p) : NULL;

        if (word && key->number < 0) {
            snprintf(key->word, sizeof(key->word), "%s", word);
            sscanf(p, "%9d", &key->number);
        }
        if (word || (len > 0 && (is_duration(p + len) || is_port(text, p)))) {
            key->hash = hash_add(key->hash, "#", 1);
            p += len;
        } else {
            key->hash = hash_add(key->hash, p, len > 0 ? len : 1);
            p += len > 0 ? len : 1;
        }
    }
}

char *hdt_repeat_ranges(uint64_t bits, char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    for (int i = 0; i < 64 && len < cap - 1; i++) {
        int last = i;

        if (!(bits >> i & 1)) {
            continue;
        }
        while (last + 1 < 64 && (bits >> (last + 1) & 1)) {
            last++;
        }
        len += (size_t)snprintf(out + len, cap - len, last > i ? "%s%d-%d" : "%s%d",
                                len > 0 ? ", " : "", i, last);
        i = last;
    }
    return out;
}

static struct hdt_repeat_entry *entry_find(struct hdt_repeat *repeat, uint64_t hash)
{
    for (int i = 0; i < HDT_REPEAT_ENTRIES; i++) {
        if (repeat->entries[i].first_us != 0 && repeat->entries[i].hash == hash) {
            return &repeat->entries[i];
        }
    }
    return NULL;
}

/* A free entry, else the oldest that has nothing to say, else NULL. */
static struct hdt_repeat_entry *entry_new(struct hdt_repeat *repeat)
{
    struct hdt_repeat_entry *best = NULL;

    for (int i = 0; i < HDT_REPEAT_ENTRIES; i++) {
        struct hdt_repeat_entry *entry = &repeat->entries[i];

        if (entry->n == 0 && (!best || entry->first_us < best->first_us)) {
            best = entry;
        }
    }
    return best;
}

bool hdt_repeat_pass(struct hdt_repeat *repeat, const char *text, int tag, int64_t now_us)
{
    struct hdt_repeat_entry *entry;
    struct hdt_repeat_key key;

    hdt_repeat_key(text, &key);
    entry = entry_find(repeat, key.hash);
    if (entry && (entry->n > 0 || now_us - entry->first_us < HDT_REPEAT_WINDOW_S * HDT_US_PER_S)) {
        entry->n++;
        if (key.number >= 0 && key.number < 64) {
            entry->others |= 1ull << key.number;
        }
        return false;
    }
    entry = entry ? entry : entry_new(repeat);
    if (entry) {
        memset(entry, 0, sizeof(*entry));
        entry->hash = key.hash;
        entry->first_us = now_us;
        entry->tag = tag;
        snprintf(entry->word, sizeof(entry->word), "%s", key.word);
        snprintf(entry->text, sizeof(entry->text), "%s", text);
    }
    return true;
}

bool hdt_repeat_due(struct hdt_repeat *repeat, int64_t now_us, bool all,
                    struct hdt_repeat_entry *due)
{
    for (int i = 0; i < HDT_REPEAT_ENTRIES; i++) {
        struct hdt_repeat_entry *entry = &repeat->entries[i];

        if (entry->n > 0 &&
            (all || now_us - entry->first_us >= HDT_REPEAT_WINDOW_S * HDT_US_PER_S)) {
            *due = *entry;
            entry->first_us = 0;
            entry->n = 0;
            return true;
        }
    }
    return false;
}

char *hdt_repeat_line(const struct hdt_repeat_entry *due, int64_t now_us, char *out, size_t cap)
{
    const long long seconds = (now_us - due->first_us + HDT_US_PER_S / 2) / HDT_US_PER_S;
    char who[128] = "", ranges[96];

    if (due->others) {
        bool one = (due->others & (due->others - 1)) == 0;

        snprintf(who, sizeof(who), "%s%s %s, ", due->word, one ? "" : "s",
                 hdt_repeat_ranges(due->others, ranges, sizeof(ranges)));
    }
    snprintf(out, cap, "%s (also %s%llu time%s in %lld s)", due->text, who,
             (unsigned long long)due->n, due->n == 1 ? "" : "s", seconds);
    return out;
}
