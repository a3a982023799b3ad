"""The accesses, in a statement of a thread, of memory that barriers order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, walk
from tvmtile.analysis.aliases import Aliases, Start
from tvmtile.analysis.uses import Use, uses_in
from tvmtile.errors import SourceLocation
from tvmtile.ir.annotations import ORDER_OF_STORES
from tvmtile.ir.kernels import statements_of
from tvmtile.ir.operands import literal
from tvmtile.ir.rewriting import contains, reads_no_memory, substitute, variables_of
from tvmtile.ir.scopes import is_global, is_private, is_shared
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import Group


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop of a thread, as accesses know it.

    Attributes
    ----------
    node : For or While
        The statement.
    is_uniform : bool
        All threads go through it equally often, and together.
    low, extent : Expr or None
        The first value of its variable and the number of its iterations, without names that are bound
        to values which never change; None of a `while`.
    ordered : frozenset of str
        The tensors that its iterations store to one after the other.
    """

    node: Any
    is_uniform: bool
    low: Any = None
    extent: Any = None
    ordered: frozenset[str] = frozenset()

    @property
    def var(self) -> ir.Var | None:
        """Its variable; None of a `while`."""
        return self.node.loop_var if isinstance(self.node, tirx.For) else None

    @property
    def trip_count(self) -> int | None:
        """How often its body is run, where that is known."""
        return None if self.extent is None else literal(self.extent)

    @property
    def step(self) -> ir.Expr:
        """By how much the variable grows from one iteration to the next."""
        step = getattr(self.node, "step", None)
        return tirx.const(1, "int32") if step is None else step


class MbarrierElement(NamedTuple):
    """An mbarrier: the buffer, and which one of it, where that is a constant."""

    root: ir.Var
    number: int | None

    def may_be(self, other: MbarrierElement) -> bool:
        """Tell whether both may be one."""
        numbers = (self.number, other.number)
        return self.root.same_as(other.root) and (None in numbers or numbers[0] == numbers[1])


@dataclass(frozen=True, eq=False)
class Effect(Use):
    """What the threads do to a buffer in one place of the program.

    Indices and conditions hold no names that are bound to values which never change.
    """

    root: ir.Var
    """The buffer that was allocated, the same object in all its accesses."""
    start: Start | None
    """Where the element is that the indices count from. None without indices."""
    loops: tuple[Loop, ...]
    """The loops around it, outermost first."""
    mbarrier: MbarrierElement | None
    """What it completes on."""
    location: SourceLocation | None
    """The user's line."""
    groups: tuple[Group, ...] = ()
    """The groups of threads whose regions are around it, outermost first."""
    ordering: tuple[Loop, ...] | None = None
    """Of device memory that one statement stores to: the loops whose iterations do so in their order,
    which nothing else has. None of any other memory.
    """
    hands_over: bool = False
    """In the outermost of these regions threads come to barriers by number that others come to too."""

    def is_comparable(self, other: Effect) -> bool:
        """Tell whether the elements of both are known by their places from one buffer on."""
        if self.start is None or other.start is None:
            return False
        if self.indices is None or other.indices is None:
            return False
        return bool(self.start.buffer.same_as(other.start.buffer))

    @property
    def bits_before(self) -> int:
        """Those between the first element of the buffer that its start counts from, and of its own."""
        return 0 if self.start is None else 8 * self.start.offset

    @cached_property
    def is_of_device(self) -> bool:
        """Device memory is accessed, not threadgroup memory."""
        return not is_shared(self.root)

    @cached_property
    def places(self) -> list[ir.Expr]:
        """The expressions that say which elements are touched."""
        used = [*(self.indices or ()), *(stride for _, stride in self.block), *self.conditions]
        for loop in self.loops:
            if loop.var is not None:
                used += [loop.low, loop.extent]
        return used

    @cached_property
    def decisive_loops(self) -> frozenset[Loop]:
        """The loops around it whose variables say which elements are touched."""
        names = set(map(hash, variables_of(self.places)))
        return frozenset(loop for loop in self.loops if hash(loop.var) in names)


class Effects:
    """Finds the accesses of expressions and of single statements.

    Threadgroup memory is looked at, and device memory that the kernel both reads and writes, updates
    atomically besides one of these, or writes in two places, or in the iterations of a loop that have
    an order.

    Parameters
    ----------
    body : Stmt
        What a thread does: its views of buffers and its bindings are looked up.
    in_whiles : iterable of str
        The tensors that iterations of `while` loops store to one after the other.

    Attributes
    ----------
    written : set of Var
        The buffers that are written, as the program names them, but for the arrays of a thread.
    exchanged : frozenset of Var
        The device memory that is used in two ways, of reads, writes and atomic updates.
    device_memory : frozenset of Var
        That, and what is written in two places.
    stored_by_iterations : frozenset of Var
        Other device memory, that a loop stores to whose iterations have an order.
    """

    def __init__(self, body: tirx.Stmt, in_whiles: Iterable[str] = ()) -> None:
        self._aliases = Aliases(body)
        self._in_whiles = frozenset(in_whiles)
        self._stored_in_order = set(self._in_whiles)
        self._objects: dict[ir.Var, ir.Var] = {}
        self._bound: Counter[ir.Var] = Counter()
        self._values: dict[ir.Var, ir.Expr] = {}
        walk(body, (tirx.Bind, self._note_value), (tirx.For, self._note_order), order="pre")
        self._uses: dict[int, tuple[Any, list[Use]]] = {}
        self._resolutions: dict[int, tuple[Any, Any]] = {}
        self._ordered: dict[int, bool] = {}
        self._present: dict[int, tuple[tirx.Stmt, bool]] = {}
        uses = [use for part in _parts(body) for use in self._uses_in(part)]
        self.written = {use.buffer for use in uses if use.writes}
        self.exchanged = self._exchanged(uses)
        self.device_memory = self.exchanged | self._stored_in_two_places(uses)
        self.stored_by_iterations = self._stored_by_iterations(uses) - self.device_memory

    @cached_property
    def written_by_blocks(self) -> frozenset[ir.Var]:
        """The written buffers that other blocks may write too, and their views."""
        root = self._aliases.root
        roots = set(map(root, self.written))
        written = roots.union(view for view in self._aliases.views if root(view) in roots)
        return frozenset(
            buffer
            for buffer in written
            if is_buffer_var(buffer) and not is_shared(buffer) and not is_private(buffer)
        )

    def _note_value(self, bind: tirx.Bind) -> None:
        if bind.var in self._bound:  # in two places, with values that may differ
            self._values.pop(bind.var, None)
        elif ir.is_prim_expr(bind.value) and reads_no_memory(bind.value):
            self._values[bind.var] = substitute(bind.value, self._values)
        self._bound[bind.var] += 1

    def _note_order(self, loop: tirx.For) -> None:
        self._stored_in_order |= ordered_by(loop)

    def is_bound_once(self, name: ir.Var) -> bool:
        """Tell whether only one place gives a name its value."""
        return self._bound[name] == 1

    def _exchanged(self, uses: list[Use]) -> frozenset[ir.Var]:
        read, written, updated = (
            {self.root(use.buffer) for use in uses if _is_of_kind(use)}
            for _is_of_kind in (
                lambda use: not (use.is_atomic or use.writes),
                lambda use: not use.is_atomic and use.writes,
                lambda use: use.is_atomic,
            )
        )
        in_two_ways = (read & written) | (written & updated) | (read & updated)
        return frozenset(filter(is_global, in_two_ways))

    def _stored_in_two_places(self, uses: list[Use]) -> frozenset[ir.Var]:
        stores = Counter(self.root(use.buffer) for use in uses if use.writes and not use.is_atomic)
        return frozenset(root for root, count in stores.items() if count > 1 and is_global(root))

    def _stored_by_iterations(self, uses: list[Use]) -> frozenset[ir.Var]:
        """The device memory that a loop stores to whose iterations have an order.

        Asynchronous copies keep an order of their own.
        """
        stored = {self.root(use.buffer) for use in uses if use.writes and not use.is_atomic}
        copied = {self.root(use.buffer) for use in uses if use.token is not None}
        in_order = self._stored_in_order
        return frozenset(
            root for root in stored - copied if is_global(root) and root.name in in_order
        )

    def root(self, buffer: ir.Var) -> ir.Var:
        """The buffer that a view looks at: always the same object."""
        root = self._aliases.root(buffer)
        return self._objects.setdefault(root, root)

    def loop(self, node: tirx.For | tirx.While, is_uniform: bool) -> Loop:
        """A loop, as the accesses in it know it."""
        if isinstance(node, tirx.While):
            return Loop(node, is_uniform, ordered=self._in_whiles)
        bounds = self.resolved(node.min), self.resolved(node.extent)
        return Loop(node, is_uniform, *bounds, ordered_by(node))

    def of(
        self,
        node: ir.Node,
        loops: tuple[Loop, ...],
        conditions: tuple[ir.Expr, ...],
        **region: object,
    ) -> list[Effect]:
        """The accesses of an expression, or of a statement that holds no others, in their order.

        The last ones are attributes of them all.
        """
        return [
            self._access(use, loops, conditions, location_of(node), region)
            for use in self._uses_in(node)
            if self._is_ordered(use.buffer)
        ]

    def _uses_in(self, node: ir.Node) -> list[Use]:
        """The uses in a part of the body, which is looked at once, but for the arrays of a thread."""
        if hash(node) not in self._uses:
            uses = uses_in(node) if contains(node, ir.Var, _is_seen_by_others) else []
            self._uses[hash(node)] = node, [use for use in uses if not is_private(use.buffer)]
        return self._uses[hash(node)][1]

    def are_in(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement accesses memory that barriers order, or calls anything."""
        known = self._present.get(hash(stmt))
        if known is None:
            children = statements_of(stmt)
            uses = (use for part in _own_parts(stmt, children) for use in self._uses_in(part))
            are_in = (
                type(stmt) is tirx.Evaluate
                or any(map(self.are_in, children))
                or any(self._is_ordered(use.buffer) for use in uses)
            )
            known = self._present[hash(stmt)] = stmt, are_in
        return known[1]

    def _is_ordered(self, buffer: ir.Var) -> bool:
        if hash(buffer) not in self._ordered:
            root = self.root(buffer)
            of_device = self.device_memory | self.stored_by_iterations
            self._ordered[hash(buffer)] = is_shared(root) or root in of_device
        return self._ordered[hash(buffer)]

    def _access(
        self,
        use: Use,
        loops: tuple[Loop, ...],
        conditions: tuple[ir.Expr, ...],
        location: SourceLocation | None,
        region: dict[str, Any],
    ) -> Effect:
        start = self._aliases.start(use.buffer)
        indices = None if start is None else use.indices
        root = self.root(use.buffer)
        ordering = None
        if root in self.stored_by_iterations:
            ordering = tuple(loop for loop in loops if root.name in loop.ordered)
        return Effect(
            buffer=use.buffer,
            indices=None if indices is None else tuple(map(self.resolved, indices)),
            block=tuple((extent, self.resolved(stride)) for extent, stride in use.block),
            writes=use.writes,
            is_atomic=use.is_atomic,
            is_collective=use.is_collective,
            is_gathered=use.is_gathered,
            token=use.token,
            completes_on=use.completes_on,
            is_opaque=use.is_opaque,
            conditions=tuple(map(self.resolved, (*conditions, *use.conditions))),
            ranks=None if use.ranks is None else tuple(map(self.resolved, use.ranks)),
            root=root,
            start=start,
            loops=loops,
            ordering=ordering,
            mbarrier=None if use.completes_on is None else self.mbarrier(use.completes_on),
            location=location,
            **region,
        )

    def mbarrier(self, element: ir.TensorLoad) -> MbarrierElement:
        """Which mbarrier an element is."""
        return MbarrierElement(
            self.root(buffer_of(element)), literal(self.resolved(indices_of(element)[0]))
        )

    def resolved(self, expression: ir.Expr) -> ir.Expr:
        """An expression with bound names replaced by their values, where these never change."""
        if not self._values:
            return expression
        if hash(expression) not in self._resolutions:
            resolution = expression, substitute(expression, self._values)
            self._resolutions[hash(expression)] = resolution
        return self._resolutions[hash(expression)][1]


def ordered_by(loop: tirx.For) -> frozenset[str]:
    """The tensors that the iterations of a loop store to one after the other; see OrderIterations."""
    return frozenset(map(str, loop.annotations.get(ORDER_OF_STORES, ())))


def _is_seen_by_others(var: ir.Var) -> bool:
    """Tell whether a variable is a buffer that other threads access too."""
    return is_buffer_var(var) and not is_private(var)


def _parts(stmt: tirx.Stmt) -> Iterator[Any]:
    """The expressions of loops and branches, and the statements that hold no others."""
    children = statements_of(stmt)
    for child in children:
        yield from _parts(child)
    yield from _own_parts(stmt, children)


def _own_parts(stmt: tirx.Stmt, children: list[tirx.Stmt]) -> Iterator[Any]:
    """What a statement holds beside other statements; itself, if it holds none."""
    if not children:
        yield stmt
        return
    expressions = (getattr(stmt, name, None) for name in ("min", "extent", "condition", "value"))
    yield from (each for each in expressions if each is not None)
