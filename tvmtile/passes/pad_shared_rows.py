"""PadSharedRows: the rows of tiles that matrix units read begin in different banks."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import DataType, ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.passes.kernels import prim_func_pass, with_kernels
from tvmtile.passes.lower_tile_op import target_of
from tvmtile.passes.plan_shared_memory import allocated_bytes
from tvmtile.rewriting import retyped, substitute
from tvmtile.scopes import is_shared
from tvmtile.target import gpu
from tvmtile.tileop.operands import buffer_of, constant
from tvmtile.tileop.registry import operator_of

__all__ = ["PadSharedRows"]

_PADDING = 16
"""Bytes, as MLX pads (mlx/backend/metal/kernels/steel/gemm/gemm.h, `tgp_padding_a`)."""


@prim_func_pass("PadSharedRows")
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
        tiles = _Tiles(kernel)
        padded = {tile: _padded(tile) for tile in tiles.read_by_matrices}
        needed = sum(allocated_bytes(padded.get(tile, tile)) for tile in tiles.all)
        return substitute(kernel, padded) if needed <= capability.shared_memory else kernel

    return with_kernels(func, pad)


def _padded(tile: ir.Var) -> ir.Var:
    *outer, row = tile.ty.shape
    elements = _PADDING * 8 // int(DataType(str(tile.ty.dtype)).bits)
    return retyped(tile, shape=(*outer, row + elements))


class _Tiles:
    """The shared tiles of a kernel, and those whose rows can be longer."""

    def __init__(self, kernel: tirx.For) -> None:
        self.all: list[ir.Var] = []
        self._read: set[ir.Var] = set()
        self._fixed: set[ir.Var] = set()
        tvm_ffi.structural_walk(
            kernel,
            [
                (tirx.AllocBuffer, self._allocate),
                (tirx.DeclBuffer, self._view),
                (ir.Call, self._call),
            ],
            order="pre",
        )

    @property
    def read_by_matrices(self) -> list[ir.Var]:
        """Those of at least two axes that matrix units read and nothing else fixes."""
        return [
            tile
            for tile in self.all
            if tile in self._read and tile not in self._fixed and _has_whole_rows(tile)
        ]

    def _allocate(self, node: tirx.AllocBuffer) -> None:
        if is_shared(node.buffer):
            self.all.append(node.buffer)

    def _view(self, node: tirx.DeclBuffer) -> None:
        tvm_ffi.structural_walk(node.data, (ir.Var, self._fixed.add))

    def _call(self, node: ir.Call) -> None:
        op = operator_of(node)
        if op is None:
            self._fixed.update(arg for arg in node.args if is_buffer_var(arg))
            return
        self._fixed.update(op.fixes_layout_of())
        if op.matrix_operands():
            self._read.update(buffer_of(operand) for operand in op.reads())


def _has_whole_rows(tile: ir.Var) -> bool:
    extents = [constant(extent) for extent in tile.ty.shape]
    return len(extents) > 1 and None not in extents and not tile.ty.strides
