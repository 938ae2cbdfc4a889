/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embedding, backward. Rows are sorted by their token, which keeps the order of those that have the
 * same one; then each token's rows stand together, and one block for each range of columns adds
 * them up in that order. No two blocks write to one place, so that sums have the order that the
 * contract gives, and a token that is in thousands of rows keeps as many loads under way as others
 * do.
 */
#include "runtime/cuda/cuda_rows.h"
#include "runtime/cuda/cuda_vec.cuh"

#define NVTX_DISABLE /* its functions are visible symbols, and nobody asked for ranges */
#include <cub/device/device_radix_sort.cuh>

using namespace hdt_cuda;

namespace
{

constexpr int THREADS = 128;
constexpr int AHEAD = 8; /* rows that are loaded before the first is added */
constexpr size_t ALIGN = 256;

size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

__global__ void __launch_bounds__(THREADS) rows_kernel(int n, int32_t *rows)
{
    const int i = static_cast<int>(blockIdx.x) * THREADS + static_cast<int>(threadIdx.x);

    if (i < n) {
        rows[i] = i;
    }
}

/* A block for each place in the sorted rows and each range of columns; those whose place is not a
 * token's first end at once. */
template <int N>
__global__ void __launch_bounds__(THREADS) sums_kernel(const int32_t *tokens, const int32_t *rows,
                                                       const float *dout, int n, int c, float *dw)
{
    const int first = static_cast<int>(blockIdx.x), token = tokens[first];
    const int col = static_cast<int>(blockIdx.y * THREADS + threadIdx.x) * N;
    float sums[N];

    if (col >= c || (first > 0 && tokens[first - 1] == token)) {
        return;
    }
    float *const out = dw + static_cast<size_t>(token) * c + col;

    load(out, sums);
    for (int i = first; i < n && tokens[i] == token; i += AHEAD) {
        float ahead[AHEAD][N];
        bool is_mine[AHEAD];

#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            is_mine[k] = i + k < n && tokens[i + k] == token;
            if (is_mine[k]) {
                load(dout + static_cast<size_t>(rows[i + k]) * c + col, ahead[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
#pragma unroll
            for (int j = 0; j < N; j++) {
                sums[j] = is_mine[k] ? sums[j] + ahead[k][j] : sums[j];
            }
        }
    }
    store(out, sums);
}

template <int N>
cudaError_t sums_launch(cudaStream_t stream, const int32_t *tokens, const int32_t *rows,
                        const float *dout, int n, int c, float *dw)
{
    const int n_ranges = (c / N + THREADS - 1) / THREADS;
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>(n), static_cast<unsigned>(n_ranges)), THREADS);

    return cudaLaunchKernelEx(&config, sums_kernel<N>, tokens, rows, dout, n, c, dw);
}

/* Bytes that the sort wants; 0: it cannot. */
size_t sort_bytes(int n)
{
    size_t bytes = 0;
    const int32_t *const none = nullptr;
    int32_t *const nothing = nullptr;

    return cub::DeviceRadixSort::SortPairs(nullptr, bytes, none, nothing, none, nothing, n) ==
                   cudaSuccess
               ? bytes
               : 0;
}

} // namespace

size_t hdt_cuda_embedding_scratch(int n)
{
    return 3 * aligned(static_cast<size_t>(n) * sizeof(int32_t)) + sort_bytes(n);
}

cudaError_t hdt_cuda_embedding_bwd(cudaStream_t stream, const int32_t *tokens, const float *dout,
                                   int n, int c, void *scratch, float *dw)
{
    const size_t array = aligned(static_cast<size_t>(n) * sizeof(int32_t));
    uint8_t *const base = static_cast<uint8_t *>(scratch);
    int32_t *const rows = reinterpret_cast<int32_t *>(base);
    int32_t *const sorted_rows = reinterpret_cast<int32_t *>(base + array);
    int32_t *const sorted = reinterpret_cast<int32_t *>(base + 2 * array);
    size_t bytes = sort_bytes(n);
    cudaError_t code;

    if (n == 0) {
        return cudaSuccess;
    }
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>((n + THREADS - 1) / THREADS)), THREADS);

    code = cudaLaunchKernelEx(&config, rows_kernel, n, rows);
    if (code == cudaSuccess) {
        code = cub::DeviceRadixSort::SortPairs(base + 3 * array, bytes, tokens, sorted,
                                               static_cast<const int32_t *>(rows), sorted_rows, n,
                                               0, 32, stream);
    }
    if (code != cudaSuccess) {
        return code;
    }
    return is_aligned(dout, c) && is_aligned(dw, c)
               ? sums_launch<4>(stream, sorted, sorted_rows, dout, n, c, dw)
               : sums_launch<1>(stream, sorted, sorted_rows, dout, n, c, dw);
}
