/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/link_curve.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>

#define GB 1e9

/* Where a fitted curve is looked at, over its whole range in steps of equal ratio. */
#define FIT_STEPS 64

const char *const hdt_link_duplex_names[] = {
    [HDT_LINK_FULL_DUPLEX] = "full", [HDT_LINK_HALF_DUPLEX] = "half", [2] = NULL};

/* ---- the table ---- */

/* From a modem's rate to more than the memory of any device has. */
#define RATE_MIN 1e-6
#define RATE_MAX 1e5

static const struct hdt_conf_row point_rows[] = {
    HDT_CONF_BYTES(struct hdt_link_point, bytes, NULL, 1, 1e15, "Size of the message."),
    HDT_CONF_FLOAT(struct hdt_link_point, gb_per_s, NULL, RATE_MIN, RATE_MAX,
                   "1e9 bytes a second at this size."),
    HDT_CONF_END};

static const struct hdt_conf_row fit_rows[] = {
    HDT_CONF_OPTIONAL(struct hdt_link_fit, a, -1e6, 1e6, "Coefficient of x^2."),
    HDT_CONF_OPTIONAL(struct hdt_link_fit, b, -1e6, 1e6, "Coefficient of x."),
    HDT_CONF_OPTIONAL(struct hdt_link_fit, c, -1e6, 1e6, "GB/s at 1 MB, where x is 0."),
    HDT_CONF_BYTES(struct hdt_link_fit, min_bytes, "1MB", 1, 1e15,
                   "Smallest size that the curve holds for; smaller ones take as long."),
    HDT_CONF_BYTES(struct hdt_link_fit, max_bytes, "1GB", 1, 1e15,
                   "Largest size that the curve holds for; larger ones have its rate."),
    HDT_CONF_END};

static const struct hdt_conf_row rate_rows[] = {
    HDT_CONF_INT(struct hdt_link_rate, devices, "1", 1, 4096,
                 "How many devices of a node use the link at once."),
    HDT_CONF_OPTIONAL(struct hdt_link_rate, gb_per_s, RATE_MIN, RATE_MAX,
                      "The rate, where it does not depend on the size."),
    HDT_CONF_LIST(struct hdt_link_rate, points, point_rows, struct hdt_link_point,
                  "Measured rates by size, ascending."),
    HDT_CONF_SECTION(struct hdt_link_rate, fit, fit_rows,
                     "A curve of GB/s: a x^2 + b x + c with x = log2(bytes / 1e6)."),
    HDT_CONF_END};

const struct hdt_conf_row hdt_link_curve_rows[] = {
    HDT_CONF_STRING(struct hdt_link_curve, name, NULL,
                    "Name that nodes and WAN links call it by. Example: nvlink."),
    HDT_CONF_ENUM(struct hdt_link_curve, duplex, "full", hdt_link_duplex_names,
                  "Whether both directions have the rate at once, or share it."),
    HDT_CONF_FLOAT(struct hdt_link_curve, latency_us, "0", 0, 1e7,
                   "Microseconds of each message beside what the rate says; measured points have "
                   "theirs in them."),
    HDT_CONF_BOOL(struct hdt_link_curve, nominal, "false",
                  "The rates are what was sold, not what was measured: all-reduces reach a share "
                  "of them."),
    HDT_CONF_OPTIONAL(struct hdt_link_curve, gb_per_s, RATE_MIN, RATE_MAX,
                      "The rate in one direction, 1e9 bytes a second, where it depends on nothing. "
                      "Else: rates."),
    HDT_CONF_LIST(struct hdt_link_curve, rates, rate_rows, struct hdt_link_rate,
                  "Rates in one direction by the number of devices that use the link at once, "
                  "ascending. Inside a node each of them has the rate, between nodes they share "
                  "it. Between two counts the rate is on the line through them."),
    HDT_CONF_END};

/* ---- asking ---- */

static double fit_gb_per_s(const struct hdt_link_fit *fit, double bytes)
{
    double x = log2(bytes / 1e6);

    return fit->a * x * x + fit->b * x + fit->c;
}

/* Seconds by measured points. */
static double points_time(const struct hdt_link_point *points, size_t n, double bytes)
{
    const struct hdt_link_point *last = &points[n - 1];
    double t0, t1, share;
    size_t i = 0;

    if (bytes >= (double)last->bytes) {
        return bytes / (last->gb_per_s * GB);
    }
    while ((double)points[i].bytes < bytes) {
        i++;
    }
    t1 = (double)points[i].bytes / (points[i].gb_per_s * GB);
    if (i == 0) {
        return t1;
    }
    t0 = (double)points[i - 1].bytes / (points[i - 1].gb_per_s * GB);
    share = (bytes - (double)points[i - 1].bytes) /
            ((double)points[i].bytes - (double)points[i - 1].bytes);
    return t0 + share * (t1 - t0);
}

static double rate_time(const struct hdt_link_rate *rate, double bytes)
{
    double at;

    if (!isnan(rate->gb_per_s)) {
        return bytes / (rate->gb_per_s * GB);
    }
    if (rate->points.n > 0) {
        return points_time(rate->points.items, rate->points.n, bytes);
    }
    if (bytes >= (double)rate->fit.max_bytes) {
        return bytes / (fit_gb_per_s(&rate->fit, (double)rate->fit.max_bytes) * GB);
    }
    at = fmax(bytes, (double)rate->fit.min_bytes);
    return at / (fit_gb_per_s(&rate->fit, at) * GB);
}

double hdt_link_curve_bytes_per_s(const struct hdt_link_curve *curve, double bytes, int64_t devices)
{
    const struct hdt_link_rate *rates = curve->rates.items;
    double low, high, share;
    size_t i = 0;

    HDT_ASSERT(bytes > 0 && devices >= 1);
    if (!isnan(curve->gb_per_s)) {
        return curve->gb_per_s * GB;
    }
    while (i + 1 < curve->rates.n && rates[i].devices < devices) {
        i++;
    }
    high = bytes / rate_time(&rates[i], bytes);
    if (i == 0 || devices >= rates[i].devices) {
        return high;
    }
    low = bytes / rate_time(&rates[i - 1], bytes);
    share = (double)(devices - rates[i - 1].devices) /
            (double)(rates[i].devices - rates[i - 1].devices);
    return low + share * (high - low);
}

/* ---- checking ---- */

struct check {
    const struct hdt_conf_doc *doc;
    struct hdt_error *err;
    const char *link; /* its key */
    size_t rate_idx;
};

static enum hdt_status check_fail(const struct check *check, const char *field, const char *msg,
                                  const char *hint)
{
    char *key =
        hdt_asprintf("%s.rates[%zu]%s%s", check->link, check->rate_idx, *field ? "." : "", field);

    hdt_conf_error(check->doc, key, check->err, HDT_EINVAL, "%s", msg);
    hdt_error_hint(check->err, "%s", hint);
    free(key);
    return HDT_EINVAL;
}

static enum hdt_status points_check(const struct check *check, const struct hdt_link_rate *rate)
{
    const struct hdt_link_point *points = rate->points.items;
    char field[48];

    for (size_t i = 1; i < rate->points.n; i++) {
        snprintf(field, sizeof(field), "points[%zu]", i);
        if (points[i].bytes <= points[i - 1].bytes) {
            return check_fail(check, field, "the sizes of points must ascend",
                              "sort them, and give each size once");
        }
        if ((double)points[i].bytes / points[i].gb_per_s <
            (double)points[i - 1].bytes / points[i - 1].gb_per_s) {
            return check_fail(check, field,
                              "this message takes less time than the smaller one before it",
                              "are the rates in GB/s, and is each at its size?");
        }
    }
    return HDT_OK;
}

static enum hdt_status fit_check(const struct check *check, const struct hdt_link_fit *fit)
{
    double ratio, bytes, rate, time = 0;

    if (isnan(fit->a) || isnan(fit->b) || isnan(fit->c)) {
        return check_fail(check, "fit", "the curve lacks a coefficient", "give a, b and c");
    }
    if (fit->min_bytes >= fit->max_bytes) {
        return check_fail(check, "fit.min_bytes", "min_bytes is not below max_bytes",
                          "they are the range that the curve was fitted over");
    }
    ratio = (double)fit->max_bytes / (double)fit->min_bytes;
    for (int i = 0; i <= FIT_STEPS; i++) {
        bytes = (double)fit->min_bytes * pow(ratio, (double)i / FIT_STEPS);
        rate = fit_gb_per_s(fit, bytes);
        if (!(rate > RATE_MIN)) {
            return check_fail(check, "fit", "the curve falls to no rate at all within its range",
                              "narrow it by min_bytes and max_bytes");
        }
        if (bytes / rate < time * (1 - 1e-9)) {
            return check_fail(check, "fit", "by the curve a larger message takes less time",
                              "narrow it by min_bytes and max_bytes");
        }
        time = bytes / rate;
    }
    return HDT_OK;
}

static bool fit_is_given(const struct hdt_link_fit *fit)
{
    return !isnan(fit->a) || !isnan(fit->b) || !isnan(fit->c);
}

static enum hdt_status rate_check(const struct check *check, const struct hdt_link_rate *rate)
{
    int n = !isnan(rate->gb_per_s) + (rate->points.n > 0) + fit_is_given(&rate->fit);

    if (n != 1) {
        return check_fail(check, "", n == 0 ? "there is no rate" : "there is more than one rate",
                          "give one of gb_per_s, points and fit");
    }
    HDT_TRY(points_check(check, rate));
    return fit_is_given(&rate->fit) ? fit_check(check, &rate->fit) : HDT_OK;
}

enum hdt_status hdt_link_curve_check(const struct hdt_link_curve *curve, const char *key,
                                     const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    const struct hdt_link_rate *rates = curve->rates.items;
    struct check check = {doc, err, key, 0};

    if (isnan(curve->gb_per_s) == (curve->rates.n == 0)) {
        hdt_conf_error(doc, key, err, HDT_EINVAL, "the link '%.64s' has %s", curve->name,
                       curve->rates.n == 0 ? "no rate" : "both gb_per_s and rates");
        hdt_error_hint(err, "give one of gb_per_s and rates");
        return HDT_EINVAL;
    }
    for (size_t i = 0; i < curve->rates.n; i++) {
        check.rate_idx = i;
        if (i > 0 && rates[i].devices <= rates[i - 1].devices) {
            return check_fail(&check, "devices", "the counts of devices must ascend",
                              "sort the rates, and give each count once");
        }
        HDT_TRY(rate_check(&check, &rates[i]));
    }
    return HDT_OK;
}
