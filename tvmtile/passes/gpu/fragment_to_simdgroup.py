"""FragmentToSimdgroup: what Apple's matrix units work on is held in simdgroup matrices."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import walk
from tvmtile.ir.kernels import Launch, is_kernel
from tvmtile.ir.operands import buffer_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped, substitute
from tvmtile.ir.scopes import FRAGMENT_SCOPE, SIMDGROUP_SCOPE
from tvmtile.ir.spans import location_of
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.target import gpu
from tvmtile.tileop.registry import LoweringContext, demanded_layouts

__all__ = ["FragmentToSimdgroup"]


@prim_func_pass("FragmentToSimdgroup", requires=(Property.REGIONS,))
def FragmentToSimdgroup(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Move fragments that a matrix unit reads or writes from `local.fragment` to `metal.simdgroup`.

    An operator says which of its operands these are. Where the target has an instruction that takes
    all of them from the registers of threads, they stay as they are. The layout that they get later
    has whole 8x8 matrices, and a simdgroup allocates its own share of them only.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32, 32), "float16")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, thread="threadIdx.x"):
                tile = T.alloc_buffer((32, 32), "float16", scope="shared.dyn")
                acc = T.alloc_buffer((32, 32), "float32", scope="local.fragment")
                T.tile.gemm(tile[0:32, 0:32], tile[0:32, 0:32], acc[0:32, 0:32])
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32, 32), "float16")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, thread="threadIdx.x"):
                tile = T.alloc_buffer((32, 32), "float16", scope="shared.dyn")
                acc = T.alloc_buffer((32, 32), "float32", scope="metal.simdgroup")
                T.tile.gemm(tile[0:32, 0:32], tile[0:32, 0:32], acc[0:32, 0:32])
    ```
    """
    del context
    moved: dict[ir.Var, Any] = {}
    if _multiply_as_they_are(func):
        return func

    def note(call: ir.Call) -> None:
        op = operator_of(call)
        for operand in op.matrix_operands() if op is not None else ():
            buffer = buffer_of(operand)
            if buffer.ty.storage_scope == FRAGMENT_SCOPE and buffer not in moved:
                moved[buffer] = retyped(buffer, scope=SIMDGROUP_SCOPE)

    walk(func.body, (ir.Call, note))
    return func.with_body(substitute(func.body, moved)) if moved else func


def _multiply_as_they_are(func: tirx.PrimFunc) -> bool:
    """Tell whether matrix units read and write all fragments of a function where they are."""
    target = func.attrs.get("target") if func.attrs is not None else None
    capability = gpu(target) if target is not None else None
    if capability is None or not capability.has_matmul2d:
        return False
    layouts: dict[ir.Var, set[FragmentLayout | None]] = {}

    def note(call: ir.Call, launch: Launch) -> None:
        op = operator_of(call)
        if op is None or not op.matrix_operands():
            return
        context = LoweringContext(target, Analyzer(), location_of(call), launch=launch)
        demanded = demanded_layouts(op, context)
        for buffer in map(buffer_of, op.matrix_operands()):
            if buffer.ty.storage_scope == FRAGMENT_SCOPE:
                layouts.setdefault(buffer, set()).add(demanded.get(buffer))

    def kernel(loop: tirx.For) -> None:
        if is_kernel(loop):
            launch = Launch(loop)
            walk(loop, (ir.Call, lambda call: note(call, launch)))

    walk(func.body, (tirx.For, kernel))
    return all(None not in found and len(found) == 1 for found in layouts.values())
