/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/frame.h"

#include <endian.h>
#include <string.h>

/* Field offsets in the header; doc/protocol.md has the same table. */
enum frame_offset {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_KIND = 5,
    AT_CODEC = 6,
    AT_DTYPE = 7,
    AT_JOB = 8,
    AT_EPOCH = 12,
    AT_FLOW = 16,
    AT_CHECK = 20,
    AT_PRIO = 22,
    AT_FLAGS = 23,
    AT_SEQ = 24,
    AT_OFFSET = 32,
    AT_WHOLE = 36,
    AT_LEN = 40,
    AT_FRAME_LEN = 44,
    AT_CODED_LEN = 48,
    AT_RAW_LEN = 52,
    AT_XXH3 = 56
};

HDT_STATIC_ASSERT(AT_XXH3 + 8 == HDT_FRAME_HEADER_LEN, "the header is 64 bytes");
HDT_STATIC_ASSERT(HDT_FRAME_MAX_CHUNK <= HDT_FRAME_MAX_LEN, "a chunk is part of a frame");

/* A codec may make a chunk that does not compress a little longer. */
#define FRAME_CODED_SLACK 4096u

static void put_u16(uint8_t *out, uint16_t value)
{
    value = htole16(value);
    memcpy(out, &value, sizeof(value));
}

static void put_u32(uint8_t *out, uint32_t value)
{
    value = htole32(value);
    memcpy(out, &value, sizeof(value));
}

static void put_u64(uint8_t *out, uint64_t value)
{
    value = htole64(value);
    memcpy(out, &value, sizeof(value));
}

static uint16_t get_u16(const uint8_t *in)
{
    uint16_t value;

    memcpy(&value, in, sizeof(value));
    return le16toh(value);
}

static uint32_t get_u32(const uint8_t *in)
{
    uint32_t value;

    memcpy(&value, in, sizeof(value));
    return le32toh(value);
}

static uint64_t get_u64(const uint8_t *in)
{
    uint64_t value;

    memcpy(&value, in, sizeof(value));
    return le64toh(value);
}

/* Four bits at a time: a table of 16 fits one line of the cache, and a header takes 0.1 us. */
static uint16_t crc_add(uint16_t crc, const uint8_t *bytes, size_t len)
{
    static const uint16_t table[16] = {0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5,
                                       0x60c6, 0x70e7, 0x8108, 0x9129, 0xa14a, 0xb16b,
                                       0xc18c, 0xd1ad, 0xe1ce, 0xf1ef};

    for (size_t i = 0; i < len; i++) {
        crc = (uint16_t)(crc << 4 ^ table[crc >> 12 ^ bytes[i] >> 4]);
        crc = (uint16_t)(crc << 4 ^ table[crc >> 12 ^ (bytes[i] & 15)]);
    }
    return crc;
}

uint16_t hdt_frame_crc(const uint8_t header[HDT_FRAME_HEADER_LEN])
{
    uint16_t crc = crc_add(0xffff, header, AT_CHECK);

    return crc_add(crc, header + AT_CHECK + 2, HDT_FRAME_HEADER_LEN - AT_CHECK - 2);
}

void hdt_frame_pack(const struct hdt_frame *frame, uint8_t out[HDT_FRAME_HEADER_LEN])
{
    put_u32(out + AT_MAGIC, HDT_FRAME_MAGIC);
    out[AT_VERSION] = frame->version;
    out[AT_KIND] = frame->kind;
    out[AT_CODEC] = frame->codec;
    out[AT_DTYPE] = frame->dtype;
    put_u32(out + AT_JOB, frame->job);
    put_u32(out + AT_EPOCH, frame->epoch);
    put_u32(out + AT_FLOW, frame->flow);
    out[AT_PRIO] = frame->prio;
    out[AT_FLAGS] = frame->flags;
    put_u64(out + AT_SEQ, frame->seq);
    put_u64(out + AT_OFFSET, frame->offset);
    if (frame->kind == HDT_FRAME_CHUNK) {
        put_u32(out + AT_WHOLE, frame->whole); /* an offset in a frame has 30 bits */
    }
    put_u32(out + AT_LEN, frame->len);
    put_u32(out + AT_FRAME_LEN, frame->frame_len);
    put_u32(out + AT_CODED_LEN, frame->coded_len);
    put_u32(out + AT_RAW_LEN, frame->raw_len);
    put_u64(out + AT_XXH3, frame->xxh3);
    put_u16(out + AT_CHECK, hdt_frame_crc(out));
}

static void frame_read(const uint8_t *in, struct hdt_frame *frame)
{
    frame->version = in[AT_VERSION];
    frame->kind = in[AT_KIND];
    frame->codec = in[AT_CODEC];
    frame->dtype = in[AT_DTYPE];
    frame->job = get_u32(in + AT_JOB);
    frame->epoch = get_u32(in + AT_EPOCH);
    frame->flow = get_u32(in + AT_FLOW);
    frame->prio = in[AT_PRIO];
    frame->flags = in[AT_FLAGS];
    frame->seq = get_u64(in + AT_SEQ);
    frame->offset = get_u64(in + AT_OFFSET);
    frame->whole = 0;
    if (frame->kind == HDT_FRAME_CHUNK) {
        frame->offset = get_u32(in + AT_OFFSET);
        frame->whole = get_u32(in + AT_WHOLE);
    }
    frame->len = get_u32(in + AT_LEN);
    frame->frame_len = get_u32(in + AT_FRAME_LEN);
    frame->coded_len = get_u32(in + AT_CODED_LEN);
    frame->raw_len = get_u32(in + AT_RAW_LEN);
    frame->xxh3 = get_u64(in + AT_XXH3);
}

static enum hdt_status frame_limit(const struct hdt_frame *frame, const char *field, uint64_t value,
                                   uint64_t limit, struct hdt_error *err)
{
    if (value <= limit) {
        return HDT_OK;
    }
    return hdt_error_set(err, HDT_EPROTO,
                         "cannot accept a %s record: %s is %llu, the limit is %llu",
                         hdt_frame_kind_name(frame->kind), field, (unsigned long long)value,
                         (unsigned long long)limit);
}

/* Chunk boundaries lie on the granule, except the end of the frame. */
static enum hdt_status frame_check_range(const struct hdt_frame *frame, struct hdt_error *err)
{
    uint64_t end;

    HDT_TRY(frame_limit(frame, "len", frame->len, HDT_FRAME_MAX_CHUNK, err));
    HDT_TRY(frame_limit(frame, "offset", frame->offset, frame->frame_len, err));
    end = frame->offset + frame->len;
    HDT_TRY(frame_limit(frame, "offset + len", end, frame->frame_len, err));
    if (frame->offset % HDT_FRAME_GRANULE != 0 ||
        (end % HDT_FRAME_GRANULE != 0 && end != frame->frame_len)) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot accept a CHUNK record: bytes %llu to %llu of %u do not lie on "
                             "multiples of %u",
                             (unsigned long long)frame->offset, (unsigned long long)end,
                             frame->frame_len, HDT_FRAME_GRANULE);
    }
    if (frame->len == 0) {
        return hdt_error_set(err, HDT_EPROTO, "cannot accept a CHUNK record: it is empty");
    }
    return frame_limit(frame, "coded_len", frame->coded_len,
                       (uint64_t)frame->len + FRAME_CODED_SLACK, err);
}

static enum hdt_status frame_check_sizes(const struct hdt_frame *frame, struct hdt_error *err)
{
    HDT_TRY(frame_limit(frame, "frame_len", frame->frame_len, HDT_FRAME_MAX_LEN, err));
    HDT_TRY(frame_limit(frame, "raw_len", frame->raw_len, UINT32_MAX, err));
    switch ((enum hdt_frame_kind)frame->kind) {
    case HDT_FRAME_MSG:
        return frame_limit(frame, "coded_len", frame->coded_len, HDT_FRAME_MAX_MSG, err);
    case HDT_FRAME_CHUNK:
        return frame_check_range(frame, err);
    case HDT_FRAME_PROBE:
        HDT_TRY(frame_limit(frame, "len", frame->len, HDT_FRAME_MAX_PROBE, err));
        if (frame->coded_len != frame->len) {
            return hdt_error_set(err, HDT_EPROTO,
                                 "cannot accept a PROBE record: coded_len is %u, len is %u",
                                 frame->coded_len, frame->len);
        }
        return HDT_OK;
    case HDT_FRAME_DATA:
        HDT_TRY(frame_limit(frame, "len", frame->len, frame->frame_len, err));
        return frame_limit(frame, "coded_len", frame->coded_len, frame->frame_len, err);
    default:
        /* Nothing follows these, so that no size of theirs is ever used as one. */
        HDT_TRY(frame_limit(frame, "len", frame->len, 0, err));
        return frame_limit(frame, "coded_len", frame->coded_len, 0, err);
    }
}

enum hdt_status hdt_frame_unpack(const uint8_t in[HDT_FRAME_HEADER_LEN], struct hdt_frame *frame,
                                 struct hdt_error *err)
{
    struct hdt_frame f;

    if (get_u32(in + AT_MAGIC) != HDT_FRAME_MAGIC) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot accept a record: it begins with %02x %02x %02x %02x, not with "
                             "'HDT1'",
                             in[0], in[1], in[2], in[3]);
    }
    frame_read(in, &f);
    if (f.version != HDT_FRAME_VERSION) {
        hdt_error_set(err, HDT_EVERSION,
                      "cannot accept a record: the other end speaks version %u, this end %d",
                      f.version, HDT_FRAME_VERSION);
        hdt_error_hint(err, "run the same release of HDT at both ends");
        return HDT_EVERSION;
    }
    if (get_u16(in + AT_CHECK) != hdt_frame_crc(in)) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot accept a record: its header was damaged, its check is %04x, "
                             "not %04x",
                             get_u16(in + AT_CHECK), hdt_frame_crc(in));
    }
    if (f.kind == 0 || f.kind >= HDT_FRAME_KIND_COUNT) {
        return hdt_error_set(err, HDT_EPROTO, "cannot accept a record: its kind %u is unknown",
                             f.kind);
    }
    if (f.dtype >= HDT_DTYPE_COUNT) {
        return hdt_error_set(err, HDT_EPROTO, "cannot accept a %s record: its dtype %u is unknown",
                             hdt_frame_kind_name(f.kind), f.dtype);
    }
    if (f.prio >= HDT_PRIO_COUNT) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot accept a %s record: its priority %u is unknown",
                             hdt_frame_kind_name(f.kind), f.prio);
    }
    HDT_TRY(frame_check_sizes(&f, err));
    *frame = f;
    return HDT_OK;
}

const char *hdt_frame_kind_name(enum hdt_frame_kind kind)
{
    static const char *const names[HDT_FRAME_KIND_COUNT] = {
        "?", "MSG", "CHUNK", "ACK", "HAVE", "QUERY", "PING", "PONG", "DATA", "POOL", "PROBE"};

    return (unsigned)kind < HDT_FRAME_KIND_COUNT ? names[kind] : "?";
}

const char *hdt_prio_name(enum hdt_prio prio)
{
    static const char *const names[HDT_PRIO_COUNT] = {"control", "activation", "gradient", "outer",
                                                      "checkpoint"};

    return (unsigned)prio < HDT_PRIO_COUNT ? names[prio] : "?";
}
