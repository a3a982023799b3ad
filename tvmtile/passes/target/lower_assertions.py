"""A kernel stops with an error that names the line, where an assertion does not hold."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.cuda import ASSERT_FAIL, function_call
from tvmtile.ir.kernels import with_kernels
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.spans import location_of


@prim_func_pass("LocateAssertionsOnCpu")
def LocateAssertionsOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    r"""Say at which line of the kernel an assertion stands, in the message that TVM raises."""
    return with_kernels(func, lambda kernel: mapped(kernel, (tirx.AssertStmt, _located)))


def _located(node: tirx.AssertStmt) -> tirx.AssertStmt:
    location = location_of(node)
    if location is None:
        return node
    message = f"{_message(node)}\n  --> {location.file}:{location.line}"
    return tirx.AssertStmt(node.condition, node.error_kind, [ir.StringImm(message)], node.span)


def _message(node: tirx.AssertStmt) -> str:
    return "".join(part.value for part in node.message_parts)


@prim_func_pass("LowerAssertionsOnCuda")
def LowerAssertionsOnCuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Stop as an assertion of C does: CUDA prints the message, the line, the block and the thread.

    TVM's generator would return an error code, which a kernel can't. Assertions outside of kernels are
    the host's.
    """

    def lower(kernel: tirx.For) -> tirx.For:
        return mapped(kernel, (tirx.AssertStmt, _stopped))

    return with_kernels(func, lower)


def _stopped(node: tirx.AssertStmt) -> tirx.Stmt:
    location = location_of(node)
    path, line = ("kernel", 0) if location is None else (location.file, location.line)
    arguments = [ir.StringImm(_escaped(_message(node))), ir.StringImm(_escaped(path))]
    stop = function_call("void", ASSERT_FAIL, *arguments, tirx.const(line, "int32"))
    return tirx.IfThenElse(tirx.Not(node.condition), tirx.Evaluate(stop), None)


def _escaped(text: str) -> str:
    """A text as it stands between the quotes of C++, which TVM's generator puts around it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
