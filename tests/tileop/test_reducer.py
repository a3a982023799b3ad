"""Reducers on the CPU and on Metal: alloc_reducer, reducer_init, reducer_update, finalize_reducer."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tvmtile.tileop.reduce import reference


@pytest.mark.parametrize("op", ["sum", "max", "min", "bitand", "bitor", "bitxor"])
@pytest.mark.parametrize("init", [None, 3])
def test_rows(tensors, close, op, init, compiled):
    @T.prim_func
    def main(A: T.Tensor((20, 33), "int32"), C: T.Tensor((20,), "int32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_reducer((20,), "int32", op=op)
            result = T.alloc_fragment((20,), "int32")
            T.reducer_init(total, init)
            for i, j in T.Parallel(20, 33):
                T.reducer_update(total[i], A[i, j])
            T.finalize_reducer(total, result)
            T.copy(result, C)

    src, out = tensors((20, 33), "int32"), torch.zeros(20, dtype=torch.int32)
    start = None if init is None else torch.full((20,), init).numpy()
    compiled(main)(src, out)
    close(out, reference(src.numpy(), op, 1, start))


def test_several_loops_contribute(tensors, close, compiled):
    """Contributions are converted; each pass of the outer loop begins again."""

    @T.prim_func
    def main(A: T.Tensor((4, 3, 16), "float16"), C: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_reducer((1,), "float32")
            result = T.alloc_fragment((1,), "float32")
            for n in T.serial(4):
                T.reducer_init(total, 1)
                for k in T.serial(3):
                    for i in T.Parallel(16):
                        T.reducer_update(total[0], A[n, k, i])
                T.finalize_reducer(total, result)
                C[n] = result[0]

    src, out = tensors((4, 3, 16), "float16"), torch.zeros(4)
    compiled(main)(src, out)
    close(out, 1 + src.double().sum((1, 2)).numpy())


def test_older_style(tensors, close, compiled):
    """T.clear, ordinary stores, and the totals read in place."""

    @T.prim_func
    def main(A: T.Tensor((8, 16), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_reducer(8, "float32", op="sum")
            T.clear(total)
            for i, j in T.Parallel(8, 16):
                total[i] += A[i, j]
            T.finalize_reducer(total)
            T.copy(total, C)

    src, out = tensors((8, 16), "float32"), torch.zeros(8)
    compiled(main)(src, out)
    close(out, src.double().sum(1).numpy())
