/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom this gateway did not join, and why. The site that is refused reads the reason in its own
 * log; here the operator of the other site finds it, although a stranger has no entry among the
 * sites.
 *
 * Sites dial again every few seconds and scanners never stop, so one entry stands for all attempts
 * of a site, or of a host whose site is not known, and the log repeats a cause once a minute; for
 * strangers the data plane has seen to that already.
 * Causes are compared without their digits: ports, serials and the clock change from one to the
 * next. Of a site that cannot be reached nothing is said at first: sites that start together, or
 * whose gateway is started anew, miss each other for a moment; and where this gateway itself has
 * just begun, of one that does not greet in time, as a machine that starts many at once is busy. It
 * is dialled again, and if that fails, too, said.
 */
#include "config.h"

#include "gateway/control.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <stdio.h>
#include <string.h>

#define LOG_AGAIN_US (60 * HDT_US_PER_S)
#define GRACE_US     (3 * HDT_US_PER_S)
#define BEGIN_US     (10 * HDT_US_PER_S)
#define SHOWN_US     (120 * HDT_US_PER_S) /* dials come at least every 5 s: older ones are over */

static bool is_same_cause(const char *a, const char *b)
{
    for (;;) {
        a += strspn(a, "0123456789");
        b += strspn(b, "0123456789");
        if (*a != *b) {
            return false;
        }
        if (*a == '\0') {
            return true;
        }
        a++;
        b++;
    }
}

/* "site b", or the host of an address for strangers. */
static void refusal_who(char out[HDT_ADDRESS_CAP], const char *site, const char *address)
{
    const char *colon = strrchr(address, ':');
    int len = colon ? (int)(colon - address) : (int)strlen(address);

    if (site[0]) {
        snprintf(out, HDT_ADDRESS_CAP, "site %s", site);
    } else {
        snprintf(out, HDT_ADDRESS_CAP, "%.*s", len, address);
    }
}

/* The entry of that name, else the oldest one, emptied. */
static struct hdt_gwrefusal *refusal_get(struct hdt_gateway *gw, const char *who)
{
    struct hdt_gwrefusal *oldest = &gw->refusals[0];

    for (size_t i = 0; i < HDT_REFUSALS; i++) {
        struct hdt_gwrefusal *r = &gw->refusals[i];

        if (strcmp(r->who, who) == 0) {
            return r;
        }
        oldest = r->last_us < oldest->last_us ? r : oldest;
    }
    memset(oldest, 0, sizeof(*oldest));
    snprintf(oldest->who, sizeof(oldest->who), "%s", who);
    return oldest;
}

static bool refusal_is_news(const struct hdt_gateway *gw, const struct hdt_gwrefusal *r,
                            const struct hdt_error *why, int64_t now_us)
{
    if (!r->has_site) {
        return true;
    }
    if ((why->status == HDT_EPEER || why->status == HDT_ELINK) && now_us < r->first_us + GRACE_US) {
        return false;
    }
    if (why->status == HDT_ETIMEDOUT && now_us < gw->started_us + BEGIN_US) {
        return false;
    }
    return r->logged_us == 0 || now_us >= r->logged_us + LOG_AGAIN_US ||
           !is_same_cause(r->why.msg, why->msg);
}

void hdt_refusals_note(struct hdt_gateway *gw, const char *site, const char *address,
                       const struct hdt_error *why, uint64_t n)
{
    const int64_t now_us = hdt_clock_now_us();
    char who[HDT_ADDRESS_CAP], more[HDT_LOG_LEFT_OUT_CAP];
    struct hdt_gwrefusal *r;

    address = address && address[0] ? address : "?";
    refusal_who(who, site, address);
    r = refusal_get(gw, who);
    r->n_unsaid += n;
    r->has_site = site[0] != '\0';
    r->first_us = r->n == 0 ? now_us : r->first_us;
    if (refusal_is_news(gw, r, why, now_us)) {
        r->logged_us = now_us;
        hdt_log_warn("no session with %s at %s: %s%s%s%s%s", site[0] ? site : "a stranger", address,
                     why->msg, why->hint[0] ? " (hint: " : "", why->hint, why->hint[0] ? ")" : "",
                     hdt_log_left_out(r->n_unsaid - 1, more));
        r->n_unsaid = 0;
    }
    r->last_us = now_us;
    r->why = *why;
    r->n += n;
}

void hdt_refusals_forget(struct hdt_gateway *gw, const char *site)
{
    char who[HDT_ADDRESS_CAP];

    refusal_who(who, site, "");
    for (size_t i = 0; i < HDT_REFUSALS; i++) {
        if (strcmp(gw->refusals[i].who, who) == 0) {
            memset(&gw->refusals[i], 0, sizeof(gw->refusals[i]));
        }
    }
}

json_t *hdt_refusals_json(const struct hdt_gateway *gw)
{
    const int64_t now_us = hdt_clock_now_us();
    json_t *list = json_array();

    for (size_t i = 0; i < HDT_REFUSALS; i++) {
        const struct hdt_gwrefusal *r = &gw->refusals[i];

        if (r->n > 0 && now_us - r->last_us < SHOWN_US) {
            json_array_append_new(list,
                                  json_pack("{s:s, s:b, s:I, s:f, s:s, s:s}", "who", r->who,
                                            "is_site", r->has_site, "attempts", (json_int_t)r->n,
                                            "last_s", (double)(now_us - r->last_us) / 1e6, "why",
                                            r->why.msg, "hint", r->why.hint));
        }
    }
    return list;
}
