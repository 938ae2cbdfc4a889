/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_NOTIFY_H
#define HDT_BASE_NOTIFY_H

/*
 * What a daemon tells the service manager that started it (sd_notify(3), the datagram alone: no
 * library is needed for it). `systemctl start` returns when the daemon is ready and not when it was
 * forked, and one whose main loop stands still is started anew. Without a manager
 * ($NOTIFY_SOCKET unset) all of this does nothing. Never blocks; any
 * thread.
 */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* It serves now; also after a reload. */
void hdt_notify_ready(void);
/* It reads its settings again: to be followed by ready. */
void hdt_notify_reloading(void);
void hdt_notify_stopping(void);

/* What a main loop told last; zeroed at first, of one thread. */
struct hdt_notify {
    int64_t alive_us;
    char status[256];
};

/* One line for `systemctl status`. Sent only when it is another than the last. */
void hdt_notify_status(struct hdt_notify *notify, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The main loop turns. To be called more often than the manager's WatchdogSec; sends at most twice
 * in that time, nothing when no watchdog was asked for. */
void hdt_notify_alive(struct hdt_notify *notify);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_NOTIFY_H */
