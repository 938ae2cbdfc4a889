#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes ./configure after a fresh checkout.
set -e
cd "$(dirname "$0")"
exec autoreconf --install --force --warnings=all,no-portability,no-obsolete
