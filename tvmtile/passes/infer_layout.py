"""InferLayout: decide which thread holds which element of a fragment."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import warn
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.layout.inference import Conflict, Inference
from tvmtile.passes.kernels import Launch, prim_func_pass, with_kernels
from tvmtile.passes.lower_tile_op import target_of
from tvmtile.rewriting import retyped, substitute
from tvmtile.scopes import SHARED_SCOPE, is_fragment
from tvmtile.tileop.operands import describe
from tvmtile.tileop.registry import LoweringContext

__all__ = ["InferLayout"]


@prim_func_pass("InferLayout")
def InferLayout(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Give the type of every fragment's buffer a layout, `tvm.tirx.layout.TileLayout`.

    The layout maps the element's indices to the number of the thread (`tx`) and of the register
    (`m`); see `tvmtile.layout.inference` for how it is found. Shapes are padded to what the layout
    has places for. A fragment that a nest needs in other threads than those that hold it is staged:
    its scope becomes `shared.dyn`, and a warning says so.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((8, 64), "float32"), C: T.Buffer((8,), "float32")):
        T.func_attr({"target": T.target("metal")})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                x = T.alloc_buffer((8, 64), "float32", scope="local.fragment")
                T.tile.copy(A[0:8, 0:64], x[0:8, 0:64])
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((8, 64), "float32"), C: T.Buffer((8,), "float32")):
        T.func_attr({"target": T.target("metal")})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                x = T.alloc_buffer(
                    (8, 64),
                    "float32",
                    scope="local.fragment",
                    layout=T.TileLayout(T.S[(4, 2, 16, 4):(4, 16 @ Axis.tx, 1 @ Axis.tx, 1)]),
                )
                T.tile.copy(A[0:8, 0:64], x[0:8, 0:64])
    ```
    """
    del context
    target = target_of(func)

    def infer(kernel: tirx.For) -> tirx.For:
        return _with_layouts(kernel, LoweringContext(target, Analyzer(), launch=Launch(kernel)))

    return with_kernels(func, infer)


def _with_layouts(loop: tirx.For, context: LoweringContext) -> tirx.For:
    while True:
        fragments = _fragments_of(loop)
        inference = Inference(loop, context, fragments)
        conflicts = [Conflict(viewed, None) for _, viewed in _views(loop)] or inference.run()
        if not conflicts:
            new = {f: _laid_out(f, inference.layouts[f]) for f in fragments}
            return substitute(loop, new)
        loop = _staged(loop, conflicts[0])


def _staged(loop: tirx.For, conflict: Conflict) -> tirx.For:
    """The kernel with a fragment, and the views of it, in shared memory."""
    fragment = conflict.fragment
    warn(
        f"{describe(fragment)} is kept in shared memory: the threads that hold its elements are not "
        "those that need them here, which costs time and memory",
        conflict.location,
    )
    moved = [fragment, *(view for view, viewed in _views(loop) if viewed.same_as(fragment))]
    return substitute(loop, {buffer: retyped(buffer, scope=SHARED_SCOPE) for buffer in moved})


def _fragments_of(loop: tirx.For) -> list[ir.Var]:
    found: list[ir.Var] = []

    def note(node: tirx.AllocBuffer) -> None:
        if is_fragment(node.buffer):
            found.append(node.buffer)

    tvm_ffi.structural_walk(loop, (tirx.AllocBuffer, note), order="pre")
    return found


def _views(loop: tirx.For) -> list[tuple[ir.Var, ir.Var]]:
    """The views of fragments, with the fragments: their elements are those of an array in memory."""
    found: list[tuple[ir.Var, ir.Var]] = []

    def note(view: tirx.DeclBuffer) -> None:
        variables: list[ir.Var] = []
        tvm_ffi.structural_walk(view.data, (ir.Var, variables.append))
        found.extend((view.buffer, v) for v in variables if is_buffer_var(v) and is_fragment(v))

    tvm_ffi.structural_walk(loop, (tirx.DeclBuffer, note))
    return found


def _laid_out(buffer: ir.Var, layout: FragmentLayout) -> ir.Var:
    return retyped(buffer, shape=layout.shape, layout=layout.to_tvm())
