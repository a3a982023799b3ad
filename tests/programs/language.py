"""What names, words and numbers of the language mean, which other programs do not show."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program


@program(
    tags={"statements"},
    parameters={"dtype": ["int32", "float32", "uint64", "int64", "int8", "float16"]},
    examples=[{}, {"dtype": "uint64"}, {"dtype": "float16"}],
    inputs={
        "A": lambda rng, shape: [0, 3, 0, 1, 2, 0, 0, 7],
        "N": lambda rng, shape: [0, 3, 0, -1, 2, 1, 1000, 2**20],
    },
    fast=["metal"],
)
def numbers_as_conditions(
    A: T.Tensor((8,), dtype), N: T.Tensor((8,), "int32"), R: T.Tensor((5, 8), "int32")
):
    """They are true where they are not 0."""
    with T.Kernel(1):
        for i in T.serial(8):
            if A[i]:
                R[0, i] = 1
            elif A[(i + 1) % 8]:
                R[0, i] = 2
            else:
                R[0, i] = 3
            R[1, i] = 1 if A[i] else 2
            if A[i] and A[(i + 1) % 8]:
                R[1, i] += 10
            if A[i] or A[(i + 1) % 8]:
                R[1, i] += 100
            if not A[i]:
                R[1, i] += 1000
            left = T.alloc_var("int32", T.min(T.max(N[i], 0), 5))
            while left:
                left -= 1
                R[2, i] += 2
            n = T.alloc_var("int32", init=N[i])
            count = T.alloc_var("int32", init=0)
            while n > 1 and count < 30:
                n = n // 2
                count += 1
            R[3, i] = count
