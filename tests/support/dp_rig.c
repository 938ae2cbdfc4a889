/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/dp_rig.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/net/addr.h"
#include "src/net/ca.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

unsigned hdt_rig_seed;

unsigned hdt_rig_random(unsigned *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

void hdt_rig_sleep_ms(int ms)
{
    const struct timespec ts = {ms / 1000, (ms % 1000) * 1000000l};

    nanosleep(&ts, NULL);
}

/* ---- certificates ---- */

char *hdt_rig_issue(struct rig *rig, const char *role, const char *name)
{
    char *ca_dir = hdt_asprintf("%s/ca", rig->dir);
    char *dir = hdt_asprintf("%s/%s-%s", rig->dir, role, strrchr(name, '/') != NULL ? "w" : name);
    struct hdt_ca_output output = {.dir = dir, .force = true};
    struct hdt_ca_entry entry = {.dates = hdt_ca_dates_days(10)};
    struct hdt_error err = {0};
    struct hdt_ca *ca;

    RIG_CHECK(hdt_ca_open(ca_dir, &ca, &err) == HDT_OK, "%s", err.msg);
    RIG_CHECK(hdt_identity_make("fed", role, name, &entry.identity, &err) == HDT_OK, "%s", err.msg);
    RIG_CHECK(hdt_ca_issue(ca, &output, &entry, &err) == HDT_OK, "%s", err.msg);
    hdt_ca_close(ca);
    free(ca_dir);
    return dir;
}

static struct hdt_tls_ctx *rig_tls(const char *dir)
{
    char *ca = hdt_asprintf("%s/ca.pem", dir);
    char *cert = hdt_asprintf("%s/cert.pem", dir);
    char *key = hdt_asprintf("%s/key.pem", dir);
    char *crl = hdt_asprintf("%s/crl.pem", dir);
    const struct hdt_tls_conf conf = {
        .ca_path = ca, .cert_path = cert, .key_path = key, .crl_path = crl};
    struct hdt_error err = {0};
    struct hdt_tls_ctx *tls;

    RIG_CHECK(hdt_tls_ctx_new(&conf, &tls, &err) == HDT_OK, "%s", err.msg);
    free(ca);
    free(cert);
    free(key);
    free(crl);
    return tls;
}

void hdt_rig_revoke(struct rig *rig, unsigned i, unsigned j)
{
    char *ca_dir = hdt_asprintf("%s/ca", rig->dir);
    char *cert = hdt_asprintf("%s/site-%s/cert.pem", rig->dir, rig->sites[i].name);
    char *copy =
        hdt_asprintf("cp '%s/crl.pem' '%s/site-%s/crl.pem'", ca_dir, rig->dir, rig->sites[j].name);
    struct hdt_ca_entry entry;
    struct hdt_error err = {0};
    struct hdt_ca *ca;

    RIG_CHECK(hdt_ca_open(ca_dir, &ca, &err) == HDT_OK &&
                  hdt_ca_revoke(ca, cert, &entry, &err) == HDT_OK,
              "%s", err.msg);
    hdt_ca_close(ca);
    RIG_CHECK(system(copy) == 0, "cannot copy the list");
    RIG_CHECK(hdt_tls_ctx_reload(rig->sites[j].tls, &err) == HDT_OK, "%s", err.msg);
    free(ca_dir);
    free(cert);
    free(copy);
}

void hdt_rig_open(struct rig *rig, unsigned n_sites)
{
    const char *seed = getenv("HDT_TEST_SEED");
    const struct hdt_ca_dates dates = hdt_ca_dates_days(20);
    struct hdt_ca_output output = {0};
    struct hdt_error err = {0};
    unsigned i;

    hdt_rig_seed = seed != NULL ? (unsigned)strtoul(seed, NULL, 0) : (unsigned)hdt_clock_now_ns();
    fprintf(stderr, "HDT_TEST_SEED=%u\n", hdt_rig_seed);
    hdt_log_init("rig", getenv("HDT_TEST_LOG") != NULL ? HDT_LOG_DEBUG : HDT_LOG_ERROR);
    memset(rig, 0, sizeof(*rig));
    snprintf(rig->dir, sizeof(rig->dir), "/tmp/hdt-dp-XXXXXX");
    RIG_CHECK(mkdtemp(rig->dir) != NULL, "no folder");
    output.dir = hdt_asprintf("%s/ca", rig->dir);
    RIG_CHECK(hdt_ca_init(&output, "fed", &dates, &err) == HDT_OK, "%s", err.msg);
    free((char *)output.dir);
    rig->n_sites = n_sites;
    rig->conf = (struct hdt_dataplane_conf){
        .federation = "fed",
        .version = "test",
        .advertise = "",
        .n_io_threads = 1,
        .n_codec_threads = 1,
        .n_streams = 3,
        .chunk_bytes = 64 << 10,
        .memory_bytes = 128 << 20,
        .pace = true,
        .congestion = "",
        .engine = getenv("HDT_TEST_ENGINE"),
    };
    hdt_deadlines_derive(&rig->conf.deadlines, HDT_DEADLINES_KNOB_MIN_MS, 0);
    for (i = 0; i < n_sites; i++) {
        struct rig_site *site = &rig->sites[i];
        char *dir;

        site->rig = rig;
        site->idx = i;
        snprintf(site->name, sizeof(site->name), "site-%c", (char)('a' + (int)i));
        dir = hdt_rig_issue(rig, "site", site->name);
        site->tls = rig_tls(dir);
        free(dir);
        snprintf(site->sock, sizeof(site->sock), "unix:%s/%s.sock", rig->dir, site->name);
        site->worker.rig = rig;
        site->worker.site = i;
        site->worker.fd = -1;
    }
}

/* ---- a site: what the control plane would do ---- */

static void on_peer_up(void *user, const char *site, const json_t *hello)
{
    (void)site;
    (void)hello;
    atomic_fetch_add(&((struct rig_site *)user)->n_up, 1);
}

static void on_peer_down(void *user, const char *site, const struct hdt_error *why)
{
    struct rig_site *self = user;

    (void)site;
    atomic_fetch_add(&self->n_timed_out, why->status == HDT_ETIMEDOUT);
    atomic_fetch_add(&self->n_crossed, why->status == HDT_EEXIST);
    atomic_fetch_add(&self->n_down, 1);
}

static void on_msg_ignored(void *user, const char *site, json_t *msg)
{
    (void)user;
    (void)site;
    (void)msg;
}

static void on_refused(void *user, const char *site, const char *address,
                       const struct hdt_error *why, uint64_t n)
{
    struct rig_site *self = user;

    RIG_CHECK(n > 0, "a refusal that stands for none");
    (void)site;
    (void)address;
    self->last_refused = *why;
    atomic_fetch_add(&self->n_refused, 1);
}

static void on_client_up(void *user, const struct hdt_client_info *info, const json_t *hello)
{
    (void)hello;
    atomic_fetch_add(&((struct rig_site *)user)->n_client_up, 1);
    RIG_CHECK(info->role == HDT_CLIENT_WORKER && strcmp(info->name, "w") == 0, "client '%s'",
              info->name);
}

/* "open" {flow, is_src, offset, next}: as the plan says. */
static void on_client_msg(void *user, uint64_t client, json_t *msg)
{
    struct rig_site *self = user;
    const json_t *body = hdt_msg_body(msg);
    const unsigned idx = (unsigned)json_integer_value(json_object_get(body, "flow"));
    const struct rig_flow *plan = &self->rig->flows[idx];
    struct hdt_dataplane_flow flow = {
        .client = client,
        .job = 7,
        .epoch = 1,
        .flow = idx,
        .is_src = json_is_true(json_object_get(body, "is_src")),
        .prio = plan->prio,
        .codec = plan->codec,
        .dtype = HDT_DTYPE_BF16,
        .depth = plan->depth,
        .frame_cap = plan->frame_cap,
        .pool = 5,
        .pool_offset = (uint64_t)json_integer_value(json_object_get(body, "offset")),
        .next_seq = (uint64_t)json_integer_value(json_object_get(body, "next")),
    };
    struct hdt_error err = {0};
    enum hdt_status status;

    snprintf(flow.peer_site, sizeof(flow.peer_site), "%s",
             self->rig->sites[flow.is_src ? plan->dst_site : plan->src_site].name);
    status = hdt_dataplane_flow_open(self->dp, &flow, &err);
    RIG_CHECK(status == HDT_OK || status == HDT_ENOENT, "%s", err.msg);
}

static void on_client_down(void *user, uint64_t client, const struct hdt_error *why)
{
    struct rig_site *self = user;

    (void)client;
    if (why->status != HDT_OK && !atomic_load(&self->worker.stop)) {
        fprintf(stderr, "worker of %s lost: %s\n", self->name, why->msg);
    }
    atomic_fetch_add(&self->n_client_down, 1);
}

static void on_probed(void *user, const char *site, double bytes_per_s, double rtt_s)
{
    struct rig_site *self = user;

    (void)site;
    (void)rtt_s;
    self->probed_bytes_per_s = bytes_per_s;
    atomic_fetch_add(&self->n_probed, 1);
}

static void on_flow_failed(void *user, uint32_t job, uint32_t epoch, const struct hdt_error *why)
{
    fprintf(stderr, "a flow of job %u, epoch %u failed: %s\n", job, epoch, why->msg);
    atomic_fetch_add(&((struct rig_site *)user)->n_flow_failed, 1);
}

static const struct hdt_dataplane_events site_events = {
    .peer_up = on_peer_up,
    .peer_down = on_peer_down,
    .peer_msg = on_msg_ignored,
    .peer_refused = on_refused,
    .client_up = on_client_up,
    .client_msg = on_client_msg,
    .client_down = on_client_down,
    .probed = on_probed,
    .flow_failed = on_flow_failed,
};

static void *site_main(void *arg)
{
    struct rig_site *site = arg;

    while (!atomic_load(&site->stop)) {
        struct pollfd pfd = {.fd = hdt_dataplane_fd(site->dp), .events = POLLIN};

        if (poll(&pfd, 1, 20) > 0) {
            hdt_dataplane_dispatch(site->dp);
        }
    }
    return NULL;
}

int hdt_rig_port(const char *address)
{
    return (int)strtol(strrchr(address, ':') + 1, NULL, 10);
}

/* Port 0 the first time, later the same port again. */
static int site_listen(const char *text, char *got, size_t got_cap)
{
    struct hdt_addr addr;
    struct hdt_error err = {0};
    int fd;

    RIG_CHECK(hdt_addr_parse(text, &addr, &err) == HDT_OK, "%s", err.msg);
    RIG_CHECK(hdt_addr_listen(&addr, 0600, &fd, &err) == HDT_OK, "%s", err.msg);
    if (got != NULL) {
        hdt_addr_of_socket(fd, false, got, (unsigned)got_cap);
    }
    return fd;
}

int hdt_rig_netns_enter(const char *name)
{
    char path[128];
    int was, fd;

    if (name == NULL) {
        return -1;
    }
    snprintf(path, sizeof(path), "/run/netns/%s", name);
    was = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    RIG_CHECK(was >= 0 && fd >= 0 && setns(fd, CLONE_NEWNET) == 0, "cannot enter %s", path);
    close(fd);
    return was;
}

void hdt_rig_netns_back(int was)
{
    if (was >= 0) {
        RIG_CHECK(setns(was, CLONE_NEWNET) == 0, "cannot leave a namespace");
        close(was);
    }
}

static void site_open(struct rig_site *site)
{
    struct hdt_dataplane_conf conf = site->rig->conf;
    const int was = hdt_rig_netns_enter(site->netns);
    struct hdt_error err = {0};

    conf.site = site->name;
    conf.instance = (uint64_t)hdt_clock_now_ns() << 8 | site->idx;
    conf.tls = site->tls;
    RIG_CHECK(hdt_dataplane_open(&conf, &site_events, site, &site->dp, &err) == HDT_OK, "%s",
              err.msg);
    hdt_dataplane_listen(
        site->dp, HDT_LISTENER_WAN,
        site_listen(site->wan[0] ? site->wan : "127.0.0.1:0", site->wan, sizeof(site->wan)));
    hdt_dataplane_listen(
        site->dp, HDT_LISTENER_LAN_TLS,
        site_listen(site->lan[0] ? site->lan : "127.0.0.1:0", site->lan, sizeof(site->lan)));
    hdt_dataplane_listen(site->dp, HDT_LISTENER_LAN_UNIX, site_listen(site->sock, NULL, 0));
    hdt_rig_netns_back(was);
    site->wan_port = hdt_rig_port(site->wan);
    atomic_store(&site->stop, false);
    RIG_CHECK(pthread_create(&site->main_thread, NULL, site_main, site) == 0, "no thread");
}

static void site_close(struct rig_site *site)
{
    atomic_store(&site->stop, true);
    pthread_join(site->main_thread, NULL);
    hdt_dataplane_close(site->dp);
    site->dp = NULL;
}

void hdt_rig_restart(struct rig *rig, unsigned i)
{
    site_close(&rig->sites[i]);
    site_open(&rig->sites[i]);
}

void hdt_rig_dial(struct rig *rig, unsigned i, unsigned j, const char *address)
{
    hdt_dataplane_dial(rig->sites[i].dp, rig->sites[j].name,
                       address != NULL ? address : rig->sites[j].wan);
}

/* ---- waiting ---- */

uint64_t hdt_rig_frames_total(const struct rig *rig)
{
    uint64_t n = 0;
    unsigned i;

    for (i = 0; i < rig->n_flows; i++) {
        n += rig->flows[i].n_frames;
    }
    return n;
}

uint64_t hdt_rig_frames_done(struct rig *rig)
{
    uint64_t n = 0;
    unsigned i;

    for (i = 0; i < rig->n_flows; i++) {
        n += atomic_load(&rig->done[i]);
    }
    return n;
}

static void rig_print(struct rig *rig)
{
    unsigned i;
    size_t k, n;

    for (i = 0; i < rig->n_sites; i++) {
        struct hdt_flow_stats flows[2 * RIG_FLOWS_MAX];
        struct hdt_peer_stats peers[RIG_SITES_MAX];

        n = hdt_dataplane_peer_stats(rig->sites[i].dp, peers, RIG_SITES_MAX);
        for (k = 0; k < n && k < RIG_SITES_MAX; k++) {
            fprintf(
                stderr,
                "%s -> %s: up %d, streams %u, sent %llu resent %llu recv %llu dup %llu bad "
                "%llu, queued %llu\n",
                rig->sites[i].name, peers[k].site, peers[k].up, peers[k].n_streams,
                (unsigned long long)peers[k].sent_chunks,
                (unsigned long long)peers[k].resent_chunks,
                (unsigned long long)peers[k].recv_chunks, (unsigned long long)peers[k].dup_chunks,
                (unsigned long long)peers[k].bad_chunks, (unsigned long long)peers[k].queued_bytes);
        }
        n = hdt_dataplane_flow_stats(rig->sites[i].dp, flows, 2 * RIG_FLOWS_MAX);
        for (k = 0; k < n && k < 2 * RIG_FLOWS_MAX; k++) {
            fprintf(stderr, "  flow %u %s: next %llu acked %llu credit %llu, done %llu\n",
                    flows[k].flow, flows[k].is_src ? "src" : "dst",
                    (unsigned long long)flows[k].next_seq, (unsigned long long)flows[k].acked_seq,
                    (unsigned long long)flows[k].credit_seq,
                    (unsigned long long)atomic_load(&rig->done[flows[k].flow]));
        }
    }
}

static void rig_wait_until(struct rig *rig, uint64_t n, int seconds)
{
    uint64_t last = 0;
    int64_t moved_us = hdt_clock_now_us();

    for (;;) {
        const uint64_t done = hdt_rig_frames_done(rig);

        if (done >= n) {
            return;
        }
        if (done != last) {
            last = done;
            moved_us = hdt_clock_now_us();
        }
        if (hdt_clock_now_us() - moved_us > seconds * HDT_US_PER_S) {
            rig_print(rig);
            RIG_CHECK(false, "no progress in %d s at %llu of %llu frames", seconds,
                      (unsigned long long)done, (unsigned long long)n);
        }
        hdt_rig_sleep_ms(2);
    }
}

void hdt_rig_wait_done(struct rig *rig, int seconds)
{
    rig_wait_until(rig, hdt_rig_frames_total(rig), seconds);
}

void hdt_rig_wait_frames(struct rig *rig, uint64_t n)
{
    rig_wait_until(rig, n, 20);
}

void hdt_rig_wait_count(atomic_int *count, int n)
{
    const int64_t until_us = hdt_clock_now_us() + 10 * HDT_US_PER_S;

    while (atomic_load(count) < n) {
        RIG_CHECK(hdt_clock_now_us() < until_us, "only %d of %d in 10 s", atomic_load(count), n);
        hdt_rig_sleep_ms(2);
    }
}

bool hdt_rig_peer_stats(struct rig *rig, unsigned i, unsigned j, struct hdt_peer_stats *stats)
{
    struct hdt_peer_stats all[RIG_SITES_MAX + 2];
    const size_t n = hdt_dataplane_peer_stats(rig->sites[i].dp, all, RIG_SITES_MAX + 2);
    size_t k;

    for (k = 0; k < n && k < RIG_SITES_MAX + 2; k++) {
        if (strcmp(all[k].site, rig->sites[j].name) == 0) {
            *stats = all[k];
            return true;
        }
    }
    return false;
}

void hdt_rig_wait_peer(struct rig *rig, unsigned i, unsigned j, struct hdt_peer_stats *stats)
{
    const int64_t until_us = hdt_clock_now_us() + 15 * HDT_US_PER_S;

    while (!hdt_rig_peer_stats(rig, i, j, stats) || !stats->up ||
           stats->n_streams < (unsigned)rig->conf.n_streams) {
        RIG_CHECK(hdt_clock_now_us() < until_us, "%s does not reach %s", rig->sites[i].name,
                  rig->sites[j].name);
        hdt_rig_sleep_ms(2);
    }
}

void hdt_rig_start(struct rig *rig)
{
    unsigned i;

    for (i = 0; i < rig->n_sites; i++) {
        site_open(&rig->sites[i]);
    }
    for (i = 0; i < rig->n_sites; i++) {
        hdt_rig_worker_start(&rig->sites[i].worker);
    }
}

void hdt_rig_close(struct rig *rig)
{
    char *command = hdt_asprintf("rm -rf '%s'", rig->dir);
    unsigned i;

    for (i = 0; i < rig->n_sites; i++) {
        hdt_rig_worker_stop(&rig->sites[i].worker);
    }
    for (i = 0; i < rig->n_sites; i++) {
        site_close(&rig->sites[i]);
        hdt_tls_ctx_free(rig->sites[i].tls);
    }
    RIG_CHECK(system(command) == 0, "cannot remove %s", rig->dir);
    free(command);
}
