"""What a tile operator is, and how its implementations are found.

An operator is a TIR intrinsic, `tvmtile.<name>`. In Python it is a frozen dataclass, a view of the
call: `Copy.from_call(call).src`. Its lowerings are functions registered by operator and target kind;
each declines with a reason or returns a statement, and the most specific one that fits is used.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvmtile._plugin import OPERATORS, register
from tvmtile.errors import NestingError, NoLowering, SourceLocation, TileError, VerifyError
from tvmtile.spans import current_span
from tvmtile.tileop.operands import describe

__all__ = [
    "Decline",
    "Lowering",
    "LoweringContext",
    "TileOp",
    "ValueOp",
    "all_lowerings",
    "all_operators",
    "checked_call",
    "demanded_layouts",
    "direct_operands",
    "emit",
    "lower",
    "lowering",
    "operator_of",
    "python_value",
    "tile_operator",
]

_OPERATORS: dict[str, type[TileOp]] = {}
_LOWERINGS: dict[tuple[str, str], list[Lowering]] = {}


class Decline(Exception):
    """A lowering does not fit; the message says why, in terms of the operands or the target."""


class TileOp:
    """Base of all tile operators: a view of a `Call`, with its operands by name.

    Subclasses are frozen dataclasses decorated with `tile_operator`. Fields that hold operands or
    expressions come first, in the order of the call's arguments; options follow, listed in
    `options`, and travel in the call's attributes where they differ from their defaults.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    is_tile: ClassVar[bool] = True
    """False for an operator on single elements, which may stand in `T.Parallel`."""
    once: ClassVar[bool] = False
    """True for an element operator that all threads of a block do once together, if the operands are
    the same for all; otherwise each thread does it."""

    phase: ClassVar[str] = ""
    """What it is to a reducer, which is its operand: `begin`, `contribute` or `end`."""

    is_atomic: ClassVar[bool] = False
    """True for an element operator whose accesses are indivisible: two of them need no barrier."""

    is_copy: ClassVar[bool] = False
    """True for an operator that only moves elements from one region to another, in no order."""

    def reads(self) -> list[Any]:
        """The operands that the operator reads."""
        raise NotImplementedError

    def writes(self) -> list[Any]:
        """The operands that the operator writes."""
        raise NotImplementedError

    def fixed_layouts(self) -> dict[ir.Var, Any]:
        """The buffers whose layout the operator gives, with what the user wrote."""
        return {}

    def imported_source(self) -> str | None:
        """Source text of the target's language that stands before the kernel."""
        return None

    def matrix_operands(self, target: Target | None = None) -> list[Any]:
        """The operands that a matrix unit holds in its registers.

        None where it does not have their dtypes: that of a target, or else that of any.
        """
        del target
        return []

    def copied(self) -> tuple[Any, Any] | None:
        """Source and target of an operator that only copies elements as they are; None for others."""
        return None

    def between(self, source: Any, target: Any) -> TileOp:
        """The same copy between other regions, of an operator with `is_copy`."""
        raise NotImplementedError

    def with_operand(self, name: str, operand: Any) -> TileOp:
        """The same operator with another operand."""
        return replace(self, **{name: operand})  # type: ignore[type-var]

    def as_loops(self) -> tirx.Stmt | None:
        """The elementwise loops that the operator stands for; None for one that is none."""
        return None

    def over_neighbours(self, variable: ir.Var, lanes: int, place: Sequence[Any]) -> TileOp | None:
        """An element operator for an iteration of a loop and those after it; None where there is none.

        Parameters
        ----------
        variable : Var
            The loop variable.
        lanes : int
            How many iterations.
        place : sequence of Expr
            The indices of what the first of them writes; those of the others follow in memory.
        """
        del variable, lanes, place
        return None

    def carried_layouts(self, layouts: Mapping[ir.Var, Any]) -> dict[ir.Var, Any]:
        """The layouts that fragments should have, so that others, of known layout, fit them.

        Parameters
        ----------
        layouts : dict of Var to FragmentLayout
            The fragments whose layout is known.
        """
        del layouts
        return {}

    def block_order(self, blocks: Sequence[Any], grid: Sequence[Any]) -> list[Any] | None:
        """Which block of the grid a block should do the work of; None where it makes no difference.

        Parameters
        ----------
        blocks, grid : sequence of Expr
            The indices of the block along x, y and z, as many as the grid has, and its extents.
        """
        del blocks, grid
        return None

    def check(self) -> None:
        """Raise a `TileError` where the operands do not fit together."""

    def normalized(self) -> TileOp:
        """The same operator with every operand an explicit region."""
        raise NotImplementedError

    def with_versions(self, operands: Sequence[Any]) -> TileOp:
        """The same operator after operands of it got a leading axis.

        Parameters
        ----------
        operands : sequence of operands
            Those that lie in a tile of which a pipelined loop has several versions. A region has one
            version.
        """
        del operands
        return self

    def result_dtype(self) -> str:
        """The dtype of the value that an element operator has; `void` where it has none."""
        return "void"

    def to_call(self, span: Any = None) -> ir.Call:
        """The intrinsic call."""
        args = []
        attrs = {}
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if item.name not in self.options:
                args.append(value)
            elif value != item.default:
                attrs[item.name] = value
        return ir.Call(
            f"tvmtile.{self.name}", args, attrs=attrs or None, span=span, ret_ty=self.result_dtype()
        )

    @classmethod
    def from_call(cls, call: ir.Call) -> TileOp:
        """Read the operator back from its call."""
        names = [f.name for f in fields(cls) if f.name not in cls.options]  # type: ignore[arg-type]
        values = dict(zip(names, call.args, strict=True))
        if call.attrs is not None:
            # TVM's DictAttrs iterates over its keys through `keys()` only.
            keys = call.attrs.keys()
            values.update({key: python_value(call.attrs[key]) for key in keys})
        return cls(**values)


class ValueOp(TileOp):
    """Base of the operators that name no tile: what they have are values and options."""

    is_tile = False

    def reads(self) -> list[Any]:
        return []

    def writes(self) -> list[Any]:
        return []

    def normalized(self) -> TileOp:
        return self


def python_value(value: Any) -> Any:
    """An attribute of a call as a number of Python's, where it is a constant of TVM's."""
    if isinstance(value, tirx.IntImm):
        return bool(value.value) if value.ty.dtype == "bool" else int(value.value)
    return value


Op = TypeVar("Op", bound=type[TileOp])


def tile_operator(cls: Op) -> Op:
    """Class decorator: the class is how tvmtile sees calls of the intrinsic `tvmtile.<name>`."""
    if cls.name not in OPERATORS:
        raise ValueError(f"{cls.name} is missing from tvmtile._plugin.OPERATORS")
    register()  # TVM has done it, unless its autoloading is switched off
    _OPERATORS[cls.name] = cls
    return cls


def operator_of(call: Any) -> TileOp | None:
    """The tile operator that a node calls, or None for anything else."""
    if not isinstance(call, ir.Call) or not isinstance(call.op, ir.Op):
        return None
    prefix, _, name = call.op.name.partition(".")
    if prefix != "tvmtile" or name not in _OPERATORS:
        return None
    return _OPERATORS[name].from_call(call)


def emit(op: TileOp) -> None:
    """Check an operator that a kernel uses and add it to the program being written.

    Raises
    ------
    NestingError
        Outside `T.Kernel`; a tile operator also inside `T.Parallel`.
    """
    T.evaluate(checked_call(op))


def checked_call(op: TileOp) -> ir.Call:
    """The call of an operator that a kernel uses, checked as `emit` does.

    The call of an element operator with a result is an expression; it happens where, and as often
    as, that is evaluated.
    """
    from tvmtile.language.kernel import current_kernel

    kernel = current_kernel()
    if kernel is None:
        raise NestingError(
            f"T.{op.name} stands outside T.Kernel",
            help="tile operators are the work of a block: use them inside `with T.Kernel(...)`",
        )
    if kernel.parallel_depth and op.is_tile:
        raise NestingError(
            f"T.{op.name} stands inside T.Parallel",
            help="T.Parallel is for elements; a tile operator already works on the whole tile, so move "
            "it out of the loop, or make the loop T.serial",
        )
    op.check()
    return op.to_call(current_span())


@dataclass
class LoweringContext:
    """What a lowering may ask.

    Attributes
    ----------
    target : Target
        What the kernel is compiled for.
    analyzer : Analyzer
        Knows the ranges of the loop variables around the operator.
    location : SourceLocation or None
        The user's line.
    imports : list of str
        Source text that the lowering's calls need: LLVM's intermediate language for `llvm`. The pass
        links it into the module, each text once.
    attributes : dict of str to Expr
        What a lowering says of the whole kernel, by TVM's name of the attribute.
    launch : Launch
        The loops of the kernel over blocks and threads.
    is_statement : bool
        The operator stands by itself: nobody takes its value.
    declined : list of (str, str)
        The implementations that were tried before, and why they do not fit.
    """

    target: Target
    analyzer: Analyzer
    location: SourceLocation | None = None
    imports: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    launch: Any = None
    is_statement: bool = False
    declined: list[tuple[str, str]] = field(default_factory=list)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return int(self.launch.num_threads)

    @property
    def thread_index(self) -> Any:
        """The number of a thread in its block."""
        return self.launch.thread_index


@dataclass(frozen=True)
class Lowering:
    """One implementation of an operator on one kind of target.

    Attributes
    ----------
    operator, target_kind, variant : str
        What is implemented, where, and the name of the way it is done.
    priority : int
        Higher ones are tried first; two of an operator and a target never share one.
    function : callable
        `(op, context) -> Stmt`; raises `Decline` where it does not fit.
    layouts : callable or None
        `(op, context) -> {fragment: FragmentLayout}`, what the implementation demands.
    direct : callable or None
        `(op, context) -> {name: count}`, what it could read from global memory.
    """

    operator: str
    target_kind: str
    variant: str
    priority: int
    function: Callable[[Any, LoweringContext], tirx.Stmt]
    layouts: Callable[[Any, LoweringContext], dict[ir.Var, Any]] | None = None
    direct: Callable[[Any, LoweringContext], dict[str, int]] | None = None


def lowering(
    operator: type[TileOp],
    *,
    target: str | tuple[str, ...],
    variant: str,
    priority: int = 0,
    layouts: Callable[[Any, LoweringContext], dict[ir.Var, Any]] | None = None,
    direct: Callable[[Any, LoweringContext], dict[str, int]] | None = None,
) -> Callable[[Callable[[Any, LoweringContext], tirx.Stmt]], Callable[..., tirx.Stmt]]:
    """Register a function as an implementation of an operator.

    Parameters
    ----------
    operator : type of TileOp
        What it implements.
    target : str or tuple of str
        Kind of target: `llvm`, `cuda`, `metal`.
    variant : str
        Name of the way it is done.
    priority : int
        Higher ones are tried first.
    layouts : callable, optional
        `(op, context) -> {fragment: FragmentLayout}`, the layouts that the instructions demand; raises
        `Decline` as the implementation does.
    direct : callable, optional
        `(op, context) -> {name: count}`, the operands that could as well lie in global memory, and how
        many groups of threads read each of their elements.
    """
    kinds = (target,) if isinstance(target, str) else target

    def register(function: Callable[[Any, LoweringContext], tirx.Stmt]) -> Any:
        for kind in kinds:
            add(Lowering(operator.name, kind, variant, priority, function, layouts, direct))
        return function

    def add(new: Lowering) -> None:
        candidates = _LOWERINGS.setdefault((new.operator, new.target_kind), [])
        for other in candidates:
            if other.priority == priority and other.variant != variant:
                raise ValueError(
                    f"lowerings {other.variant!r} and {variant!r} of {new.operator} on "
                    f"{new.target_kind} have the same priority, {priority}"
                )
        candidates[:] = [c for c in candidates if c.variant != variant]
        candidates.append(new)
        candidates.sort(key=lambda candidate: -candidate.priority)

    return register


def lower(op: TileOp, context: LoweringContext) -> tirx.Stmt:
    """Implement an operator with the first lowering that fits.

    Raises
    ------
    NoLowering
        If every lowering declines; the message is the table of their reasons.
    """
    kind = context.target.kind.name
    reasons = context.declined = []
    for candidate in _LOWERINGS.get((op.name, kind), []):
        try:
            return candidate.function(op, context)
        except Decline as decline:
            reasons.append((candidate.variant, str(decline)))
        except TileError:
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise VerifyError(
                f"{op.name}: the implementation {candidate.variant!r} failed: "
                f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})",
                help="this is a defect of tvmtile, not of the kernel: please report it",
                location=context.location,
            ) from error
    operands = ", ".join(describe(operand) for operand in [*op.writes(), *op.reads()])
    table = [f"  {variant}: {reason}" for variant, reason in reasons]
    raise NoLowering(
        "\n".join([f"{op.name}: no implementation for {kind} fits {operands}", *table]),
        help="change what a reason names"
        if table
        else f"the target {kind!r} does not implement {op.name}",
        location=context.location,
    )


def demanded_layouts(op: TileOp, context: LoweringContext) -> dict[ir.Var, Any]:
    """The layouts of fragments that the instructions of an operator demand, where it has such."""
    for candidate in _LOWERINGS.get((op.name, context.target.kind.name), []):
        if candidate.layouts is None:
            continue
        try:
            return candidate.layouts(op, context)
        except Decline:
            continue
    return {}


def direct_operands(op: TileOp, context: LoweringContext) -> dict[str, int]:
    """The operands that could as well lie in global memory, and how often each element is read."""
    for candidate in _LOWERINGS.get((op.name, context.target.kind.name), []):
        if candidate.direct is None:
            continue
        try:
            return candidate.direct(op, context)
        except Decline:
            continue
    return {}


def all_operators() -> Mapping[str, type[TileOp]]:
    """Every operator by name."""
    return dict(_OPERATORS)


def all_lowerings() -> list[Lowering]:
    """Every lowering, most specific first within an operator and a target."""
    return [candidate for candidates in _LOWERINGS.values() for candidate in candidates]
