/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/sync.h"
#include "runtime/wire.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* The bytes of doc/protocol.md, written by hand. */
static const uint8_t golden_up[64 + 16] = {
    'H',  'D',  'S', 'U', 2, 0, 0,    4,    /* magic, version, phase TRAIN, flags BUSY */
    2,    0,    0,   0,   1, 0, 0,    0,    /* rank 2, one item */
    9,    0,    0,   0,   0, 0, 0,    0,    /* step 9 */
    0,    0,    0,   0,   0, 0, 0xf8, 0x3f, /* loss_sum 1.5 */
    0x00, 0x01, 0,   0,   0, 0, 0,    0,    /* 256 tokens */
    0,    0,    0,   0,   0, 0, 0xe0, 0x3f, /* busy 0.5 s */
    0,    0,    0,   0,   0, 0, 0xd0, 0x3f, /* wait 0.25 s */
    0,    0,    0,   0,   0, 0, 0,    0,    /* zero */
    7,    0,    0,   0,   0, 0, 0,    0,    /* tensor 7 */
    0,    0,    0,   0,   0, 0, 0x10, 0x40, /* 4.0 */
};

Test(sync, up_record_has_the_bytes_of_the_protocol)
{
    struct hdt_sync_up up = {.phase = HDT_SYNC_TRAIN,
                             .flags = HDT_SYNC_BUSY,
                             .rank = 2,
                             .n_items = 1,
                             .step = 9,
                             .loss_sum = 1.5,
                             .n_tokens = 256,
                             .busy_s = 0.5,
                             .wait_s = 0.25};
    struct hdt_sync_item item = {7, hdt_wire_f64_bits(4.0)};
    uint8_t bytes[sizeof(golden_up)];
    struct hdt_sync_up back;

    hdt_sync_up_pack(&up, &item, bytes);
    cr_expect_arr_eq(bytes, golden_up, sizeof(golden_up));
    cr_assert_eq(hdt_sync_up_unpack(golden_up, sizeof(golden_up), &back, NULL), HDT_OK);
    cr_expect_eq(back.step, 9);
    cr_expect_eq(back.rank, 2);
    cr_expect_eq(back.loss_sum, 1.5);
    item = hdt_sync_item_get(golden_up, 0);
    cr_expect_eq(item.tensor, 7);
    cr_expect_eq(hdt_wire_bits_f64(item.value), 4.0);
}

Test(sync, foreign_records_are_checked)
{
    uint8_t bytes[sizeof(golden_up)];
    struct hdt_sync_up up;
    struct hdt_sync_down down;

    cr_expect_eq(hdt_sync_up_unpack(golden_up, 10, &up, NULL), HDT_EPROTO);
    cr_expect_eq(hdt_sync_up_unpack(golden_up, 64, &up, NULL), HDT_EPROTO, "one item is missing");
    cr_expect_eq(hdt_sync_down_unpack(golden_up, 64, &down, NULL), HDT_EPROTO);
    memcpy(bytes, golden_up, sizeof(bytes));
    bytes[4] = 1; /* of a worker that compared replicas at the end only */
    cr_expect_eq(hdt_sync_up_unpack(bytes, sizeof(bytes), &up, NULL), HDT_EVERSION);
    memcpy(bytes, golden_up, sizeof(bytes));
    bytes[6] = 9;
    cr_expect_eq(hdt_sync_up_unpack(bytes, sizeof(bytes), &up, NULL), HDT_EPROTO);
    memcpy(bytes, golden_up, sizeof(bytes));
    memset(bytes + 12, 0xff, 4); /* four thousand million items */
    cr_expect_eq(hdt_sync_up_unpack(bytes, sizeof(bytes), &up, NULL), HDT_EPROTO);
}

Test(sync, down_record_comes_back)
{
    struct hdt_sync_down down = {
        HDT_SYNC_EVAL,      HDT_SYNC_STOP | HDT_SYNC_CHECKPOINT, 41, 2.25, 0.1, 0.7,
        0x0123456789abcdefu};
    uint8_t bytes[HDT_SYNC_DOWN_LEN];
    struct hdt_sync_down back;

    hdt_sync_down_pack(&down, bytes);
    cr_assert_eq(hdt_sync_down_unpack(bytes, sizeof(bytes), &back, NULL), HDT_OK);
    cr_expect_eq(back.flags, down.flags);
    cr_expect_eq(back.step, 41);
    cr_expect_eq(back.loss, 2.25);
    cr_expect_eq(back.norm, 0.1);
    cr_expect_eq(back.clip_scale, 0.7);
    cr_expect_eq(back.digest, down.digest);
}

/* Values whose sum depends on the order: whoever told first, the model's order counts. */
Test(sync, norm_is_added_in_model_order)
{
    static const double values[4] = {1e16, 1.0, 1.0, 1.0};
    struct hdt_sync_total total;
    struct hdt_sync_item item;
    double want = 0, norm[2];

    for (int i = 0; i < 4; i++) {
        want += values[i];
    }
    hdt_sync_total_init(&total, 4);
    for (int round = 0; round < 2; round++) {
        hdt_sync_total_clear(&total);
        for (int i = 0; i < 4; i++) {
            item.tensor = (uint32_t)(round ? 3 - i : i);
            item.value = hdt_wire_f64_bits(values[item.tensor]);
            cr_assert_eq(hdt_sync_total_item(&total, &item, NULL), HDT_OK);
        }
        cr_expect_eq(hdt_sync_total_check(&total, 4, NULL), HDT_OK);
        norm[round] = hdt_sync_total_norm(&total, 4);
    }
    cr_expect_eq(norm[0], sqrt(want));
    cr_expect_eq(norm[1], sqrt(want));
    hdt_sync_total_release(&total);
}

Test(sync, tensors_are_told_once_each)
{
    struct hdt_sync_item item = {1, 0}, beyond = {2, 0};
    struct hdt_sync_total total;

    hdt_sync_total_init(&total, 2);
    cr_expect_eq(hdt_sync_total_item(&total, &item, NULL), HDT_OK);
    cr_expect_eq(hdt_sync_total_item(&total, &item, NULL), HDT_EPROTO);
    cr_expect_eq(hdt_sync_total_item(&total, &beyond, NULL), HDT_EPROTO);
    cr_expect_eq(hdt_sync_total_check(&total, 2, NULL), HDT_EPROTO, "tensor 0 is missing");
    hdt_sync_total_release(&total);
}

Test(sync, clipping_scales_down_only)
{
    cr_expect_eq(hdt_sync_clip_scale(0.5, 1.0), 1.0);
    cr_expect_eq(hdt_sync_clip_scale(4.0, 1.0), 0.25);
    cr_expect_eq(hdt_sync_clip_scale(4.0, 0.0), 1.0);
}
