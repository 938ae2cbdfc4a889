/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_SIM_SIM_HEAP_H
#define HDT_SIM_SIM_HEAP_H

/* When each of a fixed number of slots is due next: a heap with four children a node, in which a
 * slot's time can be changed. Nothing is allocated after init. Of two at one time the lower slot
 * comes first. What was popped keeps its place until the next call, which mostly sets a slot: that
 * one takes it, and the heap is put in order once, not twice. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hdt_sim_heap_entry {
    double at_s;
    uint32_t slot;
};

struct hdt_sim_heap {
    struct hdt_sim_heap_entry *entries;
    uint32_t *pos; /* by slot: in entries, plus one; 0: not due */
    size_t n;
    size_t popped; /* slot that is only there for its place; SIZE_MAX: none */
};

void hdt_sim_heap_init(struct hdt_sim_heap *heap, size_t n_slots);
void hdt_sim_heap_release(struct hdt_sim_heap *heap);

/* The slot is due at this time, in place of any other. */
void hdt_sim_heap_set(struct hdt_sim_heap *heap, size_t slot, double at_s);
/* It is not due any more; it need not have been. */
void hdt_sim_heap_remove(struct hdt_sim_heap *heap, size_t slot);
/* Take the earliest; false: none is due. */
bool hdt_sim_heap_pop(struct hdt_sim_heap *heap, size_t *slot, double *at_s);

#endif /* HDT_SIM_SIM_HEAP_H */
