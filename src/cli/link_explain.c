/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/link_explain.h"
#include "src/cli/human.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/*
 * What limits a link is what took most of the time of its streams when it was last under load: the
 * gateway keeps that account (gateway/linkinfo.c). The rest is arithmetic over what both ends say.
 *
 * Break-even. Of S bytes of a tensor, a link carries S/B without a codec. When tensors follow each
 * other, encoding, sending and decoding overlap, and the slowest decides: min(E, rB, D) against B.
 * With r > 1 that is better while B < min(E, D). One tensor that is waited for passes them in turn:
 * S/E + S/(rB) + S/D against S/B, so better while B < (1 - 1/r) / (1/E + 1/D). A gateway cuts a
 * tensor into chunks and overlaps the coding of one with the sending of another, so a lone tensor
 * of many chunks lies between the two.
 */
#define QUEUE_PART 0.1  /* of the round trip in queues: the bottleneck is full */
#define QUEUE_MS   2.0  /* and so much at least */
#define LOSS_SEEN  1e-4 /* of bytes sent again */
#define HOLD_PART  0.8  /* of what sockets may hold: from here on that limits */
#define RWND_PART  0.4  /* of tcp_rmem is the window that the kernel gives at most, or nearly */
#define BUFFER_MIN 4194304.0 /* a smaller maximum is not worth proposing */

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "";
}

static double real_of(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

struct hdt_break_even hdt_break_even(double ratio, double encode_bytes_per_s,
                                     double decode_bytes_per_s)
{
    struct hdt_break_even even = {0};

    if (ratio > 1 && encode_bytes_per_s > 0 && decode_bytes_per_s > 0) {
        even.stream_bytes_per_s = fmin(encode_bytes_per_s, decode_bytes_per_s);
        even.alone_bytes_per_s =
            (1 - 1 / ratio) / (1 / encode_bytes_per_s + 1 / decode_bytes_per_s);
    }
    return even;
}

/* ---- one direction ---- */

struct way {
    const json_t *facts, *other, *tcp, *load, *settings, *kernel;
    const char *from, *to;
    double rate;    /* bytes a second, last known under load; 0: none */
    double rtt_s;   /* without queues */
    double streams; /* at least 1 */
    double bdp;     /* rate x rtt, bytes */
    json_t *lines;
};

static void line_add(struct way *way, const char *what, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void line_add(struct way *way, const char *what, const char *remedy, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    json_array_append_new(way->lines, json_pack("{s:s, s:s, s:s}", "what", what, "text", text,
                                                "remedy", remedy ? remedy : ""));
}

/* What arrived in a second in which there was something to send is what the link carries. Where
 * there was not, a second says how much it carries at least: then what the gateway measured under
 * load or with a probe counts, too, when that is more. */
static double rate_of(const struct way *way)
{
    const double arrived = real_of(way->load, "rate_bits_per_s") / 8;
    const double goodput = real_of(way->facts, "goodput_bits_per_s") / 8;
    const char *limit = text_of(way->load, "limit");

    if (way->load && strcmp(limit, "application") != 0 && strcmp(limit, "codec") != 0) {
        return arrived;
    }
    return fmax(arrived, goodput);
}

static void way_init(struct way *way, const json_t *facts, const json_t *other)
{
    memset(way, 0, sizeof(*way));
    way->facts = facts;
    way->other = other;
    way->tcp = json_object_get(facts, "tcp");
    way->load = json_object_get(way->tcp, "load");
    way->settings = json_object_get(facts, "settings");
    way->kernel = json_object_get(facts, "kernel");
    way->from = text_of(facts, "site");
    way->to = text_of(facts, "peer");
    way->rate = rate_of(way);
    way->rtt_s = real_of(facts, "min_rtt_ms") / 1e3;
    way->streams = fmax(1, real_of(facts, "streams"));
    way->bdp = way->rate * way->rtt_s;
    way->lines = json_array();
}

/* The line for sysctl by which a stream may hold four times its share of rate x round trip. */
static void sysctl_for(const struct way *way, char *out, size_t cap)
{
    const double bytes = fmax(BUFFER_MIN, 4 * way->bdp / way->streams);

    snprintf(out, cap,
             "sysctl -w net.ipv4.tcp_wmem='4096 65536 %.0f' at %s and "
             "net.ipv4.tcp_rmem='4096 131072 %.0f' at %s",
             bytes, way->from, bytes, way->to);
}

static double most_of_streams(const struct way *way, const char *key)
{
    const json_t *stream;
    double most = 0;
    size_t i;

    json_array_foreach(json_object_get(way->tcp, "streams"), i, stream)
    {
        most = fmax(most, real_of(stream, key));
    }
    return most;
}

/* Of a window that is full: does the kernel there give no more, or does nobody read? */
static void limit_receiver(struct way *way, double share)
{
    const double window = most_of_streams(way, "peer_window_bytes");
    const double rmem = real_of(json_object_get(way->other, "kernel"), "tcp_rmem_max_bytes");
    char bytes[HDT_HUMAN_CAP], max[HDT_HUMAN_CAP], remedy[256];

    if (rmem > 0 && window >= RWND_PART * rmem) {
        sysctl_for(way, remedy, sizeof(remedy));
        line_add(way, "limit", remedy,
                 "the receive buffer at %s, %.0f %% of the time: the largest window is %s, and the "
                 "kernel there gives a socket %s at most",
                 way->to, 100 * share, hdt_human_memory(window, bytes),
                 hdt_human_memory(rmem, max));
        return;
    }
    snprintf(remedy, sizeof(remedy),
             "look at the processors of %s's gateway, and whether who receives there takes it",
             way->to);
    line_add(way, "limit", remedy,
             "the receiver, %.0f %% of the time: %s reads more slowly than the link carries",
             100 * share, way->to);
}

/* None of the ends waits: what is on the way? */
static void limit_path(struct way *way, double share)
{
    const double queue_ms = real_of(way->load, "queue_ms");
    const double loss = real_of(way->load, "resent_share");
    const char *control = text_of(way->tcp, "congestion");
    const bool by_loss = strcmp(control, "cubic") == 0 || strcmp(control, "reno") == 0;
    const bool has_bbr = strstr(text_of(way->kernel, "congestion_available"), "bbr") != NULL;
    const bool is_auto = strcmp(text_of(way->settings, "congestion"), "auto") == 0;

    if (queue_ms >= QUEUE_MS && queue_ms >= QUEUE_PART * way->rtt_s * 1e3) {
        line_add(way, "limit", "",
                 "the link itself, %.0f %% of the time: it is full, a queue of "
                 "%.1f ms stands before it, %.3g %% is sent again",
                 100 * share, queue_ms, 100 * loss);
    } else if (loss >= LOSS_SEEN && by_loss) {
        line_add(
            way, "limit",
            !has_bbr  ? "modprobe tcp_bbr: wan.congestion: auto then tries it"
            : is_auto ? "none: under load the gateway compares it with bbr by itself"
                      : "wan.congestion: auto, or bbr, in gateway.yaml of this end",
            "loss, %.0f %% of the time: %.3g %% of the bytes is sent again, which %s takes for "
            "a full link, and no queue stands before it",
            100 * share, 100 * loss, control);
    } else {
        line_add(way, "limit", "",
                 "the link itself, %.0f %% of the time: its congestion window is used up, the "
                 "queue is %.1f ms, %.3g %% is sent again",
                 100 * share, queue_ms, 100 * loss);
    }
}

static void limit_here(struct way *way, const char *limit, double share)
{
    char bytes[HDT_HUMAN_CAP], remedy[256];
    const double at = 100 * share;

    if (strcmp(limit, "application") == 0) {
        line_add(way, "limit",
                 "a faster link would not help: 'hdt plan --explain' says what a job "
                 "waits for",
                 "its users, %.0f %% of the time: there is nothing to send", at);
    } else if (strcmp(limit, "codec") == 0) {
        line_add(way, "limit", "more data.codec_threads, where processors are idle",
                 "the processor, %.0f %% of the time: tensors wait for %.0f codec thread(s)", at,
                 real_of(way->settings, "codec_threads"));
    } else if (strcmp(limit, "rate") == 0 && real_of(way->settings, "budgets") > 0) {
        line_add(
            way, "limit", "'hdt status' there says which holds what back",
            "a cap of the settings at %s, %.0f %% of the time: wan.rate, or one of %.0f budgets",
            way->from, at, real_of(way->settings, "budgets"));
    } else if (strcmp(limit, "rate") == 0) {
        line_add(way, "limit", "raise wan.rate, if the link may carry more",
                 "the setting wan.rate, %.0f %% of the time: %s to all peers together", at,
                 hdt_human_rate(real_of(way->settings, "rate_bits_per_s") / 8, bytes));
    } else if (strcmp(limit, "buffer") == 0) {
        sysctl_for(way, remedy, sizeof(remedy));
        line_add(way, "limit", remedy,
                 "the send buffer at %s, %.0f %% of the time: bytes under way fill the %s that a "
                 "socket has",
                 way->from, at, hdt_human_memory(most_of_streams(way, "send_buffer_bytes"), bytes));
    } else {
        line_add(way, "limit",
                 "more data.io_threads where processors are idle; else fewer other "
                 "programs beside the gateway",
                 "the processor, %.0f %% of the time: %.0f I/O thread(s) do not come to fill "
                 "sockets that have room",
                 at, real_of(way->settings, "io_threads"));
    }
}

static void explain_limit(struct way *way)
{
    const char *limit = text_of(way->load, "limit");
    const double share = real_of(json_object_get(way->load, "limit_shares"), limit);

    if (!json_is_object(way->tcp)) {
        line_add(way, "limit", "", "unknown: the kernel at %s tells nothing of its streams",
                 way->from);
    } else if (!way->load) {
        line_add(way, "limit", "'hdt link bench' puts load on it",
                 "unknown: it has not carried much yet");
    } else if (strcmp(limit, "path") == 0) {
        limit_path(way, share);
    } else if (strcmp(limit, "receiver") == 0) {
        limit_receiver(way, share);
    } else {
        limit_here(way, limit, share);
    }
}

static void explain_rate(struct way *way)
{
    char rate[HDT_HUMAN_CAP], ago[HDT_HUMAN_CAP], rtt[HDT_HUMAN_CAP];

    if (way->load) {
        line_add(way, "rate", "", "%s when last under load, %s ago; round trip %s without queues",
                 hdt_human_rate(real_of(way->load, "rate_bits_per_s") / 8, rate),
                 hdt_human_duration(real_of(way->load, "ago_s"), ago),
                 hdt_human_time(way->rtt_s, rtt));
    } else {
        line_add(way, "rate", "", "unknown; round trip %s", hdt_human_time(way->rtt_s, rtt));
    }
}

static void explain_streams(struct way *way)
{
    const char *why = text_of(way->facts, "why_streams");
    char reason[256], shares[64] = "";
    const json_t *stream;
    double least = 1, most = 0;
    size_t i;

    json_array_foreach(json_object_get(way->tcp, "streams"), i, stream)
    {
        least = fmin(least, real_of(stream, "share"));
        most = fmax(most, real_of(stream, "share"));
    }
    if (why[0]) {
        snprintf(reason, sizeof(reason), "%s", why);
    } else {
        snprintf(reason, sizeof(reason), "%.0f, as the setting wan.streams of who dialled says",
                 way->streams);
    }
    if (most > 0) {
        snprintf(shares, sizeof(shares), ". They carried from %.0f to %.0f %% each", 100 * least,
                 100 * most);
    }
    line_add(way, "streams", "",
             "%s; any takes the next chunk, so that a loss slows one of them only%s", reason,
             shares);
}

static void explain_bursts(struct way *way)
{
    const char *why = text_of(way->facts, "why_bursts");

    if (why[0]) {
        line_add(way, "bursts", "", "%s", why);
    }
}

static void explain_congestion(struct way *way)
{
    const char *set = text_of(way->settings, "congestion");
    const char *used = text_of(way->tcp, "congestion");
    const char *why = text_of(way->facts, "why_congestion");
    char reason[256];

    if (why[0]) {
        snprintf(reason, sizeof(reason), "%s", why);
    } else {
        snprintf(reason, sizeof(reason), "%s, %s", used[0] ? used : "?",
                 set[0] ? "as wan.congestion says"
                        : "the kernel's own choice, as wan.congestion is empty");
    }
    line_add(way, "congestion", "", "%s; this kernel has: %s", reason,
             text_of(way->kernel, "congestion_available"));
}

static void explain_chunk(struct way *way)
{
    const double chunk = real_of(way->settings, "chunk_bytes");
    char bytes[HDT_HUMAN_CAP], time[HDT_HUMAN_CAP];

    if (way->rate > 0) {
        line_add(way, "chunk", "",
                 "%s, as wan.chunk says: the link carries one in %s, which is how long something "
                 "urgent waits behind one that has begun",
                 hdt_human_memory(chunk, bytes), hdt_human_time(chunk / way->rate, time));
    } else {
        line_add(way, "chunk", "", "%s, as wan.chunk says", hdt_human_memory(chunk, bytes));
    }
}

/* Rate x round trip must be on its way at any time, and each end's sockets must be able to hold it:
 * the receiver's kernel gives half of its buffer as window. */
static void explain_buffers(struct way *way)
{
    const double wmem = real_of(way->kernel, "tcp_wmem_max_bytes");
    const double rmem = real_of(json_object_get(way->other, "kernel"), "tcp_rmem_max_bytes");
    double hold = wmem;
    char bdp[HDT_HUMAN_CAP], out[HDT_HUMAN_CAP], in[HDT_HUMAN_CAP], remedy[256] = "";

    if (way->rate <= 0 || wmem <= 0) {
        return;
    }
    hold = rmem > 0 && rmem / 2 < hold ? rmem / 2 : hold;
    if (way->bdp > HOLD_PART * way->streams * hold) {
        sysctl_for(way, remedy, sizeof(remedy));
    }
    line_add(way, "buffers", remedy,
             "rate x round trip is %s; each of %.0f streams may hold %s here%s%s%s",
             hdt_human_memory(way->bdp, bdp), way->streams, hdt_human_memory(wmem, out),
             rmem > 0 ? " and have a window of " : "",
             rmem > 0 ? hdt_human_memory(rmem / 2, in) : "", rmem > 0 ? " there" : "");
}

static void explain_codec(struct way *way)
{
    const double raw = real_of(way->facts, "raw_bytes");
    const double plain = real_of(way->facts, "plain_bytes");
    const double coded = real_of(way->facts, "coded_bytes");

    if (coded <= 0) {
        line_add(way, "codec", "", "no tensor was sent yet");
        return;
    }
    line_add(way, "codec", "",
             "who sends chooses it for each edge (the planner, a program): tensors became %.3g "
             "times smaller by workers' codecs and %.3g times by the lossless one of the gateways",
             plain > 0 ? raw / plain : 1, plain / coded);
}

json_t *hdt_link_explain(const json_t *facts, const json_t *other)
{
    struct way way;
    const char *limit;

    way_init(&way, facts, other);
    limit = text_of(way.load, "limit");
    explain_limit(&way);
    explain_rate(&way);
    explain_streams(&way);
    explain_bursts(&way);
    explain_congestion(&way);
    explain_chunk(&way);
    explain_buffers(&way);
    explain_codec(&way);
    return json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:o}", "from", way.from, "to", way.to, "limit",
                     limit[0] ? limit : "unknown", "limit_share",
                     real_of(json_object_get(way.load, "limit_shares"), limit), "rate_bits_per_s",
                     8 * way.rate, "bdp_bytes", way.bdp, "lines", way.lines);
}

/* ---- codecs ---- */

/* The same codec at the other end; NULL: it was not heard. */
static const json_t *codec_there(const json_t *other, const json_t *codec)
{
    const json_t *there;
    size_t i;

    json_array_foreach(json_object_get(other, "codecs"), i, there)
    {
        if (strcmp(text_of(there, "codec"), text_of(codec, "codec")) == 0 &&
            strcmp(text_of(there, "dtype"), text_of(codec, "dtype")) == 0) {
            return there;
        }
    }
    return NULL;
}

static json_t *codec_explain(const json_t *codec, const json_t *there, double bytes_per_s)
{
    const double ratio = real_of(codec, "ratio");
    const double encode = real_of(codec, "threads") * real_of(codec, "encode_bytes_per_s");
    const double decode = real_of(there ? there : codec, "threads") *
                          real_of(there ? there : codec, "decode_bytes_per_s");
    const struct hdt_break_even even = hdt_break_even(ratio, encode, decode);
    char text[256], stream[HDT_HUMAN_CAP], alone[HDT_HUMAN_CAP];
    const char *pays = bytes_per_s <= 0                        ? "unknown"
                       : bytes_per_s < even.alone_bytes_per_s  ? "always"
                       : bytes_per_s < even.stream_bytes_per_s ? "in a stream of tensors"
                                                               : "no";

    if (even.stream_bytes_per_s <= 0) {
        snprintf(text, sizeof(text), "saves nothing");
    } else {
        snprintf(
            text, sizeof(text),
            "%.3g times smaller; pays below %s for tensors one after another, below %s for one "
            "that is waited for%s%s",
            ratio, hdt_human_rate(even.stream_bytes_per_s, stream),
            hdt_human_rate(even.alone_bytes_per_s, alone),
            bytes_per_s > 0 ? "; on this link: " : "", bytes_per_s > 0 ? pays : "");
    }
    return json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:s, s:s}", "codec",
                     text_of(codec, "codec"), "dtype", text_of(codec, "dtype"), "ratio", ratio,
                     "encode_bits_per_s", 8 * encode, "decode_bits_per_s", 8 * decode,
                     "stream_bits_per_s", 8 * even.stream_bytes_per_s, "alone_bits_per_s",
                     8 * even.alone_bytes_per_s, "pays", pays, "text", text);
}

json_t *hdt_link_explain_codecs(const json_t *facts, const json_t *other, double bytes_per_s)
{
    json_t *explained = json_array();
    const json_t *codec;
    size_t i;

    json_array_foreach(json_object_get(facts, "codecs"), i, codec)
    {
        json_array_append_new(explained,
                              codec_explain(codec, codec_there(other, codec), bytes_per_s));
    }
    return explained;
}
