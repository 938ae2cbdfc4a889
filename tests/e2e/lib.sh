# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the end-to-end tests share. Automake runs them in the build folder with $srcdir set.
set -u

src=$(realpath "${srcdir:-$(dirname "$0")/../..}")
build=$(pwd)
export PATH="$build:$PATH" HDT_MODULE_PATH="$build/.libs"
work=$(mktemp -d /tmp/hdt-e2e.XXXXXX)
n_failed=0

# Ends every process in the test's own list, then removes its folder (kept after a failure).
pids=()
groups=() # process groups of their own, as an interactive shell makes: told as by Ctrl-C
finish() {
    local pid

    for pid in "${groups[@]}"; do
        kill -INT -- "-$pid" 2>/dev/null && wait "$pid" 2>/dev/null
    done
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
    done
    if [ "$n_failed" = 0 ]; then
        rm -rf "$work"
    else
        echo "kept for a look: $work"
    fi
}
trap finish EXIT
trap 'exit 130' INT TERM

skip() {
    echo "SKIP: $*"
    exit 77
}

ok() { echo "ok: $*"; }

fail() {
    echo "FAILED: $*"
    n_failed=$((n_failed + 1))
}

# check TEXT COMMAND...: the command succeeds.
check() {
    local text=$1

    shift
    if "$@"; then
        ok "$text"
    else
        fail "$text"
    fi
}

# same TEXT A B: the two strings are equal and not empty.
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then
        ok "$1"
    else
        fail "$1: '$2' is not '$3'"
    fi
}

# One field of a result file: number, string or flat array, as text.
field() { # FILE NAME
    tr -d '\n' <"$1" | sed -n "s/.*\"$2\": *\(\[[^]]*\]\|\"[^\"]*\"\|[^,}]*\).*/\1/p" | tr -d ' '
}

# A run of the quickstart; extra options follow. Result in $work/NAME.json, output in NAME.log.
quickstart() { # NAME OPTION...
    local name=$1

    shift
    "$src/scripts/quickstart" --yes --build "$build" --dir "$work/$name" --json "$work/$name.json" \
        "$@" >"$work/$name.log" 2>&1 </dev/null && return 0
    echo "--- $name: quickstart $*"
    tail -n 25 "$work/$name.log"
    return 1
}

can_have_wan() { HDT_WANEM=$build/hdt-wanem "$src/scripts/wan-lab" check >/dev/null 2>&1; }

# wait_until SECONDS COMMAND...: true as soon as the command is. Beside other tests the patience is more.
wait_until() {
    local end=$((SECONDS + $1 * ${HDT_TEST_PATIENCE:-1}))

    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}
