/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/buf.h"
#include "src/core/frame.h"
#include "src/core/msg.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static json_t *decode(const char *bytes, size_t len, struct hdt_error *err)
{
    json_t *value = NULL;

    return hdt_msg_decode(bytes, len, &value, err) == HDT_OK ? value : NULL;
}

/* Bytes by hand from the msgpack specification. */
Test(msg, encodes_to_the_golden_bytes)
{
    static const char golden[] = "\x83\xa1t\xa5hello\xa2id\xcd\x01\x2c\xa1"
                                 "b\x93\xc3\xc0\xcb\x3f\xf8\0\0\0\0\0\0";
    json_t *msg = json_pack("{s:s, s:i, s:[b, n, f]}", "t", "hello", "id", 300, "b", 1, 1.5);
    struct hdt_buf out = {0};

    hdt_msg_encode(msg, &out);
    cr_assert_eq(out.len, sizeof(golden) - 1);
    cr_expect_arr_eq(out.data, golden, out.len);
    hdt_buf_release(&out);
    json_decref(msg);
}

Test(msg, decodes_every_type_of_the_format)
{
    /* [1, -1, 200, -200, 70000, -70000, 2^40, -2^40, 0.5f, "a" as str8, str16, str32,
     *  array16 [], array32 [], map16 {}, map32 {}, false] */
    static const char bytes[] = "\xdc\x00\x11\x01\xff\xcc\xc8\xd1\xff\x38\xce\x00\x01\x11\x70"
                                "\xd2\xff\xfe\xee\x90\xcf\x00\x00\x01\x00\x00\x00\x00\x00"
                                "\xd3\xff\xff\xff\x00\x00\x00\x00\x00\xca\x3f\x00\x00\x00"
                                "\xd9\x01\x61\xda\x00\x01\x61\xdb\x00\x00\x00\x01\x61"
                                "\xdc\x00\x00\xdd\x00\x00\x00\x00\xde\x00\x00\xdf\x00\x00\x00\x00"
                                "\xc2";
    json_t *expected = json_loads("[1,-1,200,-200,70000,-70000,1099511627776,-1099511627776,0.5,"
                                  "\"a\",\"a\",\"a\",[],[],{},{},false]",
                                  0, NULL);
    struct hdt_error err = {0};
    json_t *value = decode(bytes, sizeof(bytes) - 1, &err);

    cr_assert(value, "%s", err.msg);
    cr_expect(json_equal(value, expected), "%s", json_dumps(value, JSON_ENCODE_ANY));
    json_decref(value);
    json_decref(expected);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static json_t *random_leaf(uint64_t *state)
{
    switch (next_random(state) % 5) {
    case 0:
        return json_integer((json_int_t)(next_random(state) >> (next_random(state) % 64)));
    case 1:
        return json_integer(-(json_int_t)(next_random(state) >> (1 + next_random(state) % 63)));
    case 2:
        return json_real((double)(int64_t)next_random(state) * 1e-5);
    case 3:
        return json_sprintf("%0*d", (int)(next_random(state) % 300), 7);
    default:
        return next_random(state) % 2 ? json_true() : json_null();
    }
}

Test(msg, what_is_encoded_comes_back)
{
    uint64_t seed = 20240611, state = seed;

    for (int round = 0; round < 200; round++) {
        json_t *value = json_object(), *list = json_array(), *back;
        struct hdt_buf out = {0};
        struct hdt_error err = {0};

        for (uint64_t i = next_random(&state) % 40; i > 0; i--) {
            char key[32];

            snprintf(key, sizeof(key), "k%llu", (unsigned long long)i);
            json_object_set_new(value, key, random_leaf(&state));
            json_array_append_new(list, random_leaf(&state));
        }
        json_object_set_new(value, "list", list);
        hdt_msg_encode(value, &out);
        back = decode(out.data, out.len, &err);
        cr_assert(back, "seed %llu round %d: %s", (unsigned long long)seed, round, err.msg);
        cr_expect(json_equal(value, back), "seed %llu round %d", (unsigned long long)seed, round);
        /* Every shorter piece of it is refused. */
        cr_expect_null(decode(out.data, out.len - 1, &err));
        cr_expect_null(decode(out.data, out.len / 2, &err));
        json_decref(back);
        json_decref(value);
        hdt_buf_release(&out);
    }
}

#define REFUSED(literal, word)                                                                     \
 do {                                                                                              \
  struct hdt_error err_ = {0};                                                                     \
  cr_expect_null(decode("" literal, sizeof(literal) - 1, &err_));                                  \
  cr_expect(strstr(err_.msg, word), "%s", err_.msg);                                               \
  cr_expect_eq(err_.status, HDT_EPROTO);                                                           \
 } while (0)

Test(msg, hostile_bytes_are_refused)
{
    REFUSED("", "ends");
    REFUSED("\xdd\xff\xff\xff\xff", "more items");
    REFUSED("\xdf\x7f\xff\xff\xff", "more items");
    REFUSED("\xdb\xff\xff\xff\xff", "inside a string");
    REFUSED("\xa2\xff\xfe", "UTF-8");
    REFUSED("\x81\x01\x01", "key is no string");
    REFUSED("\x81\x90\x01", "key is no string");
    REFUSED("\x82\xa1k\x01\xa1k\x02", "repeated");
    REFUSED("\x81\xa2k\x00\x01", "zero byte");
    REFUSED("\xc4\x01x", "bin, ext");
    REFUSED("\xc7\x01\x01x", "bin, ext");
    REFUSED("\xc1", "bin, ext");
    REFUSED("\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "2^63");
    REFUSED("\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", "finite");
    REFUSED("\x01\x02", "follow");
}

Test(msg, depth_is_limited)
{
    char bytes[HDT_MSG_MAX_DEPTH + 2];
    struct hdt_error err = {0};
    json_t *value;

    memset(bytes, 0x91, sizeof(bytes));
    bytes[HDT_MSG_MAX_DEPTH] = 0x01;
    value = decode(bytes, HDT_MSG_MAX_DEPTH + 1, &err);
    cr_expect(value, "%s", err.msg);
    json_decref(value);
    bytes[HDT_MSG_MAX_DEPTH] = (char)0x91;
    bytes[HDT_MSG_MAX_DEPTH + 1] = 0x01;
    cr_expect_null(decode(bytes, HDT_MSG_MAX_DEPTH + 2, &err));
    cr_expect(strstr(err.msg, "deep"));
}

Test(msg, a_reply_names_its_request)
{
    json_t *request = hdt_msg_new("status", NULL, NULL), *reply;

    json_object_set_new(request, "from", json_string("site-a/@3"));
    json_object_set_new(request, "id", json_integer(17));
    reply = hdt_msg_reply(request, "status.is", json_pack("{s:i}", "x", 1));
    cr_expect_str_eq(hdt_msg_to(reply), "site-a/@3");
    cr_expect_eq(json_integer_value(json_object_get(reply, "re")), 17);
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(reply), "x")), 1);
    json_decref(request);
    json_decref(reply);
}

Test(msg, an_error_travels_whole)
{
    struct hdt_error err = {0}, back = {0};
    json_t *request = hdt_msg_new("submit", NULL, NULL), *reply;

    hdt_error_set(&err, HDT_EACCES, "cannot submit the job: role worker may not");
    hdt_error_where(&err, "site b");
    hdt_error_hint(&err, "use an operator's certificate");
    reply = hdt_msg_reply_error(request, &err);
    cr_expect_str_eq(hdt_msg_type(reply), "error");
    cr_expect_eq(hdt_msg_error_from_body(hdt_msg_body(reply), &back), HDT_EACCES);
    cr_expect_str_eq(back.msg, err.msg);
    cr_expect_str_eq(back.where, err.where);
    cr_expect_str_eq(back.hint, err.hint);
    json_decref(request);
    json_decref(reply);
}

Test(msg, parts_of_a_bare_message_are_empty)
{
    json_t *msg = json_object();
    struct hdt_error err = {0};
    int x;

    cr_expect_str_eq(hdt_msg_type(msg), "");
    cr_expect_str_eq(hdt_msg_from(msg), "");
    cr_expect_null(json_object_get(hdt_msg_body(msg), "x"));
    cr_expect_eq(hdt_msg_unpack(msg, &err, "{s:i}", "x", &x), HDT_EPROTO);
    json_decref(msg);
}

Test(msg, u64_keeps_all_bits)
{
    json_t *text = hdt_msg_u64_hex(UINT64_C(0xfedcba9876543210));

    cr_expect_str_eq(json_string_value(text), "fedcba9876543210");
    cr_expect_eq(hdt_msg_hex_u64(text), UINT64_C(0xfedcba9876543210));
    json_decref(text);
    text = json_string("xyz");
    cr_expect_eq(hdt_msg_hex_u64(text), 0);
    cr_expect_eq(hdt_msg_hex_u64(NULL), 0);
    json_decref(text);
}
