"""What several implementations of a product of matrices require of it."""

from __future__ import annotations

from tvm import ir

from tvmtile._tvm import buffer_of
from tvmtile.ir.operands import constant, describe, is_whole
from tvmtile.ir.scopes import is_fragment
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.matrices import MatrixProduct
from tvmtile.tileop.registry import Decline


def check_extents(op: MatrixProduct) -> None:
    """Decline a product whose extents are not constants."""
    for name, extent in (("M", op.m), ("N", op.n), ("K", op.k)):
        if constant(extent) is None:
            raise Decline(f"{name} = {extent} is not a constant")


def check_fragments(*operands: ir.TensorRegion) -> None:
    """Decline a part of a fragment: matrices are laid out over all of one."""
    for operand in operands:
        if is_fragment(buffer_of(operand)) and not is_whole(operand):
            raise Decline(f"{describe(operand)} is a part of a fragment")


def check_precision(op: Gemm) -> None:
    """Decline a product of float32, all bits of it, on behalf of tensor cores."""
    if op.excludes_tf32():
        raise Decline('tensor cores multiply float32 as TF32, and precision="ieee" excludes that')
