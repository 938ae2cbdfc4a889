/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts as people write them, over a cluster of two sites whose hosts have room, and a model of
 * four layers. What is taken is played when it is small: its step takes time, its memory is some.
 * What is refused comes with a message.
 */
#include "config.h"

#include "src/base/buf.h"
#include "src/plan/layout_sim.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As much as is played: micro-batches of all parts and replicas. */
#define WORK_MAX 4096

static const char catalogue_text[] =
    "sources: [{id: s, title: t, url: 'https://a'}]\n"
    "devices:\n"
    "  - {name: X, compute: {from: s, bf16: 100, fp32: 10}, memory: {from: s, gb: 16, gb_per_s: "
    "1000}}\n"
    "  - {name: Y, compute: {from: s, fp32: 1}, memory: {from: s, gb: 8, gb_per_s: 100}}\n";
static const char cluster_text[] =
    "links:\n  - {name: in, gb_per_s: 50}\n  - {name: out, gb_per_s: 5, nominal: true}\n"
    "sites:\n"
    "  - name: a\n    nodes:\n"
    "      - {name: x, count: 8, device: X, devices: 4, inside: in, between: out,\n"
    "         host: {gb: 64, gb_per_s: 12, memory_gb_per_s: 100}}\n"
    "      - {name: y, count: 2, device: Y, devices: 8, inside: in, between: out}\n"
    "  - name: b\n    nodes:\n"
    "      - {name: x, count: 4, device: X, devices: 2, inside: in, between: out,\n"
    "         host: {gb: 1, gb_per_s: 12, memory_gb_per_s: 100}}\n"
    "wan:\n  - {from: a, to: b, rate: 1gbit, rtt_ms: 40, loss: 0.01}\n";
static const char model_text[] =
    "{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":512,\"intermediate_size\":1024,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"max_position_embeddings\":2048,"
    "\"tie_word_embeddings\":true}";

/* Files that layouts name are these, whatever they say. */
static struct hdt_layout_instead instead;
static char dir[] = "/tmp/hdt-fuzz-layout.XXXXXX";

static char *file_make(const char *name, const char *text)
{
    char *path = hdt_asprintf("%s/%s", dir, name);
    FILE *file = fopen(path, "w");

    HDT_ASSERT(file && fputs(text, file) >= 0 && fclose(file) == 0);
    return path;
}

static void files_remove(void)
{
    unlink(instead.catalogue);
    unlink(instead.cluster);
    unlink(instead.model);
    rmdir(dir);
    free((char *)instead.catalogue);
    free((char *)instead.cluster);
    free((char *)instead.model);
}

static void files_make(void)
{
    HDT_ASSERT(mkdtemp(dir));
    instead.catalogue = file_make("devices.yaml", catalogue_text);
    instead.cluster = file_make("cluster.yaml", cluster_text);
    instead.model = file_make("model.json", model_text);
    atexit(files_remove);
}

static enum hdt_status layout_play(const struct hdt_layout_files *files, struct hdt_error *err)
{
    struct hdt_layout_prediction p;

    HDT_TRY(hdt_layout_predict(files, &hdt_stage_cost_fitted, &p, err));
    HDT_ASSERT(p.step_s > 0 && isfinite(p.step_s));
    HDT_ASSERT(p.memory_bytes > 0 && isfinite(p.memory_bytes));
    HDT_ASSERT(p.bubble_share >= -1e-9 && p.bubble_share <= 1);
    return HDT_OK;
}

static enum hdt_status fuzz_layout(const char *text, size_t len, struct hdt_error *err)
{
    struct hdt_layout_files files;
    enum hdt_status status = HDT_OK;

    HDT_TRY(hdt_layout_parse(text, len, "fuzz", &instead, &files, err));
    if (files.n_micro_batches * (int64_t)(files.n_stages * files.n_replicas) *
            files.layout.chunks <=
        WORK_MAX) {
        status = layout_play(&files, err);
    }
    hdt_layout_release(&files);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hdt_error err = {0};

    if (!instead.cluster) {
        files_make();
    }
    /* Profiles are files of any name: fuzz_machine has them. */
    if (memmem(data, size, "profiles", 8)) {
        return 0;
    }
    if (fuzz_layout((const char *)data, size, &err) != HDT_OK) {
        HDT_ASSERT(err.status != HDT_OK && err.msg[0] != '\0');
    }
    return 0;
}
