/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests of checkpoints. Input: a byte, then hdt.json; an odd byte gives it the digest that it
 * should have, without which nothing behind the digest would ever be reached. It lies in a folder
 * with three small files that never change. A manifest that is taken says what they are, and is not
 * taken any more when a number in it is another one.
 */
#include "config.h"

#include "src/core/ckpt_manifest.h"
#include "tests/fuzz/fuzz.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    size_t len;
} files[] = {{HDT_CKPT_CONFIG, 2}, {HDT_CKPT_MODEL, 64}, {HDT_CKPT_OPTIMIZER, 128}};
#define N_FILES (sizeof(files) / sizeof(files[0]))

static char folder[64];
static char sha256[N_FILES][65];

static void path_of(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", folder, name);
}

static void file_put(const char *name, const void *bytes, size_t len)
{
    char path[128];
    FILE *file;

    path_of(name, path);
    file = fopen(path, "wb");
    HDT_ASSERT(file && fwrite(bytes, 1, len, file) == len && fclose(file) == 0);
}

static void folder_remove(void)
{
    char path[128];

    for (size_t i = 0; i < N_FILES; i++) {
        path_of(files[i].name, path);
        unlink(path);
    }
    path_of(HDT_CKPT_MANIFEST, path);
    unlink(path);
    rmdir(folder);
}

/* Bytes 0, 1, 2, ... in each. */
static void folder_make(void)
{
    const char *tmp = getenv("TMPDIR");
    unsigned char bytes[128], digest[EVP_MAX_MD_SIZE];
    unsigned n;

    snprintf(folder, sizeof(folder), "%.40s/hdt-fuzz-XXXXXX", tmp ? tmp : "/tmp");
    HDT_ASSERT(mkdtemp(folder));
    atexit(folder_remove);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (unsigned char)i;
    }
    for (size_t i = 0; i < N_FILES; i++) {
        file_put(files[i].name, bytes, files[i].len);
        HDT_ASSERT(EVP_Digest(bytes, files[i].len, digest, &n, EVP_sha256(), NULL) == 1);
        for (unsigned k = 0; k < n; k++) {
            snprintf(sha256[i] + 2 * k, 3, "%02x", digest[k]);
        }
    }
}

/* The manifest in the folder, and the files by it. */
static enum hdt_status manifest_try(struct hdt_ckpt_manifest *manifest)
{
    const struct hdt_ckpt_verify how = {0};
    struct hdt_error err = {0};
    enum hdt_status status = hdt_ckpt_manifest_read(folder, manifest, &err);

    if (status == HDT_OK) {
        HDT_ASSERT(manifest->bytes == 2 + 64 + 128 && manifest->meta.step >= 0);
        status = hdt_ckpt_manifest_verify(manifest, &how, &err);
    }
    HDT_ASSERT(status == HDT_OK || err.msg[0] != '\0');
    return status;
}

/* Taken: it names the files as they are, and an altered copy is refused. */
static void expect_true(const struct hdt_ckpt_manifest *manifest)
{
    const json_t *said = json_object_get(manifest->root, "files");
    struct hdt_ckpt_manifest altered;
    json_t *copy = json_deep_copy(manifest->root);
    char *text;

    for (size_t i = 0; i < N_FILES; i++) {
        const json_t *digest = json_object_get(json_object_get(said, files[i].name), "sha256");

        HDT_ASSERT(json_is_string(digest) && strcmp(json_string_value(digest), sha256[i]) == 0);
    }
    json_object_set_new(copy, "step", json_integer(manifest->meta.step ^ 1));
    text = json_dumps(copy, 0);
    file_put(HDT_CKPT_MANIFEST, text, strlen(text));
    HDT_ASSERT(manifest_try(&altered) == HDT_EINVAL);
    hdt_ckpt_manifest_release(&altered);
    free(text);
    json_decref(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hdt_ckpt_manifest manifest;
    json_t *root = NULL;
    char *text;

    if (size < 1) {
        return 0;
    }
    if (folder[0] == '\0') {
        folder_make();
    }
    if (data[0] & 1) {
        root = json_loadb((const char *)data + 1, size - 1, 0, NULL);
    }
    if (json_is_object(root)) {
        hdt_ckpt_manifest_seal(root);
        text = json_dumps(root, 0);
        file_put(HDT_CKPT_MANIFEST, text, strlen(text));
        free(text);
    } else {
        file_put(HDT_CKPT_MANIFEST, data + 1, size - 1);
    }
    if (manifest_try(&manifest) == HDT_OK) {
        expect_true(&manifest);
    }
    hdt_ckpt_manifest_release(&manifest);
    json_decref(root);
    return 0;
}
