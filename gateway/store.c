/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/log.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A record that could not be written, as it would be now. */
struct waiting {
    uint32_t job;
    char state[32];
    char *text;
};

struct hdt_store {
    sqlite3 *db;
    char *path;
    struct waiting *waiting; /* one a job */
    size_t n_waiting;
};

static const char schema_sql[] =
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA locking_mode=EXCLUSIVE;"
    "CREATE TABLE IF NOT EXISTS jobs(job INTEGER PRIMARY KEY, state TEXT NOT NULL,"
    " record TEXT NOT NULL, digest TEXT NOT NULL,"
    " changed TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);"
    "CREATE TABLE IF NOT EXISTS counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL,"
    " digest TEXT NOT NULL);"
    "PRAGMA user_version=1;";

#define DIGEST_CAP 17
#define COUNT_ROWS "records" /* counter of the records that there are */

static enum hdt_status store_error(const struct hdt_store *store, const char *what,
                                   struct hdt_error *err)
{
    int rc = sqlite3_errcode(store->db);

    hdt_error_set(err, HDT_EIO, "cannot %s job state '%s': %s", what, store->path,
                  sqlite3_errmsg(store->db));
    if (rc == SQLITE_CORRUPT || rc == SQLITE_NOTADB) {
        hdt_error_hint(err, "move it away and start again; jobs that ran go on with 'hdt submit "
                            "--resume' from their last checkpoints");
    } else {
        hdt_error_hint(err, "check free space and the owner of state_dir");
    }
    return HDT_EIO;
}

static enum hdt_status store_damaged(const struct hdt_store *store, const char *what,
                                     struct hdt_error *err)
{
    hdt_error_set(err, HDT_EIO, "cannot read job state '%s': it is damaged: %s", store->path, what);
    hdt_error_hint(err, "move it away and start again; jobs that ran go on with 'hdt submit "
                        "--resume' from their last checkpoints");
    return HDT_EIO;
}

/* SQLite finds a damaged page by its structure only; values have digests of their own. */
static void row_digest(int64_t number, const char *name, const char *text, char digest[DIGEST_CAP])
{
    char *all = hdt_asprintf("%" PRId64 "\n%s\n%s", number, name, text);

    snprintf(digest, DIGEST_CAP, "%016" PRIx64, (uint64_t)XXH3_64bits(all, strlen(all)));
    free(all);
}

static bool digest_is(sqlite3_stmt *stmt, int column, const char *want)
{
    const char *got = (const char *)sqlite3_column_text(stmt, column);

    return got && strcmp(got, want) == 0;
}

static const char *column_text(sqlite3_stmt *stmt, int column)
{
    const char *text = (const char *)sqlite3_column_text(stmt, column);

    return text ? text : "";
}

/* Is its structure whole? It is small: milliseconds. */
static enum hdt_status store_check(struct hdt_store *store, struct hdt_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status = HDT_OK;

    if (sqlite3_prepare_v2(store->db, "PRAGMA integrity_check(1)", -1, &stmt, NULL) != SQLITE_OK ||
        sqlite3_step(stmt) != SQLITE_ROW) {
        status = store_error(store, "read", err);
    } else if (strcmp(column_text(stmt, 0), "ok") != 0) {
        status = store_damaged(store, column_text(stmt, 0), err);
    }
    sqlite3_finalize(stmt);
    return status;
}

static enum hdt_status store_begin(struct hdt_store *store, struct hdt_error *err)
{
    if (sqlite3_open(store->path, &store->db) == SQLITE_OK &&
        sqlite3_exec(store->db, schema_sql, NULL, NULL, NULL) == SQLITE_OK) {
        return store_check(store, err);
    }
    if (sqlite3_errcode(store->db) == SQLITE_BUSY) {
        hdt_error_set(err, HDT_EEXIST, "cannot open job state '%s': another process holds it",
                      store->path);
        hdt_error_hint(err, "one gateway a state_dir; is hdt-gateway running already?");
        return HDT_EEXIST;
    }
    return store_error(store, "open", err);
}

enum hdt_status hdt_store_open(const char *dir, struct hdt_store **out, struct hdt_error *err)
{
    struct hdt_store *store = hdt_calloc(1, sizeof(*store));
    enum hdt_status status;

    store->path = hdt_asprintf("%s/hdt.db", dir);
    status = store_begin(store, err);
    if (status != HDT_OK) {
        hdt_store_close(store);
        return status;
    }
    *out = store;
    return HDT_OK;
}

void hdt_store_close(struct hdt_store *store)
{
    if (store) {
        hdt_store_retry(store);
        sqlite3_close(store->db);
        for (size_t i = 0; i < store->n_waiting; i++) {
            free(store->waiting[i].text);
        }
        free(store->waiting);
        free(store->path);
        free(store);
    }
}

/* ---- counters ---- */

/* *value 0: there is none of that name. */
static enum hdt_status counter_read(struct hdt_store *store, const char *name, int64_t *value,
                                    struct hdt_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status = HDT_OK;
    char want[DIGEST_CAP];
    int rc = SQLITE_ERROR;

    *value = 0;
    if (sqlite3_prepare_v2(store->db, "SELECT value, digest FROM counters WHERE name = ?", -1,
                           &stmt, NULL) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC) != SQLITE_OK ||
        ((rc = sqlite3_step(stmt)) != SQLITE_ROW && rc != SQLITE_DONE)) {
        status = store_error(store, "read", err);
    } else if (rc == SQLITE_ROW) {
        *value = sqlite3_column_int64(stmt, 0);
        row_digest(*value, name, "", want);
        if (!digest_is(stmt, 1, want)) {
            status = store_damaged(store, "the digest of a counter is another", err);
        }
    }
    sqlite3_finalize(stmt);
    return status;
}

static enum hdt_status counter_write(struct hdt_store *store, const char *name, int64_t value,
                                     struct hdt_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status = HDT_OK;
    char digest[DIGEST_CAP];

    row_digest(value, name, "", digest);
    if (sqlite3_prepare_v2(store->db,
                           "INSERT OR REPLACE INTO counters(name, value, digest) VALUES(?, ?, ?)",
                           -1, &stmt, NULL) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_int64(stmt, 2, value) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 3, digest, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_step(stmt) != SQLITE_DONE) {
        status = store_error(store, "write", err);
    }
    sqlite3_finalize(stmt);
    return status;
}

enum hdt_status hdt_store_next(struct hdt_store *store, const char *counter, int64_t *value,
                               struct hdt_error *err)
{
    int64_t last;

    HDT_TRY(counter_read(store, counter, &last, err));
    HDT_TRY(counter_write(store, counter, last + 1, err));
    *value = last + 1;
    return HDT_OK;
}

/* ---- records ---- */

static enum hdt_status row_exists(struct hdt_store *store, uint32_t job, bool *there,
                                  struct hdt_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status = HDT_OK;
    int rc = SQLITE_ERROR;

    if (sqlite3_prepare_v2(store->db, "SELECT 1 FROM jobs WHERE job = ?", -1, &stmt, NULL) !=
            SQLITE_OK ||
        sqlite3_bind_int64(stmt, 1, job) != SQLITE_OK ||
        ((rc = sqlite3_step(stmt)) != SQLITE_ROW && rc != SQLITE_DONE)) {
        status = store_error(store, "read", err);
    }
    *there = rc == SQLITE_ROW;
    sqlite3_finalize(stmt);
    return status;
}

static enum hdt_status row_write(struct hdt_store *store, const struct waiting *row,
                                 struct hdt_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status = HDT_OK;
    char digest[DIGEST_CAP];

    row_digest(row->job, row->state, row->text, digest);
    if (sqlite3_prepare_v2(
            store->db, "INSERT OR REPLACE INTO jobs(job, state, record, digest) VALUES(?, ?, ?, ?)",
            -1, &stmt, NULL) != SQLITE_OK ||
        sqlite3_bind_int64(stmt, 1, row->job) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 2, row->state, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 3, row->text, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 4, digest, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_step(stmt) != SQLITE_DONE) {
        status = store_error(store, "write", err);
    }
    sqlite3_finalize(stmt);
    return status;
}

static enum hdt_status row_put(struct hdt_store *store, const struct waiting *row,
                               struct hdt_error *err)
{
    int64_t n_rows;
    bool there;

    HDT_TRY(row_exists(store, row->job, &there, err));
    HDT_TRY(row_write(store, row, err));
    if (there) {
        return HDT_OK;
    }
    HDT_TRY(counter_read(store, COUNT_ROWS, &n_rows, err));
    return counter_write(store, COUNT_ROWS, n_rows + 1, err);
}

static enum hdt_status transaction_begin(struct hdt_store *store, struct hdt_error *err)
{
    if (sqlite3_exec(store->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK) {
        return store_error(store, "write", err);
    }
    return HDT_OK;
}

/* Keep what was done in it, or nothing of it when something failed. */
static enum hdt_status transaction_end(struct hdt_store *store, enum hdt_status status,
                                       struct hdt_error *err)
{
    if (status == HDT_OK && sqlite3_exec(store->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK) {
        status = store_error(store, "write", err);
    }
    if (status != HDT_OK && !sqlite3_get_autocommit(store->db)) {
        sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    }
    return status;
}

/* A record, and the count when it is a new one: both or none. */
static enum hdt_status record_put(struct hdt_store *store, const struct waiting *row,
                                  struct hdt_error *err)
{
    HDT_TRY(transaction_begin(store, err));
    return transaction_end(store, row_put(store, row, err), err);
}

static enum hdt_status rows_delete(struct hdt_store *store, const char *states, size_t n_keep,
                                   struct hdt_error *err)
{
    static const char sql[] =
        "DELETE FROM jobs WHERE instr(' '||?1||' ', ' '||state||' ') > 0 AND job NOT IN"
        " (SELECT job FROM jobs WHERE instr(' '||?1||' ', ' '||state||' ') > 0"
        " ORDER BY job DESC LIMIT ?2)";
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status = HDT_OK;

    if (sqlite3_prepare_v2(store->db, sql, -1, &stmt, NULL) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 1, states, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_int64(stmt, 2, (int64_t)n_keep) != SQLITE_OK ||
        sqlite3_step(stmt) != SQLITE_DONE) {
        status = store_error(store, "write", err);
    }
    sqlite3_finalize(stmt);
    return status;
}

static enum hdt_status rows_prune(struct hdt_store *store, const char *states, size_t n_keep,
                                  struct hdt_error *err)
{
    int64_t n_rows, n_gone;

    HDT_TRY(rows_delete(store, states, n_keep, err));
    n_gone = sqlite3_changes(store->db);
    HDT_TRY(counter_read(store, COUNT_ROWS, &n_rows, err));
    return n_gone > 0 ? counter_write(store, COUNT_ROWS, n_rows - n_gone, err) : HDT_OK;
}

enum hdt_status hdt_store_prune(struct hdt_store *store, const char *states, size_t n_keep,
                                struct hdt_error *err)
{
    HDT_TRY(transaction_begin(store, err));
    return transaction_end(store, rows_prune(store, states, n_keep, err), err);
}

/* Place of a job among those that wait; n_waiting: none. */
static size_t waiting_find(const struct hdt_store *store, uint32_t job)
{
    size_t i;

    for (i = 0; i < store->n_waiting && store->waiting[i].job != job; i++) {
    }
    return i;
}

static void waiting_remove(struct hdt_store *store, size_t i)
{
    free(store->waiting[i].text);
    store->waiting[i] = store->waiting[--store->n_waiting];
}

/* Takes the text. */
static void waiting_add(struct hdt_store *store, const struct waiting *row)
{
    store->waiting =
        hdt_realloc(store->waiting, (store->n_waiting + 1) * sizeof(store->waiting[0]));
    store->waiting[store->n_waiting++] = *row;
}

enum hdt_status hdt_store_put_job(struct hdt_store *store, uint32_t job, const char *state,
                                  const json_t *record, struct hdt_error *err)
{
    struct waiting row = {.job = job,
                          .text = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(17))};
    size_t old = waiting_find(store, job);
    enum hdt_status status;

    snprintf(row.state, sizeof(row.state), "%s", state);
    if (old < store->n_waiting) {
        waiting_remove(store, old);
    }
    status = record_put(store, &row, err);
    if (status == HDT_OK) {
        free(row.text);
    } else {
        waiting_add(store, &row);
    }
    return status;
}

void hdt_store_retry(struct hdt_store *store)
{
    struct hdt_error err = {0};

    while (store->n_waiting > 0 && record_put(store, &store->waiting[0], &err) == HDT_OK) {
        hdt_log_info("job state '%s': the record of job %u is written now", store->path,
                     store->waiting[0].job);
        waiting_remove(store, 0);
    }
    if (store->n_waiting > 0) {
        hdt_log_warn_limited(60, "%zu records of jobs wait: %s", store->n_waiting, err.msg);
    }
}

size_t hdt_store_n_waiting(const struct hdt_store *store)
{
    return store->n_waiting;
}

/* One row; false: it is damaged. */
static bool row_read(const struct hdt_store *store, sqlite3_stmt *stmt, json_t **record)
{
    const char *state = column_text(stmt, 1), *text = column_text(stmt, 2);
    int64_t job = sqlite3_column_int64(stmt, 0);
    char want[DIGEST_CAP];

    row_digest(job, state, text, want);
    *record = digest_is(stmt, 3, want) ? json_loads(text, 0, NULL) : NULL;
    if (!*record) {
        hdt_log_error("job state '%s': the record of job %" PRId64 " is damaged and left out; go "
                      "on with 'hdt submit --resume' from its last checkpoint",
                      store->path, job);
    }
    return *record != NULL;
}

enum hdt_status hdt_store_each_job(struct hdt_store *store,
                                   void (*each)(void *user, uint32_t job, const char *state,
                                                const json_t *record),
                                   void *user, struct hdt_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status;
    int64_t n_rows, n = 0;
    json_t *record;
    int rc;

    HDT_TRY(counter_read(store, COUNT_ROWS, &n_rows, err));
    status = HDT_OK;
    if (sqlite3_prepare_v2(store->db, "SELECT job, state, record, digest FROM jobs ORDER BY job",
                           -1, &stmt, NULL) != SQLITE_OK) {
        return store_error(store, "read", err);
    }
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        n++;
        if (row_read(store, stmt, &record)) {
            each(user, (uint32_t)sqlite3_column_int64(stmt, 0), column_text(stmt, 1), record);
            json_decref(record);
        }
    }
    if (rc != SQLITE_DONE) {
        status = store_error(store, "read", err);
    } else if (n != n_rows) {
        status = store_damaged(store, "records are missing", err);
    }
    sqlite3_finalize(stmt);
    return status;
}
