#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The search over layouts against every layout of 200 small random clusters (HDT_TEST_SEED: of others).
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh"

[ -x tests/unit/test_layout_search ] || skip "built without Criterion"
check "as good as all of 200 clusters, and where a plan runs" env HDT_TEST_CLUSTERS="${HDT_TEST_CLUSTERS:-200}" \
    tests/unit/test_layout_search --filter 'layout_search/is_as_good_as_trying_all*' --verbose=1

[ "$n_failed" = 0 ]
