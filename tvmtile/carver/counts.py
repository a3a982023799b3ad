"""The work of a program: operations of its products, bytes that it moves from and to tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.kernel_info import let_values
from tvmtile.errors import InvalidValue
from tvmtile.ir.operands import bits_of, constant, dtype_of, extents_of, shape_of
from tvmtile.ir.operators import TileOp
from tvmtile.ir.rewriting import mentions, substitute
from tvmtile.ir.scopes import is_global


@dataclass(frozen=True)
class Counts:
    """The work of a program."""

    products: Mapping[str, int]
    """Multiplications and additions of its products of matrices, by the dtype of their operands."""
    global_bytes: int
    """Bytes of tensors that blocks read and write; what two of them read counts twice."""
    tensor_bytes: int
    """The same where each element is read once and written once."""

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products."""
        return sum(self.products.values())


def counts_of(program: tirx.PrimFunc, extents: Mapping[ir.Var, int] | None = None) -> Counts:
    """Count what all blocks do; branches count as if they were taken.

    `extents` are the values of dynamic ones.

    Raises
    ------
    InvalidValue
        If the extent of a loop or of a tile is not known before it runs.
    """
    return _Count(program, extents or {}).of_all()


class _Count:
    def __init__(self, program: tirx.PrimFunc, extents: Mapping[ir.Var, int]) -> None:
        self._accesses = effects_of(program.body)
        known = {var: tirx.const(value, str(var.ty.dtype)) for var, value in extents.items()}
        self._values = let_values(program.body, known)

    def of_all(self) -> Counts:
        products: Counter[str] = Counter()
        moved: Counter[tuple[ir.Var, bool]] = Counter()  # by tensor, and whether it is written
        counted: set[int] = set()
        for access in self._accesses:
            op = access.operator
            if op is not None and op.role == "product" and id(op) not in counted:
                counted.add(id(op))
                products[dtype_of(op.reads()[0])] += self._flops(op) * self._times(access)
            if is_global(access.root):
                moved[access.root, access.writes] += self._elements(access) * self._times(access)
        return Counts(
            dict(products),
            sum(count * bits_of(tensor) for (tensor, _), count in moved.items()) // 8,
            sum(min(count, self._size(t)) * bits_of(t) for (t, _), count in moved.items()) // 8,
        )

    def _times(self, access: Effect) -> int:
        """The number of times all blocks do it; tile operators and `T.Parallel` are a block's."""
        return self._iterations([loop for loop in access.around if not _is_thread(loop)], {})

    def _iterations(self, loops: Sequence[tirx.For], at: Mapping[ir.Var, Any]) -> int:
        """The runs of the innermost loop's body; an extent may depend on the loops around it."""
        if not loops:
            return 1
        loop, *inner = loops
        extent = self._known(loop.extent, at)
        extents = [substitute(other.extent, self._values) for other in inner]
        if not any(mentions(other, loop.loop_var) for other in extents):
            return extent * self._iterations(inner, at)
        return sum(
            self._iterations(inner, {**at, loop.loop_var: loop.min + index})
            for index in range(extent)
        )

    def _flops(self, op: Any) -> int:
        m, n = (self._known(extent) for extent in shape_of(op.C)[-2:])
        inner = shape_of(op.A)[-2 if op.transpose_A else -1]
        return 2 * m * n * self._known(inner)

    def _elements(self, access: Effect) -> int:
        if access.operator is None or not access.operator.is_tile:
            return 1
        assert access.operand is not None, "of a tile operator"
        return math.prod(map(self._known, _moved(access.operator, access.operand)))

    def _size(self, tensor: ir.Var) -> int:
        return math.prod(map(self._known, tensor.ty.shape))

    def _known(self, extent: ir.Expr, at: Mapping[ir.Var, Any] | None = None) -> int:
        value = constant(substitute(substitute(extent, self._values), dict(at or {})))
        if value is None:
            raise InvalidValue(
                f"the extent {extent} is not known before the kernel runs",
                help="count a program whose loops and tiles have constant extents",
            )
        return value


def _is_thread(loop: tirx.For) -> bool:
    return loop.thread_binding is not None and str(loop.thread_binding.thread_tag).startswith(
        "threadIdx"
    )


def _moved(op: TileOp, operand: ir.Expr) -> list[Any]:
    """The extents of an operand; one that is named by an element has the other's."""
    own = extents_of(operand)
    if own is not None:
        return own
    others = [x for x in (*op.reads(), *op.writes()) if not x.same_as(operand)]
    return shape_of(others[0]) if others else [1]
