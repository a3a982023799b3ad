"""The stages of loops whose kernels keep more in threadgroup memory than their tiles."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import TileWarning


def attention(stages, rows=16, keys=64, width=16, length=128):
    """The product of the scores goes through threadgroup memory, which is known after the plan."""

    @T.prim_func
    def main(
        Q: T.Tensor((length, width), "float32"),
        K: T.Tensor((length, width), "float32"),
        V: T.Tensor((length, width), "float32"),
        O: T.Tensor((length, width), "float32"),
    ):
        with T.Kernel(T.ceildiv(length, rows), threads=128) as bx:
            q = T.alloc_shared((rows, width), "float32")
            k = T.alloc_shared((keys, width), "float32")
            v = T.alloc_shared((keys, width), "float32")
            scores = T.alloc_fragment((rows, keys), "float32")
            operand = T.alloc_fragment((rows, keys), "float32")
            o = T.alloc_fragment((rows, width), "float32")
            T.copy(Q[bx * rows, 0], q)
            T.clear(o)
            for n in T.Pipelined(T.ceildiv(length, keys), num_stages=stages):
                T.copy(K[n * keys, 0], k)
                full_row = T.GemmWarpPolicy.FullRow
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True, policy=full_row)
                T.copy(scores, operand)
                T.copy(V[n * keys, 0], v)
                T.gemm(operand, v, o, policy=full_row)
            T.copy(o, O[bx * rows, 0])

    return main


@pytest.mark.parametrize("stages", [3, 4])
def test_a_loop_has_fewer_stages_where_fragments_take_memory_too(stages):
    with pytest.warns(TileWarning, match=f"has 2 stages in place of {stages}"):
        kernel = tvmtile.compile(attention(stages), target="metal", execution_backend="emulator")
    q, k, v = (torch.randint(-3, 4, (128, 16)).float() for _ in range(3))
    o = torch.empty(128, 16)
    kernel(q, k, v, o)
    assert torch.equal(o, q @ k.T @ v)
