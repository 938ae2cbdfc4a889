/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Four children: half the levels of a binary heap, and a node's children share a cache line. */
#include "src/base/buf.h"
#include "src/sim/sim_heap.h"

#include <stdlib.h>
#include <string.h>

#define WIDTH 4

void hdt_sim_heap_init(struct hdt_sim_heap *heap, size_t n_slots)
{
    heap->entries = hdt_calloc(n_slots + 1, sizeof(heap->entries[0]));
    heap->pos = hdt_calloc(n_slots + 1, sizeof(heap->pos[0]));
    heap->n = 0;
    heap->popped = SIZE_MAX;
}

void hdt_sim_heap_release(struct hdt_sim_heap *heap)
{
    free(heap->entries);
    free(heap->pos);
    memset(heap, 0, sizeof(*heap));
}

static bool entry_before(const struct hdt_sim_heap_entry *a, const struct hdt_sim_heap_entry *b)
{
    return a->at_s < b->at_s || (a->at_s == b->at_s && a->slot < b->slot);
}

static void entry_put(struct hdt_sim_heap *heap, size_t i, struct hdt_sim_heap_entry entry)
{
    heap->entries[i] = entry;
    heap->pos[entry.slot] = (uint32_t)i + 1;
}

static void sift_up(struct hdt_sim_heap *heap, size_t i, struct hdt_sim_heap_entry entry)
{
    while (i > 0) {
        size_t parent = (i - 1) / WIDTH;

        if (!entry_before(&entry, &heap->entries[parent])) {
            break;
        }
        entry_put(heap, i, heap->entries[parent]);
        i = parent;
    }
    entry_put(heap, i, entry);
}

static void sift_down(struct hdt_sim_heap *heap, size_t i, struct hdt_sim_heap_entry entry)
{
    for (;;) {
        size_t first = WIDTH * i + 1, last = first + WIDTH, best = first;

        if (first >= heap->n) {
            break;
        }
        last = last < heap->n ? last : heap->n;
        for (size_t child = first + 1; child < last; child++) {
            if (entry_before(&heap->entries[child], &heap->entries[best])) {
                best = child;
            }
        }
        if (!entry_before(&heap->entries[best], &entry)) {
            break;
        }
        entry_put(heap, i, heap->entries[best]);
        i = best;
    }
    entry_put(heap, i, entry);
}

/* What stands at i has gone; the entry takes its place. */
static void entry_replace(struct hdt_sim_heap *heap, size_t i, struct hdt_sim_heap_entry entry)
{
    if (entry_before(&entry, &heap->entries[i])) {
        sift_up(heap, i, entry);
    } else {
        sift_down(heap, i, entry);
    }
}

void hdt_sim_heap_set(struct hdt_sim_heap *heap, size_t slot, double at_s)
{
    struct hdt_sim_heap_entry entry = {at_s, (uint32_t)slot};
    size_t i = heap->pos[slot];

    if (i == 0 && heap->popped != SIZE_MAX) {
        i = heap->pos[heap->popped];
        heap->pos[heap->popped] = 0;
        heap->popped = SIZE_MAX;
    } else if (slot == heap->popped) {
        heap->popped = SIZE_MAX;
    }
    if (i == 0) {
        sift_up(heap, heap->n++, entry);
    } else {
        entry_replace(heap, i - 1, entry);
    }
}

void hdt_sim_heap_remove(struct hdt_sim_heap *heap, size_t slot)
{
    size_t i = heap->pos[slot];
    struct hdt_sim_heap_entry last;

    if (i == 0) {
        return;
    }
    heap->popped = slot == heap->popped ? SIZE_MAX : heap->popped;
    heap->pos[slot] = 0;
    last = heap->entries[--heap->n];
    if (last.slot != slot) {
        entry_replace(heap, i - 1, last);
    }
}

bool hdt_sim_heap_pop(struct hdt_sim_heap *heap, size_t *slot, double *at_s)
{
    if (heap->popped != SIZE_MAX) {
        hdt_sim_heap_remove(heap, heap->popped);
    }
    if (heap->n == 0) {
        return false;
    }
    *slot = heap->popped = heap->entries[0].slot;
    *at_s = heap->entries[0].at_s;
    return true;
}
