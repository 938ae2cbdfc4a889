/* SPDX-License-Identifier: Apache-2.0 */
/* Print the status of a gateway as JSON: cc example_status.c $(pkg-config --cflags --libs hdt) */
#include <hdt.h>

#include <stdio.h>

int main(int argc, char **argv)
{
    struct hdt_error_info error;
    struct hdt_ctx *ctx;
    char *json = NULL;

    if (hdt_open(argc > 1 ? argv[1] : NULL, NULL, &ctx, &error) != HDT_ERR_NONE ||
        hdt_status(ctx, &json, &error) != HDT_ERR_NONE) {
        fprintf(stderr, "%s: %s\n", hdt_strerror(error.code), error.message);
        if (error.hint[0] != '\0') {
            fprintf(stderr, "hint: %s\n", error.hint);
        }
        hdt_close(ctx);
        return 1;
    }
    fprintf(stderr, "site %s, libhdt %s\n", hdt_site(ctx), hdt_version());
    puts(json);
    hdt_free(json);
    hdt_close(ctx);
    return 0;
}
