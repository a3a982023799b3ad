"""SchedulePipelines: pipelined loops are written out, with copies that run ahead of what uses them."""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from tvmtile._tvm import mapped
from tvmtile.errors import warn
from tvmtile.ir.annotations import MOST_STAGES, ONE_ROLE, STAGES_ANNOTATION
from tvmtile.ir.kernels import bound_target, kernels_of, target_of, with_kernels
from tvmtile.ir.options import options_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import replace_loop
from tvmtile.ir.spans import first_location
from tvmtile.passes.tile.schedule.body import Obstacle
from tvmtile.passes.tile.schedule.one_role import with_one_role
from tvmtile.passes.tile.schedule.resources import warn_of_fewer_stages
from tvmtile.passes.tile.schedule.split_loops import SplitLoop, pipelined_loops_in
from tvmtile.passes.tile.schedule.two_roles import with_two_roles
from tvmtile.passes.tile.select_implementation import ImplementationChoice
from tvmtile.target import GpuCapability, gpu


@prim_func_pass(
    "SchedulePipelines",
    requires=(Property.REGIONS, Property.IMPLEMENTATIONS, Property.GROUPS),
    establishes=(Property.PIPELINED,),
)
def SchedulePipelines(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write out pipelined loops, in which copies run ahead of what uses them.

    A tile that is written in one stage and used in a later one gets a leading axis of buffer
    copies: iteration `k` works on copy `k % copies`, and what stands outside of the loop on copy 0.
    If the value of the last iteration is read there, the count begins so that it works on copy 0.
    Allocations and views in the loop move before it. What a loop computes never depends on its
    schedule.

    **One role.** With `num_stages=s` what copies from global memory into shared tiles, and what
    must come before that, is in stage 0, everything else in stage `s - 1`, so that copies run `s -
    1` iterations ahead. In an iteration the copies come first. A branch with a copy in it becomes
    one branch a statement, where its condition can be computed again for each. The stages and the
    order that a user gives are taken, if they leave the result as it is; like TileLang's, they have
    an entry a statement and none for names whose value can be computed again (with one for each
    name, those are ignored).

    The first iterations of the first stage become statements before the loop, without the last
    stage. In the loop, which keeps its bounds, statements of earlier stages do a later iteration
    where there is one; so the last iterations need no statements of their own, and loops of any
    number of iterations are right. Names of values are bound again for each iteration that needs
    them.

    Where the target has asynchronous copies, moves from global memory into tiles that only later
    stages touch are issued on a token, one for each stage that has such moves. Each iteration
    signals it behind the stage's statements, and begins with waits that leave in flight what no
    stage uses yet: `s - 2` batches with `num_stages=s`. Behind the loop nothing is in flight. With
    three stages and more, a product that the hardware computes in the background and whose sums
    nothing else in the loop touches stays in flight: it is waited for when the next iteration has
    begun its own, and holds a buffer copy for so long, so copies run one iteration less ahead.

    A loop that can't be pipelined loses its annotations, and a warning says why. There are fewer
    stages, and a warning too, where a block has no memory for so many buffer copies, or the
    target's instructions can't leave so many copies in flight; the attribute `tvmtile.most_stages`
    of a function is a limit that whoever runs the passes sets. Loops of no or one stage have
    nothing to plan.

    **Two roles.** Where products are asynchronous work of warpgroups, or
    `T.annotate_warp_specialize()` asks for it, all pipelined loops of a kernel are split between
    consumers, a block's threads, and a producer, a warp more. The producer copies tiles ahead by
    tensor maps, one buffer copy a stage; mbarriers say when a tile has come, and when nobody needs
    it any more. Consumers do all the rest. So no thread computes addresses, or waits for copies,
    while it could multiply. A product stays in flight over the iteration where enough bytes are on
    their way meanwhile; others go on until a statement needs them to be done. Where all are, before
    the iteration ends, consumers wait for the tiles of the next one behind the last product: sums
    that are scaled are not in the way of that. Copies that are loops, as those of gathered rows,
    the producer does by the threads of a whole warpgroup. These also compute tiles from global
    memory that products read, by way of fragments of their own: conversions, dequantised weights.
    They do where that pays, as where a multiprocessor has room for one block only, or
    `T.annotate_warp_specialize()` asks for it; where it has room for several, one of them
    multiplies while another computes.

    Iterations of which one condition says whether anything is done, as a mask of blocks does, are
    left out by both roles where it does not hold: nobody waits for a tile that nobody copies. A
    `break` or `continue` of a loop around is one of both roles, too.

    Before a loop the producer also copies the tiles that its iterations only read, as the queries
    of attention. Where a serial loop is around both, it copies those of the next iteration while
    consumers use those of this one, if there is room. What copies need and the kernel computes
    before, such as a tile of indices or the number of iterations, the producer computes too: in
    buffers of its own where consumers need it as well.

    A kernel has one role whose threads are not whole warpgroups, or that has groups or mbarriers of
    its own, or a loop whose copies can't go by tensor maps or depend on what consumers compute. The
    attribute `tvmtile.one_role` of a function, which `tl.disable_warp_specialized` sets, says so
    for all of its kernels.

    Raises
    ------
    InvalidOperand
        If a user's stages or order do not fit the statements of the loop.
    """
    target = bound_target(func)
    capability = gpu(target)
    kind = str(target.kind.name) if target is not None else ""
    limit = None if func.attrs is None else func.attrs.get(MOST_STAGES)
    may_split = not _has_one_role(func)

    def schedule(kernel: tirx.For) -> tirx.For:
        if (
            target is not None
            and capability is not None
            and capability.has_bulk_copies
            and may_split
        ):
            kernel = _specialized(kernel, target, capability, limit)
        return with_one_role(kernel, kind, capability, limit)

    return with_kernels(func, schedule)


def _has_one_role(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and bool(func.attrs.get(ONE_ROLE, False))


def _specialized(
    kernel: tirx.For, target: Target, capability: GpuCapability, limit: int | None
) -> tirx.For:
    """A kernel with two roles, if it can have them; otherwise as it is."""
    loops = pipelined_loops_in(kernel)
    if not loops:
        return kernel
    try:
        return with_two_roles(_limited(kernel, limit, capability), target, capability).kernel
    except Obstacle as obstacle:
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


def roles_of(func: tirx.PrimFunc) -> list[ImplementationChoice]:
    """The roles of a function's pipelined loops, and why not more; none if none is ever split."""
    target = target_of(func)
    capability = gpu(target)
    if capability is None or not capability.has_bulk_copies:
        return []
    is_off = _has_one_role(func)
    found: list[ImplementationChoice] = []
    for kernel in kernels_of(func):
        loops = pipelined_loops_in(kernel)
        try:
            if is_off:
                raise Obstacle("tl.disable_warp_specialized is set")
            roles = with_two_roles(kernel, target, capability)
            fixed = roles.specializer.why_registers_are_fixed()
            outcomes = [
                _outcome(split, fixed, roles.one_block_each) for split in roles.specializer.loops
            ]
        except Obstacle as why:
            outcomes = [("one role", (("two roles", str(why)),))] * len(loops)
        found += [
            ImplementationChoice(
                first_location(loop), "Pipelined", loop.loop_var.name, chosen, declined
            )
            for loop, (chosen, declined) in zip(loops, outcomes, strict=True)
        ]
    return found


def _outcome(
    split: SplitLoop, fixed_registers: str | None, one_block_each: str | None
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The outcome for a loop, and why it is nothing better."""
    chosen, declined = ["two roles"], list[tuple[str, str]]()
    if split.condition is not None:
        chosen.append("skipped iterations")
    if split.not_computed is not None:
        declined.append(("computing producer", split.not_computed))
    elif split.computed:
        chosen.append("computing producer")
    if split.skew is not None:
        chosen.append("skewed")
    elif split.not_skewed is not None:
        declined.append(("skewed", split.not_skewed))
    if fixed_registers is not None:
        declined.append(("registers for consumers", fixed_registers))
    if one_block_each is None:
        chosen.append("persistent blocks")
    else:
        declined.append(("persistent blocks", one_block_each))
    return ", ".join(chosen), tuple(declined)
