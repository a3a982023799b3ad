"""A kernel with two roles, put together."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvmtile._tvm import mapped
from tvmtile.instructions.wgmma import LEAST_BESIDE_SUMS, LEAST_REGISTERS
from tvmtile.ir.kernels import Launch, binds_thread, with_launch_body
from tvmtile.ir.operators import operators_in
from tvmtile.ir.rewriting import replace_loop, seq
from tvmtile.ir.threads import WARP_SIZE, WARPGROUP, Group, group_region, let_in
from tvmtile.passes.tile.pipelining import BlockMemory, KernelTiles, StageAxis, with_stage_axes
from tvmtile.passes.tile.specialization.bulk_copies import BulkCopies
from tvmtile.passes.tile.specialization.candidates import (
    Candidate,
    Unsuitable,
    candidates_in,
    pipelined_loops_in,
)
from tvmtile.passes.tile.specialization.computed import computes_as_it_loads
from tvmtile.passes.tile.specialization.consumers import consumers_of
from tvmtile.passes.tile.specialization.preloads import Preload, preloaded_in
from tvmtile.passes.tile.specialization.producer import Producer, producer_of
from tvmtile.passes.tile.specialization.registers import (
    LEAST_LOADED,
    RoleRegisters,
    registers_loaded,
)
from tvmtile.passes.tile.specialization.skew import CrossIterationOverlap, Unskewed, registers_held
from tvmtile.passes.tile.specialization.split import Splits
from tvmtile.passes.tile.specialization.splitter import Splitter
from tvmtile.target import GpuCapability
from tvmtile.tileop.registry import LoweringContext, implementation_of


class Specializer:
    """Splits the loops of a kernel.

    Raises
    ------
    Unsuitable
        If it stays as it is.
    """

    def __init__(
        self, kernel: tirx.For, target: Target, capability: GpuCapability, *, is_wanted: bool
    ) -> None:
        self._kernel = kernel
        self._is_wanted = is_wanted
        self._launch = Launch(kernel)
        self._registers = RoleRegisters(kernel)
        self._context = LoweringContext(target, self._launch.analyzer(), launch=self._launch)
        self._tiles = KernelTiles(kernel)
        if not is_wanted and not self._multiplies_asynchronously():
            raise Unsuitable("no product is asynchronous work of warpgroups")
        registers = self._registers.at_first(self._launch.num_threads)
        if not is_wanted and registers < LEAST_REGISTERS:
            raise Unsuitable(
                f"{self._registers.least_blocks} blocks with producers leave a thread {registers} "
                f"registers, and a product takes {LEAST_REGISTERS}"
            )
        why_not = BulkCopies(kernel, self._context).why_not
        kind = self._context.kind
        self._candidates = candidates_in(kernel, self._tiles, kind, why_not, self._why_not_compute)
        candidates = self._candidates
        self._preloaded = preloaded_in(self._launch.body, candidates, self._tiles, why_not)
        self._by_threads = any(each.by_threads for each in candidates)
        self._memory = BlockMemory(kernel, capability)
        held = self._registers.of_consumer(self._launch.num_threads, candidates)
        self._splitter = Splitter(self._launch, candidates, self._memory, held, kind)

    def _why_not_compute(self, candidate: Candidate) -> str | None:
        """Why threads of the producer should not compute tiles; the kernel may ask for it anyway.

        Where a multiprocessor runs several blocks, one of them multiplies while another computes. Of
        float32 that becomes float16 on the way to a product of 4096 cubed on an H200, blocks of 128 x
        128 take 361 us with one role, two at once, and 542 with a producer; blocks of 128 x 256 take
        411 and 317, and 246 in steps of 128. An iteration takes as long as the loads of a tile, so few
        of them do not pay (829 in steps of 32), nor loads that wait for each other: `T.Parallel` over
        bytes of a tensor, times scales, takes 423 with one role and 538 with a producer.
        """
        threads = self._launch.num_threads
        held = registers_held(candidate.units, candidate.order, threads)
        most = self._registers.of_consumer(threads, [candidate])
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
        if any(computes_as_it_loads(candidate.units[number]) for number in candidate.computed):
            return f"a loop that loads and computes would wait for each load; {asks}"
        loaded = registers_loaded(candidate)
        if loaded < LEAST_LOADED:
            return f"a thread would load {loaded} registers in an iteration; {asks}"
        return None

    def _multiplies_asynchronously(self) -> bool:
        """Tell whether an operator of the loops issues work that is waited for by a token."""
        operators = (op for loop in pipelined_loops_in(self._kernel) for op in operators_in(loop))
        chosen = (implementation_of(op, self._context.kind) for op in operators if op.is_tile)
        return any(each is not None and each.completion is not None for each in chosen)

    def kernel(self) -> tirx.For:
        """The kernel with a warpgroup more, of which one warp is the producer."""
        splits = self._splitter.splits
        preloads = self._splitter.preloads(self._preloaded)
        axes = {
            variable: {
                tile: StageAxis(ring.stages, ring.index)
                for ring in split.rings
                for tile in split.filled(ring)
            }
            for variable, split in splits.items()
        }
        for each in preloads:
            if each.around is not None and each.ring.stages > 1:
                of_loop = axes.setdefault(each.around, {})
                of_loop[each.tile] = StageAxis(each.ring.stages, each.ring.index)
        kernel = with_stage_axes(self._kernel, self._tiles, axes)
        preloads = [each.renamed(self._kernel, kernel) for each in preloads]
        tiles = KernelTiles(kernel)
        consumers = Group.of_block(self._launch)
        more = Group(consumers.count, WARPGROUP)
        producer = Group(consumers.count, WARPGROUP if self._by_threads else WARP_SIZE)
        kernel = _with_threads(kernel, consumers.count + WARPGROUP)
        launch = Launch(kernel)
        thread = launch.thread_index
        declarations, body = _without_declarations(launch.body)
        copier = producer.index_of(thread)
        ahead = producer_of(body, splits, tiles, copier, producer.count, preloads)
        using = self._consuming(body, splits, tiles, consumers.index_of(thread), ahead, preloads)
        own, copying = ahead.apart_from(using)
        rings = {ring.full: ring for split in splits.values() for ring in split.rings}
        rings |= {each.ring.full: each.ring for each in preloads}
        ready = [statement for ring in rings.values() for statement in ring.declared()]
        few, many = self._registers.moved(consumers.count, self._candidates)
        roles = tirx.IfThenElse(
            consumers.admits(thread, launch.num_threads),
            group_region(consumers, seq([*many, using])),
            group_region(more, seq([*few, _by(producer, more, launch, copying)])),
        )
        begun = tirx.Evaluate(T.tvm_storage_sync("shared"))
        return with_launch_body(kernel, seq([*declarations, *own, *ready, begun, roles]))

    def blocks_at_once(self) -> int:
        """How many blocks a multiprocessor runs, as far as registers and shared memory are known."""
        threads = self._launch.num_threads
        held = max(registers_held(each.units, each.order, threads) for each in self._candidates)
        by_registers = self._registers.blocks_at_once(threads + WARPGROUP, held)
        return min(by_registers, self._memory.blocks_at_once())

    def skews(self) -> list[CrossIterationOverlap | Unskewed | None]:
        """How the products of each loop overlap, or why they don't; None where there are not two."""
        return self._splitter.skews()

    def skips(self) -> list[bool]:
        """Whether iterations of each loop may be left out."""
        return [each.condition is not None for each in self._candidates]

    def computing(self) -> list[bool | str]:
        """Whether the producer computes tiles of each loop; why it does not, where it could."""
        return [each.not_computed or bool(each.computed) for each in self._candidates]

    def why_registers_are_fixed(self) -> str | None:
        """What the kernel asks for that keeps registers from moving to the consumers."""
        return self._registers.why_fixed(self._launch.num_threads, self._candidates)

    def _consuming(
        self,
        body: tirx.Stmt,
        splits: Splits,
        tiles: KernelTiles,
        number: ir.Expr,
        ahead: Producer,
        preloads: list[Preload],
    ) -> tirx.Stmt:
        """What the consumers do; of what the producer does besides its copies, what they need too."""
        without = ahead.replayed
        while True:
            kind = self._context.kind
            using = consumers_of(body, splits, tiles, number, kind, preloads, without)
            needed = ahead.needed_by(using)
            kept = [stmt for stmt in without if not any(map(stmt.same_as, needed))]
            if len(kept) == len(without):
                return using
            without = kept


def _by(producer: Group, more: Group, launch: Launch, copying: tirx.Stmt) -> tirx.Stmt:
    """What the producer does, in the region of its warpgroup."""
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
