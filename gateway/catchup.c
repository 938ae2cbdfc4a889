/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What somebody missed who follows a job again: its gateway was away for a while, the job was not.
 * metrics.jsonl has every step, survives the gateway and is read back here, so that events need not
 * be kept in memory for followers that may never come.
 */
#include "config.h"

#include "gateway/coordinator.h"
#include "src/base/buf.h"
#include "src/core/msg.h"

#include <stdio.h>
#include <stdlib.h>

static enum hdt_status replay_event(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                    const char *to, const char *event, json_t *body)
{
    struct hdt_error err = {0};

    json_object_set_new(body, "job", json_integer(job->job));
    json_object_set_new(body, "event", json_string(event));
    return hdt_route_send(gw, hdt_msg_new("job.event", to, body), &err);
}

/* A line that is not one of ours (the disk was full once) is left out. */
static enum hdt_status replay_line(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                   const char *to, json_int_t since, const char *text)
{
    json_t *line = json_loads(text, 0, NULL);
    const char *event = json_object_get(line, "val_loss") ? "eval" : "step";

    if (!json_is_object(line) || json_object_get(line, "event") ||
        json_integer_value(json_object_get(line, "step")) <= since) {
        json_decref(line);
        return HDT_OK;
    }
    return replay_event(gw, job, to, event, line);
}

static void replay_metrics(struct hdt_gateway *gw, const struct hdt_gwjob *job, const char *to,
                           json_int_t since)
{
    char *path = hdt_asprintf("%s/metrics.jsonl", job->run_dir), *text = NULL;
    FILE *file = fopen(path, "re");
    enum hdt_status status = HDT_OK;
    size_t cap = 0;

    while (file && status == HDT_OK && getline(&text, &cap, file) > 0) {
        status = replay_line(gw, job, to, since, text);
    }
    if (file) {
        fclose(file);
    }
    free(text);
    free(path);
}

void hdt_gwjob_replay(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *to,
                      json_int_t since)
{
    replay_metrics(gw, job, to, since);
    if (job->checkpoint && job->checkpoint[0]) {
        replay_event(gw, job, to, "checkpoint",
                     json_pack("{s:I, s:s, s:f}", "step", (json_int_t)job->checkpoint_step, "path",
                               job->checkpoint, "seconds", 0.0));
    }
    if (job->state == HDT_GWJOB_DONE || job->state == HDT_GWJOB_STOPPED) {
        replay_event(gw, job, to, "done", hdt_gwjob_done_body(gw, job));
    }
    replay_event(gw, job, to, "state", hdt_gwjob_state_body(gw, job));
}
