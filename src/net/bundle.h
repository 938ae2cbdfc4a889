/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_BUNDLE_H
#define HDT_NET_BUNDLE_H

/*
 * All that the owner of a certificate needs, in one file to be copied to its machine: PEM blocks
 * after a few lines for people.
 *
 *   PRIVATE KEY     its key
 *   CERTIFICATE     its certificate
 *   CERTIFICATE     the authority's
 *   X509 CRL        the revocation list; may be missing
 *   HDT SETTINGS    gateway.yaml or worker.yaml; may be missing
 *
 * PEM was taken and not an archive: it needs no reader of its own, says where it is damaged, can be
 * pasted through a terminal, and the openssl command reads it. All calls block on files. Any
 * thread.
 */
#include "src/base/buf.h"
#include "src/base/error.h"
#include "src/net/ca.h"
#include "src/net/identity.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_SERVICE_GROUP "hdt" /* reads the keys that root installs */

#define HDT_BUNDLE_MAX (4u << 20) /* bytes of a file */

struct hdt_bundle {
    struct hdt_identity identity;
    struct hdt_ca_dates dates; /* of its certificate */
    struct hdt_buf key, cert, ca, crl,
        settings; /* PEM text, and YAML; crl, settings: maybe empty */
};

void hdt_bundle_release(struct hdt_bundle *bundle);

/* With mode 0600. HDT_EEXIST: the file is there already and not `force`. */
enum hdt_status hdt_bundle_write(const struct hdt_bundle *bundle, const char *path, bool force,
                                 struct hdt_error *err);

/* Read and check a file that came from elsewhere: nothing missing, repeated or unknown; the key is
 * the certificate's; that is signed by the authority in it, valid now, not revoked by the list in
 * it, of one federation. Settings are text here: whose they are knows who reads them. HDT_ENOENT,
 * HDT_EIO, HDT_EINVAL (no bundle, damaged), HDT_EACCES (what TLS would refuse). */
enum hdt_status hdt_bundle_read(const char *path, struct hdt_bundle *bundle, struct hdt_error *err);

/* Would it replace what is another's? HDT_EEXIST: certificates of another authority or owner are in
 * the folder. A newer certificate for the same owner is welcome. */
enum hdt_status hdt_bundle_check_folder(const struct hdt_bundle *bundle, const char *dir,
                                        struct hdt_error *err);

/* Is the group of the services there? */
bool hdt_bundle_has_group(void);

/* Write key.pem, cert.pem, ca.pem and crl.pem into the folder, made if missing. A revocation list
 * that is there and newer stays. As root, and where the group is, the files belong to root and may
 * be read by the group hdt; else only by their owner. */
enum hdt_status hdt_bundle_unpack(const struct hdt_bundle *bundle, const char *dir,
                                  struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_BUNDLE_H */
