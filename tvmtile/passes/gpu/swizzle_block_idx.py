"""SwizzleBlockIdx: the blocks of a grid are visited in the order that a kernel asks for."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile.ir.block_order import block_order
from tvmtile.ir.divisions import named_divisions
from tvmtile.ir.kernels import Launch, with_kernels, with_launch_body
from tvmtile.ir.options import options_of
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import seq, substitute


@prim_func_pass("SwizzleBlockIdx")
def SwizzleBlockIdx(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Permute the blocks of the grid so that blocks which run together share operands.

    A GPU starts blocks in the order of their numbers. Every block still has work of its own. This
    comes late: what is known of the range of a block's index stays true, and passes before this one
    use it.
    """
    return with_kernels(func, _ordered)


def _ordered(kernel: tirx.For) -> tirx.For:
    launch = Launch(kernel)
    loops = sorted(launch.blocks, key=lambda loop: str(loop.thread_binding.thread_tag))
    blocks = [loop.loop_var for loop in loops]
    grid = [loop.extent for loop in loops]
    order = block_order(options_of(kernel), blocks, grid)
    if order is None:
        return kernel
    fresh = [ir.Var(block.name, block.ty) for block in blocks]
    names, values = named_divisions(order, "panel")
    binds = [tirx.Bind(new, value) for new, value in zip(fresh, values, strict=True)]
    moved = substitute(launch.body, dict(zip(blocks, fresh, strict=True)))
    return with_launch_body(kernel, seq([*names, *binds, moved]))
