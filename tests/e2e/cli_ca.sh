#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hdt ca, with the openssl command as the judge of what it makes.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"

cd "$work" || exit 1
export HDT_CA_DIR=$work/ca

mode() { stat -c %a "$1"; }
verified() { openssl verify -x509_strict -CAfile "$1/ca.pem" "$1/cert.pem" >/dev/null 2>&1; }
# with_crl DIR: the judge takes the certificate, seeing the authority's newest list.
with_crl() { openssl verify -crl_check -CRLfile ca/crl.pem -CAfile ca/ca.pem "$1/cert.pem" >/dev/null 2>&1; }
not() { ! "$@"; }

refused 3 "there is no authority in" hdt ca list
refused 2 "--federation NAME is missing" hdt ca init
refused 1 "is not a name of a federation" hdt ca init --federation "two words"
refused 2 "--days 'x' is not a number" hdt ca init --federation lab --days x
check "init" hdt ca init --federation lab
same "mode of the folder" 700 "$(mode ca)"
same "mode of its key" 600 "$(mode ca/ca.key)"
before=$(sha256sum ca/*.* | sha256sum)
refused 1 "an authority exists in" hdt ca init --federation lab
same "nothing was changed" "$before" "$(sha256sum ca/*.* | sha256sum)"

check "issue a site" hdt ca issue site site-a
check "issue a worker" hdt ca issue worker site-a/w0
check "issue an operator" hdt ca issue operator ann --out ops --days 7
same "mode of a key" 600 "$(mode site-a/key.pem)"
for bundle in site-a site-a-w0 ops; do
    check "openssl accepts $bundle" verified "$bundle"
    check "openssl accepts $bundle under the list" with_crl "$bundle"
done
san() { openssl x509 -in "$1" -noout -ext subjectAltName | tail -n 1 | tr -d ' '; }
same "identity of a worker" URI:hdt://lab/worker/site-a/w0 "$(san site-a-w0/cert.pem)"
check "valid since before now" openssl x509 -in site-a/cert.pem -noout -checkend 0
check "valid for about 7 days" not openssl x509 -in ops/cert.pem -noout -checkend $((7 * 86400 + 60))

refused 1 "exists already; nothing was changed" hdt ca issue site site-a
check "--force replaces" hdt ca issue --force site site-a
refused 1 "write its site too: worker SITE/NAME" hdt ca issue worker w0
refused 1 "unknown role 'boss'" hdt ca issue boss x
refused 1 "is not a name of a site" hdt ca issue site ../x
refused 2 "too few arguments" hdt ca issue site
refused 2 "unexpected 'c'" hdt ca issue site a c
refused 2 "did you mean 'hdt ca issue'?" hdt ca isue site a
refused 2 "did you mean 'hdt config'?" hdt confg

# Keys stay where they are made.
check "request" hdt ca request --federation lab --out b site site-b
same "what a request leaves" "key.pem site-b.csr" "$(cd b && echo *)"
refused 1 "exists already" hdt ca request --federation lab --out b site site-b
refused 1 "not signed without a yes" hdt ca sign b/site-b.csr
check "sign" hdt ca sign --yes --out signed b/site-b.csr
same "what comes back" "ca.pem cert.pem crl.pem" "$(cd signed && echo *)"
check "openssl accepts it" verified signed
same "it fits the key" "$(openssl pkey -in b/key.pem -pubout)" \
    "$(openssl x509 -in signed/cert.pem -noout -pubkey)"
hdt ca request --federation other --out c site site-c >/dev/null
refused 1 "federation 'other' is not the one of this authority, 'lab'" hdt ca sign --yes c/site-c.csr
refused 1 "there is no request in it" hdt ca sign --yes signed/cert.pem
refused 3 "No such file" hdt ca sign --yes nothing.csr

# Revocation: by file and by serial number.
check "revoke by file" hdt ca revoke signed/cert.pem
check "openssl refuses it now" not with_crl signed
check "and nothing else" with_crl site-a
refused 1 "was revoked already" hdt ca revoke signed/cert.pem
serial=$(openssl x509 -in ops/cert.pem -noout -serial | cut -d= -f2)
check "revoke by serial" hdt ca revoke "$serial"
check "openssl refuses that too" not with_crl ops
refused 3 "is not from the authority" hdt ca revoke 1234
refused 3 "neither a certificate file nor a serial number" hdt ca revoke nothing.pem
hdt ca list >list
same "list: two revoked" 2 "$(grep -c revoked list)"
same "list: all of them" 5 "$(grep -c -E '^[0-9A-F]{16} ' list)"
same "list as JSON" "5 2" "$(hdt ca list --json | python3 -c '
import json, sys
l = json.load(sys.stdin)
print(len(l), sum(e["revoked_at"] is not None for e in l))')"

# A second process waits for the lock, and gives up after five seconds.
exec 9>ca/lock
flock 9
refused 4 "in use for 5 s" hdt ca list
exec 9>&-

# Two at once: both get a certificate, both are on record.
hdt ca issue site p1 >/dev/null & one=$!
hdt ca issue site p2 >/dev/null & two=$!
wait "$one" && wait "$two"
same "two at once" 7 "$(hdt ca list | grep -c -E '^[0-9A-F]{16} ')"

echo "rubbish" >>ca/index.txt
refused 1 "index.txt:8: cannot read the list of certificates" hdt ca list

[ "$n_failed" = 0 ]
