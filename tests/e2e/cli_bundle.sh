#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hdt ca bundle and install: one file lets a machine join; whatever is wrong with it is found before
# anything is written. The openssl command is the judge and the forger.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"
# shellcheck source=tests/e2e/fed.sh
. "$src/tests/e2e/fed.sh"

cd "$work" || exit 1
export HDT_CA_DIR=$work/ca
fed_init
bundle() { hdt ca bundle "$@" >/dev/null; }
mode() { stat -c %a "$1"; }

# ---- what is in it ----
check "bundle of a site" bundle site site-b --peer site-a=10.0.0.1:7420 --peer site-c --listen ""
same "mode" 600 "$(mode site-b.bundle)"
csplit -s -f part- site-b.bundle '/-----BEGIN/' '{*}'
check "openssl: the authority made the certificate" openssl verify -x509_strict -crl_check \
    -CRLfile part-04 -CAfile part-03 part-02
check "openssl: it is this authority" cmp -s part-03 ca/ca.pem
same "openssl: the key is the certificate's" "$(openssl pkey -in part-01 -pubout)" \
    "$(openssl x509 -in part-02 -noout -pubkey)"
grep -v -- ----- part-05 | base64 -d >settings.yaml
check "openssl: all in one file is fine, too" openssl x509 -in site-b.bundle -noout
same "it is on record" 1 "$(hdt ca list | grep -c 'site site-b')"

# ---- install ----
check "--check writes nothing" eval 'hdt ca install --check site-b.bundle --to b >out && [ ! -e b ]'
check "and shows the settings" says 'address: "10.0.0.1:7420"' out
check "install" hdt ca install site-b.bundle --to b
check "its settings" cmp -s settings.yaml b/gateway.yaml
check "a gateway takes them" hdt-gateway --check-config -c b/gateway.yaml
check "who may read the key" eval '[[ $(mode b/tls/key.pem) = 6[04]0 && $(mode b/tls) = 7[05]0 ]]'
same "what lies there" "ca.pem cert.pem crl.pem key.pem" "$(cd b/tls && echo *)"
echo 'log_level: debug' >>b/gateway.yaml
serial() { openssl x509 -in "$1" -noout -serial | cut -d= -f2; }
before=$(serial b/tls/cert.pem)
check "a newer bundle" bundle site site-b --force
hdt ca revoke "$before" >/dev/null
cp ca/crl.pem b/tls/crl.pem
check "renews the certificate" hdt ca install site-b.bundle --to b
same "it is the new one" "$(serial site-b.bundle)" "$(serial b/tls/cert.pem)"
check "settings stay as they were" says 'log_level: debug' b/gateway.yaml
check "a newer revocation list stays" cmp -s ca/crl.pem b/tls/crl.pem
check "a gateway takes them" hdt-gateway --check-config -c b/gateway.yaml
check "a worker's" bundle worker site-b/w1 --gateway tls:10.0.0.2:7422
check "install it" hdt ca install site-b-w1.bundle --to w1
check "its settings" hdt config check worker w1/worker.yaml
mkdir w2 && hdt config example worker >w2/worker.yaml
check "an untouched example is no settings" hdt ca install site-b-w1.bundle --to w2
check "but is replaced" cmp -s w1/worker.yaml w2/worker.yaml
check "an operator's" bundle operator ann --out ann
check "install it" hdt ca install ann --to ann.d
same "it has no settings" tls "$(cd ann.d && echo *)"

# ---- refused, and nothing is written ----
sums() { find b -type f -exec sha256sum {} + | sort; }
state=$(sums)
cd "$work" || exit 1
install_refused() { # TEXT FILE [OPTION...]
    local text=$1

    shift
    rm -rf new
    refused 1 "$text" hdt ca install --to new "$@"
    check "nothing was written" test ! -e new
}
bundle site other && bundle worker site-b/w0
fed_init lab ca2
hdt ca bundle --dir ca2 site site-b --out stranger >/dev/null
refused 1 "is that of hdt://lab/site/site-b" hdt ca install other.bundle --to b
refused 1 "is that of hdt://lab/site/site-b" hdt ca install site-b-w0.bundle --to b
refused 1 "is of another authority" hdt ca install stranger --to b
rm -rf b2 && mkdir b2 && sed 's/^site: .*/site: elsewhere/' b/gateway.yaml >b2/gateway.yaml
refused 1 "is of site elsewhere of federation lab" hdt ca install site-b.bundle --to b2
same "nothing was written" gateway.yaml "$(cd b2 && echo *)"
check "--force replaces them" hdt ca install --force site-b.bundle --to b2
check "also the settings" says "site: site-b" b2/gateway.yaml
same "the site's files are untouched" "$state" "$(sums)"

csplit -s -f good- site-b.bundle '/-----BEGIN/' '{*}' # head key certificate authority list settings
csplit -s -f other- other.bundle '/-----BEGIN/' '{*}'
csplit -s -f stranger- stranger '/-----BEGIN/' '{*}'
forged() { cat "$@" >forged; }
forged good-0[02345]
install_refused "there is no private key in it" forged
forged good-0[013]
install_refused "the certificate of the authority is not in it" forged
forged good-00 other-01 good-0[2345]
install_refused "its key does not belong to its certificate" forged
forged good-0[012] stranger-03 good-05
install_refused "it is signed by another authority" forged
forged good-0[0123] stranger-04
install_refused "its revocation list is not signed by its authority" forged
forged good-0[01234] other-05
install_refused "is of site other of federation lab, the certificate of site-b of lab" forged
forged good-0[0123455]
cat good-05 >>forged
install_refused "it has settings twice" forged
forged good-0[01234] good-01
install_refused "it has a part that does not belong there" forged
forged good-00 <(openssl pkey -in good-01 -aes128 -passout pass:x) good-0[2345]
install_refused "it has a part that does not belong there" forged
forged good-0[01234] <(printf -- '-----BEGIN HDT SETTINGS-----\n%s\n-----END HDT SETTINGS-----\n' \
    "$(printf 'site: site-b\nfederation: lab\nspeed: fast\n' | base64)")
install_refused "speed" forged
hdt ca revoke "$(serial site-b.bundle)" >/dev/null
forged good-0[0123] ca/crl.pem
install_refused "revoked" forged
openssl req -new -key good-01 -subj "/O=lab/CN=site site-b" -out csr.pem 2>/dev/null
openssl x509 -req -in csr.pem -CA ca/ca.pem -CAkey ca/ca.key -days -1 -out expired.pem \
    -extfile <(echo subjectAltName=URI:hdt://lab/site/site-b) 2>/dev/null
forged good-0[01] expired.pem good-0[345]
install_refused "expired" forged
install_refused "there is no private key in it" good-00
install_refused "cannot" .
refused 3 "No such file" hdt ca install nothing.bundle --to new

# Cut off anywhere, or with a byte changed: refused, or (cut between two parts) whole without the rest.
python3 - site-b.bundle <<'PY'
import random, subprocess, sys
seed = random.randrange(1 << 30)
print("seed", seed)
rng = random.Random(seed)
data = open(sys.argv[1], "rb").read()
begin = data.index(b"-----BEGIN")
optional = data.index(b"-----BEGIN X509 CRL")
for i in range(40):
    if i % 2:
        bad = data[:rng.randrange(begin, optional)].rstrip()
        if bad.endswith(b"CERTIFICATE-----"):
            bad = bad[:-20]
    else:
        at = rng.randrange(begin, optional)
        bad = data[:at] + bytes([data[at] ^ (1 << rng.randrange(7))]) + data[at + 1:]
    open("damaged", "wb").write(bad)
    p = subprocess.run(["hdt", "ca", "install", "--check", "damaged"], capture_output=True, timeout=20)
    if p.returncode not in (0, 1) or (i % 2 and p.returncode == 0):
        sys.exit(f"{i}: exit {p.returncode}: {p.stderr}")
    if p.returncode == 0 and p.stdout != subprocess.run(["hdt", "ca", "install", "--check", sys.argv[1]], capture_output=True).stdout:
        sys.exit(f"{i}: took a changed file")
PY
check "damaged files" test $? = 0

# ---- what is asked for is looked at before anything is signed ----
count() { hdt ca list | grep -c site-d; }
refused 1 "does not begin with the name of a site" hdt ca bundle site site-d --peer "a b=x:1"
refused 1 "--gateway is for bundles of workers" hdt ca bundle site site-d --gateway tls:a:1
refused 1 "--peer and --listen are for bundles of sites" hdt ca bundle worker site-d/w0 --peer a
refused 1 "is not of the form tls:HOST:PORT" hdt ca bundle worker site-d/w0 --gateway unix:/x
refused 1 "exists already; nothing was changed" hdt ca bundle site site-d --out other.bundle
for words in "bundle site" install "install one two"; do
    # shellcheck disable=SC2086 # words
    hdt ca $words >/dev/null 2>&1
    same "hdt ca $words: exit status" 2 $?
done
same "nothing was signed" 0 "$(count)"

[ "$n_failed" = 0 ]
