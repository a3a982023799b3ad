"""OutlineBlocks: the work of a block becomes a function, where a kernel would have it twice."""

from __future__ import annotations

import tvm
from tvm import ir, tirx
from tvm.ir.transform import PassContext
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, is_buffer_var, mapped, nodes_in
from tvmtile.ir.kernels import with_body
from tvmtile.ir.rewriting import replace_loop, seq

_CPU = 1
"""DLPack's number of the kind of device."""


@tvm.transform.module_pass(opt_level=0, name="tvmtile.OutlineBlocks")
def OutlineBlocks(mod: ir.IRModule, _: PassContext) -> ir.IRModule:
    """Make a function of the body of two loops, of which LaunchBlocksOnCpu runs one.

    The blocks of a dynamic grid run in TVM's thread pool, or without it if there is one. Both loops
    then call a private function of the module with the index of a block, the tensors' addresses and the
    scalars that the body uses, so that TVM's passes and LLVM see the body once. Views that it uses are
    declared again in it: no memory comes under two names that LLVM may take for different.
    """
    result = mod.clone()
    for name, func in mod.functions.items():
        outlined = _Outlined(name.name_hint, func)
        caller = with_body(func, mapped(func.body, (tirx.IfThenElse, outlined.visit)))
        if outlined.functions:
            result.update_func(name, caller)
        for callee, block in outlined.functions:
            result.update_func(callee, block)
    return result


class _Outlined:
    """The functions that the blocks of a function become."""

    def __init__(self, name: str, func: tirx.PrimFunc) -> None:
        self.functions: list[tuple[ir.GlobalVar, tirx.PrimFunc]] = []
        self._name = name
        self._target = (func.attrs or {}).get("target")
        self._views = {buffer_of(view): view for view in nodes_in(func.body, tirx.DeclBuffer)}

    def visit(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        alone, pool = branch.then_case, branch.else_case
        if not (isinstance(alone, tirx.For) and isinstance(pool, tirx.For)):
            return branch
        if pool.kind != tirx.ForKind.PARALLEL:
            return branch
        if not structural_equal(alone, replace_loop(pool, kind=tirx.ForKind.SERIAL)):
            return branch
        callee, arguments = self._outline(pool)
        alone, pool = (
            replace_loop(loop, body=_or_fail(callee, [loop.loop_var, *arguments]))
            for loop in (alone, pool)
        )
        return tirx.IfThenElse(branch.condition, alone, pool, branch.span)

    def _outline(self, loop: tirx.For) -> tuple[ir.GlobalVar, list[ir.Expr]]:
        """A function of a loop's body, and its arguments besides the loop's variable."""
        body = loop.body
        while used := self._views.keys() & set(undefined_vars(body)):
            body = seq([*(view for buffer, view in self._views.items() if buffer in used), body])
        used = undefined_vars(replace_loop(loop, body=body))
        buffers = [var for var in used if is_buffer_var(var)]
        pointers = [ir.Var(f"{buffer.name}_ptr", buffer.data.ty) for buffer in buffers]
        declarations = [
            tirx.DeclBuffer(buffer, data=pointer)
            for buffer, pointer in zip(buffers, pointers, strict=True)
        ]
        # Their extents and strides, too, which a body that copies rows may not name itself.
        scalars = undefined_vars(seq([*declarations, body]), [loop.loop_var, *pointers])
        arguments: list[ir.Expr] = [*(buffer.data for buffer in buffers), *scalars]
        parameters: list[ir.Var] = [loop.loop_var, *pointers, *scalars]
        # TVM allocates tiles that are too large for the stack on a device, which it looks for in here.
        place = ir.StringImm("default")
        for key, number in (("device_type", _CPU), ("device_id", 0)):
            body = tirx.AttrStmt(place, key, tirx.const(number, "int32"), body)
        body = seq([*declarations, body, tirx.Return(tirx.const(0, "int32"))])
        callee = ir.GlobalVar(f"{self._name}_block_{len(self.functions)}")
        block = tirx.PrimFunc(parameters, body, ret_type=ir.PrimType("int32"))
        self.functions.append((callee, block.with_attr("target", self._target)))
        return callee, arguments


def _or_fail(callee: ir.GlobalVar, arguments: list[ir.Expr]) -> tirx.Stmt:
    """Call a function that returns what TVM's do: not zero where it has left an error."""
    failed = ir.Call(callee, arguments, ret_ty="int32") != 0
    raised = ir.Call("tirx.tvm_throw_last_error", [], ret_ty="void")
    return tirx.IfThenElse(failed, tirx.Evaluate(raised), None)
