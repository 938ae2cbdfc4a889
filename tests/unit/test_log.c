/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/log.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/repeat.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool same(const char *a, const char *b)
{
    struct hdt_repeat_key one, other;

    hdt_repeat_key(a, &one);
    hdt_repeat_key(b, &other);
    return one.hash == other.hash;
}

Test(repeat, texts_of_other_ranks_and_streams_say_the_same)
{
    cr_expect(same("rank 3 cannot go on", "rank 12 cannot go on"));
    cr_expect(same("stream 1 to site-b lost: reset", "stream 7 to site-b lost: reset"));
    cr_expect(
        same("no answer of 10.0.0.2:48122 for 3.1 s", "no answer of 10.0.0.2:50000 for 12 s"));
    cr_expect(same("chunk of flow 3, frame 40 is bad", "chunk of flow 1, frame 2 is bad"));
}

Test(repeat, other_jobs_steps_and_sites_do_not)
{
    cr_expect(!same("job 3: failed", "job 4: failed"));
    cr_expect(!same("step 12: not finite", "step 13: not finite"));
    cr_expect(!same("stream 1 to site-b lost", "stream 1 to site-c lost"));
    cr_expect(!same("site 10.0.0.2 is away", "site 10.0.0.3 is away"));
    cr_expect(!same("frank 3 left", "frank 4 left"));
    cr_expect(!same("2 sites", "3 sites"));
}

Test(repeat, ranges_read_as_people_write_them)
{
    char out[64];

    cr_expect_str_eq(hdt_repeat_ranges(0xfe, out, sizeof(out)), "1-7");
    cr_expect_str_eq(hdt_repeat_ranges(0x2d, out, sizeof(out)), "0, 2-3, 5");
    cr_expect_str_eq(hdt_repeat_ranges(1ull << 63, out, sizeof(out)), "63");
    cr_expect_str_eq(hdt_repeat_ranges(0x5555555555555555ull, out, 12), "0, 2, 4, 6,");
}

Test(repeat, a_minute_of_repeats_is_two_lines)
{
    static struct hdt_repeat repeat;
    struct hdt_repeat_entry due;
    const int64_t s = HDT_US_PER_S;
    char text[64], line[512];

    cr_expect(hdt_repeat_pass(&repeat, "stream 0 lost: reset", 1, 100 * s));
    for (int i = 1; i < 8; i++) {
        snprintf(text, sizeof(text), "stream %d lost: reset", i);
        cr_expect(!hdt_repeat_pass(&repeat, text, 1, (100 + i) * s));
        cr_expect(!hdt_repeat_due(&repeat, (100 + i) * s, false, &due));
    }
    cr_expect(hdt_repeat_pass(&repeat, "another thing", 1, 110 * s));
    cr_assert(hdt_repeat_due(&repeat, 160 * s, false, &due));
    cr_expect_str_eq(hdt_repeat_line(&due, 160 * s, line, sizeof(line)),
                     "stream 0 lost: reset (also streams 1-7, 7 times in 60 s)");
    cr_expect(!hdt_repeat_due(&repeat, 160 * s, false, &due));
    cr_expect(hdt_repeat_pass(&repeat, "stream 2 lost: reset", 1, 161 * s), "a new minute");
}

/* More different texts than are remembered: all are said. */
Test(repeat, what_does_not_fit_is_said)
{
    static struct hdt_repeat repeat;
    char text[64];

    for (int i = 0; i < 10 * HDT_REPEAT_ENTRIES; i++) {
        snprintf(text, sizeof(text), "job %d: failed", i);
        cr_expect(hdt_repeat_pass(&repeat, text, 1, 100 * HDT_US_PER_S + i));
    }
}

/* ---- the log itself: what arrives on standard error ---- */

static int lines_from(int fd, char *text, size_t cap)
{
    ssize_t n = pread(fd, text, cap - 1, 0);
    int lines = 0;

    text[n > 0 ? n : 0] = '\0';
    for (const char *p = text; (p = strchr(p, '\n')); p++) {
        lines++;
    }
    return lines;
}

static int stderr_to_file(void)
{
    char path[] = "/tmp/hdt-log-XXXXXX";
    int fd = mkstemp(path);

    cr_assert(fd >= 0);
    unlink(path);
    cr_assert(dup2(fd, STDERR_FILENO) >= 0);
    return fd;
}

Test(log, eight_streams_that_break_for_half_a_minute_are_a_handful_of_lines)
{
    static char text[1 << 16];
    int fd = stderr_to_file();

    hdt_log_init("hdt-gateway site-a", HDT_LOG_INFO);
    for (int s = 0; s < 30; s++) {
        for (int stream = 0; stream < 8; stream++) {
            hdt_log_warn("stream %d to site-b lost: no answer for %d ms", stream, 3000 + s);
        }
    }
    cr_expect_eq(lines_from(fd, text, sizeof(text)), 1);
    hdt_log_flush();
    cr_expect_eq(lines_from(fd, text, sizeof(text)), 2);
    cr_expect(strstr(text, "(also streams 0-7, 239 times in "), "%s", text);
    cr_expect(strstr(text, "hdt-gateway site-a warn: stream 0 to site-b lost"), "%s", text);
}

Test(log, a_place_that_storms_is_cut_and_says_so)
{
    static char text[1 << 18];
    int fd = stderr_to_file(), n;

    hdt_log_init("x", HDT_LOG_INFO);
    for (int i = 0; i < 1000; i++) {
        hdt_log_info("job %d: submitted", i);
    }
    n = lines_from(fd, text, sizeof(text));
    cr_expect(n >= HDT_LOG_BURST && n <= HDT_LOG_BURST + 5, "%d lines", n);
    hdt_log_info("another place is not cut");
    cr_expect_eq(lines_from(fd, text, sizeof(text)), n + 1);
    hdt_log_flush();
    lines_from(fd, text, sizeof(text));
    cr_expect(strstr(text, "more lines like the last of that kind were left out"), "%s", text);
}

Test(log, failures_of_unlike_causes_are_unlike_places)
{
    static char text[1 << 18];
    int fd = stderr_to_file(), n;
    struct hdt_error err = {0};

    hdt_log_init("x", HDT_LOG_INFO);
    for (int i = 0; i < 1000; i++) {
        hdt_error_set(&err, HDT_EIO, "cannot read '%d'", i);
        hdt_log_failure(HDT_LOG_WARN, &err);
    }
    n = lines_from(fd, text, sizeof(text));
    hdt_error_set(&err, HDT_EIO, "cannot write '%d'", 1);
    hdt_log_failure(HDT_LOG_WARN, &err);
    cr_expect_eq(lines_from(fd, text, sizeof(text)), n + 1);
}

/* A line is cut at its cap, maybe within a character, and holds what others sent: still UTF-8. */
Test(log, a_line_is_text_whatever_came)
{
    static char text[4096];
    char cut[1200];
    int fd = stderr_to_file();

    hdt_log_init("x", HDT_LOG_INFO);
    hdt_log_info("%s", "a\xff"
                       "b\033[2Jc\nd \xc3\xa9");
    memset(cut, 'x', sizeof(cut) - 1);
    cut[sizeof(cut) - 1] = '\0';
    memcpy(cut + 1098, "\xc3\xa9", 2);
    hdt_log_info("%s", cut);
    lines_from(fd, text, sizeof(text));
    cr_expect(strstr(text, "x info: a?b [2Jc d \xc3\xa9\n"), "%s", text);
    cr_expect(strstr(text, "xxx?\n"), "%s", text);
}

/* Who asks for debug wants all of it. */
Test(log, debug_is_not_thinned_out)
{
    static char text[1 << 18];
    int fd = stderr_to_file();

    hdt_log_init("x", HDT_LOG_DEBUG);
    for (int i = 0; i < 500; i++) {
        hdt_log_debug("flow %d opened", i);
    }
    cr_expect_eq(lines_from(fd, text, sizeof(text)), 500);
}

Test(log, the_part_stands_behind_the_name)
{
    static char text[4096];
    struct hdt_buf tail = {0};
    int fd = stderr_to_file();

    hdt_log_init("hdt-worker w0", HDT_LOG_INFO);
    hdt_log_set_part("rank 2");
    hdt_log_info("ready");
    hdt_log_set_part("");
    hdt_log_info("free");
    lines_from(fd, text, sizeof(text));
    cr_expect(strstr(text, "hdt-worker w0 rank 2 info: ready\n"), "%s", text);
    cr_expect(strstr(text, "hdt-worker w0 info: free\n"), "%s", text);
    hdt_log_tail(10, &tail);
    cr_expect_str_eq(hdt_buf_str(&tail), text);
    hdt_buf_release(&tail);
}
