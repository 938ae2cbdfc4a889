# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch Llama that takes Hugging Face tensor names: the judge of HDT's arithmetic and the
peer of its speed. Written to be read beside a config.json, with the operations a user of PyTorch
1.13 would choose."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def rope_frequencies(config):
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = config.get("rope_theta", 10000.0)
    freqs = theta ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
    scaling = config.get("rope_scaling")
    if not scaling:
        return freqs
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = scaling["factor"]
    if kind == "linear":
        return freqs / factor
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    wavelen = 2 * math.pi / freqs
    smooth = (original / wavelen - low) / (high - low)
    mixed = (1 - smooth) * freqs / factor + smooth * freqs
    return torch.where(wavelen > original / low, freqs / factor,
                       torch.where(wavelen < original / high, freqs, mixed))


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_heads, self.n_kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.head = c.get("head_dim") or c["hidden_size"] // self.n_heads
        hidden = c["hidden_size"]
        self.q_proj = nn.Linear(hidden, self.n_heads * self.head, bias=False)
        self.k_proj = nn.Linear(hidden, self.n_kv * self.head, bias=False)
        self.v_proj = nn.Linear(hidden, self.n_kv * self.head, bias=False)
        self.o_proj = nn.Linear(self.n_heads * self.head, hidden, bias=False)

    def forward(self, x, cos, sin, mask):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.n_heads, self.head).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.n_kv, self.head).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.n_kv, self.head).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(self.n_heads // self.n_kv, 1)
        v = v.repeat_interleave(self.n_heads // self.n_kv, 1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head) + mask
        out = torch.softmax(scores, -1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Mean loss of tokens (B, T) against labels (B, T)."""

    def __init__(self, config):
        super().__init__()
        c = config
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.model.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c.get("tie_word_embeddings"):
            self.lm_head.weight = self.model.embed_tokens.weight
        self.freqs = rope_frequencies(c)

    def logits(self, tokens):
        """(B, T, V)"""
        T = tokens.shape[1]
        angles = torch.outer(torch.arange(T, dtype=torch.float64), self.freqs)
        x = self.model.embed_tokens(tokens)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = torch.full((T, T), float("-inf"), dtype=x.dtype).triu(1)
        for block in self.model.layers:
            x = block(x, cos, sin, mask)
        return self.lm_head(self.model.norm(x))

    def forward(self, tokens, labels):
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), labels.flatten())


def dump_read(path):
    """What tests/support/model_dump wrote: name -> (3, rows, cols) of first weights, gradients and last
    weights; "logits" -> (V)."""
    tensors = {}
    with open(path, "rb") as file:
        for line in iter(file.readline, b""):
            name, rows, cols = line.decode().split()
            shape = (int(cols),) if name == "logits" else (3, int(rows), int(cols))
            data = np.frombuffer(file.read(4 * math.prod(shape)), dtype=np.float32)
            tensors[name] = torch.from_numpy(data.reshape(shape).copy())
    return tensors


def optimizer_of(model, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
    """AdamW with decay on matrices only."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": weight_decay},
                              {"params": vectors, "weight_decay": 0.0}],
                             lr=lr, betas=betas, eps=eps)
