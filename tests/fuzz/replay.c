/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over files, without a fuzzer: each argument is a file or a folder of files;
 * without arguments the target's corpus. `make check` plays every corpus in this way, so that an
 * input which once led to a bug keeps being tried.
 *
 * To hunt for new inputs link the target to libFuzzer instead of this file, for example
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -I. -I$BUILD tests/fuzz/fuzz_codec.c \
 *         compress/[a-z]*.c src/base/{buf,clock,error,tensor}.c -lzstd -lm -o fuzz_codec
 *     ./fuzz_codec tests/fuzz/corpus/codec
 */
#include "config.h"

#include "tests/fuzz/fuzz.h"
#include "src/base/buf.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int play_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct hdt_buf buf = {0};
    char piece[4096];
    uint8_t *exact;
    size_t n;

    if (!file) {
        perror(path);
        return 1;
    }
    while ((n = fread(piece, 1, sizeof(piece), file)) > 0) {
        hdt_buf_append(&buf, piece, n);
    }
    fclose(file);
    exact = hdt_malloc(buf.len); /* of exactly this size, so that a sanitizer sees every overrun */
    if (buf.len > 0) {
        memcpy(exact, buf.data, buf.len);
    }
    printf("%s\n", path);
    fflush(stdout); /* the last name printed is the input that ended the program */
    LLVMFuzzerTestOneInput(exact, buf.len);
    free(exact);
    hdt_buf_release(&buf);
    return 0;
}

static int play_folder(const char *path, unsigned *n_files)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort), failed = 0;

    if (n < 0) {
        perror(path);
        return 1;
    }
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.') {
            char *file = hdt_asprintf("%s/%s", path, entries[i]->d_name);

            failed |= play_file(file);
            ++*n_files;
            free(file);
        }
        free(entries[i]);
    }
    free(entries);
    return failed;
}

int main(int argc, char **argv)
{
    char *corpus[] = {NULL, (char *)HDT_FUZZ_CORPUS};
    char **paths = argc > 1 ? argv : corpus;
    int n_paths = argc > 1 ? argc : 2, failed = 0;
    unsigned n_files = 0;

    for (int i = 1; i < n_paths; i++) {
        struct stat st;

        if (stat(paths[i], &st) == 0 && S_ISDIR(st.st_mode)) {
            failed |= play_folder(paths[i], &n_files);
        } else {
            failed |= play_file(paths[i]);
            n_files++;
        }
    }
    if (n_files == 0) {
        fprintf(stderr, "no inputs\n");
        return 1;
    }
    return failed;
}
