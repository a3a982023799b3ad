"""InsertBarriers: threads wait for each other where they exchange elements through memory."""

from __future__ import annotations

import itertools

from tvm import ir, tirx

from tvmtile._tvm import mapped, nodes_in
from tvmtile.analysis.conflicts.dependence import ConflictScope
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Effect
from tvmtile.analysis.thread_effects import Effects, ordered_by
from tvmtile.codegen.metal import device_barrier
from tvmtile.errors import SourceLocation
from tvmtile.ir.annotations import EXCHANGES_TENSORS, OWN_BARRIERS
from tvmtile.ir.asynchronous import issued, kind_of, signal, wait
from tvmtile.ir.barriers import SERIAL, sync
from tvmtile.ir.kernels import Launch, bound_target, with_kernels, with_launch_body, with_statements
from tvmtile.ir.operators import operator_of, with_fields
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq
from tvmtile.ir.threads import WARP_SIZE, Group, without_groups
from tvmtile.passes.gpu.barriers.clusters import blocks_together, is_published
from tvmtile.passes.gpu.barriers.groups import NamedBarriers, groups_in, with_own_barriers
from tvmtile.passes.gpu.barriers.items import (
    Barrier,
    Barriers,
    Branch,
    Item,
    Iteration,
    Sequence,
    UserBarrier,
    accesses_of,
)
from tvmtile.passes.gpu.barriers.placement import place
from tvmtile.passes.gpu.barriers.races import exchanges
from tvmtile.passes.gpu.barriers.structure import Builder
from tvmtile.target import CUDA_NAMED_BARRIERS, gpu


@prim_func_pass(
    "InsertBarriers",
    requires=(Property.NO_PARALLEL, Property.NO_FRAGMENTS, Property.SHARED_MEMORY_FITS),
    establishes=(Property.BARRIERS_INSERTED,),
)
def InsertBarriers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Insert the barriers that accesses of memory by the threads of a block need, and no more.

    Two accesses of an element by different threads, one of them a write, get a barrier between them on
    every path, the way from one iteration of a loop to the next included. Accesses by the same thread,
    of different elements, or atomic ones need none. Among the places where all threads of a block come
    together those are chosen that are executed least often; where only threads of the same simdgroup
    conflict, it is a barrier of the simdgroup. The barriers of the user count.

    What may touch elements of an asynchronous copy in flight, where indices or conditions do not tell,
    waits for the copy: in front of its barrier all copies of the thread arrive.

    In the region of a group of threads it is a barrier of the group, by a number of its own; a barrier
    of the block never stands there. What groups exchange gets a barrier of the block between their
    regions, unless an mbarrier orders it: for what touches the memory of another block of the cluster,
    one at which that block arrives, or waits. Two groups that come to barriers which the user has
    numbered, together with others, order what they exchange themselves.

    That holds for threadgroup memory, and for a tensor that the kernel uses in two ways, of reads,
    writes and atomic updates, or writes in two places. Of one that it writes in a single place, what
    iterations write is ordered, of the loops in which OrderIterations has named it. Between accesses of
    a tensor a barrier is left out where not all threads of the block come: the user orders those, as he
    does what one block writes and another reads. Tensors that are different parameters are taken to be
    different memory. Threads that write an element by the same statement, once, write the same value.

    Where threads may read what others write to a tensor, the function says so: its pointers must not be
    `__restrict__`, by which NVIDIA's compiler would keep an element in a register across a barrier.

    An arrival at the mbarrier of another block is a fence of the GPU only where threads write what
    other blocks read.

    On Metal, where a barrier orders threadgroup memory only unless it is told to do more, one that
    separates accesses of a tensor is a call of a function of ours.

    Raises
    ------
    DataRace
        If threadgroup memory needs a barrier where not all threads of the block, or group, come. Where
        `tl.disable_thread_storage_sync` says that the author orders them, it is a warning.
    NestingError
        If a group needs a barrier, and the target has none for some of a block's threads.
    """
    target = bound_target(func)
    is_for_metal = target is not None and target.kind.name == "metal"
    capability = gpu(target)
    count = CUDA_NAMED_BARRIERS if capability is None else capability.named_barriers
    exchanged: set[ir.Var] = set()
    forgives = func.attrs is not None and bool(func.attrs.get(OWN_BARRIERS, False))

    def order(kernel: tirx.For) -> tirx.For:
        launch = Launch(kernel)
        named = NamedBarriers(launch.body, count, launch)
        kernel = with_launch_body(kernel, with_own_barriers(launch.body, named))
        effects = Effects(Launch(kernel), ordered_by(kernel))
        exchanged.update(effects.exchanged)
        blocks = blocks_together(kernel)
        if blocks > 1 and not is_published(kernel, func.body, effects):
            kernel = mapped(kernel, (ir.Call, _within_block))
        kernel = with_barriers(
            kernel, effects, named, blocks, forgives=forgives, is_for_metal=is_for_metal
        )
        return with_launch_body(kernel, without_groups(Launch(kernel).body))

    func = with_kernels(func, order)
    return func.with_attr(EXCHANGES_TENSORS, True) if exchanged else func


def with_barriers(
    kernel: tirx.For,
    effects: Effects,
    named: NamedBarriers | None = None,
    blocks: int = 1,
    *,
    forgives: bool = False,
    is_for_metal: bool = False,
) -> tirx.For:
    """A kernel with the barriers that its threads, and the groups among them, need.

    Without `named` ones they are for the threads of a CPU, and may stand in divergent branches, too.
    """
    known: dict[frozenset[ir.Var], Footprints] = {}
    launch = Launch(kernel)

    def footprints(uniform: set[ir.Var]) -> Footprints:
        """Shared by the groups for which the same names are uniform."""
        key = frozenset(uniform)
        if key not in known:
            known[key] = Footprints(launch, uniform)
        return known[key]

    of_device = bool(effects.device_memory or effects.stored_by_iterations)
    fenced = is_for_metal and of_device
    accesses: tuple[Effect, ...] = ()
    for group in (None, *groups_in(launch.body)):
        if group is not None and not fenced and not exchanges(group, accesses):
            continue
        builder = Builder(
            Launch(kernel),
            effects,
            footprints,
            group,
            blocks,
            forgives=forgives,
            is_for_cpu=named is None,
        )
        program = builder.program()
        accesses = accesses or program.accesses
        barriers = place(program, builder.checker, of_device=of_device)
        if barriers or fenced:
            tokens = _tokens_in(Launch(kernel).body)
            emitter = _BarrierEmitter(barriers, group, named, tokens, fenced=fenced)
            kernel = with_launch_body(kernel, emitter.sequence(program))
    return kernel


def _within_block(call: ir.Call) -> ir.Expr:
    op = operator_of(call)
    if op is None or not getattr(op, "of_cluster", False):
        return call
    return with_fields(op, of_cluster=False).to_call(call.span)


def _tokens_in(body: tirx.Stmt) -> list[str]:
    """The tokens of all asynchronous work, of each kind that there is."""
    works = map(issued, nodes_in(body, ir.Call))
    return list(dict.fromkeys(kind_of(work.token).name for work in works if work is not None))


_SCOPES = {ConflictScope.BLOCK: "shared", ConflictScope.WARP: "warp"}
_GROUPS = {ConflictScope.BLOCK: "threadgroup", ConflictScope.WARP: "simdgroup"}


class _BarrierEmitter:
    """Writes a program down with its barriers.

    The threads of `group` wait there, or the block's, for the asynchronous work of `tokens` too where a
    barrier does. Where `fenced`, a barrier has to say that it orders device memory; those of the user,
    who may rely on it, do.
    """

    def __init__(
        self,
        barriers: Barriers,
        group: Group | None,
        named: NamedBarriers | None,
        tokens: list[str],
        *,
        fenced: bool,
    ) -> None:
        self._barriers = barriers
        self._group = group
        self._named = named
        self._tokens = tokens
        self._fenced = fenced

    def sequence(self, sequence: Sequence) -> tirx.Stmt:
        statements: list[tirx.Stmt] = []
        for point, item in itertools.zip_longest(sequence.points, sequence.items):
            if point in self._barriers:
                statements += self._awaited(self._barriers[point], item)
            if item is not None:
                statements.append(self._statement(item))
        return seq(statements)

    def _awaited(self, barrier: Barrier, item: Item | None) -> list[tirx.Stmt]:
        accesses = () if item is None else accesses_of(item)
        location = next((access.location for access in accesses if access.location), None)
        if not barrier.waits_for_copies:
            return [self._barrier(barrier, location)]
        waits = [stmt for token in self._tokens for stmt in (signal(token), wait(token, 0))]
        return [*waits, self._barrier(barrier, location)]

    def _barrier(self, barrier: Barrier, location: SourceLocation | None = None) -> tirx.Stmt:
        if self._named is None:
            return sync(SERIAL)
        scope = barrier.scope
        if self._group is not None and self._group.count <= WARP_SIZE:
            scope = ConflictScope.WARP
        if self._fenced and barrier.orders_device:
            return device_barrier(_GROUPS[scope])
        if self._group is not None and scope == ConflictScope.BLOCK:
            return self._named.wait(self._group, location)
        return sync(_SCOPES[scope])

    def _statement(self, item: Item) -> tirx.Stmt:
        if isinstance(item, UserBarrier):
            # One of the block, also of those just inserted, is nothing that a group decides.
            is_ours = self._group is None or item.barrier.scope == ConflictScope.WARP
            return self._barrier(item.barrier) if self._fenced and is_ours else item.statement
        if isinstance(item, Iteration):
            return with_statements(item.statement, [self.sequence(item.body)])
        if isinstance(item, Branch):
            cases = item.cases
            if getattr(item.statement, "else_case", True) is None:
                cases = cases[:1]
            return with_statements(item.statement, [self.sequence(case) for case in cases])
        return item.statement
