"""The threads of a block by number, and the groups of them that regions of a program belong to.

A group is whole warps that follow each other. Its region is the statement of an attribute, inside of
the branch that lets in these threads and no others: the branch says what runs, the attribute says that
all threads of the group come, together. Tile operators in a region are the work of the group, not of
the block, and so is everything else that is shared out over threads there. FindGroups writes the
regions, InsertBarriers takes them away.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mapped
from tvmtile.ir.kernels import Launch, is_kernel
from tvmtile.ir.scoped_rewriter import ScopedRewriter

WARP_SIZE = 32
"""Threads of a warp of NVIDIA's GPUs, and of a simdgroup of Apple's."""
WARPGROUP = 4 * WARP_SIZE
"""Threads that do a `wgmma` together, from Hopper on."""
MAX_THREADS = 1024
"""Threads that a block of either may have."""
REGISTER_FILE = 65536
"""32-bit registers of a multiprocessor of NVIDIA's GPUs."""
MOST_REGISTERS = 255
"""32-bit registers of a thread; Apple's GPUs have fewer."""
_REGISTER_UNIT = 8
"""Of a thread: a warp gets multiples of 256."""
ALL_LANES = (1 << WARP_SIZE) - 1
"""The threads of a warp, a bit each."""

_REGION = "tvmtile.group"


def registers_of_each(threads: int) -> int:
    """Registers that each of so many threads can have where all of them run at once."""
    return min(MOST_REGISTERS, whole_registers(REGISTER_FILE // threads))


def whole_registers(count: int) -> int:
    """The registers that a thread gets of so many that it could have."""
    return count // _REGISTER_UNIT * _REGISTER_UNIT


@dataclass(frozen=True, order=True)
class Group:
    """Threads of a block that follow each other."""

    first: int
    """The number of the first one in the block."""
    count: int
    """How many they are."""

    @classmethod
    def of_block(cls, launch: Launch) -> Group:
        """All threads of a block."""
        return cls(0, launch.num_threads)

    def __contains__(self, other: Group) -> bool:
        """Tell whether all threads of another group are of this one."""
        return self.first <= other.first and other.first + other.count <= self.first + self.count

    def overlaps(self, other: Group) -> bool:
        """Tell whether some thread is of both groups."""
        return self.first < other.first + other.count and other.first < self.first + self.count

    def __str__(self) -> str:
        return f"threads {self.first} to {self.first + self.count - 1}"

    def admits(self, thread: ir.Expr, threads: int) -> ir.Expr:
        """The condition that a thread is of this group, given its number in a block of so many."""
        end = self.first + self.count
        bounds = [thread >= self.first] if self.first else []
        bounds += [thread < end] if end < threads else []
        return tirx.all(*bounds) if bounds else tirx.const(True, "bool")

    def index_of(self, thread: ir.Expr) -> ir.Expr:
        """The number in the group of a thread, given that in the block."""
        return thread - self.first if self.first else thread


def group_region(group: Group, body: tirx.Stmt) -> tirx.AttrStmt:
    """A statement that a group does; the branch around it lets in no other threads."""
    return tirx.AttrStmt(group.first, _REGION, tirx.const(group.count, "int32"), body)


def group_of_region(stmt: tirx.Stmt) -> Group | None:
    """The group that a region belongs to; None of another statement."""
    if not isinstance(stmt, tirx.AttrStmt) or str(stmt.attr_key) != _REGION:
        return None
    assert isinstance(stmt.value, tirx.IntImm), "written by `group_region`"
    return Group(int(stmt.node), stmt.value.value)


def let_in(group: Group, launch: Launch, body: tirx.Stmt) -> tirx.Stmt:
    """A statement that a group does and the other threads of the block pass by."""
    condition = group.admits(launch.thread_index, launch.num_threads)
    return tirx.IfThenElse(condition, group_region(group, body), None)


def without_groups(body: tirx.Stmt) -> tirx.Stmt:
    """A body whose regions are plain statements."""
    return mapped(
        body, (tirx.AttrStmt, lambda node: node if group_of_region(node) is None else node.body)
    )


class Regions:
    """The groups of regions: that of the node that is being visited.

    Attributes
    ----------
    group : Group or None
        That of the innermost region around the node; None where that is the block.
    """

    def __init__(self) -> None:
        self.group: Group | None = None

    def visit(self, node: tirx.AttrStmt, mutator: Mutator) -> tirx.Stmt:
        """Descend into an attribute: the callback of a rewriting."""
        outer, self.group = self.group, group_of_region(node) or self.group
        result = mutator.default_mutate(node)
        self.group = outer
        return result


class GroupRewriter(ScopedRewriter):
    """Base of rewriters that ask which threads do a statement.

    Attributes
    ----------
    launch : Launch or None
        The loops of the kernel around it; None outside of kernels.
    group : Group or None
        The threads of the innermost region around it, or all of the block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launch: Launch | None = None
        self.group: Group | None = None

    def enter_loop(self, loop: tirx.For) -> None:
        """Note the kernel."""
        if is_kernel(loop):
            self.launch = Launch(loop)
            self.group = Group.of_block(self.launch)
        super().enter_loop(loop)

    def visit_attribute(self, node: tirx.AttrStmt) -> tirx.Stmt:
        """Descend into an attribute, noting the group."""
        group = group_of_region(node)
        if group is None:
            return super().visit_attribute(node)
        outer, self.group = self.group, group
        result = self.descend(node)
        self.group = outer
        return result
