/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_TLS_H
#define HDT_NET_TLS_H

/*
 * Mutual TLS 1.3 between the programs of a federation.
 *
 * Both ends show a certificate of the federation's own authority; role and name stand in it (see
 * identity.h), and so an end is known by who it is, not by the address it dials from. There is no
 * resumption: each connection checks certificates and the revocation list anew. No sockets here:
 * the owner of the bytes makes an SSL from the context and, when its handshake or a later read
 * fails, asks hdt_tls_failure what went wrong in words.
 *
 * Any thread; a context may be reloaded while others connect.
 */
#include "src/base/error.h"
#include "src/net/identity.h"

#include <openssl/ssl.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_tls_conf {
    const char *ca_path;          /* PEM, trust anchors */
    const char *cert_path;        /* PEM, own certificate (and intermediates) */
    const char *key_path;         /* PEM, its key, not readable by everybody */
    const char *crl_path;         /* PEM revocation list; NULL or "": none */
    const char *learned_crl_path; /* another, which may be missing: the newer of the two counts.
                                     hdt_tls_crl_adopt writes it. NULL: none */
    unsigned own_roles;           /* roles that the own certificate may have; 0: any */
    unsigned peer_roles;          /* roles that are let in; 0: any but ca */
    const char *federation; /* as in the settings, to be in the own certificate; NULL: not asked */
    const char *site;       /* likewise */
};

struct hdt_buf;
struct hdt_tls_ctx;

/* Read and check the files: each there, key and certificate fit, certificate valid now, signed by
 * the authority, of the right role. The strings of conf are copied. HDT_ENOENT, HDT_EIO, HDT_EINVAL
 * (not a certificate), HDT_EACCES (not valid here, role, key readable by all). */
enum hdt_status hdt_tls_ctx_new(const struct hdt_tls_conf *conf, struct hdt_tls_ctx **ctx,
                                struct hdt_error *err);
void hdt_tls_ctx_free(struct hdt_tls_ctx *ctx);

/* Read the files again, for connections made from now on. On failure all stays as it was. Live
 * connections go on; hdt_tls_recheck says which of them should not. */
enum hdt_status hdt_tls_ctx_reload(struct hdt_tls_ctx *ctx, struct hdt_error *err);

/* Append the revocation list in force as PEM text; nothing when there is none. */
void hdt_tls_crl_pem(struct hdt_tls_ctx *ctx, struct hdt_buf *pem);

/* Take a list that came from elsewhere: checked (the authority's, valid by the clock here, newer
 * than the one in force), written to learned_crl_path, then the files are read again as by reload.
 * Blocks on files. HDT_EEXIST: it is the one in force; all others: refused, nothing changed.
 * HDT_EINVAL: broken, older, or not valid now; HDT_EACCES: not of this authority; HDT_EIO: cannot
 * be stored; what reload returns. */
enum hdt_status hdt_tls_crl_adopt(struct hdt_tls_ctx *ctx, const char *pem, size_t len,
                                  struct hdt_error *err);

/* When the certificates in use end, seconds since 1970: our own, and of those that sign the one
 * that ends first. */
struct hdt_tls_expiry {
    int64_t own_s, authority_s;
};
void hdt_tls_ctx_expiry(struct hdt_tls_ctx *ctx, struct hdt_tls_expiry *expiry);

/* Number of the revocation list in force; 0: none. */
int64_t hdt_tls_crl_number(struct hdt_tls_ctx *ctx);

/* For SSL_new, now: borrowed, alive at least through the next eight reloads. */
SSL_CTX *hdt_tls_ctx_ssl_ctx(struct hdt_tls_ctx *ctx);

/* Who this end is. */
void hdt_tls_ctx_identity(struct hdt_tls_ctx *ctx, struct hdt_identity *identity);

/* Before the handshake: only this peer will do (a dialled site). name NULL: any of that role. */
enum hdt_status hdt_tls_expect(SSL *ssl, enum hdt_role role, const char *name,
                               struct hdt_error *err);

/* After the handshake: who the other end is. HDT_EACCES when there is no certificate. */
enum hdt_status hdt_tls_peer_identity(const SSL *ssl, struct hdt_identity *identity,
                                      struct hdt_error *err);

/* Check the peer of a live connection against the files as they are now (a revocation list that
 * just came). HDT_EACCES: close it, *err says why. */
enum hdt_status hdt_tls_recheck(struct hdt_tls_ctx *ctx, const SSL *ssl, struct hdt_error *err);

/* After SSL_do_handshake, SSL_read or SSL_write failed on `ssl` (in the same thread, before another
 * OpenSSL call): one message that says which end refused which certificate and why, with a remedy.
 * In TLS 1.3 a client learns only from its first read that the other end refused it. Empties
 * OpenSSL's error queue. Returns the status it sets: HDT_EACCES (certificates), HDT_EPROTO. */
enum hdt_status hdt_tls_failure(SSL *ssl, struct hdt_error *err);

/* What somebody who just connected speaks, from the first bytes. */
enum hdt_tls_sniff {
    HDT_TLS_SNIFF_MORE, /* too few bytes to tell (fewer than 6) */
    HDT_TLS_SNIFF_TLS,  /* a ClientHello */
    HDT_TLS_SNIFF_HTTP, /* plain HTTP */
    HDT_TLS_SNIFF_SSH,  /* an SSH client */
    HDT_TLS_SNIFF_OTHER,
};
enum hdt_tls_sniff hdt_tls_sniff(const void *bytes, size_t len);
/* "plain HTTP on the TLS port", with the remedy; only for HTTP, SSH, OTHER. */
enum hdt_status hdt_tls_sniff_error(enum hdt_tls_sniff sniff, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_TLS_H */
