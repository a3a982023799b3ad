"""Names of TVM 0.27 that are private there or spelled differently from release to release.

Everything else in tvmtile imports TVM's public modules; what could move is imported here, and only
here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Protocol, TypeGuard, TypeVar, overload

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import _ffi_api as _ir_ffi
from tvm.ir import register_op_attr
from tvm.ir._overload_prim_expr import EqualOp, NotEqualOp
from tvm.ir.expr import ExprOperand, ExprWithOp
from tvm.script.ir_builder import IRBuilder
from tvm.script.parser._core import dispatch
from tvm.tirx import CallEffectKind
from tvm.tirx import _ffi_api as _tirx_ffi
from tvm.tirx.buffer import BufferType
from tvm.tirx.build import codegen_build, split_host_device_mods
from tvm.tirx.script.builder.ir import (
    DtypeConstructor,
    register_script_namespace,
    scalar_wrapper,
)
from tvm_ffi import WalkOrder, get_global_func, structural
from tvm_ffi import _ffi_api as _structural_ffi
from tvm_ffi.core import CObject
from tvm_ffi.core import _lookup_or_register_type_info_from_type_key as type_info_of_key

__all__ = [
    "OPAQUE",
    "PURE",
    "READS",
    "CObject",
    "EqualOp",
    "ExprOperand",
    "ExprWithOp",
    "IRBuilder",
    "Mutator",
    "NotEqualOp",
    "add_view",
    "as_expression",
    "buffer_of",
    "buffer_var",
    "call_packed_returning",
    "class_of",
    "codegen_build",
    "dtype_constructed",
    "indices_of",
    "is_buffer_var",
    "is_node",
    "load_device_module",
    "load_host_module",
    "mapped",
    "mutated",
    "nodes_in",
    "packed_imports",
    "parser_method",
    "parser_method_of",
    "ranges_of",
    "register_op",
    "register_op_attr",
    "register_script_namespace",
    "split_host_device_mods",
    "traced",
    "type_info_of_key",
    "view_of",
    "walk",
    "walk_statements",
]


N = TypeVar("N")

VIEWS: dict[type, type] = {}
"""For each of TVM's classes, that of the views that the code of a kernel sees."""
_VIEWED: dict[type, type] = {}
"""The other way round."""
_itself = get_global_func("testing.echo")  # TVM's function that returns what it is given


def add_view(kind: type, view: type) -> None:
    """Let a class be one of views of TVM's nodes of a class, which it derives from.

    The first one is what `traced` makes.
    """
    VIEWS.setdefault(kind, view)
    _VIEWED[view] = kind


def traced(value: Any) -> Any:
    """A node as the code of a kernel sees it (`frontend.expressions`), anything else as it is."""
    of_views: Any = VIEWS.get(type(value))
    return value if of_views is None else view_of(value, of_views)


def view_of(value: Any, of_views: Any) -> Any:
    """A node as an object of a class that derives from that of its views."""
    view = of_views.__new__(of_views)
    view.__init_handle_by_constructor__(_itself, value)
    return view


def class_of(node: Any) -> Any:
    """TVM's class of a node, also of one that the code of a kernel sees."""
    kind = type(node)
    return _VIEWED.get(kind, kind)


def is_node(value: Any, kind: type[N]) -> TypeGuard[N]:
    """Tell whether a value is a node of just this class, also one that the code of a kernel sees.

    `isinstance` of TVM's classes, which have an abstract base, takes long.
    """
    own = type(value)
    return _VIEWED.get(own, own) is kind


def is_buffer_var(value: Any) -> bool:
    """Tell whether a value is a variable of `BufferType`, as TVM's function of that name does."""
    own = type(value)  # as `is_node` does, which is another call, and these are asked most
    return (own is ir.Var or _VIEWED.get(own) is ir.Var) and type(value.ty) is BufferType


_BUFFER = {
    ir.TensorLoad: attrgetter("source"),
    ir.TensorRegion: attrgetter("source"),
    tirx.BufferStore: attrgetter("buffer"),
    tirx.AllocBuffer: attrgetter("buffer"),
    tirx.DeclBuffer: attrgetter("buffer"),
}


def as_expression(value: Any) -> Any:
    """TVM's `a == b`, and a scalar without a name, as the expressions that they stand for."""
    if hasattr(value, "asobject"):  # asked of a name without a value, it is the error
        return value.asobject()
    return value.scalar if isinstance(value, scalar_wrapper) else value


def buffer_of(node: Any) -> ir.Var:
    """The buffer of an operand, or of a statement that stores to it or declares it; a buffer itself.

    The fields that this and the two below read have other names in other releases of TVM.
    """
    of_node = _BUFFER.get(type(node))
    if of_node is not None:
        return of_node(node)
    return node if is_buffer_var(node) else _BUFFER[class_of(node)](node)


indices_of: Callable[[ir.TensorLoad | tirx.BufferStore], Sequence[ir.Expr]] = attrgetter("indices")
"""The indices of an element that is read or stored, one for each axis."""
ranges_of: Callable[[ir.TensorRegion], Sequence[ir.Range]] = attrgetter("region")
"""The ranges of a region, one for each axis."""


def buffer_var(name: str, ty: Any) -> ir.Var:
    """A buffer variable of a given `BufferType`."""
    return _tirx_ffi.BufferVar(name, ty, None)


def call_packed_returning(dtype: str, name: str, *args: object) -> ir.Expr:
    """A call of a global function that returns a number; TVM's `call_packed` returns int32 only."""
    call = tirx.call_packed(name, *args)
    return ir.Call(call.op, call.args, ret_ty=dtype)


register_op = _ir_ffi.RegisterOp
OPAQUE = int(CallEffectKind.Opaque.value)
PURE = int(CallEffectKind.Pure.value)
READS = int(CallEffectKind.ReadState.value)

parser_method = dispatch.register
"""Decorator `(token, node type)`: how TVMScript's parser visits a node under a decorator."""
parser_method_of = dispatch.get
"""The method registered for `(token, node type)`."""


# How tvmtile visits programs. `tvm_ffi` looks up the types and the signatures of callbacks at each
# call, which takes longer than a walk through an expression.

Callbacks = Sequence[tuple[Any, Callable[..., Any]]]
"""Types of nodes, each with what visits them."""


@lru_cache(maxsize=1024)
def _type_indices(types: Any) -> tuple[int, ...]:
    each = types if isinstance(types, tuple) else (types,)
    return tuple(structural._callback_type_to_type_index(t, api_name="tvmtile") for t in each)


_structural_walk = _structural_ffi.StructuralWalk
_structural_map = _structural_ffi.StructuralMap
_structural_mutate = _structural_ffi.StructuralMutate
_ORDERS = {"pre": int(WalkOrder.PREORDER), "post": int(WalkOrder.POSTORDER)}
_SKIP = tvm_ffi.WalkResult.SKIP
_NO_HOOKS = tvm_ffi.convert([])


def _entries(callbacks: Callbacks) -> list[tuple[int, Callable[..., Any]]]:
    return [(index, visit) for types, visit in callbacks for index in _type_indices(types)]


def walk(root: Any, *callbacks: tuple[Any, Callable[[Any], Any]], order: str = "post") -> Any:
    """Visit the nodes of some types, as `tvm_ffi.structural_walk` does."""
    return _structural_walk(root, _entries(callbacks), _NO_HOOKS, _ORDERS[order])


_LEAVES = {tirx.BufferStore, tirx.Bind, tirx.Evaluate, tirx.AllocBuffer, tirx.DeclBuffer}
"""The statements with no others inside: what follows in a walk is expressions, and types."""


def walk_statements(root: Any, visit: Callable[[Any], Any]) -> Any:
    """Visit the statements in another one, outer ones first, as `walk` does.

    A walk looks for each type of nodes in turn, at all nodes, most of which are in expressions.
    """

    def each(stmt: Any) -> Any:
        result = visit(stmt)
        return _SKIP if result is None and type(stmt) in _LEAVES else result

    return walk(root, (tirx.Stmt, each), order="pre")


@overload
def nodes_in(root: Any, types: type[N], order: str = "post") -> list[N]: ...
@overload
def nodes_in(root: Any, types: tuple[type, ...], order: str = "post") -> list[Any]: ...
def nodes_in(root: Any, types: Any, order: str = "post") -> list[Any]:
    """The nodes of some types in a program, in the order of a walk."""
    found: list[Any] = []
    walk(root, (types, found.append), order=order)
    return found


class Mutator(Protocol):
    """The rewriter of what lies below a visited node: `tvm_ffi`'s `StructuralMutator`."""

    @overload
    def mutate(self, value: ir.Var) -> Any: ...
    @overload
    def mutate(self, value: tirx.Stmt) -> tirx.Stmt: ...
    @overload
    def mutate(self, value: ir.Expr) -> ir.Expr: ...
    @overload
    def mutate(self, value: Any) -> Any: ...
    def default_mutate(self, value: N) -> N: ...


Replacement = tuple[Any, Callable[[Any], Any]]
"""Types of nodes, and what becomes of one."""
Rewriting = tuple[Any, Callable[[Any, Mutator], Any]]
"""Types of nodes, and what becomes of one, and of what is below it where that asks for it."""


def mapped(root: N, *callbacks: Replacement) -> N:
    """Replace nodes of some types from the inside out, as `tvm_ffi.structural_map` does.

    A root that is replaced itself becomes a node that can stand in its place.
    """
    return _structural_map(root, _entries(callbacks), _NO_HOOKS, _ORDERS["post"])


def mutated(root: N, *callbacks: Rewriting) -> N:
    """Rewrite nodes of some types from the outside in, as `tvm_ffi.structural_mutate` does.

    A root that is replaced itself becomes a node that can stand in its place.
    """
    entries = [(index, visit, False) for index, visit in _entries(callbacks)]
    return _structural_mutate(root, entries)


def dtype_constructed(value: Any) -> str | None:
    """The dtype that a constructor of TVM's own script is of; None of anything else."""
    return str(value._dtype_str) if isinstance(value, DtypeConstructor) else None


# Compiled modules as bytes.


def load_host_module(path: str) -> Any:
    """The module whose LLVM text a file has; its functions are made when they are asked for."""
    return get_global_func("ffi.Module.load_from_file.ll")(path, "ll")


def load_device_module(kind: str) -> Callable[[bytes], Any] | None:
    """The loader of a GPU's module from its bytes; None where its runtime is not here."""
    return get_global_func(f"ffi.Module.load_from_bytes.{kind}", allow_missing=True)


def packed_imports(module: Any) -> list[tuple[str, bytes]]:
    """The modules that a host's module imports, each with its kind and its bytes.

    Raises
    ------
    ValueError
        If TVM packs them in another way than this release does.
    """
    packed = get_global_func("runtime.ModulePackImportsToTensor")(module).numpy().tobytes()
    (size,) = struct.unpack_from("<Q", packed)
    if size != len(packed) - 8:
        raise ValueError("the size of the imports is not that of their tensor")
    strings = _strings(packed[8:])
    return [(kind.decode(), next(strings)) for kind in strings if kind != b"_lib"]


def _strings(packed: bytes) -> Iterator[bytes]:
    """The strings behind the arrays of imports: a kind, and bytes for all but the host's."""
    offset = 0
    for _ in range(2):
        (count,) = struct.unpack_from("<Q", packed, offset)
        offset += 8 + 8 * count
    while offset < len(packed):
        (size,) = struct.unpack_from("<Q", packed, offset)
        yield packed[offset + 8 : offset + 8 + size]
        offset += 8 + size
