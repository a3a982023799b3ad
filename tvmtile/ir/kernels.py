"""Kernels: the loops that `T.Kernel` writes, and how passes find, take apart and replace them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, TypeGuard, TypeVar

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.target import Target

from tvmtile._tvm import Mutator, mutated, walk_statements
from tvmtile.errors import VerifyError
from tvmtile.ir.annotations import KERNEL_ANNOTATION
from tvmtile.ir.calls import op_name
from tvmtile.ir.conditions import assumption_of, known_by
from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import (
    contains,
    defined_in,
    reads_no_memory,
    replace_loop,
    seq,
    statements_in,
    variables_of,
)

S = TypeVar("S", bound=tirx.Stmt)


def is_kernel(node: tirx.Stmt) -> TypeGuard[tirx.For]:
    """Tell whether a statement is the outermost loop of a `T.Kernel`."""
    return isinstance(node, tirx.For) and KERNEL_ANNOTATION in node.annotations


def kernels_of(func: tirx.PrimFunc) -> Iterator[tirx.For]:
    """The outermost loop of every `T.Kernel` of a function."""
    return filter(is_kernel, statements_in(func.body, tirx.For))


def bound_target(func: tirx.PrimFunc) -> Target | None:
    """The target that a function is bound to; None if it is bound to none."""
    return func.attrs.get("target") if func.attrs is not None else None


def target_of(func: tirx.PrimFunc) -> Target:
    """The target that a function is bound to.

    Raises
    ------
    VerifyError
        If it is bound to none.
    """
    target = bound_target(func)
    if target is None:
        raise VerifyError(
            "the function has no target", help="run tvm.tirx.transform.BindTarget before this pass"
        )
    return target


def is_tile_program(func: Any) -> bool:
    """Tell whether a function of a module holds a `T.Kernel`."""
    if not isinstance(func, tirx.PrimFunc):
        return False
    return contains(func.body, tirx.For, is_kernel)


def is_parallel(stmt: tirx.Stmt) -> TypeGuard[tirx.For]:
    """Tell whether a statement is a loop of `T.Parallel`."""
    return type(stmt) is tirx.For and bool(stmt.kind == tirx.ForKind.PARALLEL)


def in_root_block(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its body in a block, as Relax's RewriteDataflowReshape insists on."""
    root = SBlock([], [], [], "root", func.body)
    return func.with_body(SBlockRealize([], True, root))


def without_root_block(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function without the block that `in_root_block` puts around its body."""
    body = func.body
    return func.with_body(body.block.body) if isinstance(body, SBlockRealize) else func


class Launch:
    """The loops of a `T.Kernel`, taken apart.

    Attributes
    ----------
    blocks, threads : list of tirx.For
        The loops bound to `blockIdx` and `threadIdx`, outermost first.
    body : Stmt
        What a block does.
    """

    def __init__(self, loop: tirx.Stmt) -> None:
        self.blocks: list[tirx.For] = []
        self.threads: list[tirx.For] = []
        node: Any = loop
        while isinstance(node, tirx.For) and node.thread_binding is not None:
            tag = node.thread_binding.thread_tag
            (self.blocks if tag.startswith("blockIdx") else self.threads).append(node)
            node = node.body
        self.body: tirx.Stmt = node

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        count = 1
        for loop in self.threads:
            count *= _count(loop)
        return count

    @property
    def thread_index(self) -> ir.Expr:
        """The number of a thread in its block: `threadIdx.x` counts fastest."""
        slowest, *others = reversed(self.threads_fastest_first)
        index: Any = slowest.loop_var
        for loop in others:
            index = index * loop.extent + loop.loop_var
        return index

    @property
    def threads_fastest_first(self) -> list[tirx.For]:
        """The loops bound to `threadIdx`, that of x first."""
        return sorted(self.threads, key=lambda loop: str(loop.thread_binding.thread_tag))

    def indices_of(self, threads: Any) -> dict[ir.Var, Any]:
        """The indices along the axes of a block, of threads by their numbers, one or an array."""
        indices: dict[ir.Var, Any] = {}
        for loop in self.threads_fastest_first:
            extent = _count(loop)
            indices[loop.loop_var] = threads % extent
            threads = threads // extent
        return indices

    def all_threads(self) -> Iterator[dict[ir.Var, ir.Expr]]:
        """The indices of every thread of a block."""
        ranges = [range(_count(loop)) for loop in self.threads]
        for indices in itertools.product(*ranges):
            yield {
                loop.loop_var: tirx.const(index, str(loop.loop_var.ty.dtype))
                for loop, index in zip(self.threads, indices, strict=True)
            }

    def analyzer(self) -> Analyzer:
        """One that knows the ranges and factors that the kernel assumes from its start on."""
        lasting = [
            condition
            for condition in map(assumption_of, flattened(self.body))
            if condition is not None
            and reads_no_memory(condition)
            and defined_in(self.body).isdisjoint(variables_of(condition))
        ]
        analyzer, known = Analyzer(), Analyzer()
        with ExitStack() as told:
            for condition in lasting:
                for part in known_by(condition, analyzer):
                    told.enter_context(analyzer.constraint_scope(part))
            for variable in {var for condition in lasting for var in variables_of(condition)}:
                known.update(variable, analyzer.const_int_bound(variable), override=True)
                known.update(variable, analyzer.modular_set(variable), override=True)
        return known

    def extent_of(self, thread: ir.Var) -> ir.Expr:
        """The number of threads along the axis of a thread's index."""
        return next(loop.extent for loop in self.threads if loop.loop_var.same_as(thread))


def _count(loop: tirx.For) -> int:
    """The number of threads along an axis, which a launch knows."""
    assert isinstance(loop.extent, tirx.IntImm)
    return loop.extent.value


def with_launch_body(kernel: tirx.For, body: tirx.Stmt) -> tirx.For:
    """A copy of the loops of a `T.Kernel` around another body."""
    inner = kernel.body
    if isinstance(inner, tirx.For) and inner.thread_binding is not None:
        body = with_launch_body(inner, body)
    return replace_loop(kernel, body=body)


def with_kernels(func: tirx.PrimFunc, rewrite: Callable[[tirx.For], Any]) -> tirx.PrimFunc:
    """A copy of a function with each of its kernels, from its outermost loop on, rewritten."""

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        return rewrite(loop) if is_kernel(loop) else mutator.default_mutate(loop)

    return with_body(func, mutated(func.body, (tirx.For, visit)))


def with_body(func: tirx.PrimFunc, body: tirx.Stmt) -> tirx.PrimFunc:
    """A function with another body; itself, if that is its own.

    TVM's constructor looks through the whole body once more, so only the field is replaced.
    """
    own = func.body
    if body.same_as(own):
        return func
    return mutated(func, (type(own), lambda node, _: body if node.same_as(own) else node))


def binds_thread(loop: tirx.For) -> bool:
    """Tell whether the variable of a loop is an index of a thread in its block."""
    binding = loop.thread_binding
    return binding is not None and str(binding.thread_tag).startswith("threadIdx")


def launched_with(kernel: tirx.PrimFunc, kind: str) -> int | None:
    """The number of blocks ("blockIdx") or threads of a kernel without its host.

    None where a call decides.
    """
    extents = {
        str(bound.node.thread_tag): constant(bound.value)
        for bound in statements_in(kernel.body, tirx.AttrStmt)
        if bound.attr_key == "thread_extent" and str(bound.node.thread_tag).startswith(kind)
    }
    known = [extent for extent in extents.values() if extent is not None]
    return math.prod(known) if len(known) == len(extents) else None


def too_many_blocks(count: object, tag: str, name: str, most: int) -> str:
    """The message where a grid has more blocks along an axis than a GPU of that name launches."""
    return f"T.Kernel: {count} blocks in {tag[-1]}, of which {name} launches at most {most}"


TOO_MANY_BLOCKS = re.compile(r"T\.Kernel: .* blocks in [yz], of which .* launches at most \d+")
"""Finds that in what a launch says."""
MORE_BLOCKS_IN_X = "write the longest axis first: T.Kernel(longest, ...)"
"""The remedy."""


def importing_llvm(body: tirx.Stmt, texts: Iterable[str]) -> tirx.Stmt:
    """A body whose calls by name find functions of texts in LLVM's intermediate language."""
    for text in dict.fromkeys(texts):
        body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", ir.StringImm(text), body)
    return body


_CHILDREN: dict[type, Callable[[Any], list[tirx.Stmt]]] = {
    tirx.SeqStmt: lambda stmt: stmt.seq[:],
    tirx.IfThenElse: lambda stmt: [c for c in (stmt.then_case, stmt.else_case) if c is not None],
    tirx.For: lambda stmt: [stmt.body],
    tirx.While: lambda stmt: [stmt.body],
    tirx.AttrStmt: lambda stmt: [stmt.body],
}


def statements_of(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements directly inside a statement."""
    children = _CHILDREN.get(type(stmt))
    return [] if children is None else children(stmt)


_EXPRESSIONS: dict[type, Callable[[Any], list[ir.Expr]]] = {
    tirx.IfThenElse: lambda stmt: [stmt.condition],
    tirx.For: lambda stmt: [stmt.min, stmt.extent],
    tirx.While: lambda stmt: [stmt.condition],
    tirx.AttrStmt: lambda stmt: [stmt.value],
}


def expressions_of(stmt: tirx.Stmt) -> list[ir.Expr]:
    """The expressions that a statement with others inside computes itself."""
    expressions = _EXPRESSIONS.get(type(stmt))
    return [] if expressions is None else expressions(stmt)


def flattened(stmt: tirx.Stmt) -> Iterator[tirx.Stmt]:
    """The statements of a sequence, those of the sequences in it included."""
    if type(stmt) is not tirx.SeqStmt:
        yield stmt
        return
    for child in stmt.seq[:]:
        yield from flattened(child)


def without(stmt: S, is_left_out: Callable[[tirx.Stmt], bool]) -> S:
    """A statement without those of the sequences in it that are to be left out."""

    def sequence(node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        return seq([mutator.mutate(child) for child in flattened(node) if not is_left_out(child)])

    return mutated(stmt, (tirx.SeqStmt, sequence))


def outermost_loops_in(stmt: tirx.Stmt) -> list[tirx.For | tirx.While]:
    """The loops of a statement that stand in no other one, and so are run once where it is."""
    if isinstance(stmt, tirx.For | tirx.While):
        return [stmt]
    return [loop for child in statements_of(stmt) for loop in outermost_loops_in(child)]


def with_statements(stmt: tirx.Stmt, statements: list[tirx.Stmt]) -> tirx.Stmt:
    """A copy of a statement with others directly inside, as many as `statements_of` gives.

    They may be more than one operation, which a vector can't hold: its loop becomes a serial one.
    """
    if isinstance(stmt, tirx.For):
        vector = stmt.kind == tirx.ForKind.VECTORIZED
        kind = tirx.ForKind.SERIAL if vector else stmt.kind
        return replace_loop(stmt, body=statements[0], kind=kind)
    if isinstance(stmt, tirx.While):
        return tirx.While(stmt.condition, statements[0], stmt.span)
    if isinstance(stmt, tirx.IfThenElse):
        otherwise = statements[1] if len(statements) > 1 else None
        return tirx.IfThenElse(stmt.condition, statements[0], otherwise, stmt.span)
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, statements[0], stmt.span)
    return seq(statements)


@cached_per_node
def leaves_loop(stmt: tirx.Stmt) -> bool:
    """Tell whether a statement may end an iteration of the loop around it."""

    def visit(node: tirx.Stmt) -> Any:
        if type(node) is tirx.For or type(node) is tirx.While:
            return tvm_ffi.WalkResult.SKIP
        return tvm_ffi.VisitInterrupt(True) if is_loop_exit(node) else None

    return walk_statements(stmt, visit) is not None


def is_loop_exit(stmt: tirx.Stmt) -> TypeGuard[tirx.Evaluate]:
    """Tell whether a statement is a `break` or a `continue`."""
    return _calls(stmt, ("tirx.break_loop", "tirx.continue_loop"))


def is_continue(stmt: tirx.Stmt) -> TypeGuard[tirx.Evaluate]:
    """Tell whether a statement is a `continue`."""
    return _calls(stmt, ("tirx.continue_loop",))


def is_thread_return(stmt: tirx.Stmt) -> TypeGuard[tirx.Evaluate]:
    """Tell whether a statement is a `T.thread_return()`."""
    return _calls(stmt, ("tirx.thread_return",))


def _calls(stmt: tirx.Stmt, names: tuple[str, ...]) -> bool:
    return type(stmt) is tirx.Evaluate and op_name(stmt.value) in names
