/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/human.h"
#include "src/base/error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Three digits: what one more would say is noise in a measurement. */
static const char *scaled(double n, double base, const char *const units[], char out[HDT_HUMAN_CAP])
{
    size_t i = 0;

    /* 999.5 would be printed as 1000. */
    while (units[i + 1] && fabs(n) >= base - 0.5) {
        n /= base;
        i++;
    }
    snprintf(out, HDT_HUMAN_CAP, "%.*f%s",
             fabs(n) < 9.995   ? 2
             : fabs(n) < 99.95 ? 1
                               : 0,
             n, units[i]);
    return out;
}

const char *hdt_human_count(double n, char out[HDT_HUMAN_CAP])
{
    static const char *const units[] = {"", "k", "M", "B", "T", NULL};

    return scaled(n, 1e3, units, out);
}

const char *hdt_human_bytes(double n, char out[HDT_HUMAN_CAP])
{
    static const char *const units[] = {" kB", " MB", " GB", " TB", NULL};

    return scaled(n / 1e3, 1e3, units, out);
}

const char *hdt_human_memory(double n, char out[HDT_HUMAN_CAP])
{
    static const char *const units[] = {" KiB", " MiB", " GiB", " TiB", NULL};

    return scaled(n / 1024, 1024, units, out);
}

const char *hdt_human_rate(double bytes_per_s, char out[HDT_HUMAN_CAP])
{
    static const char *const units[] = {" kbit/s", " Mbit/s", " Gbit/s", " Tbit/s", NULL};

    return scaled(8 * bytes_per_s / 1e3, 1e3, units, out);
}

const char *hdt_human_time(double s, char out[HDT_HUMAN_CAP])
{
    static const char *const units[] = {" us", " ms", " s", NULL};

    return scaled(s * 1e6, 1e3, units, out);
}

const char *hdt_human_duration(double s, char out[HDT_HUMAN_CAP])
{
    static const struct {
        unsigned s;
        const char *unit;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    unsigned left = s > 0 ? s < 1e9 ? (unsigned)(s + 0.5) : 1000000000 : 0;
    size_t i = 0;
    int len;

    while (i < 3 && left < units[i].s) {
        i++;
    }
    len = snprintf(out, HDT_HUMAN_CAP, "%u %s", left / units[i].s, units[i].unit);
    left %= units[i].s;
    if (i < 3 && left >= units[i + 1].s) {
        snprintf(out + len, HDT_HUMAN_CAP - (size_t)len, " %u %s", left / units[i + 1].s,
                 units[i + 1].unit);
    }
    return out;
}

const char *hdt_human_cut(const char *text, size_t width, char *out, size_t cap)
{
    HDT_ASSERT(width > 2 && width < cap);
    snprintf(out, cap, "%s", text);
    if (strlen(text) > width) {
        memcpy(out + width - 2, "..", 3);
    }
    return out;
}

const char *hdt_human_device(const char *device, size_t width, char *out, size_t cap)
{
    char name[128];

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(device, "("), device);
    for (size_t len = strlen(name); len > 0 && name[len - 1] == ' '; len--) {
        name[len - 1] = '\0';
    }
    return hdt_human_cut(name[0] ? name : device, width, out, cap);
}
