"""LeaveUnrolling: the compiler of a kernel's source unrolls what stands under guards."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import Mutator, is_buffer_var, mutated
from tvmtile.ir.annotations import UNROLL_BY_TVM
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.kernels import with_kernels, written_out
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, defined_in, has_effect, replace_loop, variables_of
from tvmtile.ir.scopes import is_global

__all__ = ["LeaveUnrolling"]

_FEW_STATEMENTS = 16
"""Of a nest that is written out here: as short as a loop."""


@prim_func_pass("LeaveUnrolling", requires=(Property.NO_PARALLEL, Property.NO_FRAGMENTS))
def LeaveUnrolling(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave the unrolling of nests whose accesses dynamic extents guard to the compiler of the source.

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
    extents = _dynamic_extents(func)

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if not _is_long_and_guarded(loop, extents):
            return mutator.default_mutate(loop)
        return replace_loop(loop, annotations={**loop.annotations, UNROLL_BY_TVM: False})

    return with_kernels(func, lambda kernel: mutated(kernel, (tirx.For, visit)))


def _dynamic_extents(func: tirx.PrimFunc) -> set[ir.Var]:
    """What a call's tensors say of their shapes."""
    shapes = [param.ty.shape for param in func.params if is_buffer_var(param)]
    return {var for shape in shapes for extent in shape for var in variables_of(extent)}


def _is_long_and_guarded(loop: tirx.For, extents: set[ir.Var]) -> bool:
    is_unrolled = loop.kind == tirx.ForKind.UNROLLED
    is_long = is_unrolled and written_out(loop) > _FEW_STATEMENTS
    return is_long and _has_guards(loop, extents) and not has_effect(loop.body)


def _has_guards(loop: tirx.For, extents: set[ir.Var]) -> bool:
    """Tell whether iterations compare what differs between them with extents, to access tensors."""
    inside = defined_in(loop)

    def guards(node: tirx.IfThenElse | ir.Call) -> bool:
        if isinstance(node, tirx.IfThenElse):
            condition, guarded = node.condition, node.then_case
        elif is_if_then_else(node):
            condition, guarded = node.args[:2]
        else:
            return False
        names = variables_of(condition)
        differs = any(name in inside for name in names) and any(name in extents for name in names)
        return differs and contains(guarded, ir.Var, _is_tensor)

    return contains(loop.body, (tirx.IfThenElse, ir.Call), guards)


def _is_tensor(var: ir.Var) -> bool:
    return is_buffer_var(var) and is_global(var)
