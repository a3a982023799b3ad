"""LeaveUnrolling: the compiler of a kernel's source unrolls what stands under guards."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.ir.annotations import UNROLL_BY_TVM
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.kernels import with_kernels, written_out
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, defined_in, has_effect, replace_loop

__all__ = ["LeaveUnrolling"]

_FEW_STATEMENTS = 16
"""Of a nest that is written out here: as short as a loop."""


@prim_func_pass("LeaveUnrolling", requires=(Property.NO_PARALLEL, Property.NO_FRAGMENTS))
def LeaveUnrolling(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave the unrolling of nests whose accesses are guarded to the compiler of the source.

    A guard per element makes a branch of each, and TVM simplifies every one of them several times. As
    a loop that the source asks to be unrolled, a nest costs as much as one iteration until it comes to
    that compiler, which unrolls it before it decides what is held in registers. Nests of instructions
    are written out: their operands may have to be constants in the source. So are those that are short.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer(("n",), "float32"), C: T.Buffer((64, 128), "float32")):
        n = T.int32()
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, thread="threadIdx.x"):
                for i in T.unroll(64):
                    C[i, tx] = T.if_then_else(i * 128 + tx < n, A[i * 128 + tx], T.float32(0))
    ```

    After
    -----
    ```
                for i in T.unroll(64, annotations={"pragma_unroll_explicit": False}):
                    C[i, tx] = T.if_then_else(i * 128 + tx < n, A[i * 128 + tx], T.float32(0))
    ```
    """

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if not _is_long_and_guarded(loop):
            return mutator.default_mutate(loop)
        return replace_loop(loop, annotations={**loop.annotations, UNROLL_BY_TVM: False})

    return with_kernels(func, lambda kernel: mutated(kernel, (tirx.For, visit)))


def _is_long_and_guarded(loop: tirx.For) -> bool:
    is_unrolled = loop.kind == tirx.ForKind.UNROLLED
    is_long = is_unrolled and written_out(loop) > _FEW_STATEMENTS
    return is_long and _has_guards(loop) and not has_effect(loop.body)


def _has_guards(loop: tirx.For) -> bool:
    """Tell whether accesses to tensors depend on conditions that differ between iterations."""
    inside = defined_in(loop)

    def guards(node: tirx.IfThenElse | ir.Call) -> bool:
        if isinstance(node, tirx.IfThenElse):
            condition, guarded = node.condition, node.then_case
        elif is_if_then_else(node):
            condition, guarded = node.args[:2]
        else:
            return False
        return contains(condition, ir.Var, inside.__contains__) and contains(
            guarded, ir.Var, _is_tensor
        )

    return contains(loop.body, (tirx.IfThenElse, ir.Call), guards)


def _is_tensor(var: Any) -> bool:
    return getattr(var.ty, "storage_scope", None) == "global"
