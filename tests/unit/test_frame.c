/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/frame.h"

#include <criterion/criterion.h>
#include <string.h>

/* A chunk whose every field differs; the bytes were packed by Python's struct module:
 * struct.pack('<IBBBBIIIHBBQIIIIIIQ', ...), check by binascii.crc_hqx(all the rest, 0xffff). */
static const struct hdt_frame golden_frame = {
    .version = 1,
    .kind = HDT_FRAME_CHUNK,
    .codec = 3,
    .dtype = HDT_DTYPE_F32,
    .job = 7,
    .epoch = 9,
    .flow = 0x01020304,
    .prio = HDT_PRIO_ACTIVATION,
    .flags = 0x80,
    .seq = 0x1122334455667788,
    .offset = 8192,
    .whole = 0x0a0b0c0d,
    .len = 4096,
    .frame_len = 12345,
    .coded_len = 4000,
    .raw_len = 24690,
    .xxh3 = 0xdeadbeefcafef00d,
};

static const uint8_t golden_bytes[HDT_FRAME_HEADER_LEN] = {
    0x48, 0x44, 0x54, 0x31, 0x01, 0x02, 0x03, 0x01, 0x07, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00,
    0x04, 0x03, 0x02, 0x01, 0x2a, 0x3f, 0x01, 0x80, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
    0x00, 0x20, 0x00, 0x00, 0x0d, 0x0c, 0x0b, 0x0a, 0x00, 0x10, 0x00, 0x00, 0x39, 0x30, 0x00, 0x00,
    0xa0, 0x0f, 0x00, 0x00, 0x72, 0x60, 0x00, 0x00, 0x0d, 0xf0, 0xfe, 0xca, 0xef, 0xbe, 0xad, 0xde};

static enum hdt_status unpack(const struct hdt_frame *frame, struct hdt_error *err)
{
    uint8_t bytes[HDT_FRAME_HEADER_LEN];
    struct hdt_frame out;

    hdt_frame_pack(frame, bytes);
    return hdt_frame_unpack(bytes, &out, err);
}

Test(frame, packs_to_the_golden_bytes)
{
    uint8_t bytes[HDT_FRAME_HEADER_LEN];

    hdt_frame_pack(&golden_frame, bytes);
    cr_expect_arr_eq(bytes, golden_bytes, sizeof(bytes));
}

Test(frame, unpacks_the_golden_bytes)
{
    struct hdt_frame frame;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_frame_unpack(golden_bytes, &frame, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(frame.flow, golden_frame.flow);
    cr_expect_eq(frame.whole, golden_frame.whole);
    cr_expect_eq(frame.seq, golden_frame.seq);
    cr_expect_eq(frame.offset, golden_frame.offset);
    cr_expect_eq(frame.coded_len, golden_frame.coded_len);
    cr_expect_eq(frame.raw_len, golden_frame.raw_len);
    cr_expect_eq(frame.xxh3, golden_frame.xxh3);
    cr_expect_eq(frame.flags, golden_frame.flags);
}

Test(frame, another_protocol_and_another_version_are_told_apart)
{
    uint8_t bytes[HDT_FRAME_HEADER_LEN];
    struct hdt_frame frame;
    struct hdt_error err = {0};

    memcpy(bytes, golden_bytes, sizeof(bytes));
    memcpy(bytes, "GET ", 4);
    cr_expect_eq(hdt_frame_unpack(bytes, &frame, &err), HDT_EPROTO);
    memcpy(bytes, golden_bytes, sizeof(bytes));
    bytes[4] = 2;
    cr_expect_eq(hdt_frame_unpack(bytes, &frame, &err), HDT_EVERSION);
    cr_expect(strstr(err.msg, "version 2"), "%s", err.msg);
}

#define REFUSED(field, value)                                                                      \
 do {                                                                                              \
  struct hdt_frame f_ = golden_frame;                                                              \
  struct hdt_error err_ = {0};                                                                     \
  f_.field = (value);                                                                              \
  cr_expect_eq(unpack(&f_, &err_), HDT_EPROTO, #field " = " #value " must be refused");            \
  cr_expect(err_.msg[0] != '\0');                                                                  \
 } while (0)

Test(frame, fields_out_of_bounds_are_refused)
{
    REFUSED(kind, 0);
    REFUSED(kind, HDT_FRAME_KIND_COUNT);
    REFUSED(dtype, HDT_DTYPE_COUNT);
    REFUSED(prio, HDT_PRIO_COUNT);
    REFUSED(frame_len, HDT_FRAME_MAX_LEN + 1);
    REFUSED(len, HDT_FRAME_MAX_CHUNK + 1);
    REFUSED(len, 0);
    REFUSED(len, 4095);
    REFUSED(offset, 8191);
    REFUSED(offset, UINT64_MAX);
    REFUSED(offset, UINT64_MAX - 4095);
    REFUSED(frame_len, 12287);
    REFUSED(coded_len, 4096 + 4097);
    REFUSED(coded_len, UINT32_MAX);
}

Test(frame, the_end_of_a_frame_may_leave_the_granule)
{
    struct hdt_frame frame = golden_frame;
    struct hdt_error err = {0};

    frame.len = 12345 - 8192;
    cr_expect_eq(unpack(&frame, &err), HDT_OK, "%s", err.msg);
}

Test(frame, kinds_without_payload_announce_none)
{
    static const uint8_t kinds[] = {HDT_FRAME_ACK,  HDT_FRAME_HAVE, HDT_FRAME_QUERY,
                                    HDT_FRAME_PING, HDT_FRAME_PONG, HDT_FRAME_POOL};

    for (size_t i = 0; i < sizeof(kinds); i++) {
        struct hdt_frame frame = {.version = 1, .kind = kinds[i], .seq = 5, .offset = 9};

        cr_expect_eq(unpack(&frame, NULL), HDT_OK, "kind %d", kinds[i]);
        frame.coded_len = 1;
        cr_expect_eq(unpack(&frame, NULL), HDT_EPROTO, "kind %d", kinds[i]);
    }
}

Test(frame, messages_have_a_limit)
{
    struct hdt_frame frame = {.version = 1, .kind = HDT_FRAME_MSG, .coded_len = HDT_FRAME_MAX_MSG};

    cr_expect_eq(unpack(&frame, NULL), HDT_OK);
    frame.coded_len++;
    cr_expect_eq(unpack(&frame, NULL), HDT_EPROTO);
}

/* A header of every kind, with plausible fields. */
static struct hdt_frame frame_of(int kind)
{
    struct hdt_frame frame = {.version = 1,
                              .kind = (uint8_t)kind,
                              .job = 0x12300007,
                              .epoch = 3,
                              .flow = 5,
                              .prio = HDT_PRIO_ACTIVATION,
                              .seq = 1000,
                              .offset = 8192};

    switch (kind) {
    case HDT_FRAME_MSG:
        frame.coded_len = 300;
        frame.xxh3 = 0x0123456789abcdef;
        break;
    case HDT_FRAME_CHUNK:
        frame = golden_frame;
        break;
    case HDT_FRAME_DATA:
        frame.len = frame.frame_len = 65536;
        frame.raw_len = 131072;
        frame.xxh3 = 0x0123456789abcdef;
        break;
    case HDT_FRAME_PROBE:
        frame.len = frame.coded_len = 4096;
        break;
    default:
        break;
    }
    return frame;
}

/* Not one of them is taken for a valid record, whatever field it hits: sequence, epoch, flow, ...
 */
Test(frame, one_and_two_flipped_bits_of_a_header_are_found)
{
    uint8_t bytes[HDT_FRAME_HEADER_LEN];
    struct hdt_frame frame;
    struct hdt_error err;

    for (int kind = 1; kind < HDT_FRAME_KIND_COUNT; kind++) {
        frame = frame_of(kind);
        hdt_frame_pack(&frame, bytes);
        cr_assert_eq(hdt_frame_unpack(bytes, &frame, &err), HDT_OK, "%s", err.msg);
        for (unsigned i = 0; i < 8 * sizeof(bytes); i++) {
            bytes[i / 8] ^= (uint8_t)(1u << i % 8);
            cr_expect_neq(hdt_frame_unpack(bytes, &frame, NULL), HDT_OK, "kind %d, bit %u", kind,
                          i);
            for (unsigned j = i + 1; j < 8 * sizeof(bytes); j++) {
                bytes[j / 8] ^= (uint8_t)(1u << j % 8);
                if (hdt_frame_unpack(bytes, &frame, NULL) == HDT_OK) {
                    cr_expect_fail("kind %d, bits %u and %u", kind, i, j);
                }
                bytes[j / 8] ^= (uint8_t)(1u << j % 8);
            }
            bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        }
    }
}
