# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the end-to-end tests share. Automake runs them in the build folder with $srcdir set.
set -u

src=$(realpath "${srcdir:-$(dirname "$0")/../..}")
build=$(pwd)
export PATH="$build:$PATH" HDT_MODULE_PATH="$build/.libs"
work=$(mktemp -d /tmp/hdt-e2e.XXXXXX)
n_failed=0
patience=${HDT_TEST_PATIENCE:-1} # what times that a machine may take are multiplied by

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
        logs_show # what they said at their end
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
    logs_show
}

# The last lines of all logs below $work (submitters, gateways, workers), but none a second time: a
# failure is to be understood where nobody can look at the files.
declare -A log_lines_shown=()
logs_show() {
    local log n from

    while read -r log; do
        n=$(wc -l <"$log")
        from=$((n - 14 > ${log_lines_shown[$log]:-0} ? n - 14 : ${log_lines_shown[$log]:-0} + 1))
        [ "$n" -ge "$from" ] || continue
        echo "    ${log#"$work"/}, line $from and on:"
        sed -n "$from,${n}p" "$log" | cut -c 1-300 | sed 's/^/    | /'
        log_lines_shown[$log]=$n
    done < <(find "$work" \( -name '*.log' -o -name log -o -name err \) -type f -size +0 -printf '%T@ %p\n' |
        sort -n | tail -n 16 | cut -d ' ' -f 2-)
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

# refused CODE TEXT COMMAND...: the exit code, TEXT on standard error, nothing on standard output. Both are in
# the files out and err of the current folder.
refused() {
    local code=$1 text=$2 got

    shift 2
    "$@" >out 2>err </dev/null
    got=$?
    if [ "$got" = "$code" ] && grep -qF -- "$text" err && [ ! -s out ]; then
        ok "refused: $*"
    else
        fail "$*: exit $got (not $code), said: $(cat out err)"
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
    local end=$((SECONDS + $1 * patience))

    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

is_running() { kill -0 "$1" 2>/dev/null; }
has_ended() { ! kill -0 "$1" 2>/dev/null; }

# wait_beside PID LOG COMMAND...: true as soon as the command is; false when the process has ended
# without it, or says nothing in its log for a minute. How long a run takes is no matter.
wait_beside() {
    local pid=$1 log=$2 size=-1 now end

    shift 2
    until "$@"; do
        now=$(stat -c %s "$log" 2>/dev/null || echo 0)
        [ "$now" = "$size" ] || end=$((SECONDS + 60 * patience))
        size=$now
        if has_ended "$pid"; then
            "$@" # its last words
            return
        fi
        [ $SECONDS -lt "$end" ] || return 1
        sleep 0.1
    done
}

# ends TEXT PID SECONDS: it ends by itself within that time, with exit status 0.
ends() {
    if ! wait_until "$3" has_ended "$2"; then
        fail "$1: still there after $(($3 * patience)) s"
        return
    fi
    wait "$2"
    same "$1: exit status" 0 $?
}

# run_ends TEXT PID LOG: the same of a run, which takes as long as it does while its log grows.
run_ends() {
    if ! wait_beside "$2" "$3" has_ended "$2"; then
        fail "$1: still there, and nothing new in ${3##*/} for $((60 * patience)) s"
        return
    fi
    wait "$2"
    same "$1: exit status" 0 $?
}

# reaches NAME STEP PID: the run whose submitter logs to NAME.log has done that step.
at_step() { grep -q "^step $2/" "$work/$1.log" 2>/dev/null; }
reaches() { wait_beside "$3" "$work/$1.log" at_step "$1" "$2" || fail "$1: no step $2"; }
