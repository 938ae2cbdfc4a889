/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_FRAME_H
#define HDT_CORE_FRAME_H

/*
 * The record header that stands in front of everything HDT sends: between gateways (over TLS) and
 * between a worker or an operator and its gateway (Unix socket or TLS). doc/protocol.md is the
 * specification; golden tests pin the bytes. 64 bytes, little-endian:
 *
 *    0 u32 magic 'HDT1'    4 u8 version  5 u8 kind   6 u8 codec   7 u8 dtype
 *    8 u32 job            12 u32 epoch  16 u32 flow  20 u16 check  22 u8 prio  23 u8 flags
 *   24 u64 seq            32 u64 offset (CHUNK: u32 offset, u32 whole)
 *   40 u32 len            44 u32 frame_len          48 u32 coded_len          52 u32 raw_len
 *   56 u64 xxh3
 *
 * `check` is a CRC-16 of the other 62 bytes: TLS protects a record on a wire, this one between its
 * maker's memory and its taker's. One, two or three flipped bits, and all bursts of up to 16, are
 * found for certain.
 *
 * A *frame* is one tensor of a flow; `seq` counts the frames of a flow in an epoch from 0. A
 * *chunk* is the byte range [offset, offset + len) of the plaintext frame; chunk boundaries are
 * multiples of HDT_FRAME_GRANULE except the end of the frame, so that chunk size may change between
 * a send and its resend.
 */
#include "src/base/error.h"
#include "src/base/tensor.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_FRAME_MAGIC      0x31544448u /* "HDT1" as bytes */
#define HDT_FRAME_VERSION    1
#define HDT_FRAME_HEADER_LEN 64
#define HDT_FRAME_GRANULE    4096u
#define HDT_FRAME_MAX_LEN    (1u << 30)  /* of one plaintext frame */
#define HDT_FRAME_MAX_CHUNK  (16u << 20) /* of one chunk */
#define HDT_FRAME_MAX_MSG    (8u << 20)  /* of one control message */
#define HDT_FRAME_MAX_PROBE  (64u << 10) /* of one piece of filler */

/* Wire numbers: never renumber. */
enum hdt_frame_kind {
    HDT_FRAME_MSG = 1,   /* control message: coded_len bytes of msgpack follow (src/core/msg.h) */
    HDT_FRAME_CHUNK = 2, /* gateway to gateway: coded_len bytes follow */
    HDT_FRAME_ACK = 3,   /* receiver's state: seq = all before it are taken, offset = credit: frames
                            before that number may be sent; nothing follows */
    HDT_FRAME_HAVE = 4,  /* receiving gateway holds frame seq whole; nothing follows */
    HDT_FRAME_QUERY = 5, /* asks for ACK (and HAVEs) of the flow; nothing follows */
    HDT_FRAME_PING = 6,  /* seq and offset come back in a PONG: sequence and sender's clock (us) */
    HDT_FRAME_PONG = 7,
    HDT_FRAME_DATA = 8, /* worker <-> gateway: a whole frame. Shared memory link: nothing follows
                           and offset is the place in the pool; else frame_len bytes follow */
    HDT_FRAME_POOL =
        9, /* worker -> gateway on a shared memory link: the descriptor of the pool rides
              along (SCM_RIGHTS); offset = its size in bytes, seq = pool number */
    HDT_FRAME_PROBE =
        10, /* gateway to gateway: len bytes of filler follow; counted, then dropped */
    HDT_FRAME_KIND_COUNT
};

/* Flags. Those of DATA are free for the ends and travel with the frame (in its chunks).
 *
 * STATE, of an ACK between gateways: the whole state of a destination end. `raw_len` is its
 * incarnation (another number: it was opened anew and holds nothing but what follows), bit i of
 * `xxh3` says that frame seq + i is held whole. Sent when the end opens, when a session comes up
 * and in answer to a QUERY; the source end sends nothing before it has one of this session.
 * STATE, of an ACK from a gateway to the client of a source end: the same two numbers. The first
 * one after "flow.open" says where to begin: every frame from seq on that the client keeps is
 * handed over again, oldest first; later ones only free frames and extend credit.
 *
 * AGAIN, of a QUERY between gateways: not a question; bytes [offset, offset + frame_len) of frame
 * seq were lost on their way (a stream broke, a checksum failed) and are to be sent again. */
#define HDT_FRAME_FLAG_STATE 1u
#define HDT_FRAME_FLAG_AGAIN 1u

/* Priority classes, most urgent first (wire numbers). */
enum hdt_prio {
    HDT_PRIO_CONTROL = 0,
    HDT_PRIO_ACTIVATION = 1, /* activations, their gradients, tokens, labels: the critical path */
    HDT_PRIO_GRADIENT = 2,
    HDT_PRIO_OUTER = 3,
    HDT_PRIO_CHECKPOINT = 4,
    HDT_PRIO_COUNT
};

/* The header in memory. */
struct hdt_frame {
    uint8_t version, kind, codec, dtype; /* codec: gateway codec number of a chunk */
    uint32_t job, epoch, flow;
    uint8_t prio, flags;
    uint64_t seq, offset;
    uint32_t whole;     /* CHUNK: low half of the XXH3-64 of its frame's plaintext, as the sending
                           worker took it; 0: not known */
    uint32_t len;       /* plaintext bytes of this chunk */
    uint32_t frame_len; /* plaintext bytes of the whole frame */
    uint32_t coded_len; /* bytes that follow this header */
    uint32_t raw_len;   /* bytes of the tensor before the worker's codec, see protocol.md */
    uint64_t xxh3;      /* XXH3-64 of the chunk's plaintext (CHUNK), of the payload (MSG; 0: not
                           known), of the frame (DATA; 0: not known; to a destination its low half
                           only) */
};

/* Write the 64 bytes. */
void hdt_frame_pack(const struct hdt_frame *frame, uint8_t out[HDT_FRAME_HEADER_LEN]);

/* CRC-16 (polynomial 0x1021, from 0xffff, not reflected) of a header without its bytes 20 and 21.
 */
uint16_t hdt_frame_crc(const uint8_t header[HDT_FRAME_HEADER_LEN]);

/* Read and check 64 foreign bytes: magic, version, check, known kind, dtype and priority, every
 * size against its limit and against each other (offset + len <= frame_len, granule). After HDT_OK
 * all sizes may be used in arithmetic without overflow. HDT_EVERSION, HDT_EPROTO (with the field
 * and its value). Flows and codecs are checked by those who know them. */
enum hdt_status hdt_frame_unpack(const uint8_t in[HDT_FRAME_HEADER_LEN], struct hdt_frame *frame,
                                 struct hdt_error *err);

const char *hdt_frame_kind_name(enum hdt_frame_kind kind);
const char *hdt_prio_name(enum hdt_prio prio);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_FRAME_H */
