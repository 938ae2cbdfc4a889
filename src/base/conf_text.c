/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of settings as text for people: example file, explanation, manual page rows.
 *
 * In the example a setting with a default stands commented out ("#chunk: 2MiB") with its default
 * as value: a file made today then follows the defaults of later versions, save for what its owner
 * decided. Prose begins with "# ", a setting with "#" alone, so that both can be told apart.
 */
#include "config.h"

#include "src/base/conf_internal.h"
#include "src/base/buf.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

#define TEXT_WIDTH 92

/* Print `text` in lines of at most TEXT_WIDTH columns, each with `prefix` in front. */
static void text_wrap(FILE *out, const char *prefix, const char *text)
{
    size_t room = TEXT_WIDTH - strlen(prefix), n, cut;

    while (*text) {
        n = strlen(text);
        cut = n;
        if (n > room) {
            for (cut = room; cut > 0 && text[cut] != ' '; cut--) {
            }
            cut = cut ? cut : strcspn(text, " ");
        }
        fprintf(out, "%s%.*s\n", prefix, (int)cut, text);
        text += cut;
        text += strspn(text, " ");
    }
}

/* Text that YAML reads back as it is needs no quotes. */
static bool text_is_plain(const char *text)
{
    static const char *const words[] = {"~", "null", "true", "false", "yes", "no", "on", "off"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(text, words[i]) == 0) {
            return false;
        }
    }
    if (!isalnum((unsigned char)*text) && !strchr("/._", *text)) {
        return false;
    }
    for (const char *c = text; *c; c++) {
        bool ends_word = c[1] == '\0' || c[1] == ' ';

        if (!isalnum((unsigned char)*c) && !strchr("/._-:@+", *c)) {
            return false;
        }
        if (*c == ':' && ends_word) {
            return false;
        }
    }
    return *text != '\0';
}

static void text_quote(struct hdt_buf *buf, const char *text)
{
    if (text_is_plain(text)) {
        hdt_buf_append_str(buf, text);
        return;
    }
    hdt_buf_append_str(buf, "\"");
    for (; *text; text++) {
        hdt_buf_appendf(buf, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    }
    hdt_buf_append_str(buf, "\"");
}

/* What stands behind "Example: " at the end of a row's help, without the final period. */
static bool help_example(const struct hdt_conf_row *row, struct hdt_buf *buf)
{
    const char *at = strstr(row->help, "Example: ");

    if (!at) {
        return false;
    }
    hdt_buf_append_str(buf, at + strlen("Example: "));
    if (buf->len > 0 && buf->data[buf->len - 1] == '.') {
        buf->data[--buf->len] = '\0';
    }
    return true;
}

/* A value that a required row takes, until its owner writes the real one. */
static void placeholder(const struct hdt_conf_row *row, struct hdt_buf *buf)
{
    char bound[HDT_CONF_VALUE_CAP];

    if (row->type == HDT_CONF_T_STRING || row->type == HDT_CONF_T_PATH) {
        hdt_buf_append_str(buf, "CHANGE-ME");
    } else if (row->type == HDT_CONF_T_STRINGS) {
        hdt_buf_append_str(buf, "[CHANGE-ME]");
    } else if (row->type == HDT_CONF_T_BOOL) {
        hdt_buf_append_str(buf, "false");
    } else if (row->type == HDT_CONF_T_ENUM) {
        hdt_buf_append_str(buf, row->names[0]);
    } else if (row->type == HDT_CONF_T_RATE) {
        hdt_buf_append_str(buf, "max");
    } else if (hdt_conf_row_is_bounded(row)) {
        hdt_buf_append_str(buf, hdt_conf_bound_format(row, row->min, bound));
    } else {
        hdt_buf_append_str(buf, row->type == HDT_CONF_T_DURATION ? "1s" : "1");
    }
}

/* The default list "a, b" as "[a, b]", each word quoted where needed. */
static void strings_default(const char *def, struct hdt_buf *buf)
{
    char word[256];
    size_t len;

    hdt_buf_append_str(buf, "[");
    for (const char *sep = ""; *def; def += len) {
        def += strspn(def, ", ");
        len = strcspn(def, ",");
        if (len > 0) {
            snprintf(word, sizeof(word), "%.*s", (int)len, def);
            hdt_buf_append_str(buf, sep);
            text_quote(buf, word);
            sep = ", ";
        }
    }
    hdt_buf_append_str(buf, "]");
}

/* The row's value in an example: its default, or for a required row an example. */
static void row_value(const struct hdt_conf_row *row, struct hdt_buf *buf)
{
    if (!row->def) {
        if (!help_example(row, buf)) {
            placeholder(row, buf);
        }
    } else if (row->type == HDT_CONF_T_STRINGS) {
        strings_default(row->def, buf);
    } else if (row->type == HDT_CONF_T_STRING || row->type == HDT_CONF_T_PATH) {
        text_quote(buf, row->def);
    } else {
        hdt_buf_append_str(buf, row->def);
    }
}

/* "size, 64KiB to 64MiB", "one of: none, bf16" */
static void row_form(const struct hdt_conf_row *row, struct hdt_buf *buf)
{
    char least[HDT_CONF_VALUE_CAP], most[HDT_CONF_VALUE_CAP];

    hdt_buf_append_str(buf, hdt_conf_type_name(row));
    if (row->type == HDT_CONF_T_ENUM) {
        for (int i = 0; row->names[i]; i++) {
            hdt_buf_appendf(buf, "%s%s", i ? ", " : ": ", row->names[i]);
        }
    } else if (!row->rows && hdt_conf_row_is_bounded(row)) {
        hdt_buf_appendf(buf, ", %s to %s", hdt_conf_bound_format(row, row->min, least),
                        hdt_conf_bound_format(row, row->max, most));
        if (row->type == HDT_CONF_T_COUNT) {
            hdt_buf_append_str(buf, ", or auto");
        } else if (hdt_conf_row_is_optional(row)) {
            hdt_buf_append_str(buf, ", or null");
        }
    } else if (row->type == HDT_CONF_T_RATE) {
        hdt_buf_append_str(buf, " in bits a second, or max");
    }
}

/* "form; default x" or "form; required" in round brackets. */
static void row_facts(const struct hdt_conf_row *row, struct hdt_buf *buf)
{
    hdt_buf_append_str(buf, "(");
    row_form(row, buf);
    if (!row->rows && row->def) {
        hdt_buf_append_str(buf, "; default ");
        row_value(row, buf);
    } else if (!row->rows) {
        hdt_buf_append_str(buf, "; required");
    }
    hdt_buf_append_str(buf, ")");
}

/* Where a row stands in the example: its indentation, whether it is a list's first one ("- "), and
 * whether it is commented out because a list above it is. */
struct example_place {
    char indent[2 * HDT_CONF_LEVEL_MAX + 2];
    bool in_list;
    bool begins_item;
};

static void place_find(const struct hdt_conf_walk *walk, const struct hdt_conf_row *row,
                       struct example_place *place)
{
    size_t used = 0;

    memset(place, 0, sizeof(*place));
    for (int i = 1; i <= walk->depth; i++) {
        bool is_list = walk->owner[i]->type == HDT_CONF_T_LIST;

        place->in_list |= is_list;
        place->begins_item = is_list && walk->owner[i]->rows == row;
        used += is_list ? 4 : 2;
        HDT_ASSERT(used < sizeof(place->indent));
    }
    memset(place->indent, ' ', used - (place->begins_item ? 2 : 0));
}

static void example_row(const struct hdt_conf_walk *walk, const struct hdt_conf_row *row, FILE *out)
{
    struct example_place place;
    struct hdt_buf facts = {0}, value = {0};
    char prefix[sizeof(place.indent) + 4];
    bool active;

    place_find(walk, row, &place);
    row_facts(row, &facts);
    active = (row->type == HDT_CONF_T_SECTION || (!row->rows && !row->def)) && !place.in_list;
    if (!row->rows) {
        row_value(row, &value);
    }
    snprintf(prefix, sizeof(prefix), "%s# ", place.indent);
    fputs(walk->depth == 0 || row->rows ? "\n" : "", out);
    text_wrap(out, prefix, row->help);
    if (row->type != HDT_CONF_T_SECTION) {
        text_wrap(out, prefix, hdt_buf_str(&facts));
    }
    fprintf(out, "%s%s%s%s:%s%s\n", place.indent, active ? "" : "#", place.begins_item ? "- " : "",
            row->name, row->rows ? "" : " ", hdt_buf_str(&value));
    hdt_buf_release(&facts);
    hdt_buf_release(&value);
}

void hdt_conf_write_example(const struct hdt_conf_schema *schema, FILE *out)
{
    struct hdt_conf_walk walk;
    const struct hdt_conf_row *row;

    text_wrap(out, "# ", schema->help);
    text_wrap(out, "# ",
              "Lines that begin with '#' and a setting show the default: remove the '#' to change "
              "it.");
    hdt_conf_walk_init(&walk, schema->rows);
    while ((row = hdt_conf_walk_next(&walk))) {
        example_row(&walk, row, out);
    }
    if (schema->start) {
        fprintf(out, "\n# A small one to start from.\n%s", schema->start);
    }
}

static void explain_row(const char *name, const struct hdt_conf_row *row, FILE *out)
{
    struct hdt_buf facts = {0};

    row_facts(row, &facts);
    fprintf(out, "%s\n", name);
    text_wrap(out, "    ", hdt_buf_str(&facts));
    text_wrap(out, "    ", row->help);
    hdt_buf_release(&facts);
}

/* "peers[3].address" asks for "peers[].address", and so does "peers.address". */
static bool name_matches(const char *name, const char *key)
{
    while (*name && *key) {
        if (*name == '[' && *key == '[') {
            key += strcspn(key, "]");
            name++;
        } else if (*name == '[' && *key == '.') {
            name += 2;
        } else if (*name++ != *key++) {
            return false;
        }
    }
    return !*key &&
           (!*name || *name == '.' || strcmp(name, "[]") == 0 || strncmp(name, "[].", 3) == 0);
}

enum hdt_status hdt_conf_explain(const struct hdt_conf_schema *schema, const char *key, FILE *out,
                                 struct hdt_error *err)
{
    struct hdt_near near;
    struct hdt_conf_walk walk;
    const struct hdt_conf_row *row;
    char name[HDT_CONF_NAME_CAP], best[HDT_CONF_NAME_CAP] = "";
    bool found = false;
    unsigned before;

    hdt_near_init(&near, key ? key : "");
    hdt_conf_walk_init(&walk, schema->rows);
    while ((row = hdt_conf_walk_next(&walk))) {
        hdt_conf_walk_name(&walk, row, name);
        if (!key || name_matches(name, key)) {
            fputs(found ? "\n" : "", out);
            explain_row(name, row, out);
            found = true;
            continue;
        }
        before = near.best ? near.best_distance : UINT_MAX;
        hdt_near_offer(&near, name);
        hdt_near_offer(&near, row->name);
        if (near.best && near.best_distance < before) {
            memcpy(best, name, sizeof(best));
        }
    }
    if (found || !key) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_ENOENT, "no setting '%s' in %s settings", key, schema->name);
    if (best[0]) {
        hdt_error_hint(err, "did you mean '%s'?", best);
    } else {
        hdt_error_hint(err, "'hdt config explain %s' lists all", schema->name);
    }
    return HDT_ENOENT;
}

/* One word of mdoc text: a backslash is an escape there, and so is a period or quote that begins a
 * line. */
static void mdoc_word(const char *word, size_t len, bool begins_line, FILE *out)
{
    if (begins_line && (*word == '.' || *word == '\'')) {
        fputs("\\&", out);
    }
    for (size_t i = 0; i < len; i++) {
        if (word[i] == '\\') {
            fputs("\\e", out);
        } else {
            fputc(word[i], out);
        }
    }
}

/* Text for mdoc: lines of at most 80 columns, and a sentence begins on a new one. */
static void mdoc_text(const char *text, FILE *out)
{
    bool begins_line = true, ends_sentence = false;
    size_t col = 0, len;

    for (; *text; text += len + strspn(text + len, " ")) {
        len = strcspn(text, " ");
        if (!begins_line &&
            (col + 1 + len > 78 || (ends_sentence && isupper((unsigned char)*text)))) {
            fputc('\n', out);
            begins_line = true;
            col = 0;
        } else if (!begins_line) {
            fputc(' ', out);
            col++;
        }
        mdoc_word(text, len, begins_line, out);
        begins_line = false;
        col += len;
        ends_sentence = strchr(".?!", text[len - 1]) != NULL;
    }
    fputc('\n', out);
}

void hdt_conf_write_mdoc(const struct hdt_conf_schema *schema, FILE *out)
{
    struct hdt_conf_walk walk;
    const struct hdt_conf_row *row;
    struct hdt_buf facts = {0};
    char name[HDT_CONF_NAME_CAP];

    fputs(".Bl -tag -width Ds\n", out);
    hdt_conf_walk_init(&walk, schema->rows);
    while ((row = hdt_conf_walk_next(&walk))) {
        hdt_buf_clear(&facts);
        row_facts(row, &facts);
        fprintf(out, ".It Cm %s\n", hdt_conf_walk_name(&walk, row, name));
        mdoc_text(hdt_buf_str(&facts), out);
        fputs(".br\n", out);
        mdoc_text(row->help, out);
    }
    fputs(".El\n", out);
    hdt_buf_release(&facts);
}

void hdt_conf_write_names(const struct hdt_conf_schema *schema, const char *begin, FILE *out)
{
    struct hdt_conf_walk walk;
    const struct hdt_conf_row *row;
    char name[HDT_CONF_NAME_CAP];

    hdt_conf_walk_init(&walk, schema->rows);
    while ((row = hdt_conf_walk_next(&walk))) {
        hdt_conf_walk_name(&walk, row, name);
        if (strncmp(name, begin, strlen(begin)) == 0) {
            fprintf(out, "%s\n", name);
        }
    }
}
