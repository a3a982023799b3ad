"""PadSharedRows: the rows of tiles that matrix units read begin in different banks."""

from __future__ import annotations

from typing import Any

from tvm import DataType, ir, tirx

from tvmtile.analysis.shared_tiles import SharedTiles
from tvmtile.ir.kernels import with_kernels
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped, substitute
from tvmtile.passes.memory.shared_memory import allocated_bytes
from tvmtile.passes.tile.lower_tile_op import target_of
from tvmtile.target import gpu

__all__ = ["PadSharedRows"]

_PADDING = 16
"""Bytes, as MLX pads (mlx/backend/metal/kernels/steel/gemm/gemm.h, `tgp_padding_a`)."""


@prim_func_pass(
    "PadSharedRows", requires=(Property.PIPELINED,), establishes=(Property.SHARED_LAYOUTS,)
)
def PadSharedRows(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Make the rows of shared tiles that a matrix unit reads 16 bytes longer, where a block has room.

    A matrix of 8x8 takes a piece of each of eight rows. Where rows are a power of two of bytes long the
    pieces lie in the same banks of threadgroup memory, and are read one after the other. Tiles that
    are seen through views, or whose layout is fixed by hand, stay as they are.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32, 32), "float16")):
        T.func_attr({"target": T.target("metal")})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, thread="threadIdx.x"):
                tile = T.alloc_buffer((32, 32), "float16", scope="shared.dyn")
                acc = T.alloc_buffer((32, 32), "float32", scope="metal.simdgroup")
                T.tile.copy(A[0:32, 0:32], tile[0:32, 0:32])
                T.tile.gemm(tile[0:32, 0:32], tile[0:32, 0:32], acc[0:32, 0:32])
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32, 32), "float16")):
        T.func_attr({"target": T.target("metal")})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, thread="threadIdx.x"):
                tile = T.alloc_buffer((32, 40), "float16", scope="shared.dyn")
                acc = T.alloc_buffer((32, 32), "float32", scope="metal.simdgroup")
                T.tile.copy(A[0:32, 0:32], tile[0:32, 0:32])
                T.tile.gemm(tile[0:32, 0:32], tile[0:32, 0:32], acc[0:32, 0:32])
    ```
    """
    del context
    capability = gpu(target_of(func))
    if capability is None:
        return func

    def pad(kernel: tirx.For) -> tirx.For:
        tiles = SharedTiles.of(kernel)
        padded = {t: _padded(t) for t in tiles.with_rows if t in tiles.read_by_matrices}
        needed = sum(allocated_bytes(padded.get(t, t), capability) for t in tiles.all)
        return substitute(kernel, padded) if needed <= capability.shared_memory else kernel

    return with_kernels(func, pad)


def _padded(tile: ir.Var) -> ir.Var:
    *outer, row = tile.ty.shape
    elements = _PADDING * 8 // int(DataType(str(tile.ty.dtype)).bits)
    return retyped(tile, shape=(*outer, row + elements))
