/* SPDX-License-Identifier: Apache-2.0 */
/* Shards as other programs write them, byte by byte, and what is said of broken ones. */
#include "config.h"

#include "src/core/shard.h"
#include "src/base/buf.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

TestSuite(shard, .init = hdt_scratch_init, .fini = hdt_scratch_release);

static struct hdt_error err;

static struct hdt_shard *open_ok(const char *path, struct hdt_shard_options options)
{
    struct hdt_shard *shard = NULL;

    cr_assert_eq(hdt_shard_open(path, &options, &shard, &err), HDT_OK, "%s", err.msg);
    return shard;
}

static void open_fails(const char *path, struct hdt_shard_options options, enum hdt_status want,
                       const char *word)
{
    struct hdt_shard *shard = NULL;

    cr_assert_eq(hdt_shard_open(path, &options, &shard, &err), want, "%s", err.msg);
    cr_assert_null(shard);
    cr_expect(strstr(err.msg, path), "%s does not name the file", err.msg);
    cr_expect(strstr(err.msg, word), "'%s' lacks '%s'", err.msg, word);
}

static void expect_tokens(const struct hdt_shard *shard, uint64_t pos, const int32_t *want,
                          size_t n)
{
    int32_t got[16];

    cr_assert_eq(hdt_shard_read(shard, pos, n, got, &err), HDT_OK, "%s", err.msg);
    cr_expect_arr_eq(got, want, n * sizeof(*want));
}

#define DEFAULTS ((struct hdt_shard_options){0})

/* 1, 258, 65535 */
static const uint8_t raw16[] = {1, 0, 2, 1, 0xff, 0xff};

Test(shard, raw_is_uint16_unless_told)
{
    static const int32_t want16[] = {1, 258, 65535}, want32[] = {70000, 5};
    static const uint8_t raw32[] = {0x70, 0x11, 1, 0, 5, 0, 0, 0};
    struct hdt_shard *shard = open_ok(hdt_scratch_write("a.bin", raw16, sizeof(raw16)), DEFAULTS);

    cr_expect_eq(hdt_shard_n_tokens(shard), 3);
    cr_expect_eq(hdt_shard_format(shard), HDT_SHARD_RAW);
    expect_tokens(shard, 0, want16, 3);
    expect_tokens(shard, 2, want16 + 2, 1);
    expect_tokens(shard, 3, want16, 0);
    hdt_shard_close(shard);
    shard = open_ok(hdt_scratch_write("b.bin", raw32, sizeof(raw32)),
                    (struct hdt_shard_options){.dtype = HDT_DTYPE_U32});
    cr_expect_eq(hdt_shard_n_tokens(shard), 2);
    expect_tokens(shard, 0, want32, 2);
    hdt_shard_close(shard);
}

Test(shard, sidecar_says_dtype_and_vocabulary)
{
    static const char good[] = "{\"dtype\": \"u32\", \"n_vocab\": 300, \"by\": \"someone\"}";
    static const char bad[] = "{\"dtype\": \"f32\"}", broken[] = "{\"dtype\":\n \"u16\"";
    static const uint8_t raw32[] = {0x2b, 1, 0, 0};
    const char *path = hdt_scratch_write("a.bin", raw32, sizeof(raw32));
    struct hdt_shard *shard;

    hdt_scratch_write("a.bin.json", good, sizeof(good) - 1);
    shard = open_ok(path, DEFAULTS);
    cr_expect_eq(hdt_shard_dtype(shard), HDT_DTYPE_U32);
    cr_expect_eq(hdt_shard_n_vocab(shard), 300);
    hdt_shard_close(shard);
    hdt_scratch_write("a.bin.json", bad, sizeof(bad) - 1);
    open_fails(path, DEFAULTS, HDT_EINVAL, "dtype");
    hdt_scratch_write("a.bin.json", broken, sizeof(broken) - 1);
    cr_expect_eq(hdt_shard_open(path, &DEFAULTS, &shard, &err), HDT_EINVAL);
    cr_expect(strstr(err.where, "a.bin.json:2"), "%s", err.where);
}

Test(shard, broken_raw_files_are_refused)
{
    open_fails(hdt_scratch_path("none.bin"), DEFAULTS, HDT_ENOENT, "No such file");
    open_fails(hdt_scratch_write("empty.bin", "", 0), DEFAULTS, HDT_EINVAL, "empty");
    open_fails(hdt_scratch_write("odd.bin", raw16, 5), DEFAULTS, HDT_EINVAL, "5 bytes");
    open_fails("/tmp", DEFAULTS, HDT_EINVAL, "regular file");
}

Test(shard, tokens_outside_the_vocabulary_are_named_with_their_place)
{
    int32_t out[3];
    struct hdt_shard *shard = open_ok(hdt_scratch_write("a.bin", raw16, sizeof(raw16)),
                                      (struct hdt_shard_options){.n_vocab = 300});

    cr_expect_eq(hdt_shard_read(shard, 0, 2, out, &err), HDT_OK);
    cr_expect_eq(hdt_shard_read(shard, 1, 2, out, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "token 65535 at byte 4 "), "%s", err.msg);
    cr_expect_eq(hdt_shard_check(shard, &err), HDT_EINVAL);
    cr_expect_eq(hdt_shard_read(shard, 2, 2, out, &err), HDT_EINVAL);
    cr_expect_eq(hdt_shard_read(shard, UINT64_MAX, 2, out, &err), HDT_EINVAL);
    hdt_shard_close(shard);
}

Test(shard, a_file_that_is_cut_later_gives_an_error)
{
    int32_t out[3];
    const char *path = hdt_scratch_write("a.bin", raw16, sizeof(raw16));
    struct hdt_shard *shard = open_ok(path, DEFAULTS);

    cr_assert_eq(truncate(path, 4), 0);
    cr_expect_eq(hdt_shard_read(shard, 0, 3, out, &err), HDT_EIO);
    cr_expect(strstr(err.msg, "byte 4"), "%s", err.msg);
    hdt_shard_close(shard);
}

/* 20240520 = 0x0134d888 */
static void llmc_file(uint8_t file[1024 + 6], uint8_t version, uint8_t n)
{
    memset(file, 0, 1024);
    memcpy(file, "\x88\xd8\x34\x01", 4);
    file[4] = version;
    file[8] = n;
    memcpy(file + 1024, raw16, 6);
}

Test(shard, llmc_header)
{
    static const int32_t want[] = {1, 258, 65535};
    uint8_t file[1030];
    struct hdt_shard *shard;

    llmc_file(file, 1, 3);
    shard = open_ok(hdt_scratch_write("a.bin", file, sizeof(file)), DEFAULTS);
    cr_expect_eq(hdt_shard_format(shard), HDT_SHARD_LLMC);
    cr_expect_eq(hdt_shard_n_tokens(shard), 3);
    expect_tokens(shard, 0, want, 3);
    hdt_shard_close(shard);
    open_fails(hdt_scratch_write("cut.bin", file, 1028), DEFAULTS, HDT_EINVAL, "3 tokens");
    open_fails(hdt_scratch_write("short.bin", file, 100),
               (struct hdt_shard_options){.format = HDT_SHARD_LLMC}, HDT_EINVAL, "100 bytes");
    llmc_file(file, 7, 3);
    open_fails(hdt_scratch_write("v.bin", file, sizeof(file)), DEFAULTS, HDT_EINVAL, "version 7");
    llmc_file(file, 1, 0);
    open_fails(hdt_scratch_write("zero.bin", file, 1024), DEFAULTS, HDT_EINVAL, "empty");
    open_fails(hdt_scratch_write("raw.bin", raw16, 6),
               (struct hdt_shard_options){.format = HDT_SHARD_LLMC}, HDT_EINVAL, "6 bytes");
}

/* An index of two sequences of 2 and 1 tokens, uint16, two documents. */
static size_t megatron_index(uint8_t *idx)
{
    static const uint8_t head[] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
                                   8,   2,   0,   0,   0,   0,   0,   0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
    static const int32_t sizes[] = {2, 1};
    static const int64_t pointers[] = {0, 4}, documents[] = {0, 1, 2};

    memcpy(idx, head, 34);
    memcpy(idx + 34, sizes, 8);
    memcpy(idx + 42, pointers, 16);
    memcpy(idx + 58, documents, 24);
    return 82;
}

Test(shard, megatron_index)
{
    static const int32_t want[] = {1, 258, 65535};
    uint8_t idx[82];
    size_t len = megatron_index(idx);
    const char *bin = hdt_scratch_write("m.bin", raw16, sizeof(raw16));
    const char *idx_path = hdt_scratch_write("m.idx", idx, len);
    struct hdt_shard *shard = open_ok(bin, DEFAULTS);

    cr_expect_eq(hdt_shard_format(shard), HDT_SHARD_MEGATRON);
    cr_expect_eq(hdt_shard_n_tokens(shard), 3);
    expect_tokens(shard, 0, want, 3);
    hdt_shard_close(shard);
    shard = open_ok(idx_path, DEFAULTS); /* either name will do */
    expect_tokens(shard, 1, want + 1, 2);
    hdt_shard_close(shard);
}

Test(shard, broken_megatron_indexes_are_refused)
{
    static const struct {
        size_t at;
        uint8_t byte;
        const char *word;
    } changes[] = {
        {0, 'X', "MMIDIDX"}, {9, 2, "version 2"}, {17, 6, "dtype 6"}, {18, 200, "cut"},
        {25, 0xff, "cut"},   {33, 0xff, "cut"},   {34, 3, "begins"},  {37, 0x80, "sequence of -"},
        {50, 6, "begins"},   {38, 9, "fit"},
    };
    struct hdt_shard *shard;
    uint8_t idx[82];
    size_t len = megatron_index(idx);
    const char *bin = hdt_scratch_write("m.bin", raw16, sizeof(raw16));

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        megatron_index(idx);
        idx[changes[i].at] = changes[i].byte;
        hdt_scratch_write("m.idx", idx, len);
        cr_expect_eq(hdt_shard_open(bin, &DEFAULTS, &shard, &err), HDT_EINVAL, "case %zu", i);
        cr_expect(strstr(err.msg, changes[i].word), "'%s' lacks '%s'", err.msg, changes[i].word);
        cr_expect(strstr(err.msg, "m.idx") || strstr(err.msg, "m.bin"), "%s", err.msg);
    }
    megatron_index(idx);
    hdt_scratch_write("m.idx", idx, 60);
    cr_expect_eq(hdt_shard_open(bin, &DEFAULTS, &shard, &err), HDT_EINVAL);
    hdt_scratch_write("m.idx", idx, 20);
    cr_expect_eq(hdt_shard_open(bin, &DEFAULTS, &shard, &err), HDT_EINVAL);
    hdt_scratch_write("m.idx", idx, len);
    hdt_scratch_write("m.bin", raw16, 4);
    open_fails(bin, DEFAULTS, HDT_EINVAL, "4 bytes");
}

static void write_shard(const char *path, struct hdt_shard_options options, const int32_t *tokens,
                        size_t n)
{
    struct hdt_shard_writer *writer;

    cr_assert_eq(hdt_shard_writer_open(path, &options, "byte", &writer, &err), HDT_OK, "%s",
                 err.msg);
    cr_assert_eq(hdt_shard_writer_append(writer, tokens, n / 2, &err), HDT_OK);
    cr_assert_eq(hdt_shard_writer_append(writer, tokens + n / 2, n - n / 2, &err), HDT_OK);
    cr_assert_eq(hdt_shard_writer_n_tokens(writer), n);
    cr_assert_eq(hdt_shard_writer_finish(writer, &err), HDT_OK, "%s", err.msg);
}

Test(shard, written_bytes_are_those_of_the_formats)
{
    static const int32_t tokens[] = {1, 258, 65535};
    uint8_t llmc[1030];
    size_t len;
    char *file;
    struct hdt_shard *shard;

    write_shard(hdt_scratch_path("r.bin"), (struct hdt_shard_options){.n_vocab = 65536}, tokens, 3);
    file = hdt_scratch_read(hdt_scratch_path("r.bin"), &len);
    cr_expect_eq(len, 6);
    cr_expect_arr_eq(file, raw16, 6);
    free(file);
    shard = open_ok(hdt_scratch_path("r.bin"), DEFAULTS);
    cr_expect_eq(hdt_shard_n_vocab(shard), 65536); /* by the sidecar */
    hdt_shard_close(shard);
    llmc_file(llmc, 1, 3);
    write_shard(hdt_scratch_path("l.bin"),
                (struct hdt_shard_options){.format = HDT_SHARD_LLMC, .n_vocab = 65536}, tokens, 3);
    file = hdt_scratch_read(hdt_scratch_path("l.bin"), &len);
    cr_expect_eq(len, sizeof(llmc));
    cr_expect_arr_eq(file, llmc, sizeof(llmc));
    free(file);
    write_shard(hdt_scratch_path("w.bin"), (struct hdt_shard_options){.n_vocab = 100000}, tokens,
                3);
    shard = open_ok(hdt_scratch_path("w.bin"), DEFAULTS);
    cr_expect_eq(hdt_shard_dtype(shard), HDT_DTYPE_U32);
    expect_tokens(shard, 0, tokens, 3);
    hdt_shard_close(shard);
}

Test(shard, long_runs_come_back)
{
    int32_t *tokens = hdt_calloc(10007, sizeof(*tokens)), *back = hdt_calloc(10007, sizeof(*back));
    struct hdt_shard *shard;

    for (int i = 0; i < 10007; i++) {
        tokens[i] = i * 7 % 50257;
    }
    write_shard(hdt_scratch_path("r.bin"), (struct hdt_shard_options){.n_vocab = 50257}, tokens,
                10007);
    shard = open_ok(hdt_scratch_path("r.bin"), DEFAULTS);
    cr_assert_eq(hdt_shard_read(shard, 0, 10007, back, &err), HDT_OK);
    cr_expect_arr_eq(tokens, back, 10007 * sizeof(*tokens));
    cr_assert_eq(hdt_shard_read(shard, 4000, 5000, back, &err), HDT_OK);
    cr_expect_arr_eq(tokens + 4000, back, 5000 * sizeof(*tokens));
    cr_expect_eq(hdt_shard_check(shard, &err), HDT_OK);
    hdt_shard_close(shard);
    free(tokens);
    free(back);
}

Test(shard, writer_refuses_and_leaves_nothing)
{
    static const int32_t tokens[] = {1, 256}, negative[] = {-1};
    struct hdt_shard_options bytes = {.n_vocab = 256},
                             wide = {.n_vocab = 70000, .dtype = HDT_DTYPE_U16};
    struct hdt_shard_writer *writer;

    cr_expect_eq(hdt_shard_writer_open(hdt_scratch_path("x.bin"), &wide, NULL, &writer, &err),
                 HDT_EINVAL);
    cr_expect_eq(hdt_shard_writer_open("/nonexistent/x.bin", &bytes, NULL, &writer, &err), HDT_EIO);
    cr_assert_eq(hdt_shard_writer_open(hdt_scratch_path("x.bin"), &bytes, NULL, &writer, &err),
                 HDT_OK);
    cr_expect_eq(hdt_shard_writer_append(writer, tokens, 2, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "256"), "%s", err.msg);
    cr_expect_eq(hdt_shard_writer_append(writer, negative, 1, &err), HDT_EINVAL);
    hdt_shard_writer_abort(writer);
    cr_expect_neq(access(hdt_scratch_path("x.bin"), F_OK), 0);
}

/* ---- digests ---- */

static void shard_make(const char *name, enum hdt_shard_format format, size_t n)
{
    struct hdt_shard_options options = {.format = format, .n_vocab = 256};
    struct hdt_shard_writer *writer;
    int32_t *tokens = malloc(n * sizeof(*tokens));

    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)((uint32_t)i * 2654435761u >> 24);
    }
    cr_assert_eq(hdt_shard_writer_open(hdt_scratch_path(name), &options, "byte", &writer, &err),
                 HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_shard_writer_append(writer, tokens, n, &err), HDT_OK);
    cr_assert_eq(hdt_shard_writer_finish(writer, &err), HDT_OK, "%s", err.msg);
    free(tokens);
}

/* Reads all, in pieces that do not lie on blocks. */
static enum hdt_status shard_read_all(const char *name)
{
    struct hdt_shard_options options = {.n_vocab = 256};
    struct hdt_shard *shard;
    enum hdt_status status = hdt_shard_open(hdt_scratch_path(name), &options, &shard, &err);
    int32_t tokens[1000];

    for (uint64_t pos = 0; status == HDT_OK && pos < hdt_shard_n_tokens(shard);) {
        uint64_t left = hdt_shard_n_tokens(shard) - pos;
        size_t n = left < 1000 ? (size_t)left : 1000;

        status = hdt_shard_read(shard, pos, n, tokens, &err);
        for (size_t i = 0; status == HDT_OK && i < n; i++) {
            cr_assert_eq(tokens[i], (int32_t)((uint32_t)(pos + i) * 2654435761u >> 24));
        }
        pos += n;
    }
    if (status == HDT_OK) {
        hdt_shard_close(shard);
    }
    return status;
}

/* Of the shard, its digests, and what describes it; those of llm.c's header, too. */
Test(shard, no_byte_that_changes_becomes_a_token)
{
    static const char *const names[] = {"a.bin", "a.bin.sums", "a.bin.json", "b.bin", "b.bin.sums"};
    uint32_t seed = (uint32_t)time(NULL);
    enum hdt_status status;
    size_t len;
    char *bytes;

    cr_log_info("seed %u", seed);
    shard_make("a.bin", HDT_SHARD_RAW, 90000);
    shard_make("b.bin", HDT_SHARD_LLMC, 40000);
    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        bytes = hdt_scratch_read(hdt_scratch_path(names[k]), &len);
        cr_assert(bytes);
        for (int n = 0; n < 150; n++) {
            size_t i = (size_t)((uint64_t)(seed = seed * 1664525u + 1013904223u) * len >> 32);
            unsigned bit = (seed = seed * 1664525u + 1013904223u) >> 29;

            bytes[i] = (char)(bytes[i] ^ 1 << bit);
            hdt_scratch_write(names[k], bytes, len);
            memset(&err, 0, sizeof(err));
            status = shard_read_all(names[k][0] == 'a' ? "a.bin" : "b.bin");
            /* The .json describes; what it says wrongly is refused, or was no part of it. */
            cr_expect(status != HDT_OK || strcmp(names[k], "a.bin.json") == 0,
                      "%s: byte %zu, bit %u", names[k], i, bit);
            cr_expect(status == HDT_OK || err.msg[0]);
            bytes[i] = (char)(bytes[i] ^ 1 << bit);
        }
        hdt_scratch_write(names[k], bytes, len);
        free(bytes);
    }
    cr_expect_eq(shard_read_all("a.bin"), HDT_OK);
    cr_expect_eq(shard_read_all("b.bin"), HDT_OK);
}

Test(shard, a_shard_that_is_being_written_has_not_its_name)
{
    struct hdt_shard_options options = {.n_vocab = 256};
    struct hdt_shard_writer *writer;
    const int32_t other[3] = {1, 2, 3};

    shard_make("a.bin", HDT_SHARD_RAW, 5000);
    cr_assert_eq(hdt_shard_writer_open(hdt_scratch_path("a.bin"), &options, "byte", &writer, &err),
                 HDT_OK);
    cr_assert_eq(hdt_shard_writer_append(writer, other, 3, &err), HDT_OK);
    cr_expect_eq(shard_read_all("a.bin"), HDT_OK, "%s", err.msg);
    hdt_shard_writer_abort(writer);
    cr_expect_eq(shard_read_all("a.bin"), HDT_OK, "%s", err.msg);
}
