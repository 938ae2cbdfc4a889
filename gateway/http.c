/* SPDX-License-Identifier: Apache-2.0 */
/* /status and /metrics over HTTP, read-only, on loopback unless the settings say otherwise. */
#include "config.h"

#include "gateway/control.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/net/addr.h"

#include <event2/buffer.h>
#include <event2/http.h>
#include <stdlib.h>
#include <unistd.h>

struct hdt_http {
    struct evhttp *evhttp;
    struct hdt_http_guard *guard;
};

static void http_reply(struct evhttp_request *request, const char *type, const char *text,
                       size_t len)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    struct evbuffer *body = evbuffer_new();

    evhttp_add_header(headers, "Content-Type", type);
    evhttp_add_header(headers, "Cache-Control", "no-store");
    evhttp_add_header(headers, "Connection", "close"); /* its time is bounded, see http_guard.c */
    evbuffer_add(body, text, len);
    evhttp_send_reply(request, HTTP_OK, "OK", body);
    evbuffer_free(body);
}

static void http_status(struct evhttp_request *request, void *user)
{
    json_t *status = hdt_status_json(user);
    char *text = json_dumps(status, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
    struct hdt_buf buf = {0};

    hdt_buf_appendf(&buf, "%s\n", text);
    http_reply(request, "application/json", hdt_buf_str(&buf), buf.len);
    hdt_buf_release(&buf);
    free(text);
    json_decref(status);
}

static void http_metrics(struct evhttp_request *request, void *user)
{
    struct hdt_buf buf = {0};

    hdt_metrics_text(user, &buf);
    http_reply(request, "text/plain; version=0.0.4", hdt_buf_str(&buf), buf.len);
    hdt_buf_release(&buf);
}

static void http_other(struct evhttp_request *request, void *user)
{
    (void)user;
    evhttp_send_error(request, HTTP_NOTFOUND, "There are /status and /metrics");
}

enum hdt_status hdt_http_open(struct hdt_gateway *gw, struct hdt_http **out, struct hdt_error *err)
{
    struct evhttp_bound_socket *bound;
    struct hdt_http *http;
    struct hdt_addr addr;
    int fd;

    HDT_TRY(hdt_addr_parse(gw->conf.http.listen, &addr, err));
    HDT_TRY(hdt_addr_listen(&addr, 0600, &fd, err));
    hdt_addr_of_socket(fd, false, gw->http_address, sizeof(gw->http_address));
    http = hdt_calloc(1, sizeof(*http));
    http->evhttp = evhttp_new(gw->base);
    bound = http->evhttp ? evhttp_accept_socket_with_handle(http->evhttp, fd) : NULL;
    if (!bound) {
        close(fd);
        hdt_http_close(http);
        return hdt_error_set(err, HDT_EIO, "cannot serve HTTP on %s", gw->conf.http.listen);
    }
    http->guard = hdt_http_guard_new(gw, http->evhttp, bound);
    evhttp_set_allowed_methods(http->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_max_headers_size(http->evhttp, 8192);
    evhttp_set_max_body_size(http->evhttp, 1024);
    evhttp_set_timeout(http->evhttp, 10);
    evhttp_set_cb(http->evhttp, "/status", http_status, gw);
    evhttp_set_cb(http->evhttp, "/metrics", http_metrics, gw);
    evhttp_set_gencb(http->evhttp, http_other, gw);
    hdt_log_info("http://%s/status and /metrics", gw->http_address);
    *out = http;
    return HDT_OK;
}

void hdt_http_close(struct hdt_http *http)
{
    if (http) {
        if (http->evhttp) {
            evhttp_free(http->evhttp);
        }
        hdt_http_guard_free(http->guard);
        free(http);
    }
}
