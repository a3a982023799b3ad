"""Checks of a call's arguments by the host, added where TVM makes the host's functions.

CheckAlignment looks at where tensors begin, CheckExtents at numbers and extents; CheckBuffers, when the
kernels are split from the host, at how many tensors there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, is_buffer_var, mapped, mutated, nodes_in
from tvmtile.codegen.names import in_c
from tvmtile.errors import InvalidOperand, NoLowering
from tvmtile.ir.alignment import WIDEST, failure_of, itemsize, origins, unaligned
from tvmtile.ir.calls import op_name, takes_address
from tvmtile.ir.extents import extent_range, widened
from tvmtile.ir.kernels import bound_target, importing_llvm, with_body
from tvmtile.ir.operands import constant, integer_range
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import seq, variables_of
from tvmtile.ir.scopes import is_global
from tvmtile.ir.spans import location_of
from tvmtile.ir.tensor_maps import is_encoder
from tvmtile.target import gpu

_ARGUMENT, _ELEMENT = 15, 17
"""Kinds that `tvm_struct_get` reads: a number as an argument, an extent or stride of a tensor."""
_VECTOR_FUNCTION = re.compile(r"x(\d)\w*_aligned")


def _stop(condition: Any, message: str) -> tirx.Stmt:
    return tirx.AssertStmt(condition, ir.StringImm("ValueError"), [ir.StringImm(message)])


# Addresses ---------------------------------------------------------------------------------------


@prim_func_pass("CheckAlignment", everywhere=True)
def CheckAlignment(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse a call whose tensors begin at no multiple of what its kernels move at once.

    A GPU answers such an access with an error that ends the process's use of it. The check is made of
    what the kernels came to: vectors, asynchronous copies, tensor maps. A tensor whose elements move
    one by one may begin anywhere.

    Raises
    ------
    NoLowering
        If a program that assumes less asks for such an access.
    """
    needed: dict[ir.Var, int] = {}
    roots = origins(func)
    for buffer, alignment, node in _accesses(func.body):
        if buffer not in roots or alignment <= itemsize(buffer):
            continue
        root, assumed = roots[buffer]
        if alignment > assumed:
            raise NoLowering(
                f"{alignment} bytes of {root.name} are accessed at once, which may begin at any "
                f"multiple of {assumed}",
                help="access its elements one by one",
                location=location_of(node),
            )
        needed[root] = max(alignment, needed.get(root, 1))
    if not needed:
        return func
    name = "tvmtile_address_in_" + in_c(str(func.attrs["global_symbol"]))
    alignments = {root.name: alignment for root, alignment in needed.items()}
    func = unaligned(func, alignments)  # else LLVM takes for granted what is checked
    named = [param for param in func.params if param.name in alignments]
    checks = [_is_aligned(param, alignments[param.name], name) for param in named]
    body = seq([*checks, func.body])
    return with_body(func, importing_llvm(body, [_ADDRESS.format(name=name)]))


_ADDRESS = """\
define i64 @{name}(ptr %place) {{
  %address = ptrtoint ptr %place to i64
  ret i64 %address
}}
"""
"""TVM has no conversion of pointers."""


def _is_aligned(root: ir.Var, alignment: int, address: str) -> tirx.Stmt:
    place = root.data if is_buffer_var(root) else root
    rest = tirx.bitwise_and(tirx.call_extern("int64", address, place), alignment - 1)
    return _stop(rest.equal(0), failure_of(root.name, alignment))


def _accesses(body: tirx.Stmt) -> Iterator[tuple[ir.Var, int, Any]]:
    """Tensors, the bytes that are moved at once of each, and where."""
    for node in nodes_in(body, (ir.TensorLoad, tirx.BufferStore, ir.Call)):
        if type(node) is ir.Call:
            yield from _of_call(node)
            continue
        buffer = buffer_of(node)
        if not is_global(buffer) or not indices_of(node):
            continue
        last = indices_of(node)[-1]
        if type(last) is tirx.Ramp:
            size = itemsize(buffer) * int(last.lanes)
            yield buffer, min(size & -size, WIDEST), node


def _of_call(call: ir.Call) -> Iterator[tuple[ir.Var, int, Any]]:
    if is_encoder(call):
        yield from ((v, WIDEST, call) for v in variables_of(call.args[4]) if is_buffer_var(v))
        return
    for arg in (arg for arg in call.args[:] if type(arg) is ir.Call and takes_address(arg)):
        place = arg.args[0]
        if isinstance(place, ir.TensorLoad) and is_global(buffer_of(place)):
            yield buffer_of(place), _bytes_at_once(call, buffer_of(place)), call


def _bytes_at_once(call: ir.Call, buffer: ir.Var) -> int:
    """The bytes that a call with an address of a tensor moves at once."""
    if op_name(call) == "tirx.ptx.cp":
        sizes = [size for size in map(constant, call.args) if size in (4, 8, WIDEST)]
        return WIDEST if any("bulk" in str(arg) for arg in call.args) else max(sizes, default=1)
    named = _VECTOR_FUNCTION.search(str(call.args[0]))
    return itemsize(buffer) * int(named.group(1)) if named else 1


# Numbers and extents -----------------------------------------------------------------------------


@prim_func_pass("CheckExtents", everywhere=True)
def CheckExtents(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse an extent, a stride or a number that its parameter's dtype does not hold.

    `MakePackedAPI` keeps the low bits of it. Extents that are known are compared in 64 bits. A uint64
    is given as the int64 of its bits.
    """
    return with_body(func, mutated(func.body, (tirx.Bind, _bound), (tirx.AssertStmt, _compared)))


def _bound(bind: tirx.Bind, _: Mutator) -> tirx.Stmt:
    found: list[tirx.Cast] = []

    def look(cast: tirx.Cast) -> tirx.Cast:
        if _narrowed(cast) is not None:
            found.append(cast)
        return cast

    mapped(tirx.Evaluate(bind.value), (tirx.Cast, look))
    checks = [_fits(bind.var.name, cast) for cast in found]
    return seq([*checks, bind]) if checks else bind


def _narrowed(value: Any) -> int | None:
    """The place of the argument that a conversion narrows; None of another expression."""
    if not isinstance(value, tirx.Cast) or "int" not in str(value.ty.dtype):
        return None
    read: Any = value.value
    if op_name(read) != "tirx.tvm_struct_get" or str(read.ty.dtype) != "int64":
        return None
    kind = constant(read.args[2])
    if kind == _ARGUMENT and str(value.ty.dtype) == "uint64":
        return None
    return kind if kind in (_ARGUMENT, _ELEMENT) else None


def _fits(name: str, cast: tirx.Cast) -> tirx.Stmt:
    dtype = str(cast.ty.dtype)
    of = extent_range if _narrowed(cast) == _ELEMENT else integer_range
    lowest, highest = of(dtype)
    highest = min(highest, integer_range("int64")[1])
    fits = tirx.all(
        cast.value >= tirx.const(lowest, "int64"), cast.value <= tirx.const(highest, "int64")
    )
    return _stop(fits, f"{name} does not fit {dtype}")


def _compared(check: tirx.AssertStmt, _: Mutator) -> tirx.Stmt:
    def compare(equal: tirx.EQ) -> Any:
        sides: list[Any] = [equal.a, equal.b]
        if _ELEMENT not in map(_narrowed, sides):
            return equal
        return tirx.EQ(*(side.value if _narrowed(side) else widened(side) for side in sides))

    return mapped(check, (tirx.EQ, compare))


# Tensors -----------------------------------------------------------------------------------------


@prim_func_pass("CheckBuffers", everywhere=True)
def CheckBuffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse a kernel that takes more tensors than its GPU binds, and leave others as they are.

    A tensor that has views, or is used in several places, is one argument of its kernel when it is
    split from the host. All scalars of a kernel are one buffer on Metal.

    Raises
    ------
    InvalidOperand
        If a kernel takes more buffers than the target binds to one.
    """
    target = bound_target(func)
    capability = gpu(target) if target is not None and target.host is None else None
    if capability is None or capability.max_buffers is None:
        return func
    tensors = sum(map(_is_tensor, func.params))
    scalars = len(func.params) - tensors
    if tensors + (scalars > 0) > capability.max_buffers:
        also = ", and its scalars take one more" if scalars else ""
        lines = map(location_of, nodes_in(func.body, tirx.Stmt, order="pre"))
        raise InvalidOperand(
            f"T.Kernel: the kernel uses {tensors} tensors{also}; "
            f"{capability.name} binds {capability.max_buffers} buffers to a kernel",
            help="pass several tensors of a dtype as one with a leading axis, or use several kernels",
            location=next((line for line in lines if line is not None), None),
        )
    return func


def _is_tensor(param: ir.Expr) -> bool:
    return is_buffer_var(param) or str(getattr(param.ty, "dtype", "handle")) == "handle"
