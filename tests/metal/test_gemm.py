"""GEMM on Metal: every pair of dtypes, transposes, policies, threads, tiles, extents and stages."""

from __future__ import annotations

import itertools
import random as pseudorandom
from typing import NamedTuple

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import TOLERANCE, assert_close, emulated, gemm, operands

MEMORY = 32 * 1024

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


class Case(NamedTuple):
    """One GEMM: a tile of C and a rest, more steps along K than stages and a rest."""

    dtypes: tuple[str, str, str]
    transposes: tuple[bool, bool]
    policy: str
    threads: int
    block: tuple[int, int, int]
    rest: tuple[int, int, int]
    stages: int

    def __str__(self) -> str:
        transposes = "".join("NT"[transposed] for transposed in self.transposes)
        block, rest = ("x".join(map(str, extents)) for extents in (self.block, self.rest))
        return (
            f"{'-'.join(self.dtypes)}-{transposes}-{self.policy}-{self.threads}-{block}+{rest}"
            f"-{self.stages}"
        )

    @property
    def is_possible(self) -> bool:
        """Whether simdgroups can share the accumulator, and the stages fit into memory."""
        m, n, k = self.block
        simdgroups = self.threads // 32
        matrices = [
            (rows, simdgroups // rows) for rows in range(1, simdgroups + 1) if not simdgroups % rows
        ]
        shared = any(not m // 8 % rows and not n // 8 % columns for rows, columns in matrices)
        tiles = (m * k + k * n) * BYTES[self.dtypes[0]]
        registers = m * n // self.threads
        return shared and tiles * max(1, self.stages) <= MEMORY and registers <= 64

    def check(self) -> None:
        """Run it, and compare."""
        m, n, k = (tile + rest for tile, rest in zip(self.block, self.rest, strict=True))
        extents = m, n, k + self.stages * self.block[2]
        dtype, accum_dtype, out_dtype = self.dtypes
        policy = getattr(T.GemmWarpPolicy, self.policy)
        options = {"dtypes": self.dtypes, "transposes": self.transposes, "block": self.block}
        program = gemm(*extents, policy=policy, threads=self.threads, stages=self.stages, **options)
        a, b, expected = operands(*extents, dtype, self.transposes)
        c = torch.empty(expected.shape, dtype=getattr(torch, out_dtype))
        emulated(program)(a, b, c)
        # A float16 accumulator is rounded at every step, which adds up.
        sums = "bfloat16" if accum_dtype == "float16" else accum_dtype
        assert_close(c, expected, max(sums, out_dtype, key=list(TOLERANCE).index))


FACTORS = (
    [
        ("float16", "float32", "float32"),
        ("float16", "float32", "float16"),
        ("float16", "float16", "float16"),
        ("float16", "float16", "float32"),
        ("float16", "float32", "bfloat16"),
        ("bfloat16", "float32", "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("float32", "float32", "float32"),
        ("float32", "float32", "float16"),
    ],
    [(False, False), (False, True), (True, False), (True, True)],
    ["Square", "FullRow", "FullCol"],
    [32, 64, 96, 128, 256, 512],
    [(16, 16, 16), (32, 64, 32), (64, 32, 16), (48, 24, 8), (96, 64, 32), (64, 64, 64)],
    [(0, 0, 0), (5, 0, 0), (0, 11, 0), (0, 0, 7), (8, 3, 4), (1, 1, 1)],
    [0, 1, 2, 3],
)


def possible(count: int) -> list[Case]:
    """So many different random cases that can be compiled."""
    generator = pseudorandom.Random(0)
    found: dict[Case, None] = {}
    while len(found) < count:
        case = Case(*map(generator.choice, FACTORS))
        if case.is_possible:
            found[case] = None
    return list(found)


def cover(cases: list[Case]) -> list[Case]:
    """Some of the cases, which have every pair of values of two factors that all together have."""
    pairs = {case: set(itertools.combinations(enumerate(case), 2)) for case in cases}
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        chosen.append(max(cases, key=lambda case: len(pairs[case] & missing)))
        missing -= pairs[chosen[-1]]
    return chosen


@pytest.mark.parametrize("case", cover(possible(600)), ids=str)
def test_every_pair_of_options(case):
    case.check()


@pytest.mark.nightly
@pytest.mark.parametrize("case", possible(200), ids=str)
def test_random_options(case):
    case.check()
