#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The same work as bench_cpu_train in plain PyTorch: fp32 Llama, AdamW, clipping.

    peer_torch.py CONFIG.json B T MICRO_BATCHES STEPS THREADS

Prints tokens per second of each step after one step of warm-up, one a line."""
import json
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import torch_llama  # noqa: E402


def main():
    with open(sys.argv[1]) as file:
        config = json.load(file)
    B, T, n_micro, n_steps, n_threads = (int(x) for x in sys.argv[2:7])
    torch.set_num_threads(n_threads)
    torch.manual_seed(1)
    model = torch_llama.Llama(config)
    optimizer = torch_llama.optimizer_of(model)
    for step in range(n_steps + 1):
        start = time.monotonic()
        optimizer.zero_grad()
        for _ in range(n_micro):
            tokens = torch.randint(config["vocab_size"], (B, T))
            loss = model(tokens, tokens) / n_micro
            loss.backward()
            loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step > 0:
            print("%.1f" % (n_micro * B * T / (time.monotonic() - start)), flush=True)


if __name__ == "__main__":
    main()
