#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Loss, logits, all gradients and a few AdamW steps of whole models against PyTorch.

The reference runs in float64 from HDT's own first weights, so that what is compared is HDT's float32
rounding: each gradient and the logits within 1e-4 of the reference in their norm, losses within 1e-5.

    model_vs_torch.py [MODEL_DUMP]      the program; tests/support/model_dump of the build folder
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
except ImportError:
    print("model_vs_torch: PyTorch is not installed (python3-torch): skipped")
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import torch_llama  # noqa: E402

GRAD_TOLERANCE = 1e-4
LOSS_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 2e-4
STEPS = 4

BASE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "initializer_range": 0.02, "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
CASES = [
    ("untied, grouped queries", {}, 2, 96),
    ("tied", {"tie_word_embeddings": True}, 2, 64),
    ("one kv head, odd sizes", {"vocab_size": 131, "hidden_size": 60, "intermediate_size": 77,
                                "num_attention_heads": 5, "num_key_value_heads": 1,
                                "head_dim": 12}, 3, 71),
    ("wide heads", {"head_dim": 32, "num_key_value_heads": 4}, 1, 200),
    ("linear rope scaling", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 1, 64),
    ("llama 3 rope scaling", {"rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}}, 1, 128),
]


def relative(got, want):
    return float((got - want).norm() / (want.norm() + 1e-30))


def ours_run(program, folder, config, rows, B, T):
    config_path, rows_path = os.path.join(folder, "config.json"), os.path.join(folder, "rows")
    out_path = os.path.join(folder, "out")
    with open(config_path, "w") as file:
        json.dump(config, file)
    rows.astype(np.int32).tofile(rows_path)
    text = subprocess.run([program, config_path, rows_path, str(B), str(T), str(STEPS), out_path],
                          check=True, stdout=subprocess.PIPE).stdout
    tensors = {name: t.double() for name, t in torch_llama.dump_read(out_path).items()}
    return [float(x) for x in text.split()], tensors


def reference_run(config, ours, rows):
    """Losses of all steps; gradients of the first, and logits before it; model after the last. In
    float64."""
    model = torch_llama.Llama(config).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(ours[name][0].reshape(p.shape))
    tokens = torch.from_numpy(rows[:, :-1].copy())
    labels = torch.from_numpy(rows[:, 1:].copy())
    optimizer = torch_llama.optimizer_of(model)
    losses, grads = [], {}
    with torch.no_grad():
        logits = model.logits(tokens[:1])[0, -1]
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(tokens, labels)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            grads = {name: p.grad.clone() for name, p in model.named_parameters()}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses, grads, logits, model


def case_check(program, folder, config, B, T):
    rows = np.random.RandomState(B * 1000 + T).randint(0, config["vocab_size"], (B, T + 1))
    our_losses, ours = ours_run(program, folder, config, rows, B, T)
    our_logits = ours.pop("logits")
    losses, grads, logits, model = reference_run(config, ours, rows)
    names = {name for name, _ in model.named_parameters()}
    if names != set(ours):
        raise SystemExit("tensors differ: %s" % sorted(names ^ set(ours)))
    worst_loss = max(abs(a - b) / b for a, b in zip(our_losses, losses))
    worst_logits = relative(our_logits, logits)
    worst_grad = max((relative(ours[n][1].reshape(g.shape), g), n) for n, g in grads.items())
    worst_weight = max((relative(ours[n][2].reshape(p.shape), p.detach()), n)
                       for n, p in model.named_parameters())
    return worst_loss, worst_logits, worst_grad, worst_weight


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "tests/support/model_dump"
    failed = 0
    torch.set_num_threads(2)
    for title, change, B, T in CASES:
        with tempfile.TemporaryDirectory() as folder:
            loss, logits, grad, weight = case_check(program, folder, {**BASE, **change}, B, T)
        good = (loss < LOSS_TOLERANCE and logits < GRAD_TOLERANCE and grad[0] < GRAD_TOLERANCE and
                weight[0] < WEIGHT_TOLERANCE)
        failed += not good
        print("%-4s %-26s loss %.1e  logits %.1e  gradient %.1e (%s)  weights after %d steps %.1e" % (
            "ok" if good else "FAIL", title, loss, logits, grad[0], grad[1], STEPS, weight[0]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
