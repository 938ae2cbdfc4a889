/* SPDX-License-Identifier: Apache-2.0 */
/* First bytes of all kinds; the judge of ClientHellos is OpenSSL, which wrote them. */
#include "config.h"

#include "gateway/admission.h"
#include "gateway/bucket.h"

#include <criterion/criterion.h>
#include <openssl/ssl.h>
#include <string.h>

/* What a client that speaks versions up to `max` says first. */
static size_t client_hello(int max, uint8_t *bytes, size_t cap)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl;
    BIO *out = BIO_new(BIO_s_mem());
    int n;

    SSL_CTX_set_max_proto_version(ctx, max);
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    ssl = SSL_new(ctx);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), out);
    SSL_set_connect_state(ssl);
    SSL_set_tlsext_host_name(ssl, "site-b.example");
    cr_assert_eq(SSL_do_handshake(ssl), -1);
    n = BIO_read(out, bytes, (int)cap);
    cr_assert_gt(n, 100);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    return (size_t)n;
}

Test(admission, a_whole_client_hello_is_good_and_no_part_of_it)
{
    uint8_t bytes[4096];
    const size_t len = client_hello(TLS1_3_VERSION, bytes, sizeof(bytes));
    enum hdt_refused cause;

    for (size_t n = 0; n < len; n++) {
        cr_assert_eq(hdt_greeting_check(bytes, n, true, &cause), HDT_GREETING_MORE, "%zu", n);
        cr_expect_gt(hdt_greeting_len(bytes, n), n);
        cr_expect_leq(hdt_greeting_len(bytes, n), len);
    }
    cr_expect_eq(hdt_greeting_len(bytes, 6), len);
    cr_expect_eq(hdt_greeting_check(bytes, len, true, &cause), HDT_GREETING_GOOD);
    cr_expect_eq(hdt_greeting_check(bytes, sizeof(bytes), true, &cause), HDT_GREETING_GOOD);
    cr_expect_eq(hdt_greeting_check(bytes, len, false, &cause), HDT_GREETING_WRONG);
    cr_expect_eq(cause, HDT_REFUSED_TLS);
}

Test(admission, tls_1_2_is_named)
{
    uint8_t bytes[4096];
    const size_t len = client_hello(TLS1_2_VERSION, bytes, sizeof(bytes));
    enum hdt_refused cause;

    cr_expect_eq(hdt_greeting_check(bytes, len, true, &cause), HDT_GREETING_WRONG);
    cr_expect_eq(cause, HDT_REFUSED_OLD_TLS);
}

/* Lengths inside of it lie: no byte beyond it is read (a sanitizer sees it), and it is not good
 * unless OpenSSL could still find version 1.3 in it. */
Test(admission, damaged_client_hellos_end)
{
    uint8_t bytes[4096], *exact;
    const size_t len = client_hello(TLS1_3_VERSION, bytes, sizeof(bytes));
    enum hdt_refused cause;

    for (size_t at = 5; at < len; at++) {
        for (int value = 0; value < 256; value += 15) {
            exact = malloc(len);
            memcpy(exact, bytes, len);
            exact[at] = (uint8_t)value;
            (void)hdt_greeting_check(exact, len, true, &cause);
            free(exact);
        }
    }
}

Test(admission, other_bytes_are_named)
{
    static const struct {
        const char *bytes;
        size_t len;
        bool is_tls;
        enum hdt_refused cause;
    } cases[] = {
        {"GET / HTTP/1.1\r\n", 16, true, HDT_REFUSED_HTTP},
        {"POST / HTTP/1.1\r\n", 17, false, HDT_REFUSED_HTTP},
        {"SSH-2.0-x\r\n", 11, true, HDT_REFUSED_SSH},
        {"HDT1\x01\x01", 6, true, HDT_REFUSED_PLAIN},
        {"\x16\x03\x01\x01\x00\x01\x00", 7, false, HDT_REFUSED_TLS},
        {"\x16\x03\x01\xff\xff\x01\x00", 7, true, HDT_REFUSED_BYTES}, /* no record is so long */
        {"\x16\x03\x01\x00\x00\x01\x00", 7, true, HDT_REFUSED_BYTES},
        {"\x16\x03\x03\x00\x20\x02\x00", 7, true, HDT_REFUSED_BYTES}, /* a ServerHello */
        {"\x00\x01\x02\x03\x04\x05", 6, true, HDT_REFUSED_BYTES},
        {"nonsense", 8, false, HDT_REFUSED_BYTES},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum hdt_refused cause = HDT_REFUSED_COUNT;
        struct hdt_error err = {0};

        cr_expect_eq(hdt_greeting_check((const uint8_t *)cases[i].bytes, cases[i].len,
                                        cases[i].is_tls, &cause),
                     HDT_GREETING_WRONG, "case %zu", i);
        cr_expect_eq(cause, cases[i].cause, "case %zu: %s", i, hdt_refused_name(cause));
        hdt_refused_error(cause, cases[i].is_tls, &err);
        cr_expect(err.msg[0] != '\0');
    }
}

Test(admission, records_are_good_on_the_unix_socket)
{
    enum hdt_refused cause;

    cr_expect_eq(hdt_greeting_check((const uint8_t *)"HDT", 3, false, &cause), HDT_GREETING_MORE);
    cr_expect_eq(hdt_greeting_check((const uint8_t *)"HDT1", 4, false, &cause), HDT_GREETING_GOOD);
}

Test(admission, a_bucket_gives_its_burst_and_then_its_rate)
{
    struct hdt_bucket bucket = {0};
    int64_t now_us = 1000000;
    int n = 0;

    while (hdt_bucket_take(&bucket, 10, 5, now_us)) {
        n++;
    }
    cr_expect_eq(n, 5);
    for (n = 0; now_us < 11000000; now_us += 10000) {
        n += hdt_bucket_take(&bucket, 10, 5, now_us);
    }
    cr_expect(n >= 99 && n <= 100, "%d in 10 s", n);
    hdt_bucket_give(&bucket);
    cr_expect(hdt_bucket_take(&bucket, 10, 5, now_us));
    now_us += 3600000000;
    for (n = 0; hdt_bucket_take(&bucket, 10, 5, now_us); n++) {
    }
    cr_expect_eq(n, 5);
}
