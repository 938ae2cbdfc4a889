/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_STORE_H
#define HDT_GATEWAY_STORE_H

/*
 * Job state on disk. Narrow, so that a replicated store can take its place: whole records by job
 * number. At the coordinator a record is the job's truth; at the other sites of the plan it is
 * their copy of it. SQLite in WAL mode; every put is durable when it returns. Main thread; a put
 * takes a disk flush (milliseconds), so only state changes and checkpoints are put, not steps.
 */
#include "src/base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct hdt_store;

/* Open DIR/hdt.db, made when missing. HDT_EIO (damaged, too); HDT_EEXIST when another gateway holds
 * it. */
enum hdt_status hdt_store_open(const char *dir, struct hdt_store **store, struct hdt_error *err);
void hdt_store_close(struct hdt_store *store); /* tries once more what waits; NULL is allowed */

/* Insert or replace the record of a job. `state` is kept beside it for queries. HDT_EIO: the disk
 * refused; the record waits in memory, and hdt_store_retry writes it when there is room again. */
enum hdt_status hdt_store_put_job(struct hdt_store *store, uint32_t job, const char *state,
                                  const json_t *record, struct hdt_error *err);

/* Write what waits; some seconds apart. Logs what it could write, and what it still cannot. */
void hdt_store_retry(struct hdt_store *store);
size_t hdt_store_n_waiting(const struct hdt_store *store);

/* Call `each` for every record, in order of job number; the record is borrowed. One whose digest is
 * not its own is left out, with an error in the log. HDT_EIO: records are missing, or cannot be
 * read. */
enum hdt_status hdt_store_each_job(struct hdt_store *store,
                                   void (*each)(void *user, uint32_t job, const char *state,
                                                const json_t *record),
                                   void *user, struct hdt_error *err);

/* Delete the records in these states ("done failed") but the newest n_keep of them, by number. */
enum hdt_status hdt_store_prune(struct hdt_store *store, const char *states, size_t n_keep,
                                struct hdt_error *err);

/* A number that grows by one a call and survives restarts: 1, 2, ... */
enum hdt_status hdt_store_next(struct hdt_store *store, const char *counter, int64_t *value,
                               struct hdt_error *err);

#endif /* HDT_GATEWAY_STORE_H */
