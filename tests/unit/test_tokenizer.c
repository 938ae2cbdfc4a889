/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/bigram.h"
#include "src/core/tokenizer.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(tokenizer, .init = hdt_scratch_init, .fini = hdt_scratch_release);

static struct hdt_error err;

Test(tokenizer, bytes_go_there_and_back)
{
    struct hdt_tokenizer tok;
    struct hdt_buf text = {0};
    char all[256];
    int32_t *ids;
    size_t n;

    for (int i = 0; i < 256; i++) {
        all[i] = (char)i;
    }
    cr_assert_eq(hdt_tokenizer_init(&tok, "byte", NULL, &err), HDT_OK);
    cr_expect_eq(hdt_tokenizer_n_vocab(&tok), 256);
    cr_assert_eq(hdt_tokenizer_encode(&tok, all, 256, &ids, &n), HDT_OK);
    cr_assert_eq(n, 256);
    for (int i = 0; i < 256; i++) {
        cr_expect_eq(ids[i], i);
    }
    cr_assert_eq(hdt_tokenizer_decode(&tok, ids, n, &text, &err), HDT_OK);
    cr_expect_eq(text.len, 256);
    cr_expect_arr_eq(text.data, all, 256);
    ids[7] = 256;
    cr_expect_eq(hdt_tokenizer_decode(&tok, ids, n, &text, &err), HDT_EINVAL);
    cr_expect_eq(text.len, 256);
    free(ids);
    hdt_buf_release(&text);
    hdt_tokenizer_release(&tok);
    cr_expect_eq(hdt_tokenizer_init(&tok, "bpe", NULL, &err), HDT_EINVAL);
    cr_expect(strstr(err.hint, "byte"));
}

static void expect_printed(const char *bytes, size_t len, const char *want)
{
    struct hdt_buf out = {0};

    hdt_text_append(&out, bytes, len);
    cr_expect_str_eq(hdt_buf_str(&out), want);
    hdt_buf_release(&out);
}

#define FFFD "\xef\xbf\xbd"

/* Cases of the Unicode standard, section 3.9: each maximal part of a broken sequence once. */
Test(tokenizer, broken_text_is_safe_to_print)
{
    expect_printed("a\tb\n", 4, "a\tb\n");
    expect_printed("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", 11,
                   "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    expect_printed("\x80x\xc0\xaf\xe0\x9f\xbf", 7, FFFD "x" FFFD FFFD FFFD FFFD FFFD);
    expect_printed("\xed\xa0\x80", 3, FFFD FFFD FFFD);          /* surrogate */
    expect_printed("\xf4\x90\x80\x80", 4, FFFD FFFD FFFD FFFD); /* above U+10FFFF */
    expect_printed("\xe2\x82z\xf0\x9f\x98", 6, FFFD "z" FFFD);
    expect_printed("\x1b[2J\r\x7f\0", 7, "\\x1b[2J\\x0d\\x7f\\x00");
    expect_printed("\xc2\x9b"
                   "2J",
                   4,
                   "\\x9b"
                   "2J"); /* C1 control sequence introducer */
    expect_printed("", 0, "");
}

static uint64_t progress_done;

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    cr_expect_eq(total, *(uint64_t *)arg);
    cr_expect_gt(done, progress_done);
    progress_done = done;
}

Test(tokenizer, a_text_file_becomes_a_shard)
{
    const uint64_t len = 700001, begin = 1000;
    uint64_t total = len - begin, n;
    char *text = hdt_malloc(len);
    int32_t *back = hdt_calloc(len, sizeof(*back));
    struct hdt_tokenizer tok;
    struct hdt_shard *shard;
    struct hdt_tokenize_job job = {.text_path = hdt_scratch_path("t.txt"),
                                   .begin = begin,
                                   .shard_path = hdt_scratch_path("t.bin"),
                                   .progress = on_progress,
                                   .progress_arg = &total};

    for (uint64_t i = 0; i < len; i++) {
        text[i] = (char)(i * i >> 7);
    }
    hdt_scratch_write("t.txt", text, len);
    cr_assert_eq(hdt_tokenizer_init(&tok, "byte", NULL, &err), HDT_OK);
    cr_assert_eq(hdt_tokenize_file(&tok, &job, &n, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(n, total);
    cr_expect_eq(progress_done, total);
    cr_assert_eq(hdt_shard_open(job.shard_path, &job.shard, &shard, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_shard_n_vocab(shard), 256);
    cr_assert_eq(hdt_shard_read(shard, 0, n, back, &err), HDT_OK);
    for (uint64_t i = 0; i < n; i++) {
        cr_assert_eq(back[i], (unsigned char)text[begin + i]);
    }
    hdt_shard_close(shard);
    job.begin = len;
    cr_expect_eq(hdt_tokenize_file(&tok, &job, &n, &err), HDT_EINVAL);
    job.text_path = hdt_scratch_path("missing.txt");
    cr_expect_eq(hdt_tokenize_file(&tok, &job, &n, &err), HDT_ENOENT);
    free(text);
    free(back);
}

/* "abab" counts ab 2, ba 1: p(b|a) = 3 / 258, p(a|b) = 2 / 257, unseen 1 / 256. */
Test(tokenizer, bigram_baseline)
{
    static const int32_t train[] = {'a', 'b', 'a', 'b'},
                         held_out[] = {'a', 'b', 'a', 'a', 'z', 'q'};
    struct hdt_bigram *bigram = hdt_bigram_new();
    double sum = 0, want = log(258 / 3.0) + log(257 / 2.0) + 2 * log(258 / 1.0) + log(256.0);

    hdt_bigram_count(bigram, train, 1);
    hdt_bigram_count(bigram, train + 1, 3);
    hdt_bigram_score(bigram, held_out, 6, &sum);
    cr_expect_lt(fabs(sum - want), 1e-12);
    sum = 0;
    hdt_bigram_score(bigram, held_out, 3, &sum);
    hdt_bigram_score(bigram, held_out + 2, 4, &sum);
    hdt_bigram_score(bigram, held_out, 1, &sum);
    hdt_bigram_score(bigram, held_out, 0, &sum);
    cr_expect_lt(fabs(sum - want), 1e-12);
    hdt_bigram_free(bigram);
}
