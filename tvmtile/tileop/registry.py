"""The implementations of tile operators, and how one is chosen.

A `Lowering` is one implementation of an operator on one kind of target. It declares everything that
passes ask of it: whether it fits, the layouts of fragments and of shared tiles, what may stay in
global memory. `SelectImplementation` chooses the most specific one that fits, once, and writes its
name into the call; every other pass looks it up with `implementation_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.target import Target

from tvmtile._tvm import buffer_of
from tvmtile.errors import SourceLocation
from tvmtile.ir.asynchronous import Kind
from tvmtile.ir.operators import TileOp
from tvmtile.ir.scopes import FRAGMENT_SCOPE, is_fragment, is_shared
from tvmtile.ir.threads import WARP_SIZE, Group
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.target import GpuCapability, gpu

_LOWERINGS: dict[tuple[str, str], list[Lowering]] = {}


class Decline(Exception):
    """A lowering does not fit; the message says why, in terms of the operands or the target."""


class Lacking(Decline):
    """The target has not the instructions: nothing in a kernel could change that."""


@dataclass
class LoweringContext:
    """The questions that a lowering may ask."""

    target: Target
    """The target of the kernel."""
    analyzer: Analyzer
    """The ranges of the loop variables around the operator."""
    location: SourceLocation | None = None
    """The user's line."""
    imports: list[str] = field(default_factory=list)
    """Source text that the lowering's calls need: LLVM's intermediate language for `llvm`. The pass
    links it into the module, each text once."""
    attributes: dict[str, object] = field(default_factory=dict)
    """Attributes that a lowering gives the whole kernel, by TVM's names."""
    alignments: dict[ir.Var, int] = field(default_factory=dict)
    """Bytes that shared tiles begin at a multiple of, as a lowering asks."""
    setup: list[tirx.Stmt] = field(default_factory=list)
    """Statements of a lowering that each block does first."""
    teardown: list[tirx.Stmt] = field(default_factory=list)
    """Statements of a lowering that each block does last."""
    launch: Any = None
    """The loops of the kernel over blocks and threads."""
    group: Group | None = None
    """The threads that do the operator; None: all of the block."""
    is_statement: bool = False
    """The operator stands by itself: nobody takes its value."""
    token: str | None = None
    """The token by which its asynchronous work is signalled and waited for, elsewhere."""
    why_plain: Callable[[ir.Var, Collection[int]], str | None] = lambda *_: None
    """`(tile, panels) -> str or None`: why a shared tile can't lie as an implementation wants it,
    in swizzled panels of one of these widths in bytes."""

    @property
    def kind(self) -> str:
        """Kind of target."""
        return str(self.target.kind.name)

    @property
    def gpu(self) -> GpuCapability:
        """The capability of the GPU that the target is."""
        capability = gpu(self.target)
        assert capability is not None, f"a lowering for GPUs is asked for {self.kind}"
        return capability

    @property
    def threads(self) -> int:
        """The number of threads that do the operator: those of its group, or of the block."""
        return int(self.launch.num_threads) if self.group is None else self.group.count

    @property
    def thread_index(self) -> ir.Expr:
        """The number of a thread among those."""
        index = self.launch.thread_index
        return index if self.group is None else self.group.index_of(index)

    def bind_threads(self, analyzer: Analyzer) -> None:
        """Tell an analyzer the indices of those threads."""
        group = self.group or Group.of_block(self.launch)
        for loop in self.launch.threads:
            is_only = len(self.launch.threads) == 1
            bounds = (group.first, group.count) if is_only else (0, loop.extent)
            analyzer.bind(loop.loop_var, ir.Range.from_min_extent(*bounds))

    def align(self, tile: ir.Var, alignment: int) -> None:
        """Let a shared tile begin at a multiple of some bytes."""
        self.alignments[tile] = max(alignment, self.alignments.get(tile, 1))

    def at(self, location: SourceLocation | None) -> LoweringContext:
        """The same for an operator of another line."""
        return replace(self, location=location)

    def of(self, group: Group | None) -> LoweringContext:
        """The same for an operator that a group of threads does."""
        return replace(self, group=group)


@dataclass(frozen=True)
class SharedTile:
    """The layout that an implementation wants of a shared tile."""

    swizzle: int = 0
    """Bytes of the widest panel of a row, 128, 64 or 32, in which pieces of 16 bytes are exchanged
    so that those of a column lie in different banks; a narrower panel is as good. 0: none.
    """
    required: bool = False
    """The hardware computes where elements lie: the tile has the widest swizzle that its rows and
    `swizzle` allow, and begins at a multiple of what that repeats after.
    """
    padding: int = 0
    """Bytes that rows are longer than their elements, where a block has room for them."""

    def __and__(self, other: SharedTile) -> SharedTile:
        """The layout that suits two implementations that use one tile."""
        widths = [width for width in (self.swizzle, other.swizzle) if width]
        return SharedTile(
            min(widths, default=0),
            self.required or other.required,
            max(self.padding, other.padding),
        )


@dataclass(frozen=True)
class FragmentDemand:
    """The demands of an implementation on fragments."""

    layouts: Callable[[Any, LoweringContext], dict[ir.Var, FragmentLayout]]
    """`(op, context) -> {fragment: FragmentLayout}`, the layouts that the instructions demand."""
    scope: str = FRAGMENT_SCOPE
    """Where the operator's fragments are held."""
    agrees: bool = False
    """All uses of a fragment in a function must demand one layout; else it is chosen for none."""


@dataclass(frozen=True)
class SharedDemand:
    """The wishes of an implementation for shared tiles."""

    tiles: Callable[[Any, LoweringContext], dict[ir.Var, SharedTile]]
    """`(op, context) -> {tile: SharedTile}`, how its own should lie."""
    moved: SharedTile = SharedTile()
    """How those should lie that are moved to or from fragments in the same kernel."""


STAGED = "staged"
"""The variant that goes through shared memory of its own where fragments lie in different threads."""
ON_MBARRIER = "mbarrier"
"""In a pipelined loop one thread may begin it ahead, so that an mbarrier completes it."""

_Predicate: TypeAlias = Callable[[Any, LoweringContext], None]
_Code: TypeAlias = Callable[[Any, LoweringContext], Any]


@dataclass(frozen=True)
class Lowering:
    """One implementation of an operator on one kind of target."""

    operator: str
    target_kind: str
    variant: str
    """The operator, the kind of target, and the name of the way it is done."""
    priority: int
    """Higher ones are tried first; two of an operator and a target never share one."""
    code: _Code
    """`(op, context) -> Stmt`, for an operator that it fits."""
    fits: _Predicate | None = None
    """`(op, context) -> None`; raises `Decline` where it does not fit."""
    fits_layouts: _Predicate | None = None
    """The same for what depends on where fragments lie: such an implementation is chosen after
    InferLayout only, unless `fits` declines already."""
    fragments: FragmentDemand | None = None
    """Where the elements of fragments lie."""
    shared: SharedDemand | None = None
    """How shared tiles should lie."""
    direct: Callable[[Any, LoweringContext], dict[str, int]] | None = None
    """`(op, context) -> {operand: count}`, what could as well stay in global memory, and how many
    groups of threads read each of its elements."""
    completion: Kind | str | None = None
    """Its work is done when a token of that kind is waited for, where its statement stands under
    one, or when an mbarrier completes it (`tvmtile.ir.operators.begun_on`); otherwise, and for
    None, when the next statement begins."""
    slow: Callable[[Any], str | None] | None = None
    """`(op) -> str or None`, what a user should know who expects a matrix unit to be used."""

    def check(self, op: TileOp, context: LoweringContext) -> None:
        """Raise `Decline` where it does not fit, as far as that is known before layouts are."""
        if self.fits is not None:
            self.fits(op, context)

    @property
    def work(self) -> Kind | None:
        """The kind of work that it issues, which a token waits for."""
        return self.completion if isinstance(self.completion, Kind) else None

    def check_layouts(self, op: TileOp, context: LoweringContext) -> None:
        """Raise `Decline` where it does not fit where the operator's fragments lie."""
        if self.fits_layouts is not None:
            self.fits_layouts(op, context)


def lowering(
    operator: type[TileOp] | str,
    *,
    target: str | tuple[str, ...],
    variant: str,
    priority: int = 0,
    unit: int = 1,
    **declared: Any,
) -> Callable[[_Code], _Code]:
    """Register a function as an implementation of an operator.

    Parameters
    ----------
    operator : type of TileOp, or its name
        What it implements.
    target : str or tuple of str
        Kind of target: `llvm`, `cuda`, `metal`.
    variant : str
        Name of the way it is done.
    priority : int
        Higher ones are tried first.
    unit : int
        Threads that execute an instruction together: it fits groups of a multiple of them.
    **declared
        What passes ask of it: the other attributes of `Lowering`. For `fragments` and `shared` a
        function that gives the layouts is enough.
    """
    kinds = (target,) if isinstance(target, str) else target
    name = operator if isinstance(operator, str) else operator.name
    for option, demand in (("fragments", FragmentDemand), ("shared", SharedDemand)):
        if callable(declared.get(option)):
            declared[option] = demand(declared[option])
    if unit > 1:
        declared["fits"] = _by_units(unit, declared.get("fits"))

    def register(code: _Code) -> _Code:
        if not code.__module__.startswith("tvmtile."):
            _import_lowerings()  # so that those of users come after tvmtile's
        for kind in kinds:
            add(Lowering(name, kind, variant, priority, code, **declared))
        return code

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


def _by_units(unit: int, predicate: _Predicate | None) -> _Predicate:
    """A predicate that declines groups of threads that are not whole units, too."""

    def fits(op: TileOp, context: LoweringContext) -> None:
        if context.threads % unit:
            units = "simdgroups" if context.kind == "metal" else "warps"
            units = "warpgroups" if unit > WARP_SIZE else units
            raise Decline(f"{context.threads} threads are not whole {units} of {unit}")
        if context.group is not None and context.group.first % unit:
            raise Decline(f"{context.group} do not begin with a warpgroup of {unit}")
        if predicate is not None:
            predicate(op, context)

    return fits


def no_code(op: TileOp, context: LoweringContext) -> tirx.Stmt:
    """The implementation of what passes have heeded, or of what a target has no use for."""
    del op, context
    return tirx.Evaluate(tirx.const(0, "int32"))


def as_loops(op: TileOp, context: LoweringContext) -> tirx.Stmt:
    """The lowering of an operator that is its loops over elements."""
    del context
    loops = op.as_loops()
    assert loops is not None, f"{op.name} has no loops"
    return loops


def needs(ability: Callable[[GpuCapability], bool], otherwise: str) -> _Predicate:
    """A check for `Lowering.fits`: the GPU has an ability, or what is said where it lacks it."""

    def fits(_: TileOp, context: LoweringContext) -> None:
        if not ability(context.gpu):
            raise Lacking(otherwise)

    return fits


def of_shared_operands(form: SharedTile) -> Callable[[Any, LoweringContext], dict[ir.Var, Any]]:
    """All shared tiles that an operator reads in one form, for `Lowering.shared`."""

    def tiles(op: TileOp, _: LoweringContext) -> dict[ir.Var, SharedTile]:
        return {tile: form for tile in map(buffer_of, op.reads()) if is_shared(tile)}

    return tiles


def candidates_of(op: TileOp, kind: str) -> list[Lowering]:
    """The implementations of an operator on a kind of target, most specific first."""
    _import_lowerings()
    return _LOWERINGS.get((op.name, kind), [])


@lru_cache(maxsize=1)
def _import_lowerings() -> None:
    """Import the modules of lowerings, which writing a program does not need."""
    import tvmtile.tileop.lowerings  # noqa: F401


def implementation_of(op: TileOp, kind: str) -> Lowering | None:
    """The chosen implementation of an operator, or its only one.

    None as long as it is open, which it may be until the layouts of fragments are known.
    """
    candidates = candidates_of(op, kind)
    if op.impl is None:
        return candidates[0] if len(candidates) == 1 else None
    return next((c for c in candidates if c.variant == op.impl), None)


def buffers_of(op: TileOp) -> list[ir.Var]:
    """The buffers of an operator's operands, once each."""
    return list(dict.fromkeys(buffer_of(operand) for operand in (*op.reads(), *op.writes())))


def fragments_of(op: TileOp) -> list[ir.Var]:
    """The fragments among the operands of an operator."""
    return list(filter(is_fragment, buffers_of(op)))


def registered_lowerings() -> list[Lowering]:
    """The lowerings that were registered so far; those of users are among them."""
    return [candidate for candidates in _LOWERINGS.values() for candidate in candidates]
