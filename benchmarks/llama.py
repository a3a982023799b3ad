"""A small model in the manner of Llama on a CPU, by torch and by `tvmtile.torch.replace`.

    python benchmarks/llama.py                                # prints the tables
    python benchmarks/llama.py --write benchmarks/results/llama

One thread each, whose CPU time is measured, so that what else the machine does shows little; the two
take turns. The weights are random.
"""

import os

os.environ.setdefault("TVM_NUM_THREADS", "1")  # before TVM is imported: its pool is made once

import argparse
import copy
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.nn import functional as F

import tvmtile.torch


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.dim = width // heads
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, kv_heads * self.dim, bias=False) for _ in range(2))

    def forward(self, x, angles):
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.dim)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        q, k = rotated(q, angles), rotated(k, angles)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(out.transpose(1, 2).flatten(2))


def rotated(x, angles):
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Block(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.attention = Attention(width, heads, kv_heads)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.gate = nn.Sequential(nn.Linear(width, hidden, bias=False), nn.SiLU())
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, angles):
        x = x + self.attention(self.norms[0](x), angles)
        y = self.norms[1](x)
        return x + self.down(self.gate(y) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocabulary=1000, width=256, layers=2, heads=8, kv_heads=2, hidden=704):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, vocabulary, bias=False)
        frequencies = 10000 ** -torch.arange(0, 1, 2 * heads / width)
        self.register_buffer("frequencies", frequencies)

    def forward(self, tokens):
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * self.frequencies
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, angles)
        return self.head(self.norm(x))


def measured(function, other, rounds=7):
    """The median CPU time of two functions, in milliseconds."""
    times = [], []
    for _ in range(rounds):
        for own, call in zip(times, (function, other), strict=True):
            call()
            start = time.process_time()
            call()
            own.append((time.process_time() - start) * 1e3)
    return [median(own) for own in times]


def relative(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def train(model, tokens):
    model.zero_grad()
    model(tokens).square().mean().backward()


def rows(batch, length, training):
    """Lines of a table: a forward or a training step, by both, and how far the numbers are apart."""
    torch.manual_seed(0)
    reference = Llama(width=512, layers=2, heads=8, kv_heads=2, hidden=1408).train(training)
    model, tokens = copy.deepcopy(reference), torch.randint(1000, (batch, length))
    report = tvmtile.torch.replace(model, tokens)
    train(model, tokens), train(reference, tokens)
    ours, theirs = (
        torch.cat([p.grad.flatten() for p in each.parameters()]) for each in (model, reference)
    )
    gradients = relative(ours, theirs)
    with torch.no_grad():
        error = relative(model(tokens), reference(tokens))
        ours, theirs = measured(lambda: model(tokens), lambda: reference(tokens))
    if training:
        error = max(error, gradients)
        ours, theirs = measured(lambda: train(model, tokens), lambda: train(reference, tokens))
    yield (
        f"| {'forward and backward' if training else 'forward'}, {batch} x {length} tokens | "
        f"{ours:.1f} ms | {theirs:.1f} ms | {theirs / ours:.2f} | {error:.0e} |"
    )
    yield from ("", "```text", str(report), "```", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="write PATH.md, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    head = [
        "| width 512, 2 layers, float32 | tvmtile | torch | ratio | relative error |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines = [f"torch {torch.__version__}, one thread, CPU time, python benchmarks/llama.py", ""]
    for batch, length in ((4, 128), (8, 512), (1, 1)):
        for training in (False, True):
            lines += [*head, *rows(batch, length, training)]
    text = "\n".join(lines)
    print(text)
    if args.write:
        args.write.with_suffix(".md").write_text(text + "\n")


if __name__ == "__main__":
    main()
