/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

/* Opening and closing the data plane, and the commands of the main thread that are not about flows
 * (flow_end.c), peers (peer.c) or probes (probe.c). */

/* ---- shared by all files ---- */

uint64_t hdt_dp_random(struct hdt_dataplane *dp)
{
    uint64_t z = dp->rng += 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return z != 0 ? z : 1;
}

enum hdt_status hdt_dp_charge(struct hdt_dataplane *dp, size_t len, const char *what,
                              struct hdt_error *err)
{
    if (len > dp->conf.memory_bytes || dp->memory_used > dp->conf.memory_bytes - len) {
        hdt_error_set(
            err, HDT_ENOMEM,
            "cannot get %zu bytes for %s: %zu of the %llu bytes of the setting data.memory "
            "are in use",
            len, what, dp->memory_used, (unsigned long long)dp->conf.memory_bytes);
        hdt_error_hint(err, "raise data.memory of this gateway, or lower wan.chunk or wan.streams");
        return HDT_ENOMEM;
    }
    dp->memory_used += len;
    return HDT_OK;
}

struct hdt_mem *hdt_mem_ref(struct hdt_mem *mem)
{
    HDT_ASSERT(mem->refs > 0);
    mem->refs++;
    return mem;
}

void hdt_mem_unref(struct hdt_dataplane *dp, struct hdt_mem *mem)
{
    HDT_ASSERT(mem->refs > 0);
    if (--mem->refs > 0) {
        return;
    }
    if (mem->pool.ops != NULL) {
        mem->pool.ops->pool_free(&mem->pool);
    } else {
        munmap(mem->base, mem->len);
        dp->memory_used -= mem->charged;
    }
    free(mem);
}

/* ---- open and close ---- */

static void dataplane_copy_conf(struct hdt_dataplane *dp, const struct hdt_dataplane_conf *conf)
{
    dp->conf = *conf;
    dp->conf.site = hdt_strdup(conf->site);
    dp->conf.federation = hdt_strdup(conf->federation);
    dp->conf.version = hdt_strdup(conf->version != NULL ? conf->version : "");
    dp->conf.advertise = hdt_strdup(conf->advertise != NULL ? conf->advertise : "");
    dp->conf.congestion = hdt_strdup(conf->congestion != NULL ? conf->congestion : "");
}

static void dataplane_free(struct hdt_dataplane *dp)
{
    free((void *)dp->conf.site);
    free((void *)dp->conf.federation);
    free((void *)dp->conf.version);
    free((void *)dp->conf.advertise);
    free((void *)dp->conf.congestion);
    pthread_cond_destroy(&dp->work);
    pthread_mutex_destroy(&dp->lock);
    free(dp);
}

static enum hdt_status dataplane_check_conf(const struct hdt_dataplane_conf *conf,
                                            struct hdt_error *err)
{
    if (conf->chunk_bytes < HDT_FRAME_GRANULE || conf->chunk_bytes > HDT_DP_CHUNK_MAX ||
        conf->chunk_bytes % HDT_FRAME_GRANULE != 0) {
        return hdt_error_set(
            err, HDT_EINVAL,
            "cannot open the data plane: chunks of %llu bytes are not multiples of "
            "%u up to %u",
            (unsigned long long)conf->chunk_bytes, HDT_FRAME_GRANULE, HDT_DP_CHUNK_MAX);
    }
    if (conf->n_streams < 0 || conf->n_streams > HDT_DP_STREAMS_MAX || conf->n_io_threads < 1 ||
        conf->n_codec_threads < 1) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot open the data plane: %d streams, %d I/O threads, %d codec "
                             "threads",
                             conf->n_streams, conf->n_io_threads, conf->n_codec_threads);
    }
    if (conf->n_budgets > (conf->stepped == NULL ? HDT_BUDGETS_MAX : 0)) {
        return hdt_error_set(err, HDT_EINVAL, "cannot open the data plane with %u budgets",
                             conf->n_budgets);
    }
    return HDT_OK;
}

/* Without the file (another system) there is the default alone. */
static void dataplane_read_offered(struct hdt_dataplane *dp)
{
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_available_congestion_control", "re");

    if (file != NULL) {
        if (fgets(dp->congestion_offered, sizeof(dp->congestion_offered), file) == NULL) {
            dp->congestion_offered[0] = '\0';
        }
        fclose(file);
    }
}

/* Its waits end by the clock of deadlines. */
static void dataplane_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

enum hdt_status hdt_dataplane_open(const struct hdt_dataplane_conf *conf,
                                   const struct hdt_dataplane_events *events, void *user,
                                   struct hdt_dataplane **dp_out, struct hdt_error *err)
{
    struct hdt_dataplane *dp;
    enum hdt_status status;

    HDT_TRY(dataplane_check_conf(conf, err));
    dp = hdt_calloc(1, sizeof(*dp));
    dataplane_copy_conf(dp, conf);
    dp->events = *events;
    dp->user = user;
    dp->n_io = (unsigned)conf->n_io_threads;
    pthread_mutex_init(&dp->lock, NULL);
    dataplane_cond_init(&dp->work);
    dp->budgets.all = conf->budgets;
    dp->budgets.n = conf->n_budgets;
    dataplane_read_offered(dp);
    dp->tx_buf_cap = hdt_codecpool_bound(conf->chunk_bytes);
    if (getrandom(&dp->rng, sizeof(dp->rng), 0) != (ssize_t)sizeof(dp->rng)) {
        dp->rng = (uint64_t)hdt_clock_now_ns() ^ conf->instance;
    }
    dp->next_incarnation = (uint32_t)hdt_dp_random(dp);
    status = hdt_dpevent_init(dp, err);
    if (status != HDT_OK) {
        dataplane_free(dp);
        return status;
    }
    status = hdt_resolver_start(dp, &dp->resolver, err);
    if (status == HDT_OK) {
        status = hdt_codecpool_start(dp, err);
    }
    if (status == HDT_OK) {
        status = hdt_iothreads_start(dp, err);
    }
    if (status == HDT_OK) {
        status = hdt_doorman_start(dp, err);
    }
    if (status != HDT_OK) {
        hdt_dataplane_close(dp);
        return status;
    }
    *dp_out = dp;
    return HDT_OK;
}

void hdt_dataplane_close(struct hdt_dataplane *dp)
{
    if (dp == NULL) {
        return;
    }
    /* Nobody is let in, nothing new is dialled, then no job writes, then the connections go, then
     * memory. */
    hdt_doorman_stop(dp->doorman);
    hdt_resolver_stop(dp->resolver);
    hdt_codecpool_stop(dp);
    hdt_iothreads_stop(dp);
    hdt_dp_lock(dp);
    hdt_peers_close(dp);
    hdt_flow_ends_free(dp);
    hdt_clients_free(dp);
    hdt_peers_free(dp);
    hdt_dp_unlock(dp);
    HDT_ASSERT(dp->conns == NULL && dp->flows == NULL && dp->draining == NULL);
    hdt_doorman_free(dp->doorman);
    hdt_resolver_free(dp->resolver);
    hdt_iothreads_free(dp);
    hdt_dpevent_release(dp);
    dataplane_free(dp);
}

/* ---- commands ---- */

void hdt_dataplane_listen(struct hdt_dataplane *dp, enum hdt_listener kind, int fd)
{
    HDT_ASSERT(dp->conf.stepped == NULL);
    hdt_doorman_listen(dp->doorman, kind, fd);
}

enum hdt_status hdt_dataplane_peer_send(struct hdt_dataplane *dp, const char *site,
                                        const json_t *msg, struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    const struct hdt_peer *peer;
    enum hdt_status status;

    hdt_msg_encode(msg, &bytes);
    hdt_dp_lock(dp);
    peer = hdt_peer_find(dp, site);
    if (peer == NULL || peer->session == NULL || peer->session->conns[0] == NULL) {
        status =
            hdt_error_set(err, HDT_EPEER, "cannot send to site '%s': it is not connected", site);
    } else {
        status = hdt_conn_send_encoded(peer->session->conns[0], &bytes, err);
        if (status == HDT_ELINK) {
            status = hdt_error_set(err, HDT_EPEER, "cannot send to site '%s': it is leaving", site);
        }
    }
    hdt_dp_unlock(dp);
    hdt_buf_release(&bytes);
    return status;
}

enum hdt_status hdt_dataplane_client_send(struct hdt_dataplane *dp, uint64_t client,
                                          const json_t *msg, struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    const struct hdt_client *to;
    enum hdt_status status;

    hdt_msg_encode(msg, &bytes);
    hdt_dp_lock(dp);
    to = hdt_client_find(dp, client);
    if (to == NULL) {
        status = hdt_error_set(err, HDT_ENOENT, "cannot send to client %llu: it is gone",
                               (unsigned long long)client);
    } else {
        status = hdt_conn_send_encoded(to->conn, &bytes, err);
        if (status == HDT_ELINK) {
            status = hdt_error_set(err, HDT_ENOENT, "cannot send to '%s': it is leaving", to->name);
        }
    }
    hdt_dp_unlock(dp);
    hdt_buf_release(&bytes);
    return status;
}

void hdt_dataplane_client_close(struct hdt_dataplane *dp, uint64_t client,
                                const struct hdt_error *why)
{
    struct hdt_client *to;

    hdt_dp_lock(dp);
    to = hdt_client_find(dp, client);
    if (to != NULL) {
        if (why != NULL) {
            hdt_conn_refuse(to->conn, why);
        } else {
            hdt_conn_close(to->conn, NULL);
        }
    }
    hdt_dp_unlock(dp);
}

void hdt_dataplane_recheck(struct hdt_dataplane *dp)
{
    struct hdt_conn *conn;

    hdt_dp_lock(dp);
    DL_FOREACH(dp->conns, conn)
    {
        conn->recheck_requested = true;
        hdt_conn_kick(conn);
    }
    hdt_dp_unlock(dp);
}

void hdt_dataplane_break_stream(struct hdt_dataplane *dp, const char *site, unsigned n)
{
    const struct hdt_error why = {.status = HDT_ELINK, .msg = "broken on request"};
    const struct hdt_peer *peer;

    hdt_dp_lock(dp);
    peer = hdt_peer_find(dp, site);
    if (peer != NULL && peer->session != NULL) {
        const struct hdt_session *session = peer->session;
        struct hdt_conn *conn = session->conns[1 + n % session->n_open];

        if (conn != NULL && conn->state == HDT_CONN_UP) {
            hdt_conn_close(conn, &why);
        }
    }
    hdt_dp_unlock(dp);
}
