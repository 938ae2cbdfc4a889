#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What 'make install DESTDIR=...' leaves works from where it is: programs, module, library, manuals.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"

cd "$work" || exit 1
unset HDT_MODULE_PATH
export PATH=${PATH#"$build:"}
root=$work/root
make -s -C "$build" install DESTDIR="$root" >"$work/install.log" 2>&1 || {
    tail -n 20 "$work/install.log"
    fail "make install"
    exit 1
}

# variable NAME: a folder as make knows it.
variable() {
    printf 'include Makefile\nprint-it:\n\t@echo $(%s)\n' "$1" | make -s -C "$build" -f - print-it
}
bindir=$root$(variable bindir) libdir=$root$(variable libdir) includedir=$root$(variable includedir)
mandir=$root$(variable mandir) pkglibdir=$root$(variable pkglibdir)
docdir=$root$(variable docdir)
export PKG_CONFIG_PATH=$libdir/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root LD_LIBRARY_PATH=$libdir
export MANPATH=$mandir

# ---- programs ----
version=$("$bindir/hdt" version 2>/dev/null | grep -o '[0-9]*\.[0-9]*\.[0-9]*' | head -n 1)
same "version of hdt and of the library" "$version" "$(pkg-config --modversion hdt)"
programs=0
for program in "$bindir"/*; do
    name=${program##*/}
    programs=$((programs + 1))
    check "$name --help" sh -c '"$1" --help | grep -qi usage' sh "$program"
    check "$name --version" sh -c '"$1" --version | grep -qF "$2"' sh "$program" "$version"
    check "$name finds its libraries" sh -c '! ldd "$1" | grep "not found"' sh "$program"
done
check "all three programs are there" test "$programs" -ge 3

# ---- the device module, found by the path that was compiled in ----
check "the cpu module is there" test -f "$pkglibdir/backend_cpu.so"
prefix=$(variable prefix)
# With the installed tree at its place, in a mount namespace of this test's own.
if [ -d "$prefix" ] && unshare -rm mount --bind "$root$prefix" "$prefix" 2>/dev/null; then
    unshare -rm sh -c 'mount --bind "$1$2" "$2" && exec "$2/bin/hdt-worker" --task generate \
        --backend cpu --checkpoint /nonexistent --prompt x' sh "$root" "$prefix" >out 2>&1
    check "hdt-worker loads it" grep -q "cannot find a checkpoint" out
else
    echo "left out: loading the module from $prefix needs a mount namespace there"
fi

# ---- examples, with the catalogue that is installed ----
catalogue=$root$(variable pkgdatadir)/devices.yaml
for layout in layout layout-7b; do
    check "hdt simulate $layout.yaml" "$bindir/hdt" simulate --catalogue "$catalogue" "$docdir/examples/$layout.yaml"
done

# ---- services: understood by systemd, little exposed; their user and folders ----
units=$root$(variable systemdsystemunitdir)
if command -v systemd-analyze >/dev/null; then
    mkdir units && for unit in "$units"/*.service; do
        sed "s,=$(variable bindir)/,=$bindir/," "$unit" >"units/${unit##*/}"
    done
    # Names of settings that this systemd does not know, and programs that are not there, are said.
    said=$(systemd-analyze verify --man=no units/hdt-gateway.service units/hdt-worker.service \
        units/hdt-worker@w1.service 2>&1 | grep -F hdt-)
    same "systemd-analyze verify" "nothing said" "${said:-nothing said}"
    for unit in units/*.service; do
        # In tenths. The worker needs devices, and compilers of kernels write code.
        systemd-analyze security --offline=true --no-pager --threshold=20 "$unit" >exposure 2>&1
        same "exposure of ${unit##*/}: $(grep -o 'level for.*' exposure)" 0 $?
    done
else
    echo "left out: systemd-analyze is not installed (systemd)"
fi
if command -v systemd-sysusers >/dev/null && command -v systemd-tmpfiles >/dev/null && [ "$(id -u)" = 0 ]; then
    mkdir -p "$root/etc"
    printf 'root:x:0:0::/root:/bin/sh\n' >"$root/etc/passwd"
    printf 'root:x:0:\n' >"$root/etc/group"
    check "systemd-sysusers" systemd-sysusers --root="$root" "$root$(variable sysusersdir)/hdt.conf"
    check "user hdt, without a shell" grep -qE '^hdt:.*:/var/lib/hdt:/usr/sbin/nologin$' "$root/etc/passwd"
    check "it may use accelerators" grep -qE '^render:.*[:,]hdt$' "$root/etc/group"
    check "systemd-tmpfiles" systemd-tmpfiles --root="$root" --create "$root$(variable tmpfilesdir)/hdt.conf"
    hdt=$(sed -n 's/^hdt:[^:]*:\([0-9]*\):\([0-9]*\):.*/\1:\2/p' "$root/etc/passwd")
    same "state is the services'" "$hdt 750" "$(stat -c '%u:%g %a' "$root/var/lib/hdt")"
    same "keys are root's, read by the services" "0:${hdt#*:} 750" \
        "$(stat -c '%u:%g %a' "$root$(variable sysconfdir)/hdt/tls")"
else
    echo "left out: user and folders need root, systemd-sysusers and systemd-tmpfiles"
fi

# ---- manuals ----
for page in man1/hdt.1 man3/hdt.3 man5/hdt-gateway.yaml.5 man5/hdt-worker.yaml.5 man5/hdt-job.yaml.5 \
    man5/hdt-cluster.yaml.5 man5/hdt-devices.yaml.5 man5/hdt-layout.yaml.5 \
    man8/hdt-gateway.8 man8/hdt-worker.8; do
    check "manual $page" test -s "$mandir/$page"
    ! command -v mandoc >/dev/null || check "its form" mandoc -Tlint -Werror "$mandir/$page"
done

# ---- the library, for C99 and for C++ ----
read -ra flags < <(pkg-config --cflags --libs hdt)
check "header" test -f "$includedir/hdt.h"
read -ra cc <<<"${CC:-cc}" # "ccache gcc"
check "a C99 program" "${cc[@]}" -std=c99 -pedantic -Wall -Wextra -Werror -o c99 \
    "$docdir/examples/example_status.c" "${flags[@]}"
if command -v c++ >/dev/null; then
    check "a C++ program" c++ -Wall -Wextra -pedantic -Werror -o cxx -x c++ \
        "$docdir/examples/example_status.c" -x none "${flags[@]}"
fi
for program in c99 cxx; do
    [ -x $program ] || continue
    ./$program "unix:$work/nobody.sock" >out 2>err
    same "$program: exit status without a gateway" 1 $?
    check "$program: says what to do" grep -q '^hint: ' err
done

[ "$n_failed" = 0 ]
