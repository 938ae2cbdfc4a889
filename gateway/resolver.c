/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "gateway/dpstep.h"
#include "src/base/buf.h"

#include <stdlib.h>
#include <string.h>

/*
 * Names to addresses. The system's resolver blocks, for half a minute when a name server is away,
 * so that it has a thread of its own, and this thread may outlive the data plane: when it hangs in
 * a look-up at the end, it is left alone and frees its things when it comes back.
 *
 * I/O threads ask it, and end after it was stopped: what they ask then is forgotten, and its memory
 * stays until they are gone.
 */

struct resolver_ask {
    char site[64], address[160];
    struct resolver_ask *next;
};

struct hdt_resolver {
    struct hdt_dataplane *dp; /* NULL: it is closed */
    pthread_mutex_t lock;     /* guards all here; taken before the data plane's */
    pthread_cond_t asked;
    pthread_t thread;
    struct resolver_ask *asks;
    bool busy, is_stepped;
    bool is_left;      /* the thread hangs, detached */
    bool is_abandoned; /* the data plane is gone: who comes back frees */
};

static void resolver_free(struct hdt_resolver *resolver)
{
    struct resolver_ask *ask, *next;

    LL_FOREACH_SAFE(resolver->asks, ask, next)
    {
        free(ask);
    }
    pthread_cond_destroy(&resolver->asked);
    pthread_mutex_destroy(&resolver->lock);
    free(resolver);
}

/* With resolver->lock, which is let go during the look-up. */
static void resolver_answer(struct hdt_resolver *resolver, struct resolver_ask *ask)
{
    struct hdt_error err = {0};
    struct hdt_addr addr = {0};
    enum hdt_status status;

    resolver->busy = true;
    pthread_mutex_unlock(&resolver->lock);
    status = hdt_addr_parse(ask->address, &addr, &err);
    pthread_mutex_lock(&resolver->lock);
    resolver->busy = false;
    if (resolver->dp != NULL) {
        hdt_peer_resolved(resolver->dp, ask->site, ask->address, status == HDT_OK ? &addr : NULL,
                          &err);
    }
    free(ask);
}

static void *resolver_main(void *arg)
{
    struct hdt_resolver *resolver = arg;
    struct resolver_ask *ask;
    bool is_last;

    pthread_mutex_lock(&resolver->lock);
    while (resolver->dp != NULL) {
        ask = resolver->asks;
        if (ask == NULL) {
            pthread_cond_wait(&resolver->asked, &resolver->lock);
            continue;
        }
        LL_DELETE(resolver->asks, ask);
        resolver_answer(resolver, ask);
    }
    is_last = resolver->is_abandoned;
    resolver->is_left = false;
    pthread_mutex_unlock(&resolver->lock);
    if (is_last) {
        resolver_free(resolver);
    }
    return NULL;
}

enum hdt_status hdt_resolver_start(struct hdt_dataplane *dp, struct hdt_resolver **resolver,
                                   struct hdt_error *err)
{
    struct hdt_resolver *made = hdt_calloc(1, sizeof(*made));
    int rc = 0;

    made->dp = dp;
    made->is_stepped = dp->conf.stepped != NULL;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->asked, NULL);
    if (!made->is_stepped) {
        rc = pthread_create(&made->thread, NULL, resolver_main, made);
    }
    if (rc != 0) {
        resolver_free(made);
        return hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start the resolver's thread");
    }
    *resolver = made;
    return HDT_OK;
}

void hdt_resolver_stop(struct hdt_resolver *resolver)
{
    bool busy;

    if (resolver == NULL) {
        return;
    }
    pthread_mutex_lock(&resolver->lock);
    resolver->dp = NULL;
    busy = resolver->busy;
    if (busy) {
        resolver->is_left = true;
        pthread_detach(resolver->thread);
    }
    pthread_cond_signal(&resolver->asked);
    pthread_mutex_unlock(&resolver->lock);
    if (!busy && !resolver->is_stepped) {
        pthread_join(resolver->thread, NULL);
    }
}

void hdt_resolver_free(struct hdt_resolver *resolver)
{
    bool is_left;

    if (resolver == NULL) {
        return;
    }
    pthread_mutex_lock(&resolver->lock);
    is_left = resolver->is_left;
    resolver->is_abandoned = true;
    pthread_mutex_unlock(&resolver->lock);
    if (!is_left) {
        resolver_free(resolver);
    }
}

void hdt_resolver_ask(struct hdt_resolver *resolver, const char *site, const char *address)
{
    struct resolver_ask *ask = hdt_calloc(1, sizeof(*ask));

    memcpy(ask->site, site, sizeof(ask->site));
    memcpy(ask->address, address, sizeof(ask->address));
    pthread_mutex_lock(&resolver->lock);
    if (resolver->dp != NULL) {
        LL_APPEND(resolver->asks, ask);
        ask = NULL;
        pthread_cond_signal(&resolver->asked);
    }
    pthread_mutex_unlock(&resolver->lock);
    free(ask);
}

void hdt_dpstep_resolve(struct hdt_dataplane *dp)
{
    struct hdt_resolver *resolver = dp->resolver;
    struct resolver_ask *ask;

    pthread_mutex_lock(&resolver->lock);
    while ((ask = resolver->asks) != NULL) {
        LL_DELETE(resolver->asks, ask);
        resolver_answer(resolver, ask);
    }
    pthread_mutex_unlock(&resolver->lock);
}
