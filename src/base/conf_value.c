/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One value: text with units to a field and back.
 *
 * Numbers with units are read in integers ("1.5GiB" is 15 * 2^30 / 10), so that what is written
 * is what is kept: a double would round sizes above 2^53 and could not tell a fraction of a byte.
 */
#include "config.h"

#include "src/base/conf_internal.h"
#include "src/base/buf.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    uint64_t factor;
};

/* Each table: largest first, the plain unit last. */
static const struct unit byte_units[] = {
    {"TiB", 1ull << 40},
    {"TB", 1000000000000ull},
    {"GiB", 1ull << 30},
    {"GB", 1000000000ull},
    {"MiB", 1ull << 20},
    {"MB", 1000000ull},
    {"KiB", 1ull << 10},
    {"KB", 1000ull},
    {"B", 1},
    {NULL, 0},
};
static const struct unit duration_units[] = {
    {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}, {NULL, 0},
};
static const struct unit rate_units[] = {
    {"tbit", 1000000000000ull},
    {"gbit", 1000000000ull},
    {"mbit", 1000000ull},
    {"kbit", 1000ull},
    {"bit", 1},
    {NULL, 0},
};

char *hdt_conf_text_clean(const char *text, size_t len, char buf[HDT_CONF_VALUE_CAP])
{
    size_t n = len < HDT_CONF_VALUE_CAP - 1 ? len : HDT_CONF_VALUE_CAP - 1;

    for (size_t i = 0; i < n; i++) {
        buf[i] = isprint((unsigned char)text[i]) ? text[i] : '?';
    }
    buf[n] = '\0';
    if (n < len) {
        memcpy(buf + n - 3, "...", 4);
    }
    return buf;
}

bool hdt_conf_scalar_is_null(const struct hdt_conf_scalar *scalar)
{
    return scalar->plain && (scalar->len == 0 || strcmp(scalar->text, "~") == 0 ||
                             strcmp(scalar->text, "null") == 0);
}

const char *hdt_conf_type_name(const struct hdt_conf_row *row)
{
    switch (row->type) {
    case HDT_CONF_T_STRING:
        return "text";
    case HDT_CONF_T_PATH:
        return "path";
    case HDT_CONF_T_BOOL:
        return "true or false";
    case HDT_CONF_T_INT:
    case HDT_CONF_T_COUNT:
        return "whole number";
    case HDT_CONF_T_BYTES:
        return "size";
    case HDT_CONF_T_DURATION:
        return "duration";
    case HDT_CONF_T_RATE:
        return "rate";
    case HDT_CONF_T_FLOAT:
        return "number";
    case HDT_CONF_T_ENUM:
        return "one of";
    case HDT_CONF_T_STRINGS:
        return "list of text";
    case HDT_CONF_T_SECTION:
        return "section";
    case HDT_CONF_T_LIST:
        return "list of sections";
    }
    return "value";
}

/* Say that `text` is no value of a kind, and which form is. */
static enum hdt_status form_refuse(struct hdt_error *err, const char *text, const char *kind,
                                   const char *form)
{
    char clean[HDT_CONF_VALUE_CAP];

    hdt_error_set(err, HDT_EINVAL, "'%s' is not a %s",
                  hdt_conf_text_clean(text, strlen(text), clean), kind);
    hdt_error_hint(err, "%s", form);
    return HDT_EINVAL;
}

/* Read "12.5" at *text: the digits as one number and 10 to the number of digits after the point.
 * Moves *text behind it. False: no number, or more digits than a 63-bit number has. */
static bool digits_read(const char **text, uint64_t *digits, uint64_t *scale)
{
    const char *at = *text;
    bool after_point = false, any = false;

    *digits = 0;
    *scale = 1;
    for (; isdigit((unsigned char)*at) || (*at == '.' && !after_point); at++) {
        if (*at == '.') {
            after_point = true;
            continue;
        }
        if (*digits > (INT64_MAX - (uint64_t)(*at - '0')) / 10) {
            return false;
        }
        any = true;
        *digits = *digits * 10 + (uint64_t)(*at - '0');
        if (after_point && (*scale *= 10) > INT64_MAX / 10) {
            return false;
        }
    }
    *text = at;
    return any && at[-1] != '.';
}

/* A number and one of `units`, as a whole number of the smallest unit; false: not in that form. An
 * empty unit counts as `bare` (0: refused unless the number is 0). */
static bool quantity_read(const char *text, const struct unit *units, uint64_t bare,
                          uint64_t *value)
{
    uint64_t digits, scale, factor = 0;
    unsigned __int128 product;

    if (!digits_read(&text, &digits, &scale)) {
        return false;
    }
    text += strspn(text, " ");
    if (!*text) {
        factor = digits == 0 ? 1 : bare;
    }
    for (; *text && units->name; units++) {
        if (strcasecmp(text, units->name) == 0) {
            factor = units->factor;
            break;
        }
    }
    product = (unsigned __int128)digits * factor;
    if (factor == 0 || product % scale != 0 || product / scale > INT64_MAX) {
        return false;
    }
    *value = (uint64_t)(product / scale);
    return true;
}

enum hdt_status hdt_conf_parse_bytes(const char *text, uint64_t *bytes, struct hdt_error *err)
{
    if (!quantity_read(text, byte_units, 1, bytes)) {
        return form_refuse(err, text, "size",
                           "write a whole number of bytes, plain or as 64KiB, 2MiB, 1.5GiB, 1GB");
    }
    return HDT_OK;
}

enum hdt_status hdt_conf_parse_duration(const char *text, int64_t *ms, struct hdt_error *err)
{
    uint64_t value;

    if (!quantity_read(text, duration_units, 0, &value)) {
        return form_refuse(err, text, "duration",
                           "write it with a unit, to the millisecond: 250ms, 10s, 5m, 2h, 1d");
    }
    *ms = (int64_t)value;
    return HDT_OK;
}

enum hdt_status hdt_conf_parse_rate(const char *text, uint64_t *bits_per_s, struct hdt_error *err)
{
    uint64_t value = 0;

    if (strcasecmp(text, "max") == 0) {
        *bits_per_s = 0;
        return HDT_OK;
    }
    if (!quantity_read(text, rate_units, 0, &value) || value == 0) {
        return form_refuse(err, text, "rate",
                           "write bits a second with a unit: 200mbit, 2.5gbit; or max for no "
                           "limit");
    }
    *bits_per_s = value;
    return HDT_OK;
}

static enum hdt_status int_parse(const struct hdt_conf_scalar *scalar, int64_t *value,
                                 struct hdt_error *err)
{
    char *end;

    errno = 0;
    *value = strtoll(scalar->text, &end, 10);
    if (!scalar->plain) {
        return form_refuse(err, scalar->text, "number: it is quoted text", "remove the quotes");
    }
    if (end == scalar->text || *end || errno || isspace((unsigned char)scalar->text[0])) {
        return form_refuse(err, scalar->text, "whole number", "write digits only, as 12 or -3");
    }
    return HDT_OK;
}

static enum hdt_status float_parse(const struct hdt_conf_scalar *scalar, double *value,
                                   struct hdt_error *err)
{
    char *end;

    *value = strtod(scalar->text, &end);
    if (!scalar->plain) {
        return form_refuse(err, scalar->text, "number: it is quoted text", "remove the quotes");
    }
    if (end == scalar->text || *end || !isfinite(*value) ||
        isspace((unsigned char)scalar->text[0])) {
        return form_refuse(err, scalar->text, "number", "write it as 0.1 or 3e-4");
    }
    return HDT_OK;
}

static enum hdt_status bool_parse(const struct hdt_conf_scalar *scalar, bool *value,
                                  struct hdt_error *err)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && scalar->plain; i++) {
        if (strcmp(scalar->text, words[i]) == 0) {
            *value = i % 2 == 1;
            return HDT_OK;
        }
    }
    return form_refuse(err, scalar->text, "truth value", "write true or false, without quotes");
}

static enum hdt_status enum_parse(const struct hdt_conf_row *row,
                                  const struct hdt_conf_scalar *scalar, int *value,
                                  struct hdt_error *err)
{
    struct hdt_near near;
    struct hdt_buf names = {0};
    char clean[HDT_CONF_VALUE_CAP];

    hdt_near_init(&near, scalar->text);
    for (int i = 0; row->names[i]; i++) {
        if (strcmp(scalar->text, row->names[i]) == 0) {
            hdt_buf_release(&names);
            *value = i;
            return HDT_OK;
        }
        hdt_near_offer(&near, row->names[i]);
        hdt_buf_appendf(&names, "%s%s", i ? ", " : "", row->names[i]);
    }
    hdt_error_set(err, HDT_EINVAL, "'%s' is not known",
                  hdt_conf_text_clean(scalar->text, scalar->len, clean));
    if (near.best) {
        hdt_error_hint(err, "did you mean '%s'? known: %s", near.best, hdt_buf_str(&names));
    } else {
        hdt_error_hint(err, "known: %s", hdt_buf_str(&names));
    }
    hdt_buf_release(&names);
    return HDT_EINVAL;
}

bool hdt_conf_row_is_bounded(const struct hdt_conf_row *row)
{
    return row->min != 0 || row->max != 0;
}

bool hdt_conf_row_is_optional(const struct hdt_conf_row *row)
{
    return row->type == HDT_CONF_T_FLOAT && row->def && strcmp(row->def, "null") == 0;
}

static enum hdt_status bounds_check(const struct hdt_conf_row *row, double value, const char *text,
                                    struct hdt_error *err)
{
    char least[HDT_CONF_VALUE_CAP], most[HDT_CONF_VALUE_CAP], clean[HDT_CONF_VALUE_CAP];

    if (!hdt_conf_row_is_bounded(row) || (value >= row->min && value <= row->max)) {
        return HDT_OK;
    }
    hdt_conf_bound_format(row, row->min, least);
    hdt_conf_bound_format(row, row->max, most);
    hdt_error_set(err, HDT_EINVAL, "%s is %s", hdt_conf_text_clean(text, strlen(text), clean),
                  value < row->min ? "too small" : "too large");
    hdt_error_hint(err, "allowed: %s to %s", least, most);
    return HDT_EINVAL;
}

/* Sizes, durations and rates: from JSON a plain number in the field's unit, else text with unit. */
static enum hdt_status quantity_parse(const struct hdt_conf_row *row,
                                      const struct hdt_conf_scalar *scalar, uint64_t *value,
                                      struct hdt_error *err)
{
    int64_t number;

    if (scalar->json && scalar->plain) {
        HDT_TRY(int_parse(scalar, &number, err));
        if (number < 0) {
            return form_refuse(err, scalar->text, "quantity", "it cannot be negative");
        }
        *value = (uint64_t)number;
    } else if (row->type == HDT_CONF_T_BYTES) {
        HDT_TRY(hdt_conf_parse_bytes(scalar->text, value, err));
    } else if (row->type == HDT_CONF_T_RATE) {
        HDT_TRY(hdt_conf_parse_rate(scalar->text, value, err));
    } else {
        HDT_TRY(hdt_conf_parse_duration(scalar->text, &number, err));
        *value = (uint64_t)number;
    }
    return bounds_check(row, (double)*value, scalar->text, err);
}

static enum hdt_status text_set(const struct hdt_conf_row *row,
                                const struct hdt_conf_scalar *scalar, char **field,
                                struct hdt_error *err)
{
    if (scalar->json && scalar->plain) {
        return form_refuse(err, scalar->text, "text", "put it in quotes");
    }
    if (row->check) {
        HDT_TRY(row->check(scalar->text, err));
    }
    *field = hdt_strdup(scalar->text);
    return HDT_OK;
}

enum hdt_status hdt_conf_value_set(const struct hdt_conf_row *row,
                                   const struct hdt_conf_scalar *scalar, void *field,
                                   struct hdt_error *err)
{
    uint64_t quantity;
    int64_t integer;
    double real;

    switch (row->type) {
    case HDT_CONF_T_STRING:
    case HDT_CONF_T_PATH:
        return text_set(row, scalar, field, err);
    case HDT_CONF_T_BOOL:
        return bool_parse(scalar, field, err);
    case HDT_CONF_T_ENUM:
        return enum_parse(row, scalar, field, err);
    case HDT_CONF_T_COUNT:
        if (strcmp(scalar->text, "auto") == 0) {
            *(int64_t *)field = 0;
            return HDT_OK;
        }
        /* fall through */
    case HDT_CONF_T_INT:
        HDT_TRY(int_parse(scalar, &integer, err));
        HDT_TRY(bounds_check(row, (double)integer, scalar->text, err));
        *(int64_t *)field = integer;
        return HDT_OK;
    case HDT_CONF_T_FLOAT:
        HDT_TRY(float_parse(scalar, &real, err));
        HDT_TRY(bounds_check(row, real, scalar->text, err));
        *(double *)field = real;
        return HDT_OK;
    case HDT_CONF_T_BYTES:
    case HDT_CONF_T_RATE:
        HDT_TRY(quantity_parse(row, scalar, &quantity, err));
        *(uint64_t *)field = quantity;
        return HDT_OK;
    case HDT_CONF_T_DURATION:
        HDT_TRY(quantity_parse(row, scalar, &quantity, err));
        *(int64_t *)field = (int64_t)quantity;
        return HDT_OK;
    default:
        HDT_ASSERT(!"a scalar row");
        return HDT_EINVAL;
    }
}

/* The default of a list of text: words separated by commas. */
static void strings_default(const char *def, struct hdt_conf_strings *strings)
{
    size_t len;

    for (; *def; def += len) {
        def += strspn(def, ", ");
        len = strcspn(def, ",");
        if (len > 0) {
            strings->items =
                hdt_realloc(strings->items, (strings->n + 1) * sizeof(*strings->items));
            strings->items[strings->n++] = hdt_asprintf("%.*s", (int)len, def);
        }
    }
}

void hdt_conf_value_default(const struct hdt_conf_row *row, void *field)
{
    struct hdt_conf_scalar scalar = {.plain = true};
    struct hdt_error err = {0};

    if (!row->def) {
        return;
    }
    if (row->type == HDT_CONF_T_STRINGS) {
        strings_default(row->def, field);
        return;
    }
    if (hdt_conf_row_is_optional(row)) {
        *(double *)field = NAN;
        return;
    }
    scalar.text = (char *)row->def; /* only read */
    scalar.len = strlen(row->def);
    if (hdt_conf_value_set(row, &scalar, field, &err) != HDT_OK) {
        fprintf(stderr, "default of setting '%s': %s\n", row->name, err.msg);
        HDT_ASSERT(!"defaults of a table are valid");
    }
}

/* The largest unit that divides the value. */
static void quantity_format(const struct unit *units, uint64_t value, char *buf)
{
    while (units->factor > 1 && (value == 0 || value % units->factor != 0)) {
        units++;
    }
    snprintf(buf, HDT_CONF_VALUE_CAP, "%" PRIu64 "%s", value / units->factor,
             value == 0 || strcmp(units->name, "B") == 0 ? "" : units->name);
}

char *hdt_conf_number_format(double value, char buf[HDT_CONF_VALUE_CAP])
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, HDT_CONF_VALUE_CAP, "%.*g", digits, value);
        if (strtod(buf, NULL) == value) {
            break;
        }
    }
    return buf;
}

char *hdt_conf_bound_format(const struct hdt_conf_row *row, double bound,
                            char buf[HDT_CONF_VALUE_CAP])
{
    switch (row->type) {
    case HDT_CONF_T_BYTES:
        quantity_format(byte_units, (uint64_t)bound, buf);
        break;
    case HDT_CONF_T_DURATION:
        quantity_format(duration_units, (uint64_t)bound, buf);
        break;
    case HDT_CONF_T_RATE:
        quantity_format(rate_units, (uint64_t)bound, buf);
        break;
    case HDT_CONF_T_INT:
    case HDT_CONF_T_COUNT:
        snprintf(buf, HDT_CONF_VALUE_CAP, "%.0f", bound);
        break;
    default:
        hdt_conf_number_format(bound, buf);
        break;
    }
    return buf;
}
