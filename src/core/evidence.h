/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_EVIDENCE_H
#define HDT_CORE_EVIDENCE_H

/*
 * What a gateway or a worker gives to a bug report ("bundle.list", "bundle.read"): files of its
 * state_dir, in pieces that fit a control message. Only the flight recorder's dumps of this
 * process, a job's metrics.jsonl and its traces have a name here; nothing else can be asked for.
 */
#include "src/base/error.h"

#include <jansson.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_EVIDENCE_PIECE ((size_t)1 << 20) /* bytes of a file in one message */
#define HDT_EVIDENCE_TAIL  ((size_t)4 << 20) /* of metrics.jsonl: its end */

/* Array of {name, bytes, from}: `from` is where to begin to read. `job`: its number, 0: none. New
 * reference. */
json_t *hdt_evidence_files(const char *state_dir, json_int_t job, bool traces);

/* Answer "bundle.read {name, job, offset}": *body is {text, next, end}, a new reference. The text
 * ends with a line where it can; bytes that are no UTF-8 are '?'. HDT_ENOENT: no such file is given
 * out. */
enum hdt_status hdt_evidence_read(const char *state_dir, const json_t *request, json_t **body,
                                  struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_EVIDENCE_H */
