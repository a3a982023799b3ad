"""CheckAlignment: the host checks that tensors begin where a GPU's vectors and boxes of them do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile._tvm import buffer_of, is_buffer_var, nodes_in
from tvmtile.codegen.names import in_c
from tvmtile.errors import NoLowering
from tvmtile.ir.alignment import WIDEST, failure_of, itemsize, origins, unaligned
from tvmtile.ir.calls import op_name, takes_address
from tvmtile.ir.kernels import importing_llvm, with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import seq, variables_of
from tvmtile.ir.scopes import is_global
from tvmtile.ir.spans import location_of
from tvmtile.ir.tensor_maps import is_encoder

_VECTOR_FUNCTION = re.compile(r"x(\d)\w*_aligned")


@tvm.transform.module_pass(opt_level=0, name="tvmtile.CheckAlignment")
def CheckAlignment(mod: ir.IRModule, _: PassContext) -> ir.IRModule:
    """Refuse a call whose tensors begin at no multiple of what its kernels move at once.

    A GPU answers such an access with an error that ends the process's use of it. The check is made of
    what the kernels came to: vectors, asynchronous copies, tensor maps. A tensor whose elements move
    one by one may begin anywhere.

    Raises
    ------
    NoLowering
        If a program that assumes less asks for such an access.
    """
    result = mod.clone()
    for name, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            result.update_func(name, _checked(func))
    return result


def _checked(func: tirx.PrimFunc) -> tirx.PrimFunc:
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
    checks = [_check(param, alignments[param.name], name) for param in named]
    body = seq([*checks, func.body])
    return with_body(func, importing_llvm(body, [_ADDRESS.format(name=name)]))


_ADDRESS = """\
define i64 @{name}(ptr %place) {{
  %address = ptrtoint ptr %place to i64
  ret i64 %address
}}
"""
"""TVM has no conversion of pointers."""


def _check(root: ir.Var, alignment: int, address: str) -> tirx.Stmt:
    place = root.data if is_buffer_var(root) else root
    message = ir.StringImm(failure_of(root.name, alignment))
    rest = tirx.bitwise_and(tirx.call_extern("int64", address, place), alignment - 1)
    return tirx.AssertStmt(rest.equal(0), ir.StringImm("ValueError"), [message])


def _accesses(body: tirx.Stmt) -> Iterator[tuple[ir.Var, int, Any]]:
    """Tensors, the bytes that are moved at once of each, and where."""
    for node in nodes_in(body, (ir.TensorLoad, tirx.BufferStore, ir.Call)):
        if isinstance(node, ir.Call):
            yield from _of_call(node)
            continue
        buffer = buffer_of(node) if isinstance(node, ir.TensorLoad) else node.buffer
        last = node.indices[-1] if len(node.indices) else None
        if isinstance(last, tirx.Ramp) and is_global(buffer):
            size = itemsize(buffer) * int(last.lanes)
            yield buffer, min(size & -size, WIDEST), node


def _of_call(call: ir.Call) -> Iterator[tuple[ir.Var, int, Any]]:
    if is_encoder(call):
        yield from ((v, WIDEST, call) for v in variables_of(call.args[4]) if is_buffer_var(v))
        return
    for arg in filter(takes_address, call.args):
        place = arg.args[0]
        if isinstance(place, ir.TensorLoad) and is_global(buffer_of(place)):
            yield buffer_of(place), _bytes_at_once(call, buffer_of(place)), call


def _bytes_at_once(call: ir.Call, buffer: ir.Var) -> int:
    """How many bytes a call that is given an address of a tensor moves at once."""
    if op_name(call) == "tirx.ptx.cp":
        sizes = [size for size in map(constant, call.args) if size in (4, 8, WIDEST)]
        return WIDEST if any("bulk" in str(arg) for arg in call.args) else max(sizes, default=1)
    named = _VECTOR_FUNCTION.search(str(call.args[0]))
    return itemsize(buffer) * int(named.group(1)) if named else 1
