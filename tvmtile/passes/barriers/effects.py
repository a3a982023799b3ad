"""The accesses of threadgroup memory in a statement of a thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import SourceLocation
from tvmtile.rewriting import is_stable, substitute
from tvmtile.spans import location_of
from tvmtile.tileop.operands import buffer_of, origin_of
from tvmtile.tileop.registry import TileOp, operator_of

__all__ = ["Effects", "Loop", "SharedAccess", "is_synchronised"]


def is_synchronised(buffer: ir.Var) -> bool:
    """Tell whether barriers of ours order the accesses of a buffer: threadgroup memory."""
    # Global memory would be here too, if TVM's Metal generator printed a barrier for it.
    return str(buffer.ty.storage_scope) in ("shared", "shared.dyn")


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop of a thread, as accesses know it.

    Attributes
    ----------
    node : For or While
        The statement.
    is_uniform : bool
        All threads go through it equally often, and together.
    """

    node: Any
    is_uniform: bool

    @property
    def var(self) -> ir.Var | None:
        """Its variable; None of a `while`."""
        return self.node.loop_var if isinstance(self.node, tirx.For) else None

    @property
    def step(self) -> Any:
        """By how much the variable grows from one iteration to the next."""
        step = getattr(self.node, "step", None)
        return tirx.const(1, "int32") if step is None else step


@dataclass(frozen=True, eq=False)
class SharedAccess:
    """What the threads do to a buffer in one place of the program.

    Attributes
    ----------
    root : Var
        The buffer that was allocated.
    buffer : Var
        The view of it that is used, often the buffer itself.
    indices : tuple of Expr, or None
        The element, one index an axis of `buffer`, or a single one that counts its elements in the
        order of memory; None where any element may be meant.
    block : tuple of (int, Expr)
        Extents and strides, in elements, of what lies around that element and is accessed with it.
    writes, is_atomic : bool
        How.
    is_collective : bool
        The threads of a simdgroup do it together: any of them may touch any of the elements.
    is_opaque : bool
        A function that is called with an address does it.
    loops : tuple of Loop
        The loops around it, outermost first.
    conditions : tuple of Expr
        What holds where a thread does it.
    location : SourceLocation or None
        The user's line.
    """

    root: ir.Var
    buffer: ir.Var
    indices: tuple[Any, ...] | None
    block: tuple[tuple[int, Any], ...]
    writes: bool
    is_atomic: bool
    is_collective: bool
    is_opaque: bool
    loops: tuple[Loop, ...]
    conditions: tuple[Any, ...]
    location: SourceLocation | None


@dataclass(frozen=True)
class _Pointer:
    """What a function does with the addresses that it is given."""

    reads: bool
    writes: bool
    matrix: bool = False
    """An 8x8 matrix, whose rows are as far apart as the third argument says, by a simdgroup."""


_UNKNOWN = _Pointer(reads=True, writes=True)
_FUNCTIONS = {
    "tirx.simdgroup_load": _Pointer(reads=True, writes=False, matrix=True),
    "tirx.simdgroup_store": _Pointer(reads=False, writes=True, matrix=True),
    "tirx.ptx.ldmatrix": _Pointer(reads=True, writes=False),
    "tirx.ptx.stmatrix": _Pointer(reads=False, writes=True),
    "tirx.ptx.cp_async_ca": _Pointer(reads=False, writes=True),
    "tirx.ptx.cp_async_cg": _Pointer(reads=False, writes=True),
}
_MATRIX_EXTENT = 8
_LAZY = "prim.if_then_else"


class Effects:
    """Finds the accesses of expressions and of single statements.

    Parameters
    ----------
    body : Stmt
        What a thread does: its views of buffers and its bindings are looked up.
    """

    def __init__(self, body: tirx.Stmt) -> None:
        self._roots: dict[ir.Var, ir.Var] = {}
        self._shifted: set[ir.Var] = set()
        self._bound: set[ir.Var] = set()
        self._values: dict[ir.Var, Any] = {}
        tvm_ffi.structural_walk(
            body,
            [(tirx.DeclBuffer, self._note_view), (tirx.Bind, self._note_value)],
            order="pre",
        )

    def _note_view(self, view: tirx.DeclBuffer) -> None:
        def note(var: ir.Var) -> None:
            if is_buffer_var(var):
                self._roots[view.buffer] = self.root(var)
                if var in self._shifted or not _is_start_of(view.data, var):
                    self._shifted.add(view.buffer)

        tvm_ffi.structural_walk(view.data, (ir.Var, note))

    def _note_value(self, bind: tirx.Bind) -> None:
        if bind.var in self._bound:  # in two places, with values that may differ
            self._values.pop(bind.var, None)
        elif ir.is_prim_expr(bind.value) and is_stable(bind.value):
            self._values[bind.var] = self.resolved(bind.value)
        self._bound.add(bind.var)

    def has_known_place(self, buffer: ir.Var) -> bool:
        """Tell whether a buffer starts where the one that was allocated does."""
        return buffer not in self._shifted

    def root(self, buffer: ir.Var) -> ir.Var:
        """The buffer that a view looks at."""
        return self._roots.get(buffer, buffer)

    def resolved(self, expression: Any) -> Any:
        """An expression with bound names replaced by their values, where these never change."""
        return substitute(expression, self._values)

    def of(
        self, node: Any, loops: tuple[Loop, ...], conditions: tuple[Any, ...]
    ) -> list[SharedAccess]:
        """The accesses of an expression, or of a statement that holds no others, in their order."""
        return _Collector(self, loops, conditions, location_of(node)).collect(node)


def _is_start_of(data: Any, buffer: ir.Var) -> bool:
    """Tell whether a pointer is that of a buffer itself."""
    if isinstance(data, ir.Call) and isinstance(data.op, ir.Op):
        return data.op.name == "tirx.buffer_data" and data.args[0].same_as(buffer)
    return bool(data.same_as(buffer))


class _Collector:
    def __init__(
        self,
        effects: Effects,
        loops: tuple[Loop, ...],
        conditions: tuple[Any, ...],
        location: SourceLocation | None,
    ) -> None:
        self._effects = effects
        self._loops = loops
        self._conditions = conditions
        self._location = location
        self._function = _UNKNOWN
        self._block: tuple[tuple[int, Any], ...] = ()
        self._found: list[SharedAccess] = []

    def collect(self, node: Any) -> list[SharedAccess]:
        if isinstance(node, tirx.AllocBuffer | tirx.DeclBuffer):
            return []
        tvm_ffi.structural_mutate(
            node,
            [
                (tirx.BufferStore, self._store),
                (ir.TensorLoad, self._load),
                (ir.Call, self._call),
            ],
        )
        return self._found

    def _note(
        self,
        buffer: ir.Var,
        indices: Iterable[Any] | None,
        *,
        writes: bool,
        is_atomic: bool = False,
        is_opaque: bool = False,
    ) -> None:
        root = self._effects.root(buffer)
        if not is_synchronised(root):
            return
        if not self._effects.has_known_place(buffer):
            indices = None
        resolved = self._effects.resolved
        self._found.append(
            SharedAccess(
                root,
                buffer,
                None if indices is None else tuple(resolved(index) for index in indices),
                self._block if is_opaque else (),
                writes,
                is_atomic,
                is_opaque and self._function.matrix,
                is_opaque,
                self._loops,
                tuple(resolved(condition) for condition in self._conditions),
                self._location,
            )
        )

    def _store(self, store: tirx.BufferStore, mutator: Any) -> Any:
        mutator.mutate(store.value)
        for index in store.indices:
            mutator.mutate(index)
        self._note(store.buffer, store.indices, writes=True)
        return store

    def _load(self, load: ir.TensorLoad, mutator: Any) -> Any:
        self._note(load.source, load.indices, writes=False)
        return mutator.default_mutate(load)

    def _call(self, call: ir.Call, mutator: Any) -> Any:
        op = operator_of(call)
        if op is not None:
            self._operator(op, call, mutator)
            return call
        name = call.op.name if isinstance(call.op, ir.Op) else ""
        if name == _LAZY:
            self._conditional(call, mutator)
        elif name == "tirx.address_of":
            self._address(call.args[0], mutator)
        elif name == "tirx.tvm_access_ptr":
            self._pointer(call)
        else:
            self._function_call(call, _FUNCTIONS.get(name, _UNKNOWN), mutator)
        return call

    def _operator(self, op: TileOp, call: ir.Call, mutator: Any) -> None:
        read, written = op.reads(), op.writes()
        for argument in call.args:  # an operand names a place and is not a load
            if not any(argument.same_as(place) for place in (*read, *written)):
                mutator.mutate(argument)
        for operands, writes in ((read, False), (written, True)):
            for operand in operands:
                whole = op.is_tile or not isinstance(operand, ir.TensorLoad)
                self._note(
                    buffer_of(operand),
                    None if whole else origin_of(operand),
                    writes=writes,
                    is_atomic=op.is_atomic,
                )

    def _conditional(self, call: ir.Call, mutator: Any) -> None:
        condition, then, otherwise = call.args
        mutator.mutate(condition)
        outer = self._conditions
        for value, holds in ((then, condition), (otherwise, tirx.Not(condition))):
            self._conditions = (*outer, holds)
            mutator.mutate(value)
        self._conditions = outer

    # Addresses ---------------------------------------------------------------------------------

    def _function_call(self, call: ir.Call, function: _Pointer, mutator: Any) -> None:
        outer = self._function, self._block
        self._function, self._block = function, ()
        if function.matrix:
            rows = (_MATRIX_EXTENT, self._effects.resolved(call.args[3]))
            self._block = (rows, (_MATRIX_EXTENT, tirx.const(1, "int32")))
        for argument in call.args:
            if is_buffer_var(argument):
                self._passed(argument, None)
            else:
                mutator.mutate(argument)
        self._function, self._block = outer

    def _address(self, load: Any, mutator: Any) -> None:
        if not isinstance(load, ir.TensorLoad):
            mutator.mutate(load)
            return
        for index in load.indices:
            mutator.mutate(index)
        self._passed(load.source, load.indices if self._function.matrix else None)

    def _pointer(self, call: ir.Call) -> None:
        offset = (call.args[2],) if self._function.matrix else None

        def passed(var: ir.Var) -> None:
            if is_buffer_var(var):
                self._passed(var, offset)

        tvm_ffi.structural_walk(call.args[1], (ir.Var, passed))

    def _passed(self, buffer: ir.Var, indices: Iterable[Any] | None) -> None:
        if self._function.reads:
            self._note(buffer, indices, writes=False, is_opaque=True)
        if self._function.writes:
            self._note(buffer, indices, writes=True, is_opaque=True)
