/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_HUMAN_H
#define HDT_CLI_HUMAN_H

/* Numbers and names as people read them in a table: three digits and a unit, a width that holds. */
#include <stddef.h>

/* Room for any text of hdt_human_count, _bytes, _rate, _time and _duration. */
#define HDT_HUMAN_CAP 32

/* 586000 -> "586k", 70.6e9 -> "70.6B". Returns `out`. */
const char *hdt_human_count(double n, char out[HDT_HUMAN_CAP]);

/* Powers of 1000, as wires are sold: 54.7e6 -> "54.7 MB". Returns `out`. */
const char *hdt_human_bytes(double n, char out[HDT_HUMAN_CAP]);

/* Powers of 1024, as memory is sold: "12.3 GiB". Returns `out`. */
const char *hdt_human_memory(double n, char out[HDT_HUMAN_CAP]);

/* "197 Mbit/s", "11.1 Gbit/s". Returns `out`. */
const char *hdt_human_rate(double bytes_per_s, char out[HDT_HUMAN_CAP]);

/* "21.9 ms", "1.23 s". Returns `out`. */
const char *hdt_human_time(double s, char out[HDT_HUMAN_CAP]);

/* For waits: "45 s", "2 min 5 s", "3 h 12 min", "2 d 4 h". Returns `out`. */
const char *hdt_human_duration(double s, char out[HDT_HUMAN_CAP]);

/* `text` in at most `width` columns (below `cap`): a longer one is cut and ends in "..". `cap` is 3
 * at least. Returns `out`. */
const char *hdt_human_cut(const char *text, size_t width, char *out, size_t cap);

/* The name of a device without what its maker put in parentheses, then cut as above. */
const char *hdt_human_device(const char *device, size_t width, char *out, size_t cap);

#endif /* HDT_CLI_HUMAN_H */
