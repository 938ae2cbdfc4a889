#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages: built from the archive of a release, judged by lintian, installed with their
# dependencies into a clean root, used there by a federation of two sites, upgraded, removed, purged.
#
# All mounts are made in a mount namespace of this test's own and all processes in a process
# namespace, which end with it, however it ends.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"

[ "$(id -u)" = 0 ] || skip "debootstrap and chroot need root"
for tool in debootstrap dpkg-buildpackage dh unshare ip apt-get; do
    command -v $tool >/dev/null || skip "no $tool (scripts/packages names the packages)"
done
unshare -m -p -f true 2>/dev/null || skip "no namespaces here"
# shellcheck disable=SC1091
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -e "/usr/share/debootstrap/scripts/$codename" ] || skip "debootstrap does not know '$codename'"

# Where this machine gets its own packages from: archives of the release and its updates.
archives() {
    # shellcheck disable=SC2016 # apt's own $
    apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
        awk -v c="$codename" '($2 == c || index($2, c "-") == 1) && $3 ~ /^(main|universe)$/ && !seen[$0]++'
}
mirror=$(archives | awk -v c="$codename" '$2 == c { print $1; exit }')
[ -n "$mirror" ] || skip "apt has no archive of $codename (apt-get update)"
cd "$work" || exit 1
timeout 30 /usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file \
    "${mirror%/}/dists/$codename/Release" Release >helper.log 2>&1 || skip "$mirror does not answer"

export HDT_TEST_PATIENCE=$patience
trap 'rm -rf --one-file-system "$work/root"; finish' EXIT
root=$work/root
section() { printf '\n-- %s (%s s)\n' "$1" "$SECONDS"; }
# in_root COMMAND...: in the root, with /proc; everything it starts ends with it. in_alone: the
# same on a network of its own, where sites meet on the loopback interface.
in_root() { in_namespaces -m -p -- "$@"; }
in_alone() { in_namespaces -m -p -n -- "$@"; }
in_namespaces() {
    local kinds=()

    while [ "$1" != -- ]; do
        kinds+=("$1")
        shift
    done
    shift
    # shellcheck disable=SC2016 # the inner shell's own $
    unshare "${kinds[@]}" -f --kill-child sh -c 'mount -t proc proc "$0/proc" &&
        mount -t tmpfs tmpfs "$0/dev/shm" &&
        { ip link set lo up 2>/dev/null || true; } &&
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C HDT_TEST_PATIENCE="$HDT_TEST_PATIENCE" DEBIAN_FRONTEND=noninteractive \
            chroot "$0" "$@"' "$root" "$@"
}

section "build, and a clean root"
unshare -m debootstrap --variant=minbase "$codename" "$root" "$mirror" >debootstrap.log 2>&1 &
pid=$!
make -s -C "$build" deb >deb.log 2>&1
built=$?
[ $built = 0 ] || tail -n 30 deb.log
same "make deb" 0 $built
wait $pid || {
    tail -n 5 debootstrap.log
    fail "debootstrap"
}
[ "$n_failed" = 0 ] || exit 1
debs=$build/deb
if command -v lintian >/dev/null; then
    said=$(lintian --allow-root --tag-display-limit 0 "$debs"/*.changes 2>&1)
    same "lintian" "nothing said" "${said:-nothing said}"
else
    echo "left out: lintian is not installed"
fi

section "install"
archives | sed 's/^/deb /' >"$root/etc/apt/sources.list"
# Proxies and the like.
apt-config dump | grep -E '^Acquire::(http|https|Retries)' >"$root/etc/apt/apt.conf.d/99host"
cp /etc/resolv.conf "$root/etc/resolv.conf"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/fast"
mkdir "$root/debs" && cp "$debs"/*.deb "$root/debs" && rm "$root"/debs/*dbgsym*
in_root apt-get update >apt.log 2>&1 &&
    in_root sh -c 'apt-get -o Dpkg::Use-Pty=0 install -y --no-install-recommends /debs/*.deb' >>apt.log 2>&1
installed=$?
[ $installed = 0 ] || tail -n 20 apt.log
same "apt-get install" 0 $installed

# A next version, for the upgrade.
mkdir "$root/next"
for deb in "$root"/debs/*.deb; do
    rm -rf deb
    dpkg-deb -R "$deb" deb
    sed -i -E '/^(Version|Depends):/ s/(0|[0-9]+(\.[0-9]+)+)-1\b/\1-2/g' deb/DEBIAN/control
    dpkg-deb --root-owner-group -Znone -b deb "$root/next/${deb##*/}" >/dev/null
done

section "use"
cp "$src/tests/e2e/deb_inside.sh" "$root/inside.sh"
for part in files sites upgrade remove; do
    in_alone bash /inside.sh $part >"$part.log" 2>&1
    code=$?
    cat "$part.log"
    grep -q '^FAILED' "$part.log" && n_failed=$((n_failed + 1))
    same "$part" 0 $code
done
echo "($SECONDS s)"
[ "$n_failed" = 0 ]
