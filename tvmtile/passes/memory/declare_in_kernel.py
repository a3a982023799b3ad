"""DeclareInKernel: a kernel gets the address of a tensor once."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, buffer_var, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.ir.kernels import Launch, with_kernels, with_launch_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import seq, substitute


@prim_func_pass("DeclareInKernel")
def DeclareInKernel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Declare tensors that are accessed directly and through views again, in the kernel.

    TVM flattens what is accessed directly, outside of the kernel, which then has two arguments for one
    tensor: the flat tensor for the direct accesses, the tensor itself for the views. But compilers for
    GPUs take the arguments of a kernel to be different memory, and may move a load through the one in
    front of a store through the other.
    """
    return with_kernels(func, _with_declarations)


def _with_declarations(kernel: tirx.For) -> tirx.For:
    body = Launch(kernel).body
    new: dict[ir.Var, ir.Var] = {
        tensor: buffer_var(tensor.name, tensor.ty) for tensor in _accessed_in_two_ways(body)
    }
    if not new:
        return kernel
    declarations = [tirx.DeclBuffer(new[tensor], data=tensor.data) for tensor in new]
    return with_launch_body(kernel, seq([*declarations, substitute(body, new)]))


def _accessed_in_two_ways(body: tirx.Stmt) -> list[ir.Var]:
    """The tensors from outside that a body accesses both directly and through views."""
    aliases = Aliases(body)
    declared = {*aliases.views, *(each.buffer for each in nodes_in(body, tirx.AllocBuffer))}
    accessed = dict.fromkeys(map(buffer_of, nodes_in(body, (tirx.BufferStore, ir.TensorLoad))))
    return [buffer for buffer in accessed if buffer in aliases.aliased and buffer not in declared]
