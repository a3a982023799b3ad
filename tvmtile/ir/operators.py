"""TileOp: the protocol of tile operators.

An operator is a TIR intrinsic, `tvmtile.<name>`. In Python it is a frozen dataclass, a view of the
call: `Copy.from_call(call).src`. Passes and analyses ask it by its methods; none knows one by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target
from typing_extensions import dataclass_transform

from tvmtile._tvm import buffer_of, nodes_in, ranges_of
from tvmtile.errors import InvalidValue
from tvmtile.ir.calls import op_name
from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.operands import as_region, dtype_of, region
from tvmtile.ir.registration import register_operator, register_operators
from tvmtile.ir.types import Index

_OPERATORS: dict[str, type[TileOp]] = {}

VARARGS = {"varargs": True}
"""Metadata of the field that is a tuple of all arguments that follow the others."""


class OperatorEffects(NamedTuple):
    """The effects of an operator on memory and on mbarriers; of these it names elements."""

    reads: Sequence[Any] = ()
    """The operands that it reads; where it adds to a tile, that one too."""
    writes: Sequence[Any] = ()
    """The operands that it writes."""
    is_atomic: bool = False
    """The accesses of an element operator are indivisible: two of them need no barrier."""
    box: tuple[int, ...] = ()
    """The extents, along the last axes, of the box that an element operator's element begins."""
    token: str | None = None
    """The token of work that goes on until a wait (`tvmtile.ir.asynchronous`)."""
    completes_on: ir.TensorLoad | None = None
    """The mbarrier on which what it writes arrives."""
    arrives_at: ir.TensorLoad | None = None
    """The mbarrier at which a thread arrives: those that wait there know then what it did before."""
    with_copies: bool = False
    """The thread arrives when its asynchronous copies have, which those that wait know, too."""
    waits_at: ir.TensorLoad | None = None
    """The mbarrier at which a thread waits."""
    parity: ir.Expr | None = None
    """Of the phase that it waits for."""
    ranks: Sequence[ir.Expr] | None = None
    """The blocks of the cluster, by their ranks, in whose memory it writes, and where the mbarrier is;
    None: its own block."""
    is_complete: bool = True
    """Its work is done when the next statement begins; otherwise the user waits."""
    counts: tuple[ir.Var, tuple[int, ...]] | None = None
    """The mbarriers that it makes ready, and how many threads arrive at each in a phase."""


@dataclass(frozen=True, eq=False)
class TileOp:
    """Base of all tile operators: a view of a `Call`, with its operands by name.

    `tile_operator` makes subclasses frozen dataclasses. Fields that hold operands or expressions come
    first, in the order of the call's arguments; options follow, which have defaults, and travel in the
    call's attributes where they differ from these; so does `impl`. A tile is a region,
    as NormalizeOperands leaves it; what was just written may have a buffer or an element in its place.

    Attributes
    ----------
    impl : str or None
        The variant that implements the operator: a user's wish, or what SelectImplementation chose.
    """

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ()
    """The fields with the operands that it reads."""
    outputs: ClassVar[tuple[str, ...]] = ()
    """The fields with the operands that it writes."""
    is_tile: ClassVar[bool] = True
    """False for an operator on single elements, which may stand in `T.Parallel`."""
    role: ClassVar[str] = ""
    """The role by which passes that write operators know it (see `operator_for`): `copy`; `fill`;
    `product`, of matrices, where instructions fix which thread holds what; `layout`; `values outside`;
    `begin`, `contribute` or `end` of a reducer, which is its operand; `arithmetic` or `cast` with a
    rounding; `mbarriers`; `mbarrier`; `registers`."""

    by: ClassVar[str] = ""
    """The threads that do it: "block", an element operator that all threads of a block do once together
    if the operands are the same for all; "thread", a tile operator that no threads share. Else threads
    share a tile operator, and each does an element operator."""

    impl: str | None = field(default=None, kw_only=True)

    def effects(self) -> OperatorEffects:
        """Its effects on memory and on mbarriers."""
        writes = [getattr(self, name) for name in self.outputs]
        reads = [getattr(self, name) for name in self.inputs]
        box = tuple(int(extent) for extent in getattr(self, "box", ()))
        return OperatorEffects(reads, writes, box=box)

    def reads(self) -> Sequence[Any]:
        """The operands that the operator reads; where it adds to a tile, that one too."""
        return self.effects().reads

    def writes(self) -> Sequence[Any]:
        """The operands that the operator writes."""
        return self.effects().writes

    def as_loops(self) -> tirx.Stmt | None:
        """The elementwise loops that the operator stands for; None for one that is none."""
        return None

    def check(self) -> None:
        """Raise a `TileError` where the operands do not fit together."""

    def normalized(self) -> TileOp:
        """The same operator with every operand of a tile operator an explicit region."""
        if not self.is_tile:
            return self
        operands = [*self.reads(), *self.writes()]
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        regions: dict[str, Any] = {
            name: as_region(value)
            for name, value in values.items()
            if any(value is operand for operand in operands)
        }
        return replace(self, **regions)

    def expanded(self, target: Target | None) -> tirx.Stmt | None:
        """The statements that a normalized operator stands for, other operators among them.

        None for one that is lowered itself.
        """
        del target
        return None

    def with_buffer_copies(self, operands: Sequence[ir.Expr]) -> TileOp:
        """The same operator after operands of it got a leading axis.

        Parameters
        ----------
        operands : sequence of operands
            Those in a tile that a pipelined loop multi-buffers. A region lies in one buffer copy.
        """
        del operands
        return self

    def result_dtype(self) -> str:
        """The dtype of the value that an element operator has; `void` where it has none."""
        return "void"

    def to_call(self, span: ir.Span | None = None) -> ir.Call:
        """The intrinsic call."""
        args = []
        attrs = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if "varargs" in item.metadata:
                args.extend(value)
            elif item.default is MISSING:
                args.append(value)
            elif value != item.default:
                attrs[item.name] = value
        return ir.Call(
            f"tvmtile.{self.name}", args, attrs=attrs or None, span=span, ret_ty=self.result_dtype()
        )

    @classmethod
    def from_call(cls, call: ir.Call) -> TileOp:
        """Read the operator back from its call."""
        operands = [f for f in fields(cls) if f.default is MISSING or "varargs" in f.metadata]
        names = [f.name for f in operands]
        args: list[Any] = list(call.args[:])
        if operands and "varargs" in operands[-1].metadata:
            fixed = len(names) - 1
            args[fixed:] = [tuple(args[fixed:])]
        values = dict(zip(names, args, strict=True))
        if call.attrs is not None:
            # TVM's DictAttrs iterates over its keys through `keys()` only.
            keys = call.attrs.keys()
            values.update({key: python_value(call.attrs[key]) for key in keys})
        return cls(**values)


class ValueOp(TileOp):
    """Base of the operators that name no tile: what they have are values and options."""

    is_tile = False


class CarriesLayouts(TileOp):
    """Base of the operators by which fragments get layouts from others."""

    def carried_layouts(self, layouts: Mapping[ir.Var, Any]) -> dict[ir.Var, Any]:
        """The layouts that fragments should have, so that others, of known layout, fit them.

        Parameters
        ----------
        layouts : dict of Var to FragmentLayout
            The fragments whose layout is known.
        """
        del layouts
        return {}


class Vectorizable(TileOp):
    """Base of the element operators that do several iterations at once."""

    def vectorized(self, variable: ir.Var, lanes: int, place: Sequence[Index]) -> TileOp | None:
        """The operator for several successive iterations at once; None where there is none.

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


class Accumulates(TileOp):
    """Base of the operators that have sums of their own in a loop."""

    def accumulated(self, target: Target) -> tuple[tirx.Stmt, tirx.Stmt, tirx.Stmt] | None:
        """The steps of a normalized operator with sums of its own; None where it has none.

        The first statement begins the sums, the second adds what one operator has, and the third adds
        the sums to what the operator writes.
        """
        del target
        return None


def python_value(value: ir.Expr) -> Any:
    """An attribute of a call as a number or a tuple of Python's, where it is made of constants."""
    if isinstance(value, tvm_ffi.Array):
        return tuple(python_value(each) for each in value)
    if isinstance(value, tirx.IntImm):
        return bool(value.value) if value.ty.dtype == "bool" else int(value.value)
    return value


Op = TypeVar("Op", bound=type[TileOp])


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
def tile_operator(cls: Op) -> Op:
    """Class decorator: the class is how tvmtile sees calls of the intrinsic `tvmtile.<name>`.

    It becomes a frozen dataclass, whose objects are compared by identity.

    Raises
    ------
    InvalidValue
        If it is an operator of a user's, and tvmtile has one of this name.
    """
    other = _OPERATORS.get(cls.name, cls)
    if _is_own(other) != _is_own(cls):
        raise InvalidValue(
            f"the name {cls.name!r} is that of an operator of tvmtile",
            help="give the operator another name",
        )
    register_operators()  # TVM has had it done, unless its autoloading is switched off
    register_operator(cls.name)
    if "__dataclass_params__" not in vars(cls):  # a user's may be one already
        dataclass(frozen=True, eq=False)(cls)
    _OPERATORS[cls.name] = cls
    return cls


def _is_own(cls: type[TileOp]) -> bool:
    return cls.__module__.startswith("tvmtile.")


def operator_of(node: ir.Expr | tirx.Stmt) -> TileOp | None:
    """The tile operator that an expression or a statement calls, or None for anything else."""
    call = node.value if type(node) is tirx.Evaluate else node
    prefix, _, name = op_name(call).partition(".")
    return _read(call) if prefix == "tvmtile" and name in _OPERATORS else None


def operators_in(stmt: ir.Node) -> list[TileOp]:
    """The operators in a statement, in order."""
    operators = map(operator_of, nodes_in(stmt, ir.Call))
    return [op for op in operators if op is not None]


@cached_per_node
def _read(call: ir.Call) -> TileOp:
    return _OPERATORS[op_name(call).partition(".")[2]].from_call(call)


def with_fields(op: TileOp, **values: Any) -> TileOp:
    """The same operator with other operands or options."""
    return replace(op, **values)


def copied(op: TileOp | None) -> tuple[Any, Any] | None:
    """Source and target of an operator that only copies elements as they are; None for others."""
    if op is None or op.role != "copy":
        return None
    (source,), (target,) = op.reads(), op.writes()
    return (source, target) if dtype_of(source) == dtype_of(target) else None


def begun_on(op: Any, mbarrier: Any) -> TileOp | None:
    """A copy, begun by one thread, so that an mbarrier counts the bytes that have come.

    None of an operator that is no such copy.
    """
    if op is None or op.role != "copy" or op.disable_tma:
        return None
    return operator_for("bulk copy")(op.src, op.dst, (mbarrier,), eviction=op.eviction)


def filled(op: Any) -> tuple[Any, Any] | None:
    """The tile and the value of an operator that sets all elements of one; None for others."""
    return (op.writes()[0], op.value) if op is not None and op.role == "fill" else None


def fixed_layouts(op: Any) -> dict[ir.Var, Any]:
    """The buffers whose layout an operator gives, with what the user wrote."""
    return {op.tile: op.layout} if op.role == "layout" else {}


def values_outside(op: Any) -> dict[ir.Var, ir.Expr]:
    """Tensors, with what reads outside of them give; zero where no operator says so."""
    return {op.tensor: op.value} if op.role == "values outside" else {}


def operator_for(role: str) -> Callable[..., TileOp]:
    """The operator of a role.

    Parameters
    ----------
    role : str
        `fill`, made from `(tile, value)`; `reduction` and `partial reduction`, made from `(src, dst,
        kind, dims, clear)`; `begin` and
        `contribute`, from `(dst, value, kind)`; `end`, from `(src, dst, kind)`; `arithmetic` with a
        rounding, from `(operands, operation, rounding)`; or such a `cast`, from
        `((value,), dtype, rounding)`. `kind` is the name of a combiner. Of mbarriers: `mbarriers`,
        from `(buffer, counts)`; `end of phase`, from an element of it; `wait for phase`, from
        `(element, parity)`; `mbarrier`, from `(element, value, action)`. `proxy fence`, from nothing,
        orders stores before asynchronous reads. `registers`, from `(count, more)`, moves registers
        between warpgroups.
    """
    return next(each for each in _OPERATORS.values() if each.role == role)


def all_operators() -> Mapping[str, type[TileOp]]:
    """Every operator by name."""
    return dict(_OPERATORS)


def with_tile(op: TileOp, tile: ir.Var, goal: ir.TensorRegion) -> TileOp:
    """The same operator on a region of another buffer, as large as the tile, in the tile's place.

    `op` is normalized, and may have several regions of the tile; the goal's last axes are the tile's.
    """
    outer = len(ranges_of(goal)) - len(tile.ty.shape)
    for item in fields(op):
        operand = getattr(op, item.name)
        if not isinstance(operand, ir.TensorRegion) or not buffer_of(operand).same_as(tile):
            continue
        inner = list(zip(ranges_of(goal)[outer:], ranges_of(operand), strict=True))
        origin = [r.min for r in ranges_of(goal)[:outer]] + [g.min + o.min for g, o in inner]
        extents = [1] * outer + [o.extent for _, o in inner]
        op = with_fields(op, **{item.name: region(buffer_of(goal), origin, extents)})
    return op
