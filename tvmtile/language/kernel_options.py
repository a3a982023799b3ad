"""What a kernel asks of the compiler as a whole (`tvmtile.ir.options`).

Of what is said more than once, the last holds; all sources are imported.
"""

from __future__ import annotations

from tvmtile.errors import InvalidOperand
from tvmtile.frontend.kernel import kernel_of
from tvmtile.ir.types import Index


def set_options(function: str, **options: object) -> None:
    """Note options of the kernel that is being written.

    Raises
    ------
    NestingError
        Outside `T.Kernel`.
    """
    kernel_of(f"T.{function}").options.update(options)


def use_swizzle(panel_size: Index, order: str = "row", enable: bool = True) -> None:
    """Visit the blocks of the grid in panels, for reuse in the GPU's cache.

    Parameters
    ----------
    panel_size : int
        Blocks across a panel.
    order : {"row", "column", "strip", "mlx"}
        Along which axis of the grid a panel runs. Every second panel of "row" and "column" is gone
        through backwards; "strip", also called "mlx", is "row" with all panels in one direction,
        which with a panel size of 4 is the order of MLX's matrix products.
    enable : bool
        False leaves the order as it is.

    Notes
    -----
    It changes the order in which blocks run, never a result. A CPU ignores it, and so does a grid of
    one axis.

    Raises
    ------
    InvalidOperand
        If there is no such order, or the panel size is not a positive integer.
    """
    if order not in _ORDERS:
        raise InvalidOperand(
            f"T.use_swizzle: order={order!r}", help='use "row", "column" or "strip"'
        )
    if not isinstance(panel_size, int) or panel_size < 1:
        raise InvalidOperand(
            f"T.use_swizzle: panel_size={panel_size!r}", help="panel_size is a positive integer"
        )
    if enable:
        set_options("use_swizzle", panel_size=panel_size, panel_order=_ORDERS[order])


_ORDERS = {"row": "row", "column": "column", "col": "column", "strip": "strip", "mlx": "strip"}


def annotate_warp_specialize(enable: bool = True) -> None:
    """Say whether warps of their own copy the tiles of pipelined loops.

    Parameters
    ----------
    enable : bool
        False: all threads copy and compute. True: it is done wherever it can be, and a warning says why
        where it can't. Without the annotation it is done where it pays: on Hopper, where products are
        by `wgmma` and copies can go by tensor maps.

    Notes
    -----
    It changes no result. `T.Kernel(threads=)` counts the threads that compute.
    """
    set_options("annotate_warp_specialize", specialize_warps=bool(enable))


def annotate_persistent(enable: bool = True) -> None:
    """Say whether as many blocks as run at once do the work of all blocks of the grid.

    Parameters
    ----------
    enable : bool
        True: where warps of their own copy tiles (`T.annotate_warp_specialize`), they copy those of
        the next block while threads still compute. Other kernels, and a grid that runs at once, stay
        as they are; `kernel.choices` says why.

    Notes
    -----
    It changes no result: which blocks follow each other, and where, is left to the GPU anyway. Leave it
    out for what was found faster.
    """
    set_options("annotate_persistent", persistent=bool(enable))


def annotate_min_blocks_per_sm(n: Index) -> None:
    """Let a thread use so few registers that `n` blocks fit on a multiprocessor of an NVIDIA GPU.

    Parameters
    ----------
    n : int
        At least 1. It is the second number of CUDA's `__launch_bounds__`; other targets ignore it.
        Blocks that persist (`T.annotate_persistent`) are so many for each multiprocessor, or as many as
        its shared memory has room for, and the roles of a block share the registers that it gets.
        Without it, that number is 1, so that threads may use all registers, for a kernel without matrix
        instructions that has a block for each multiprocessor at most.

    Raises
    ------
    InvalidOperand
        If it is not a positive integer.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidOperand(
            f"T.annotate_min_blocks_per_sm: n={n!r}", help="n is a positive integer"
        )
    set_options("annotate_min_blocks_per_sm", blocks_per_multiprocessor=n)


def no_set_max_nreg() -> None:
    """Let each thread keep the registers that it begins with, where warps of their own copy tiles.

    Otherwise those move registers to the threads that multiply, in blocks of 256 and 384 of these on
    Hopper (`T.annotate_warp_specialize`). What `T.set_max_nreg` says of a warpgroup stays.
    """
    set_options("no_set_max_nreg", fixed_registers=True)


def disable_warp_group_reg_alloc() -> None:
    """The same as `T.no_set_max_nreg()`."""
    no_set_max_nreg()


def import_source(source: str | None = None) -> None:
    """Bring functions in CUDA C++ that the kernel calls by `T.call_extern` or `T.call_pure_extern`.

    Parameters
    ----------
    source : str, optional
        Definitions of `__device__` functions; None brings nothing.

    Notes
    -----
    The kernel can be compiled for CUDA only. What a function does to memory is not known to the
    compiler: a call counts as a use of the whole tiles that it gets the address of.
    """
    if source is not None:
        before = kernel_of("T.import_source").options.get("source", "")
        if source not in before:
            set_options("import_source", source=f"{before}\n{source}" if before else source)
