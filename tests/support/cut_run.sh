#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Seconds from the healing of a cut link to the first acknowledged frames, for 'scripts/bench cut'; runs
# in the build folder.
#
#     cut_run.sh SECONDS ROUNDS wait|beside LINK...    prints a number a round, one a line
set -eu
src=$(realpath "${srcdir:-.}")
seconds=$1 rounds=$2 mode=$3
shift 3
work=$(mktemp -d /tmp/hdt-cut.XXXXXX)
export WANLAB_DIR=$work/lab HDT_WANEM=$PWD/hdt-wanem
lab=$src/scripts/wan-lab
trap '"$lab" down >/dev/null 2>&1; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cat >"$work/topo" <<TOPO
port a site cuta$$ addr 10.75.0.1/24
port b site cutb$$ addr 10.75.0.2/24
link a b rate 100mbit queue 100ms $*
TOPO
"$lab" up "$work/topo"
tests/bench/bench_cut "$("$lab" netns cuta$$)" 10.75.0.1 "$("$lab" netns cutb$$)" 10.75.0.2 \
    "$lab ctl link a b down" "$lab ctl link a b up" "$seconds" "$rounds" "$mode" 2>/dev/null
