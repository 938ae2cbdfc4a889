/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LOGS_MERGE_H
#define HDT_CLI_LOGS_MERGE_H

/*
 * Logs of several programs as one, by time. What several of them say within a minute, and what one
 * says of several ranks or streams, is one line that names the others (src/base/repeat.h).
 */
#include "src/base/buf.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_logs_merge {
    struct hdt_logs_line *lines;
    size_t n, cap;
};

/* Add the lines of a log; `who`: whose it is ("site-a/w0"). Lines that have no time stamp are left
 * out. */
void hdt_logs_merge_add(struct hdt_logs_merge *merge, const char *who, const char *text);

/* Append the merged lines to out. */
void hdt_logs_merge_print(struct hdt_logs_merge *merge, struct hdt_buf *out);
void hdt_logs_merge_release(struct hdt_logs_merge *merge);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_LOGS_MERGE_H */
