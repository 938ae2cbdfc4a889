/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/resolve.h"
#include "src/base/buf.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct hdt_resolve {
    atomic_int refs; /* the asker's and the thread's */
    int event_fd;
    char *text;
    atomic_bool is_done;    /* what the descriptor says to poll(), with the order of memory */
    enum hdt_status status; /* the thread's until is_done, as the next */
    struct hdt_addr addr;
    struct hdt_error err;
};

static void resolve_unref(struct hdt_resolve *resolve)
{
    if (atomic_fetch_sub(&resolve->refs, 1) == 1) {
        close(resolve->event_fd);
        free(resolve->text);
        free(resolve);
    }
}

static void *resolve_main(void *user)
{
    struct hdt_resolve *resolve = user;
    const uint64_t one = 1;

    resolve->status = hdt_addr_parse(resolve->text, &resolve->addr, &resolve->err);
    atomic_store_explicit(&resolve->is_done, true, memory_order_release);
    if (write(resolve->event_fd, &one, sizeof(one)) < 0) {
        HDT_ASSERT(errno == EAGAIN); /* its counter is full: it is readable */
    }
    resolve_unref(resolve);
    return NULL;
}

enum hdt_status hdt_resolve_begin(const char *text, struct hdt_resolve **out, struct hdt_error *err)
{
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), rc;
    struct hdt_resolve *resolve;
    pthread_attr_t attr;
    pthread_t thread;

    if (fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot look up '%s'", text);
    }
    resolve = hdt_calloc(1, sizeof(*resolve));
    atomic_init(&resolve->refs, 2);
    resolve->event_fd = fd;
    resolve->text = hdt_strdup(text);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attr, resolve_main, resolve);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        atomic_fetch_sub(&resolve->refs, 1);
        resolve_unref(resolve);
        return hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start a thread to look up '%s'",
                                   text);
    }
    *out = resolve;
    return HDT_OK;
}

int hdt_resolve_fd(const struct hdt_resolve *resolve)
{
    return resolve->event_fd;
}

enum hdt_status hdt_resolve_end(struct hdt_resolve *resolve, struct hdt_addr *addr,
                                struct hdt_error *err)
{
    enum hdt_status status = HDT_AGAIN;

    if (atomic_load_explicit(&resolve->is_done, memory_order_acquire)) {
        status = resolve->status;
        *addr = resolve->addr;
        if (err && status != HDT_OK) {
            *err = resolve->err;
        }
    }
    resolve_unref(resolve);
    return status;
}
