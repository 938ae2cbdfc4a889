/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/doctor_local.h"
#include "src/base/buf.h"
#include "src/core/gateway_conf.h"
#include "src/net/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>
#ifdef HAVE_LIBURING
# include <liburing.h>
#endif
#ifdef HAVE_VERBS
# include <infiniband/verbs.h>
#endif

#define EXPIRY_WARN_DAYS 30
#define MEMLOCK_MIN      (64ull << 20) /* pools that io_uring or RDMA registers */
#define DISK_MIN         (1ull << 30)

void hdt_doctor_add(json_t *checks, const char *name, const char *state, const char *remedy,
                    const char *detail_fmt, ...)
{
    char detail[1024];
    json_t *text;
    va_list ap;

    va_start(ap, detail_fmt);
    vsnprintf(detail, sizeof(detail), detail_fmt, ap);
    va_end(ap);
    if (!(text = json_string(detail))) {
        text = json_string("(not UTF-8)");
    }
    json_array_append_new(checks, json_pack("{s:s, s:s, s:o, s:s}", "name", name, "state", state,
                                            "detail", text, "remedy", remedy));
}

/* First line of a file; "" when it cannot be read. */
static void file_line(const char *path, char *out, size_t cap)
{
    FILE *file = fopen(path, "re");

    out[0] = '\0';
    if (file) {
        if (!fgets(out, (int)cap, file)) {
            out[0] = '\0';
        }
        fclose(file);
    }
    out[strcspn(out, "\n")] = '\0';
}

/* ---- certificates ---- */

static void check_expiry(json_t *checks, const char *path)
{
    FILE *file = fopen(path, "re");
    X509 *cert = file ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;
    int days = 0, seconds = 0;

    if (file) {
        fclose(file);
    }
    if (!cert || ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(cert)) != 1) {
        hdt_doctor_add(checks, "certificate", "fail", "hdt ca issue makes a new one",
                       "'%s' is no certificate", path);
    } else if (days < 0 || seconds < 0) {
        hdt_doctor_add(checks, "certificate", "fail", "hdt ca issue makes a new one",
                       "'%s' has expired", path);
    } else if (days < EXPIRY_WARN_DAYS) {
        hdt_doctor_add(checks, "certificate", "warn", "hdt ca issue makes a new one",
                       "'%s' ends in %d days", path, days);
    } else {
        hdt_doctor_add(checks, "certificate", "ok", "", "'%s' is good for %d days", path, days);
    }
    X509_free(cert);
}

/* The files together: key fits, signed by the authority, valid now. */
static void check_files(json_t *checks, const struct hdt_tls_conf *conf)
{
    struct hdt_tls_ctx *ctx = NULL;
    struct hdt_error err = {0};

    if (hdt_tls_ctx_new(conf, &ctx, &err) != HDT_OK) {
        hdt_doctor_add(checks, "certificates", "fail", err.hint, "%s%s%s", err.where,
                       err.where[0] ? ": " : "", err.msg);
        return;
    }
    hdt_tls_ctx_free(ctx);
    check_expiry(checks, conf->cert_path);
}

static void check_gateway_conf(json_t *checks, const char *path)
{
    struct hdt_gateway_conf conf;
    struct hdt_error err = {0};
    struct hdt_tls_conf tls;

    if (hdt_conf_load(&hdt_gateway_conf_schema, path, &conf, NULL, &err) != HDT_OK) {
        hdt_doctor_add(checks, "gateway.yaml", "fail", err.hint, "%s%s%s", err.where,
                       err.where[0] ? ": " : "", err.msg);
        return;
    }
    hdt_doctor_add(checks, "gateway.yaml", "ok", "", "'%s' is valid", path);
    tls = (struct hdt_tls_conf){.ca_path = conf.tls.ca,
                                .cert_path = conf.tls.cert,
                                .key_path = conf.tls.key,
                                .crl_path = conf.tls.crl,
                                .own_roles = HDT_ROLE_SITE,
                                .federation = conf.federation,
                                .site = conf.site};
    check_files(checks, &tls);
    hdt_conf_release(&hdt_gateway_conf_schema, &conf);
}

static void check_certificates(json_t *checks, const struct hdt_doctor_files *files)
{
    static const char installed[] = HDT_SYSCONFDIR "/gateway.yaml";
    struct hdt_tls_conf tls = {
        .ca_path = files->ca, .cert_path = files->cert, .key_path = files->key};

    if (files->ca && files->cert && files->key) {
        check_files(checks, &tls);
    } else if (files->cert) {
        check_expiry(checks, files->cert);
    }
    if (files->config) {
        check_gateway_conf(checks, files->config);
    } else if (access(installed, R_OK) == 0) {
        check_gateway_conf(checks, installed);
    }
}

/* ---- limits and kernel ---- */

static void check_memlock(json_t *checks)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        return;
    }
    if (limit.rlim_cur == RLIM_INFINITY) {
        hdt_doctor_add(checks, "memlock", "ok", "", "unlimited");
        return;
    }
    hdt_doctor_add(checks, "memlock", limit.rlim_cur < MEMLOCK_MIN ? "warn" : "ok",
                   limit.rlim_cur < MEMLOCK_MIN
                       ? "LimitMEMLOCK=infinity in the service, or ulimit -l unlimited"
                       : "",
                   "%.0f MiB may be locked for registered buffers",
                   (double)limit.rlim_cur / 0x1p20);
}

static void check_io_uring(json_t *checks)
{
#ifdef HAVE_LIBURING
    struct io_uring ring;
    int rc = io_uring_queue_init(4, &ring, 0);

    if (rc == 0) {
        io_uring_queue_exit(&ring);
        hdt_doctor_add(checks, "io_uring", "ok", "", "may be used");
        return;
    }
    hdt_doctor_add(
        checks, "io_uring", "warn",
        "sysctl kernel.io_uring_disabled=0, and no seccomp filter against it; epoll serves "
        "meanwhile",
        "refused: %s", strerror(-rc));
#else
    hdt_doctor_add(checks, "io_uring", "ok", "", "not built in (--with-liburing); epoll is used");
#endif
}

static void check_congestion(json_t *checks)
{
    char available[256], current[64];
    bool has_bbr;

    file_line("/proc/sys/net/ipv4/tcp_available_congestion_control", available, sizeof(available));
    file_line("/proc/sys/net/ipv4/tcp_congestion_control", current, sizeof(current));
    has_bbr = strstr(available, "bbr") != NULL;
    hdt_doctor_add(checks, "congestion control", has_bbr ? "ok" : "warn",
                   has_bbr ? "" : "modprobe tcp_bbr, where links lose packets (wan.congestion)",
                   "%s is used; there are: %s", current[0] ? current : "?",
                   available[0] ? available : "?");
}

static double buffer_max(const char *path)
{
    char line[128];
    long long min = 0, def = 0, max = 0;

    file_line(path, line, sizeof(line));
    return sscanf(line, "%lld %lld %lld", &min, &def, &max) == 3 ? (double)max : 0;
}

void hdt_doctor_buffers(json_t *checks, const json_t *status)
{
    double have = buffer_max("/proc/sys/net/ipv4/tcp_rmem"), need = 0;
    double wmem = buffer_max("/proc/sys/net/ipv4/tcp_wmem");
    const char *slow = "";
    size_t i;
    json_t *site;

    have = wmem < have ? wmem : have;
    json_array_foreach(json_object_get(status, "sites"), i, site)
    {
        const json_t *link = json_object_get(site, "link");
        double streams = json_number_value(json_object_get(link, "streams"));
        double bdp = json_number_value(json_object_get(link, "goodput_bits_per_s")) / 8e3 *
                     json_number_value(json_object_get(link, "rtt_ms"));

        /* The kernel gives half of a buffer to its own bookkeeping. */
        bdp = 2 * bdp / (streams > 1 ? streams : 1);
        if (bdp > need) {
            need = bdp;
            slow = json_string_value(json_object_get(site, "site"));
        }
    }
    if (need > have) {
        hdt_doctor_add(checks, "socket buffers", "warn",
                       "raise the third number of sysctl net.ipv4.tcp_rmem and tcp_wmem",
                       "a stream may hold %.1f MB, the link to %s needs %.1f MB", 1e-6 * have,
                       slow ? slow : "?", 1e-6 * need);
        return;
    }
    hdt_doctor_add(checks, "socket buffers", "ok", "",
                   "a stream may hold %.1f MB; the links measured so far need %.1f MB", 1e-6 * have,
                   1e-6 * need);
}

/* ---- disk, devices, clock ---- */

static void check_disk(json_t *checks)
{
    /* state_dir as it is by default; what holds it while it is not there. */
    const char *path = access("/var/lib/hdt", F_OK) == 0 ? "/var/lib/hdt" : "/var/lib";
    struct statvfs fs;
    double free_bytes;

    if (statvfs(path, &fs) != 0) {
        return;
    }
    free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    hdt_doctor_add(checks, "disk", free_bytes < (double)DISK_MIN ? "warn" : "ok",
                   free_bytes < (double)DISK_MIN ? "free some, or move state_dir and checkpoint.dir"
                                                 : "",
                   "%.1f GiB free at %s", free_bytes / 0x1p30, path);
}

static void check_tun(json_t *checks)
{
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

    if (fd >= 0) {
        close(fd);
        hdt_doctor_add(checks, "tun", "ok", "", "/dev/net/tun can be opened");
        return;
    }
    hdt_doctor_add(checks, "tun", "warn", "run as root, or scripts/quickstart --loopback",
                   "/dev/net/tun: %s; only the quickstart's emulated WAN needs it",
                   strerror(errno));
}

static void check_verbs(json_t *checks)
{
#ifdef HAVE_VERBS
    struct hdt_buf names = {0};
    int n = 0;
    struct ibv_device **devices = ibv_get_device_list(&n);

    for (int i = 0; devices && i < n; i++) {
        hdt_buf_appendf(&names, "%s%s", i ? ", " : "", ibv_get_device_name(devices[i]));
    }
    hdt_doctor_add(checks, "verbs devices", "ok", "", "%s", n > 0 ? hdt_buf_str(&names) : "none");
    if (devices) {
        ibv_free_device_list(devices);
    }
    hdt_buf_release(&names);
#else
    hdt_doctor_add(checks, "verbs devices", "ok", "", "not built in (--with-verbs)");
#endif
}

static void check_clock(json_t *checks)
{
    struct timex tx = {0};
    int rc = adjtimex(&tx);

    if (rc < 0 || (tx.status & STA_UNSYNC)) {
        hdt_doctor_add(checks, "clock", "warn",
                       "run chrony or systemd-timesyncd: certificates are judged by the clock",
                       "the kernel does not know it to be synchronised");
        return;
    }
    hdt_doctor_add(checks, "clock", "ok", "", "synchronised, error at most %.1f ms",
                   (double)tx.maxerror / 1e3);
}

void hdt_doctor_local(json_t *checks, const struct hdt_doctor_files *files)
{
    check_certificates(checks, files);
    check_memlock(checks);
    check_io_uring(checks);
    check_congestion(checks);
    check_disk(checks);
    check_tun(checks);
    check_verbs(checks);
    check_clock(checks);
}
