/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/store.h"
#include "src/base/buf.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

struct hdt_store {
    sqlite3 *db;
    char *path;
};

static const char schema_sql[] =
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA locking_mode=EXCLUSIVE;"
    "CREATE TABLE IF NOT EXISTS jobs(job INTEGER PRIMARY KEY, state TEXT NOT NULL,"
    " record TEXT NOT NULL, changed TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);"
    "CREATE TABLE IF NOT EXISTS counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL);"
    "PRAGMA user_version=1;";

static enum hdt_status store_error(const struct hdt_store *store, const char *what,
                                   struct hdt_error *err)
{
    hdt_error_set(err, HDT_EIO, "cannot %s job state '%s': %s", what, store->path,
                  sqlite3_errmsg(store->db));
    hdt_error_hint(err, "check free space and the owner of state_dir");
    return HDT_EIO;
}

enum hdt_status hdt_store_open(const char *dir, struct hdt_store **out, struct hdt_error *err)
{
    struct hdt_store *store = hdt_calloc(1, sizeof(*store));
    enum hdt_status status = HDT_OK;

    store->path = hdt_asprintf("%s/hdt.db", dir);
    if (sqlite3_open(store->path, &store->db) != SQLITE_OK) {
        status = store_error(store, "open", err);
    } else if (sqlite3_exec(store->db, schema_sql, NULL, NULL, NULL) != SQLITE_OK) {
        status = store_error(store, "open", err);
        if (sqlite3_errcode(store->db) == SQLITE_BUSY) {
            status =
                hdt_error_set(err, HDT_EEXIST,
                              "cannot open job state '%s': another process holds it", store->path);
            hdt_error_hint(err, "one gateway a state_dir; is hdt-gateway running already?");
        }
    }
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
        sqlite3_close(store->db);
        free(store->path);
        free(store);
    }
}

enum hdt_status hdt_store_put_job(struct hdt_store *store, uint32_t job, const char *state,
                                  const json_t *record, struct hdt_error *err)
{
    char *text = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(17));
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status = HDT_OK;

    if (sqlite3_prepare_v2(store->db,
                           "INSERT OR REPLACE INTO jobs(job, state, record) VALUES(?, ?, ?)", -1,
                           &stmt, NULL) != SQLITE_OK ||
        sqlite3_bind_int64(stmt, 1, job) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 2, state, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 3, text, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_step(stmt) != SQLITE_DONE) {
        status = store_error(store, "write", err);
    }
    sqlite3_finalize(stmt);
    free(text);
    return status;
}

enum hdt_status hdt_store_each_job(struct hdt_store *store,
                                   void (*each)(void *user, uint32_t job, const char *state,
                                                const json_t *record),
                                   void *user, struct hdt_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status = HDT_OK;
    int rc;

    if (sqlite3_prepare_v2(store->db, "SELECT job, state, record FROM jobs ORDER BY job", -1, &stmt,
                           NULL) != SQLITE_OK) {
        return store_error(store, "read", err);
    }
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        json_t *record = json_loads((const char *)sqlite3_column_text(stmt, 2), 0, NULL);

        if (record) {
            each(user, (uint32_t)sqlite3_column_int64(stmt, 0),
                 (const char *)sqlite3_column_text(stmt, 1), record);
            json_decref(record);
        }
    }
    if (rc != SQLITE_DONE) {
        status = store_error(store, "read", err);
    }
    sqlite3_finalize(stmt);
    return status;
}

enum hdt_status hdt_store_next(struct hdt_store *store, const char *counter, int64_t *value,
                               struct hdt_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum hdt_status status = HDT_OK;

    if (sqlite3_prepare_v2(store->db,
                           "INSERT INTO counters(name, value) VALUES(?, 1) ON CONFLICT(name) DO"
                           " UPDATE SET value = value + 1 RETURNING value",
                           -1, &stmt, NULL) != SQLITE_OK ||
        sqlite3_bind_text(stmt, 1, counter, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_step(stmt) != SQLITE_ROW) {
        status = store_error(store, "count in", err);
    } else {
        *value = sqlite3_column_int64(stmt, 0);
        if (sqlite3_step(stmt) != SQLITE_DONE) {
            status = store_error(store, "count in", err);
        }
    }
    sqlite3_finalize(stmt);
    return status;
}
