/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_CONF_H
#define HDT_BASE_CONF_H

/*
 * Settings: one table says everything about a setting.
 *
 * A table row gives name, type, default, bounds and help. From it come the YAML parser, error
 * messages with file:line, the commented example (`hdt config example`), the explanation
 * (`hdt config explain`), the man page table and the JSON form in which a job travels.
 *
 * YAML is read by libyaml's events with their marks. Unknown keys, repeated keys, wrong types and
 * numbers out of bounds are refused with file:line:column, the allowed form, and for an unknown key
 * the nearest known one. A row without default is required.
 *
 * Units in text: bytes "64KiB" "2MiB" "1.5GiB" "1GB" or plain; durations "250ms" "10s" "5m" "2h";
 * rates (bits a second) "200mbit" "1gbit" "2.5gbit" "max" (0). Rates are kept in bits a second.
 *
 * Thread: one at a time per document. Ownership: strings and lists in a loaded struct belong to it
 * and are freed by hdt_conf_release.
 */
#include "src/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct json_t; /* jansson */

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_conf_type {
    HDT_CONF_T_STRING,   /* char * */
    HDT_CONF_T_PATH,     /* char *: relative to the folder of the file it stands in */
    HDT_CONF_T_BOOL,     /* bool */
    HDT_CONF_T_INT,      /* int64_t, bounds min..max */
    HDT_CONF_T_COUNT,    /* int64_t, bounds min..max above 0; 0 = "auto" */
    HDT_CONF_T_BYTES,    /* uint64_t, bounds min..max */
    HDT_CONF_T_DURATION, /* int64_t milliseconds, bounds min..max */
    HDT_CONF_T_RATE,     /* uint64_t bits a second, 0 = no limit ("max") */
    HDT_CONF_T_FLOAT,    /* double, bounds min..max; by default "null": may be null, then NaN */
    HDT_CONF_T_ENUM,     /* int: index into names[] */
    HDT_CONF_T_STRINGS,  /* struct hdt_conf_strings */
    HDT_CONF_T_SECTION,  /* a struct embedded at offset, described by rows */
    HDT_CONF_T_LIST,     /* struct hdt_conf_list of structs described by rows */
};

struct hdt_conf_strings {
    char **items;
    size_t n;
};

struct hdt_conf_list {
    void *items; /* n structs of row->item_size bytes */
    size_t n;
};

struct hdt_conf_row {
    const char *name; /* NULL ends a table */
    enum hdt_conf_type type;
    size_t offset;
    const char *def;          /* default as text; NULL: required (LIST and SECTION: ignored) */
    double min, max;          /* in the unit of the field; both 0: no bounds */
    const char *const *names; /* ENUM: NULL-terminated */
    const struct hdt_conf_row *rows; /* SECTION, LIST */
    size_t item_size;                /* LIST */
    const char *help;                /* one or two sentences */
    /* STRING, optional: is the text one that this setting may have? HDT_EINVAL with a hint. */
    enum hdt_status (*check)(const char *text, struct hdt_error *err);
};

struct hdt_conf_schema {
    const char *name; /* "gateway", "worker", "job": hdt config example NAME */
    const char *help; /* what the file is for; head comment of the example */
    const struct hdt_conf_row *rows;
    size_t size;       /* of the struct */
    const char *start; /* lists that a file is nothing without, as the example has them; or NULL */
};

#define HDT_CONF_STRING(s, f, def_, help_)                                                         \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_STRING, .offset = offsetof(s, f), .def = def_, .help = help_      \
 }
#define HDT_CONF_CHECKED(s, f, def_, check_, help_)                                                \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_STRING, .offset = offsetof(s, f), .def = def_, .check = check_,   \
  .help = help_                                                                                    \
 }
#define HDT_CONF_PATH(s, f, def_, help_)                                                           \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_PATH, .offset = offsetof(s, f), .def = def_, .help = help_        \
 }
#define HDT_CONF_BOOL(s, f, def_, help_)                                                           \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_BOOL, .offset = offsetof(s, f), .def = def_, .help = help_        \
 }
#define HDT_CONF_INT(s, f, def_, min_, max_, help_)                                                \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_INT, .offset = offsetof(s, f), .def = def_, .min = min_,          \
  .max = max_, .help = help_                                                                       \
 }
#define HDT_CONF_COUNT(s, f, def_, min_, max_, help_)                                              \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_COUNT, .offset = offsetof(s, f), .def = def_, .min = min_,        \
  .max = max_, .help = help_                                                                       \
 }
#define HDT_CONF_BYTES(s, f, def_, min_, max_, help_)                                              \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_BYTES, .offset = offsetof(s, f), .def = def_, .min = min_,        \
  .max = max_, .help = help_                                                                       \
 }
#define HDT_CONF_DURATION(s, f, def_, min_, max_, help_)                                           \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_DURATION, .offset = offsetof(s, f), .def = def_, .min = min_,     \
  .max = max_, .help = help_                                                                       \
 }
#define HDT_CONF_RATE(s, f, def_, help_)                                                           \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_RATE, .offset = offsetof(s, f), .def = def_, .help = help_        \
 }
#define HDT_CONF_FLOAT(s, f, def_, min_, max_, help_)                                              \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_FLOAT, .offset = offsetof(s, f), .def = def_, .min = min_,        \
  .max = max_, .help = help_                                                                       \
 }
/* A number that may be unknown: null, as when it is not given, and NaN in the struct. */
#define HDT_CONF_OPTIONAL(s, f, min_, max_, help_)                                                 \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_FLOAT, .offset = offsetof(s, f), .def = "null", .min = min_,      \
  .max = max_, .help = help_                                                                       \
 }
#define HDT_CONF_ENUM(s, f, def_, names_, help_)                                                   \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_ENUM, .offset = offsetof(s, f), .def = def_, .names = names_,     \
  .help = help_                                                                                    \
 }
#define HDT_CONF_STRINGS(s, f, def_, help_)                                                        \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_STRINGS, .offset = offsetof(s, f), .def = def_, .help = help_     \
 }
#define HDT_CONF_SECTION(s, f, rows_, help_)                                                       \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_SECTION, .offset = offsetof(s, f), .rows = rows_, .help = help_   \
 }
#define HDT_CONF_LIST(s, f, rows_, item_, help_)                                                   \
 {                                                                                                 \
  .name = #f, .type = HDT_CONF_T_LIST, .offset = offsetof(s, f), .rows = rows_,                    \
  .item_size = sizeof(item_), .help = help_                                                        \
 }
/* clang-format off */
#define HDT_CONF_END {.name = NULL}
/* clang-format on */

/* Where each value stood, for semantic errors found after parsing. */
struct hdt_conf_doc;

/* Read the file at `path` into *out (schema->size bytes; overwritten). On success *doc (may be NULL
 * if not wanted) is to be freed with hdt_conf_doc_free and *out with hdt_conf_release. On failure
 * nothing is to be released. HDT_ENOENT, HDT_EIO, HDT_EINVAL. */
enum hdt_status hdt_conf_load(const struct hdt_conf_schema *schema, const char *path, void *out,
                              struct hdt_conf_doc **doc, struct hdt_error *err);

/* The same from memory; `file` names the text in messages and anchors relative paths. At most
 * 1 MiB, 32 levels deep; anchors and aliases are refused. */
enum hdt_status hdt_conf_parse(const struct hdt_conf_schema *schema, const char *text, size_t len,
                               const char *file, void *out, struct hdt_conf_doc **doc,
                               struct hdt_error *err);

/* All defaults; required rows become zero. */
void hdt_conf_defaults(const struct hdt_conf_schema *schema, void *out);

/* Free what the struct owns and zero it. */
void hdt_conf_release(const struct hdt_conf_schema *schema, void *obj);
void hdt_conf_doc_free(struct hdt_conf_doc *doc);

/* Does a setting ("a", "a.b") stand in the document, as its writer gave it? */
bool hdt_conf_has(const struct hdt_conf_doc *doc, const char *key);

/* Set err with where = file:line of the value at `key` ("wan.listen", "peers[1].address"; the
 * nearest parent if the key was not given). doc may be NULL: then without a place. */
enum hdt_status hdt_conf_error(const struct hdt_conf_doc *doc, const char *key,
                               struct hdt_error *err, enum hdt_status status, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* A complete commented file to start from; parses back to the defaults (required values are given
 * an example by the row's help or left as "CHANGE-ME"). */
void hdt_conf_write_example(const struct hdt_conf_schema *schema, FILE *out);

/* One paragraph a setting: full name, type with unit, default, bounds, help. `key` NULL: all;
 * HDT_ENOENT when the key is unknown (with the nearest known one as hint). */
enum hdt_status hdt_conf_explain(const struct hdt_conf_schema *schema, const char *key, FILE *out,
                                 struct hdt_error *err);

/* The table as rows of a mdoc(7) list, for the man pages (a test compares them). */
void hdt_conf_write_mdoc(const struct hdt_conf_schema *schema, FILE *out);

/* Full names of the settings that begin with `begin`, one a line: for completion. */
void hdt_conf_write_names(const struct hdt_conf_schema *schema, const char *begin, FILE *out);

/* The settings that are not as their defaults, as YAML that loads back to the same values. Paths
 * stand as they are in the struct. Errors stay in the stream (ferror). */
void hdt_conf_write(const struct hdt_conf_schema *schema, const void *obj, FILE *out);

/* JSON form: the same names; bytes, rates and durations as numbers in the field's unit, enums by
 * name. to_json returns a new reference, never NULL. from_json checks like the parser does;
 * missing keys take their defaults; `where` names the source in messages ("job 7"). */
struct json_t *hdt_conf_to_json(const struct hdt_conf_schema *schema, const void *obj);
enum hdt_status hdt_conf_from_json(const struct hdt_conf_schema *schema, const struct json_t *json,
                                   const char *where, void *out, struct hdt_error *err);

/* Parsers of values, also for command lines. HDT_EINVAL with the allowed form. */
enum hdt_status hdt_conf_parse_bytes(const char *text, uint64_t *bytes, struct hdt_error *err);
enum hdt_status hdt_conf_parse_duration(const char *text, int64_t *ms, struct hdt_error *err);
enum hdt_status hdt_conf_parse_rate(const char *text, uint64_t *bits_per_s, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_CONF_H */
