"""InferLayout: decide which thread holds which element of a fragment."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_var
from tvmtile.errors import warn
from tvmtile.layout.fragment import FragmentLayout
from tvmtile.layout.inference import Conflict, Inference
from tvmtile.passes.kernels import Launch, is_kernel, prim_func_pass
from tvmtile.passes.lower_tile_op import target_of
from tvmtile.rewriting import substitute
from tvmtile.scopes import is_fragment
from tvmtile.tileop.operands import describe
from tvmtile.tileop.registry import LoweringContext

__all__ = ["InferLayout", "retyped"]


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

    def kernel(loop: tirx.For, mutator: Any) -> Any:
        if not is_kernel(loop):
            return mutator.default_mutate(loop)
        launch = Launch(loop)
        return _with_layouts(loop, LoweringContext(target, Analyzer(), launch=launch))

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, kernel)]))


def _with_layouts(loop: tirx.For, context: LoweringContext) -> tirx.For:
    while True:
        fragments = _fragments_of(loop)
        inference = Inference(loop, context, fragments, {})
        conflicts = inference.run()
        if not conflicts:
            new = {f: _laid_out(f, inference.layouts[f]) for f in fragments}
            return substitute(loop, new)
        loop = substitute(
            loop, {_staged(conflict): _shared(conflict.fragment) for conflict in conflicts[:1]}
        )


def _staged(conflict: Conflict) -> ir.Var:
    warn(
        f"{describe(conflict.fragment)} is kept in shared memory: the threads that hold its elements "
        "are not those that need them here, which costs time and memory",
        conflict.location,
    )
    return conflict.fragment


def _fragments_of(loop: tirx.For) -> list[ir.Var]:
    found: list[ir.Var] = []

    def note(node: tirx.AllocBuffer) -> None:
        if is_fragment(node.buffer):
            found.append(node.buffer)

    tvm_ffi.structural_walk(loop, (tirx.AllocBuffer, note), order="pre")
    return found


def _laid_out(buffer: ir.Var, layout: FragmentLayout) -> ir.Var:
    return retyped(buffer, shape=layout.shape, layout=layout.to_tvm())


def _shared(buffer: ir.Var) -> ir.Var:
    return retyped(buffer, scope="shared.dyn")


def retyped(buffer: ir.Var, **changes: Any) -> ir.Var:
    """A buffer like another one, with another shape, dtype, scope or layout."""
    ty = buffer.ty
    ty = tirx.decl_buffer(
        changes.get("shape", ty.shape),
        changes.get("dtype", str(ty.dtype)),
        name=buffer.name,
        scope=changes.get("scope", ty.storage_scope),
        data_alignment=ty.data_alignment,
        layout=changes.get("layout", ty.layout),
    ).ty
    return buffer_var(buffer.name, ty)
