"""Effects: the accesses of statements and expressions to memory, in their order.

One visitor finds them, for all passes; each node is looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, is_buffer_var, mutated, nodes_in, ranges_of
from tvmtile.analysis.addresses import CONVERSIONS, COPIED, FUNCTIONS, UNKNOWN, Role
from tvmtile.analysis.aliases import Aliases, Start
from tvmtile.analysis.conflicts.expressions import strides
from tvmtile.errors import SourceLocation
from tvmtile.ir.asynchronous import Issue, Product, issued, product_of
from tvmtile.ir.calls import is_if_then_else, op_name, takes_address
from tvmtile.ir.kernels import expressions_of, leaves_loop, statements_of
from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.operands import literal, origin_of
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.rewriting import variables_in, variables_of
from tvmtile.ir.scopes import is_private, is_shared
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import Group


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop of a thread, as the conflicts of its effects know it."""

    node: Any
    """The statement."""
    is_uniform: bool
    """All threads go through it equally often, and together."""
    low: Any = None
    extent: Any = None
    """The first value of its variable and the number of its iterations, without names that are
    bound to values which never change; None of a `while`."""
    ordered: frozenset[str] = frozenset()
    """The tensors that its iterations store to one after the other."""

    @property
    def var(self) -> ir.Var | None:
        """Its variable; None of a `while`."""
        return self.node.loop_var if isinstance(self.node, tirx.For) else None

    @property
    def trip_count(self) -> int | None:
        """The number of times that its body is run, where that is known."""
        return None if self.extent is None else literal(self.extent)

    @property
    def step(self) -> ir.Expr:
        """The growth of the variable from one iteration to the next."""
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


@dataclass(eq=False)  # frozen ones take long to make, and there are thousands
class Effect:
    """One read, or one write, of a buffer.

    Fields from `start` on are what `tvmtile.analysis.thread_effects` knows of it in the program of a
    thread; there names that are bound to values which never change are replaced in all expressions.
    """

    buffer: ir.Var
    """The buffer as the program names it: it may be a view."""
    root: ir.Var
    """The buffer that was allocated, as far as views are declared in what was looked at."""
    indices: Any
    """The element, by axis of `buffer` or by its number in the order of memory; None of whole tiles."""
    block: tuple[tuple[int, Any], ...]
    """Extents and strides, in elements, of what lies around that element and is touched with it."""
    writes: bool
    around: tuple[tirx.For, ...]
    """The loops around it in what was looked at, outermost first."""
    conditions: tuple[ir.Expr, ...]
    """Conditions of the branches around it, as they have to be."""
    is_certain: bool
    """Loops and conditions alone decide whether it happens."""
    nodes: tuple[ir.Node, ...]
    """The statements and expressions around it that may carry the user's line, outermost first."""
    is_exact: bool = True
    """Nothing else of the buffer is touched; where not, any element may be."""
    is_atomic: bool = False
    is_update: bool = False
    """An operator that writes the buffer reads it too."""
    is_collective: bool = False
    """The threads of a simdgroup do it together: any of them may touch any of the elements."""
    is_gathered: bool = False
    """Each of these threads names some of the elements; otherwise all name the same ones."""
    is_opaque: bool = False
    """A function that is called with an address does it."""
    token: str | None = None
    """The token of asynchronous work: until a wait for it, it may write and read."""
    completes_on: ir.TensorLoad | None = None
    """The mbarrier a phase of which is over when it has arrived."""
    ranks: tuple[ir.Expr, ...] | None = None
    """The blocks of the cluster whose memory it is; None: the block's own."""
    operator: TileOp | None = None
    operand: Any = None
    """The operator whose operand it is, and the operand; None of a load, a store or a function."""
    value: Any = None
    """The value of a store."""
    start: Start | None = None
    """The place of the element that the indices count from. None without indices."""
    loops: tuple[Loop, ...] = ()
    """The loops around it, outermost first."""
    mbarrier: MbarrierElement | None = None
    """The mbarrier that it completes on."""
    groups: tuple[Group, ...] = ()
    """The groups of threads whose regions are around it, outermost first."""
    ordering: tuple[Loop, ...] | None = None
    """The only loops that order the stores of one statement to device memory; None of other memory."""
    hands_over: bool = False
    """In the outermost of the regions threads come to barriers by number that others come to too."""

    def changed(self, **values: Any) -> Effect:
        """The same with other values; `dataclasses.replace` takes five times as long."""
        result = object.__new__(Effect)
        result.__dict__.update({name: self.__dict__[name] for name in _FIELDS}, **values)
        return result

    @property
    def reads(self) -> bool:
        """Tell whether it is no write."""
        return not self.writes

    @property
    def is_whole(self) -> bool:
        """A function gets the buffer, and may do anything to it."""
        return self.is_opaque and self.indices is None

    @cached_property
    def location(self) -> SourceLocation | None:
        """The user's line."""
        return next(filter(None, map(location_of, reversed(self.nodes))), None)

    def is_comparable(self, other: Effect) -> bool:
        """Tell whether the elements of both are known by their places from one buffer on."""
        if self.start is None or other.start is None:
            return False
        if self.indices is None or other.indices is None:
            return False
        return bool(self.start.buffer.same_as(other.start.buffer))

    @property
    def bits_before(self) -> int:
        """The distance from the buffer of `start` to the element with index 0."""
        return 0 if self.start is None else 8 * self.start.offset

    @cached_property
    def is_of_device(self) -> bool:
        """Device memory is accessed, not threadgroup memory."""
        return not is_shared(self.root)

    @cached_property
    def places(self) -> list[ir.Expr]:
        """The expressions that say which elements are touched."""
        strides_around = (stride for _, stride in self.block)
        used = [*(self.indices or ()), *strides_around, *self.conditions]
        for loop in self.loops:
            if loop.var is not None:
                used += [loop.low, loop.extent]
        return used

    @cached_property
    def decisive_loops(self) -> frozenset[Loop]:
        """The loops around it whose variables say which elements are touched."""
        names = set(map(hash, variables_of(self.places)))
        return frozenset(loop for loop in self.loops if hash(loop.var) in names)


_FIELDS = tuple(each.name for each in fields(Effect))


@cached_per_node  # of most statements several passes ask, and few are new in each
def effects_of(node: ir.Expr | tirx.Stmt) -> tuple[Effect, ...]:
    """The effects of a statement or an expression, in program order."""
    if type(node) is tirx.AllocBuffer or type(node) is tirx.DeclBuffer:
        return ()
    if not isinstance(node, tirx.Stmt) or not statements_of(node):
        return _Visitor().of(node)
    found: list[Effect] = []
    _collect(node, _Place(Aliases(), (), (), is_certain=True), found)
    return tuple(found)


def effects_on(stmt: tirx.Stmt, is_wanted: Callable[[ir.Var], bool]) -> list[Effect]:
    """The effects of a statement on some buffers, by the names that it has for them."""
    found: list[Effect] = []
    _collect(stmt, _Place(Aliases(), (), (), is_certain=True, is_wanted=is_wanted), found)
    return found


def effects_in_memory(node: ir.Node) -> list[Effect]:
    """The effects, of an expression or a single statement, on all but the arrays of its thread."""
    if all(map(is_private, _buffers_in(node))):  # most statements; to find effects takes longer
        return []
    return [effect for effect in effects_of(node) if not is_private(effect.buffer)]


def _buffers_in(node: ir.Node) -> Iterator[ir.Var]:
    return filter(is_buffer_var, variables_in(node))


def written_parameters(func: tirx.PrimFunc) -> tuple[int, ...]:
    """The positions of the parameters whose memory a program may write."""
    written = {effect.root for effect in effects_of(func.body) if effect.writes}
    return tuple(index for index, param in enumerate(func.params) if param in written)


# Statements --------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """The surroundings of a statement."""

    aliases: Aliases
    around: tuple[tirx.For, ...]
    conditions: tuple[ir.Expr, ...]
    is_certain: bool
    is_wanted: Callable[[ir.Var], bool] | None = None

    def effects_of(self, node: ir.Expr | tirx.Stmt) -> Iterator[Effect]:
        """The effects of an expression or a single statement in it."""
        wanted = self.is_wanted
        if wanted is None:
            return map(self.holds, effects_of(node))
        if not any(map(wanted, _buffers_in(node))):
            return iter(())
        return (self.holds(effect) for effect in effects_of(node) if wanted(effect.buffer))

    def holds(self, effect: Effect) -> Effect:
        """The effect of an expression or a single statement in it."""
        root = self.aliases.root(effect.buffer)
        if root is effect.buffer and not (self.around or self.conditions) and self.is_certain:
            return effect
        return effect.changed(
            root=root,
            around=self.around,
            conditions=(*self.conditions, *effect.conditions),
            is_certain=self.is_certain and effect.is_certain,
        )


def _collect(stmt: tirx.Stmt, place: _Place, found: list[Effect]) -> None:
    children = statements_of(stmt)
    for expression in expressions_of(stmt):
        found += place.effects_of(expression)
    if type(stmt) is tirx.DeclBuffer:
        place.aliases.add(stmt)
    elif not children:
        found += place.effects_of(stmt)
    elif type(stmt) is tirx.For:
        is_certain = place.is_certain and not leaves_loop(stmt.body)
        inside = place._replace(around=(*place.around, stmt), is_certain=is_certain)
        _collect(stmt.body, inside, found)
    elif type(stmt) is tirx.While:
        _collect(stmt.body, place._replace(is_certain=False), found)
    elif type(stmt) is tirx.IfThenElse:
        for case, holds in zip(children, (stmt.condition, tirx.Not(stmt.condition)), strict=False):
            _collect(case, place._replace(conditions=(*place.conditions, holds)), found)
    else:
        for child in children:
            _collect(child, place, found)


# Expressions and single statements ---------------------------------------------------------------


class _Visitor:
    """Notes each load, store, operand and address; what these are given comes first.

    An operand of an operator names a place and is no load; its indices are expressions like others.
    """

    def __init__(self) -> None:
        self._found: list[Effect] = []
        self._conditions: tuple[ir.Expr, ...] = ()
        self._nodes: tuple[ir.Node, ...] = ()
        self._role = UNKNOWN
        self._arguments: tuple[Any, ...] = ()  # of the function that an address is handed to
        self._token: str | None = None  # of the copy that it is handed to

    def of(self, node: ir.Node) -> tuple[Effect, ...]:
        mutated(
            node,
            (tirx.BufferStore, self._store),
            (ir.TensorLoad, self._load),
            (ir.Call, self._call),
            (tirx.Select, self._select),
            ((tirx.And, tirx.Or), self._short_circuit),
        )
        return tuple(self._found)

    def _note(
        self,
        buffer: ir.Var,
        indices: Iterable[ir.Expr] | None,
        *,
        writes: bool,
        block: tuple[tuple[int, Any], ...] = (),
        **how: Any,
    ) -> None:
        self._found.append(
            Effect(
                buffer,
                buffer,
                None if indices is None else tuple(indices),
                block,
                writes,
                (),
                self._conditions,
                True,
                self._nodes,
                **how,
            )
        )

    def _select(self, node: tirx.Select, mutator: Mutator) -> ir.Expr:
        self._cases(mutator, node.condition, node.true_value, node.false_value)
        return node

    def _short_circuit(self, node: tirx.And | tirx.Or, mutator: Mutator) -> ir.Expr:
        """The second operand is evaluated where the first one does not decide."""
        mutator.mutate(node.a)
        outer = self._conditions
        holds = node.a if isinstance(node, tirx.And) else tirx.Not(node.a)
        self._conditions = (*outer, holds)
        mutator.mutate(node.b)
        self._conditions = outer
        return node

    def _cases(
        self, mutator: Mutator, condition: ir.Expr, then: ir.Expr, otherwise: ir.Expr
    ) -> None:
        mutator.mutate(condition)
        outer = self._conditions
        for case, holds in ((then, condition), (otherwise, tirx.Not(condition))):
            self._conditions = (*outer, holds)
            mutator.mutate(case)
        self._conditions = outer

    def _store(self, store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        outer, self._nodes = self._nodes, (*self._nodes, store)
        mutator.mutate(store.value)
        indices = tuple(indices_of(store))
        for index in indices:
            mutator.mutate(index)
        self._note(buffer_of(store), indices, writes=True, value=store.value)
        self._nodes = outer
        return store

    def _load(self, load: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        outer, self._nodes = self._nodes, (*self._nodes, load)
        self._note(buffer_of(load), indices_of(load), writes=False)
        self._nodes = outer
        return mutator.default_mutate(load)

    def _call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        op, name = operator_of(call), op_name(call)
        if op is not None:
            self._operator(op, call, mutator)
        elif is_if_then_else(call):
            self._cases(mutator, *call.args)
        elif (product := product_of(call)) is not None:
            self._product(product, mutator)
        elif (copy := issued(call)) is not None:
            self._copy(copy, mutator)
        elif takes_address(call):
            self._address(call.args[0], mutator)
        elif name in CONVERSIONS:
            mutator.default_mutate(call)
        elif name == "tirx.tvm_access_ptr":
            for buffer in filter(is_buffer_var, nodes_in(call.args[1], ir.Var)):
                self._passed(buffer, (call.args[2],) if self._role.names_elements else None)
        else:
            self._function_call(call.args[:], FUNCTIONS.get(name, (UNKNOWN,)), mutator)
        return call

    # Operators ---------------------------------------------------------------------------------

    def _operator(self, op: TileOp, call: ir.Call, mutator: Mutator) -> None:
        outer, self._nodes = self._nodes, (*self._nodes, call)
        effects = op.effects()
        reads, writes = effects.reads, effects.writes
        named = (effects.completes_on, effects.arrives_at)
        arrivals = [x for x in named if x is not None and not any(map(x.same_as, writes))]
        for argument in call.args[:]:
            self._argument(argument, [*reads, *writes, *arrivals], mutator)
        for mbarrier in arrivals:
            self._note(buffer_of(mbarrier), indices_of(mbarrier), writes=False, is_atomic=True)
        for operands, others, is_written in ((reads, writes, False), (writes, reads, True)):
            for operand in operands:
                buffer = buffer_of(operand)
                is_element = not op.is_tile and isinstance(operand, ir.TensorLoad)
                ranks = effects.ranks if is_written else None
                self._note(
                    buffer,
                    None if op.is_tile else origin_of(operand),
                    writes=is_written,
                    block=_box(buffer, effects.box) if is_element else (),
                    is_exact=is_element,
                    is_atomic=effects.is_atomic,
                    is_update=any(buffer_of(other).same_as(buffer) for other in others),
                    token=effects.token,
                    completes_on=effects.completes_on,
                    ranks=None if ranks is None else tuple(ranks),
                    operator=op,
                    operand=operand,
                )
        self._nodes = outer

    def _argument(self, argument: Any, operands: list[Any], mutator: Mutator) -> None:
        """Visit an operator's argument; of an operand what says where it is."""
        if is_buffer_var(argument):
            return
        if not any(map(argument.same_as, operands)):
            mutator.mutate(argument)
        elif isinstance(argument, ir.TensorRegion):
            for r in ranges_of(argument)[:]:
                mutator.mutate(r.min)
                mutator.mutate(r.extent)
        else:
            for index in indices_of(argument)[:]:
                mutator.mutate(index)

    # Addresses ---------------------------------------------------------------------------------

    def _copy(self, copy: Issue, mutator: Mutator) -> None:
        outer, self._token = self._token, copy.token
        self._function_call(copy.operands, COPIED, mutator)
        self._token = outer

    def _product(self, product: Product, mutator: Mutator) -> None:
        self._note(buffer_of(product.sums), indices_of(product.sums), writes=True)
        mutator.mutate(product.sums)
        if not takes_address(product.a):
            mutator.mutate(product.a)
        outer = self._role, self._token
        self._token = product.token
        for address, rows, columns in product.matrices:
            self._role = Role(reads=True, tile=(rows, columns))
            mutator.mutate(address)
        self._role, self._token = outer

    def _function_call(
        self, arguments: Iterable[ir.Expr], roles: tuple[Role, ...], mutator: Mutator
    ) -> None:
        outer = self._role, self._arguments
        self._arguments = tuple(arguments)
        for number, argument in enumerate(self._arguments):
            self._role = roles[min(number, len(roles) - 1)]
            if is_buffer_var(argument):
                self._passed(argument, None)
            else:
                mutator.mutate(argument)
        self._role, self._arguments = outer

    def _address(self, load: ir.Expr, mutator: Mutator) -> None:
        if not isinstance(load, ir.TensorLoad):
            mutator.mutate(load)
            return
        for index in indices_of(load):
            mutator.mutate(index)
        self._passed(buffer_of(load), indices_of(load))

    def _passed(self, buffer: ir.Var, indices: Iterable[ir.Expr] | None) -> None:
        role = self._role
        for writes in [False] * role.reads + [True] * role.writes:
            self._note(
                buffer,
                indices,
                writes=writes,
                block=role.block(buffer, self._arguments),
                is_exact=role.names_elements and indices is not None,
                is_collective=role.is_collective,
                is_gathered=role.row,
                is_opaque=True,
                token=self._token if role.is_asynchronous else None,
            )


def _box(buffer: ir.Var, extents: Sequence[int]) -> tuple[tuple[int, Any], ...]:
    """The extents and strides of a box along the last axes of a buffer, without leading units."""
    steps = strides(buffer)[len(buffer.ty.shape) - len(extents) :]
    axes = list(zip(extents, steps, strict=True))
    first = next((axis for axis, extent in enumerate(extents) if extent > 1), len(axes))
    return tuple(axes[first:])
