/* SPDX-License-Identifier: Apache-2.0 */
/* libhdt as a program sees it: strict C99, the public header alone, a real gateway beside it. */
#define _POSIX_C_SOURCE 200809L

#include "src/hdt.h"

#define XXH_INLINE_ALL
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

static int n_failed;

#define CHECK(cond)                                                                                \
 do {                                                                                              \
  if (!(cond)) {                                                                                   \
   printf("%s:%d: %s\n", __FILE__, __LINE__, #cond);                                               \
   n_failed++;                                                                                     \
  }                                                                                                \
 } while (0)

static char dir[] = "/tmp/hdt-lib-XXXXXX";

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run(const char *format)
{
    char command[2048];

    snprintf(command, sizeof(command), format, dir, dir, dir, dir, dir);
    return system(command);
}

static void address_of(const char *name, char *address, size_t cap)
{
    snprintf(address, cap, "unix:%s/%s", dir, name);
}

/* ---- version and errors ---- */

static void test_version(void)
{
    char text[32];

    snprintf(text, sizeof(text), "%d.%d.%d", HDT_VERSION_MAJOR, HDT_VERSION_MINOR,
             HDT_VERSION_PATCH);
    CHECK(strcmp(hdt_version(), text) == 0);
    CHECK(hdt_version_number() == HDT_VERSION_NUMBER);
}

static void test_strerror(void)
{
    static const int codes[] = {HDT_ERR_NONE,    HDT_ERR_INVALID,       HDT_ERR_MEMORY,
                                HDT_ERR_IO,      HDT_ERR_NOT_FOUND,     HDT_ERR_EXISTS,
                                HDT_ERR_ACCESS,  HDT_ERR_NOT_SUPPORTED, HDT_ERR_CANCELED,
                                HDT_ERR_TIMEOUT, HDT_ERR_PROTOCOL,      HDT_ERR_PEER,
                                HDT_ERR_VERSION, HDT_ERR_WORKER,        HDT_ERR_JOB};
    size_t i;

    for (i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        CHECK(strcmp(hdt_strerror(codes[i]), "unknown error") != 0);
    }
    CHECK(strcmp(hdt_strerror(-999), "unknown error") == 0);
    CHECK(strcmp(hdt_strerror(7), "unknown error") == 0);
}

/* ---- failures ---- */

static enum hdt_err open_fails(const char *gateway, const struct hdt_options *options)
{
    struct hdt_error_info error;
    struct hdt_ctx *ctx = (struct hdt_ctx *)&error;
    enum hdt_err code;

    memset(&error, 0, sizeof(error));
    code = hdt_open(gateway, options, &ctx, &error);
    CHECK(code != HDT_ERR_NONE);
    CHECK(ctx == NULL);
    CHECK(error.code == code);
    CHECK(error.message[0] != '\0');
    CHECK(hdt_open(gateway, options, &ctx, NULL) == code);
    return code;
}

static void test_wrong_arguments(void)
{
    struct hdt_options options = HDT_OPTIONS_INIT;

    CHECK(open_fails("carrier pigeon", NULL) == HDT_ERR_INVALID);
    options.timeout_ms = -1;
    CHECK(open_fails("unix:/nowhere", &options) == HDT_ERR_INVALID);
    options.timeout_ms = 0;
    options.size = 0;
    CHECK(open_fails("unix:/nowhere", &options) == HDT_ERR_INVALID);
    hdt_close(NULL);
    hdt_free(NULL);
}

static void test_nobody_there(void)
{
    struct hdt_error_info error;
    struct hdt_ctx *ctx;
    char address[128];

    address_of("nobody.sock", address, sizeof(address));
    CHECK(open_fails(address, NULL) == HDT_ERR_PEER);
    CHECK(hdt_open(address, NULL, &ctx, &error) == HDT_ERR_PEER);
    CHECK(error.hint[0] != '\0');
    CHECK(strstr(error.message, "nobody.sock") != NULL);
    setenv("HDT_GATEWAY", address, 1);
    CHECK(open_fails(NULL, NULL) == HDT_ERR_PEER);
    unsetenv("HDT_GATEWAY");
}

static int listen_at(const char *name)
{
    struct sockaddr_un sa;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    memset(&sa, 0, sizeof(sa));
    sa.sun_family = AF_UNIX;
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/%s", dir, name);
    CHECK(bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0);
    CHECK(listen(fd, 8) == 0);
    return fd;
}

static void test_peer_that_never_answers(void)
{
    struct hdt_options options = HDT_OPTIONS_INIT;
    int fd = listen_at("silent.sock");
    double start = now_s();
    char address[128];

    options.timeout_ms = 100;
    address_of("silent.sock", address, sizeof(address));
    CHECK(open_fails(address, &options) == HDT_ERR_TIMEOUT);
    CHECK(now_s() - start < 10);
    close(fd);
}

/* A server that says `len` bytes to each of two callers and listens until they leave. */
static enum hdt_err open_against(const char *name, const void *bytes, size_t len)
{
    int fd = listen_at(name);
    enum hdt_err code;
    char address[128], drop[4096];
    pid_t pid = fork();
    int i, conn;

    if (pid == 0) {
        for (i = 0; i < 2; i++) {
            conn = accept(fd, NULL, NULL);
            if (write(conn, bytes, len) < 0) {
                _exit(1);
            }
            while (read(conn, drop, sizeof(drop)) > 0) {
            }
            close(conn);
        }
        _exit(0);
    }
    close(fd);
    address_of(name, address, sizeof(address));
    code = open_fails(address, NULL);
    waitpid(pid, NULL, 0);
    return code;
}

/* Check and hash of a record with a message, as doc/protocol.md says. */
static void record_seal(char record[], size_t len)
{
    unsigned crc = 0xffff;
    XXH64_hash_t hash = XXH3_64bits(record + 64, len - 64);

    for (int i = 0; i < 8; i++) {
        record[56 + i] = (char)(hash >> 8 * i);
    }
    for (int i = 0; i < 64; i++) {
        crc ^= i == 20 || i == 21 ? 0 : (unsigned)(unsigned char)record[i] << 8;
        for (int bit = 0; bit < 8 && i != 20 && i != 21; bit++) {
            crc = (crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
        }
    }
    record[20] = (char)(crc & 0xff);
    record[21] = (char)(crc >> 8);
}

static void test_strange_peers(void)
{
    static const char http[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"
                               "Content-Length: 0\r\n\r\n                      ";
    /* {"t": "welcome", "b": {"proto": 3}} in msgpack, as doc/protocol.md says. */
    static const char welcome[] = "\x82\xa1t\xa7welcome\xa1"
                                  "b\x81\xa5proto\x03";
    /* {"t": "error", "b": {"status": "EACCES", "msg": "no"}}: the connection is refused. */
    static const char refusal[] = "\x82\xa1t\xa5"
                                  "error\xa1"
                                  "b\x82\xa6status\xa6"
                                  "EACCES\xa3msg\xa2no";
    char record[64 + sizeof(refusal) - 1];

    CHECK(open_against("http.sock", http, sizeof(http) - 1) == HDT_ERR_PROTOCOL);
    memset(record, 0, sizeof(record));
    memcpy(record, "HDT1", 4);
    record[4] = 9; /* version of the records */
    record[5] = 1; /* MSG */
    CHECK(open_against("records.sock", record, sizeof(record)) == HDT_ERR_VERSION);
    record[4] = 1;
    record[48] = (char)(sizeof(welcome) - 1);
    memcpy(record + 64, welcome, sizeof(welcome) - 1);
    record_seal(record, 64 + sizeof(welcome) - 1);
    CHECK(open_against("proto.sock", record, 64 + sizeof(welcome) - 1) == HDT_ERR_VERSION);
    record[48] = (char)(sizeof(refusal) - 1);
    memcpy(record + 64, refusal, sizeof(refusal) - 1);
    record_seal(record, sizeof(record));
    CHECK(open_against("refusal.sock", record, sizeof(record)) == HDT_ERR_ACCESS);
}

/* ---- a real gateway ---- */

static pid_t gateway_start(void)
{
    char config[128];
    FILE *file;
    pid_t pid;

    CHECK(run("./hdt ca init --dir %s/ca --federation lab >/dev/null && "
              "./hdt ca issue --dir %s/ca --out %s/tls site here >/dev/null && "
              "./hdt ca issue --dir %s/ca --out %s/ops operator ann >/dev/null") == 0);
    snprintf(config, sizeof(config), "%s/gateway.yaml", dir);
    file = fopen(config, "w");
    CHECK(file != NULL);
    fprintf(file, "site: here\nfederation: lab\nstate_dir: state\n"
                  "tls: {ca: tls/ca.pem, cert: tls/cert.pem, key: tls/key.pem}\n"
                  "wan: {listen: \"\"}\nlan: {socket: g.sock}\nhttp: {listen: \"\"}\n"
                  "data: {memory: 16MiB}\n");
    fclose(file);
    pid = fork();
    if (pid == 0) {
        execl("./hdt-gateway", "hdt-gateway", "-l", "error", "-c", config, (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* Open as soon as the gateway listens. */
static struct hdt_ctx *open_soon(const char *address, struct hdt_error_info *error)
{
    const struct timespec pause = {0, 20000000};
    double end = now_s() + 20;
    struct hdt_ctx *ctx = NULL;

    while (hdt_open(address, NULL, &ctx, error) != HDT_ERR_NONE && now_s() < end) {
        nanosleep(&pause, NULL);
    }
    return ctx;
}

static void test_gateway(void)
{
    struct hdt_error_info error;
    struct hdt_ctx *ctx;
    char address[128];
    char *json = NULL;
    pid_t pid = gateway_start();
    int i;

    address_of("g.sock", address, sizeof(address));
    ctx = open_soon(address, &error);
    CHECK(ctx != NULL);
    if (ctx) {
        CHECK(strcmp(hdt_site(ctx), "here") == 0);
        for (i = 0; i < 2; i++) {
            CHECK(hdt_status(ctx, &json, &error) == HDT_ERR_NONE);
            CHECK(json && json[0] == '{' && strstr(json, "\"federation\":\"lab\""));
            hdt_free(json);
        }
    }
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
    if (ctx) {
        /* Without a handler, so SIGPIPE would end this program. */
        CHECK(hdt_status(ctx, &json, &error) == HDT_ERR_PEER);
        CHECK(hdt_status(ctx, &json, &error) == HDT_ERR_PEER);
        CHECK(json == NULL);
        CHECK(error.message[0] != '\0');
    }
    hdt_close(ctx);
}

int main(void)
{
    if (!mkdtemp(dir)) {
        return 99;
    }
    signal(SIGPIPE, SIG_DFL);
    test_version();
    test_strerror();
    test_wrong_arguments();
    test_nobody_there();
    test_peer_that_never_answers();
    test_strange_peers();
    test_gateway();
    CHECK(run("rm -rf '%s'") == 0);
    return n_failed > 0;
}
