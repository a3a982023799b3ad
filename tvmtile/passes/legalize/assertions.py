"""A kernel stops with an error that names the line, where an assertion does not hold.

Assertions outside of kernels are the host's.
"""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile.codegen.cuda import ASSERT_FAIL, function_call
from tvmtile.ir.rewriting import statements_in
from tvmtile.ir.spans import location_of
from tvmtile.passes.legalize.rules import Rule, Scope


def _located(node: tirx.AssertStmt, scope: Scope) -> tirx.AssertStmt:
    location = location_of(node)
    if location is None or scope.launch is None:
        return node
    message = f"{_message(node)}\n  --> {location.file}:{location.line}"
    return tirx.AssertStmt(node.condition, node.error_kind, [ir.StringImm(message)], node.span)


def _stopped(node: tirx.AssertStmt, scope: Scope) -> tirx.Stmt:
    """A stop as that of C's `assert`: CUDA prints the message, the line, the block and the thread."""
    if scope.launch is None:
        return node
    location = location_of(node)
    path, line = ("kernel", 0) if location is None else (location.file, location.line)
    arguments = [ir.StringImm(_escaped(text)) for text in (_message(node), path)]
    stop = function_call("void", ASSERT_FAIL, *arguments, tirx.const(line, "int32"))
    return tirx.IfThenElse(tirx.Not(node.condition), tirx.Evaluate(stop), None)


def _message(node: tirx.AssertStmt) -> str:
    return "".join(part.value for part in node.message_parts)


def _escaped(text: str) -> str:
    """A text as it stands between the quotes of C++, which TVM's generator puts around it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _asserts(func: tirx.PrimFunc) -> bool:
    return bool(statements_in(func.body, tirx.AssertStmt))


LOCATED = Rule(
    "assertions without their line",
    (tirx.AssertStmt,),
    _located,
    "TVM's runtime",
    "its error has the message alone",
    _asserts,
    asks=True,
)
STOPPED = Rule(
    "assertions in kernels",
    (tirx.AssertStmt,),
    _stopped,
    "TVM's generator for CUDA",
    "it returns an error code, which a kernel can't",
    _asserts,
    asks=True,
)
