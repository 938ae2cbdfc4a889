/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* hdt-worker: options, settings, device, signals. */
#include "runtime/backend_find.h"
#include "runtime/selftest/selftest.h"
#include "runtime/agent.h"
#include "runtime/profile_task.h"
#include "runtime/task.h"
#include "src/core/ckpt_files.h"
#include "src/base/buf.h"
#include "src/base/cgroup.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/base/notify.h"
#include "src/base/watchdog.h"
#include "src/core/cluster.h"
#include "src/core/deadlines.h"
#include "src/core/job.h"
#include "src/core/worker_conf.h"
#include "src/net/link.h"
#include "src/net/tls.h"

#include <argp.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "hdt-worker"
/* As of hdt. */
#define EXIT_USAGE     2 /* a wrong command line */
#define EXIT_NOT_FOUND 3

#define SIGNAL_APART_US (500 * HDT_US_PER_MS)

static const char help_text[] =
    "Runs pipeline stages on the device of this machine for the gateway of its site.\v"
    "Without --task the program is a daemon in the foreground: it joins the gateway that the "
    "configuration names, joins again when that restarts, and runs what jobs assign to it. SIGTERM "
    "or SIGINT ends it cleanly (the job is told), a second one at once; SIGHUP reads its "
    "certificates again, SIGUSR1 writes the flight recorder to state_dir.\n\n"
    "With --task it needs no gateway: `generate` continues a prompt with a trained model, `eval` "
    "measures one on a token shard. `hdt generate` and `hdt eval` run it so.\n\n"
    "With --profile it needs no gateway either: it measures what the layers of a model take on the "
    "device here and writes that to a file, which a cluster can name for `hdt plan --cluster`.";

enum option_key {
    OPT_CHECK = 256,
    OPT_LIST_DEVICES,
    OPT_NAME,
    OPT_GATEWAY,
    OPT_TASK,
    OPT_CHECKPOINT,
    OPT_PROMPT,
    OPT_TOKENS,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_SEED,
    OPT_TOKENIZER,
    OPT_TOKENIZER_MODEL,
    OPT_DATA,
    OPT_MAX_TOKENS,
    OPT_SEQ_LEN,
    OPT_BACKEND,
    OPT_THREADS,
    OPT_SM_LIMIT,
    OPT_JSON,
    OPT_PROFILE,
    OPT_MODEL,
    OPT_MICRO_BATCH,
    OPT_PROFILE_SEQ_LEN,
    OPT_PRECISION,
    OPT_SELFTEST,
    OPT_LARGE,
};

static const struct argp_option options[] = {
    {"config", 'c', "FILE", 0, "Settings [" HDT_SYSCONFDIR "/worker.yaml]", 1},
    {"check-config", OPT_CHECK, NULL, 0, "Read the settings, say what is wrong with them, exit", 1},
    {"list-devices", OPT_LIST_DEVICES, NULL, 0,
     "Print each device module and what it finds here, exit", 1},
    {"selftest", OPT_SELFTEST, NULL, 0,
     "Try every op of --backend on its device here against float64, print a table, exit", 1},
    {"large", OPT_LARGE, NULL, 0, "selftest: also large shapes, for the rates", 1},
    {"name", OPT_NAME, "NAME", 0, "Name within the site, in place of the settings' one", 1},
    {"gateway", OPT_GATEWAY, "ADDRESS", 0,
     "unix:PATH or tls:HOST:PORT, in place of the settings' one", 1},
    {"backend", OPT_BACKEND, "NAME", 0, "Device module (cpu, cuda, auto)", 1},
    {"threads", OPT_THREADS, "N", 0, "CPU threads that compute; 0: all that are allowed", 1},
    {"sm-limit", OPT_SM_LIMIT, "N", 0,
     "Multiprocessors of the GPU that compute, rounded up to what it can part; 0: all", 1},
    {"task", OPT_TASK, "generate|eval", 0, "Use a trained model and exit", 2},
    {"checkpoint", OPT_CHECKPOINT, "DIR", 0,
     "Folder with config.json and model.safetensors, or a folder of checkpoints", 2},
    {"seq", OPT_SEQ_LEN, "N", 0, "Context in tokens [as trained]", 2},
    {"tokenizer", OPT_TOKENIZER, "NAME", 0, "Tokenizer [byte]", 2},
    {"tokenizer-model", OPT_TOKENIZER_MODEL, "FILE", 0, "Its model, where it needs one", 2},
    {"json", OPT_JSON, NULL, 0, "Print one JSON object", 2},
    {"prompt", OPT_PROMPT, "TEXT", 0, "generate: text to continue", 3},
    {"tokens", OPT_TOKENS, "N", 0, "generate: new tokens [200]", 3},
    {"temperature", OPT_TEMPERATURE, "X", 0, "generate: 0 takes the likeliest token [0.8]", 3},
    {"top-k", OPT_TOP_K, "K", 0, "generate: only the K likeliest tokens; 0: all [0]", 3},
    {"seed", OPT_SEED, "N", 0, "generate: same seed, same text [1]", 3},
    {"data", OPT_DATA, "FILE", 0, "eval: token shard", 4},
    {"max-tokens", OPT_MAX_TOKENS, "N", 0, "eval: only the first N tokens; 0: all [0]", 4},
    {"profile", OPT_PROFILE, "FILE", 0, "Measure the layers of --model, write them to FILE, exit",
     5},
    {"model", OPT_MODEL, "FILE", 0, "profile: the model's config.json", 5},
    {"micro-batch", OPT_MICRO_BATCH, "N[,N...]", 0, "profile: micro-batches to measure [1,2,4]", 5},
    {"seq-len", OPT_PROFILE_SEQ_LEN, "N", 0,
     "profile: tokens of a sequence [the model's longest, at most 2048]", 5},
    {"precision", OPT_PRECISION, "fp32|bf16|fp8", 0, "profile: as of the jobs to plan [fp32]", 5},
    {0}};

struct args {
    const char *config, *name, *gateway, *backend, *task;
    bool check, list_devices, selftest, large;
    int threads, sm_limit; /* -1: not given */
    struct hdt_task_conf use;
    struct hdt_profile_task profile;
    bool has_precision;
};

static long number(struct argp_state *state, const char *what, const char *arg, long min, long max)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(arg, &end, 10);
    if (errno != 0 || end == arg || *end != '\0' || value < min || value > max) {
        argp_error(state, "--%s takes a number from %ld to %ld, not '%s'", what, min, max, arg);
    }
    return value;
}

static double real(struct argp_state *state, const char *what, const char *arg)
{
    char *end;
    double value = strtod(arg, &end);

    if (end == arg || *end != '\0' || !(value >= 0 && value <= 1000)) {
        argp_error(state, "--%s takes a number from 0 to 1000, not '%s'", what, arg);
    }
    return value;
}

static int compare_numbers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* "4,1,2" */
static void parse_micro_batches(struct argp_state *state, char *list,
                                struct hdt_profile_task *profile)
{
    char *save = NULL;
    int n = 0;

    for (char *one = strtok_r(list, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        if (n == HDT_PROFILE_TASK_MAX) {
            argp_error(state, "--micro-batch takes at most %d numbers", HDT_PROFILE_TASK_MAX);
        }
        profile->micro_batches[n++] = number(state, "micro-batch", one, 1, 65536);
    }
    qsort(profile->micro_batches, (size_t)n, sizeof(profile->micro_batches[0]), compare_numbers);
    for (int i = 1; i < n; i++) {
        if (profile->micro_batches[i] == profile->micro_batches[i - 1]) {
            argp_error(state, "--micro-batch has %lld twice", (long long)profile->micro_batches[i]);
        }
    }
    if (n == 0) {
        argp_error(state, "--micro-batch takes numbers, as 1,2,4");
    }
    profile->n_micro_batches = n;
}

static error_t parse_profile_option(int key, char *arg, struct argp_state *state)
{
    struct hdt_profile_task *profile = &((struct args *)state->input)->profile;

    switch (key) {
    case OPT_PROFILE:
        profile->path = arg;
        break;
    case OPT_MODEL:
        profile->model = arg;
        break;
    case OPT_MICRO_BATCH:
        parse_micro_batches(state, arg, profile);
        break;
    case OPT_PROFILE_SEQ_LEN:
        profile->seq_len = number(state, "seq-len", arg, 1, 1 << 20);
        break;
    case OPT_PRECISION:
        profile->precision = hdt_job_precision_of(arg);
        if (profile->precision < 0) {
            argp_error(state, "--precision takes fp32, bf16 or fp8, not '%s'", arg);
        }
        ((struct args *)state->input)->has_precision = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static error_t parse_task_option(int key, char *arg, struct argp_state *state)
{
    struct hdt_task_conf *use = &((struct args *)state->input)->use;

    switch (key) {
    case OPT_CHECKPOINT:
        use->checkpoint = arg;
        break;
    case OPT_PROMPT:
        use->prompt = arg;
        break;
    case OPT_TOKENS:
        use->n_tokens = (int)number(state, "tokens", arg, 1, 1 << 20);
        break;
    case OPT_TEMPERATURE:
        use->temperature = real(state, "temperature", arg);
        break;
    case OPT_TOP_K:
        use->top_k = (int)number(state, "top-k", arg, 0, 1 << 22);
        break;
    case OPT_SEED:
        use->seed = (uint64_t)number(state, "seed", arg, 0, 1L << 53);
        break;
    case OPT_TOKENIZER:
        use->tokenizer = arg;
        break;
    case OPT_TOKENIZER_MODEL:
        use->tokenizer_model = arg;
        break;
    case OPT_DATA:
        use->data = arg;
        break;
    case OPT_MAX_TOKENS:
        use->max_tokens = number(state, "max-tokens", arg, 0, 1L << 53);
        break;
    case OPT_SEQ_LEN:
        use->seq_len = number(state, "seq", arg, 1, 1 << 20);
        break;
    case OPT_JSON:
        use->json = true;
        break;
    default:
        return parse_profile_option(key, arg, state);
    }
    return 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case 'c':
        args->config = arg;
        break;
    case OPT_LIST_DEVICES:
        args->list_devices = true;
        break;
    case OPT_SELFTEST:
        args->selftest = true;
        break;
    case OPT_LARGE:
        args->large = true;
        break;
    case OPT_CHECK:
        args->check = true;
        break;
    case OPT_NAME:
        args->name = arg;
        break;
    case OPT_GATEWAY:
        args->gateway = arg;
        break;
    case OPT_BACKEND:
        args->backend = arg;
        break;
    case OPT_THREADS:
        args->threads = (int)number(state, "threads", arg, 0, 1024);
        break;
    case OPT_SM_LIMIT:
        args->sm_limit = (int)number(state, "sm-limit", arg, 0, 1024);
        break;
    case OPT_TASK:
        args->task = arg;
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", arg);
        break;
    default:
        return parse_task_option(key, arg, state);
    }
    return 0;
}

/* ---- device ---- */

/* Cores that this process may use: a container or taskset may allow fewer than there are. */
static int cores_allowed(void)
{
    struct hdt_cgroup cgroup;

    hdt_cgroup_read("", &cgroup);
    return hdt_cgroup_cores(&cgroup);
}

/* Of a program without settings. */
static struct hdt_device_conf device_conf(const struct args *args)
{
    return (struct hdt_device_conf){.n_threads =
                                        args->threads > 0 ? args->threads : cores_allowed(),
                                    .sm_limit = args->sm_limit > 0 ? args->sm_limit : 0};
}

/* Four fifths of what is free on the device; in a container, of what that still may have. */
static uint64_t memory_default(const struct hdt_backend *backend, struct hdt_device *device)
{
    struct hdt_device_info info;
    struct hdt_cgroup cgroup;
    unsigned long long kib;
    uint64_t free_bytes = 0;
    char line[128];
    FILE *meminfo;

    backend->device_info(device, &info);
    if (!(backend->caps & HDT_BACKEND_HOST_MEMORY)) {
        return (info.memory_free ? info.memory_free : info.memory_bytes) / 5 * 4;
    }
    meminfo = fopen("/proc/meminfo", "re");
    while (meminfo && fgets(line, sizeof(line), meminfo)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
            free_bytes = (uint64_t)kib << 10;
        }
    }
    if (meminfo) {
        fclose(meminfo);
    }
    free_bytes = free_bytes ? free_bytes : info.memory_bytes;
    hdt_cgroup_read("", &cgroup);
    if (cgroup.memory_bytes > 0 && cgroup.memory_free < free_bytes) {
        free_bytes = cgroup.memory_free;
    }
    return free_bytes / 5 * 4;
}

/* ---- the daemon ---- */

/* What the signal thread acts on; set before it starts. */
static struct {
    struct hdt_agent *agent;
    struct hdt_tls_ctx *tls; /* NULL: the gateway is on this machine */
    int64_t end_us;          /* the worker has so long to end */
    sigset_t set;
} signals;

/* Threads inherit the mask: to be called before any is started. A shell without job control starts
 * its background jobs with SIGINT ignored, which sigwait would never see. */
static void signals_block(void)
{
    signal(SIGINT, SIG_DFL);
    sigemptyset(&signals.set);
    sigaddset(&signals.set, SIGTERM);
    sigaddset(&signals.set, SIGINT);
    sigaddset(&signals.set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals.set, NULL);
}

static void certificates_reload(void)
{
    struct hdt_error err = {0};

    if (!signals.tls) {
        hdt_log_info("nothing to read again: no certificates are in use");
    } else if (hdt_tls_ctx_reload(signals.tls, &err) != HDT_OK) {
        hdt_error_prefix(&err, "certificates stay as they were");
        hdt_log_failure(HDT_LOG_ERROR, &err);
    } else {
        hdt_log_info("certificates read again; they count from the next connection");
    }
}

/* Signals are taken by a thread of their own, so that nothing runs inside a handler. */
static void *signal_thread(void *arg)
{
    int64_t first_us = 0;
    int sig = 0;

    (void)arg;
    while (sigwait(&signals.set, &sig) == 0) {
        if (sig == SIGHUP) {
            hdt_notify_reloading();
            certificates_reload();
            hdt_notify_ready();
            continue;
        }
        /* One that comes along with the first (to the process and to its group) is no second. */
        if (first_us != 0 && hdt_clock_now_us() - first_us < SIGNAL_APART_US) {
            continue;
        }
        if (first_us != 0) {
            hdt_log_warn("signal %d again: ending at once", sig);
            _exit(128 + sig);
        }
        first_us = hdt_clock_now_us();
        hdt_log_info("ending on %s", strsignal(sig));
        hdt_watchdog_arm(signals.end_us, "an op of its device, or a disk");
        hdt_notify_stopping();
        hdt_agent_stop(signals.agent);
    }
    return NULL;
}

static enum hdt_status tls_open(const struct hdt_worker_conf *conf, struct hdt_tls_ctx **tls,
                                struct hdt_error *err)
{
    struct hdt_tls_conf tls_conf = {.ca_path = conf->tls.ca,
                                    .cert_path = conf->tls.cert,
                                    .key_path = conf->tls.key,
                                    .own_roles = HDT_ROLE_WORKER,
                                    .peer_roles = HDT_ROLE_SITE};

    *tls = NULL;
    if (hdt_link_ops_for(conf->gateway) != &hdt_link_tcp) {
        return HDT_OK;
    }
    if (!conf->tls.ca[0] || !conf->tls.cert[0] || !conf->tls.key[0]) {
        hdt_error_set(err, HDT_EINVAL, "cannot join %s: tls.ca, tls.cert and tls.key are not set",
                      conf->gateway);
        hdt_error_hint(err, "make them with 'hdt ca issue worker SITE/NAME'");
        return HDT_EINVAL;
    }
    return hdt_tls_ctx_new(&tls_conf, tls, err);
}

static enum hdt_status daemon_serve(struct hdt_agent_conf *conf, struct hdt_error *err)
{
    struct hdt_deadlines deadlines;
    struct hdt_agent *agent;
    pthread_t thread;

    HDT_TRY(hdt_agent_new(conf, &agent, err));
    hdt_deadlines_derive(&deadlines, HDT_DEADLINES_KNOB_DEFAULT_MS, 0);
    signals.end_us = deadlines.end_us; /* the same with every knob */
    signals.agent = agent;
    signals.tls = conf->tls;
    if (pthread_create(&thread, NULL, signal_thread, NULL) != 0) {
        hdt_agent_free(agent);
        return hdt_error_set(err, HDT_ENOMEM, "cannot start the signal thread");
    }
    pthread_detach(thread);
    hdt_notify_ready(); /* joining goes on by itself: the gateway may start later */
    hdt_agent_run(agent);
    hdt_agent_free(agent);
    hdt_log_info("stopped");
    return HDT_OK;
}

static enum hdt_status daemon_run(const struct hdt_worker_conf *conf, struct hdt_error *err)
{
    struct hdt_device_conf device = {.n_threads =
                                         conf->threads > 0 ? (int)conf->threads : cores_allowed(),
                                     .sm_limit = (int)conf->sm_limit};
    struct hdt_agent_conf agent = {.worker = conf, .version = PACKAGE_VERSION};
    struct hdt_device_info info;
    struct hdt_tls_ctx *tls;
    enum hdt_status status;
    char *recorder_name;

    if (hdt_ckpt_probe(conf->state_dir, err) != HDT_OK) {
        hdt_error_prefix(err, "cannot use state_dir");
        hdt_error_hint(err, "make it and give it to the user that runs hdt-worker");
        return HDT_EIO;
    }
    HDT_TRY(tls_open(conf, &tls, err));
    signals_block();
    recorder_name = hdt_asprintf("worker-%s", conf->name);
    status = hdt_recorder_open(conf->state_dir, recorder_name, err);
    free(recorder_name);
    if (status != HDT_OK) {
        hdt_tls_ctx_free(tls);
        return status;
    }
    status = hdt_backend_open(conf->backend, &device, &agent.backend, &agent.device, err);
    if (status == HDT_OK) {
        agent.backend->device_info(agent.device, &info);
        agent.memory_bytes =
            conf->memory ? conf->memory : memory_default(agent.backend, agent.device);
        agent.tls = tls;
        hdt_log_info("device %s, backend %s, %llu MiB for jobs", info.name, agent.backend->name,
                     (unsigned long long)(agent.memory_bytes >> 20));
        if (device.sm_limit > 0 && info.n_sms != device.sm_limit) {
            hdt_log_info(
                "limited to %d multiprocessors: %d were asked for, which the driver rounds "
                "up to a part that it can make",
                info.n_sms, device.sm_limit);
        }
        status = daemon_serve(&agent, err);
        agent.backend->device_close(agent.device);
    }
    hdt_recorder_close();
    hdt_log_flush();
    hdt_tls_ctx_free(tls);
    return status;
}

/* ---- settings ---- */

static void replace(char **field, const char *value)
{
    if (value) {
        free(*field);
        *field = hdt_strdup(value);
    }
}

static enum hdt_status conf_read(const struct args *args, struct hdt_worker_conf *conf,
                                 struct hdt_error *err)
{
    struct hdt_conf_doc *doc;
    enum hdt_status status = HDT_OK;

    HDT_TRY(hdt_conf_load(&hdt_worker_conf_schema, args->config, conf, &doc, err));
    replace(&conf->name, args->name);
    replace(&conf->gateway, args->gateway);
    replace(&conf->backend, args->backend);
    conf->threads = args->threads >= 0 ? args->threads : conf->threads;
    conf->sm_limit = args->sm_limit >= 0 ? args->sm_limit : conf->sm_limit;
    if (!hdt_name_is_valid(conf->name)) {
        status =
            hdt_conf_error(doc, "name", err, HDT_EINVAL,
                           "'%s' is no name: 1 to 63 letters, digits, '.', '_', '-'", conf->name);
    } else if (!hdt_link_ops_for(conf->gateway)) {
        status = hdt_conf_error(doc, "gateway", err, HDT_EINVAL,
                                "'%s' is no gateway address: write unix:PATH or tls:HOST:PORT",
                                conf->gateway);
    }
    hdt_conf_doc_free(doc);
    if (status != HDT_OK) {
        hdt_conf_release(&hdt_worker_conf_schema, conf);
    }
    return status;
}

static enum hdt_status run_daemon(const struct args *args, struct hdt_error *err)
{
    struct hdt_worker_conf conf;
    struct hdt_tls_ctx *tls;
    enum hdt_status status;
    char ident[128];

    HDT_TRY(conf_read(args, &conf, err));
    if (args->check) {
        status = tls_open(&conf, &tls, err);
        hdt_tls_ctx_free(tls);
        if (status == HDT_OK) {
            printf("%s: good worker settings: worker %s at %s\n", args->config, conf.name,
                   conf.gateway);
        }
    } else {
        snprintf(ident, sizeof(ident), PROGRAM " %s", conf.name);
        hdt_log_init(ident, conf.log_level);
        status = daemon_run(&conf, err);
    }
    hdt_conf_release(&hdt_worker_conf_schema, &conf);
    return status;
}

/* ---- tasks ---- */

/* Is the command line of a task complete? */
static enum hdt_status task_check(const struct args *args, struct hdt_error *err)
{
    bool generate = strcmp(args->task, "generate") == 0;

    if (!generate && strcmp(args->task, "eval") != 0) {
        return hdt_error_set(err, HDT_EINVAL, "unknown task '%s': generate or eval", args->task);
    }
    if (!args->use.checkpoint || !(generate ? args->use.prompt : args->use.data)) {
        return hdt_error_set(err, HDT_EINVAL, "task %s needs --checkpoint and --%s", args->task,
                             generate ? "prompt" : "data");
    }
    return HDT_OK;
}

static enum hdt_status run_task(struct args *args, struct hdt_error *err)
{
    struct hdt_task_conf *use = &args->use;
    struct hdt_device_conf device = device_conf(args);
    bool generate = strcmp(args->task, "generate") == 0;
    enum hdt_status status;

    hdt_log_init(PROGRAM, HDT_LOG_WARN);
    HDT_TRY(hdt_backend_open(args->backend ? args->backend : "auto", &device, &use->backend,
                             &use->device, err));
    status = generate ? hdt_task_generate(use, err) : hdt_task_eval(use, err);
    use->backend->device_close(use->device);
    return status;
}

static enum hdt_status profile_check(const struct args *args, struct hdt_error *err)
{
    const struct hdt_profile_task *profile = &args->profile;

    if (profile->path && args->task) {
        return hdt_error_set(err, HDT_EINVAL, "--profile and --task are two things");
    }
    if (profile->path && !profile->model) {
        hdt_error_set(err, HDT_EINVAL, "--profile needs --model: whose layers to measure");
        hdt_error_hint(err, "give a config.json, as jobs name it in 'model'");
        return HDT_EINVAL;
    }
    if (!profile->path &&
        (profile->model || profile->n_micro_batches || profile->seq_len || args->has_precision)) {
        return hdt_error_set(
            err, HDT_EINVAL,
            "--model, --micro-batch, --seq-len and --precision belong to --profile FILE");
    }
    return HDT_OK;
}

static enum hdt_status run_profile(struct args *args, struct hdt_error *err)
{
    static const int64_t usual[] = {1, 2, 4};
    struct hdt_profile_task *profile = &args->profile;
    struct hdt_device_conf conf = device_conf(args);
    const struct hdt_backend *backend;
    struct hdt_device *device;
    enum hdt_status status;

    hdt_log_init(PROGRAM, HDT_LOG_WARN);
    if (profile->n_micro_batches == 0) {
        memcpy(profile->micro_batches, usual, sizeof(usual));
        profile->n_micro_batches = (int)(sizeof(usual) / sizeof(usual[0]));
    }
    profile->n_threads = conf.n_threads;
    profile->version = PACKAGE_VERSION;
    HDT_TRY(
        hdt_backend_open(args->backend ? args->backend : "auto", &conf, &backend, &device, err));
    status = hdt_profile_task_run(profile, backend, device, err);
    backend->device_close(device);
    return status;
}

/* The exit status. "auto" is tried on the backend that it would take. */
static int run_selftest(const struct args *args)
{
    struct hdt_device_conf conf = device_conf(args);
    const struct hdt_backend *backend;
    struct hdt_device *device;
    struct hdt_error err = {0};

    hdt_log_init(PROGRAM, HDT_LOG_WARN);
    if (hdt_backend_open(args->backend ? args->backend : "auto", &conf, &backend, &device, &err) !=
        HDT_OK) {
        hdt_error_print(&err, PROGRAM);
        return err.status == HDT_ENOENT || err.status == HDT_ENOTSUP ? HDT_SELFTEST_NOT_HERE : 1;
    }
    backend->device_close(device);
    return hdt_selftest_run(backend->name,
                            &(struct hdt_selftest_conf){.device = conf, .with_large = args->large});
}

static void print_device(const struct hdt_backend_found *found, void *arg)
{
    (void)arg;
    if (!found->info) {
        printf("%-6s no device: %s\n", found->name, found->error->msg);
        if (found->error->hint[0]) {
            printf("       hint: %s\n", found->error->hint);
        }
        return;
    }
    printf("%-6s %d  %s, %.1f GiB\n", found->name, found->device_idx, found->info->name,
           (double)found->info->memory_bytes / (1 << 30));
    if (found->missing[0]) {
        printf("       cannot run stages: this module lacks %s\n", found->missing);
    }
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse_option, NULL, help_text, NULL, NULL, NULL};
    struct args args = {.config = HDT_SYSCONFDIR "/worker.yaml",
                        .threads = -1,
                        .sm_limit = -1,
                        .use = {.n_tokens = 200, .temperature = 0.8, .seed = 1}};
    struct hdt_error err = {0};
    enum hdt_status status;

    argp_err_exit_status = EXIT_USAGE;
    argp_program_version = PROGRAM " (HDT) " PACKAGE_VERSION;
    argp_parse(&argp, argc, argv, 0, NULL, &args);
    signal(SIGPIPE, SIG_IGN);
    if (profile_check(&args, &err) != HDT_OK || (args.task && task_check(&args, &err) != HDT_OK)) {
        hdt_error_print(&err, PROGRAM);
        return EXIT_USAGE;
    }
    if (args.large && !args.selftest) {
        hdt_error_set(&err, HDT_EINVAL, "--large belongs to --selftest");
        hdt_error_print(&err, PROGRAM);
        return EXIT_USAGE;
    }
    if (args.selftest) {
        return run_selftest(&args);
    }
    if (args.list_devices) {
        const struct hdt_device_conf conf = device_conf(&args);

        hdt_backend_list(&conf, print_device, NULL);
        return 0;
    }
    status = args.task           ? run_task(&args, &err)
             : args.profile.path ? run_profile(&args, &err)
                                 : run_daemon(&args, &err);
    if (status != HDT_OK) {
        hdt_error_print(&err, PROGRAM);
        return (args.task || args.profile.path) && status == HDT_ENOENT ? EXIT_NOT_FOUND
                                                                        : EXIT_FAILURE;
    }
    return 0;
}
