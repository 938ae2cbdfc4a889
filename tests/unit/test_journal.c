/* SPDX-License-Identifier: Apache-2.0 */
/* Where one goes on to read in a long file of lines, against a search from the begin. */
#include "config.h"

#include "gateway/journal.h"
#include "src/base/error.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* As far as a place may lie before the first new line: what it looks at in one go, twice, and a
 * line. */
#define NEAR_BYTES (3u << 15)

static char path[] = "/tmp/hdt-journal.XXXXXX";
static unsigned seed;

static void setup(void)
{
    const char *text = getenv("HDT_TEST_SEED");
    int fd = mkstemp(path);

    cr_assert_geq(fd, 0);
    close(fd);
    seed = text ? (unsigned)strtoul(text, NULL, 10) : (unsigned)time(NULL);
    printf("HDT_TEST_SEED=%u\n", seed);
    srandom(seed);
}

static void teardown(void)
{
    unlink(path);
}

TestSuite(journal, .init = setup, .fini = teardown, .timeout = 60);

static enum hdt_journal_place place_by_step(const void *user, const json_t *line)
{
    const json_t *step = json_object_get(line, "step");

    return !step                                                   ? HDT_JOURNAL_NO_PLACE
           : json_integer_value(step) <= *(const json_int_t *)user ? HDT_JOURNAL_BEFORE
                                                                   : HDT_JOURNAL_AFTER;
}

static uint64_t sought(json_int_t since)
{
    struct hdt_error err = {0};
    uint64_t off = 1;

    cr_assert_eq(hdt_journal_seek(path, place_by_step, &since, &off, &err), HDT_OK, "%s", err.msg);
    return off;
}

/* Steps of which some have two lines, between lines without a step and lines that are none; the
 * place at which the line after each step begins. */
static uint64_t *file_make(int n_steps, int longest)
{
    uint64_t *begins = calloc((size_t)n_steps + 2, sizeof(*begins));
    FILE *file = fopen(path, "w");

    cr_assert(file && begins);
    for (int step = 1; step <= n_steps; step++) {
        begins[step] = (uint64_t)ftell(file);
        for (long i = random() % 3; i >= 0; i--) {
            fprintf(file, "{\"step\":%d,\"pad\":\"%0*d\"}\n", step, 1 + (int)(random() % longest),
                    0);
        }
        if (random() % 4 == 0) {
            fprintf(file, "{\"event\":\"note\",\"pad\":\"%0*d\"}\n", 1 + (int)(random() % longest),
                    0);
        }
        if (random() % 50 == 0) {
            fputs("no line of ours\n", file);
        }
    }
    begins[n_steps + 1] = (uint64_t)ftell(file);
    fputs("{\"step\":1,\"pad\":\"its gateway was killed", file);
    fclose(file);
    return begins;
}

static void expect_places(int n_steps, int longest)
{
    uint64_t *begins = file_make(n_steps, longest);

    for (int since = 0; since <= n_steps; since++) {
        const uint64_t off = sought(since), first = begins[since + 1];
        FILE *file = fopen(path, "r");

        cr_expect_leq(off, first, "step %d is left out", since + 1);
        cr_expect_leq(first - off, NEAR_BYTES + 3u * (unsigned)longest, "%lu bytes before step %d",
                      (unsigned long)(first - off), since + 1);
        if (off > 0) {
            cr_assert_eq(fseek(file, (long)off - 1, SEEK_SET), 0);
            cr_expect_eq(fgetc(file), '\n', "%lu is within a line", (unsigned long)off);
        }
        fclose(file);
    }
    free(begins);
}

Test(journal, seek_among_short_lines)
{
    expect_places(2000, 300);
}

Test(journal, seek_among_lines_longer_than_what_is_looked_at)
{
    expect_places(60, 60000);
}

/* What does not tell where it is may be longer than anybody wants to read: then one begins early.
 */
Test(journal, seek_among_much_that_does_not_tell)
{
    FILE *file = fopen(path, "w");
    uint64_t first;

    cr_assert_not_null(file);
    fputs("{\"step\":1}\n{\"step\":2}\n", file);
    first = (uint64_t)ftell(file);
    for (int i = 0; i < 100000; i++) {
        fprintf(file, "{\"event\":\"note\",\"pad\":\"%064d\"}\n", i);
    }
    fputs("{\"step\":3}\n", file);
    fclose(file);
    cr_expect_leq(sought(1), first);
    cr_expect_eq(sought(0), 0);
}

Test(journal, seek_in_a_file_that_is_empty_or_not_there)
{
    struct hdt_error err = {0};
    json_int_t since = 3;
    uint64_t off = 1;

    cr_expect_eq(sought(3), 0);
    unlink(path);
    cr_expect_eq(hdt_journal_seek(path, place_by_step, &since, &off, &err), HDT_EIO);
    cr_expect(strstr(err.msg, path), "%s", err.msg);
}
