"""Numbers as conditions: true where they are not 0, wherever a condition may stand."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T

VALUES = [0, 3, 0, -1, 2, 0, 0, 7]
HOLDS = [value != 0 for value in VALUES]


def run(program, dtype):
    values = torch.tensor(VALUES).to(getattr(torch, dtype))
    result = torch.zeros(len(VALUES), dtype=torch.int32)
    tvmtile.compile(program)(values, result)
    return result.tolist()


@pytest.mark.full(but=3)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64", "int8", "float32", "float16"])
def test_branch(dtype: str) -> None:
    @T.prim_func
    def program(A: T.Tensor((8,), dtype), R: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in T.serial(8):
                if A[i]:
                    R[i] = 1
                elif A[(i + 1) % 8]:
                    R[i] = 2
                else:
                    R[i] = 3

    expected = [
        1 if HOLDS[i] else 2 if HOLDS[(i + 1) % len(HOLDS)] else 3 for i in range(len(HOLDS))
    ]
    assert run(program, dtype) == expected


def test_operators_and_choice() -> None:
    @T.prim_func
    def program(A: T.Tensor((8,), "int32"), R: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in T.serial(8):
                R[i] = 1 if A[i] else 2
                if A[i] and A[(i + 1) % 8]:
                    R[i] += 10
                if A[i] or A[(i + 1) % 8]:
                    R[i] += 100
                if not A[i]:
                    R[i] += 1000

    expected = []
    for i, holds in enumerate(HOLDS):
        following = HOLDS[(i + 1) % len(HOLDS)]
        expected.append(
            (1 if holds else 2)
            + 10 * (holds and following)
            + 100 * (holds or following)
            + 1000 * (not holds)
        )
    assert run(program, "int32") == expected


def test_loop() -> None:
    @T.prim_func
    def program(A: T.Tensor((8,), "int32"), R: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in T.serial(8):
                left = T.alloc_var("int32", T.max(A[i], 0))
                while left:
                    left -= 1
                    R[i] += 2

    assert run(program, "int32") == [2 * max(value, 0) for value in VALUES]
