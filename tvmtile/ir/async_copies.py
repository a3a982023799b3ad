"""Groups of asynchronous copies: how they are marked, committed and waited for.

InjectPipeline encloses copies that may arrive later in an attribute, ends their group by a commit, and
puts a wait before what uses them. DistributeParallel makes `cp.async` of the moves in the attribute
that can be, and moves the others at once. InsertBarriers knows when the elements arrive: at a wait.

PTX ISA, "Data Movement and Conversion Instructions: cp.async": a thread waits for groups of its own
copies, the oldest first, by how many of the latest may still be on their way. What other threads have
copied is visible after a barrier behind their waits.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.calls import op_name

__all__ = [
    "FILLING_ISSUES",
    "ISSUES",
    "MAX_IN_FLIGHT",
    "commit",
    "committed",
    "is_late",
    "late",
    "wait",
    "waited",
]

FILLING_ISSUES = ("tirx.ptx.cp_async_ca_src_size", "tirx.ptx.cp_async_cg_src_size")
"""Those that are told how many bytes they read; where that is none, the source may lie anywhere."""
ISSUES = ("tirx.ptx.cp_async_ca", "tirx.ptx.cp_async_cg", *FILLING_ISSUES)
"""The instructions that issue a copy; their first operand is the place in shared memory."""
MAX_IN_FLIGHT = 7
"""The largest number of groups that TVM's `wait_group` takes."""

_LATE = "tvmtile.late"
_COMMIT = "tirx.ptx.cp_async_commit_group"
_WAIT = "tirx.ptx.cp_async_wait_group"


def late(stmt: tirx.Stmt) -> tirx.Stmt:
    """Let what a statement moves from global to shared memory arrive as late as at a wait."""
    return tirx.AttrStmt(tirx.const(0, "int32"), _LATE, tirx.const(1, "int32"), stmt)


def is_late(stmt: tirx.AttrStmt) -> bool:
    """Tell whether an attribute is that of `late`."""
    return str(stmt.attr_key) == _LATE


def commit() -> tirx.Stmt:
    """End a group: the copies that the thread has issued since the last one, if any."""
    return tirx.Evaluate(T.ptx["cp.async.commit_group"]())


def wait(in_flight: int) -> tirx.Stmt:
    """Wait for all groups of the thread but the latest ones."""
    return tirx.Evaluate(T.ptx["cp.async.wait_group"](min(in_flight, MAX_IN_FLIGHT)))


def committed(stmt: tirx.Stmt) -> bool:
    """Tell whether a statement ends a group."""
    return _name(stmt) == _COMMIT


def waited(stmt: tirx.Stmt) -> int | None:
    """How many groups a statement leaves in flight; None of one that does not wait."""
    return int(stmt.value.args[0]) if _name(stmt) == _WAIT else None


def _name(stmt: tirx.Stmt) -> str:
    return op_name(stmt.value) if isinstance(stmt, tirx.Evaluate) else ""
