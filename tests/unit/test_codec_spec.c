/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of codecs: what they mean, how they are written, what is refused and how. */
#include "config.h"

#include "compress/spec.h"
#include "src/base/buf.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static void expect_refused(const char *text, const char *msg, const char *hint)
{
    struct hdt_codec_spec spec = {.worker = 77};
    struct hdt_error err = {0};

    cr_expect_eq(hdt_codec_spec_parse(text, &spec, &err), HDT_EINVAL, "%s", text);
    cr_expect(strstr(err.msg, msg), "%s: %s", text, err.msg);
    cr_expect(strstr(err.hint, hint), "%s: %s", text, err.hint);
    cr_expect_eq(spec.worker, 77, "%s: a refused text sets nothing", text);
}

Test(codec_spec, texts_of_older_plans_mean_what_they_meant)
{
    static const struct {
        const char *text;
        uint8_t worker, gateway;
    } old[] = {{"none", HDT_CODEC_NONE, HDT_CODEC_NONE},
               {"bf16", HDT_CODEC_BF16, HDT_CODEC_NONE},
               {"int8", HDT_CODEC_INT8, HDT_CODEC_NONE},
               {"lossless", HDT_CODEC_NONE, HDT_CODEC_LOSSLESS},
               {"bf16+lossless", HDT_CODEC_BF16, HDT_CODEC_LOSSLESS},
               {"int8+lossless", HDT_CODEC_INT8, HDT_CODEC_LOSSLESS}};
    char text[HDT_CODEC_SPEC_TEXT];

    for (size_t i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
        const struct hdt_codec_spec want = {.worker = old[i].worker, .gateway = old[i].gateway};
        struct hdt_codec_spec spec;

        cr_assert_eq(hdt_codec_spec_parse(old[i].text, &spec, NULL), HDT_OK);
        cr_expect(hdt_codec_spec_equal(&spec, &want), "%s", old[i].text);
        hdt_codec_spec_format(&spec, text);
        cr_expect_str_eq(text, old[i].text);
    }
}

/* All that parse can make of the table of words is written so that it is read as the same. */
static void expect_round_trip(const struct hdt_codec_spec *spec)
{
    char text[HDT_CODEC_SPEC_TEXT], again[HDT_CODEC_SPEC_TEXT];
    struct hdt_codec_spec back;
    struct hdt_error err = {0};

    if (hdt_codec_spec_check(spec, NULL) != HDT_OK) {
        return;
    }
    hdt_codec_spec_format(spec, text);
    cr_assert_eq(hdt_codec_spec_parse(text, &back, &err), HDT_OK, "%s: %s", text, err.msg);
    cr_assert(hdt_codec_spec_equal(spec, &back), "%s", text);
    hdt_codec_spec_format(&back, again);
    cr_assert_str_eq(text, again);
}

Test(codec_spec, every_spec_is_written_and_read_back)
{
    static const uint8_t bits[] = {0, 2, 4, 8, 16};
    static const uint16_t blocks[] = {0, 32, 64, 128, 256, 512, 1024};
    static const uint16_t keeps[] = {0, 2, 64, 1024};
    static const uint8_t ranks[] = {0, 1, 4, HDT_CODEC_RANK_MAX};

    for (unsigned i = 0; i < 2u * HDT_CODEC_COUNT * 5 * 7 * 4 * 4 * 32; i++) {
        unsigned at = i;
        struct hdt_codec_spec spec = {0};

        spec.gateway = at % 2 ? HDT_CODEC_LOSSLESS : HDT_CODEC_NONE;
        at /= 2;
        spec.worker = (uint8_t)(at % HDT_CODEC_COUNT);
        at /= HDT_CODEC_COUNT;
        spec.bits = bits[at % 5];
        at /= 5;
        spec.block = blocks[at % 7];
        at /= 7;
        spec.keep = keeps[at % 4];
        at /= 4;
        spec.rank = ranks[at % 4];
        at /= 4;
        spec.flags = (uint16_t)at;
        expect_round_trip(&spec);
    }
}

Test(codec_spec, examples_of_the_table_are_codecs)
{
    size_t n;
    const struct hdt_codec_word *words = hdt_codec_words(&n);
    char part[HDT_CODEC_SPEC_TEXT];

    for (size_t i = 0; i < n; i++) {
        for (const char *at = words[i].texts; *at; at += strspn(at, " ")) {
            size_t len = strcspn(at, " ");
            struct hdt_codec_spec spec;
            struct hdt_error err = {0};

            snprintf(part, sizeof(part), "%.*s", (int)len, at);
            cr_expect_eq(hdt_codec_spec_parse(part, &spec, &err), HDT_OK, "%s", err.msg);
            at += len;
        }
    }
}

Test(codec_spec, a_default_written_out_is_the_default)
{
    struct hdt_codec_spec plain, spec;
    size_t n;
    const struct hdt_codec_word *words = hdt_codec_words(&n);
    char text[HDT_CODEC_SPEC_TEXT];

    for (size_t i = 0; i < n; i++) {
        if (words[i].options & HDT_CODEC_OPT_BLOCK && words[i].defaults.block > 0) {
            plain = hdt_codec_spec_default(words[i].id);
            snprintf(text, sizeof(text), "%s:block=%u", words[i].name, words[i].defaults.block);
            cr_assert_eq(hdt_codec_spec_parse(text, &spec, NULL), HDT_OK, "%s", text);
            cr_expect(hdt_codec_spec_equal(&spec, &plain), "%s", text);
        }
    }
}

Test(codec_spec, what_does_not_exist_is_refused_with_what_does)
{
    size_t n_words;
    const struct hdt_codec_word *words = hdt_codec_words(&n_words);

    expect_refused("zstd", "'zstd' is no codec", "lossless");
    for (size_t i = 0; i < n_words; i++) { /* all of them, and what is behind the last one */
        expect_refused("zstd", "'zstd' is no codec", words[i].name);
    }
    expect_refused("zstd", "'zstd' is no codec", "may follow (hdt codec list)");
    expect_refused("", "'' is no codec", "bf16");
    expect_refused("auto", "'auto' is no codec", "bf16");
    expect_refused("BF16", "'BF16' is no codec", "bf16");
    expect_refused("bf16 ", "'bf16 ' is no codec", "bf16");
    expect_refused("lossless+lossless", "no codec", "+lossless may follow");
    expect_refused("none+lossless", "no codec", "+lossless may follow");
    expect_refused("+lossless", "no codec", "known are");
    expect_refused("bf16+zstd", "'bf16+zstd' is no codec", "known are");
    expect_refused("delta:bf16", "'delta:bf16' is no codec", "known are");
    expect_refused("delta:", "no codec", "known are");
    expect_refused("bf16:block=64", "codec bf16 has no option 'block=64'", "options");
    expect_refused("bf16:", "codec bf16 has no option ''", "options");
    expect_refused("none:64", "codec none has no option '64'", "options");
    expect_refused("int8:block=", "codec int8 has no option 'block='", "options");
    expect_refused("int8:zero", "codec int8 has no option 'zero'", "options");
}

Test(codec_spec, a_spec_that_is_no_codec_has_no_text)
{
    static const struct hdt_codec_spec bad[] = {
        {.worker = HDT_CODEC_LOSSLESS},
        {.worker = HDT_CODEC_COUNT},
        {.worker = HDT_CODEC_NONE, .gateway = HDT_CODEC_BF16},
        {.worker = HDT_CODEC_BF16, .block = 64},
        {.worker = HDT_CODEC_BF16, .bits = 2},
        {.worker = HDT_CODEC_BF16, .keep = 64},
        {.worker = HDT_CODEC_BF16, .rank = 4},
        {.worker = HDT_CODEC_BF16, .flags = HDT_CODEC_E5M2},
        {.worker = HDT_CODEC_INT8, .block = 256},
        {.worker = HDT_CODEC_INT8, .block = 48},
        {.worker = HDT_CODEC_INT8, .flags = 1u << 15},
    };
    char text[HDT_CODEC_SPEC_TEXT];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_expect_eq(hdt_codec_spec_check(&bad[i], NULL), HDT_EINVAL, "%zu", i);
        hdt_codec_spec_format(&bad[i], text);
        cr_expect_str_eq(text, "?");
    }
}
