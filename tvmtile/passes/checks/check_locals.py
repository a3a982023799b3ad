"""CheckLocals: a thread-private array is not distributed over the threads."""

from __future__ import annotations

from tvm import tirx

from tvmtile.analysis.accesses import accesses_of, kernels_of, let_values, uses
from tvmtile.errors import InvalidOperand
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import describe
from tvmtile.ir.passes import prim_func_pass


@prim_func_pass("CheckLocals")
def CheckLocals(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse an element of `T.alloc_local` indexed by a T.Parallel variable.

    Every thread has an array of its own, and does a few of the iterations: after the loop each array
    would hold a few of the elements. The program is not changed.

    ```
    own = T.alloc_local((32,), "float32")
    for i in T.Parallel(32):
        own[i] = A[i]              # refused: each thread writes some elements of its own array
    ```

    Raises
    ------
    InvalidOperand
        For such an element.
    """
    for kernel in kernels_of(func):
        names = let_values(kernel)
        for access in accesses_of(kernel):
            if access.buffer.ty.storage_scope != "local":
                continue
            for loop in access.loops:
                if is_parallel(loop) and uses(access.indices, loop.loop_var, names):
                    raise InvalidOperand(
                        f"{loop.loop_var.name!r} of T.Parallel indexes {describe(access.buffer)}, of "
                        "which every thread has one for itself",
                        help="use T.alloc_fragment for a tile that the threads share",
                        location=access.location,
                    )
    return func
