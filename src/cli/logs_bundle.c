/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts are written as files below a folder of their own beside the archive, which tar(1) then
 * packs. tar was preferred to libarchive: it is on every system, it is not on any path that must
 * not fail, and a package less is to be kept.
 */
#include "config.h"

#include "src/cli/logs_bundle.h"
#include "src/cli/doctor_local.h"
#include "src/cli/gwoptions.h"
#include "src/cli/places.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ASK_TIMEOUT_MS    15000
#define DOCTOR_TIMEOUT_MS 60000 /* a gateway measures its links */
#define DUMP_WAIT_MS      10000
#define DUMP_LOOK_MS      100
#define LOG_LINES         4096
#define FILE_MAX          ((size_t)64 << 20) /* of one file; a dump has 40 MB at most */
#define FILES_MAX         64                 /* of one place */
#define TOP               "hdt-bundle"       /* the folder in the archive */

extern char **environ;

struct bundle {
    const struct hdt_logs_bundle_conf *conf;
    struct hdt_gwclient *client;
    char *dir; /* that is packed, removed at the end */
    struct hdt_buf manifest;
    int n_missing;
};

/* ---- writing ---- */

static void missing_add(struct bundle *b, const char *what, const char *why)
{
    b->n_missing++;
    hdt_buf_appendf(&b->manifest, "missing  %-44s %s\n", what, why);
}

static void part_write(struct bundle *b, const char *name, const struct hdt_buf *bytes)
{
    char *path = hdt_asprintf("%s/" TOP "/%s", b->dir, name), *slash = strrchr(path, '/');
    struct hdt_error err = {0};
    enum hdt_status status;

    *slash = '\0';
    status = hdt_dir_make(path, 0700, &err);
    *slash = '/';
    if (status == HDT_OK) {
        status = hdt_file_write(path, bytes, 0600, HDT_FILE_REPLACE, &err);
    }
    if (status == HDT_OK) {
        hdt_buf_appendf(&b->manifest, "ok       %-44s %zu bytes\n", name, bytes->len);
    } else {
        missing_add(b, name, err.msg);
    }
    free(path);
}

static void text_write(struct bundle *b, const char *place, const char *name, const char *text)
{
    char *whole = hdt_asprintf("%s%s%s", place, place[0] ? "/" : "", name);
    struct hdt_buf bytes = {0};

    hdt_buf_append_str(&bytes, text);
    part_write(b, whole, &bytes);
    hdt_buf_release(&bytes);
    free(whole);
}

static void json_write(struct bundle *b, const char *place, const char *name, const json_t *json)
{
    char *text = json_dumps(json, JSON_INDENT(2));

    text_write(b, place, name, text ? text : "");
    free(text);
}

/* ---- asking ---- */

/* One answer as a file. `field`: the text in it that is wanted; NULL: all of it. false: the place
 * is not to be asked any more. */
struct part {
    const char *type, *expect, *name, *field;
    int timeout_ms;
    bool of_worker; /* workers have it, too */
};

static const struct part parts[] = {
    {"logs", "logs.are", "log.txt", "text", ASK_TIMEOUT_MS, true},
    {"status", "status.is", "status.json", NULL, ASK_TIMEOUT_MS, false},
    {"doctor", "doctor.is", "doctor.json", NULL, DOCTOR_TIMEOUT_MS, true},
};

/* Is it no use to ask this place for more? */
static bool is_silent(enum hdt_status status)
{
    return status == HDT_ETIMEDOUT || status == HDT_EPEER || status == HDT_ECANCELED;
}

static bool part_get(struct bundle *b, const struct hdt_place *place, const struct part *part)
{
    struct hdt_gwclient_request request = {.type = part->type,
                                           .expect = part->expect,
                                           .timeout_ms = part->timeout_ms,
                                           .body = json_pack("{s:i}", "n", LOG_LINES)};
    struct hdt_error err = {0};
    enum hdt_status status;
    json_t *body;

    status = hdt_place_ask(b->client, place, &request, &body, &err);
    if (status != HDT_OK) {
        char *what = hdt_asprintf("%s/%s", place->address, part->name);

        missing_add(b, what, err.msg);
        free(what);
        return !is_silent(status);
    }
    if (part->field) {
        const char *text = json_string_value(json_object_get(body, part->field));

        text_write(b, place->address, part->name, text ? text : "");
    } else {
        json_write(b, place->address, part->name, body);
    }
    json_decref(body);
    return true;
}

static enum hdt_status list_get(struct bundle *b, const struct hdt_place *place, bool dump,
                                json_t **body, struct hdt_error *err)
{
    struct hdt_gwclient_request request = {.type = "bundle.list",
                                           .expect = "bundle.is",
                                           .timeout_ms = ASK_TIMEOUT_MS,
                                           .body =
                                               json_pack("{s:b, s:I, s:b}", "dump", dump, "job",
                                                         b->conf->job, "traces", b->conf->traces)};

    return hdt_place_ask(b->client, place, &request, body, err);
}

/* What it has, once its flight recorder of this moment is written. */
static enum hdt_status list_after_dump(struct bundle *b, const struct hdt_place *place,
                                       json_t **body, struct hdt_error *err)
{
    const int64_t until_us = hdt_clock_now_us() + DUMP_WAIT_MS * HDT_US_PER_MS;
    json_int_t before;

    HDT_TRY(list_get(b, place, true, body, err));
    before = json_integer_value(json_object_get(*body, "dumps"));
    while (json_integer_value(json_object_get(*body, "dumps")) <= before &&
           hdt_clock_now_us() < until_us) {
        nanosleep(&(struct timespec){.tv_nsec = DUMP_LOOK_MS * 1000000L}, NULL);
        json_decref(*body);
        HDT_TRY(list_get(b, place, false, body, err));
    }
    return HDT_OK;
}

/* A file, piece by piece. */
static enum hdt_status file_get(struct bundle *b, const struct hdt_place *place, const char *name,
                                json_int_t offset, struct hdt_buf *bytes, struct hdt_error *err)
{
    bool end = false;

    while (!end && bytes->len < FILE_MAX) {
        struct hdt_gwclient_request request = {
            .type = "bundle.read",
            .expect = "bundle.piece",
            .timeout_ms = ASK_TIMEOUT_MS,
            .body =
                json_pack("{s:s, s:I, s:I}", "name", name, "job", b->conf->job, "offset", offset)};
        json_int_t next;
        const json_t *text;
        json_t *body;

        HDT_TRY(hdt_place_ask(b->client, place, &request, &body, err));
        text = json_object_get(body, "text");
        next = json_integer_value(json_object_get(body, "next"));
        end = json_is_true(json_object_get(body, "end")) || next <= offset;
        if (json_is_string(text)) {
            hdt_buf_append(bytes, json_string_value(text), json_string_length(text));
        }
        offset = next;
        json_decref(body);
    }
    return HDT_OK;
}

/* A name of another program becomes one of ours: one level, no dots in front. */
static bool name_is_plain(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/') && strlen(name) < 200;
}

static bool files_get(struct bundle *b, const struct hdt_place *place, const json_t *list)
{
    const json_t *file;
    size_t i;

    json_array_foreach(json_object_get(list, "files"), i, file)
    {
        const char *name = json_string_value(json_object_get(file, "name"));
        struct hdt_error err = {0};
        struct hdt_buf bytes = {0};
        enum hdt_status status;
        char *whole;

        if (!name || !name_is_plain(name) || i >= FILES_MAX) {
            continue;
        }
        whole = hdt_asprintf("%s/%s", place->address, name);
        status = file_get(b, place, name, json_integer_value(json_object_get(file, "from")), &bytes,
                          &err);
        if (status == HDT_OK) {
            part_write(b, whole, &bytes);
        } else {
            missing_add(b, whole, err.msg);
        }
        hdt_buf_release(&bytes);
        free(whole);
        if (is_silent(status)) {
            return false;
        }
    }
    return true;
}

static void texts_write(struct bundle *b, const struct hdt_place *place, json_t *list)
{
    const char *name;
    json_t *text;

    json_object_foreach(json_object_get(list, "texts"), name, text)
    {
        if (name_is_plain(name) && json_is_string(text)) {
            text_write(b, place->address, name, json_string_value(text));
        }
    }
}

static void place_get(struct bundle *b, const struct hdt_place *place)
{
    struct hdt_error err = {0};
    char *what;
    json_t *list;

    if (!place->up) {
        missing_add(b, place->address, place->why_not);
        return;
    }
    /* The recorder first: what is asked after it fills it. */
    if (list_after_dump(b, place, &list, &err) != HDT_OK) {
        what = hdt_asprintf("%s/ (all of it)", place->address);
        missing_add(b, what, err.msg);
        free(what);
        return;
    }
    texts_write(b, place, list);
    if (files_get(b, place, list)) {
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            if ((!place->worker[0] || parts[i].of_worker) && !part_get(b, place, &parts[i])) {
                break;
            }
        }
    }
    json_decref(list);
}

/* What this command itself knows. */
static void own_get(struct bundle *b)
{
    const struct hdt_doctor_files files = {0};
    json_t *checks = json_array();

    hdt_doctor_local(checks, &files);
    json_write(b, "", "here-doctor.json", checks);
    json_decref(checks);
    text_write(b, "", "here-version.txt", "hdt " PACKAGE_VERSION "\n");
}

/* Has a gateway anything of the job, in memory or in the folder of its run? */
static bool list_has_job(const json_t *list)
{
    const json_t *file;
    size_t i;

    json_array_foreach(json_object_get(list, "files"), i, file)
    {
        const char *name = json_string_value(json_object_get(file, "name"));

        if (name && strcmp(name, "metrics.jsonl") == 0) {
            return true;
        }
    }
    return json_object_get(json_object_get(list, "texts"), "plan.json") != NULL;
}

/* Any gateway may have coordinated it; the one that is asked comes first. */
static enum hdt_status job_check(struct bundle *b, const struct hdt_places *places,
                                 struct hdt_error *err)
{
    bool is_known = b->conf->job == 0;

    for (size_t i = 0; i < places->n && !is_known; i++) {
        struct hdt_error ignored = {0};
        json_t *list;

        if (places->items[i].up && !places->items[i].worker[0] &&
            list_get(b, &places->items[i], false, &list, &ignored) == HDT_OK) {
            is_known = list_has_job(list);
            json_decref(list);
        }
    }
    if (!is_known) {
        hdt_error_set(err, HDT_ENOENT, "the gateway knows no job %lld", (long long)b->conf->job);
        hdt_error_hint(err, "'hdt status' lists jobs");
        return HDT_ENOENT;
    }
    return HDT_OK;
}

static enum hdt_status bundle_collect(struct bundle *b, struct hdt_error *err)
{
    struct hdt_places places;
    enum hdt_status known;
    json_t *status;

    HDT_TRY(hdt_places_status(b->client, &status, err));
    hdt_places_read(status, &places);
    known = job_check(b, &places, err);
    if (known == HDT_OK) {
        own_get(b);
    }
    for (size_t i = 0; known == HDT_OK && i < places.n && hdt_interrupts_count() == 0; i++) {
        place_get(b, &places.items[i]);
    }
    hdt_places_release(&places);
    json_decref(status);
    HDT_TRY(known);
    if (hdt_interrupts_count() > 0) {
        return hdt_error_set(err, HDT_ECANCELED, "interrupted; no bundle was written");
    }
    return HDT_OK;
}

/* ---- the archive ---- */

static int entry_remove(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static enum hdt_status tar_run(const char *dir, const char *part, struct hdt_error *err)
{
    char *argv[] = {"tar", "-C", (char *)dir, "-czf", (char *)part, TOP, NULL};
    pid_t pid;
    int status = 0, rc = posix_spawnp(&pid, "tar", NULL, NULL, argv, environ);

    if (rc != 0) {
        return hdt_error_set_errno(err, HDT_EIO, rc, "cannot run tar");
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        hdt_error_set(err, HDT_EIO, "cannot write '%s': tar has failed", part);
        hdt_error_hint(err, "is the disk full, are tar and gzip there?");
        return HDT_EIO;
    }
    return HDT_OK;
}

enum hdt_status hdt_logs_bundle_check(const struct hdt_logs_bundle_conf *conf,
                                      struct hdt_error *err)
{
    if (!conf->force && hdt_file_exists(conf->file)) {
        hdt_error_set(err, HDT_EEXIST, "'%s' exists already; nothing was changed", conf->file);
        hdt_error_hint(err, "write another file, or replace it with --force");
        return HDT_EEXIST;
    }
    return HDT_OK;
}

/* Under another name until it is whole; readable by its owner only from the first byte on. */
static enum hdt_status archive_write(const struct bundle *b, struct hdt_error *err)
{
    char *part = hdt_asprintf("%s/bundle.tar.gz", b->dir);
    enum hdt_status status;
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd < 0) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", part);
        free(part);
        return status;
    }
    status = tar_run(b->dir, part, err);
    if (status == HDT_OK) {
        status = hdt_logs_bundle_check(b->conf, err);
    }
    if (status == HDT_OK && (fsync(fd) != 0 || rename(part, b->conf->file) != 0)) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", b->conf->file);
    }
    close(fd);
    free(part);
    return status;
}

static void manifest_write(struct bundle *b)
{
    char *path = hdt_asprintf("%s/" TOP "/MANIFEST", b->dir);
    struct hdt_buf text = {0};
    struct hdt_error err = {0};
    time_t now = time(NULL);
    struct tm utc;
    char stamp[32];

    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    hdt_buf_appendf(&text, "hdt %s, %s, asked of site %s\n", PACKAGE_VERSION, stamp,
                    hdt_gwclient_site(b->client));
    hdt_buf_appendf(&text, b->n_missing ? "%d parts are missing\n\n" : "nothing is missing\n\n",
                    b->n_missing);
    hdt_buf_append(&text, b->manifest.data, b->manifest.len);
    (void)hdt_file_write(path, &text, 0600, HDT_FILE_REPLACE, &err); /* tar says when it failed */
    hdt_buf_release(&text);
    free(path);
}

/* A folder beside the archive: on the same disk, so that the end is a rename. */
static char *dir_make(const char *file, struct hdt_error *err)
{
    const char *slash = strrchr(file, '/');
    char *dir = hdt_asprintf("%.*s.hdt-bundle-XXXXXX", slash ? (int)(slash - file) + 1 : 0, file);
    char *top;

    if (!mkdtemp(dir)) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", file);
        free(dir);
        return NULL;
    }
    top = hdt_asprintf("%s/" TOP, dir);
    (void)mkdir(top, 0700);
    free(top);
    return dir;
}

enum hdt_status hdt_logs_bundle_make(struct hdt_gwclient *client,
                                     const struct hdt_logs_bundle_conf *conf, int *n_missing,
                                     struct hdt_error *err)
{
    struct bundle b = {.conf = conf, .client = client, .dir = dir_make(conf->file, err)};
    enum hdt_status status;

    if (!b.dir) {
        return HDT_EIO;
    }
    status = bundle_collect(&b, err);
    if (status == HDT_OK) {
        manifest_write(&b);
        status = archive_write(&b, err);
    }
    nftw(b.dir, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
    hdt_buf_release(&b.manifest);
    free(b.dir);
    *n_missing = b.n_missing;
    return status;
}
