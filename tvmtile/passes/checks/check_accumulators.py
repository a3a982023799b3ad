"""CheckAccumulators: nothing reads, or accumulates into, a tile that nothing has written."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, nodes_in
from tvmtile.analysis.accesses import Access, accesses_of, kernels_of
from tvmtile.errors import warn
from tvmtile.ir.operands import describe
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import has_effect


@prim_func_pass("CheckAccumulators")
def CheckAccumulators(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Warn where a tile operator adds to a tile that nothing has written before.

    And where a tile is read that nothing writes in the whole kernel: a copy went elsewhere by a slip.

    An operator accumulates where it both reads and writes a tile. Anything written to the tile
    earlier in the program, in a branch or a loop too, is taken for its initial value, so a program
    that gives one is never warned about. The program is not changed.

    ```
    C_local = T.alloc_fragment((64, 64), "float32")
    for k in T.Pipelined(4):
        T.gemm(A_shared, B_shared, C_local)   # warns: gemm updates C_local[64, 64] float32, ...
    ```
    """
    for kernel in kernels_of(func):
        allocated = {each.buffer for each in nodes_in(kernel, tirx.AllocBuffer)}
        accesses = [each for each in accesses_of(kernel) if each.buffer in allocated]
        written: set[ir.Var] = set()
        for access in accesses:
            if access.buffer not in written and _accumulates(access):
                _warn(access)
            if access.writes:
                written.add(access.buffer)
        written |= _results(kernel)
        for access in accesses:
            if access.buffer not in written:
                written.add(access.buffer)  # one warning is enough
                warn(
                    f"{describe(access.buffer)} is read, and nothing writes it: copy to it, or write "
                    f"T.clear({access.buffer.name}) before",
                    access.location,
                )
    return func


def _results(kernel: tirx.For) -> set[ir.Var]:
    """The tiles whose elements a call gets that may write them, as reductions over threads do."""
    calls = filter(has_effect, nodes_in(kernel, ir.Call))
    given = (each for call in calls for each in call.args if isinstance(each, ir.TensorLoad))
    return {buffer_of(load) for load in given}


def _accumulates(access: Access) -> bool:
    op = access.operator
    return op is not None and op.is_tile and access.reads and access.writes


def _warn(access: Access) -> None:
    assert access.operator is not None
    remedy = f"T.clear({access.buffer.name}) before it"
    if access.operator.clearing:
        remedy += f", or {access.operator.clearing}=True"
    warn(
        f"{access.operator.name} updates {describe(access.buffer)}, which holds no value yet: "
        f"write {remedy}",
        access.location,
    )
