"""What a kernel does to its tiles, in the order in which it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, is_buffer_var, mutated, walk
from tvmtile.analysis.aliases import Aliases
from tvmtile.errors import SourceLocation
from tvmtile.ir.calls import is_if_then_else, takes_address
from tvmtile.ir.kernels import is_kernel, leaves_loop
from tvmtile.ir.operands import buffer_of, origin_of
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.rewriting import contains
from tvmtile.ir.spans import location_of

__all__ = [
    "Access",
    "accesses_of",
    "kernels_of",
    "uses",
    "values_of_names",
    "written_parameters",
]


@dataclass(frozen=True)
class Access:
    """One use of a buffer.

    Attributes
    ----------
    buffer : Var
        The buffer that was allocated; views (`T.view`, `T.reshape`) are resolved.
    reads, writes : bool
        What happens to it. Both, where its address is taken.
    operator : TileOp or None
        The operator whose operand it is; None for a load or a store.
    indices : tuple of Expr
        Of a single element, or of one whose address is taken; empty for a tile.
    value : Expr or None
        What a store stores; None for anything else.
    loops : tuple of For
        The loops around it, outermost first.
    conditions : tuple of Expr
        Those of the branches around it, as they have to be.
    is_certain : bool
        Loops and conditions alone decide whether it happens.
    location : SourceLocation or None
        The user's line.
    """

    buffer: ir.Var
    reads: bool
    writes: bool
    operator: TileOp | None
    indices: tuple[Any, ...]
    value: Any
    loops: tuple[tirx.For, ...]
    conditions: tuple[Any, ...]
    is_certain: bool
    location: SourceLocation | None

    @property
    def is_whole(self) -> bool:
        """A function gets the buffer, and may do anything to it."""
        return self.operator is None and not self.indices


def kernels_of(func: tirx.PrimFunc) -> Iterator[tirx.For]:
    """The outermost loop of every `T.Kernel` of a function."""
    found: list[tirx.For] = []
    walk(func.body, (tirx.For, lambda loop: found.append(loop) if is_kernel(loop) else None))
    yield from found


def accesses_of(stmt: tirx.Stmt) -> list[Access]:
    """Every use of a buffer in a statement, in program order."""
    return _Accesses().of(stmt)


class _Accesses:
    def __init__(self) -> None:
        self._found: list[Access] = []
        self._aliases = Aliases()
        self._loops: tuple[tirx.For, ...] = ()
        self._conditions: tuple[Any, ...] = ()
        self._is_certain = True
        self._location: SourceLocation | None = None

    def of(self, stmt: tirx.Stmt) -> list[Access]:
        mutated(
            stmt,
            (tirx.For, self._loop),
            (tirx.While, self._uncertain),
            (tirx.IfThenElse, self._branch),
            (tirx.Select, self._select),
            (tirx.DeclBuffer, self._view),
            (tirx.BufferStore, self._store),
            (ir.TensorLoad, self._load),
            (ir.Call, self._call),
        )
        return self._found

    def _note(
        self,
        buffer: ir.Var,
        *,
        reads: bool,
        writes: bool,
        operator: Any = None,
        indices: Any = (),
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
            self._conditions,
            self._is_certain,
            self._location,
        )
        self._found.append(access)

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        outer, self._loops = self._loops, (*self._loops, loop)
        if leaves_loop(loop.body):
            self._uncertain(loop, mutator)
        else:
            mutator.default_mutate(loop)
        self._loops = outer
        return loop

    def _uncertain(self, node: Any, mutator: Mutator) -> Any:
        outer, self._is_certain = self._is_certain, False
        mutator.default_mutate(node)
        self._is_certain = outer
        return node

    def _branch(self, branch: tirx.IfThenElse, mutator: Mutator) -> tirx.Stmt:
        self._cases(mutator, branch.condition, branch.then_case, branch.else_case)
        return branch

    def _select(self, node: tirx.Select, mutator: Mutator) -> ir.Expr:
        self._cases(mutator, node.condition, node.true_value, node.false_value)
        return node

    def _cases(
        self, mutator: Mutator, condition: ir.Expr, then: ir.Node, otherwise: ir.Node | None
    ) -> None:
        mutator.mutate(condition)
        outer = self._conditions
        for case, holds in ((then, condition), (otherwise, tirx.Not(condition))):
            self._conditions = (*outer, holds)
            if case is not None:
                mutator.mutate(case)
        self._conditions = outer

    def _view(self, declaration: tirx.DeclBuffer, mutator: Mutator) -> tirx.Stmt:
        del mutator
        self._aliases.add(declaration)
        return declaration

    def _store(self, store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        self._location = location_of(store)
        mutator.mutate(store.value)
        for index in store.indices:
            mutator.mutate(index)
        self._note(store.buffer, reads=False, writes=True, indices=store.indices, value=store.value)
        self._location = None
        return store

    def _load(self, load: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        outer, self._location = self._location, location_of(load) or self._location
        self._note(load.source, reads=True, writes=False, indices=load.indices)
        self._location = outer
        return mutator.default_mutate(load)

    def _call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        op = operator_of(call)
        if op is not None:
            outer, self._is_certain = self._is_certain, False  # it decides what it reads
            self._operands(op, location_of(call))
            self._expressions_in(op, call, mutator)
            self._is_certain = outer
            return call
        if is_if_then_else(call):
            self._cases(mutator, *call.args)
            return call
        for argument in call.args:  # what has an address may be written through it
            if is_buffer_var(argument):
                self._note(argument, reads=True, writes=True)
            elif takes_address(call) and isinstance(argument, ir.TensorLoad):
                indices = argument.indices
                self._note(argument.source, reads=True, writes=True, indices=indices)
        return mutator.default_mutate(call)

    def _expressions_in(self, op: TileOp, call: ir.Call, mutator: Mutator) -> None:
        """What an operator reads besides its operands: in their indices, in values and options."""
        operands = [*op.reads(), *op.writes()]
        for argument in call.args:
            if is_buffer_var(argument):
                continue
            if not any(argument.same_as(operand) for operand in operands):
                mutator.mutate(argument)
            elif isinstance(argument, ir.TensorRegion):
                for r in argument.region:
                    mutator.mutate(r.min)
                    mutator.mutate(r.extent)
            else:
                for index in argument.indices:
                    mutator.mutate(index)

    def _operands(self, op: TileOp, location: SourceLocation | None) -> None:
        outer, self._location = self._location, location or self._location
        read = [buffer_of(operand) for operand in op.reads()]
        written = [buffer_of(operand) for operand in op.writes()]
        for operand in [*op.reads(), *op.writes()]:
            buffer = buffer_of(operand)
            indices = () if op.is_tile else origin_of(operand)
            self._note(
                buffer, reads=buffer in read, writes=buffer in written, operator=op, indices=indices
            )
        self._location = outer


def written_parameters(func: tirx.PrimFunc) -> tuple[int, ...]:
    """The positions of the parameters whose memory a program may write."""
    written = {access.buffer for access in accesses_of(func.body) if access.writes}
    return tuple(index for index, param in enumerate(func.params) if param in written)


def values_of_names(stmt: tirx.Stmt) -> dict[ir.Var, Any]:
    """What `T.let` and assignments bind names to, in a statement."""
    values: dict[ir.Var, Any] = {}
    walk(stmt, (tirx.Bind, lambda bind: values.__setitem__(bind.var, bind.value)), order="pre")
    return values


def uses(indices: tuple[ir.Expr, ...], variable: ir.Var, names: dict[ir.Var, Any]) -> bool:
    """Tell whether an index depends on a variable, directly or through names bound to it."""

    def depends(node: ir.Expr) -> bool:
        return contains(
            node,
            ir.Var,
            lambda var: var.same_as(variable) or (var in names and depends(names[var])),
        )

    return any(depends(index) for index in indices)
