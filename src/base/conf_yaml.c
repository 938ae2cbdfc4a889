/* SPDX-License-Identifier: Apache-2.0 */
/*
 * YAML text to a tree of nodes with their places, by libyaml's events.
 *
 * Events rather than libyaml's documents, because a document resolves aliases (a few lines can then
 * stand for gigabytes) and keeps no limits. What settings have no use for is refused by name:
 * anchors, aliases, tags, more than one document, keys that are not text.
 */
#include "config.h"

#include "src/base/conf_internal.h"
#include "src/base/buf.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct yaml_reader {
    struct hdt_conf_doc *doc;
    struct hdt_error *err;
    const char *text;
    size_t len;
    int at;    /* the open map or list, -1 at the top */
    int level; /* how many are open */
    int n_documents;
    bool ended;
    char *key; /* read, its value not yet */
    unsigned key_line, key_col;
};

static enum hdt_status event_refuse(struct yaml_reader *reader, const yaml_event_t *event,
                                    const char *what, const char *hint)
{
    hdt_error_set(reader->err, HDT_EINVAL, "cannot read YAML: %s", what);
    hdt_conf_doc_where(reader->doc, (unsigned)event->start_mark.line + 1,
                       (unsigned)event->start_mark.column + 1, reader->err);
    hdt_error_hint(reader->err, "%s", hint);
    return HDT_EINVAL;
}

static bool reader_wants_key(const struct yaml_reader *reader)
{
    return reader->at >= 0 && reader->doc->nodes[reader->at].kind == HDT_CONF_NODE_MAP &&
           !reader->key;
}

/* Add the value that `event` starts and give it the key that came before; *idx is its node. */
static enum hdt_status value_add(struct yaml_reader *reader, const yaml_event_t *event,
                                 enum hdt_conf_node_kind kind, int *idx)
{
    struct hdt_conf_node *node;

    *idx = hdt_conf_doc_add(reader->doc, reader->at, kind);
    if (*idx < 0) {
        return event_refuse(reader, event, "the file has more than 65536 values",
                            "settings files are small; is this the right file?");
    }
    node = &reader->doc->nodes[*idx];
    node->line = (unsigned)event->start_mark.line + 1;
    node->col = (unsigned)event->start_mark.column + 1;
    node->key = reader->key;
    node->key_line = reader->key_line;
    node->key_col = reader->key_col;
    reader->key = NULL;
    return HDT_OK;
}

static enum hdt_status scalar_read(struct yaml_reader *reader, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t len = event->data.scalar.length;
    struct hdt_conf_node *node;
    int idx;

    if (event->data.scalar.anchor || event->data.scalar.tag) {
        return event_refuse(reader, event, "anchors and tags are not used in settings",
                            "write the value itself; text that begins with & or ! needs quotes");
    }
    if (memchr(text, '\0', len)) {
        return event_refuse(reader, event, "the text contains a zero byte", "remove the \\0");
    }
    if (reader_wants_key(reader)) {
        reader->key = hdt_strdup(text);
        reader->key_line = (unsigned)event->start_mark.line + 1;
        reader->key_col = (unsigned)event->start_mark.column + 1;
        return HDT_OK;
    }
    HDT_TRY(value_add(reader, event, HDT_CONF_NODE_SCALAR, &idx));
    node = &reader->doc->nodes[idx];
    node->scalar.text = hdt_strdup(text);
    node->scalar.len = len;
    node->scalar.plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return HDT_OK;
}

static enum hdt_status container_open(struct yaml_reader *reader, const yaml_event_t *event)
{
    bool is_map = event->type == YAML_MAPPING_START_EVENT;
    bool has_anchor = is_map ? event->data.mapping_start.anchor || event->data.mapping_start.tag
                             : event->data.sequence_start.anchor || event->data.sequence_start.tag;

    if (has_anchor) {
        return event_refuse(reader, event, "anchors and tags are not used in settings",
                            "write the values themselves");
    }
    if (reader_wants_key(reader)) {
        return event_refuse(reader, event, "a key must be text, not a list or section",
                            "quote text that begins with { or [");
    }
    if (reader->level == HDT_CONF_LEVEL_MAX) {
        return event_refuse(reader, event, "values are nested more than 32 levels deep",
                            "no setting needs that; is this the right file?");
    }
    reader->level++;
    return value_add(reader, event, is_map ? HDT_CONF_NODE_MAP : HDT_CONF_NODE_LIST, &reader->at);
}

static enum hdt_status event_read(struct yaml_reader *reader, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++reader->n_documents > 1) {
            return event_refuse(reader, event, "a second document begins here",
                                "one file holds one set of settings: remove the '---'");
        }
        return HDT_OK;
    case YAML_SCALAR_EVENT:
        return scalar_read(reader, event);
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        return container_open(reader, event);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        reader->at = reader->doc->nodes[reader->at].parent;
        reader->level--;
        return HDT_OK;
    case YAML_ALIAS_EVENT:
        return event_refuse(reader, event, "aliases are not used in settings",
                            "write the value itself; text that begins with * needs quotes");
    case YAML_STREAM_END_EVENT:
        reader->ended = true;
        return HDT_OK;
    default:
        return HDT_OK;
    }
}

/* Line and column of a byte, for what libyaml's reader refuses before it has a mark. */
static void offset_locate(const struct yaml_reader *reader, size_t offset, unsigned *line,
                          unsigned *col)
{
    *line = *col = 1;
    for (size_t i = 0; i < offset && i < reader->len; i++) {
        if (reader->text[i] == '\n') {
            ++*line;
            *col = 1;
        } else {
            ++*col;
        }
    }
}

static enum hdt_status syntax_refuse(struct yaml_reader *reader, const yaml_parser_t *parser)
{
    unsigned line = (unsigned)parser->problem_mark.line + 1;
    unsigned col = (unsigned)parser->problem_mark.column + 1;
    const char *problem = parser->problem ? parser->problem : "the text ends too early";
    const char *hint = "check indentation, colons and quotes on this line and the one before";
    size_t at = 0;

    if (parser->error == YAML_MEMORY_ERROR) {
        return hdt_error_set(reader->err, HDT_ENOMEM, "cannot read YAML: out of memory");
    }
    if (parser->error == YAML_READER_ERROR) {
        offset_locate(reader, parser->problem_offset, &line, &col);
        hint = "the file must be UTF-8 text without control characters";
    }
    for (unsigned l = 1; l < line && at < reader->len; at++) {
        l += reader->text[at] == '\n';
    }
    if (parser->error != YAML_READER_ERROR &&
        memchr(reader->text + at, '\t', strcspn(reader->text + at, "\n"))) {
        hint = "YAML is indented with spaces: replace the tab";
    }
    hdt_error_set(reader->err, HDT_EINVAL, "cannot read YAML: %s%s%s", problem,
                  parser->context ? " " : "", parser->context ? parser->context : "");
    hdt_conf_doc_where(reader->doc, line, col, reader->err);
    hdt_error_hint(reader->err, "%s", hint);
    return HDT_EINVAL;
}

static enum hdt_status events_read(struct yaml_reader *reader, yaml_parser_t *parser)
{
    enum hdt_status status = HDT_OK;
    yaml_event_t event;

    while (status == HDT_OK && !reader->ended) {
        if (!yaml_parser_parse(parser, &event)) {
            return syntax_refuse(reader, parser);
        }
        status = event_read(reader, &event);
        yaml_event_delete(&event);
    }
    return status;
}

enum hdt_status hdt_conf_yaml_read(const char *text, size_t len, struct hdt_conf_doc *doc,
                                   struct hdt_error *err)
{
    struct yaml_reader reader = {.doc = doc, .err = err, .len = len, .at = -1};
    yaml_parser_t parser;
    enum hdt_status status;
    char *copy;

    if (!yaml_parser_initialize(&parser)) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot read YAML: out of memory");
    }
    copy = hdt_malloc(len + 1); /* terminated, so that lines can be searched */
    memcpy(copy, text, len);
    copy[len] = '\0';
    reader.text = copy;
    yaml_parser_set_input_string(&parser, (const unsigned char *)copy, len);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    status = events_read(&reader, &parser);
    yaml_parser_delete(&parser);
    free(reader.key);
    free(copy);
    return status;
}
