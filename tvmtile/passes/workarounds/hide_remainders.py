"""HideRemaindersOnCpu: LLVM does not take an index that wraps around for one that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.ir.calls import op_name
from tvmtile.ir.extents import is_power_of_two
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import mentions, variables_of
from tvmtile.passes.cpu.unknown_zeros import Zeros, with_unknown_zeros


@prim_func_pass("HideRemaindersOnCpu", requires=(Property.HOST_MEMORY,))
def HideRemaindersOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    r"""Hide what is divided in indices, where the low bits of it are the remainder.

    LLVM 22 sees that `j * 3 % 32` grows by 3, as a number of 5 bits, and forgets that this one wraps
    around: its vectoriser loads a vector of neighbours, or every third element of some, that lies
    behind the row in part. So the dividend is combined with a zero that LLVM does not know to be one.
    """

    def hide(body: tirx.Stmt, zeros: Zeros) -> tirx.Stmt:
        hider = _Hider(zeros)
        return mapped(body, (ir.TensorLoad, hider.load), (tirx.BufferStore, hider.store))

    return with_unknown_zeros(func, hide)


class _Hider:
    def __init__(self, zeros: Zeros) -> None:
        self._zeros = zeros

    def load(self, node: ir.TensorLoad) -> ir.TensorLoad:
        return tirx.BufferLoad(node.source, self._indices(node.indices), node.span)

    def store(self, node: tirx.BufferStore) -> tirx.Stmt:
        indices = self._indices(node.indices)
        return tirx.BufferStore(node.buffer, node.value, indices, span=node.span)

    def _indices(self, indices: Sequence[ir.Expr]) -> list[ir.Expr]:
        visits = ((tirx.FloorMod, self._remainder), (ir.Call, self._masked))
        return [mapped(index, *visits) for index in indices]

    def _remainder(self, node: tirx.FloorMod) -> ir.Expr:
        divisor = constant(node.b)
        if divisor is None or not is_power_of_two(divisor):
            return node
        return tirx.floormod(self._hidden(node.a), node.b)

    def _masked(self, call: ir.Call) -> Any:
        if op_name(call) != "tirx.bitwise_and":
            return call
        mask = constant(call.args[1])
        if mask is None or not is_power_of_two(mask + 1):
            return call
        return tirx.bitwise_and(self._hidden(call.args[0]), call.args[1])

    def _hidden(self, value: ir.Expr) -> ir.Expr:
        dtype = str(value.ty.dtype)
        if not dtype.startswith("int") or "x" in dtype or not variables_of(value):
            return value
        zero = self._zeros.of(dtype)
        return value if mentions(value, zero) else value ^ zero
