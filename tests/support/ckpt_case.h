/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_CKPT_CASE_H
#define HDT_TESTS_SUPPORT_CKPT_CASE_H

/* A small model and checkpoints of it whose every value tells step, tensor, part and place. */
#include "src/core/ckpt.h"

extern const struct hdt_model_config hdt_ckpt_case_model;

/* Of job 77, number 5, "mine", submitted at site-a. */
struct hdt_ckpt_meta hdt_ckpt_case_meta(int64_t step);

/* Checkpoints of odd steps have the feedback of this edge, too. */
#define HDT_CKPT_CASE_EDGE     "activation_grad-2"
#define HDT_CKPT_CASE_FEEDBACK "feedback-" HDT_CKPT_CASE_EDGE ".bin"

/* Save all tensors, each in `n_pieces` pieces. */
enum hdt_status hdt_ckpt_case_save(const char *dir, const struct hdt_ckpt_meta *meta, int64_t keep,
                                   int n_pieces, struct hdt_error *err);

/* Does it load, and is every value what was saved at its step? -1: it does not load (err says why);
 * else the step. Aborts when a value is another. */
int64_t hdt_ckpt_case_load(const char *path, struct hdt_error *err);

/* Remove a folder with all that is in it. */
void hdt_ckpt_case_remove(const char *path);

/* Names in the folder that contain `part`. */
int hdt_ckpt_case_n_named(const char *dir, const char *part);

#endif /* HDT_TESTS_SUPPORT_CKPT_CASE_H */
