/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One language for topology files and for the control socket, a command a line; usage text in
 * hdt-wanem.c. A line is split into words, the first word chooses the row of a table.
 */
#include "config.h"

#include "tests/wanem/wanem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 48

struct unit {
    const char *name;
    double factor;
};

static const struct unit time_units[] = {
    {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
static const struct unit rate_units[] = {
    {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"bit", 1}, {NULL, 0}};
static const struct unit byte_units[] = {{"kb", 1e3},   {"mb", 1e6},        {"gb", 1e9},
                                         {"kib", 1024}, {"mib", 1048576.0}, {"gib", 1073741824.0},
                                         {"b", 1},      {NULL, 0}};
static const struct unit share_units[] = {{"%", 0.01}, {"", 1}, {NULL, 0}};

/* "1.5ms" by a table of units. False: no number, unknown unit, negative or absurdly large. */
static bool unit_parse(const char *text, const struct unit *units, double *value)
{
    char *end;
    double number;

    errno = 0;
    number = strtod(text, &end);
    if (end == text || errno != 0 || !isfinite(number) || number < 0) {
        return false;
    }
    for (; units->name; units++) {
        if (strcasecmp(end, units->name) == 0) {
            *value = number * units->factor;
            return *value < 1e15;
        }
    }
    return false;
}

static enum hdt_status time_parse(const char *key, const char *text, int64_t *ns,
                                  struct hdt_error *err)
{
    double value;

    if (!unit_parse(text, time_units, &value)) {
        return hdt_error_set(err, HDT_EINVAL, "%s '%s' is not a time such as 20ms, 1.5s or 250us",
                             key, text);
    }
    *ns = (int64_t)value;
    return HDT_OK;
}

static enum hdt_status rate_parse(const char *text, struct hdt_wanem_shape *shape,
                                  struct hdt_error *err)
{
    double value = 0;

    if (strcmp(text, "max") != 0 && (!unit_parse(text, rate_units, &value) || value < 1000)) {
        return hdt_error_set(err, HDT_EINVAL,
                             "rate '%s' is not max, nor a rate such as 200mbit or 2.5gbit", text);
    }
    shape->rate_bits_per_s = (uint64_t)value;
    return HDT_OK;
}

static enum hdt_status queue_parse(const char *text, struct hdt_wanem_shape *shape,
                                   struct hdt_error *err)
{
    double value;

    if (unit_parse(text, time_units, &value)) {
        shape->queue_ns = (int64_t)value;
        shape->queue_bytes = 0;
    } else if (unit_parse(text, byte_units, &value) && value >= 1 && value <= 2e9) {
        shape->queue_bytes = (uint64_t)value;
    } else {
        return hdt_error_set(err, HDT_EINVAL,
                             "queue '%s' is neither a time such as 50ms nor a size such as 4mb",
                             text);
    }
    return HDT_OK;
}

static enum hdt_status number_parse(const char *key, const char *text, double min, double max,
                                    double *value, struct hdt_error *err)
{
    bool is_share = strcmp(key, "loss") == 0;
    const struct unit *units = is_share ? share_units : &share_units[1];

    if (!unit_parse(text, units, value) || *value < min || *value > max) {
        return hdt_error_set(err, HDT_EINVAL, "%s '%s' is not a %s from %g to %g", key, text,
                             is_share ? "share (0.1%, 0.001)" : "number", min, max);
    }
    return HDT_OK;
}

/* One setting that has a value. */
static enum hdt_status setting_parse(const char *key, const char *text,
                                     struct hdt_wanem_shape *shape, struct hdt_error *err)
{
    double value;

    if (strcmp(key, "rate") == 0) {
        return rate_parse(text, shape, err);
    }
    if (strcmp(key, "delay") == 0) {
        return time_parse(key, text, &shape->delay_ns, err);
    }
    if (strcmp(key, "rtt") == 0) {
        HDT_TRY(time_parse(key, text, &shape->delay_ns, err));
        shape->delay_ns /= 2;
        return HDT_OK;
    }
    if (strcmp(key, "jitter") == 0) {
        return time_parse(key, text, &shape->jitter_ns, err);
    }
    if (strcmp(key, "loss") == 0) {
        return number_parse(key, text, 0, 1, &shape->loss, err);
    }
    if (strcmp(key, "burst") == 0) {
        return number_parse(key, text, 1, 1e6, &shape->loss_burst, err);
    }
    if (strcmp(key, "queue") == 0) {
        return queue_parse(text, shape, err);
    }
    if (strcmp(key, "overhead") == 0) {
        HDT_TRY(number_parse(key, text, 0, 1000, &value, err));
        shape->overhead = (uint32_t)value;
        return HDT_OK;
    }
    if (strcmp(key, "mtu") == 0) {
        HDT_TRY(number_parse(key, text, 0, 65535, &value, err));
        shape->mtu = (uint32_t)value;
        return HDT_OK;
    }
    return hdt_error_set(err, HDT_EINVAL,
                         "unknown link setting '%s': rate, delay, rtt, jitter, loss, burst, queue, "
                         "overhead, mtu, up, down",
                         key);
}

enum hdt_status hdt_wanem_shape_parse(char **words, int n_words, struct hdt_wanem_shape *shape,
                                      struct hdt_error *err)
{
    struct hdt_wanem_shape next = *shape;

    for (int i = 0; i < n_words; i++) {
        if (strcmp(words[i], "up") == 0 || strcmp(words[i], "down") == 0) {
            next.up = words[i][0] == 'u';
            continue;
        }
        if (i + 1 == n_words) {
            return hdt_error_set(err, HDT_EINVAL, "'%s' has no value", words[i]);
        }
        HDT_TRY(setting_parse(words[i], words[i + 1], &next, err));
        i++;
    }
    *shape = next;
    return HDT_OK;
}

static enum hdt_status name_parse(const char *what, const char *text, size_t cap, char *name,
                                  struct hdt_error *err)
{
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");

    if (len == 0 || text[len] || len >= cap) {
        return hdt_error_set(err, HDT_EINVAL,
                             "%s '%s' is not a name of up to %zu letters, digits, _ and -", what,
                             text, cap - 1);
    }
    memcpy(name, text, len + 1);
    return HDT_OK;
}

static int port_find(const struct hdt_wanem *em, const char *name)
{
    for (int i = 0; i < em->n_ports; i++) {
        if (strcmp(em->ports[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static enum hdt_status route_add(struct hdt_wanem *em, int port_idx, const char *text,
                                 bool is_address, struct hdt_error *err)
{
    struct hdt_wanem_route *route = &em->routes[em->n_routes];
    unsigned max_len = strchr(text, ':') ? 128 : 32;
    size_t addr_len = strcspn(text, "/");
    char addr[INET6_ADDRSTRLEN];
    char *end = NULL;
    unsigned long len = text[addr_len] ? strtoul(text + addr_len + 1, &end, 10) : max_len;

    if (em->n_routes == HDT_WANEM_ROUTES_MAX) {
        return hdt_error_set(err, HDT_EINVAL, "more than %d addresses", HDT_WANEM_ROUTES_MAX);
    }
    snprintf(addr, sizeof(addr), "%.*s", (int)addr_len, text);
    route->dst.family = max_len == 32 ? AF_INET : AF_INET6;
    if ((end && *end) || len > max_len ||
        inet_pton(route->dst.family, addr, route->dst.bytes) != 1) {
        return hdt_error_set(err, HDT_EINVAL,
                             "'%s' is not an address with prefix, as 10.71.0.1/24 or fd71::1/64",
                             text);
    }
    route->dst.prefix_len = (uint8_t)len;
    route->port_idx = port_idx;
    route->is_address = is_address;
    em->n_routes++;
    return HDT_OK;
}

static enum hdt_status port_setting(struct hdt_wanem *em, struct hdt_wanem_port *port,
                                    const char *key, const char *text, struct hdt_error *err)
{
    int idx = (int)(port - em->ports);
    double value;

    if (strcmp(key, "site") == 0) {
        return name_parse("site", text, sizeof(port->site), port->site, err);
    }
    if (strcmp(key, "dev") == 0) {
        return name_parse("device", text, sizeof(port->dev), port->dev, err);
    }
    if (strcmp(key, "mtu") == 0) {
        HDT_TRY(number_parse(key, text, 1280, 65535, &value, err));
        port->mtu = (unsigned)value;
        return HDT_OK;
    }
    if (strcmp(key, "addr") == 0 || strcmp(key, "route") == 0) {
        return route_add(em, idx, text, key[0] == 'a', err);
    }
    return hdt_error_set(err, HDT_EINVAL, "unknown port setting '%s': site, dev, mtu, addr, route",
                         key);
}

static enum hdt_status command_port(struct hdt_wanem *em, char **words, int n_words,
                                    struct hdt_buf *out, struct hdt_error *err)
{
    struct hdt_wanem_port *port = &em->ports[em->n_ports];
    int n_routes = em->n_routes;

    (void)out;
    if (em->is_running || n_words < 4 || n_words % 2 != 0) {
        return hdt_error_set(err, HDT_EINVAL,
                             em->is_running
                                 ? "ports are made at the start only"
                                 : "port NAME [site SITE] [dev DEVICE] [mtu N] addr A/LEN...");
    }
    if (em->n_ports == HDT_WANEM_PORTS_MAX || port_find(em, words[1]) >= 0) {
        return hdt_error_set(err, HDT_EINVAL, "port '%s' is there already, or is one too many",
                             words[1]);
    }
    *port = (struct hdt_wanem_port){.fd = -1, .mtu = 1500, .dev = "wan0"};
    HDT_TRY(name_parse("port", words[1], sizeof(port->name), port->name, err));
    HDT_TRY(name_parse("site", words[1], sizeof(port->site), port->site, err));
    for (int i = 2; i < n_words; i += 2) {
        HDT_TRY(port_setting(em, port, words[i], words[i + 1], err));
    }
    if (em->n_routes == n_routes || !em->routes[n_routes].is_address) {
        return hdt_error_set(err, HDT_EINVAL, "port '%s' begins with no addr A/LEN", words[1]);
    }
    em->n_ports++;
    return HDT_OK;
}

/* Set one direction; before the start a link that is not there is made. */
static enum hdt_status link_set(struct hdt_wanem *em, int from, int to, char **words, int n_words,
                                struct hdt_error *err)
{
    struct hdt_wanem_link **link = &em->links[from][to];
    struct hdt_wanem_shape shape;

    if (!*link && em->is_running) {
        return hdt_error_set(err, HDT_ENOENT, "no link from %s to %s", em->ports[from].name,
                             em->ports[to].name);
    }
    if (!*link) {
        *link = hdt_wanem_link_new(em->seed + (uint64_t)(from * HDT_WANEM_PORTS_MAX + to));
    }
    shape = (*link)->shape;
    HDT_TRY(hdt_wanem_shape_parse(words, n_words, &shape, err));
    hdt_wanem_link_set(*link, &shape, &em->pool);
    return HDT_OK;
}

static enum hdt_status command_link(struct hdt_wanem *em, char **words, int n_words,
                                    struct hdt_buf *out, struct hdt_error *err)
{
    char *arrow = n_words > 1 ? strchr(words[1], '>') : NULL;
    int n_used = arrow ? 2 : 3;
    int from, to;

    (void)out;
    if (n_words < n_used) {
        return hdt_error_set(err, HDT_EINVAL,
                             "link A B ... sets both directions, link A>B ... one");
    }
    if (arrow) {
        *arrow = '\0';
    }
    from = port_find(em, words[1]);
    to = port_find(em, arrow ? arrow + 1 : words[2]);
    if (from < 0 || to < 0 || from == to) {
        return hdt_error_set(err, HDT_ENOENT, "no two ports '%s' and '%s'", words[1],
                             arrow ? arrow + 1 : words[2]);
    }
    HDT_TRY(link_set(em, from, to, words + n_used, n_words - n_used, err));
    return arrow ? HDT_OK : link_set(em, to, from, words + n_used, n_words - n_used, err);
}

static enum hdt_status command_sysctl(struct hdt_wanem *em, char **words, int n_words,
                                      struct hdt_buf *out, struct hdt_error *err)
{
    struct hdt_buf setting = {0};

    (void)out;
    if (em->is_running || n_words < 3 || strncmp(words[1], "net.", 4) != 0 ||
        strchr(words[1], '/') || em->n_sysctls == HDT_WANEM_SYSCTLS_MAX) {
        return hdt_error_set(err, HDT_EINVAL,
                             "sysctl net.NAME VALUE..., at the start only, %d at most",
                             HDT_WANEM_SYSCTLS_MAX);
    }
    for (char *dot = words[1]; (dot = strchr(dot, '.')) != NULL;) {
        *dot = '/';
    }
    hdt_buf_appendf(&setting, "%s=%s", words[1], words[2]);
    for (int i = 3; i < n_words; i++) {
        hdt_buf_appendf(&setting, " %s", words[i]);
    }
    em->sysctls[em->n_sysctls++] = hdt_buf_detach(&setting);
    return HDT_OK;
}

static enum hdt_status command_seed(struct hdt_wanem *em, char **words, int n_words,
                                    struct hdt_buf *out, struct hdt_error *err)
{
    char *end = NULL;

    (void)out;
    if (n_words == 2) {
        em->seed = strtoull(words[1], &end, 0);
    }
    if (!end || *end || end == words[1]) {
        return hdt_error_set(err, HDT_EINVAL, "seed NUMBER");
    }
    for (int i = 0; i < HDT_WANEM_PORTS_MAX * HDT_WANEM_PORTS_MAX; i++) {
        struct hdt_wanem_link *link = em->links[i / HDT_WANEM_PORTS_MAX][i % HDT_WANEM_PORTS_MAX];

        if (link) {
            hdt_wanem_link_seed(link, em->seed + (uint64_t)i);
        }
    }
    return HDT_OK;
}

static enum hdt_status command_show(struct hdt_wanem *em, char **words, int n_words,
                                    struct hdt_buf *out, struct hdt_error *err)
{
    if (n_words > 2 || (n_words == 2 && strcmp(words[1], "json") != 0)) {
        return hdt_error_set(err, HDT_EINVAL, "show [json]");
    }
    hdt_wanem_show(em, n_words == 2, out);
    return HDT_OK;
}

static enum hdt_status command_reset(struct hdt_wanem *em, char **words, int n_words,
                                     struct hdt_buf *out, struct hdt_error *err)
{
    (void)words;
    (void)n_words;
    (void)out;
    (void)err;
    for (int i = 0; i < em->n_ports; i++) {
        em->ports[i].n_stray = 0;
        em->ports[i].n_write_errors = 0;
        for (int j = 0; j < em->n_ports; j++) {
            if (em->links[i][j]) {
                em->links[i][j]->count = (struct hdt_wanem_counters){0};
            }
        }
    }
    return HDT_OK;
}

static enum hdt_status command_quit(struct hdt_wanem *em, char **words, int n_words,
                                    struct hdt_buf *out, struct hdt_error *err)
{
    (void)words;
    (void)n_words;
    (void)out;
    (void)err;
    em->quit = true;
    return HDT_OK;
}

static const struct {
    const char *name;
    enum hdt_status (*run)(struct hdt_wanem *em, char **words, int n_words, struct hdt_buf *out,
                           struct hdt_error *err);
} commands[] = {
    {"port", command_port}, {"link", command_link}, {"sysctl", command_sysctl},
    {"seed", command_seed}, {"show", command_show}, {"reset", command_reset},
    {"quit", command_quit},
};

enum hdt_status hdt_wanem_command(struct hdt_wanem *em, const char *line, struct hdt_buf *out,
                                  struct hdt_error *err)
{
    char text[HDT_WANEM_LINE_CAP];
    char *words[WORDS_MAX];
    int n_words = 0;
    char *save = NULL;

    snprintf(text, sizeof(text), "%s", line);
    text[strcspn(text, "#")] = '\0';
    for (char *word = strtok_r(text, " \t\r\n", &save); word && n_words < WORDS_MAX;
         word = strtok_r(NULL, " \t\r\n", &save)) {
        words[n_words++] = word;
    }
    if (n_words == 0) {
        return HDT_OK;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(words[0], commands[i].name) == 0) {
            return commands[i].run(em, words, n_words, out, err);
        }
    }
    return hdt_error_set(err, HDT_EINVAL,
                         "unknown command '%s': port, link, sysctl, seed, show, reset, quit",
                         words[0]);
}

enum hdt_status hdt_wanem_load(struct hdt_wanem *em, const char *path, struct hdt_error *err)
{
    char line[HDT_WANEM_LINE_CAP];
    enum hdt_status status = HDT_OK;
    struct hdt_buf out = {0};
    FILE *file = fopen(path, "r");
    int line_no = 0;

    if (!file) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot open '%s'", path);
    }
    while (status == HDT_OK && fgets(line, sizeof(line), file)) {
        line_no++;
        status = hdt_wanem_command(em, line, &out, err);
    }
    if (status != HDT_OK) {
        hdt_error_where(err, "%s:%d", path, line_no);
    } else if (em->n_ports == 0) {
        status = hdt_error_set(err, HDT_EINVAL, "'%s' has no port", path);
    }
    fclose(file);
    hdt_buf_release(&out);
    return status;
}
