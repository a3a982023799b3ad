"""CheckFragments: no serial loop visits the elements of a fragment that the threads share."""

from __future__ import annotations

import math

from tvm import ir, tirx

from tvmtile.analysis.accesses import Access, accesses_of, kernels_of, let_values, uses
from tvmtile.errors import NestingError
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.operators import operators_in
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.scopes import FRAGMENT_SCOPE

_MOST_HELD_WHOLE = 64
"""Elements of a fragment that a thread may well hold all of, in registers."""


@prim_func_pass("CheckFragments")
def CheckFragments(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse a serial loop over the elements of a fragment that is spread over the threads.

    A fragment is spread over the threads where a tile operator accumulates into it (a matrix
    instruction fixes which thread holds which element), or where T.Parallel visits it, unless it is
    small. In a serial loop every thread would come to every element, of which it holds a few. A small
    fragment, or one that is only copied into, or visited by serial loops alone, can be held whole by
    every thread, and so can one whose layout the user fixes. The program is not changed.

    ```
    T.gemm(A_shared, B_shared, C_local)
    for i in T.serial(64):
        C_local[i, 0] = 0          # refused: every row of C_local is held by other threads
    ```

    Raises
    ------
    NestingError
        For such a loop.
    """
    for kernel in kernels_of(func):
        accesses = accesses_of(kernel)
        names = let_values(kernel)
        spread = {access.buffer for access in accesses if _spreads(access, names)}
        user_layouts = _with_user_layout(kernel)
        for access in accesses:
            loop = _serial_index(access, names)
            if loop is not None and access.buffer in spread - user_layouts:
                raise NestingError(
                    f"the serial loop over {loop.loop_var.name!r} visits elements of the fragment "
                    f"{describe(access.buffer)}, which are spread over the threads of the block",
                    help="visit them in T.Parallel, or T.copy the fragment to a shared tile and index "
                    "that",
                    location=access.location,
                )
    return func


def _spreads(access: Access, names: dict[ir.Var, ir.Expr]) -> bool:
    if access.buffer.ty.storage_scope != FRAGMENT_SCOPE:
        return False
    op = access.operator
    if op is not None and op.is_tile:
        return access.writes and (access.reads or op.is_product)
    extents = [constant(extent) or math.inf for extent in access.buffer.ty.shape]
    if math.prod(extents) <= _MOST_HELD_WHOLE:
        return False
    return any(
        is_parallel(loop) and uses(access.indices, loop.loop_var, names) for loop in access.loops
    )


def _with_user_layout(kernel: tirx.For) -> set[ir.Var]:
    return {buffer for op in operators_in(kernel) for buffer in op.fixed_layouts()}


def _serial_index(access: Access, names: dict[ir.Var, ir.Expr]) -> tirx.For | None:
    """The serial loop whose variable is in the indices of an element; None in T.Parallel."""
    if any(is_parallel(loop) for loop in access.loops):
        return None
    used = [loop for loop in access.loops if uses(access.indices, loop.loop_var, names)]
    if any(_binds_thread(loop) for loop in used):
        return None  # written by thread index: the user decides who holds what
    return next((loop for loop in used if loop.thread_binding is None), None)


def _binds_thread(loop: tirx.For) -> bool:
    binding = loop.thread_binding
    return binding is not None and str(binding.thread_tag).startswith("threadIdx")
