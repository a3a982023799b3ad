"""Blocks that stay: as many as a GPU runs at once do the work of all blocks of a grid."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.ir.annotations import CLUSTER_ANNOTATION, NO_UNROLLING
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import Launch, flattened, is_grid_barrier, is_thread_return
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.rewriting import (
    contains,
    defined_in,
    for_loop,
    replace_loop,
    seq,
    substitute,
    variables_of,
)
from tvmtile.passes.tile.specialization.candidates import (
    Unsuitable,
    operators_in,
    pipelined_loops_in,
    wish_of,
)

__all__ = ["persistent"]

_X = "blockIdx.x"


def persistent(kernel: tirx.For, multiprocessors: int) -> tirx.For:
    """A kernel with a block for each multiprocessor, which loops over the blocks that there were.

    They are visited in the order that the kernel asks for. An index keeps its known range: it is a
    remainder by the extent of the grid, which changes no value.

    Parameters
    ----------
    kernel : For
        Each of its blocks fills a multiprocessor.
    multiprocessors : int
        Of the GPU.

    Raises
    ------
    Unsuitable
        If blocks can't follow each other, or nothing is won.
    """
    launch = Launch(kernel)
    _check(kernel, launch)
    loops = sorted(launch.blocks, key=_tag)
    grid = [constant(loop.extent) or 0 for loop in loops]
    total = math.prod(grid)
    if not total:
        raise Unsuitable("the extents of the grid are not constant")
    if total <= multiprocessors:
        raise Unsuitable(f"{total} blocks run at once")
    block, turn, tile = (ir.Var(name, kernel.loop_var.ty) for name in ("block", "turn", "tile"))
    number = tirx.Bind(tile, tirx.floormod(block + turn * multiprocessors, total))
    indices = _indices(tile, [loop.loop_var for loop in loops], grid, launch.body)
    body = mapped(launch.body, (ir.Call, _without_order))
    turns = tirx.floordiv(total - 1 - block, multiprocessors) + 1
    whole: tirx.Stmt = replace_loop(
        for_loop(turn, turns, seq([number, *indices, body])), annotations={NO_UNROLLING: 1}
    )
    for thread in reversed(launch.threads):
        whole = replace_loop(thread, body=whole)
    extent = tirx.const(multiprocessors, str(block.ty.dtype))
    return replace_loop(
        kernel,
        loop_var=block,
        extent=extent,
        body=whole,
        thread_binding=loops[0].thread_binding,
    )


def _tag(loop: tirx.For) -> str:
    return str(loop.thread_binding.thread_tag)


def _check(kernel: tirx.For, launch: Launch) -> None:
    if CLUSTER_ANNOTATION in kernel.annotations:
        raise Unsuitable("blocks run in clusters")
    if contains(launch.body, tirx.Evaluate, is_grid_barrier):
        raise Unsuitable("blocks wait for each other")
    if contains(launch.body, tirx.Evaluate, is_thread_return):
        raise Unsuitable("threads end before their block does")
    if contains(launch.body, ir.Call, lambda call: op_name(call) in _FOREIGN):
        raise Unsuitable("functions of other sources may ask which block calls them")
    if wish_of(kernel, lambda op: op.persists()) is None:
        _check_worth(kernel)


_FOREIGN = ("tirx.call_extern", "tirx.call_pure_extern")


def _check_worth(kernel: tirx.For) -> None:
    """Decline where the GPU, which gives the next block to who is ready, shares work out better."""
    statements = list(flattened(Launch(kernel).body))
    bound = defined_in(kernel)
    for loop in pipelined_loops_in(kernel):
        is_outermost = any(map(loop.same_as, statements))
        if not is_outermost or not bound.isdisjoint(variables_of(loop.extent)):
            raise Unsuitable("blocks may differ in what they do")
        if not _only_multiplies(loop):
            raise Unsuitable("its loop does more than one product; T.annotate_persistent() asks")


def _only_multiplies(loop: tirx.For) -> bool:
    """Tell whether a loop has one product and copies: what was measured to be faster."""
    others = [op for op in operators_in(loop) if op.is_tile and not op.is_copy]
    stores = contains(loop, tirx.BufferStore, lambda _: True)
    return [op.is_product for op in others] == [True] and not stores


def _indices(
    tile: ir.Var, blocks: list[ir.Var], grid: list[int], body: tirx.Stmt
) -> list[tirx.Stmt]:
    """The indices of the block that is the next one, given its number."""
    places: list[Any] = []
    rest: Any = tile
    for extent in grid:
        places.append(tirx.floormod(rest, extent))
        rest = tirx.floordiv(rest, extent)
    known = dict(zip(blocks, places, strict=True))
    extents = [tirx.const(extent, str(tile.ty.dtype)) for extent in grid]
    for op in operators_in(body):
        order = op.block_order(blocks, extents)
        if order is not None:
            places = [substitute(place, known) for place in order]
    inside = (tirx.floormod(p, extent) for p, extent in zip(places, grid, strict=True))
    return [tirx.Bind(block, place) for block, place in zip(blocks, inside, strict=True)]


def _without_order(call: ir.Call) -> Any:
    """Nothing in place of an operator that orders blocks."""
    op: TileOp | None = operator_of(call)
    return tirx.const(0, "int32") if op is not None and op.orders_blocks else call
