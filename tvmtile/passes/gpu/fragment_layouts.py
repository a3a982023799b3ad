"""Layouts for the fragments of a kernel.

Layouts that instructions demand, or that the user fixes, come first. From them others follow: through
the indices of elementwise nests, and through operators that carry a layout along (a reduction's
result lies where its rows lie). When nothing follows any more, the largest fragment without a layout,
the first in the program among equals, is spread for coalesced access, and so on. There is no search.

A view of a fragment under another shape has the fragment's registers: the layout of one follows from
that of the other. A fragment that can't lie where a nest needs it is staged: it moves to shared memory,
where any thread reaches any element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, nodes_in
from tvmtile.analysis.effects import Effect
from tvmtile.analysis.nests import Nest, nests_in
from tvmtile.errors import LayoutConflict, SourceLocation
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import bits_of, constant, describe
from tvmtile.ir.operators import CarriesLayouts, TileOp, operator_of
from tvmtile.ir.rewriting import mentions
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import Group, Regions
from tvmtile.layout.fragment import (
    REGISTER,
    Digit,
    FragmentLayout,
    compact_registers,
    replicated,
    spread,
    widest_vector,
)
from tvmtile.layout.loops import LoopLayout, is_free, loop_layout
from tvmtile.tileop.registry import (
    STAGED,
    LoweringContext,
    candidates_of,
    fragments_of,
    implementation_of,
)


@dataclass(frozen=True)
class Placed:
    """A fragment's layout, and why it has that one."""

    fragment: ir.Var
    layout: FragmentLayout
    """Where it lies."""
    location: SourceLocation | None
    """The line of the statement that the layout comes from; None where it was chosen freely."""


@dataclass(frozen=True)
class Conflict:
    """A statement whose threads can't reach a fragment."""

    fragment: ir.Var
    """The fragment in the way: it can be staged through shared memory."""
    location: SourceLocation | None
    """The statement's line."""
    uses: tuple[Placed, ...] = ()
    """The two uses that don't go together; empty where the statement could not be run by the threads
    that hold the fragment even if it touched no other one.
    """
    is_demanded: bool = False
    """Whether an instruction says where the fragment lies."""
    reader: tirx.Stmt | None = None
    """The statement, if it only reads the fragment, which an instruction sums in: a copy will do."""


@dataclass(frozen=True)
class _Step:
    """One statement that touches fragments: an operator, or an elementwise nest."""

    statement: tirx.Stmt
    operator: TileOp | None
    nests: tuple[Nest, ...]
    location: SourceLocation | None
    group: Group | None
    demanded: Mapping[ir.Var, FragmentLayout] = field(default_factory=dict)


class Inference:
    """Finds the layouts of a kernel's fragments, which come in the order of their allocation.

    `views` has the fragment for each view of one.
    """

    def __init__(
        self,
        body: tirx.Stmt,
        context: LoweringContext,
        fragments: list[ir.Var],
        views: Mapping[ir.Var, ir.Var],
    ) -> None:
        self._context = context
        self._fragments = [*fragments, *views]
        self._views = views
        self.layouts: dict[ir.Var, FragmentLayout] = {}
        self._origins: dict[ir.Var, SourceLocation | None] = {}
        self._demanded: set[ir.Var] = set()
        self._accumulators: set[ir.Var] = set()
        self._steps: list[_Step] = []
        self._whole: set[ir.Var] = set()
        self._users: dict[ir.Var, tuple[Group | None, SourceLocation | None]] = {}
        self._collect(body)

    # What there is -----------------------------------------------------------------------------

    def _collect(self, body: tirx.Stmt) -> None:
        regions = Regions()
        found: list[tuple[tirx.Stmt, TileOp | None, Group | None]] = []

        def loop(node: tirx.For, mutator: Mutator) -> tirx.Stmt:
            if not is_parallel(node):
                return mutator.default_mutate(node)
            found.append((node, None, regions.group))
            return node

        def evaluate(node: tirx.Evaluate, mutator: Mutator) -> tirx.Stmt:
            op = operator_of(node)
            if op is None or not op.is_tile:
                return mutator.default_mutate(node)
            found.append((node, op, regions.group))
            return node

        def by_itself(node: ir.TensorLoad, mutator: Mutator) -> ir.TensorLoad:
            buffer = buffer_of(node)
            if buffer in self._fragments:
                self._whole.add(buffer)
                self._note_user(buffer, regions.group, location_of(node))
            return mutator.default_mutate(node)

        tvm_ffi.structural_mutate(
            body,
            [
                (tirx.AttrStmt, regions.visit),
                (tirx.For, loop),
                (tirx.Evaluate, evaluate),
                ((tirx.BufferStore, ir.TensorLoad), by_itself),
            ],
        )
        # Not on the way: what an implementation declines by would be another error behind TVM.
        for node, op, group in found:
            self._add(self._step(node, op, group))

    def _step(self, node: Any, op: TileOp | None, group: Group | None) -> _Step:
        if op is None:
            return _Step(node, None, (Nest(node),), _location_in(node), group)
        location = location_of(node.value)
        chosen = implementation_of(op, self._context.kind)
        demanded: Mapping[ir.Var, FragmentLayout] = {}
        if chosen is not None and chosen.fragments is not None:
            demanded = chosen.fragments.layouts(op, self._context.at(location).of(group))
        loops = None if demanded else op.as_loops()
        nests = tuple(nests_in(loops)) if loops is not None else ()
        return _Step(node, op, nests, location, group, demanded)

    def _add(self, step: _Step) -> None:
        self._steps.append(step)
        for buffer in self._touched(step):
            self._note_user(buffer, step.group, step.location)

    def _touched(self, step: _Step) -> set[ir.Var]:
        touched = [access.buffer for nest in step.nests for access in nest.accesses]
        if step.operator is not None:
            touched += fragments_of(step.operator)
        return {buffer for buffer in self._fragments if buffer in touched}

    def products_around(self, fragment: ir.Var) -> list[tirx.Stmt]:
        """The instructions that work on fragments which statements connect with this one."""
        found, steps = {fragment}, list(self._steps)
        while near := [step for step in steps if found & self._touched(step)]:
            found = found.union(*map(self._touched, near))
            steps = [step for step in steps if step not in near]
        return [s.statement for s in self._steps if s.demanded and found & self._touched(s)]

    def _note_user(
        self, fragment: ir.Var, group: Group | None, location: SourceLocation | None
    ) -> None:
        """Note who holds a fragment: the threads that use it, which are the same everywhere."""
        whole = self._views.get(fragment, fragment)
        holder, where = self._users.setdefault(whole, (group, location))
        if holder == group:
            return
        raise LayoutConflict(
            f"{describe(fragment)} is used by {group or 'all threads'} of the block, and by "
            f"{holder or 'all of them'}" + (f" at {where}" if where is not None else ""),
            help="a fragment lies in the registers of the threads that use it: allocate one for each "
            "group of threads, and hand elements over through shared memory",
            location=location,
        )

    # What follows ------------------------------------------------------------------------------

    def run(self) -> list[Conflict]:
        """Find the layouts; return the conflicts that they leave, at most one a nest."""
        self._fix()
        while True:
            self._carry()
            rest = [f for f in self._fragments if f not in self.layouts]
            if not rest:
                return self._conflicts()
            largest = max(rest, key=lambda fragment: math.prod(_shape(fragment)))
            self.layouts[largest] = self._spread(largest)

    def _spread(self, fragment: ir.Var) -> FragmentLayout:
        """A fragment distributed freely, along the axes that threads count.

        An axis whose index is the same for all iterations of a nest, as the variable of a serial loop
        is, has to be in registers: the threads that run the nest need its element, whichever it is.
        """
        shape, threads = _shape(fragment), self._threads_of(fragment)
        counted = self._counted_axes(fragment)
        extents = tuple(e if n in counted else 1 for n, e in enumerate(shape))
        vector = widest_vector(bits_of(fragment))
        layout = spread(extents, threads, vector)
        axes = (
            digits if number in counted else (Digit(shape[number], REGISTER, 1),)
            for number, digits in enumerate(layout.axes)
        )
        whole = tuple(tuple(digit for digit in digits if digit.extent > 1) for digits in axes)
        return compact_registers(FragmentLayout(threads, whole))

    def _threads_of(self, fragment: ir.Var) -> int:
        """The number of threads that hold a fragment; one that nobody uses belongs to the block."""
        holder, _ = self._users.get(self._views.get(fragment, fragment), (None, None))
        return self._context.of(holder).threads

    def _counted_axes(self, fragment: ir.Var) -> set[int]:
        """The axes that every nest counts along; all of them where a nest counts along none."""
        every = set(range(len(fragment.ty.shape)))
        counted = every
        for nest in (nest for step in self._steps for nest in step.nests):
            for access in nest.accesses:
                if not access.buffer.same_as(fragment):
                    continue
                counted = counted & {
                    number
                    for number, index in enumerate(access.indices)
                    if any(mentions(index, variable) for variable in nest.variables)
                }
        return counted or every

    def _fix(self) -> None:
        for step in self._steps:
            if step.operator is None:
                continue
            written = {buffer_of(operand) for operand in step.operator.writes()}
            self._accumulators |= written & step.demanded.keys()
            for buffer, layout in step.demanded.items():
                if buffer in self._fragments and buffer not in self.layouts:
                    self.layouts[buffer] = layout
                    self._origins[buffer] = step.location
                    self._demanded.add(buffer)
        for buffer in self._fragments:
            if buffer not in self._whole or buffer in self._demanded:
                continue
            self.layouts[buffer] = replicated(_shape(buffer), self._threads_of(buffer))

    def _carry(self) -> None:
        while sum(map(self._carry_through, self._steps)) or self._carry_through_views():
            pass

    def _carry_through_views(self) -> bool:
        known = len(self.layouts)
        for view, fragment in self._views.items():
            for one, other in ((fragment, view), (view, fragment)):
                layout = self._reshaped(one, other) if self._is_unknown(other) else None
                if layout is not None:
                    self.layouts[other] = layout
                    self._origins[other] = self._origins.get(one)
        return len(self.layouts) > known

    def _reshaped(self, buffer: ir.Var, other: ir.Var) -> FragmentLayout | None:
        """The layout of another name of a fragment, which has the elements of this one."""
        layout = self.layouts.get(buffer)
        is_whole = layout is not None and layout.shape == _shape(buffer)
        return layout.reshaped(_shape(other)) if layout is not None and is_whole else None

    def _carry_through(self, step: _Step) -> bool:
        """Lay out the fragments of a step that follow from others; tells whether there were any."""
        found: dict[ir.Var, FragmentLayout] = {}
        if isinstance(step.operator, CarriesLayouts):
            found.update(step.operator.carried_layouts(self.layouts))
        for nest in step.nests:
            unknown = [a for a in nest.accesses if self._is_unknown(a.buffer)]
            if not unknown or is_free(nest, self.layouts.get):
                continue
            layout = loop_layout(nest, self.layouts.get)
            if layout is None:
                continue
            for access in unknown:
                own = layout.of_fragment(nest, access, _shape(access.buffer))
                if own is not None:
                    found.setdefault(access.buffer, own)
        new = {buffer: layout for buffer, layout in found.items() if self._is_unknown(buffer)}
        self.layouts.update(new)
        self._origins.update(dict.fromkeys(new, step.location))
        return bool(new)

    def _is_unknown(self, buffer: ir.Var) -> bool:
        return buffer in self._fragments and buffer not in self.layouts

    def _conflicts(self) -> list[Conflict]:
        found = [
            Conflict(fragment, self._origins.get(view))
            for view, fragment in self._views.items()
            if self._reshaped(fragment, view) != self.layouts[view]
        ]
        for step in self._steps:
            found += self._misplaced(step)
            if step.operator is not None and self._may_stage(step.operator):
                continue
            for nest in step.nests:
                if is_free(nest, self.layouts.get) or loop_layout(nest, self.layouts.get):
                    continue
                touched = [a for a in nest.accesses if a.buffer in self.layouts]
                written = {access.buffer for access in touched if access.writes}
                least = min(
                    touched, key=lambda access: self._cost_of_staging(access.buffer, written)
                )
                uses = self._apart(nest, touched, least)
                is_demanded = least.buffer in self._demanded
                reader = self._reader(step, least.buffer, written)
                found.append(Conflict(least.buffer, step.location, uses, is_demanded, reader))
        return found

    def _may_stage(self, op: TileOp) -> bool:
        """Tell whether an operator goes through shared memory itself where fragments lie apart."""
        kind = self._context.kind
        return len(fragments_of(op)) > 1 and any(
            c.variant == STAGED for c in candidates_of(op, kind)
        )

    def _apart(self, nest: Nest, touched: list[Effect], least: Effect) -> tuple[Placed, ...]:
        """A fragment and one whose threads can't reach it; empty where one alone is the problem."""
        own = {a.buffer: LoopLayout.of_elements(nest, a, self.layouts[a.buffer]) for a in touched}
        if None in own.values():
            return ()
        for access in touched:
            loop, held = own[access.buffer], self.layouts[least.buffer]
            if loop is not None and not loop.reaches(nest, least, held):
                return self._placed(least.buffer), self._placed(access.buffer)
        return ()

    def _placed(self, fragment: ir.Var) -> Placed:
        return Placed(fragment, self.layouts[fragment], self._origins.get(fragment))

    def _cost_of_staging(self, buffer: ir.Var, written: set[ir.Var]) -> tuple[bool, bool, bool]:
        """An instruction reads operands from memory as well, but would load and store accumulators."""
        is_sum = self._views.get(buffer, buffer) in self._accumulators
        return is_sum, buffer in self._demanded, buffer in written

    def _reader(self, step: _Step, buffer: ir.Var, written: set[ir.Var]) -> tirx.Stmt | None:
        is_read = self._views.get(buffer, buffer) in self._accumulators and buffer not in written
        return step.statement if is_read else None

    def _misplaced(self, step: _Step) -> list[Conflict]:
        """Operands that do not lie where the instructions of a step demand."""
        written = {buffer_of(o) for o in step.operator.writes()} if step.operator else set()
        return [
            Conflict(
                buffer,
                step.location,
                (self._placed(buffer), Placed(buffer, layout, step.location)),
                is_demanded=True,
                reader=self._reader(step, buffer, written),
            )
            for buffer, layout in step.demanded.items()
            if self.layouts.get(buffer) != layout
        ]


def _shape(buffer: ir.Var) -> tuple[int, ...]:
    return tuple(constant(extent) or 1 for extent in buffer.ty.shape)


def _location_in(loop: tirx.For) -> SourceLocation | None:
    locations = map(location_of, nodes_in(loop, tirx.BufferStore))
    return next(filter(None, locations), location_of(loop))
