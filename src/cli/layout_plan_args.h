/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LAYOUT_PLAN_ARGS_H
#define HDT_CLI_LAYOUT_PLAN_ARGS_H

/* The command line of `hdt plan LAYOUT.yaml`: options that plans of jobs do not have, and what
 * their values mean on a cluster and a model. */
#include "src/plan/layout_search.h"

#include <argp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Texts of an option that may be given several times; they belong to the command line. */
struct hdt_layout_texts {
    char **items;
    size_t n;
};

struct hdt_layout_plan_args {
    const char *layout;
    struct hdt_layout_instead instead;
    const char *trace, *svg, *output; /* files to write; NULL: none */
    const char *compare, *current;    /* other layouts; NULL: none */
    const char *schedule, *codec;     /* NULL: as the layout says */
    int objective;                    /* enum hdt_layout_objective */
    double device_hour_price;
    double time_limit_s; /* 0: none */
    double steps_left;   /* with `current`; 0: not given */
    struct hdt_layout_texts pins, without, what_if;
    bool json, explain;
    const char *given; /* an option that is for layouts only; NULL: there was none */
};

/* A child parser whose input is a struct hdt_layout_plan_args: its options alone. */
extern const struct argp hdt_layout_plan_argp;

void hdt_layout_plan_args_release(struct hdt_layout_plan_args *args);

/* A word that is no option: the second half of a pin ("site=a")? Then it is taken. */
bool hdt_layout_plan_args_take(struct hdt_layout_plan_args *args, char *word);

/* What the options say of these files: pins, sites, codecs, what the layout keeps. `options` is
 * zeroed first. HDT_EINVAL: a value that is wrong, or names what is not there. */
enum hdt_status hdt_layout_plan_options(const struct hdt_layout_plan_args *args,
                                        const struct hdt_layout_files *files,
                                        struct hdt_layout_search_options *options,
                                        struct hdt_error *err);

/* Change a cluster as one --what-if says ("wan=10gbit", "rtt:site-a/site-b=20ms",
 * "memory:a100=80", "count:site-a.a100=16"). HDT_EINVAL, with what may stand there. */
enum hdt_status hdt_layout_what_if(struct hdt_cluster_file *cluster, const char *text,
                                   struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_LAYOUT_PLAN_ARGS_H */
