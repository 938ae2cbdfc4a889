#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The house rule about exported names finds what it is to find, however the tool is called.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-$(dirname "$0")/../..}/tests/e2e/lib.sh"

read -ra cc <<<"${CC:-cc}"
mkdir -p "$work/src" && cd "$work" || exit 1

# object TEXT: src/x.o of that C.
object() {
    echo "$1" >src/x.c
    "${cc[@]}" -g -c src/x.c -o src/x.o || fail "cannot compile: $1"
}

rule() { # EXIT-STATUS TEXT NM: what check-names says
    NM=$3 "$src/scripts/check-names" >out 2>&1
    same "$2 ($3)" "$1" $? || cat out
}

for tool in nm "nm -B"; do
    object 'int hdt_right(void); int hdt_right(void) { return 0; } static int own; int *hdt_own = &own;'
    rule 0 "names that begin with hdt_" "$tool"
    object 'int wrong(void); int wrong(void) { return 0; }'
    rule 1 "a function that does not" "$tool"
    check "it is named, with its place" grep -q "src/x.c:1: 'wrong' is visible to other files" out
    object 'int wrong_data;'
    rule 1 "data that does not" "$tool"
done
rule 1 "no such tool" "no-such-nm"
check "it says so" grep -q "finds no symbols" out
[ "$n_failed" = 0 ]
