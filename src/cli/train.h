/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_TRAIN_H
#define HDT_CLI_TRAIN_H

/*
 * The rate of a link by a train: tensors that follow each other without a pause, of which only the
 * receiving end's clock is read.
 *
 * It is the dispersion of a packet train, as C. Dovrolis, P. Ramanathan and D. Moore measure it
 * ("Packet-dispersion techniques and a capacity-estimation methodology", IEEE/ACM Transactions on
 * Networking 12(6), 2004): bytes that arrived between two moments, by the time between them. When
 * something was handed over, or acknowledged to the program, says how large buffers are.
 *
 * A tensor is not a packet. Its chunks ride on several streams, so that when its last one arrives,
 * parts of those behind it are there already: a chunk on each other stream, and many when its own
 * stream waits for a lost packet. Between the first tensor and the last, behind which nothing is,
 * that makes the link look faster, by a tenth where tensors have few chunks; between any two it
 * makes it look like anything. So chunks are counted, as they come: samples of how many bytes were
 * there when. The first quarter only fills the link (TCP finds its rate, the streams get out of
 * step), the last quarter keeps it full, and the middle half is measured.
 *
 * Where there are too few samples the arrivals of tensors have to do: between two in the middle
 * what is there beyond them is the same at both, but for chance. Plain functions, no state.
 */
#include <stddef.h>
#include <stdint.h>

/* Shorter ones cannot be measured: one tensor to begin, two that are measured, one to end. */
#define HDT_TRAIN_LEAST 4

/* Arrivals between which is measured, counted from 0: `last` - `first` tensors came after the first
 * and up to the last. */
struct hdt_train_marks {
    int64_t first, last;
};

/* Of a train of n tensors, n >= 1; both are the same where it is too short to measure. */
struct hdt_train_marks hdt_train_marks(int64_t n);

/* How many tensors of `bytes` a train needs, so that chance makes some 2 % of what is measured on
 * n_streams (0 counts as 1) that carry chunks of chunk_bytes. */
int64_t hdt_train_length(int64_t bytes, unsigned n_streams, int64_t chunk_bytes);

/* So many bytes were there at a time. */
struct hdt_train_sample {
    double at_s, bytes;
};

/* How long the middle half of a train took to arrive, by samples in order, of which the first was
 * taken before it and the last behind it; seconds. 0: there are too few to say. */
double hdt_train_middle_s(const struct hdt_train_sample *samples, size_t n);

#endif /* HDT_CLI_TRAIN_H */
