/* SPDX-License-Identifier: Apache-2.0 */
/* hdt status: sites, workers, jobs and channels as a gateway sees them. */
#include "config.h"

#include "src/cli/gwoptions.h"
#include "src/cli/cmd.h"
#include "src/cli/human.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WATCH_MS    1000
#define BUSY_A_LINE 3 /* ranks */

enum status_option { OPT_JSON = 256, OPT_WATCH, OPT_FLOWS };

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print the gateway's /status", 0},
    {"flows", OPT_FLOWS, NULL, 0, "Also each flow that ends at this site, and what it lacks", 0},
    {"watch", OPT_WATCH, NULL, 0, "Show it again every second until Ctrl-C", 0},
    {0},
};

struct status_args {
    struct hdt_gwclient_conf client;
    bool json, watch, flows;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct status_args *args = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->client;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case OPT_FLOWS:
        args->flows = true;
        return 0;
    case OPT_WATCH:
        args->watch = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected '%s'", arg);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&hdt_gwoptions_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .doc = "Show sites, workers, jobs and channels as a gateway sees them.",
    .children = children,
};

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "";
}

static double real_of(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

/* The cipher is in --json. */
static void peer_print(const char *site, const json_t *link)
{
    char rtt[HDT_HUMAN_CAP], sent[HDT_HUMAN_CAP], received[HDT_HUMAN_CAP];
    const char *tls = text_of(link, "tls");

    printf("peer   %-18s %-7s rtt %s  %.0f streams  sent %s  received %s  %.*s\n", site,
           json_is_true(json_object_get(link, "suspect")) ? "suspect" : "up",
           hdt_human_time(real_of(link, "rtt_ms") / 1e3, rtt), real_of(link, "streams"),
           hdt_human_bytes(real_of(link, "sent_bytes"), sent),
           hdt_human_bytes(real_of(link, "recv_bytes"), received), (int)strcspn(tls, " "), tls);
}

/* What the streams to a peer do, and what keeps them from carrying more; nothing of a peer to which
 * little was sent yet. */
static void tcp_print(const json_t *tcp)
{
    const json_t *load = json_object_get(tcp, "load");
    const json_t *shares = json_object_get(load, "limit_shares");
    char now[HDT_HUMAN_CAP], most[HDT_HUMAN_CAP], queue[HDT_HUMAN_CAP], ago[HDT_HUMAN_CAP];

    if (!load) {
        return;
    }
    printf("       %s  now %s  under load %s, %s ago: queue %s, sent again %.2g %%, limited by "
           "%s %.0f %%\n",
           text_of(tcp, "congestion"), hdt_human_rate(real_of(tcp, "rate_bits_per_s") / 8, now),
           hdt_human_rate(real_of(load, "rate_bits_per_s") / 8, most),
           hdt_human_duration(real_of(load, "ago_s"), ago),
           hdt_human_time(real_of(load, "queue_ms") / 1e3, queue),
           100 * real_of(load, "resent_share"), text_of(load, "limit"),
           100 * real_of(shares, text_of(load, "limit")));
}

static void sites_print(const json_t *body)
{
    const json_t *sites = json_object_get(body, "sites");
    size_t i;
    json_t *site;

    printf("site   %s  federation %s  hdt %s  up %.0f s\n", text_of(body, "site"),
           text_of(body, "federation"), text_of(body, "version"), real_of(body, "up_s"));
    json_array_foreach(sites, i, site)
    {
        const json_t *link = json_object_get(site, "link");

        if (!json_is_true(json_object_get(site, "up"))) {
            printf("peer   %-18s down    %s\n", text_of(site, "site"), text_of(site, "why_down"));
            continue;
        }
        peer_print(text_of(site, "site"), link);
        tcp_print(json_object_get(link, "tcp"));
    }
}

static void budgets_print(const json_t *body)
{
    const json_t *budgets = json_object_get(body, "budgets");
    size_t i;
    json_t *b;

    json_array_foreach(budgets, i, b)
    {
        char rate[HDT_HUMAN_CAP], sent[HDT_HUMAN_CAP], held[HDT_HUMAN_CAP];
        const char *peer = text_of(b, "peer"), *job = text_of(b, "job");

        printf("budget %-18s %-7s class %s, job %s: ", peer[0] ? peer : "all",
               json_is_true(json_object_get(b, "on")) ? "on" : "off", text_of(b, "class"),
               job[0] ? job : "any");
        if (real_of(b, "rate_bits_per_s") > 0) {
            printf("at most %s, ", hdt_human_rate(real_of(b, "rate_bits_per_s") / 8, rate));
        }
        printf("weight %.0f  sent %s  held back %s\n", real_of(b, "weight"),
               hdt_human_bytes(real_of(b, "sent_bytes"), sent),
               hdt_human_duration(real_of(b, "held_s"), held));
    }
}

static void refused_print(const json_t *body)
{
    const json_t *refused = json_object_get(body, "refused");
    size_t i;
    json_t *item;

    json_array_foreach(refused, i, item)
    {
        const double n = real_of(item, "attempts");

        printf("refused %s, %.0f %s, %.0f s ago: %s\n", text_of(item, "who"), n,
               n == 1 ? "time" : "times", real_of(item, "last_s"), text_of(item, "why"));
    }
}

static void workers_print(const json_t *body)
{
    const json_t *workers = json_object_get(body, "workers");
    size_t i;
    json_t *w;

    json_array_foreach(workers, i, w)
    {
        char name[160], memory[HDT_HUMAN_CAP];

        snprintf(name, sizeof(name), "%s/%s", text_of(w, "site"), text_of(w, "worker"));
        printf("worker %-18s %-7s %s, %s\n", name,
               !json_is_true(json_object_get(w, "up"))    ? "down"
               : json_is_true(json_object_get(w, "busy")) ? "busy"
                                                          : "free",
               text_of(w, "device"), hdt_human_memory(real_of(w, "memory_bytes"), memory));
    }
    if (json_array_size(workers) == 0) {
        printf("no worker is connected: start hdt-worker\n");
    }
}

/* What is between this end and the next frame. */
static const char *flow_lacks(const json_t *flow, char *out, size_t cap)
{
    const double next = real_of(flow, "next_seq"), acked = real_of(flow, "acked_seq");
    const double part = real_of(flow, "partial_bytes");

    if (!json_is_true(json_object_get(flow, "attached"))) {
        snprintf(out, cap, "its worker is away");
    } else if (json_is_true(json_object_get(flow, "asks"))) {
        snprintf(out, cap, "waits to hear of the end at %s", text_of(flow, "peer_site"));
    } else if (strcmp(text_of(flow, "end"), "src") == 0) {
        snprintf(out, cap, next > acked ? "%.0f frames not taken by %s" : "-", next - acked,
                 text_of(flow, "peer_site"));
    } else if (part > 0) {
        snprintf(out, cap, "%.1f of %.1f MB of frame %.0f are there", 1e-6 * part,
                 1e-6 * real_of(flow, "partial_len"), next);
    } else {
        snprintf(out, cap, next > acked ? "%.0f frames not taken by our worker" : "frame %.0f",
                 next > acked ? next - acked : next);
    }
    return out;
}

static void flows_print(const json_t *body)
{
    size_t i;
    json_t *flow;

    json_array_foreach(json_object_get(body, "flows"), i, flow)
    {
        char lacks[160], owner[96];

        if (text_of(flow, "channel")[0]) {
            snprintf(owner, sizeof(owner), "channel %s flow %08x", text_of(flow, "channel"),
                     (unsigned)real_of(flow, "flow"));
        } else {
            snprintf(owner, sizeof(owner), "job %-4.0f flow %-3.0f", real_of(flow, "number"),
                     real_of(flow, "flow"));
        }
        printf("flow   %s %s %-14s next %-6.0f taken %-6.0f credit %-6.0f idle "
               "%5.1f s  lacks: %s\n",
               owner, strcmp(text_of(flow, "end"), "src") == 0 ? "to  " : "from",
               text_of(flow, "peer_site"), real_of(flow, "next_seq"), real_of(flow, "acked_seq"),
               real_of(flow, "credit_seq"), real_of(flow, "idle_s"),
               flow_lacks(flow, lacks, sizeof(lacks)));
    }
    if (json_array_size(json_object_get(body, "flows")) == 0) {
        printf("no flow ends at this site now\n");
    }
}

/* What its ranks wait for, longest first. */
static void waits_print(const json_t *job)
{
    size_t i;
    json_t *wait;

    json_array_foreach(json_object_get(job, "waits"), i, wait)
    {
        printf("       %s\n", text_of(wait, "text"));
    }
}

/* Of a job that was restarted, and where it would go on. */
static void job_print_restarts(const json_t *job)
{
    const char *checkpoint = text_of(job, "checkpoint");
    double restarts = real_of(job, "restarts"), step = real_of(job, "checkpoint_step");

    if (restarts > 0) {
        printf("       epoch %.0f, restarted %.0f time%s\n", real_of(job, "epoch"), restarts,
               restarts == 1 ? "" : "s");
    }
    if (checkpoint[0] && step > 0) {
        printf("       checkpoint of step %.0f: %s\n", step, checkpoint);
    } else if (checkpoint[0]) {
        printf("       checkpoint %s\n", checkpoint);
    }
}

/* "       waits for b/w0, b/w1"; false: for nobody. */
static bool names_print(const char *begin, const json_t *names, const char *end)
{
    const json_t *name;
    size_t i;

    json_array_foreach(names, i, name)
    {
        printf("%s%s", i ? ", " : begin, json_string_value(name));
    }
    if (i > 0) {
        printf("%s", end);
    }
    return i > 0;
}

/* What a job waits for that recovers. */
static void job_print_wait(const json_t *job)
{
    const char *why_not = text_of(job, "why_not_without");
    char left[HDT_HUMAN_CAP];
    bool away, held;

    away = names_print("       waits for ", json_object_get(job, "waits_for"), "");
    held = names_print(away ? ", and until " : "       waits until ",
                       json_object_get(job, "waits_until_free"), " has freed its memory");
    if (away || held) {
        printf(" (%s at most)\n", hdt_human_duration(real_of(job, "until_s"), left));
    }
    if (away && why_not[0]) {
        printf("       cannot go on without: %s\n", why_not);
    }
}

/* Why it does not run, and what it waits for. */
static void job_print_reason(const json_t *job)
{
    const json_t *error = json_object_get(job, "error");

    if (json_is_object(error)) {
        printf("       %s%s%s\n", text_of(error, "where"), text_of(error, "where")[0] ? ": " : "",
               text_of(error, "msg"));
        if (text_of(error, "hint")[0]) {
            printf("       hint: %s\n", text_of(error, "hint"));
        }
    }
    if (strcmp(text_of(job, "state"), "recovering") == 0) {
        job_print_wait(job);
    }
}

/* "       busy   a/w0 1.203 s (predicted 1.150)", of the last step; nothing where the plan does not
 * say it. */
static void job_print_busy(const json_t *job)
{
    const json_t *ranks = json_object_get(json_object_get(job, "plan"), "ranks");
    const json_t *item;
    size_t i, n = 0;

    json_array_foreach(json_object_get(job, "ranks"), i, item)
    {
        const json_t *rank = json_array_get(ranks, (size_t)real_of(item, "rank"));

        if (real_of(rank, "busy_s") > 0 && json_is_number(json_object_get(item, "busy_s"))) {
            printf("%s%s/%s %.3f s (predicted %.3f)",
                   n % BUSY_A_LINE != 0 ? ", "
                   : n == 0             ? "       busy "
                                        : "\n            ",
                   text_of(rank, "site"), text_of(rank, "worker"), real_of(item, "busy_s"),
                   real_of(rank, "busy_s"));
            n++;
        }
    }
    if (n > 0) {
        putchar('\n');
    }
}

static void job_print(const json_t *job)
{
    char name[160];

    snprintf(name, sizeof(name), "%.0f %s", real_of(job, "number"), text_of(job, "name"));
    printf("job    %-18s %-9s step %.0f/%.0f", name, text_of(job, "state"), real_of(job, "step"),
           real_of(job, "steps"));
    if (json_is_number(json_object_get(job, "loss"))) {
        printf("  loss %.4f  %.0f tokens/s  %.3f s (predicted %.3f)", real_of(job, "loss"),
               real_of(job, "tokens_per_s"), real_of(job, "step_s"),
               real_of(job, "predicted_step_s"));
    }
    putchar('\n');
    if (strcmp(text_of(job, "state"), "running") == 0) {
        job_print_busy(job);
    }
    waits_print(job);
    job_print_reason(job);
    job_print_restarts(job);
}

static void jobs_print(const json_t *body)
{
    const json_t *job;
    size_t i;

    json_array_foreach(json_object_get(body, "jobs"), i, job)
    {
        job_print(job);
    }
    json_array_foreach(json_object_get(body, "jobs_elsewhere"), i, job)
    {
        printf("job    %.0f of site %s: we have a part in it, 'hdt status' there shows it\n",
               real_of(job, "number"), text_of(job, "coordinator"));
    }
}

/* What this site sent and received over it; of one that is over nobody is there or not. */
static void channel_print(const json_t *channel)
{
    char sent[HDT_HUMAN_CAP], received[HDT_HUMAN_CAP];
    const json_t *member;
    size_t i;

    printf("channel %-17s %-7s sent %s  received %s\n", text_of(channel, "channel"),
           text_of(channel, "state"), hdt_human_bytes(real_of(channel, "sent_bytes"), sent),
           hdt_human_bytes(real_of(channel, "received_bytes"), received));
    json_array_foreach(json_object_get(channel, "members"), i, member)
    {
        const char *why = text_of(member, "why");

        if (strcmp(text_of(channel, "state"), "over") == 0) {
            break;
        }
        printf("       rank %.0f %-18s %-7s %.0f s%s%s\n", real_of(member, "rank"),
               text_of(member, "member"), text_of(member, "state"), real_of(member, "since_s"),
               why[0] ? "  " : "", why);
    }
    if (text_of(channel, "why")[0]) {
        printf("       %s\n", text_of(channel, "why"));
    }
}

static void channels_print(const json_t *body)
{
    const json_t *channel;
    size_t i;

    json_array_foreach(json_object_get(body, "channels"), i, channel)
    {
        channel_print(channel);
    }
}

static enum hdt_status status_show(struct hdt_gwclient *client, const struct status_args *args,
                                   struct hdt_error *err)
{
    struct hdt_gwclient_request request = {.type = "status", .expect = "status.is"};
    json_t *body;

    HDT_TRY(hdt_gwclient_ask(client, &request, &body, err));
    if (args->watch && isatty(STDOUT_FILENO)) {
        printf("\033[H\033[2J");
    }
    if (args->json) {
        json_dumpf(body, stdout, args->watch ? JSON_COMPACT : JSON_INDENT(2));
        putchar('\n');
    } else {
        sites_print(body);
        budgets_print(body);
        refused_print(body);
        workers_print(body);
        jobs_print(body);
        channels_print(body);
        if (args->flows) {
            flows_print(body);
        }
    }
    fflush(stdout);
    json_decref(body);
    return HDT_OK;
}

static int status_run(int argc, char **argv)
{
    struct status_args args = {0};
    struct hdt_gwclient *client;
    struct hdt_error err = {0};
    enum hdt_status status;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (hdt_gwclient_open(&args.client, &client, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (args.watch) {
        hdt_interrupts_catch();
    }
    do {
        status = status_show(client, &args, &err);
        if (args.watch && status == HDT_OK) {
            usleep(WATCH_MS * 1000);
        }
    } while (args.watch && status == HDT_OK && hdt_interrupts_count() == 0);
    hdt_gwclient_close(client);
    if (status == HDT_ECANCELED && args.watch) {
        status = HDT_OK;
    }
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_status = {"status", "sites, workers and jobs", status_run, &argp,
                                       NULL};
