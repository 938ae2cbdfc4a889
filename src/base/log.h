/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_LOG_H
#define HDT_BASE_LOG_H

/*
 * Logging: one line an event, to standard error, and the last lines kept in memory for
 * `hdt logs`. Levels: error the run suffers, warn something was repaired, info life events (a page
 * a day), debug per object, trace per chunk. Text is lower case, values are words ("rtt 41 ms"),
 * never secrets. Any thread; a line is written whole.
 *
 * A storm is a few lines. An error or a warning that says what another said within the last minute,
 * of another rank, stream, flow or peer's port (src/base/repeat.h), is counted, and one line says
 * how often it came and of whom. A place in the code that says more than HDT_LOG_BURST lines at
 * level info or above, and then more than one a second, is cut to that, and the number left out is
 * said. The flight recorder has every line down to debug, printed or not.
 */
#include "src/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct hdt_buf;

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_log_level {
    HDT_LOG_ERROR,
    HDT_LOG_WARN,
    HDT_LOG_INFO,
    HDT_LOG_DEBUG,
    HDT_LOG_TRACE,
    HDT_LOG_LEVEL_COUNT
};

/* {"error", "warn", ..., NULL}, for tables of settings. */
extern const char *const hdt_log_level_names[];

/* Name the process in every line ("hdt-gateway site-a") and set the level; copies `ident`.
 * Call once before threads start. Lines go to standard error with a UTC time stamp. */
void hdt_log_init(const char *ident, enum hdt_log_level level);

enum hdt_log_level hdt_log_level(void);
void hdt_log_set_level(enum hdt_log_level level);

/* What this process does now, in every line behind its name: "rank 2"; "": nothing. Copies. */
void hdt_log_set_part(const char *part);

/* Lines at once of one place in the code. */
#define HDT_LOG_BURST 60

/* Say what repeated lines have come to, where their minute is over. The flight recorder's thread
 * calls it each second. hdt_log_flush: all of them, before the process ends. */
void hdt_log_tick(void);
void hdt_log_flush(void);

/* Write one line. Use the macros below, which skip the call when neither the log nor the flight
 * recorder takes the level. */
void hdt_log_write(enum hdt_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Log an error's message, place and hint as one line. */
void hdt_log_failure(enum hdt_log_level level, const struct hdt_error *err);

/* A line per `interval_s` seconds and place at most; what was left out is counted and said with the
 * next line. `limit` belongs to the caller (static, zero-initialised). For places that are known to
 * be stormy; all others are limited as said above. */
struct hdt_log_limit {
    int64_t next_us;
    uint64_t n_suppressed;
};
bool hdt_log_limit_pass(struct hdt_log_limit *limit, int interval_s, uint64_t *n_suppressed);

/* Append the last `n_lines` lines kept in memory (at most 4096), oldest first, to `out`. */
void hdt_log_tail(unsigned n_lines, struct hdt_buf *out);

/* " (3 more like this left out)"; "" of none. */
#define HDT_LOG_LEFT_OUT_CAP 48
const char *hdt_log_left_out(uint64_t n, char out[HDT_LOG_LEFT_OUT_CAP]);

#define HDT_LOG_AT(level, ...)                                                                     \
 do {                                                                                              \
  if ((level) <= HDT_LOG_DEBUG || (level) <= hdt_log_level()) {                                    \
   hdt_log_write((level), __VA_ARGS__);                                                            \
  }                                                                                                \
 } while (0)
#define hdt_log_error(...) HDT_LOG_AT(HDT_LOG_ERROR, __VA_ARGS__)
#define hdt_log_warn(...)  HDT_LOG_AT(HDT_LOG_WARN, __VA_ARGS__)
#define hdt_log_info(...)  HDT_LOG_AT(HDT_LOG_INFO, __VA_ARGS__)
#define hdt_log_debug(...) HDT_LOG_AT(HDT_LOG_DEBUG, __VA_ARGS__)
#define hdt_log_trace(...) HDT_LOG_AT(HDT_LOG_TRACE, __VA_ARGS__)

/* hdt_log_warn at most once in `interval_s` seconds for this place in the code. */
#define hdt_log_warn_limited(interval_s, fmt, ...)                                                 \
 do {                                                                                              \
  static struct hdt_log_limit hdt_limit_;                                                          \
  uint64_t hdt_n_;                                                                                 \
  char hdt_text_[HDT_LOG_LEFT_OUT_CAP];                                                            \
  if (hdt_log_limit_pass(&hdt_limit_, (interval_s), &hdt_n_)) {                                    \
   hdt_log_warn(fmt "%s", ##__VA_ARGS__, hdt_log_left_out(hdt_n_, hdt_text_));                     \
  }                                                                                                \
 } while (0)

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_LOG_H */
