"""Blocks that stay: as many as a GPU runs at once do the work of all blocks of a grid."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile.analysis.kernel_info import let_values
from tvmtile.ir.annotations import BLOCKS_ANNOTATION, CLUSTER_ANNOTATION, NO_UNROLLING
from tvmtile.ir.barriers import is_grid_barrier
from tvmtile.ir.block_order import block_order
from tvmtile.ir.calls import op_name
from tvmtile.ir.conditions import is_assumption
from tvmtile.ir.divisions import named_divisions
from tvmtile.ir.kernels import Launch, flattened, is_thread_return
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operators_in
from tvmtile.ir.options import options_of, without_panels
from tvmtile.ir.rewriting import (
    contains,
    defined_in,
    for_loop,
    replace_loop,
    seq,
    substitute,
    variables_of,
)
from tvmtile.ir.threads import WARPGROUP
from tvmtile.passes.tile.schedule.body import Obstacle
from tvmtile.passes.tile.schedule.split_loops import pipelined_loops_in

_X = "blockIdx.x"


def persistent(kernel: tirx.For, multiprocessors: int) -> tirx.For:
    """A kernel with a block for each multiprocessor, which loops over the blocks that there were.

    They are visited in the order that the kernel asks for; every other turn backwards where they differ
    in their work, so that a block which was given much of it is given little next. An index keeps its
    known range: it is a remainder by the extent of the grid, or none beyond its end, which changes no
    value.

    Where several blocks run on a multiprocessor at once, `multiprocessors` is as many times as large.

    Raises
    ------
    Obstacle
        If blocks can't follow each other, or nothing is won.
    """
    launch = Launch(kernel)
    _check(kernel, launch, multiprocessors)
    loops = sorted(launch.blocks, key=_tag)
    grid = [loop.extent for loop in loops]
    total: Any = math.prod(grid)
    count = constant(total)
    if count is not None and count <= multiprocessors:
        raise Obstacle(f"{count} blocks run at once")
    block, turn, tile = (ir.Var(name, total.ty) for name in ("block", "turn", "tile"))
    place, turns = _place_and_turns(block, turn, total, multiprocessors, _is_uneven(kernel))
    number = place + turn * multiprocessors
    named = tirx.Bind(tile, number if count is None else tirx.floormod(number, total))
    blocks = [loop.loop_var for loop in loops]
    order = block_order(options_of(kernel), blocks, grid)
    indices = _indices(tile, blocks, grid, order)
    loop = for_loop(turn, turns, seq([named, *indices, launch.body]))
    loop = replace_loop(loop, annotations={BLOCKS_ANNOTATION: True, NO_UNROLLING: 1})
    whole = seq([*_assumed_of_sizes(kernel), loop])
    for thread in reversed(launch.threads):
        whole = replace_loop(thread, body=whole)
    extent = tirx.const(multiprocessors, str(block.ty.dtype))
    if count is None:
        extent = tirx.min(total, extent)
    return replace_loop(
        without_panels(kernel),
        loop_var=block,
        min=tirx.const(0, str(block.ty.dtype)),
        extent=extent,
        body=whole,
        thread_binding=loops[0].thread_binding,
    )


def _assumed_of_sizes(kernel: tirx.For) -> list[tirx.Stmt]:
    """Assumptions that hold of all blocks: they are known around the loop over them, too."""
    inside = defined_in(kernel)
    assumed = filter(is_assumption, flattened(Launch(kernel).body))
    return [stmt for stmt in assumed if inside.isdisjoint(variables_of(stmt))]


def _place_and_turns(
    block: ir.Var, turn: ir.Var, total: Any, multiprocessors: int, is_uneven: bool
) -> tuple[ir.Expr, ir.Expr]:
    """The place of a block among those of a turn, and the number of its turns."""
    if not is_uneven:
        return block, tirx.floordiv(total - 1 - block, multiprocessors) + 1
    is_backwards = tirx.EQ(tirx.floormod(turn, 2), tirx.const(1, str(turn.ty.dtype)))
    place = tirx.Select(is_backwards, multiprocessors - 1 - block, block)
    full, rest = tirx.floordiv(total, multiprocessors), tirx.floormod(total, multiprocessors)
    has_more = Analyzer().simplify(substitute(place, {turn: full})) < rest
    return place, full + tirx.Cast(str(block.ty.dtype), has_more)


def _is_uneven(kernel: tirx.For) -> bool:
    """Tell whether the iterations of a pipelined loop depend on the block."""
    bound = defined_in(kernel)
    loops = pipelined_loops_in(kernel)
    return any(not bound.isdisjoint(variables_of(loop.extent)) for loop in loops)


def _tag(loop: tirx.For) -> str:
    return str(loop.thread_binding.thread_tag)


def _check(kernel: tirx.For, launch: Launch, multiprocessors: int) -> None:
    if CLUSTER_ANNOTATION in kernel.annotations:
        raise Obstacle("blocks run in clusters")
    if contains(launch.body, tirx.Evaluate, is_grid_barrier):
        raise Obstacle("blocks wait for each other")
    if contains(launch.body, tirx.Evaluate, is_thread_return):
        raise Obstacle("threads end before their block does")
    if contains(launch.body, ir.Call, lambda call: op_name(call) in _FOREIGN):
        raise Obstacle("functions of other sources may ask which block calls them")
    if options_of(kernel).persistent is None:
        _check_worth(kernel, multiprocessors)


_FOREIGN = ("tirx.call_extern", "tirx.call_pure_extern")


def _check_worth(kernel: tirx.For, multiprocessors: int) -> None:
    """Decline where the GPU, which gives the next block to who is ready, shares work out better.

    The kinds of kernels that gain are those of `benchmarks/h200/decisions.md`.
    """
    launch = Launch(kernel)
    statements = list(flattened(launch.body))
    loops = pipelined_loops_in(kernel)
    is_known = None not in (constant(block.extent) for block in launch.blocks)
    if is_known and len(loops) == 1 and _is_attention(loops[0], launch):
        _check_balance(loops[0], launch, multiprocessors)
        return
    for loop in loops:
        is_outermost = any(map(loop.same_as, statements))
        if not is_outermost or _is_uneven(kernel):
            raise Obstacle("blocks may differ in what they do")
        if not _only_multiplies(loop):
            raise Obstacle("its loop does more than one product; T.annotate_persistent() asks")


def _is_attention(loop: tirx.For, launch: Launch) -> bool:
    """Tell whether a loop has two products, of warpgroups that take a multiprocessor's registers."""
    products = [op for op in operators_in(loop) if op.role == "product"]
    return len(products) == _PRODUCTS and launch.num_threads >= 2 * WARPGROUP


_PRODUCTS = 2


def _check_balance(loop: tirx.For, launch: Launch, multiprocessors: int) -> None:
    """Decline where blocks that take turns would have unequal work, or nothing to hide."""
    loops = sorted(launch.blocks, key=_tag)
    grid = [constant(each.extent) or 0 for each in loops]
    total = math.prod(grid)
    axis, trip_counts = _trip_counts(loop, loops, launch.body)
    mean = sum(trip_counts) / len(trip_counts)
    if mean > _LONG:
        raise Obstacle(f"its loop has {mean:.0f} iterations, beside which little is to be won")
    stride = math.prod(grid[:axis])
    work = [0] * multiprocessors
    for tile in range(total):
        turn, place = divmod(tile, multiprocessors)
        block = multiprocessors - 1 - place if turn % 2 and len(trip_counts) > 1 else place
        work[block] += trip_counts[tile // stride % len(trip_counts)] + 1
    most = max(work) * multiprocessors / sum(work)
    if most > _UNEQUAL:
        raise Obstacle(f"a block would have {most:.2f} of the work of others")


_LONG = 64
"""Iterations, beside which the beginning and the end of a block are little."""
_UNEQUAL = 1.15
"""Of the work of a block. The GPU, which gives the next block to who is ready, comes closer to 1."""


def _trip_counts(loop: tirx.For, blocks: list[tirx.For], body: tirx.Stmt) -> tuple[int, list[int]]:
    """The trip counts of a loop, by the index along an axis of the grid, and this axis."""
    extent = substitute(loop.extent, let_values(body))
    known = constant(extent)
    if known is not None:
        return 0, [known]
    used = variables_of(extent)
    axes = [axis for axis, each in enumerate(blocks) if any(map(each.loop_var.same_as, used))]
    if len(axes) != 1 or len(used) > 1:
        raise Obstacle("blocks may differ in what they do")
    block, analyzer = blocks[axes[0]], Analyzer()
    values = [
        constant(analyzer.simplify(substitute(extent, {block.loop_var: tirx.const(n, "int32")})))
        for n in range(constant(block.extent) or 0)
    ]
    if None in values:
        raise Obstacle("blocks may differ in what they do")
    return axes[0], [max(value or 0, 0) for value in values]


def _only_multiplies(loop: tirx.For) -> bool:
    """Tell whether a loop has one product and copies: what was measured to be faster."""
    others = [op for op in operators_in(loop) if op.is_tile and op.role != "copy"]
    stores = contains(loop, tirx.BufferStore, lambda _: True)
    return [op.role == "product" for op in others] == [True] and not stores


def _indices(
    tile: ir.Var, blocks: list[ir.Var], extents: list[ir.Expr], order: list[Any] | None
) -> list[tirx.Stmt]:
    """The indices of the block that is the next one, given its number and the order of all."""
    places: list[Any] = []
    rest: Any = tile
    for extent in extents[:-1]:
        places.append(tirx.floormod(rest, extent))
        rest = tirx.floordiv(rest, extent)
    places.append(rest)
    if order is not None:
        known = dict(zip(blocks, places, strict=True))
        places = [substitute(place, known) for place in order]
    names: list[tirx.Bind] = []
    inside = list(map(_inside, places, extents))
    if None in map(constant, extents):
        names, inside = named_divisions(inside, "panel")
    return [*names, *map(_bound, blocks, inside)]


def _bound(index: ir.Var, value: Any) -> tirx.Bind:
    """An index of a dtype that may be narrower than that of the number of blocks."""
    return tirx.Bind(index, value.astype(index.ty.dtype))


def _inside(place: Any, extent: Any) -> ir.Expr:
    """A place along an axis, of which passes see that it is inside, and not in front."""
    if constant(extent) is None:  # a remainder by it takes some twenty instructions
        return tirx.max(tirx.min(place, extent - 1), 0)
    return tirx.floormod(place, extent)
