"""The bindings of a Relax function as a graph: what a name is bound to, who uses it, what matches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax import dpl
from tvm.sym import Analyzer

from tvmtile.ir.types import Index

_ANALYZER = Analyzer()


class Graph:
    """The bindings of a function, in order.

    The function is in A-normal form: the arguments of calls are names and constants.
    """

    def __init__(self, func: relax.Function) -> None:
        self.calls: list[ir.Call] = []
        self._values = relax.analysis.get_var2val(func)
        self._names: dict[int, Any] = {}
        self._users: dict[int, set[int]] = {}
        for block in func.body.blocks:
            for binding in block.bindings:
                self._add(binding)
        for name in _names_in(func.body.body):
            self._use(name, user=0)

    def _add(self, binding: Any) -> None:
        value = binding.value
        self._names[handle(value)] = binding.var
        if isinstance(value, ir.Call):
            self.calls.append(value)
        for name in _names_in(value):
            self._use(name, user=handle(value))
        if not isinstance(binding.var, relax.DataflowVar):
            self._use(binding.var, user=0)  # it may be used outside of its block

    def _use(self, name: Any, user: int) -> None:
        self._users.setdefault(handle(name), set()).add(user)

    def value(self, expr: Any) -> Any:
        """The value of a name, through names; another expression, and a parameter, as it is."""
        while isinstance(expr, ir.Var) and expr in self._values:
            expr = self._values[expr]
        return expr

    def name(self, expr: ir.Expr) -> Any:
        """The name that a value is bound to; the expression itself where there is none."""
        return self._names.get(handle(expr), expr)

    def match(self, pattern: dpl.DFPattern, expr: ir.Expr) -> Any:
        """The match of each part of a pattern, through names; None where the whole has none."""
        return pattern.extract_matched_expr(self.value(expr), self._values)

    def is_private(self, inside: Sequence[ir.Call], root: ir.Expr) -> bool:
        """Tell whether values other than the root are used by one another, and by the root, alone."""
        handles = {handle(call) for call in inside}
        others = (self.name(call) for call in inside if handle(call) != handle(root))
        return all(self._users.get(handle(name), set()) <= handles for name in others)


def calls_of(found: Any, *given: dpl.DFPattern) -> list[ir.Call]:
    """The calls that a pattern matches, without what some of its parts stand for."""
    leaves = {handle(part) for part in given}
    return [v for k, v in found.items() if isinstance(v, ir.Call) and handle(k) not in leaves]


def handle(expr: Any) -> int:
    """The identity of an expression's object: `==` of expressions makes an expression."""
    return int(expr.__chandle__())


def _names_in(value: Any) -> Iterable[Any]:
    found: list[Any] = []
    relax.analysis.post_order_visit(
        value, lambda e: found.append(e) if isinstance(e, ir.Var) else None
    )
    return found


def shape_of(expr: Any) -> tuple[Any, ...]:
    """The extents of a tensor, ints where they are known; none where its rank is not."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return ()
    return tuple(static(extent) for extent in ty.shape.values)


def static(extent: Index) -> Index:
    """An extent as an int, where it is one."""
    return int(extent) if isinstance(extent, int | tirx.IntImm) else extent


def product(extents: Iterable[Index]) -> Any:
    """The number of elements of extents."""
    total: Any = 1
    for extent in extents:
        total = total * extent
    return total if isinstance(total, int) else static(_ANALYZER.simplify(total))


def is_same_shape(some: Sequence[Index], others: Sequence[Index]) -> bool:
    """Tell whether extents are certainly the same."""
    return len(some) == len(others) and all(
        a == b
        if isinstance(a, int) and isinstance(b, int)
        else bool(_ANALYZER.can_prove_equal(a, b))
        for a, b in zip(some, others, strict=True)
    )


def number(expr: Any) -> float | None:
    """The value of a constant without dimensions, and of one element."""
    if not isinstance(expr, ir.GenericConst) or expr.value.numpy().size != 1:
        return None
    return float(expr.value.numpy().item())


def attribute_ints(values: Any) -> list[int]:
    """Axes of an operator as ints."""
    return [int(value) for value in values]
