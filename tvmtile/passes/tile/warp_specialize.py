"""WarpSpecialize: let warps of their own copy the tiles of pipelined loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.target import Target
from tvm.tirx.layout import ComposeLayout, Layout
from tvm.tirx.script import builder as T

from tvmtile._tvm import mapped
from tvmtile.analysis.accesses import kernels_of
from tvmtile.analysis.aliases import allocations_in
from tvmtile.errors import NoLowering, warn
from tvmtile.ir.annotations import STAGES_ANNOTATION
from tvmtile.ir.barriers import is_barrier_of_blocks
from tvmtile.ir.kernels import Launch, outermost_loops_in, target_of, with_kernels, with_launch_body
from tvmtile.ir.operands import buffer_of, constant, describe
from tvmtile.ir.operators import TileOp, operator_for, operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, replace_loop, retyped, seq, substitute
from tvmtile.ir.scopes import is_mbarrier, is_shared
from tvmtile.ir.spans import first_location
from tvmtile.ir.threads import WARP_SIZE, WARPGROUP, Group, group_of_region, group_region, let_in
from tvmtile.layout.shared import SWIZZLES, period_of, swizzled
from tvmtile.passes.memory.user_layouts import layout_of_map
from tvmtile.passes.tile.pipelining import (
    BlockMemory,
    KernelTiles,
    Mbarriers,
    StageAxis,
    warn_of_fewer_stages,
    with_stage_axes,
)
from tvmtile.passes.tile.plan_pipeline import MOST_STAGES
from tvmtile.passes.tile.select_implementation import Choice
from tvmtile.passes.tile.specialization import (
    Candidate,
    Preload,
    Producer,
    Ring,
    Skew,
    Split,
    Splits,
    Unskewed,
    Unsuitable,
    candidates_in,
    consumers_of,
    operators_in,
    persistent,
    pipelined_loops_in,
    preloaded_in,
    producer_of,
    skew_of,
    wish_of,
)
from tvmtile.target import GpuCapability, gpu
from tvmtile.tileop.registry import LoweringContext, declined_before, implementation_of, select
from tvmtile.transform import ONE_ROLE

__all__ = ["WarpSpecialize", "roles_of"]


@prim_func_pass("WarpSpecialize", requires=(Property.IMPLEMENTATIONS, Property.GROUPS))
def WarpSpecialize(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Split pipelined loops between consumers, a block's threads, and a producer, a warp more.

    The producer copies tiles ahead by tensor maps, one buffer copy a stage; mbarriers say when a tile
    has come, and when nobody needs it any more (see `tvmtile.passes.tile.specialization`). Consumers do
    all the rest. So no thread computes addresses, or waits for copies, while it could multiply. A
    product stays in flight over the iteration where enough bytes are on their way meanwhile; others go
    on until a statement needs them to be done. Copies that are loops, as those of gathered rows, the
    producer does by the threads of a whole warpgroup.

    Before a loop the producer also copies the tiles that its iterations only read, as the queries of
    attention. Where a serial loop is around both, it copies those of the next iteration while consumers
    use those of this one, if there is room.

    What copies need and the kernel computes before, such as a tile of indices or the number of
    iterations, the producer computes too: in buffers of its own where consumers need it as well.

    It is done to all pipelined loops of a kernel or to none: where products are asynchronous work of
    warpgroups, or `T.annotate_warp_specialize()` asks for it. A kernel stays as it is whose threads are
    not whole warpgroups, or that has groups or mbarriers of its own, or a loop whose copies can't go
    by tensor maps or depend on what consumers compute. The attribute `tvmtile.one_role` of a function,
    which `tl.disable_warp_specialized` sets, leaves all of its kernels as they are.

    Before
    ------
    ```
    @T.prim_func
    def main(
        A: T.Buffer((64, 256), "float16"),
        B: T.Buffer((256, 64), "float16"),
        C: T.Buffer((64, 64), "float32"),
    ):
        T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, thread="threadIdx.x"):
                a = T.alloc_buffer((64, 64), "float16", scope="shared.dyn")
                b = T.alloc_buffer((64, 64), "float16", scope="shared.dyn")
                acc = T.alloc_buffer((64, 64), "float32", scope="local.fragment")
                T.tile.fill(acc[0:64, 0:64], T.float32(0))
                for k in T.serial(4, annotations={"tvmtile.num_stages": 4}):
                    T.tile.copy(A[0:64, k * 64 : k * 64 + 64], a[0:64, 0:64], impl="elements")
                    T.tile.copy(B[k * 64 : k * 64 + 64, 0:64], b[0:64, 0:64], impl="elements")
                    T.tile.gemm(a[0:64, 0:64], b[0:64, 0:64], acc[0:64, 0:64], impl="wgmma")
                T.tile.copy(acc[0:64, 0:64], C[0:64, 0:64], impl="elements")
    ```

    After
    -----
    ```
    @T.prim_func
    def main(
        A: T.Buffer((64, 256), "float16"),
        B: T.Buffer((256, 64), "float16"),
        C: T.Buffer((64, 64), "float32"),
    ):
        T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(256, thread="threadIdx.x"):
                a = T.alloc_buffer((4, 64, 64), "float16", scope="shared.dyn")
                b = T.alloc_buffer((4, 64, 64), "float16", scope="shared.dyn")
                acc = T.alloc_buffer((64, 64), "float32", scope="local.fragment")
                full = T.alloc_buffer((4,), "uint64", scope="shared.barrier")
                T.tile.init_mbarriers(full, counts=[1, 1, 1, 1])
                empty = T.alloc_buffer((4,), "uint64", scope="shared.barrier")
                T.tile.init_mbarriers(empty, counts=[4, 4, 4, 4])
                T.tvm_storage_sync("shared")
                if tx < 128:
                    with T.attr(0, "tvmtile.group", 128):
                        T.tile.fill(acc[0:64, 0:64], T.float32(0))
                        for k in T.serial(4, annotations={"disable_unroll": 1}):
                            T.tile.mbarrier(
                                full[k % 4], T.Cast("int32", k // 4 % 2), action="wait"
                            )
                            with T.attr(T.int32(0), "tvmtile.asynchronous", "wgmma/k2"):
                                T.tile.gemm(
                                    a[k % 4, 0:64, 0:64],
                                    b[k % 4, 0:64, 0:64],
                                    acc[0:64, 0:64],
                                    impl="wgmma",
                                )
                            T.tile.async_signal("wgmma/k2")
                            T.tile.async_wait("wgmma/k2", 1)
                            T.tvm_storage_sync("warp")
                            if k > 0 and tx % 32 == 0:
                                T.tile.mbarrier(empty[(k - 1) % 4], 1)
                        T.tile.async_wait("wgmma/k2", 0)
                        T.tvm_storage_sync("warp")
                        if tx % 32 == 0:
                            T.tile.mbarrier(empty[3], 1)
                        T.tile.copy(acc[0:64, 0:64], C[0:64, 0:64], impl="elements")
                else:
                    with T.attr(128, "tvmtile.group", 128):
                        if tx >= 128 and tx < 160:
                            with T.attr(128, "tvmtile.group", 32):
                                for k in T.serial(4, annotations={"disable_unroll": 1}):
                                    T.tile.mbarrier(
                                        empty[k % 4],
                                        1 - T.Cast("int32", k // 4 % 2),
                                        action="wait",
                                    )
                                    T.tile.tma_copy(
                                        A[0:64, k * 64 : k * 64 + 64],
                                        a[k % 4, 0:64, 0:64],
                                        full[k % 4],
                                    )
                                    T.tile.tma_copy(
                                        B[k * 64 : k * 64 + 64, 0:64],
                                        b[k % 4, 0:64, 0:64],
                                        full[k % 4],
                                    )
                                    if tx - 128 == 0:
                                        T.tile.mbarrier(full[k % 4], 1)
    ```
    """
    target = target_of(func)
    capability = gpu(target)
    is_off = func.attrs is not None and func.attrs.get(ONE_ROLE, False)
    if is_off or capability is None or not capability.has_bulk_copies:
        return func
    limit = None if func.attrs is None else func.attrs.get(MOST_STAGES)
    return with_kernels(func, lambda kernel: _specialized(kernel, target, capability, limit))


def roles_of(func: tirx.PrimFunc) -> list[Choice]:
    """Whether the pipelined loops of a function are split, and why not; nothing where none ever is."""
    target = target_of(func)
    capability = gpu(target)
    if capability is None or not capability.has_bulk_copies:
        return []
    is_off = func.attrs is not None and func.attrs.get(ONE_ROLE, False)
    found: list[Choice] = []
    for kernel in kernels_of(func):
        loops = pipelined_loops_in(kernel)
        try:
            if is_off:
                raise Unsuitable("tl.disable_warp_specialized is set")
            obstacle = _split(kernel, target, capability).one_block_each
            skews = _Specializer(kernel, target, capability, is_wanted=True).skews()
            outcomes = [_outcome(obstacle, skew) for skew in skews]
        except Unsuitable as why:
            outcomes = [("one role", (("two roles", str(why)),))] * len(loops)
        found += [
            Choice(first_location(loop), "Pipelined", loop.loop_var.name, chosen, declined)
            for loop, (chosen, declined) in zip(loops, outcomes, strict=True)
        ]
    return found


def _outcome(
    one_block_each: str | None, skew: Skew | Unskewed | None
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What became of a loop, and why it is nothing better."""
    chosen, declined = ["two roles"], list[tuple[str, str]]()
    if isinstance(skew, Skew):
        chosen.append("skewed")
    elif skew is not None:
        declined.append(("skewed", str(skew)))
    if one_block_each is None:
        chosen.append("persistent blocks")
    else:
        declined.append(("persistent blocks", one_block_each))
    return ", ".join(chosen), tuple(declined)


def _specialized(
    kernel: tirx.For, target: Target, capability: GpuCapability, limit: int | None
) -> tirx.For:
    loops = pipelined_loops_in(kernel)
    if not loops:
        return kernel
    try:
        return _split(_limited(kernel, limit, capability), target, capability).kernel
    except Unsuitable as obstacle:
        if wish_of(kernel, lambda op: op.splits_roles()):
            warn(f"no warps are specialised: {obstacle}", first_location(loops[0]))
        return kernel


def _limited(kernel: tirx.For, limit: int | None, capability: GpuCapability) -> tirx.For:
    """A kernel whose loops have so many stages at most."""

    def fewer(loop: tirx.For) -> tirx.For:
        stages = loop.annotations.get(STAGES_ANNOTATION, 0)
        if limit is None or stages <= limit:
            return loop
        warn_of_fewer_stages(loop, limit, stages, f"a block of {capability.name} has no room")
        return replace_loop(loop, annotations={**loop.annotations, STAGES_ANNOTATION: limit})

    return mapped(kernel, (tirx.For, fewer))


@dataclass(frozen=True)
class _Roles:
    """A kernel with two roles, and why each block of the grid still has one of its own."""

    kernel: tirx.For
    one_block_each: str | None


def _split(kernel: tirx.For, target: Target, capability: GpuCapability) -> _Roles:
    """A kernel with two roles, of blocks that stay if they can.

    Raises
    ------
    Unsuitable
        If it stays as it is.
    """
    wish = wish_of(kernel, lambda op: op.splits_roles())
    if wish is False:
        raise Unsuitable("the kernel asks for one role")
    _check_kernel(Launch(kernel), capability)
    if not BlockMemory(kernel, capability).has_room_for_all():
        raise Unsuitable("a block has no room for all its tiles at once, which two roles may use")

    def split(whole: tirx.For) -> tirx.For:
        return _Specializer(whole, target, capability, is_wanted=wish is True).kernel()

    try:
        return _Roles(split(_persistent(kernel, capability)), None)
    except Unsuitable as obstacle:
        return _Roles(split(kernel), str(obstacle))


def _persistent(kernel: tirx.For, capability: GpuCapability) -> tirx.For:
    wish = wish_of(kernel, lambda op: op.persists())
    if not (_PERSISTS if wish is None else wish):
        raise Unsuitable("the kernel asks for a block each")
    if (Launch(kernel).num_threads, False) not in _REGISTERS:
        raise Unsuitable("several blocks may run at once on a multiprocessor")
    return persistent(kernel, capability.multiprocessors)


def _check_kernel(launch: Launch, capability: GpuCapability) -> None:
    if len(launch.threads) > 1 or launch.num_threads % WARPGROUP:
        raise Unsuitable(f"{launch.num_threads} threads are not whole warpgroups")
    if launch.num_threads + WARPGROUP > capability.max_threads:
        raise Unsuitable(f"a block of {launch.num_threads} threads has no room for a producer")
    if contains(launch.body, tirx.AttrStmt, lambda node: group_of_region(node) is not None):
        raise Unsuitable("the kernel has groups of threads of its own")
    if contains(launch.body, tirx.Evaluate, is_barrier_of_blocks):
        raise Unsuitable("blocks wait for each other, with all of their threads")
    if any(is_mbarrier(each.buffer) for each in allocations_in(launch.body)):
        raise Unsuitable("the kernel has mbarriers of its own")


class _Specializer:
    """Splits the loops of a kernel."""

    def __init__(
        self, kernel: tirx.For, target: Target, capability: GpuCapability, *, is_wanted: bool
    ) -> None:
        self._kernel = kernel
        self._launch = Launch(kernel)
        self._context = LoweringContext(target, Analyzer(), launch=self._launch)
        self._tiles = KernelTiles(kernel)
        self._memory = BlockMemory(kernel, capability)
        self._outermost = outermost_loops_in(self._launch.body)
        self._fixed = {
            tile: op
            for op in operators_in(kernel)
            for tile in op.fixed_layouts()
            if is_shared(tile)
        }
        if not is_wanted and not self._multiplies_asynchronously():
            raise Unsuitable("no product is asynchronous work of warpgroups")
        self._candidates = candidates_in(kernel, self._tiles, self._context.kind, self._why_not)
        self._preloaded = preloaded_in(
            self._launch.body, self._candidates, self._tiles, self._why_not
        )

    # What can be split -----------------------------------------------------------------------------

    def _why_not(self, op: TileOp, stages: int) -> str | None:
        """Why a copy can't go on by itself, in whichever way the copies of its tile will lie."""
        begun = op.begun_on(_ANY_MBARRIER.of(tirx.const(0, "int32")))
        if begun is None:
            return f"{op.name} can't go on by itself"
        call = begun.to_call()
        for written in begun.writes():
            for tile in _layouts_of(buffer_of(written), stages, self._fixed):
                placed = operator_of(_into(tile, call, buffer_of(written)))
                assert placed is not None, "it was one"
                try:
                    select(placed, self._context)
                except NoLowering:
                    reasons = declined_before(placed, self._context)
                    copies = next(at for at in placed.writes() if buffer_of(at).same_as(tile))
                    said = "; ".join(reason for _, reason in reasons)
                    said = said.replace(describe(copies), describe(written))
                    return said.replace(describe(tile), describe(buffer_of(written)))
        return None

    def _multiplies_asynchronously(self) -> bool:
        """Tell whether an operator of the loops issues work that is waited for by a token."""
        operators = (op for loop in pipelined_loops_in(self._kernel) for op in operators_in(loop))
        chosen = (implementation_of(op, self._context.kind) for op in operators if op.is_tile)
        return any(each is not None and each.completion is not None for each in chosen)

    # The kernel with two roles ---------------------------------------------------------------------

    def kernel(self) -> tirx.For:
        """The kernel with a warpgroup more, of which one warp is the producer."""
        splits: dict[ir.Var, Split] = {}
        for candidate in self._candidates:
            splits[candidate.loop.loop_var] = self._split(candidate, list(splits.values()))
        preloads = [
            self._preload(tile, splits[candidate.loop.loop_var].candidate, around)
            for tile, candidate, around in self._preloaded
        ]
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
        copy_by_threads = any(each.by_threads for each in self._candidates)
        producer = Group(consumers.count, WARPGROUP if copy_by_threads else WARP_SIZE)
        kernel = _with_threads(kernel, consumers.count + WARPGROUP)
        launch = Launch(kernel)
        thread = launch.thread_index
        declarations, body = _without_declarations(launch.body)
        ahead = producer_of(body, splits, tiles, producer.index_of(thread), preloads)
        using = self._consuming(body, splits, tiles, consumers.index_of(thread), ahead, preloads)
        own, copying = ahead.apart_from(using)
        rings = {ring.full: ring for split in splits.values() for ring in split.rings}
        rings |= {each.ring.full: each.ring for each in preloads}
        ready = [statement for ring in rings.values() for statement in ring.declared()]
        few, many = _registers(consumers.count, by_threads=copy_by_threads)
        roles = tirx.IfThenElse(
            consumers.admits(thread, launch.num_threads),
            group_region(consumers, seq([*many, using])),
            group_region(more, seq([*few, _by(producer, more, launch, copying)])),
        )
        begun = tirx.Evaluate(T.tvm_storage_sync("shared"))
        return with_launch_body(kernel, seq([*declarations, *own, *ready, begun, roles]))

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

    def _split(self, candidate: Candidate, before: list[Split]) -> Split:
        """A loop with its rings; those of a loop before that has the same tiles go on."""
        candidate = self._skewed(candidate.with_stages(self._stages_of(candidate)))
        loop = candidate.loop
        former = next((s for s in before if candidate.shares_tiles_with(s.candidate)), None)
        counter = self._counter_of(candidate) if former is None else former.counter
        iteration = loop.loop_var - loop.min
        if counter is not None:
            iteration = tirx.BufferLoad(counter, [0]) + iteration
        warps = self._launch.num_threads // WARP_SIZE
        rings = [
            Ring(
                iteration,
                tuple(units),
                *between,
                full=Mbarriers.named("full", candidate.stages, _arrivals(candidate, units)),
                empty=Mbarriers.named("empty", candidate.stages, warps),
            )
            for between, units in candidate.uses().items()
        ]
        split = Split(candidate, rings, counter)
        return split if former is None else _going_on(split, former)

    def _preload(self, tile: ir.Var, candidate: Candidate, around: tirx.For | None) -> Preload:
        """A copy before a loop, with its mbarriers.

        If it is done several times, the next one goes on while the tile of this one is used, where
        there is room for that, and for a result of as many bytes.
        """
        is_once = any(map(candidate.loop.same_as, self._outermost))
        count = None if is_once else tirx.decl_buffer((1,), "int32", name="times", scope="local")
        number = tirx.const(0, "int32") if count is None else tirx.BufferLoad(count, [0])
        copies = 1 if is_once or not self._memory.has_room_for({tile: 3}) else 2
        self._memory.take({tile: copies})
        ring = Ring(
            number,
            (),
            candidate.order[0],
            candidate.order[-1],
            in_flight=False,
            full=Mbarriers.named("full", copies, 1),
            empty=Mbarriers.named("empty", copies, self._launch.num_threads // WARP_SIZE),
        )
        skew = candidate.skew
        is_early = skew is None or tile not in candidate.units[skew.second].touches
        variable = None if around is None else around.loop_var
        return Preload(tile, candidate.loop.loop_var, ring, variable, count, is_early)

    def skews(self) -> list[Skew | Unskewed | None]:
        """How the products of each loop overlap, or why they don't; None where there are not two."""
        found: list[Skew | Unskewed | None] = []
        for candidate in self._candidates:
            try:
                stages = self._stages_of(candidate)
                found.append(self._skew_of(candidate.with_stages(stages)))
            except Unskewed as obstacle:
                found.append(obstacle)
        return found

    def _skewed(self, candidate: Candidate) -> Candidate:
        """A loop, with the order of its statements if the products of two iterations overlap."""
        try:
            return replace(candidate, skew=self._skew_of(candidate))
        except Unskewed:
            return candidate

    def _skew_of(self, candidate: Candidate) -> Skew | None:
        threads = self._launch.num_threads
        by_threads = any(each.by_threads for each in self._candidates)
        held = _registers_of(threads, by_threads=by_threads)
        skew = skew_of(candidate.units, candidate.producers, self._context.kind, threads, held)
        if skew is not None and candidate.stages == 1:
            raise Unskewed("its tiles have one buffer copy")
        return skew

    def _counter_of(self, candidate: Candidate) -> ir.Var | None:
        """What counts iterations, if others than those of one execution of the loop are counted."""
        loop = candidate.loop
        sharing = [each for each in self._candidates if each.shares_tiles_with(candidate)]
        if len(sharing) == 1 and any(map(loop.same_as, self._outermost)):
            return None
        dtypes = {str(each.loop.loop_var.ty.dtype) for each in sharing}
        if len(dtypes) > 1:
            raise Unsuitable("loops with the same tiles count in different dtypes")
        return tirx.decl_buffer(
            (1,), dtypes.pop(), name=f"{loop.loop_var.name}_done", scope="local"
        )

    def _stages_of(self, candidate: Candidate) -> int:
        """Buffer copies of its tiles, and of those of loops with the same tiles."""
        sharing = [each for each in self._candidates if each.shares_tiles_with(candidate)]
        for stages in range(min(each.stages for each in sharing), 0, -1):
            copies = dict.fromkeys(candidate.tiles, stages)
            if self._memory.has_room_for(copies):
                break
        self._memory.take(copies)
        return stages


def _going_on(split: Split, former: Split) -> Split:
    """A loop whose rings are those of one before it."""
    known = {frozenset(former.filled(ring)): ring for ring in former.rings}
    rings = []
    for ring in split.rings:
        other = known.pop(frozenset(split.filled(ring)), None)
        if other is not None and _arrivals(former.candidate, other.units) != _arrivals(
            split.candidate, ring.units
        ):
            raise Unsuitable(f"loops fill {split.filled(ring)[0].name} by different threads")
        if other is None:
            raise Unsuitable(
                f"loops use {split.filled(ring)[0].name} together with different tiles"
            )
        rings.append(replace(ring, full=other.full, empty=other.empty))
    if known:
        raise Unsuitable(f"a loop does not use {former.filled(next(iter(known.values())))[0].name}")
    return replace(split, rings=rings)


def _arrivals(candidate: Candidate, units: Sequence[int]) -> int:
    """How often a phase of a ring is arrived at by who fills it (see `Ring.fill`)."""
    if candidate.by_threads.isdisjoint(units):
        return 1
    return WARPGROUP + WARPGROUP // WARP_SIZE


_REGISTERS = {
    (256, False): (24, 240),
    (384, False): (32, 160),
    (256, True): (72, 216),
    (384, True): (56, 152),
}
"""Of a thread that copies, and of one that multiplies, by how many of these there are.

And whether threads copy elements, not one of them tiles. A multiprocessor has 65536. Blocks of other
sizes have enough for all, or none to move.
"""


_REGISTER_FILE, _MOST_REGISTERS = 65536, 255


def _registers_of(consumers: int, *, by_threads: bool) -> int:
    """Registers of a thread that multiplies, at most."""
    if (consumers, by_threads) in _REGISTERS:
        return _REGISTERS[consumers, by_threads][1]
    return min(_MOST_REGISTERS, _REGISTER_FILE // (consumers + WARPGROUP))


def _registers(consumers: int, *, by_threads: bool) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
    """What moves registers from the producer's warpgroup to those of the consumers."""
    if (consumers, by_threads) not in _REGISTERS:
        return [], []
    move = operator_for("registers")
    few, many = _REGISTERS[consumers, by_threads]
    return [tirx.Evaluate(move(few, False).to_call())], [tirx.Evaluate(move(many, True).to_call())]


def _by(producer: Group, more: Group, launch: Launch, copying: tirx.Stmt) -> tirx.Stmt:
    """What the producer does, in the region of its warpgroup."""
    return copying if producer == more else let_in(producer, launch, copying)


_PERSISTS = True
"""Whether blocks loop over those of the grid where a kernel does not say, and that was measured."""

_ANY_MBARRIER = Mbarriers.named("any", 1)


def _layouts_of(tile: ir.Var, stages: int, fixed: Mapping[ir.Var, TileOp]) -> Iterator[ir.Var]:
    """A tile, with its buffer copies, in each of the layouts that SwizzleShared may give it."""
    copies = [stages] if stages > 1 else []
    staged = retyped(tile, shape=[*copies, *tile.ty.shape]) if copies else tile
    layout = _fixed_layout(tile, staged, fixed[tile]) if tile in fixed else None
    if isinstance(layout, tirx.IndexMap):
        layout = layout_of_map(staged, layout)
    if isinstance(layout, Layout):
        yield _laid_out(staged, layout)
        return
    yield staged
    extents = [constant(extent) for extent in tile.ty.shape]
    shape = [extent for extent in extents if extent is not None]
    for width in SWIZZLES.values() if len(shape) == len(extents) > 1 else ():
        found = swizzled([*copies, *shape], str(tile.ty.dtype), width)
        if found is not None:
            yield _laid_out(staged, found)


def _fixed_layout(tile: ir.Var, staged: ir.Var, op: TileOp) -> Any:
    """The layout that a kernel fixes for a tile, for all of its buffer copies."""
    fixing = operator_of(substitute(op.to_call(), {tile: staged}))
    assert fixing is not None, "it was one"
    if not staged.same_as(tile):
        fixing = fixing.with_buffer_copies([staged])
    return fixing.fixed_layouts()[staged]


def _laid_out(tile: ir.Var, layout: Layout) -> ir.Var:
    """A tile that begins where its swizzle does."""
    swizzles = isinstance(layout, ComposeLayout)
    period = period_of(layout, str(tile.ty.dtype)) if swizzles else int(tile.ty.data_alignment)
    return retyped(tile, layout=layout, data_alignment=period)


def _into(tile: ir.Var, call: ir.Call, former: ir.Var) -> ir.Call:
    """A copy to a tile in place of a former one, or to any of its buffer copies."""
    added = len(tile.ty.shape) - len(former.ty.shape)
    copy = [ir.Range.from_min_extent(ir.Var("stage", "int32"), tirx.const(1, "int32"))] * added

    def region(node: ir.TensorRegion) -> ir.TensorRegion:
        if not node.source.same_as(former):
            return node
        return tirx.BufferRegion(tile, [*copy, *node.region])

    return mapped(call, (ir.TensorRegion, region))


def _with_threads(kernel: tirx.For, count: int) -> tirx.For:
    """A kernel whose blocks have so many threads along their one axis."""

    def extend(loop: tirx.For) -> tirx.For:
        bound = loop.thread_binding
        if bound is None or not str(bound.thread_tag).startswith("threadIdx"):
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
