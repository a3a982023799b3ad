"""Elementwise operators as declarations: the function that users call says all that there is to say.

Its parameters are operands, which are read (`In`) or written (`Out`), values of the kernel (`Index`,
`Scalar`), options, which are constants, and options of TileLang that change nothing (`Ignored`, whose
reasons are in `tvmtile.compat.ignored`). Its docstring is the reference. Its body gets each operand as
an `OperandView`, refuses what does not fit, and returns the meaning: the element of the written tile at
some indices. From that follow the operator's class, its loops, and its lowerings on all targets. The
interpreter of the tests calls the same body with arrays of numpy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import wraps
from typing import Annotated, Any, ClassVar, ParamSpec, TypeAlias, get_type_hints

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.analysis.nests import nests_in
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand, ShapeMismatch
from tvmtile.frontend.dtypes import cast
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.frontend.values import as_expr
from tvmtile.ir.operands import (
    as_region,
    check_bounds,
    checked_axis,
    constant,
    describe,
    dtype_of,
    extents_of,
    same_extents,
)
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import SHARED_SCOPE, is_fragment
from tvmtile.ir.types import Index, Value
from tvmtile.layout.fragment import layout_of
from tvmtile.layout.loops import loop_layout
from tvmtile.tileop.elementwise import converted, element, moved, over_region
from tvmtile.tileop.registry import STAGED, Decline, LoweringContext, as_loops, lowering

In: TypeAlias = Annotated[Any, "read"]
"""A tile that is read: a buffer, a region or an element."""
Out: TypeAlias = Annotated[Any, "written"]
"""The tile that is written."""
Scalar: TypeAlias = Annotated[Value, "scalar"]
"""A value of the written tile's dtype."""
Ignored: TypeAlias = Annotated[object, "ignored"]
"""An option that changes nothing, with a default."""
Meaning: TypeAlias = Callable[..., Any]
"""The element of the written tile at some indices, one an axis."""
_P = ParamSpec("_P")


@dataclass(frozen=True)
class OperandView:
    """An operand in a declaration."""

    operator: str
    name: str
    operand: Any

    def __str__(self) -> str:
        return describe(self.operand)

    @property
    def extents(self) -> list[Any]:
        """The extents of its axes; an element has none."""
        return extents_of(self.operand) or []

    @property
    def dtype(self) -> str:
        """The dtype of its elements."""
        return dtype_of(self.operand)

    def axes(self, count: int, shapes: str) -> list[Any]:
        """The extents of the last axes, where others have extent 1; `shapes` says what is wanted."""
        if (
            any(constant(extent) != 1 for extent in self.extents[:-count])
            or len(self.extents) < count
        ):
            raise InvalidOperand(f"{self.operator}: {self} should have {count} axes", help=shapes)
        return self.extents[-count:]

    def __getitem__(self, at: Sequence[Index]) -> ir.Expr:
        """The element at some indices, of as many of the last axes."""
        rank = len(ranges_of(self.operand))
        indices = element(self.operand, [*[0] * rank, *at][-rank:])
        return tirx.BufferLoad(buffer_of(self.operand), indices)

    def where(self, conditions: Sequence[Any], at: Sequence[Index]) -> ir.Expr:
        """The same where all conditions hold, and zero elsewhere."""
        return tirx.if_then_else(tirx.all(*conditions), self[at], tirx.const(0, self.dtype))

    def axis(self, dim: int) -> int:
        """An axis, counted from the last; refused where there is none."""
        return checked_axis(self.operator, self.name, self.operand, dim) - len(self.extents)

    def expect(self, extents: Sequence[Any], reason: str) -> None:
        """Refuse a tile that has other extents, leading ones that are 1 aside."""
        wanted, own = _without_leading_units(extents), _without_leading_units(self.extents)
        if len(wanted) != len(own) or not all(map(same_extents, wanted, own)):
            shape = ", ".join(
                map(str, extents[min(len(extents) - len(wanted), len(extents) - 2) :])
            )
            raise ShapeMismatch(
                f"{self.operator}: {self} should be [{shape}], {reason}",
                help=f"give {self.name} the extents [{shape}]",
            )


def _without_leading_units(extents: Sequence[Any]) -> list[Any]:
    kept = list(extents)
    while kept and constant(kept[0]) == 1:
        del kept[0]
    return kept


class ElementwiseOp(TileOp):
    """Base of the operators that are declared so."""

    function: ClassVar[Callable[..., Meaning]]
    """The declaration."""
    apart: ClassVar[str] = ""
    """The change to a tile, "transposed", where it can't be done in place."""

    def meaning(self) -> Meaning:
        """The element that it writes at some indices; raises a `TileError` where operands don't fit."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        del given["impl"]
        tiles = {
            name: OperandView(self.name, name, given[name]) for name in self.inputs + self.outputs
        }
        return type(self).function(**{**given, **tiles})

    def check(self) -> None:
        self.meaning()
        for source in self.reads():
            if self.apart and any(buffer_of(source).same_as(buffer_of(o)) for o in self.writes()):
                raise InvalidOperand(
                    f"{self.name}: {describe(source)} can't be {self.apart} in place",
                    help=f"{self.name} into another tile",
                )
        for operand in (*self.reads(), *self.writes()):
            check_bounds(self.name, operand)

    def as_loops(self) -> tirx.Stmt:
        (target,), meaning = self.writes(), self.meaning()

        def body(offsets: list[Index]) -> tirx.Stmt:
            value = converted(meaning(*offsets), dtype_of(target))
            return tirx.BufferStore(buffer_of(target), value, element(target, offsets))

        return over_region(target, body)


def elementwise(
    *, apart: str = "", role: str = ""
) -> Callable[[Callable[_P, Meaning]], Callable[_P, None]]:
    """Decorator: a function declares an operator of its name, and becomes what users call.

    Parameters
    ----------
    apart : str
        What it does to a tile, "transposed", where that can't be done in place.
    role : str
        See `TileOp.role`.
    """

    def declare(function: Callable[_P, Meaning]) -> Callable[_P, None]:
        name, signature = function.__name__, inspect.signature(function)
        kinds = get_type_hints(function, include_extras=True)

        def named(*of: Any) -> tuple[str, ...]:
            return tuple(each for each in signature.parameters if kinds[each] in of)

        operands, ignored = named(In, Out), named(Ignored)
        (output,), scalars, values = named(Out), named(Scalar), named(In, Out, Index, Scalar)
        options = [each for each in signature.parameters if each not in (*values, *ignored)]
        operator = make_dataclass(
            name.title().replace("_", ""),
            [*((each, Any) for each in values), *((o, Any, field(default=None)) for o in options)],
            bases=(ElementwiseOp,),
            namespace={
                "__module__": function.__module__,
                "__doc__": function.__doc__,
                "name": name,
                "inputs": named(In),
                "outputs": (output,),
                "function": staticmethod(function),
                "apart": apart,
                "role": role,
            },
            frozen=True,
            eq=False,
        )
        _lower(tile_operator(operator))

        @wraps(function)
        def declared(*args: _P.args, **kwargs: _P.kwargs) -> None:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                function(*args, **kwargs)  # Python says what is wrong in its own words
                raise
            bound.apply_defaults()
            given = bound.arguments
            warn_ignored(f"T.{name}", **{option: given.pop(option) for option in ignored})
            for each in operands:
                given[each] = check_operand(name, each, given[each])
            for each in values:
                if each in scalars:
                    given[each] = _scalar(given[each], dtype_of(given[output]))
                elif each not in operands:
                    given[each] = as_expr(given[each])
            emit(operator(**given))

        vars(declared)["__signature__"] = signature.replace(return_annotation=None)
        return declared

    return declare


def _scalar(value: Value, dtype: str) -> ir.Expr:
    is_number = isinstance(value, bool | int | float)
    return tirx.const(value, dtype) if is_number else cast(as_expr(value), dtype)


# Lowerings ---------------------------------------------------------------------------------------


def _lower(operator: type[ElementwiseOp]) -> None:
    lowering(operator, target=("llvm", "metal", "cuda"), variant="elements")(as_loops)
    if operator.inputs:
        lowering(operator, **BY_SHARED_MEMORY)(_staged)


def _staged(op: Any, _: LoweringContext) -> tirx.Stmt:
    """Between fragments whose elements lie in different threads: through shared memory."""
    (name,), (source,) = op.inputs, op.reads()
    staged = by_shared_tile(source, dtype_of(source), op.apart or f"{op.name}_staged")
    return seq([*staged[1], replace(op, **{name: staged[0]}).as_loops()])


def between_fragments(op: TileOp, _: LoweringContext) -> None:
    """Raise `Decline` unless an operator moves elements from a fragment to a fragment."""
    if not all(is_fragment(buffer_of(operand)) for operand in (*op.reads(), *op.writes())):
        raise Decline("a side is in memory, which all threads reach")


def between_threads(op: TileOp, _: LoweringContext) -> None:
    """Raise `Decline` where the threads that need the elements of a fragment hold them."""
    loops = op.as_loops()
    nests = [] if loops is None else nests_in(loops)
    if all(loop_layout(nest, layout_of) is not None for nest in nests):
        raise Decline("the threads that need the elements hold them")


BY_SHARED_MEMORY: dict[str, Any] = {
    "target": ("metal", "cuda"),
    "variant": STAGED,
    "priority": 10,
    "fits": between_fragments,
    "fits_layouts": between_threads,
}
"""Of lowerings through shared memory, where threads don't hold the elements that they need."""


def by_shared_tile(
    src: ir.TensorRegion, dtype: str, name: str
) -> tuple[ir.TensorRegion, list[tirx.Stmt]]:
    """A shared tile of this dtype, and the statements that copy a region to it."""
    shared = tirx.decl_buffer(
        [r.extent for r in ranges_of(src)], dtype, name=name, scope=SHARED_SCOPE
    )
    tile = as_region(shared)
    return tile, [tirx.AllocBuffer(shared), moved(src, tile)]
