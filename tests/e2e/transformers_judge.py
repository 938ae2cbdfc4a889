#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does Hugging Face transformers see the same model in an HDT checkpoint as HDT does?

usage: transformers_judge.py CHECKPOINT TOKENS.bin EVAL.json [GENERATED.json]

CHECKPOINT    folder of a checkpoint or of `hdt export`
TOKENS.bin    uint16 tokens
EVAL.json     what `hdt eval --checkpoint CHECKPOINT --data TOKENS.bin --max-tokens N --json` printed
GENERATED.json  what `hdt generate --temperature 0 --json` printed (byte tokens)

Exits 0 when the losses agree to 1e-5 relative and the greedy texts are equal, 77 when transformers
is not installed. Needs a PyTorch as new as transformers wants.
"""
import json
import struct
import sys

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)


def main():
    folder, tokens_path, eval_path = sys.argv[1:4]
    expected = json.load(open(eval_path))
    n = expected["tokens"]
    tokens = torch.tensor(struct.unpack(f"<{n}H", open(tokens_path, "rb").read()[: 2 * n]))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    seq = model.config.max_position_embeddings
    total, count = 0.0, 0
    with torch.no_grad():
        for at in range(0, n - 1, seq):
            x, y = tokens[at : at + seq], tokens[at + 1 : at + 1 + seq]
            x = x[: len(y)]
            logits = model(input_ids=x[None].long()).logits[0].double()
            total += float(torch.nn.functional.cross_entropy(logits, y.long(), reduction="sum"))
            count += len(y)
    loss = total / count
    error = abs(loss / expected["loss"] - 1)
    print(f"loss: transformers {loss:.9f}, hdt {expected['loss']:.9f}, relative difference {error:.2g}")
    good = error < 1e-5 and count == n - 1
    if len(sys.argv) > 4:
        text = json.load(open(sys.argv[4]))["text"]
        ids = list(text.encode())
        n_prompt = len(ids) - json.load(open(sys.argv[4]))["tokens"]
        with torch.no_grad():
            out = model.generate(torch.tensor([ids[:n_prompt]]), do_sample=False, use_cache=True,
                                 max_new_tokens=len(ids) - n_prompt, eos_token_id=None, pad_token_id=0)
        same = out[0].tolist() == ids
        print(f"greedy text of {len(ids) - n_prompt} tokens: {'equal' if same else 'DIFFERS'}")
        good = good and same
    sys.exit(0 if good else 1)


main()
