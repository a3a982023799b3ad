"""Expressions that Python makes large: parts of them get names.

TVM visits an expression by recursion, and what stands in several places once for each of them.
`sum(A[i] for i in range(5000))` is 5,000 deep, and `x = x * x + x` in a helper, 24 times, is 3**24
parts. While a kernel is traced `Sizes` counts; a statement with something large gets names for parts of
its expressions in front of it. A part that is evaluated under a condition only stays there, and must
not be large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

from tvm import ir, tirx

from tvmtile._tvm import PURE, Mutator, buffer_of, class_of, indices_of, mutated, nodes_in
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.values import dtype_of_variable
from tvmtile.ir.calls import effect_of, is_if_then_else
from tvmtile.ir.rewriting import seq
from tvmtile.ir.spans import first_location
from tvmtile.ir.types import Binary

_DEEP, _MANY = 100, 1000
"""Operators in one another, and parts: what has more is large."""
_TOO_DEEP, _TOO_MANY = 5_500, 1_000_000
"""Larger expressions are refused: to look at one takes seconds, or more than the stack has: TVM's
recursion ends the process at a depth of 6,000 to 7,000 where a stack has 8 MB.
"""

Size = tuple[int, int]
"""How deep an expression is, and how many parts it has where shared ones are written out."""


class Sizes:
    """The sizes of the expressions of a kernel that is traced."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ir.Expr, Size]] = {}  # by address; keeps the node alive

    def note(self, value: Any) -> None:
        """Note what an operator has made.

        Raises
        ------
        InvalidOperand
            If it is too large.
        """
        if not isinstance(value, ir.Expr):
            return
        depth, parts = self.of(value)
        if depth > _TOO_DEEP or parts > _TOO_MANY:
            raise _too_large(depth > _TOO_DEEP, _TOO_DEEP, _TOO_MANY)

    def is_large(self, value: Any) -> bool:
        """Tell whether a value is deep, or has many parts."""
        depth, parts = self.of(value)
        return depth > _DEEP or parts > _MANY

    def of(self, value: ir.Expr) -> Size:
        """The size of an expression."""
        pending = [value]
        while pending:
            node = pending[-1]
            if hash(node) in self._known:
                pending.pop()
                continue
            children = [child for part in _parts(node) for child in part]
            unknown = [child for child in children if hash(child) not in self._known]
            if unknown:
                pending += unknown
                continue
            sizes = [self._known[hash(child)][1] for child in children]
            depth = 1 + max((depth for depth, _ in sizes), default=0)
            self._known[hash(node)] = node, (depth, 1 + sum(parts for _, parts in sizes))
        return self._known[hash(value)][1]


def with_named_parts(func: tirx.PrimFunc, sizes: Sizes) -> tirx.PrimFunc:
    """A program whose large expressions are cut into named parts.

    Raises
    ------
    InvalidOperand
        If one is evaluated under a condition.
    """
    values = (value for stmt in nodes_in(func.body, _HOLDING) for value in _values_of(stmt))
    if not any(map(sizes.is_large, values)):
        return func

    def leaf(stmt: Any, _: Mutator) -> tirx.Stmt:
        parts = _NamedParts(sizes, stmt)
        if isinstance(stmt, tirx.BufferStore):
            value, *indices = map(parts.named, (stmt.value, *indices_of(stmt)))
            return parts.before(tirx.BufferStore(buffer_of(stmt), value, indices, span=stmt.span))
        value = parts.named(stmt.value)
        if isinstance(stmt, tirx.Bind):
            return parts.before(tirx.Bind(stmt.var, value, stmt.span))
        return parts.before(tirx.Evaluate(value, stmt.span))

    def branch(stmt: tirx.IfThenElse, mutator: Mutator) -> tirx.Stmt:
        parts = _NamedParts(sizes, stmt)
        condition, then_case = parts.named(stmt.condition), mutator.mutate(stmt.then_case)
        else_case = None if stmt.else_case is None else mutator.mutate(stmt.else_case)
        return parts.before(tirx.IfThenElse(condition, then_case, else_case, stmt.span))

    def loop(stmt: tirx.While, mutator: Mutator) -> tirx.Stmt:
        _NamedParts(sizes, stmt).check(stmt.condition)
        return tirx.While(stmt.condition, mutator.mutate(stmt.body), stmt.span)

    leaves = (tirx.BufferStore, tirx.Bind, tirx.Evaluate)
    body = mutated(func.body, (leaves, leaf), (tirx.IfThenElse, branch), (tirx.While, loop))
    return func.with_body(body)


_HOLDING = (tirx.BufferStore, tirx.Bind, tirx.Evaluate, tirx.IfThenElse, tirx.While)


def _values_of(stmt: Any) -> list[Any]:
    if isinstance(stmt, tirx.IfThenElse | tirx.While):
        return [stmt.condition]
    return [stmt.value, *(indices_of(stmt) if isinstance(stmt, tirx.BufferStore) else ())]


class _NamedParts:
    """Names parts of the expressions of one statement."""

    def __init__(self, sizes: Sizes, stmt: tirx.Stmt) -> None:
        self._sizes = sizes
        self._stmt = stmt
        self._names: list[tirx.Stmt] = []
        self._done: dict[int, tuple[Any, Size]] = {}

    def before(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """The names, and the statement that uses them."""
        return seq([*self._names, stmt]) if self._names else self._stmt

    def check(self, value: ir.Expr) -> None:
        """Make sure that what keeps its place is not large."""
        depth, parts = self._sizes.of(value)
        if depth > 2 * _DEEP or parts > 10 * _MANY:
            raise _too_large(depth > 2 * _DEEP, 2 * _DEEP, 10 * _MANY, self._stmt)

    def named(self, value: Any) -> Any:
        """An expression in which names stand for parts."""
        if not self._sizes.is_large(value):
            return value
        pending = [value]
        while pending:
            node = pending[-1]
            open_parts, guarded = _parts(node)
            rest = [part for part in open_parts if hash(part) not in self._done]
            if hash(node) in self._done or not rest:
                pending.pop()
                if hash(node) not in self._done:
                    self._finish(node, open_parts, guarded, is_root=node.same_as(value))
            else:
                pending += reversed(rest)
        return self._done[hash(value)][0]

    def _finish(
        self,
        node: Any,
        open_parts: Sequence[ir.Expr],
        guarded: Sequence[ir.Expr],
        *,
        is_root: bool,
    ) -> None:
        for part in guarded:
            self.check(part)
        done = [self._done[hash(part)] for part in open_parts]
        sizes = [size for _, size in done] + [self._sizes.of(part) for part in guarded]
        depth = 1 + max((depth for depth, _ in sizes), default=0)
        parts = 1 + sum(parts for _, parts in sizes)
        same = all(new.same_as(old) for (new, _), old in zip(done, open_parts, strict=True))
        made = node if same else _REBUILD[class_of(node)](node, [new for new, _ in done])
        if (depth <= _DEEP and parts <= _MANY) or is_root or dtype_of_variable(made) is None:
            self._done[hash(node)] = made, (depth, parts)
            return
        name = ir.Var("part", made.ty)
        self._names.append(tirx.Bind(name, made, self._stmt.span))
        self._done[hash(node)] = name, (0, 1)


def _parts(node: Any) -> tuple[Sequence[ir.Expr], Sequence[ir.Expr]]:
    """The parts that are evaluated wherever the node is, and the others."""
    kind = class_of(node)
    if kind in (tirx.And, tirx.Or):
        return (node.a,), (node.b,)
    if kind in _BINARY:
        return (node.a, node.b), ()
    if kind is tirx.Not:
        return (node.a,), ()
    if kind is tirx.Cast:
        return (node.value,), ()
    if kind is tirx.Select:
        return (node.condition,), (node.true_value, node.false_value)
    if kind is ir.TensorLoad:
        return indices_of(node)[:], ()
    if kind is not ir.Call:
        return (), ()
    pairs = list(zip(node.args, _open_arguments(node), strict=True))
    return [arg for arg, is_open in pairs if is_open], [
        arg for arg, is_open in pairs if not is_open
    ]


_BINARY = get_args(Binary)


def _open_arguments(call: ir.Call) -> list[bool]:
    """Tell of each argument whether it is evaluated with the call; an element may be a place."""
    if is_if_then_else(call):
        return [True, False, False]
    is_pure = effect_of(call) <= PURE
    return [is_pure or not isinstance(arg, ir.TensorLoad) for arg in call.args]


def _rebuilt_call(call: ir.Call, parts: list[Any]) -> ir.Call:
    new = iter(parts)
    pairs = zip(call.args, _open_arguments(call), strict=True)
    args = [next(new) if is_open else arg for arg, is_open in pairs]
    return ir.Call(call.op, args, call.attrs, span=call.span, ret_ty=call.ty)


_REBUILD: dict[type, Callable[[Any, list[Any]], ir.Expr]] = {
    **{kind: lambda node, parts: class_of(node)(*parts, node.span) for kind in _BINARY},
    tirx.And: lambda node, parts: tirx.And(parts[0], node.b, node.span),
    tirx.Or: lambda node, parts: tirx.Or(parts[0], node.b, node.span),
    tirx.Not: lambda node, parts: tirx.Not(parts[0], node.span),
    tirx.Cast: lambda node, parts: tirx.Cast(str(node.ty.dtype), parts[0], node.span),
    tirx.Select: lambda node, parts: tirx.Select(
        parts[0], node.true_value, node.false_value, node.span
    ),
    ir.TensorLoad: lambda node, parts: tirx.BufferLoad(buffer_of(node), parts, node.span),
    ir.Call: _rebuilt_call,
}


def _too_large(
    is_deep: bool, depth: int, parts: int, stmt: tirx.Stmt | None = None
) -> InvalidOperand:
    size = f"is more than {depth} operators deep" if is_deep else f"has more than {parts} parts"
    where = "" if stmt is None else ", where it is evaluated under a condition"
    return InvalidOperand(
        f"an expression {size}{where}",
        help="give parts of it names in the kernel, `part = a + b`, or add up in a run-time loop, "
        "`for i in T.serial(n):`",
        location=None if stmt is None else first_location(stmt),
    )
