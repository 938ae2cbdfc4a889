/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same all-reduce by Gloo: a ring over TCP, as its users get it.
 *   peer_gloo DIR ADDRESS RANK SIZE MiB ROUNDS
 * DIR is a folder that all ranks share, ADDRESS the site's own. Prints the seconds of each round.
 */
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void round_run(const std::shared_ptr<gloo::Context> &context, std::vector<float> &x,
                      unsigned tag, bool is_shown)
{
    using clock = std::chrono::steady_clock;
    gloo::AllreduceOptions options(context);
    gloo::BarrierOptions barrier(context);

    for (size_t i = 0; i < x.size(); i++) {
        x[i] =
            static_cast<float>((i * 2654435761u >> 7) % 1024) + static_cast<float>(context->rank);
    }
    barrier.setTag(2 * tag);
    gloo::barrier(barrier);
    options.setOutput(x.data(), x.size());
    options.setReduceFunction(
        static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    options.setTag(2 * tag + 1);
    const auto begin = clock::now();
    gloo::allreduce(options);
    const double took = std::chrono::duration<double>(clock::now() - begin).count();
    if (is_shown) {
        std::printf("%.6f\n", took);
        std::fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        std::fprintf(stderr, "usage: peer_gloo DIR ADDRESS RANK SIZE MiB ROUNDS\n");
        return 2;
    }
    try {
        gloo::rendezvous::FileStore store(argv[1]);
        auto device = gloo::transport::tcp::CreateDevice(argv[2]);
        auto context = std::make_shared<gloo::rendezvous::Context>(
            static_cast<int>(std::strtol(argv[3], nullptr, 10)),
            static_cast<int>(std::strtol(argv[4], nullptr, 10)));
        std::vector<float> x(std::strtoul(argv[5], nullptr, 10) << 18);
        const long rounds = std::strtol(argv[6], nullptr, 10);

        context->setTimeout(std::chrono::seconds(120));
        context->connectFullMesh(store, device);
        for (long k = 0; k <= rounds; k++) {
            round_run(context, x, static_cast<unsigned>(k), k > 0);
        }
    } catch (const std::exception &e) {
        std::fprintf(stderr, "peer_gloo: %s\n", e.what());
        return 1;
    }
    return 0;
}
