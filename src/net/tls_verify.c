/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a certificate is refused, in words.
 *
 * OpenSSL says "certificate verify failed"; the cause is known only inside its verify callback,
 * where certificate and reason are at hand. So the callback writes the whole message there and
 * leaves it on the connection, and hdt_tls_failure finds it after the handshake broke. The other
 * end is told the cause by the TLS alert that OpenSSL derives from the verify error; it adds what
 * it knows of its own certificate.
 */
#include "config.h"

#include "src/net/tls_internal.h"
#include "src/base/buf.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Slots that OpenSSL hands out once a process for data that others hang on its objects. */
static pthread_once_t slots_once = PTHREAD_ONCE_INIT;
static int state_slot, policy_slot;

static void slot_free(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int idx, long argl, void *argp)
{
    (void)parent;
    (void)ad;
    (void)idx;
    (void)argl;
    (void)argp;
    free(ptr);
}

static void slots_init(void)
{
    state_slot = SSL_get_ex_new_index(0, NULL, NULL, NULL, slot_free);
    policy_slot = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, slot_free);
    HDT_ASSERT(state_slot >= 0 && policy_slot >= 0);
}

struct hdt_tls_state *hdt_tls_state_of(SSL *ssl)
{
    struct hdt_tls_state *state;

    pthread_once(&slots_once, slots_init);
    state = SSL_get_ex_data(ssl, state_slot);
    if (!state) {
        state = hdt_calloc(1, sizeof(*state));
        HDT_ASSERT(SSL_set_ex_data(ssl, state_slot, state));
    }
    return state;
}

void hdt_tls_policy_attach(SSL_CTX *ssl_ctx, struct hdt_tls_policy *policy)
{
    pthread_once(&slots_once, slots_init);
    HDT_ASSERT(SSL_CTX_set_ex_data(ssl_ctx, policy_slot, policy));
}

const struct hdt_tls_policy *hdt_tls_policy_of(const SSL_CTX *ssl_ctx)
{
    const struct hdt_tls_policy *policy = SSL_CTX_get_ex_data(ssl_ctx, policy_slot);

    HDT_ASSERT(policy);
    return policy;
}

const char *hdt_tls_openssl_error(void)
{
    const char *reason = ERR_reason_error_string(ERR_peek_error());

    ERR_clear_error();
    return reason ? reason : "unknown reason";
}

char *hdt_tls_label(const X509 *cert, char buf[HDT_TLS_LABEL_CAP])
{
    struct hdt_identity identity;
    char who[HDT_IDENTITY_URI_CAP] = "";
    BIGNUM *serial = ASN1_INTEGER_to_BN(X509_get0_serialNumber(cert), NULL);
    char *hex = serial ? BN_bn2hex(serial) : NULL;

    if (hdt_identity_of_certificate(cert, &identity, NULL) == HDT_OK) {
        hdt_identity_describe(&identity, who);
    } else {
        X509_NAME_oneline(X509_get_subject_name(cert), who, sizeof(who));
    }
    snprintf(buf, HDT_TLS_LABEL_CAP, "certificate of %s (serial %.44s)", who, hex ? hex : "?");
    OPENSSL_free(hex);
    BN_free(serial);
    return buf;
}

static char *time_format(const struct tm *tm, char buf[32])
{
    strftime(buf, 32, "%Y-%m-%d %H:%M:%S UTC", tm);
    return buf;
}

static char *asn1_time_format(const ASN1_TIME *time, char buf[32])
{
    struct tm tm = {0};

    if (!ASN1_TIME_to_tm(time, &tm)) {
        snprintf(buf, 32, "an unreadable time");
        return buf;
    }
    return time_format(&tm, buf);
}

static char *now_format(char buf[32])
{
    time_t now = time(NULL);
    struct tm tm;

    return time_format(gmtime_r(&now, &tm), buf);
}

static void refusal_time(const char *head, const X509 *cert, bool is_expired, struct hdt_error *err)
{
    char when[32], now[32];

    if (is_expired) {
        hdt_error_set(err, HDT_EACCES, "%s: it expired on %s; the clock here says %s", head,
                      asn1_time_format(X509_get0_notAfter(cert), when), now_format(now));
        hdt_error_hint(err, "if the clock is right, renew it: 'hdt ca request' on its machine, "
                            "'hdt ca sign' at the authority, then reload (SIGHUP)");
    } else {
        hdt_error_set(err, HDT_EACCES, "%s: it is valid only from %s; the clock here says %s", head,
                      asn1_time_format(X509_get0_notBefore(cert), when), now_format(now));
        hdt_error_hint(err, "compare the clocks of both machines and of the authority "
                            "(timedatectl): one of them is wrong");
    }
}

static void refusal_issuer(const char *head, const X509 *cert, struct hdt_error *err)
{
    char issuer[128];

    X509_NAME_oneline(X509_get_issuer_name(cert), issuer, sizeof(issuer));
    hdt_error_set(err, HDT_EACCES, "%s: it is signed by another authority, which calls itself '%s'",
                  head, issuer);
    hdt_error_hint(err, "all sites need certificates of one 'hdt ca': compare ca.pem on both "
                        "machines (openssl x509 -noout -fingerprint -in ca.pem)");
}

/* The causes that are no matter of dates or authority. */
static void refusal_other(const char *head, int cause, struct hdt_error *err)
{
    switch (cause) {
    case X509_V_ERR_CERT_REVOKED:
        hdt_error_set(err, HDT_EACCES, "%s: it was revoked", head);
        hdt_error_hint(err, "'hdt ca list' at the authority shows when; its owner needs a new key "
                            "and certificate ('hdt ca request', 'hdt ca sign')");
        break;
    case X509_V_ERR_UNABLE_TO_GET_CRL:
    case X509_V_ERR_CRL_SIGNATURE_FAILURE:
    case X509_V_ERR_CRL_HAS_EXPIRED:
    case X509_V_ERR_CRL_NOT_YET_VALID:
        hdt_error_set(err, HDT_EACCES, "%s: the revocation list here cannot tell (%s)", head,
                      X509_verify_cert_error_string(cause));
        hdt_error_hint(err, "copy the authority's newest crl.pem to this machine and reload");
        break;
    case X509_V_ERR_INVALID_PURPOSE:
        hdt_error_set(err, HDT_EACCES, "%s: it is not made for TLS clients and servers", head);
        hdt_error_hint(err, "use a certificate of 'hdt ca sign' or 'hdt ca issue', not the "
                            "authority's own");
        break;
    default:
        hdt_error_set(err, HDT_EACCES, "%s: %s", head, X509_verify_cert_error_string(cause));
        break;
    }
}

enum hdt_status hdt_tls_refusal(X509_STORE_CTX *store, const char *whose, struct hdt_error *err)
{
    X509 *cert = X509_STORE_CTX_get_current_cert(store);
    int cause = X509_STORE_CTX_get_error(store);
    char label[HDT_TLS_LABEL_CAP];
    char head[HDT_TLS_LABEL_CAP + 64];

    cert = cert ? cert : X509_STORE_CTX_get0_cert(store);
    snprintf(head, sizeof(head), "cannot trust %s %s", whose, hdt_tls_label(cert, label));
    switch (cause) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
        refusal_time(head, cert, cause == X509_V_ERR_CERT_HAS_EXPIRED, err);
        break;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
        refusal_issuer(head, cert, err);
        break;
    default:
        refusal_other(head, cause, err);
        break;
    }
    return HDT_EACCES;
}

static enum hdt_status expected_check(const struct hdt_tls_state *state,
                                      const struct hdt_identity *peer, const char *label,
                                      struct hdt_error *err)
{
    if (peer->role == state->role && (!state->name[0] || strcmp(peer->name, state->name) == 0)) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EACCES, "the peer shows a %s, expected was %s %s", label,
                  hdt_role_name(state->role), state->name);
    hdt_error_hint(err, "check the address in the settings: another one answers there");
    return HDT_EACCES;
}

enum hdt_status hdt_tls_identity_check(const struct hdt_tls_policy *policy,
                                       const struct hdt_tls_state *state, const X509 *cert,
                                       struct hdt_error *err)
{
    char label[HDT_TLS_LABEL_CAP], roles[HDT_IDENTITY_NAME_CAP];
    struct hdt_identity peer;

    hdt_tls_label(cert, label);
    if (hdt_identity_of_certificate(cert, &peer, err) != HDT_OK) {
        hdt_error_prefix(err, "cannot trust the peer's %s", label);
        return HDT_EACCES;
    }
    if (strcmp(peer.federation, policy->own.federation) != 0) {
        hdt_error_set(err, HDT_EACCES,
                      "cannot trust the peer's %s: it is of federation '%s', this end of '%s'",
                      label, peer.federation, policy->own.federation);
        hdt_error_hint(err, "federations do not mix; check which site the address belongs to");
        return HDT_EACCES;
    }
    if (!(peer.role & policy->peer_roles)) {
        hdt_error_set(err, HDT_EACCES, "cannot let the peer's %s in: its role is %s, needed is %s",
                      label, hdt_role_name(peer.role),
                      hdt_role_mask_format(policy->peer_roles, roles));
        hdt_error_hint(err,
                       "sites meet on wan.listen, workers and operators on lan.listen; 'hdt "
                       "ca issue %s NAME' makes a fitting certificate",
                       hdt_role_name(policy->peer_roles & -policy->peer_roles));
        return HDT_EACCES;
    }
    return state && state->role ? expected_check(state, &peer, label, err) : HDT_OK;
}

int hdt_tls_verify_cb(int ok, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct hdt_tls_state *state = hdt_tls_state_of(ssl);

    if (!ok) {
        if (!state->refused) {
            state->refused = true;
            hdt_tls_refusal(store, "the peer's", &state->refusal);
        }
        return 0;
    }
    if (X509_STORE_CTX_get_error_depth(store) == 0 &&
        hdt_tls_identity_check(hdt_tls_policy_of(SSL_get_SSL_CTX(ssl)), state,
                               X509_STORE_CTX_get_current_cert(store), &state->refusal) != HDT_OK) {
        state->refused = true;
        X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
        return 0;
    }
    return 1;
}

/* What the other end's alert says about our certificate; NULL: it is about something else. */
static const char *alert_text(int reason, const char **hint)
{
    *hint = "the log of the other end has the details";
    switch (reason) {
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        *hint = "renew it ('hdt ca request', 'hdt ca sign'), or set the other end's clock right";
        return "it has expired";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
        *hint = "this machine needs a new key and certificate: 'hdt ca request', 'hdt ca sign'";
        return "it was revoked";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
        *hint = "all sites need certificates of one 'hdt ca': compare ca.pem on both machines";
        return "another authority signed it";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
        *hint = "the other end's clock may be behind (timedatectl); its log has the details";
        return "it is not valid there, or not yet";
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
        *hint = "check that address and port are meant for this role; the log of the other end has "
                "the details";
        return "its role, name or federation is not let in there";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
        return "it is of no use there";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        *hint = "this end must be given a certificate (tls.cert, tls.key)";
        return "none was shown";
    default:
        return NULL;
    }
}

static enum hdt_status alert_failure(const SSL *ssl, const char *why, const char *hint,
                                     struct hdt_error *err)
{
    X509 *own = SSL_get_certificate(ssl);
    char label[HDT_TLS_LABEL_CAP] = "certificate", from[32] = "?", until[32] = "?";

    if (own) {
        hdt_tls_label(own, label);
        asn1_time_format(X509_get0_notBefore(own), from);
        asn1_time_format(X509_get0_notAfter(own), until);
    }
    hdt_error_set(err, HDT_EACCES, "the other end refuses our %s: %s; it is valid from %s to %s",
                  label, why, from, until);
    hdt_error_hint(err, "%s", hint);
    return HDT_EACCES;
}

static enum hdt_status protocol_failure(int reason, struct hdt_error *err)
{
    switch (reason) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
        hdt_error_set(err, HDT_EPROTO, "the other end does not speak TLS");
        hdt_error_hint(err, "check address and port: is a gateway's TLS port meant?");
        break;
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
        hdt_error_set(err, HDT_EPROTO, "the two ends share no TLS version: TLS 1.3 is needed");
        hdt_error_hint(err, "check that no proxy stands between the two ends");
        break;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        hdt_error_set(err, HDT_EACCES, "the peer shows no certificate");
        hdt_error_hint(err, "only programs of this federation may connect here, with a certificate "
                            "of its authority");
        return HDT_EACCES;
    default:
        hdt_error_set(err, HDT_EPROTO, "TLS failed: %s",
                      reason ? ERR_reason_error_string(ERR_peek_error())
                             : "the connection was closed in the middle");
        break;
    }
    return HDT_EPROTO;
}

enum hdt_status hdt_tls_failure(SSL *ssl, struct hdt_error *err)
{
    struct hdt_tls_state *state = hdt_tls_state_of(ssl);
    int reason = ERR_GET_REASON(ERR_peek_error());
    enum hdt_status status;
    const char *why, *hint;

    if (state->refused) {
        status = state->refusal.status;
        if (err) {
            *err = state->refusal;
        }
    } else if ((why = alert_text(reason, &hint))) {
        status = alert_failure(ssl, why, hint, err);
    } else {
        status = protocol_failure(reason, err);
    }
    ERR_clear_error();
    return status;
}
