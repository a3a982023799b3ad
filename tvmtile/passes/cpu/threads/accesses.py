"""Which parts of a body must wait until all threads have done another part."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var, walk
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.ir.operands import buffer_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.scopes import is_of_block

__all__ = ["Accesses"]


class Accesses:
    """How a piece of code uses the tiles that threads share.

    Parameters
    ----------
    variance : ThreadVariance
        Knows which buffers are views of the same tile.
    """

    def __init__(self, variance: ThreadVariance) -> None:
        self._variance = variance
        self._uses: dict[ir.Var, set[str]] = {}

    def add(self, node: Any) -> Accesses:
        """Take in the accesses of a statement or an expression."""
        walk(
            node,
            (ir.TensorLoad, lambda load: self._note(load.source, "read")),
            (tirx.BufferStore, lambda store: self._note(store.buffer, "write")),
            (ir.Call, self._visit_call),
            order="pre",
        )
        return self

    def _visit_call(self, call: ir.Call) -> Any:
        op = operator_of(call)
        if op is None:
            return None
        for operand in op.writes():
            self._note(buffer_of(operand), "write" if op.is_tile else "update")
        for operand in op.reads():
            self._add_operand(operand)
        return tvm_ffi.WalkResult.SKIP

    def _add_operand(self, operand: Any) -> None:
        if isinstance(operand, ir.TensorRegion) or is_buffer_var(operand):
            self._note(buffer_of(operand), "read")
        else:
            self.add(operand)

    def _note(self, buffer: ir.Var, use: str) -> None:
        if is_of_block(buffer):
            self._uses.setdefault(self._variance.root(buffer), set()).add(use)

    def conflicts(self, later: Accesses) -> bool:
        """Tell whether what comes later must wait until all threads have done this."""
        return any(
            _ordered(self._uses[buffer], uses)
            for buffer, uses in later._uses.items()
            if buffer in self._uses
        )

    def conflicts_with_itself(self) -> bool:
        """Tell whether an iteration must wait for the one before."""
        # Iterations that only write a tile would race on a GPU too, unless they write different places.
        return any(len(uses) > 1 for uses in self._uses.values())


def _ordered(before: set[str], after: set[str]) -> bool:
    return before | after not in ({"read"}, {"update"})
