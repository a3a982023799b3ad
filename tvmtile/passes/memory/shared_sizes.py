"""How much of a block's shared memory a tile takes: the one answer that all passes go by."""

from __future__ import annotations

from tvm import DataType, ir

from tvmtile.layout.shared import span
from tvmtile.target import GpuCapability

__all__ = ["aligned", "allocated_bytes"]


def allocated_bytes(tile: ir.Var, capability: GpuCapability) -> int:
    """Bytes of shared memory that a tile takes, up to where the next one may begin.

    An extent that is known only when a kernel runs counts as 0.
    """
    bits = int(DataType(str(tile.ty.dtype)).bits) * span(tile)
    return aligned((max(8, bits) + 7) // 8, capability)


def aligned(count: int, capability: GpuCapability) -> int:
    """A number of bytes up to where a tile may begin."""
    alignment = capability.shared_alignment
    return -(-count // alignment) * alignment
