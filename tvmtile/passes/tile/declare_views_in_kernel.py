"""DeclareViewsInKernel: views of a tensor stand where a kernel's analyses look for them."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_var
from tvmtile.analysis.accesses import accesses_of
from tvmtile.analysis.aliases import Aliases
from tvmtile.ir.kernels import Launch, with_kernels, with_launch_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import seq, substitute

__all__ = ["DeclareViewsInKernel"]


@prim_func_pass("DeclareViewsInKernel")
def DeclareViewsInKernel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Declare the views of a tensor in a kernel that writes it and uses it by several names.

    A view may be declared in front of `T.Kernel`, where whoever looks into a kernel does not find
    that two of its tensors are one. Where a kernel uses one of the names, or only reads, the view
    stays outside: the tensor memory accelerator takes tensors whose address no kernel computes.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((4, 32), "float32")):
        flat = T.decl_buffer((128,), "float32", data=A.data)
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for k in range(3):
                A[k + 1, 0] = flat[k * 32]
    ```

    After
    -----
    ```
            flat_1 = T.decl_buffer((128,), "float32", data=A.data)
            for k in range(3):
                A[k + 1, 0] = flat_1[k * 32]
    ```
    """
    aliases = Aliases(func.body)
    if not aliases.views:
        return func
    return with_kernels(func, lambda kernel: _with_views(kernel, aliases))


def _with_views(kernel: tirx.For, aliases: Aliases) -> tirx.For:
    accesses = accesses_of(kernel)
    names = {access.buffer for access in accesses}
    written = {aliases.root(access.buffer) for access in accesses if access.writes}
    inside = Aliases(kernel).views
    new: dict[ir.Var, ir.Var] = {}
    declarations: list[tirx.Stmt] = []
    for view, declaration in aliases.views.items():
        root = aliases.root(view)
        several = sum(aliases.root(name).same_as(root) for name in names) > 1
        if view in inside or root not in written or not several:
            continue
        new[view] = buffer_var(view.name, view.ty)
        declarations.append(tirx.DeclBuffer(new[view], data=substitute(declaration.data, new)))
    if not new:
        return kernel
    body = substitute(Launch(kernel).body, new)
    return with_launch_body(kernel, seq([*declarations, body]))
