"""Reducers on the CPU and on Metal: alloc_reducer, reducer_init, reducer_update, finalize_reducer."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tvmtile.errors import InvalidOperand, InvalidValue, ShapeMismatch, UnsupportedDtype
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


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        (lambda tile: T.alloc_reducer((8,), "int32", op="mean"), InvalidOperand, "called 'mean'"),
        (lambda tile: T.alloc_reducer((8,), "float32", op="bitor"), UnsupportedDtype, "no bits"),
        (T.reducer_init, InvalidOperand, r"tile\[8\] float32 is not a reducer"),
        (lambda tile: T.reducer_update(tile[0], 1), InvalidOperand, "is not a reducer"),
        (
            lambda tile: T.reducer_update(T.alloc_reducer((8,), "int32"), 1),
            InvalidOperand,
            "is not an element",
        ),
        (
            lambda tile: T.finalize_reducer(T.alloc_reducer((4,), "float32"), tile),
            ShapeMismatch,
            "are tiles of different shapes",
        ),
        (
            lambda tile: T.finalize_reducer(T.alloc_reducer((8,), "float32"), tile, batch=0),
            InvalidValue,
            "batch must be >= 1, and is 0",
        ),
        (
            lambda tile: T.finalize_reducer(T.alloc_reducer((8,), "float32"), tile, batch=16),
            InvalidValue,
            "batch exceeds total output elements, 8 of",
        ),
        (
            lambda tile: T.finalize_reducer(T.alloc_reducer((8,), "float32"), tile, batch=3),
            InvalidValue,
            "batch must evenly divide the 8 totals of",
        ),
        (
            lambda tile: T.reducer_init(T.alloc_reducer((8,), "float32"), T.float16(1)),
            UnsupportedDtype,
            "a value of float16 does not match reducer",
        ),
    ],
)
def test_mistakes(statement, error, message):
    with pytest.raises(error, match=message):

        @T.prim_func
        def main(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                tile = T.alloc_fragment((8,), "float32")
                statement(tile)
