"""A kernel with two roles: warps of their own copy the tiles of pipelined loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, mapped, nodes_in
from tvmtile.analysis.kernel_info import info_of
from tvmtile.instructions.wgmma import LEAST_BESIDE_SUMS, LEAST_REGISTERS
from tvmtile.ir.barriers import is_barrier_of_blocks
from tvmtile.ir.kernels import (
    Launch,
    binds_thread,
    with_launch_body,
)
from tvmtile.ir.operators import operators_in
from tvmtile.ir.options import options_of
from tvmtile.ir.rewriting import contains, replace_loop, seq
from tvmtile.ir.scopes import is_mbarrier
from tvmtile.ir.threads import WARP_SIZE, WARPGROUP, Group, group_of_region, group_region, let_in
from tvmtile.passes.tile.schedule.body import Obstacle
from tvmtile.passes.tile.schedule.consumers import consumer_role, consumers_of
from tvmtile.passes.tile.schedule.copies import BulkCopies, computes_as_it_loads
from tvmtile.passes.tile.schedule.persistence import persistent
from tvmtile.passes.tile.schedule.producer import Producer, producer_of, producer_role
from tvmtile.passes.tile.schedule.resources import (
    LEAST_LOADED,
    BlockMemory,
    RoleRegisters,
    registers_loaded,
)
from tvmtile.passes.tile.schedule.rings import StageAxis, with_stage_axes
from tvmtile.passes.tile.schedule.roles import (
    RolePlanner,
    SplitKernel,
    preloaded_in,
    schedule_around,
)
from tvmtile.passes.tile.schedule.schedule import Schedule, verify
from tvmtile.passes.tile.schedule.split_loops import (
    LoopSplitter,
    SplitLoop,
    pipelined_loops_in,
    registers_held,
)
from tvmtile.target import GpuCapability
from tvmtile.tileop.registry import LoweringContext, implementation_of


@dataclass(frozen=True)
class TwoRoles:
    """A kernel with two roles, what split it, and why each block of the grid has one of its own."""

    kernel: tirx.For
    specializer: Specializer
    one_block_each: str | None


def with_two_roles(kernel: tirx.For, target: Target, capability: GpuCapability) -> TwoRoles:
    """A kernel with two roles, of blocks that stay if they can.

    Raises
    ------
    Obstacle
        If it stays as it is.
    """
    wish = options_of(kernel).specialize_warps
    if wish is False:
        raise Obstacle("the kernel asks for one role")
    _check_kernel(Launch(kernel), capability)
    if not BlockMemory(kernel, capability).has_room_for_all():
        raise Obstacle("a block has no room for all its tiles at once, which two roles may use")

    def split(whole: tirx.For) -> Specializer:
        return Specializer(whole, target, capability, is_wanted=wish is True)

    try:
        specializer = _persisting(kernel, capability.multiprocessors, split)
        return TwoRoles(specializer.kernel(), specializer, None)
    except Obstacle as obstacle:
        specializer = split(kernel)
        return TwoRoles(specializer.kernel(), specializer, str(obstacle))


_PERSISTS = True
"""Whether blocks loop over those of the grid where a kernel does not say, and that was measured."""


def _persisting(
    kernel: tirx.For, multiprocessors: int, split: Callable[[tirx.For], Specializer]
) -> Specializer:
    """The specializer of a kernel whose blocks persist, as many of them as run at once.

    More or fewer take longer: `benchmarks/h200/decisions.md`.

    Raises
    ------
    Obstacle
        If none are to persist.
    """
    wish = options_of(kernel).persistent
    if not (_PERSISTS if wish is None else wish):
        raise Obstacle("the kernel asks for a block each")
    registers = RoleRegisters(kernel)
    has_one, is_asked = registers.go_to_one_block(), registers.least_blocks is not None
    if registers.consumers > WARPGROUP and not (has_one or is_asked or registers.are_fixed):
        raise Obstacle("several blocks may run at once on a multiprocessor")
    of_one = split(persistent(kernel, multiprocessors))
    count = 1 if has_one else of_one.blocks_at_once()
    if count > _MOST_AT_ONCE and wish is None:
        raise Obstacle(
            f"{count} blocks may run at once on a multiprocessor; T.annotate_persistent() asks"
        )
    if not is_asked:
        count = min(count, _MOST_AT_ONCE)
    return of_one if count == 1 else split(persistent(kernel, count * multiprocessors))


_MOST_AT_ONCE = 2
"""More than that may not fit: how many registers a thread takes is not known exactly."""


def _check_kernel(launch: Launch, capability: GpuCapability) -> None:
    if len(launch.threads) > 1 or launch.num_threads % WARPGROUP:
        raise Obstacle(f"{launch.num_threads} threads are not whole warpgroups")
    if launch.num_threads + WARPGROUP > capability.max_threads:
        raise Obstacle(f"a block of {launch.num_threads} threads has no room for a producer")
    if contains(launch.body, tirx.AttrStmt, lambda node: group_of_region(node) is not None):
        raise Obstacle("the kernel has groups of threads of its own")
    if contains(launch.body, tirx.Evaluate, is_barrier_of_blocks):
        raise Obstacle("blocks wait for each other, with all of their threads")
    if any(is_mbarrier(buffer_of(each)) for each in nodes_in(launch.body, tirx.AllocBuffer)):
        raise Obstacle("the kernel has mbarriers of its own")


# A kernel with two roles, put together ------------------------------------------------------------


class Specializer:
    """Splits the loops of a kernel.

    Raises
    ------
    Obstacle
        If it stays as it is.
    """

    def __init__(
        self, kernel: tirx.For, target: Target, capability: GpuCapability, *, is_wanted: bool
    ) -> None:
        self._kernel = kernel
        self._is_wanted = is_wanted
        self._launch = Launch(kernel)
        self._warps = self._launch.num_threads // WARP_SIZE
        self._registers = RoleRegisters(kernel)
        self._context = LoweringContext(target, self._launch.analyzer(), launch=self._launch)
        self._tiles = info_of(kernel)
        if not is_wanted and not self._multiplies_asynchronously():
            raise Obstacle("no product is asynchronous work of warpgroups")
        registers = self._registers.at_first
        if not is_wanted and registers < LEAST_REGISTERS:
            raise Obstacle(
                f"{self._registers.least_blocks} blocks with producers leave a thread {registers} "
                f"registers, and a product takes {LEAST_REGISTERS}"
            )
        why_not = BulkCopies(kernel, self._context).why_not
        kind = self._context.kind
        splitter = LoopSplitter(self._tiles, kind, why_not, self._why_not_compute)
        loops = splitter.loops_in(kernel)
        self._preloaded = preloaded_in(self._launch.body, loops, self._tiles, why_not)
        self._by_threads = any(each.by_threads for each in loops)
        self._memory = BlockMemory(kernel, capability)
        held = self._registers.of_consumer(loops)
        self._planner = RolePlanner(self._launch, loops, self._memory, held, kind)
        self.loops = list(self._planner.loops.values())
        """The loops that are split."""

    def _why_not_compute(self, split: SplitLoop) -> str | None:
        """The reason why producer threads should not compute tiles; the kernel may ask for it anyway.

        Where a multiprocessor runs several blocks, one of them multiplies while another computes. An
        iteration takes as long as the loads of a tile, so short ones do not pay, nor loads that wait
        for each other (`benchmarks/h200/decisions.md`).
        """
        threads = self._launch.num_threads
        held = registers_held(split.units, split.order, threads)
        most = self._registers.of_consumer([split])
        if held + LEAST_BESIDE_SUMS > most:
            return (
                f"fragments take {held} registers of a thread that multiplies, of {most} that threads "
                "which compute tiles leave it"
            )
        if self._is_wanted:
            return None
        blocks = self._registers.blocks_at_once(threads, held)
        asks = "T.annotate_warp_specialize() asks for threads that compute ahead"
        if blocks > 1:
            return (
                f"{blocks} blocks fit on a multiprocessor, each under the others' products; {asks}"
            )
        if any(computes_as_it_loads(split.units[number]) for number in split.computed):
            return f"a loop that loads and computes would wait for each load; {asks}"
        loaded = registers_loaded(split)
        if loaded < LEAST_LOADED:
            return f"a thread would load {loaded} registers in an iteration; {asks}"
        return None

    def _multiplies_asynchronously(self) -> bool:
        """Tell whether an operator of the loops issues work that is waited for by a token."""
        operators = (op for loop in pipelined_loops_in(self._kernel) for op in operators_in(loop))
        chosen = (implementation_of(op, self._context.kind) for op in operators if op.is_tile)
        return any(each is not None and each.work is not None for each in chosen)

    def kernel(self) -> tirx.For:
        """The kernel with a warpgroup more, of which one warp is the producer."""
        loops = self._planner.loops
        schedules = {variable: self._schedule_of(loop) for variable, loop in loops.items()}
        preloads = self._planner.preloads(self._preloaded)
        around = {
            variable: schedule_around(
                loop, [each for each in preloads if each.variable.same_as(variable)], self._warps
            )
            for variable, loop in loops.items()
        }
        for schedule in (*schedules.values(), *around.values()):
            if schedule.rings:
                verify(schedule)
        axes = {
            variable: {
                tile: StageAxis(ring.slots, ring.position.slot)
                for ring in loop.rings
                for tile in ring.tiles
            }
            for variable, loop in loops.items()
        }
        for each in preloads:
            if each.around is not None and each.ring.slots > 1:
                of_loop = axes.setdefault(each.around, {})
                of_loop[each.tile] = StageAxis(each.ring.slots, each.ring.position.slot)
        kernel, new = with_stage_axes(self._kernel, self._tiles, axes)
        preloads = [replace(each, tile=new.get(each.tile, each.tile)) for each in preloads]
        tiles = info_of(kernel)
        consumers = Group.of_block(self._launch)
        more = Group(consumers.count, WARPGROUP)
        producer = Group(consumers.count, WARPGROUP if self._by_threads else WARP_SIZE)
        kernel = _with_threads(kernel, consumers.count + WARPGROUP)
        launch = Launch(kernel)
        thread = launch.thread_index
        declarations, body = _without_declarations(launch.body)
        split = SplitKernel(body, tiles, loops, schedules, around, preloads)
        ahead = producer_of(split, producer.index_of(thread), producer.count)
        using = _consuming(split, consumers.index_of(thread), ahead)
        own, copying = ahead.apart_from(using)
        rings = {ring.full: ring for each in self.loops for ring in each.rings}
        rings |= {each.ring.full: each.ring for each in preloads}
        ready = [statement for ring in rings.values() for statement in ring.declared()]
        few, many = self._registers.moved(self.loops)
        roles = tirx.IfThenElse(
            consumers.admits(thread, launch.num_threads),
            group_region(consumers, seq([*many, using])),
            group_region(more, seq([*few, _by(producer, more, launch, copying)])),
        )
        begun = tirx.Evaluate(T.tvm_storage_sync("shared"))
        return with_launch_body(kernel, seq([*declarations, *own, *ready, begun, roles]))

    def _schedule_of(self, loop: SplitLoop) -> Schedule:
        roles = producer_role(loop), consumer_role(loop, self._context.kind, self._warps)
        copies = {tile: ring.slots for ring in loop.rings for tile in ring.tiles}
        return Schedule(loop.units, roles, loop.rings, copies)

    def blocks_at_once(self) -> int:
        """The number of a multiprocessor's blocks, as far as registers and memory are known."""
        threads = self._launch.num_threads
        held = max(registers_held(each.units, each.order, threads) for each in self.loops)
        by_registers = self._registers.blocks_at_once(threads + WARPGROUP, held)
        return min(by_registers, self._memory.blocks_at_once())

    def why_registers_are_fixed(self) -> str | None:
        """The wish of the kernel that keeps registers from moving to the consumers."""
        return self._registers.why_fixed(self.loops)


def _consuming(kernel: SplitKernel, thread: ir.Expr, ahead: Producer) -> tirx.Stmt:
    """The consumers' work, with what they need too of what the producer does besides its copies."""
    without = ahead.replayed
    while True:
        using = consumers_of(kernel, thread, without)
        needed = ahead.needed_by(using)
        kept = [stmt for stmt in without if not any(map(stmt.same_as, needed))]
        if len(kept) == len(without):
            return using
        without = kept


def _by(producer: Group, more: Group, launch: Launch, copying: tirx.Stmt) -> tirx.Stmt:
    """The producer's work, in the region of its warpgroup."""
    return copying if producer == more else let_in(producer, launch, copying)


def _with_threads(kernel: tirx.For, count: int) -> tirx.For:
    """A kernel whose blocks have so many threads along their one axis."""

    def extend(loop: tirx.For) -> tirx.For:
        if not binds_thread(loop):
            return loop
        return replace_loop(loop, extent=tirx.const(count, str(loop.loop_var.ty.dtype)))

    return mapped(kernel, (tirx.For, extend))


def _without_declarations(body: tirx.Stmt) -> tuple[list[tirx.Stmt], tirx.Stmt]:
    """The allocations and views of a kernel, which both roles may use, and the rest."""
    found: list[tirx.Stmt] = []

    def take(node: tirx.Stmt) -> tirx.Stmt:
        found.append(node)
        return tirx.Evaluate(tirx.const(0, "int32"))

    rest = mapped(body, ((tirx.AllocBuffer, tirx.DeclBuffer), take))
    return found, rest
