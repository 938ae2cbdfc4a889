/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/scenario.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum scenario_key {
    KEY_RANK,
    KEY_LINK,
    KEY_FACTOR,
    KEY_SHARE,
    KEY_SIGMA,
    KEY_SEED,
    KEY_FROM,
    KEY_TO,
    KEY_COUNT
};

static const char *const key_names[KEY_COUNT] = {
    [KEY_RANK] = "rank",   [KEY_LINK] = "link", [KEY_FACTOR] = "factor", [KEY_SHARE] = "share",
    [KEY_SIGMA] = "sigma", [KEY_SEED] = "seed", [KEY_FROM] = "from",     [KEY_TO] = "to",
};

enum scenario_kind { KIND_STRAGGLER, KIND_OUTAGE, KIND_SLOW, KIND_LOSS, KIND_JITTER, KIND_COUNT };

#define BIT(key) (1u << (key))

static const struct {
    const char *name, *example;
    unsigned needs, may;
} kinds[KIND_COUNT] = {
    [KIND_STRAGGLER] = {"straggler", "straggler:rank=1,factor=2,from=0,to=5",
                        BIT(KEY_RANK) | BIT(KEY_FACTOR), BIT(KEY_FROM) | BIT(KEY_TO)},
    [KIND_OUTAGE] = {"outage", "outage:link=site-a/site-b,from=1,to=3", BIT(KEY_LINK) | BIT(KEY_TO),
                     BIT(KEY_FROM)},
    [KIND_SLOW] = {"slow", "slow:link=site-a/site-b,factor=4", BIT(KEY_LINK) | BIT(KEY_FACTOR),
                   BIT(KEY_FROM) | BIT(KEY_TO)},
    [KIND_LOSS] = {"loss", "loss:link=site-a/site-b,share=0.02", BIT(KEY_LINK) | BIT(KEY_SHARE),
                   BIT(KEY_FROM) | BIT(KEY_TO)},
    [KIND_JITTER] = {"jitter", "jitter:sigma=0.05,seed=7", BIT(KEY_SIGMA), BIT(KEY_SEED)},
};

struct scenario_words {
    enum scenario_kind kind;
    unsigned has; /* bits of keys */
    const char *values[KEY_COUNT];
    double numbers[KEY_COUNT];
};

static enum hdt_status refuse(struct hdt_error *err, const char *text, const char *why,
                              const char *what)
{
    return hdt_error_set(err, HDT_EINVAL, "--scenario '%.100s': %s%s%.60s%s", text, why,
                         what[0] ? " '" : "", what, what[0] ? "'" : "");
}

/* ---- words ---- */

static enum hdt_status kind_find(const char *text, const char *word, enum scenario_kind *kind,
                                 struct hdt_error *err)
{
    for (int k = 0; k < KIND_COUNT; k++) {
        if (strcmp(kinds[k].name, word) == 0) {
            *kind = (enum scenario_kind)k;
            return HDT_OK;
        }
    }
    refuse(err, text, "there is no kind", word);
    hdt_error_hint(err, "kinds are straggler, outage, slow, loss and jitter, as in '%s'",
                   kinds[KIND_OUTAGE].example);
    return HDT_EINVAL;
}

static int key_find(const char *word)
{
    for (int k = 0; k < KEY_COUNT; k++) {
        if (strcmp(key_names[k], word) == 0) {
            return k;
        }
    }
    return -1;
}

/* None of them is below zero; of all but the seed, none is so large that sums of times lose the
 * small ones. */
static bool number_read(const char *text, enum scenario_key key, double *number)
{
    char *end;

    *number = strtod(text, &end);
    return end != text && *end == '\0' && *number >= 0 &&
           *number <= (key == KEY_SEED ? 0x1p53 : 1e9);
}

/* "key=value", cut in two. */
static enum hdt_status setting_take(const char *text, char *setting, struct scenario_words *words,
                                    struct hdt_error *err)
{
    char *value = strchr(setting, '=');
    int key;

    if (value) {
        *value++ = '\0';
    }
    key = key_find(setting);
    if (!value || key < 0 || !((kinds[words->kind].needs | kinds[words->kind].may) & BIT(key))) {
        refuse(err, text, "it has no setting", setting);
        hdt_error_hint(err, "for example '%s'", kinds[words->kind].example);
        return HDT_EINVAL;
    }
    if (words->has & BIT(key)) {
        return refuse(err, text, "it says twice", setting);
    }
    if (key != KEY_LINK && !number_read(value, (enum scenario_key)key, &words->numbers[key])) {
        return refuse(err, text, "that is no number from 0 to 1e9:", value);
    }
    words->has |= BIT(key);
    words->values[key] = value;
    return HDT_OK;
}

static enum hdt_status words_read(const char *text, char *copy, struct scenario_words *words,
                                  struct hdt_error *err)
{
    char *settings = strchr(copy, ':'), *save = NULL;
    unsigned lacks;

    if (settings) {
        *settings++ = '\0';
    }
    HDT_TRY(kind_find(text, copy, &words->kind, err));
    for (char *word = settings ? strtok_r(settings, ",", &save) : NULL; word;
         word = strtok_r(NULL, ",", &save)) {
        HDT_TRY(setting_take(text, word, words, err));
    }
    lacks = kinds[words->kind].needs & ~words->has;
    for (int k = 0; k < KEY_COUNT; k++) {
        if (lacks & BIT(k)) {
            refuse(err, text, "it does not say", key_names[k]);
            hdt_error_hint(err, "for example '%s'", kinds[words->kind].example);
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

/* ---- what they mean ---- */

static enum hdt_status link_find(const struct hdt_scenario *s, const char *text, const char *name,
                                 int *idx, struct hdt_error *err)
{
    char known[2 * HDT_COST_LINK_CAP + 2];
    struct hdt_buf all = {0};

    for (size_t i = 0; i < s->n_all_links; i++) {
        snprintf(known, sizeof(known), "%s%s%s", s->all_links[i].from,
                 s->all_links[i].to[0] ? "/" : "", s->all_links[i].to);
        if (strcmp(known, name) == 0) {
            *idx = (int)i;
            hdt_buf_release(&all);
            return HDT_OK;
        }
        hdt_buf_appendf(&all, "%s%s", i > 0 ? ", " : "", known);
    }
    refuse(err, text, "the plan uses no link", name);
    hdt_error_hint(err, "%s%s", s->n_all_links > 0 ? "it uses " : "all its ranks are at one site",
                   hdt_buf_str(&all));
    hdt_buf_release(&all);
    return HDT_EINVAL;
}

static enum hdt_status rank_find(const struct hdt_scenario *s, const char *text, double number,
                                 int *idx, struct hdt_error *err)
{
    if (number != floor(number) || number >= (double)s->n_all_ranks) {
        refuse(err, text, "the plan has no such rank", "");
        hdt_error_hint(err, "ranks are 0 to %zu", s->n_all_ranks - 1);
        return HDT_EINVAL;
    }
    *idx = (int)number;
    return HDT_OK;
}

/* The part of its speed that is left. */
static enum hdt_status speed_find(const char *text, const struct scenario_words *words,
                                  double *speed, struct hdt_error *err)
{
    switch (words->kind) {
    case KIND_OUTAGE:
        *speed = 0;
        return HDT_OK;
    case KIND_LOSS:
        *speed = 1 - words->numbers[KEY_SHARE];
        return *speed > 0 ? HDT_OK : refuse(err, text, "share is not below 1", "");
    default:
        *speed = 1 / words->numbers[KEY_FACTOR];
        return *speed > 0 && *speed < 1e6 ? HDT_OK : refuse(err, text, "factor is not above 0", "");
    }
}

static void slow_push(struct hdt_sim_slow **list, size_t *n, struct hdt_sim_slow slow)
{
    *list = hdt_realloc(*list, (*n + 1) * sizeof(slow));
    (*list)[(*n)++] = slow;
}

static enum hdt_status jitter_take(struct hdt_scenario *s, const char *text,
                                   const struct scenario_words *words, struct hdt_error *err)
{
    if (words->numbers[KEY_SIGMA] > 2) {
        return refuse(err, text, "sigma is above 2", "");
    }
    s->jitter = words->numbers[KEY_SIGMA];
    s->seed = (uint64_t)words->numbers[KEY_SEED];
    return HDT_OK;
}

static enum hdt_status slow_take(struct hdt_scenario *s, const char *text,
                                 const struct scenario_words *words, struct hdt_error *err)
{
    struct hdt_sim_slow slow = {.from_s = words->numbers[KEY_FROM],
                                .to_s =
                                    words->has & BIT(KEY_TO) ? words->numbers[KEY_TO] : INFINITY};

    HDT_TRY(speed_find(text, words, &slow.speed, err));
    if (!(slow.to_s > slow.from_s)) {
        return refuse(err, text, "it ends before it begins", "");
    }
    if (words->kind == KIND_STRAGGLER) {
        HDT_TRY(rank_find(s, text, words->numbers[KEY_RANK], &slow.idx, err));
        slow_push(&s->ranks, &s->n_ranks, slow);
        return HDT_OK;
    }
    HDT_TRY(link_find(s, text, words->values[KEY_LINK], &slow.idx, err));
    slow_push(&s->links, &s->n_links, slow);
    return HDT_OK;
}

enum hdt_status hdt_scenario_add(struct hdt_scenario *s, const char *text, struct hdt_error *err)
{
    struct scenario_words words = {0};
    char *copy = hdt_strdup(text);
    enum hdt_status status = words_read(text, copy, &words, err);

    if (status == HDT_OK) {
        status = words.kind == KIND_JITTER ? jitter_take(s, text, &words, err)
                                           : slow_take(s, text, &words, err);
    }
    free(copy);
    return status;
}

void hdt_scenario_release(struct hdt_scenario *s)
{
    free(s->ranks);
    free(s->links);
    memset(s, 0, sizeof(*s));
}

void hdt_scenario_apply(const struct hdt_scenario *s, struct hdt_sim_setup *setup)
{
    setup->slow_ranks = s->ranks;
    setup->n_slow_ranks = s->n_ranks;
    setup->slow_links = s->links;
    setup->n_slow_links = s->n_links;
    if (s->jitter > 0) {
        setup->jitter = s->jitter;
        setup->seed = s->seed;
    }
}

bool hdt_scenario_is_empty(const struct hdt_scenario *s)
{
    return s->n_ranks == 0 && s->n_links == 0 && !(s->jitter > 0);
}

enum hdt_status hdt_scenario_play(const struct hdt_scenario *scenario,
                                  const struct hdt_sim_setup *setup, struct hdt_played *played,
                                  struct hdt_error *err)
{
    struct hdt_sim_setup with = *setup;
    struct hdt_sim_result calm;

    if (!hdt_scenario_is_empty(scenario)) {
        HDT_TRY(hdt_sim_run(setup, &calm, err));
        played->calm_step_s = calm.step_s;
        played->calm_makespan_s = calm.makespan_s;
        hdt_sim_result_release(&calm);
    }
    hdt_scenario_apply(scenario, &with);
    with.record = true;
    HDT_TRY(hdt_sim_run(&with, &played->result, err));
    if (hdt_scenario_is_empty(scenario)) {
        played->calm_step_s = played->result.step_s;
        played->calm_makespan_s = played->result.makespan_s;
    }
    hdt_sim_path_find(&played->result, &played->path);
    return HDT_OK;
}

void hdt_played_release(struct hdt_played *played)
{
    hdt_sim_path_release(&played->path);
    hdt_sim_result_release(&played->result);
}
