#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What meets in an engine's loop, over io_uring: threads that post, streams, whole data planes. The other
# tests run these over epoll.
set -u

export HDT_TEST_ENGINE=io_uring

tests/tsan/tsan_engine || exit # 77: this build or machine has none, as its last line says
for test in tests/unit/test_stream tests/unit/test_dataplane; do
    [ ! -x "$test" ] || "$test" || exit 1
done
