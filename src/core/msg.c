/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * msgpack <-> jansson without recursion.
 *
 * Encoding and decoding walk the tree with a stack of HDT_MSG_MAX_DEPTH levels. The decoder reads
 * the msgpack format itself, because msgpack-c's unpacker builds a tree of its own whose size the
 * sender decides: an array header of five bytes may announce 2^32 items. Here no count is believed
 * beyond the bytes that are there, and what is not JSON (bin, ext, integers above 2^63) is refused.
 */
#include "src/base/buf.h"
#include "src/core/frame.h"
#include "src/core/msg.h"

#include <endian.h>
#include <inttypes.h>
#include <msgpack/pack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- encoding ---- */

static int pack_write(void *data, const char *bytes, size_t len)
{
    hdt_buf_append(data, bytes, len);
    return 0;
}

static void pack_text(msgpack_packer *packer, const char *text, size_t len)
{
    msgpack_pack_str(packer, len);
    msgpack_pack_str_body(packer, text, len);
}

/* Pack a leaf, or the head of an array or object. */
static void pack_head(msgpack_packer *packer, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        msgpack_pack_map(packer, json_object_size(value));
        break;
    case JSON_ARRAY:
        msgpack_pack_array(packer, json_array_size(value));
        break;
    case JSON_STRING:
        pack_text(packer, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        msgpack_pack_int64(packer, json_integer_value(value));
        break;
    case JSON_REAL:
        msgpack_pack_double(packer, json_real_value(value));
        break;
    case JSON_TRUE:
        msgpack_pack_true(packer);
        break;
    case JSON_FALSE:
        msgpack_pack_false(packer);
        break;
    case JSON_NULL:
        msgpack_pack_nil(packer);
        break;
    }
}

struct pack_level {
    json_t *value;
    void *iter;   /* of an object */
    size_t index; /* of an array */
};

/* Next child of the level, its key already packed; NULL at the end. */
static json_t *pack_next(msgpack_packer *packer, struct pack_level *level)
{
    json_t *child;
    const char *key;

    if (json_is_array(level->value)) {
        return json_array_get(level->value, level->index++);
    }
    if (!level->iter) {
        return NULL;
    }
    key = json_object_iter_key(level->iter);
    child = json_object_iter_value(level->iter);
    pack_text(packer, key, strlen(key));
    level->iter = json_object_iter_next(level->value, level->iter);
    return child;
}

void hdt_msg_encode(const json_t *value, struct hdt_buf *out)
{
    struct pack_level stack[HDT_MSG_MAX_DEPTH];
    size_t depth = 0;
    msgpack_packer packer;
    json_t *v = (json_t *)(uintptr_t)value; /* jansson's iterators take no const */

    msgpack_packer_init(&packer, out, pack_write);
    for (;;) {
        pack_head(&packer, v);
        if (json_is_object(v) || json_is_array(v)) {
            HDT_ASSERT(depth < HDT_MSG_MAX_DEPTH);
            stack[depth].value = v;
            stack[depth].iter = json_is_object(v) ? json_object_iter(v) : NULL;
            stack[depth].index = 0;
            depth++;
        }
        v = NULL;
        while (depth > 0 && !(v = pack_next(&packer, &stack[depth - 1]))) {
            depth--;
        }
        if (!v) {
            return;
        }
    }
}

/* ---- decoding ---- */

struct unpack {
    const uint8_t *p, *end;
    uint32_t n_values;
    struct hdt_error *err;
};

/* What one head byte announces. */
struct unpack_item {
    enum { ITEM_LEAF, ITEM_ARRAY, ITEM_MAP } kind;
    json_t *leaf;   /* LEAF */
    uint32_t count; /* of children; of pairs in a map */
};

static size_t unpack_left(const struct unpack *u)
{
    return (size_t)(u->end - u->p);
}

static enum hdt_status unpack_fail(const struct unpack *u, const char *why)
{
    return hdt_error_set(u->err, HDT_EPROTO,
                         "cannot decode a message: %s, %zu bytes before its end", why,
                         unpack_left(u));
}

/* Big-endian unsigned of 1, 2, 4 or 8 bytes. */
static enum hdt_status unpack_uint(struct unpack *u, size_t size, uint64_t *value)
{
    uint64_t v = 0;

    if (unpack_left(u) < size) {
        return unpack_fail(u, "it ends inside a number");
    }
    for (size_t i = 0; i < size; i++) {
        v = v << 8 | *u->p++;
    }
    *value = v;
    return HDT_OK;
}

static int64_t sign_extend(uint64_t value, size_t size)
{
    unsigned shift = (unsigned)(64 - 8 * size);

    return (int64_t)(value << shift) >> shift;
}

static enum hdt_status unpack_str(struct unpack *u, uint64_t len, json_t **value)
{
    if (unpack_left(u) < len) {
        return unpack_fail(u, "it ends inside a string");
    }
    *value = json_stringn((const char *)u->p, (size_t)len);
    if (!*value) {
        return unpack_fail(u, "a string is not UTF-8");
    }
    u->p += len;
    return HDT_OK;
}

static enum hdt_status unpack_real(struct unpack *u, size_t size, json_t **value)
{
    uint64_t bits = 0;
    uint32_t bits32;
    float f;
    double d;

    HDT_TRY(unpack_uint(u, size, &bits));
    if (size == 4) {
        bits32 = (uint32_t)bits;
        memcpy(&f, &bits32, sizeof(f));
        d = (double)f;
    } else {
        memcpy(&d, &bits, sizeof(d));
    }
    *value = json_real(d);
    return *value ? HDT_OK : unpack_fail(u, "a number is not finite");
}

static enum hdt_status unpack_int(struct unpack *u, size_t size, bool is_signed, json_t **value)
{
    uint64_t v = 0;

    HDT_TRY(unpack_uint(u, size, &v));
    if (!is_signed && v > INT64_MAX) {
        return unpack_fail(u, "an integer is above 2^63");
    }
    *value = json_integer(is_signed ? sign_extend(v, size) : (int64_t)v);
    return HDT_OK;
}

/* Heads of 0xc0..0xdf, all but the fix forms. */
static enum hdt_status unpack_typed(struct unpack *u, uint8_t head, struct unpack_item *item)
{
    uint64_t n = 0;

    switch (head) {
    case 0xc0:
        item->leaf = json_null();
        return HDT_OK;
    case 0xc2:
    case 0xc3:
        item->leaf = json_boolean(head == 0xc3);
        return HDT_OK;
    case 0xca:
    case 0xcb:
        return unpack_real(u, head == 0xca ? 4 : 8, &item->leaf);
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
        return unpack_int(u, (size_t)1 << (head - 0xcc), false, &item->leaf);
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
        return unpack_int(u, (size_t)1 << (head - 0xd0), true, &item->leaf);
    case 0xd9:
    case 0xda:
    case 0xdb:
        HDT_TRY(unpack_uint(u, (size_t)1 << (head - 0xd9), &n));
        return unpack_str(u, n, &item->leaf);
    case 0xdc:
    case 0xdd:
        item->kind = ITEM_ARRAY;
        HDT_TRY(unpack_uint(u, head == 0xdc ? 2 : 4, &n));
        item->count = (uint32_t)n;
        return HDT_OK;
    case 0xde:
    case 0xdf:
        item->kind = ITEM_MAP;
        HDT_TRY(unpack_uint(u, head == 0xde ? 2 : 4, &n));
        item->count = (uint32_t)n;
        return HDT_OK;
    default:
        return unpack_fail(u, "it holds a type that messages do not have (bin, ext)");
    }
}

static enum hdt_status unpack_head(struct unpack *u, struct unpack_item *item)
{
    uint8_t head;

    *item = (struct unpack_item){.kind = ITEM_LEAF};
    if (++u->n_values > HDT_MSG_MAX_VALUES) {
        return unpack_fail(u, "it has too many values");
    }
    if (u->p == u->end) {
        return unpack_fail(u, "it ends where a value should stand");
    }
    head = *u->p++;
    if (head <= 0x7f || head >= 0xe0) {
        item->leaf = json_integer((int8_t)head);
        return HDT_OK;
    }
    if (head <= 0x8f) {
        item->kind = ITEM_MAP;
        item->count = head & 0x0f;
    } else if (head <= 0x9f) {
        item->kind = ITEM_ARRAY;
        item->count = head & 0x0f;
    } else if (head <= 0xbf) {
        return unpack_str(u, head & 0x1f, &item->leaf);
    } else {
        HDT_TRY(unpack_typed(u, head, item));
    }
    /* Each child takes at least one byte, each pair two. */
    if (item->kind != ITEM_LEAF &&
        (uint64_t)item->count * (item->kind == ITEM_MAP ? 2 : 1) > unpack_left(u)) {
        return unpack_fail(u, "it announces more items than it has bytes");
    }
    return HDT_OK;
}

struct unpack_level {
    json_t *value; /* owned by its parent, the first one by the decoder */
    uint32_t left;
};

/* Put a child into the container; a map reads its key first, so the key is given. */
static enum hdt_status unpack_attach(struct unpack *u, json_t *parent, json_t *key, json_t *child)
{
    if (json_is_array(parent)) {
        json_array_append_new(parent, child);
        return HDT_OK;
    }
    if (memchr(json_string_value(key), '\0', json_string_length(key)) ||
        json_object_get(parent, json_string_value(key))) {
        json_decref(child);
        return unpack_fail(u, "a key is repeated or holds a zero byte");
    }
    json_object_set_new(parent, json_string_value(key), child);
    return HDT_OK;
}

static enum hdt_status unpack_key(struct unpack *u, json_t **key)
{
    struct unpack_item item;

    HDT_TRY(unpack_head(u, &item));
    if (item.kind != ITEM_LEAF || !json_is_string(item.leaf)) {
        json_decref(item.leaf);
        return unpack_fail(u, "a key is no string");
    }
    *key = item.leaf;
    return HDT_OK;
}

/* Read one value and put it into `parent` (NULL: it is the root, to *root). *child is borrowed. */
static enum hdt_status unpack_child(struct unpack *u, json_t *parent, json_t **child,
                                    uint32_t *count)
{
    struct unpack_item item;
    json_t *key = NULL;
    enum hdt_status status;

    if (parent && json_is_object(parent)) {
        HDT_TRY(unpack_key(u, &key));
    }
    status = unpack_head(u, &item);
    if (status == HDT_OK) {
        *child = item.kind == ITEM_LEAF    ? item.leaf
                 : item.kind == ITEM_ARRAY ? json_array()
                                           : json_object();
        *count = item.count;
        status = parent ? unpack_attach(u, parent, key, *child) : HDT_OK;
    }
    json_decref(key);
    return status;
}

static enum hdt_status unpack_tree(struct unpack *u, json_t **root)
{
    struct unpack_level stack[HDT_MSG_MAX_DEPTH];
    size_t depth = 0;
    json_t *child;
    uint32_t count = 0;

    HDT_TRY(unpack_child(u, NULL, root, &count));
    child = *root;
    for (;;) {
        if (json_is_object(child) || json_is_array(child)) {
            if (depth == HDT_MSG_MAX_DEPTH) {
                return unpack_fail(u, "it is nested too deep");
            }
            stack[depth++] = (struct unpack_level){child, count};
        }
        while (depth > 0 && stack[depth - 1].left == 0) {
            depth--;
        }
        if (depth == 0) {
            return HDT_OK;
        }
        stack[depth - 1].left--;
        HDT_TRY(unpack_child(u, stack[depth - 1].value, &child, &count));
    }
}

enum hdt_status hdt_msg_decode(const void *bytes, size_t len, json_t **value, struct hdt_error *err)
{
    struct unpack u = {bytes, (const uint8_t *)bytes + len, 0, err};
    json_t *root = NULL;
    enum hdt_status status;

    if (len > HDT_FRAME_MAX_MSG) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot decode a message: %zu bytes are above the limit of %u", len,
                             HDT_FRAME_MAX_MSG);
    }
    status = unpack_tree(&u, &root);
    if (status == HDT_OK && u.p != u.end) {
        status = unpack_fail(&u, "bytes follow its value");
    }
    if (status != HDT_OK) {
        json_decref(root);
        return status;
    }
    *value = root;
    return HDT_OK;
}

/* ---- envelope ---- */

json_t *hdt_msg_new(const char *type, const char *to, json_t *body)
{
    json_t *msg = json_object();

    json_object_set_new(msg, "t", json_string(type));
    if (to) {
        json_object_set_new(msg, "to", json_string(to));
    }
    json_object_set_new(msg, "b", body ? body : json_object());
    return msg;
}

json_t *hdt_msg_reply(const json_t *request, const char *type, json_t *body)
{
    json_t *id = json_object_get(request, "id");
    const char *from = hdt_msg_from(request);
    json_t *msg = hdt_msg_new(type, from[0] ? from : NULL, body);

    if (id) {
        json_object_set(msg, "re", id);
    }
    return msg;
}

json_t *hdt_msg_reply_error(const json_t *request, const struct hdt_error *err)
{
    return hdt_msg_reply(request, "error", hdt_msg_error_body(err));
}

static const char *msg_text(const json_t *msg, const char *key)
{
    const char *text = json_string_value(json_object_get(msg, key));

    return text ? text : "";
}

const char *hdt_msg_type(const json_t *msg)
{
    return msg_text(msg, "t");
}

const char *hdt_msg_from(const json_t *msg)
{
    return msg_text(msg, "from");
}

const char *hdt_msg_to(const json_t *msg)
{
    return msg_text(msg, "to");
}

const json_t *hdt_msg_body(const json_t *msg)
{
    const json_t *body = json_object_get(msg, "b");

    /* json_null() is a constant of jansson on which every json_object_get gives NULL. */
    return json_is_object(body) ? body : json_null();
}

json_t *hdt_msg_error_body(const struct hdt_error *err)
{
    json_t *body = json_object();

    json_object_set_new(body, "status", json_string(hdt_status_name(err->status)));
    json_object_set_new(body, "msg", json_string(err->msg));
    json_object_set_new(body, "where", json_string(err->where));
    json_object_set_new(body, "hint", json_string(err->hint));
    return body;
}

static enum hdt_status status_by_name(const char *name)
{
    for (int i = HDT_EJOB; i < 0; i++) {
        if (strcmp(name, hdt_status_name((enum hdt_status)i)) == 0) {
            return (enum hdt_status)i;
        }
    }
    return HDT_EPROTO; /* a newer or foreign end: still an error */
}

enum hdt_status hdt_msg_error_from_body(const json_t *body, struct hdt_error *err)
{
    enum hdt_status status = status_by_name(msg_text(body, "status"));
    const char *msg = msg_text(body, "msg");

    hdt_error_set(err, status, "%s", msg[0] ? msg : "the other end sent an error without a text");
    hdt_error_where(err, "%s", msg_text(body, "where"));
    hdt_error_hint(err, "%s", msg_text(body, "hint"));
    return status;
}

enum hdt_status hdt_msg_unpack(const json_t *msg, struct hdt_error *err, const char *fmt, ...)
{
    json_error_t json_err;
    va_list ap;
    int rc;

    va_start(ap, fmt);
    rc = json_vunpack_ex((json_t *)(uintptr_t)hdt_msg_body(msg), &json_err, 0, fmt, ap);
    va_end(ap);
    if (rc == 0) {
        return HDT_OK;
    }
    return hdt_error_set(err, HDT_EPROTO, "cannot read message '%s': %s", hdt_msg_type(msg),
                         json_err.text);
}

json_t *hdt_msg_u64_hex(uint64_t value)
{
    return json_sprintf("%016" PRIx64, value);
}

uint64_t hdt_msg_hex_u64(const json_t *text)
{
    const char *s = json_string_value(text);
    uint64_t value = 0;

    if (!s || strlen(s) != 16 || strspn(s, "0123456789abcdefABCDEF") != 16) {
        return 0;
    }
    value = strtoull(s, NULL, 16);
    return value;
}
