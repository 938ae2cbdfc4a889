#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loss, logits, gradients and a training curve of HDT beside those of PyTorch.

    peer_numerics.py MODEL_DUMP FOLDER TEXT BACKEND STEPS LAYERS

All start from HDT's own first weights and see the same tokens of TEXT. The model is that of
transformers, in float64 for what is true; without transformers, and on the cpu, the plain one of
tests/support. Prints rows "name value goal": goals are upper limits. Needs room for three times
the weights in FOLDER.
"""
import json
import os
import subprocess
import sys

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import torch_llama  # noqa: E402

try:
    import transformers
except ImportError:
    transformers = None

B, T, V = 4, 512, 8192
LR, WARMUP = 3e-4, 40
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "vocab_size": V, "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12,
    "num_key_value_heads": 4, "max_position_embeddings": T, "rms_norm_eps": 1e-5,
    "initializer_range": 0.02, "rope_theta": 10000.0, "tie_word_embeddings": False,
}


def tokens_of(path, n_batches):
    """Pairs of neighbouring bytes, (n_batches, B, T + 1)."""
    text = np.fromfile(path, dtype=np.uint8).astype(np.int64)
    pairs = (text[:-1] * 256 + text[1:]) % V
    n = n_batches * B * (T + 1)
    return np.resize(pairs, n).reshape(n_batches, B, T + 1)


def ours_run(program, folder, backend, precision, steps):
    """Losses, and what torch_llama.dump_read says."""
    out = os.path.join(folder, "out-" + precision)
    text = subprocess.run([program, os.path.join(folder, "config.json"), os.path.join(folder, "tokens"),
                           str(B), str(T), str(steps), out, backend, precision, str(LR), str(WARMUP)],
                          check=True, stdout=subprocess.PIPE).stdout
    tensors = torch_llama.dump_read(out)
    os.unlink(out)
    return [float(x) for x in text.split()], tensors


class Peer:
    """A PyTorch model of HDT's first weights."""

    def __init__(self, config, device, weights, dtype):
        self.device = device
        if transformers and device != "cpu":
            settings = transformers.LlamaConfig(**config)
            self.model = transformers.LlamaForCausalLM._from_config(
                settings, attn_implementation="eager" if dtype == torch.float64 else "sdpa")
        else:
            self.model = torch_llama.Llama(config)
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(weights[name][0].reshape(p.shape))
        self.model.to(device=device, dtype=dtype)

    def logits_loss(self, rows):
        """Logits behind the first row's tokens, and the mean loss."""
        tokens = torch.from_numpy(rows[:, :-1].copy()).to(self.device)
        labels = torch.from_numpy(rows[:, 1:].copy()).to(self.device)
        is_plain = isinstance(self.model, torch_llama.Llama)
        logits = self.model.logits(tokens) if is_plain else self.model(input_ids=tokens).logits
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = torch.nn.functional.cross_entropy(wide.flatten(0, 1), labels.flatten())
        return logits[0, -1].detach().double().cpu(), loss

    def first(self, rows):
        """Loss, gradients and logits of the first step, in float64 on the host."""
        logits, loss = self.logits_loss(rows)
        loss.backward()
        grads = {n: p.grad.double().cpu() for n, p in self.model.named_parameters()}
        return loss.item(), grads, logits

    def curve(self, batches, autocast):
        optimizer, losses = torch_llama.optimizer_of(self.model), []
        for step, rows in enumerate(batches, 1):
            for group in optimizer.param_groups:
                group["lr"] = LR * min(1, step / WARMUP)
            optimizer.zero_grad()
            with torch.autocast(self.device, torch.bfloat16, enabled=autocast):
                loss = self.logits_loss(rows)[1]
            loss.backward()
            losses.append(loss.item())
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
        return losses


def distance(grads, truth):
    """Of all gradients as one vector, relative; and of the worst tensor by itself."""
    parts = {n: (grads[n].reshape(g.shape).double() - g).norm() for n, g in truth.items()}
    whole = sum(d ** 2 for d in parts.values()) ** 0.5 / sum(g.norm() ** 2 for g in truth.values()) ** 0.5
    return float(whole), max(float(d / truth[n].norm()) for n, d in parts.items())


def apart(ours, theirs):
    """Largest relative distance of two curves, of means of ten steps each."""
    a, b = (np.array(x)[: len(x) // 10 * 10].reshape(-1, 10).mean(1) for x in (ours, theirs))
    return float(np.max(np.abs(a / b - 1)))


def row(name, value, goal):
    print(f"{name}\t{value:.4g}\t{goal}", flush=True)


def main():
    program, folder, text, backend, steps, layers = sys.argv[1:7]
    steps, device = int(steps), "cuda" if backend == "cuda" else "cpu"
    config = {**CONFIG, "num_hidden_layers": int(layers)}
    batches = tokens_of(text, steps)
    batches.astype(np.int32).tofile(os.path.join(folder, "tokens"))
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    losses, ours = ours_run(program, folder, backend, "fp32", steps)
    true_loss, truth, true_logits = Peer(config, device, ours, torch.float64).first(batches[0])
    grads = {n: t[1] for n, t in ours.items() if n != "logits"}
    if set(grads) != set(truth):
        sys.exit("tensors differ: %s" % sorted(set(grads) ^ set(truth)))
    row("fp32 loss", abs(losses[0] / true_loss - 1), 1e-4)
    row("fp32 logits", float((ours["logits"].double() - true_logits).norm() / true_logits.norm()), 1e-4)
    row("fp32 gradient, worst tensor", distance(grads, truth)[1], 1e-4)
    theirs = Peer(config, device, ours, torch.float32).curve(batches, False)
    row(f"fp32 {steps} steps", apart(losses, theirs), 5e-3)
    if device == "cpu":
        return

    losses16, ours16 = ours_run(program, folder, backend, "bf16", steps)
    grads16 = {n: t[1] for n, t in ours16.items()}
    whole, worst = distance(grads16, truth)
    for name, dtype, autocast in (("bf16", torch.bfloat16, False), ("autocast", torch.float32, True)):
        peer = Peer(config, device, ours, dtype)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss, their_grads, _ = peer.first(batches[0])
        their_whole, their_worst = distance(their_grads, truth)
        print(f"# {name}: loss off by {abs(loss / true_loss - 1):.2e} (ours {abs(losses16[0] / true_loss - 1):.2e}), "
              f"gradient {their_whole:.3e} (ours {whole:.3e}), worst tensor {their_worst:.3e} (ours {worst:.3e})")
        row(f"bf16 gradient's distance by PyTorch's {name}", whole / their_whole, 1)
    theirs16 = Peer(config, device, ours, torch.float32).curve(batches, True)
    print(f"# autocast's curve from fp32's: {apart(theirs16, theirs):.2e}")
    row(f"bf16 {steps} steps", apart(losses16, theirs), 5e-3)


main()
