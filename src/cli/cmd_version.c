/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/core/frame.h"
#include "src/core/msg.h"

#include <argp.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <stdbool.h>
#include <stdio.h>

/* The build's switches (configure --with-X). */
static const struct {
    const char *name;
    bool is_on;
} switches[] = {
#ifdef HAVE_OPENBLAS
    {"openblas", true},
#else
    {"openblas", false},
#endif
#ifdef HAVE_LIBURING
    {"liburing", true},
#else
    {"liburing", false},
#endif
#ifdef HAVE_VERBS
    {"verbs", true},
#else
    {"verbs", false},
#endif
#ifdef HAVE_CUDA
    {"cuda", true},
#else
    {"cuda", false},
#endif
#ifdef HDT_ENABLE_FAULT
    {"fault", true},
#else
    {"fault", false},
#endif
#ifdef HDT_DEBUG
    {"debug", true},
#else
    {"debug", false},
#endif
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key == 'j') {
        *(bool *)state->input = true;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "Print JSON", 0},
    {0},
};
static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .doc = "Print the version, the versions of protocol and frame format, and the build's "
           "switches. Programs of one protocol version work together.",
};

static void json_version(void)
{
    json_t *json = json_object(), *parts = json_object();

    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        json_object_set_new(parts, switches[i].name, json_boolean(switches[i].is_on));
    }
    json_object_set_new(json, "version", json_string(PACKAGE_VERSION));
    json_object_set_new(json, "protocol", json_integer(HDT_PROTOCOL_VERSION));
    json_object_set_new(json, "frame", json_integer(HDT_FRAME_VERSION));
    json_object_set_new(json, "openssl", json_string(OpenSSL_version(OPENSSL_VERSION_STRING)));
    json_object_set_new(json, "with", parts);
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

static int version_run(int argc, char **argv)
{
    bool as_json = false;

    hdt_cmd_parse(&argp, argc, argv, &as_json);
    if (as_json) {
        json_version();
        return HDT_EXIT_OK;
    }
    printf("hdt %s (protocol %d, frame %d, %s)\nwith:", PACKAGE_VERSION, HDT_PROTOCOL_VERSION,
           HDT_FRAME_VERSION, OpenSSL_version(OPENSSL_VERSION));
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        printf(" %s%s", switches[i].is_on ? "" : "no-", switches[i].name);
    }
    putchar('\n');
    return HDT_EXIT_OK;
}

const struct hdt_cmd hdt_cmd_version = {"version", "print version, protocol and build switches",
                                        version_run, &argp, NULL};
