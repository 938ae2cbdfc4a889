/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/doctor.h"
#include "src/base/buf.h"
#include "src/base/cgroup.h"
#include "src/net/engine.h"
#include "src/net/identity.h"

#include <dirent.h>
#include <errno.h>
#include <openssl/pem.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>
#ifdef HAVE_VERBS
# include <infiniband/verbs.h>
#endif

#define EXPIRY_WARN_DAYS 30
#define DAY_S            86400
#define MEMLOCK_MIN      (64ull << 20) /* pools that io_uring or RDMA registers */
#define FILES_FAIL       256u          /* streams to a few peers, workers, a checkpoint's files */
#define FILES_WARN       1024u
#define DISK_FAIL        (256ull << 20) /* a small checkpoint, the store, a flight recorder */
#define DISK_WARN        (2ull << 30)

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

int hdt_doctor_n_failed(const json_t *checks)
{
    const json_t *check;
    size_t i;
    int n = 0;

    json_array_foreach(checks, i, check)
    {
        const char *state = json_string_value(json_object_get(check, "state"));

        n += state && strcmp(state, "fail") == 0;
    }
    return n;
}

/* First line of a file below the root; "" when it cannot be read. */
static void file_line(const char *root, const char *path, char *out, size_t cap)
{
    char *whole = hdt_asprintf("%s%s", root, path);
    FILE *file = fopen(whole, "re");

    out[0] = '\0';
    if (file) {
        if (!fgets(out, (int)cap, file)) {
            out[0] = '\0';
        }
        fclose(file);
    }
    out[strcspn(out, "\n")] = '\0';
    free(whole);
}

/* ---- certificates ---- */

void hdt_doctor_expiry(json_t *checks, const char *name, const char *identity, int64_t left_s)
{
    static const char remedy[] = "hdt ca issue makes a new one; SIGHUP has it read";
    const long long days = (long long)(left_s / DAY_S);

    if (left_s < 0) {
        hdt_doctor_add(checks, name, "fail", remedy, "%s has expired", identity);
    } else if (days < EXPIRY_WARN_DAYS) {
        hdt_doctor_add(checks, name, "warn", remedy, "%s ends in %lld days", identity, days);
    } else {
        hdt_doctor_add(checks, name, "ok", "", "%s is good for %lld days", identity, days);
    }
}

void hdt_doctor_certificate(json_t *checks, const char *path)
{
    FILE *file = fopen(path, "re");
    X509 *cert = file ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;
    char uri[HDT_IDENTITY_URI_CAP] = "", text[HDT_IDENTITY_URI_CAP + 256];
    struct hdt_identity identity;
    int days = 0, seconds = 0;

    if (file) {
        fclose(file);
    }
    if (!cert || ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(cert)) != 1) {
        hdt_doctor_add(checks, "certificate", "fail", "hdt ca issue makes a new one",
                       "'%s' is no certificate", path);
        X509_free(cert);
        return;
    }
    if (hdt_identity_of_certificate(cert, &identity, NULL) == HDT_OK) {
        hdt_identity_format(&identity, uri);
    }
    snprintf(text, sizeof(text), "'%s' (%s)", path, uri[0] ? uri : "not one of HDT");
    hdt_doctor_expiry(checks, "certificate", text, (int64_t)days * DAY_S + seconds);
    X509_free(cert);
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
                   "%.3g MiB may be locked for registered buffers",
                   (double)limit.rlim_cur / 0x1p20);
}

static void check_files(json_t *checks)
{
    struct rlimit limit;
    const char *state;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    state = limit.rlim_cur < FILES_FAIL ? "fail" : limit.rlim_cur < FILES_WARN ? "warn" : "ok";
    hdt_doctor_add(checks, "open files", state,
                   limit.rlim_cur < FILES_WARN ? "LimitNOFILE=65536 in the service, or ulimit -n"
                                               : "",
                   "%llu may be open at once", (unsigned long long)limit.rlim_cur);
}

/* What the gateway would meet. */
static void check_io_uring(json_t *checks)
{
    struct hdt_engine *engine = NULL;
    struct hdt_error err = {0};

    if (!hdt_engine_built_in(1)) {
        hdt_doctor_add(checks, "io_uring", "ok", "",
                       "not built in (--with-liburing); epoll is used");
    } else if (hdt_engine_open("io_uring", &engine, &err) == HDT_OK) {
        hdt_doctor_add(checks, "io_uring", "ok", "", "may be used");
    } else {
        hdt_doctor_add(checks, "io_uring", "warn", err.hint, "%s", err.msg);
    }
    hdt_engine_close(engine);
}

static void check_congestion(json_t *checks, const char *root)
{
    char available[256], current[64];
    bool has_bbr;

    file_line(root, "/proc/sys/net/ipv4/tcp_available_congestion_control", available,
              sizeof(available));
    file_line(root, "/proc/sys/net/ipv4/tcp_congestion_control", current, sizeof(current));
    has_bbr = strstr(available, "bbr") != NULL;
    hdt_doctor_add(checks, "congestion control", has_bbr ? "ok" : "warn",
                   has_bbr ? "" : "where links lose packets: modprobe tcp_bbr; wan.congestion: bbr",
                   "%s is used; there are: %s", current[0] ? current : "?",
                   available[0] ? available : "?");
}

static double buffer_max(const char *root, const char *path)
{
    char line[128];
    long long min = 0, def = 0, max = 0;

    file_line(root, path, line, sizeof(line));
    return sscanf(line, "%lld %lld %lld", &min, &def, &max) == 3 ? (double)max : 0;
}

void hdt_doctor_buffers(const char *root, double *out_bytes, double *in_bytes)
{
    *out_bytes = buffer_max(root, "/proc/sys/net/ipv4/tcp_wmem");
    *in_bytes = buffer_max(root, "/proc/sys/net/ipv4/tcp_rmem");
}

/* ---- processors and memory ---- */

static void check_cores(json_t *checks, const struct hdt_doctor_machine *machine,
                        const struct hdt_cgroup *cgroup)
{
    const int allowed = hdt_cgroup_cores(cgroup);
    char limit[64] = "";

    if (cgroup->cpus > 0) {
        snprintf(limit, sizeof(limit), " (the control group's quota is %.2g)", cgroup->cpus);
    }
    if (machine->threads > allowed) {
        hdt_doctor_add(
            checks, "cores", "warn",
            "threads: 0 in worker.yaml takes what is allowed, or give the container more",
            "%d thread%s to compute on %d core%s%s", machine->threads,
            machine->threads == 1 ? " is" : "s are", allowed, allowed == 1 ? "" : "s", limit);
    } else {
        hdt_doctor_add(checks, "cores", "ok", "", "%d may be used%s", allowed, limit);
    }
}

static void check_memory(json_t *checks, const struct hdt_doctor_machine *machine,
                         const struct hdt_cgroup *cgroup)
{
    if (cgroup->memory_bytes == 0) {
        hdt_doctor_add(checks, "memory limit", "ok", "", "none by a control group");
    } else if (machine->memory_bytes > cgroup->memory_bytes) {
        hdt_doctor_add(checks, "memory limit", "fail",
                       "raise the container's limit (MemoryMax=), or set memory in the settings "
                       "below it",
                       "%.1f GiB are to be used, the control group ends the process at %.1f GiB",
                       (double)machine->memory_bytes / 0x1p30,
                       (double)cgroup->memory_bytes / 0x1p30);
    } else {
        hdt_doctor_add(checks, "memory limit", "ok", "",
                       "the control group allows %.1f GiB, of which %.1f are free",
                       (double)cgroup->memory_bytes / 0x1p30, (double)cgroup->memory_free / 0x1p30);
    }
}

static void check_frequency(json_t *checks, const char *root)
{
    char governor[64];

    file_line(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor,
              sizeof(governor));
    if (strcmp(governor, "powersave") == 0 || strcmp(governor, "conservative") == 0) {
        hdt_doctor_add(checks, "cpu frequency", "warn", "cpupower frequency-set -g performance",
                       "the governor is %s", governor);
    } else {
        hdt_doctor_add(checks, "cpu frequency", "ok", "", "%s%s",
                       governor[0] ? "the governor is " : "not this machine's to set", governor);
    }
}

/* ---- disks ---- */

/* The folder, or what will hold it. */
static bool fs_of(const char *path, struct statvfs *fs)
{
    char *at = hdt_strdup(path), *slash;
    bool ok = false;

    while (!(ok = statvfs(at, fs) == 0) && (slash = strrchr(at, '/')) && slash != at) {
        *slash = '\0';
    }
    ok = ok || statvfs("/", fs) == 0;
    free(at);
    return ok;
}

static void check_disk(json_t *checks, const char *what, const char *path)
{
    char name[64];
    struct statvfs fs;
    double free_bytes;
    const char *state;

    if (!path || !path[0] || !fs_of(path, &fs)) {
        return;
    }
    free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    state = free_bytes < (double)DISK_FAIL   ? "fail"
            : free_bytes < (double)DISK_WARN ? "warn"
                                             : "ok";
    snprintf(name, sizeof(name), "disk of %s", what);
    if ((fs.f_flag & ST_RDONLY) || (access(path, F_OK) == 0 && access(path, W_OK) != 0)) {
        hdt_doctor_add(checks, name, "fail", "mount it writable and give it to this program's user",
                       "'%s' cannot be written", path);
        return;
    }
    hdt_doctor_add(checks, name, state,
                   free_bytes < (double)DISK_WARN ? "free some, or move it" : "",
                   "%.2f GiB free at '%s'", free_bytes / 0x1p30, path);
}

/* ---- devices, clock ---- */

struct gpu_vendor {
    const char *id, *name, *driver, *remedy;
};

/* The drivers' files, as they are when they are loaded. */
static const struct gpu_vendor gpu_vendors[] = {
    {"0x10de", "NVIDIA", "/proc/driver/nvidia/version",
     "install the NVIDIA driver, or give the container its devices (--gpus all)"},
    {"0x1002", "AMD", "/sys/module/amdgpu/initstate",
     "modprobe amdgpu, and give the container /dev/kfd and /dev/dri"},
};

static int gpus_count(const char *root, const char *vendor)
{
    char *path = hdt_asprintf("%s/sys/bus/pci/devices", root);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    int n = 0;

    while (folder && (entry = readdir(folder))) {
        char file[400], id[16], class[16];

        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(file, sizeof(file), "/sys/bus/pci/devices/%s/vendor", entry->d_name);
        file_line(root, file, id, sizeof(id));
        snprintf(file, sizeof(file), "/sys/bus/pci/devices/%s/class", entry->d_name);
        file_line(root, file, class, sizeof(class));
        n += strcmp(id, vendor) == 0 && strncmp(class, "0x03", 4) == 0;
    }
    if (folder) {
        closedir(folder);
    }
    free(path);
    return n;
}

void hdt_doctor_gpus(json_t *checks, const char *root)
{
    bool any = false;

    for (size_t i = 0; i < sizeof(gpu_vendors) / sizeof(gpu_vendors[0]); i++) {
        const struct gpu_vendor *vendor = &gpu_vendors[i];
        int n = gpus_count(root, vendor->id);
        char version[160];

        file_line(root, vendor->driver, version, sizeof(version));
        if (n > 0 || version[0]) {
            any = true;
            hdt_doctor_add(checks, "gpu", version[0] ? "ok" : "warn",
                           version[0] ? "" : vendor->remedy, "%d of %s; driver: %s", n,
                           vendor->name, version[0] ? version : "none is loaded");
        }
    }
    if (!any) {
        hdt_doctor_add(checks, "gpu", "ok", "", "none: the worker computes on processors");
    }
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

void hdt_doctor_machine(json_t *checks, const struct hdt_doctor_machine *machine)
{
    struct hdt_cgroup cgroup;

    hdt_cgroup_read(machine->root, &cgroup);
    if (machine->cert && machine->cert[0]) {
        hdt_doctor_certificate(checks, machine->cert);
    }
    check_memlock(checks);
    check_files(checks);
    check_io_uring(checks);
    check_congestion(checks, machine->root);
    check_cores(checks, machine, &cgroup);
    check_memory(checks, machine, &cgroup);
    check_frequency(checks, machine->root);
    for (int i = 0; i < HDT_DOCTOR_DIRS; i++) {
        check_disk(checks, machine->dirs[i].what, machine->dirs[i].path);
    }
    check_verbs(checks);
    check_clock(checks);
}
