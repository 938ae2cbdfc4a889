/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/admission.h"
#include "src/net/tls.h"

#include <string.h>

/* What needs no socket: tokens, and the first bytes of a caller. They are looked at before OpenSSL
 * is asked, because a handshake object costs more than all that a scanner ever sends. */

const char *hdt_refused_name(enum hdt_refused cause)
{
    static const char *const names[HDT_REFUSED_COUNT] = {
        [HDT_REFUSED_CROWDED] = "crowded",
        [HDT_REFUSED_SLOW] = "slow",
        [HDT_REFUSED_GONE] = "gone",
        [HDT_REFUSED_HTTP] = "http",
        [HDT_REFUSED_SSH] = "ssh",
        [HDT_REFUSED_PLAIN] = "plain",
        [HDT_REFUSED_TLS] = "tls",
        [HDT_REFUSED_OLD_TLS] = "old_tls",
        [HDT_REFUSED_BYTES] = "bytes",
        [HDT_REFUSED_CERTIFICATE] = "certificate",
        [HDT_REFUSED_HANDSHAKE] = "handshake",
        [HDT_REFUSED_HELLO] = "hello",
    };

    return names[cause];
}

const char *hdt_misdeed_name(enum hdt_misdeed misdeed)
{
    static const char *const names[HDT_MISDEED_COUNT] = {
        [HDT_MISDEED_FOREIGN] = "foreign",
        [HDT_MISDEED_BREACH] = "breach",
        [HDT_MISDEED_FLOOD] = "flood",
    };

    return names[misdeed];
}

void hdt_refused_error(enum hdt_refused cause, bool is_tls, struct hdt_error *err)
{
    switch (cause) {
    case HDT_REFUSED_CROWDED:
        hdt_error_set(err, HDT_ENOMEM, "dropped: too many others have not said who they are");
        break;
    case HDT_REFUSED_SLOW:
        hdt_error_set(err, HDT_ETIMEDOUT, "no whole greeting in %d s",
                      (int)(HDT_ADMIT_CALLER_US / HDT_US_PER_S));
        break;
    case HDT_REFUSED_GONE:
        hdt_error_set(err, HDT_ELINK, "connection closed by the other end before a greeting");
        break;
    case HDT_REFUSED_HTTP:
        hdt_error_set(err, HDT_EPROTO, "plain HTTP on %s", is_tls ? "the TLS port" : "the socket");
        hdt_error_hint(err, "/status and /metrics are on http.listen");
        break;
    case HDT_REFUSED_SSH:
        hdt_error_set(err, HDT_EPROTO, "SSH on %s", is_tls ? "the TLS port" : "the socket");
        break;
    case HDT_REFUSED_PLAIN:
        hdt_error_set(err, HDT_EPROTO, "records of HDT without TLS on the TLS port");
        hdt_error_hint(err, "write the address as tls:HOST:PORT");
        break;
    case HDT_REFUSED_TLS:
        hdt_error_set(err, HDT_EPROTO, "TLS on the Unix socket");
        hdt_error_hint(err, "write its address as unix:PATH, that of lan.listen as tls:HOST:PORT");
        break;
    case HDT_REFUSED_OLD_TLS:
        hdt_error_set(err, HDT_EPROTO, "a TLS client that does not know TLS 1.3");
        hdt_error_hint(err, "check that no proxy stands between the two ends");
        break;
    case HDT_REFUSED_CERTIFICATE:
        hdt_error_set(err, HDT_EACCES, "a certificate that is not good here, or none");
        break;
    case HDT_REFUSED_HANDSHAKE:
        hdt_error_set(err, HDT_EPROTO, "a TLS handshake that broke");
        break;
    case HDT_REFUSED_HELLO:
        hdt_error_set(err, HDT_EPROTO, "a hello that is not accepted here");
        break;
    default:
        hdt_error_set(err, HDT_EPROTO, "something that is not %s",
                      is_tls ? "TLS on the TLS port" : "HDT on the socket");
        break;
    }
}

/* ---- first bytes ---- */

#define RECORD_HEAD     5
#define RECORD_LEN_MAX  16384u
#define HELLO_HEAD      4 /* type, length */
#define EXT_VERSIONS    43
#define VERSION_TLS_1_3 0x0304

struct reader {
    const uint8_t *at, *end;
};

/* Skip a field whose length stands before it in `size` bytes; false: it is not all there. */
static bool reader_skip(struct reader *r, size_t size)
{
    size_t len = 0, i;

    if ((size_t)(r->end - r->at) < size) {
        return false;
    }
    for (i = 0; i < size; i++) {
        len = len << 8 | *r->at++;
    }
    if ((size_t)(r->end - r->at) < len) {
        return false;
    }
    r->at += len;
    return true;
}

static unsigned reader_u16(struct reader *r)
{
    const unsigned value = (unsigned)(r->at[0] << 8 | r->at[1]);

    r->at += 2;
    return value;
}

static bool versions_have_1_3(struct reader r)
{
    r.at++; /* length of the list */
    while (r.end - r.at >= 2) {
        if (reader_u16(&r) == VERSION_TLS_1_3) {
            return true;
        }
    }
    return false;
}

/* Does a ClientHello, without its head, offer TLS 1.3? What cannot be read offers nothing. */
static bool hello_offers_1_3(const uint8_t *bytes, size_t len)
{
    struct reader r = {bytes, bytes + len};

    if (len < 2 + 32) {
        return false;
    }
    r.at += 2 + 32; /* legacy version, random */
    if (!reader_skip(&r, 1) || !reader_skip(&r, 2) || !reader_skip(&r, 1) || r.end - r.at < 2) {
        return false; /* session, ciphers, compression */
    }
    r.at += 2; /* length of the extensions */
    while (r.end - r.at >= 4) {
        const unsigned type = reader_u16(&r);
        struct reader body = r;

        if (!reader_skip(&r, 2)) {
            return false;
        }
        body.at += 2;
        body.end = r.at;
        if (type == EXT_VERSIONS && body.at < body.end) {
            return versions_have_1_3(body);
        }
    }
    return false;
}

static enum hdt_greeting greeting_wrong(enum hdt_refused is, enum hdt_refused *cause)
{
    *cause = is;
    return HDT_GREETING_WRONG;
}

static size_t record_len_of(const uint8_t *bytes)
{
    return (size_t)(bytes[3] << 8 | bytes[4]);
}

static enum hdt_greeting greeting_tls(const uint8_t *bytes, size_t len, enum hdt_refused *cause)
{
    const size_t record_len = record_len_of(bytes);

    if (record_len <= HELLO_HEAD || record_len > RECORD_LEN_MAX) {
        return greeting_wrong(HDT_REFUSED_BYTES, cause);
    }
    if (len < RECORD_HEAD + record_len) {
        return HDT_GREETING_MORE;
    }
    /* A hello that goes on in the next record is rare and right: OpenSSL reads it. */
    if ((size_t)(bytes[6] << 16 | bytes[7] << 8 | bytes[8]) + HELLO_HEAD > record_len ||
        hello_offers_1_3(bytes + RECORD_HEAD + HELLO_HEAD, record_len - HELLO_HEAD)) {
        return HDT_GREETING_GOOD;
    }
    return greeting_wrong(HDT_REFUSED_OLD_TLS, cause);
}

enum hdt_greeting hdt_greeting_check(const uint8_t *bytes, size_t len, bool is_tls,
                                     enum hdt_refused *cause)
{
    const bool is_record = len >= 4 && memcmp(bytes, "HDT1", 4) == 0;

    if (is_record) {
        return is_tls ? greeting_wrong(HDT_REFUSED_PLAIN, cause) : HDT_GREETING_GOOD;
    }
    switch (hdt_tls_sniff(bytes, len)) {
    case HDT_TLS_SNIFF_MORE:
        return HDT_GREETING_MORE;
    case HDT_TLS_SNIFF_TLS:
        return is_tls ? greeting_tls(bytes, len, cause) : greeting_wrong(HDT_REFUSED_TLS, cause);
    case HDT_TLS_SNIFF_HTTP:
        return greeting_wrong(HDT_REFUSED_HTTP, cause);
    case HDT_TLS_SNIFF_SSH:
        return greeting_wrong(HDT_REFUSED_SSH, cause);
    case HDT_TLS_SNIFF_OTHER:
        break;
    }
    return greeting_wrong(HDT_REFUSED_BYTES, cause);
}

size_t hdt_greeting_len(const uint8_t *bytes, size_t len)
{
    return len < RECORD_HEAD + 1 ? RECORD_HEAD + 1 : RECORD_HEAD + record_len_of(bytes);
}
