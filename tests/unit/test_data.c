/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/data.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

/* A shard in which every token is its position: a sample says where it is from. */
static struct hdt_shard *shard_of(int n)
{
    struct hdt_shard_options options = {.n_vocab = 65536};
    struct hdt_shard_writer *writer;
    struct hdt_shard *shard;

    snprintf(path, sizeof(path), "/tmp/hdt-data-%d.bin", (int)getpid());
    cr_assert_eq(hdt_shard_writer_open(path, &options, NULL, &writer, NULL), HDT_OK);
    for (int32_t i = 0; i < n; i++) {
        hdt_shard_writer_append(writer, &i, 1, NULL);
    }
    cr_assert_eq(hdt_shard_writer_finish(writer, NULL), HDT_OK);
    cr_assert_eq(hdt_shard_open(path, &options, &shard, NULL), HDT_OK);
    return shard;
}

static void shard_gone(struct hdt_shard *shard)
{
    static const char *const besides[] = {"", ".json", ".sums"};
    char name[80];

    hdt_shard_close(shard);
    for (size_t i = 0; i < sizeof(besides) / sizeof(besides[0]); i++) {
        snprintf(name, sizeof(name), "%s%s", path, besides[i]);
        unlink(name);
    }
}

Test(data, an_epoch_reads_every_window_once)
{
    struct hdt_shard *shard = shard_of(1000);
    struct hdt_sampler sampler;
    int32_t tokens[8], labels[8];
    uint8_t seen[1000];

    cr_assert_eq(hdt_sampler_init(&sampler, shard, 3, 8, NULL), HDT_OK);
    cr_expect_geq(sampler.n_windows * 8, 1000 - 2 * 8 - 1);
    for (uint64_t epoch = 0; epoch < 5; epoch++) {
        memset(seen, 0, sizeof(seen));
        for (uint64_t i = 0; i < sampler.n_windows; i++) {
            cr_assert_eq(
                hdt_sampler_read(&sampler, epoch * sampler.n_windows + i, 1, tokens, labels, NULL),
                HDT_OK);
            for (int t = 0; t < 8; t++) {
                cr_assert_eq(tokens[t], tokens[0] + t);
                cr_assert_eq(labels[t], tokens[t] + 1);
                cr_assert_eq(seen[tokens[t]]++, 0, "token %d twice in an epoch", tokens[t]);
            }
        }
    }
    shard_gone(shard);
}

Test(data, epochs_and_seeds_differ_but_repeat)
{
    struct hdt_shard *shard = shard_of(5000);
    struct hdt_sampler a, b, c;
    int same_seed = 0, other_seed = 0, other_epoch = 0, in_order = 0;

    hdt_sampler_init(&a, shard, 1, 16, NULL);
    hdt_sampler_init(&b, shard, 1, 16, NULL);
    hdt_sampler_init(&c, shard, 2, 16, NULL);
    for (uint64_t g = 0; g < 200; g++) {
        same_seed += hdt_sampler_pos(&a, g) == hdt_sampler_pos(&b, g);
        other_seed += hdt_sampler_pos(&a, g) == hdt_sampler_pos(&c, g);
        other_epoch += hdt_sampler_pos(&a, g) == hdt_sampler_pos(&a, g + a.n_windows);
        in_order += hdt_sampler_pos(&a, g + 1) == hdt_sampler_pos(&a, g) + 16;
    }
    cr_expect_eq(same_seed, 200);
    cr_expect_lt(other_seed, 10);
    cr_expect_lt(other_epoch, 10);
    cr_expect_lt(in_order, 10);
    shard_gone(shard);
}

Test(data, the_smallest_shard_works_and_a_smaller_one_is_refused)
{
    struct hdt_shard *shard = shard_of(9);
    struct hdt_error err = {0};
    struct hdt_sampler sampler;
    int32_t tokens[8], labels[8];

    cr_assert_eq(hdt_sampler_init(&sampler, shard, 1, 8, NULL), HDT_OK);
    cr_expect_eq(sampler.n_windows, 1);
    for (uint64_t g = 0; g < 10; g++) {
        cr_expect_eq(hdt_sampler_read(&sampler, g, 1, tokens, labels, NULL), HDT_OK);
        cr_expect_eq(labels[7], 8);
    }
    cr_expect_eq(hdt_sampler_init(&sampler, shard, 1, 9, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "9 tokens"));
    shard_gone(shard);
}

/* Every sample number up to the largest a job can have lies inside the shard. */
Test(data, positions_stay_inside)
{
    static const int sizes[] = {9, 10, 16, 17, 23, 24, 25, 100, 777};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct hdt_shard *shard = shard_of(sizes[i]);
        struct hdt_sampler sampler;

        hdt_sampler_init(&sampler, shard, 99, 8, NULL);
        for (uint64_t g = 0; g < 500; g++) {
            uint64_t far = g * 0x1234567ull + (g << 51);

            cr_assert_leq(hdt_sampler_pos(&sampler, g) + 8, (uint64_t)sizes[i] - 1);
            cr_assert_leq(hdt_sampler_pos(&sampler, far) + 8, (uint64_t)sizes[i] - 1);
        }
        shard_gone(shard);
    }
}

Test(data, evaluation_predicts_every_token_but_the_first_once)
{
    struct hdt_shard *shard = shard_of(30);
    int32_t tokens[5 * 8], labels[5 * 8];
    int n_labels = 0;

    cr_assert_eq(hdt_sampler_read_eval(shard, 8, 0, 5, tokens, labels, NULL), HDT_OK);
    for (int i = 0; i < 40; i++) {
        if (labels[i] >= 0) {
            cr_expect_eq(labels[i], ++n_labels);
            cr_expect_eq(tokens[i], labels[i] - 1);
        } else {
            cr_expect_geq(i, 29);
        }
    }
    cr_expect_eq(n_labels, 29);
    cr_expect_eq(hdt_sampler_eval_tokens(shard, 8, 5), 29);
    cr_expect_eq(hdt_sampler_eval_tokens(shard, 8, 2), 16);
    shard_gone(shard);
}
