"""WarpSpecialize: let warps of their own copy the tiles of pipelined loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target

from tvmtile._tvm import buffer_of, mapped, nodes_in
from tvmtile.analysis.accesses import kernels_of
from tvmtile.errors import warn
from tvmtile.ir.annotations import ONE_ROLE, STAGES_ANNOTATION
from tvmtile.ir.barriers import is_barrier_of_blocks
from tvmtile.ir.kernels import Launch, target_of, with_kernels
from tvmtile.ir.options import options_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, replace_loop
from tvmtile.ir.scopes import is_mbarrier
from tvmtile.ir.spans import first_location
from tvmtile.ir.threads import WARPGROUP, group_of_region
from tvmtile.passes.tile.pipelining import BlockMemory, warn_of_fewer_stages
from tvmtile.passes.tile.plan_pipeline import MOST_STAGES
from tvmtile.passes.tile.select_implementation import ImplementationChoice
from tvmtile.passes.tile.specialization import (
    CrossIterationOverlap,
    RoleRegisters,
    Specializer,
    Unskewed,
    Unsuitable,
    persistent,
    pipelined_loops_in,
)
from tvmtile.target import GpuCapability, gpu


@prim_func_pass("WarpSpecialize", requires=(Property.IMPLEMENTATIONS, Property.GROUPS))
def WarpSpecialize(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Split pipelined loops between consumers, a block's threads, and a producer, a warp more.

    The producer copies tiles ahead by tensor maps, one buffer copy a stage; mbarriers say when a tile
    has come, and when nobody needs it any more (see `tvmtile.passes.tile.specialization`). Consumers do
    all the rest. So no thread computes addresses, or waits for copies, while it could multiply. A
    product stays in flight over the iteration where enough bytes are on their way meanwhile; others go
    on until a statement needs them to be done. Where all are, before the iteration ends, consumers wait
    for the tiles of the next one behind the last product: sums that are scaled are not in the way of
    that. Copies that are loops, as those of gathered rows, the producer does by the threads of a whole
    warpgroup. These also compute tiles from global memory that products read, by way of fragments of
    their own: conversions, dequantised weights. They do where that pays, as where a multiprocessor has
    room for one block only, or `T.annotate_warp_specialize()` asks for it; where it has room for
    several, one of them multiplies while another computes.

    Iterations of which one condition says whether anything is done, as a mask of blocks does, are left
    out by both roles where it does not hold: nobody waits for a tile that nobody copies. A `break` or
    `continue` of a loop around is one of both roles, too.

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
    """
    target = target_of(func)
    capability = gpu(target)
    is_off = func.attrs is not None and func.attrs.get(ONE_ROLE, False)
    if is_off or capability is None or not capability.has_bulk_copies:
        return func
    limit = None if func.attrs is None else func.attrs.get(MOST_STAGES)
    return with_kernels(func, lambda kernel: _specialized(kernel, target, capability, limit))


def roles_of(func: tirx.PrimFunc) -> list[ImplementationChoice]:
    """Whether the pipelined loops of a function are split, and why not; nothing where none ever is."""
    target = target_of(func)
    capability = gpu(target)
    if capability is None or not capability.has_bulk_copies:
        return []
    is_off = func.attrs is not None and func.attrs.get(ONE_ROLE, False)
    found: list[ImplementationChoice] = []
    for kernel in kernels_of(func):
        loops = pipelined_loops_in(kernel)
        try:
            if is_off:
                raise Unsuitable("tl.disable_warp_specialized is set")
            roles = _split(kernel, target, capability)
            split, obstacle = roles.specializer, roles.one_block_each
            fixed = split.why_registers_are_fixed()
            outcomes = [
                _outcome(obstacle, skew, computing, fixed, skips=skips)
                for skew, computing, skips in zip(
                    split.skews(), split.computing(), split.skips(), strict=True
                )
            ]
        except Unsuitable as why:
            outcomes = [("one role", (("two roles", str(why)),))] * len(loops)
        found += [
            ImplementationChoice(
                first_location(loop), "Pipelined", loop.loop_var.name, chosen, declined
            )
            for loop, (chosen, declined) in zip(loops, outcomes, strict=True)
        ]
    return found


def _outcome(
    one_block_each: str | None,
    skew: CrossIterationOverlap | Unskewed | None,
    computing: bool | str,
    fixed_registers: str | None,
    *,
    skips: bool,
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What became of a loop, and why it is nothing better."""
    chosen, declined = ["two roles"], list[tuple[str, str]]()
    if skips:
        chosen.append("skipped iterations")
    if computing is True:
        chosen.append("computing producer")
    elif computing:
        declined.append(("computing producer", computing))
    if isinstance(skew, CrossIterationOverlap):
        chosen.append("skewed")
    elif skew is not None:
        declined.append(("skewed", str(skew)))
    if fixed_registers is not None:
        declined.append(("registers for consumers", fixed_registers))
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
        if options_of(kernel).specialize_warps:
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
    """A kernel with two roles, what split it, and why each block of the grid has one of its own."""

    kernel: tirx.For
    specializer: Specializer
    one_block_each: str | None


def _split(kernel: tirx.For, target: Target, capability: GpuCapability) -> _Roles:
    """A kernel with two roles, of blocks that stay if they can.

    Raises
    ------
    Unsuitable
        If it stays as it is.
    """
    wish = options_of(kernel).specialize_warps
    if wish is False:
        raise Unsuitable("the kernel asks for one role")
    _check_kernel(Launch(kernel), capability)
    if not BlockMemory(kernel, capability).has_room_for_all():
        raise Unsuitable("a block has no room for all its tiles at once, which two roles may use")

    def split(whole: tirx.For) -> Specializer:
        return Specializer(whole, target, capability, is_wanted=wish is True)

    try:
        specializer = _persisting(kernel, capability.multiprocessors, split)
        return _Roles(specializer.kernel(), specializer, None)
    except Unsuitable as obstacle:
        specializer = split(kernel)
        return _Roles(specializer.kernel(), specializer, str(obstacle))


_PERSISTS = True
"""Whether blocks loop over those of the grid where a kernel does not say, and that was measured."""


def _persisting(
    kernel: tirx.For, multiprocessors: int, split: Callable[[tirx.For], Specializer]
) -> Specializer:
    """What splits a kernel whose blocks persist, as many of them as run at once.

    On an H200, float16 products in tiles of 64 x 128 by 128 threads, of which two fit, take 210 us at
    4096 cubed, 452 at 8192 x 8192 x 2048 and 140 at 8192 x 8192 x 512 (a block a tile: 260, 570, 153;
    one or three a multiprocessor: 149 to 593); in tiles of 128 x 128, of which one fits, 250, 488 and
    134 (258, 516, 161).

    Raises
    ------
    Unsuitable
        If none are to persist.
    """
    wish = options_of(kernel).persistent
    if not (_PERSISTS if wish is None else wish):
        raise Unsuitable("the kernel asks for a block each")
    threads, registers = Launch(kernel).num_threads, RoleRegisters(kernel)
    has_one, is_asked = registers.move_to(threads), registers.least_blocks is not None
    if threads > WARPGROUP and not (has_one or is_asked or registers.are_fixed):
        raise Unsuitable("several blocks may run at once on a multiprocessor")
    of_one = split(persistent(kernel, multiprocessors))
    count = 1 if has_one else of_one.blocks_at_once()
    if count > _MOST_AT_ONCE and wish is None:
        raise Unsuitable(
            f"{count} blocks may run at once on a multiprocessor; T.annotate_persistent() asks"
        )
    if not is_asked:
        count = min(count, _MOST_AT_ONCE)
    return of_one if count == 1 else split(persistent(kernel, count * multiprocessors))


_MOST_AT_ONCE = 2
"""More than that may not fit: how many registers a thread takes is not known exactly."""


def _check_kernel(launch: Launch, capability: GpuCapability) -> None:
    if len(launch.threads) > 1 or launch.num_threads % WARPGROUP:
        raise Unsuitable(f"{launch.num_threads} threads are not whole warpgroups")
    if launch.num_threads + WARPGROUP > capability.max_threads:
        raise Unsuitable(f"a block of {launch.num_threads} threads has no room for a producer")
    if contains(launch.body, tirx.AttrStmt, lambda node: group_of_region(node) is not None):
        raise Unsuitable("the kernel has groups of threads of its own")
    if contains(launch.body, tirx.Evaluate, is_barrier_of_blocks):
        raise Unsuitable("blocks wait for each other, with all of their threads")
    if any(is_mbarrier(buffer_of(each)) for each in nodes_in(launch.body, tirx.AllocBuffer)):
        raise Unsuitable("the kernel has mbarriers of its own")
