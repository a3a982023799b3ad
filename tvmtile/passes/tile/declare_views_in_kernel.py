"""DeclareViewsInKernel: views of a tensor stand where a kernel's analyses look for them."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_var, is_buffer_var
from tvmtile.analysis.accesses import accesses_of
from tvmtile.analysis.aliases import Aliases, may_share
from tvmtile.ir.annotations import MAY_ALIAS
from tvmtile.ir.kernels import Launch, with_kernels, with_launch_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import seq, substitute


@prim_func_pass("DeclareViewsInKernel")
def DeclareViewsInKernel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Declare the views of a tensor in a kernel that writes it and uses it by several names.

    A view may be declared in front of `T.Kernel`, where whoever looks into a kernel does not find
    that two of its tensors are one. Where a kernel uses one of the names, or only reads, the view
    stays outside: the tensor memory accelerator takes tensors whose address no kernel computes.

    Tensors that `T.annotate_restrict_buffers` names may be one memory, too: all but the first that a
    kernel uses become views of that one, which begin nobody knows where (`T.tvmtile.may_share`).
    """
    aliases = Aliases(func.body)
    sharing = _sharing(func)
    if not aliases.views and not sharing:
        return func
    return with_kernels(func, lambda kernel: _with_views(kernel, aliases, sharing))


def _sharing(func: tirx.PrimFunc) -> list[ir.Var]:
    """The tensors that may share memory; all, where what the user named is one, or none of them."""
    if func.attrs is None or MAY_ALIAS not in func.attrs:
        return []
    tensors = [param for param in func.params if is_buffer_var(param)]
    names = set(map(str, func.attrs[MAY_ALIAS]))
    named = [tensor for tensor in tensors if tensor.name in names]
    return named if len(named) == len(names) > 1 else tensors


def _with_views(kernel: tirx.For, aliases: Aliases, sharing: list[ir.Var]) -> tirx.For:
    accesses = accesses_of(kernel)
    names = {access.buffer for access in accesses}
    used = {aliases.root(name) for name in names}
    shared = [tensor for tensor in sharing if tensor in used]

    def memory(buffer: ir.Var) -> ir.Var:
        root = aliases.root(buffer)
        return shared[0] if root in {*shared} else root

    written = {memory(access.buffer) for access in accesses if access.writes}
    inside = Aliases(kernel).views
    new: dict[ir.Var, ir.Var] = {}
    declarations: list[tirx.Stmt] = []

    def declare(buffer: ir.Var, data: ir.Expr) -> None:
        new[buffer] = buffer_var(buffer.name, buffer.ty)
        declarations.append(tirx.DeclBuffer(new[buffer], data=data))

    if shared and shared[0] in written:
        for tensor in shared[1:]:
            declare(tensor, may_share(tensor, shared[0]))
    for view, declaration in aliases.views.items():
        root = memory(view)
        several = sum(memory(name).same_as(root) for name in names) > 1
        if view not in inside and root in written and several:
            declare(view, substitute(declaration.data, new))
    if not new:
        return kernel
    body = substitute(Launch(kernel).body, new)
    return with_launch_body(kernel, seq([*declarations, body]))
