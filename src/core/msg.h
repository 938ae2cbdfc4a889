/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_MSG_H
#define HDT_CORE_MSG_H

/*
 * Control messages: a map, in memory a jansson object, on the wire msgpack behind a HDT_FRAME_MSG
 * header. One envelope for all:
 *
 *   { "t": TYPE, "from": ADDRESS, "to": ADDRESS, "id": N, "re": N, "b": { body } }
 *
 * ADDRESS is "SITE" (its gateway), "SITE/WORKER" or "SITE/@N" (the N-th client connection of that
 * gateway: a running `hdt`). A gateway hands what is not for itself to the named client or to the
 * peer gateway of the named site; it overwrites "from" of what its own clients send. "re" answers
 * the message with that "id" of the same sender. A failed request is answered by type "error" with
 * body {"status": "EINVAL", "msg": ..., "where": ..., "hint": ...}.
 *
 * doc/protocol.md lists types and bodies. Floats are IEEE doubles, exact on the wire; unsigned
 * 64-bit values (digests, instance numbers) travel as 16 hexadecimal digits in a string.
 */
#include "src/base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct hdt_buf;

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_MSG_MAX_DEPTH    24
#define HDT_MSG_MAX_VALUES   (1u << 17) /* numbers, strings, arrays and maps of one message */
#define HDT_PROTOCOL_VERSION 2          /* of both protocols; in every hello */

/* Encode as msgpack, appended to `out`. Integers, reals, strings, booleans, null, arrays, objects;
 * objects keep their order. Never fails: the value was made by us. */
void hdt_msg_encode(const json_t *value, struct hdt_buf *out);

/* Decode foreign bytes: one msgpack value, exactly len bytes, at most HDT_FRAME_MAX_MSG, at most
 * HDT_MSG_MAX_DEPTH levels and HDT_MSG_MAX_VALUES values (of one byte each on the wire, and of
 * sixty in memory), maps with string keys, valid UTF-8, counts bounded by the bytes that are there.
 * New reference in *value. HDT_EPROTO. */
enum hdt_status hdt_msg_decode(const void *bytes, size_t len, json_t **value,
                               struct hdt_error *err);

/* New message; `body` is stolen (may be NULL: {}). `to` may be NULL: the other end itself. */
json_t *hdt_msg_new(const char *type, const char *to, json_t *body);

/* New message that answers `request` (its "from" and "id"); `body` is stolen. */
json_t *hdt_msg_reply(const json_t *request, const char *type, json_t *body);
json_t *hdt_msg_reply_error(const json_t *request, const struct hdt_error *err);

/* Parts of a message; never NULL: "" when missing, and JSON null for a missing body, in which
 * json_object_get finds nothing (borrowed). */
const char *hdt_msg_type(const json_t *msg);
const char *hdt_msg_from(const json_t *msg);
const char *hdt_msg_to(const json_t *msg);
const json_t *hdt_msg_body(const json_t *msg);

/* An error as a JSON body and back ("status", "msg", "where", "hint"). */
json_t *hdt_msg_error_body(const struct hdt_error *err);
enum hdt_status hdt_msg_error_from_body(const json_t *body, struct hdt_error *err);

/* json_unpack of the message's body with an error that names the message type: HDT_EPROTO. */
enum hdt_status hdt_msg_unpack(const json_t *msg, struct hdt_error *err, const char *fmt, ...);

/* u64 <-> 16 hexadecimal digits. hdt_msg_hex_u64 returns 0 for what is not such a string. */
json_t *hdt_msg_u64_hex(uint64_t value);
uint64_t hdt_msg_hex_u64(const json_t *text);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_MSG_H */
