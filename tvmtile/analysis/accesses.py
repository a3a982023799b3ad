"""What a kernel does to its tiles, in the order in which it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, is_buffer_var, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.collector import Collector
from tvmtile.errors import SourceLocation
from tvmtile.ir.calls import takes_address
from tvmtile.ir.kernels import is_kernel, leaves_loop
from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.operands import origin_of
from tvmtile.ir.operators import TileOp
from tvmtile.ir.rewriting import substitute, variables_of
from tvmtile.ir.spans import location_of

N = TypeVar("N", bound=ir.Node)


@dataclass(frozen=True)
class Access:
    """One use of a buffer."""

    buffer: ir.Var
    """The buffer that was allocated; views (`T.view`, `T.reshape`) are resolved."""
    reads: bool
    writes: bool
    """What happens to it. Both, where its address is taken."""
    operator: TileOp | None
    """The operator whose operand it is; None for a load or a store."""
    indices: tuple[ir.Expr, ...]
    """Of a single element, or of one whose address is taken; empty for a tile."""
    value: Any
    """What a store stores; None for anything else."""
    loops: tuple[tirx.For, ...]
    """The loops around it, outermost first."""
    conditions: tuple[ir.Expr, ...]
    """Those of the branches around it, as they have to be."""
    is_certain: bool
    """Loops and conditions alone decide whether it happens."""
    location: SourceLocation | None
    """The user's line."""

    @property
    def is_whole(self) -> bool:
        """A function gets the buffer, and may do anything to it."""
        return self.operator is None and not self.indices


def kernels_of(func: tirx.PrimFunc) -> Iterator[tirx.For]:
    """The outermost loop of every `T.Kernel` of a function."""
    return filter(is_kernel, nodes_in(func.body, tirx.For))


def accesses_of(stmt: tirx.Stmt) -> list[Access]:
    """Every use of a buffer in a statement, in program order."""
    return list(_accesses_of(stmt))


@cached_per_node
def _accesses_of(stmt: tirx.Stmt) -> tuple[Access, ...]:
    return tuple(_Accesses().of(stmt))


def elements_in(stmt: tirx.Stmt, names: dict[ir.Var, ir.Expr]) -> list[Access]:
    """The uses of single elements in a statement, in program order, with names replaced by values."""

    def known(expressions: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(substitute(each, names) for each in expressions)

    return [
        replace(
            each,
            indices=known(each.indices),
            value=None if each.value is None else substitute(each.value, names),
            conditions=known(each.conditions),
        )
        for each in accesses_of(stmt)
        if each.indices
    ]


class _Accesses(Collector):
    def __init__(self) -> None:
        super().__init__()
        self._found: list[Access] = []
        self._aliases = Aliases()
        self._loops: tuple[tirx.For, ...] = ()
        self._is_certain = True
        self._location: SourceLocation | None = None

    def of(self, stmt: tirx.Stmt) -> list[Access]:
        self.visit(
            stmt,
            (tirx.For, self._loop),
            (tirx.While, self._uncertain),
            (tirx.IfThenElse, self._branch),
            (tirx.Select, self._select),
            (tirx.DeclBuffer, self._view),
        )
        return self._found

    def _note(
        self,
        buffer: ir.Var,
        *,
        reads: bool = False,
        writes: bool = False,
        operator: TileOp | None = None,
        indices: Sequence[ir.Expr] = (),
        value: ir.Expr | None = None,
    ) -> None:
        access = Access(
            self._aliases.root(buffer),
            reads,
            writes,
            operator,
            tuple(indices),
            value,
            self._loops,
            self.conditions,
            self._is_certain,
            self._location,
        )
        self._found.append(access)

    @contextmanager
    def _at(self, node: ir.Node) -> Iterator[None]:
        outer, self._location = self._location, location_of(node) or self._location
        yield
        self._location = outer

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        outer, self._loops = self._loops, (*self._loops, loop)
        if leaves_loop(loop.body):
            self._uncertain(loop, mutator)
        else:
            mutator.default_mutate(loop)
        self._loops = outer
        return loop

    def _uncertain(self, node: N, mutator: Mutator) -> N:
        outer, self._is_certain = self._is_certain, False
        mutator.default_mutate(node)
        self._is_certain = outer
        return node

    def _branch(self, branch: tirx.IfThenElse, mutator: Mutator) -> tirx.Stmt:
        self.cases(mutator, branch.condition, branch.then_case, branch.else_case)
        return branch

    def _select(self, node: tirx.Select, mutator: Mutator) -> ir.Expr:
        self.cases(mutator, node.condition, node.true_value, node.false_value)
        return node

    def _view(self, declaration: tirx.DeclBuffer, _: Mutator) -> tirx.Stmt:
        self._aliases.add(declaration)
        return declaration

    def _store(self, store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        with self._at(store):
            return super()._store(store, mutator)

    def on_store(self, store: tirx.BufferStore) -> None:
        self._note(buffer_of(store), writes=True, indices=indices_of(store)[:], value=store.value)

    def on_load(self, load: ir.TensorLoad) -> None:
        with self._at(load):
            self._note(buffer_of(load), reads=True, indices=indices_of(load)[:])

    def on_operator(self, op: TileOp, call: ir.Call, mutator: Mutator) -> None:
        outer, self._is_certain = self._is_certain, False  # it decides what it reads
        with self._at(call):
            super().on_operator(op, call, mutator)
            read = [buffer_of(operand) for operand in op.reads()]
            written = [buffer_of(operand) for operand in op.writes()]
            for operand in [*op.reads(), *op.writes()]:
                buffer = buffer_of(operand)
                self._note(
                    buffer,
                    reads=buffer in read,
                    writes=buffer in written,
                    operator=op,
                    indices=() if op.is_tile else origin_of(operand),
                )
        self._is_certain = outer

    def on_call(self, call: ir.Call, mutator: Mutator) -> None:
        for argument in call.args[:]:  # what has an address may be written through it
            if is_buffer_var(argument):
                self._note(argument, reads=True, writes=True)
            elif takes_address(call) and isinstance(argument, ir.TensorLoad):
                self._note(
                    buffer_of(argument), reads=True, writes=True, indices=indices_of(argument)
                )
        mutator.default_mutate(call)


def written_parameters(func: tirx.PrimFunc) -> tuple[int, ...]:
    """The positions of the parameters whose memory a program may write."""
    written = {access.buffer for access in accesses_of(func.body) if access.writes}
    return tuple(index for index, param in enumerate(func.params) if param in written)


def let_values(stmt: tirx.Stmt) -> dict[ir.Var, ir.Expr]:
    """What `T.let` and assignments bind names to, in a statement."""
    return {bind.var: bind.value for bind in nodes_in(stmt, tirx.Bind, order="pre")}


def uses(indices: tuple[ir.Expr, ...], variable: ir.Var, names: dict[ir.Var, ir.Expr]) -> bool:
    """Tell whether an index depends on a variable, directly or through names bound to it."""
    return any(map(variable.same_as, transitive_variables(indices, names)))


def transitive_variables(
    indices: tuple[ir.Expr, ...], names: dict[ir.Var, ir.Expr]
) -> Iterator[ir.Var]:
    """What indices depend on, through names bound to it: variables, and buffers that are read."""
    for index in indices:
        for var in variables_of(index):
            if var in names:
                yield from transitive_variables((names[var],), names)
            else:
                yield var
