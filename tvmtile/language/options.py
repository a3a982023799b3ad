"""Options of a kernel (`tvmtile.ir.options`), and hints that change no result.

Of what is said more than once, the last holds; all sources are imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmtile.compat.ignored import warn_ignored
from tvmtile.compat.transform import EFFECTS, PassConfigKey, warn_without_effect, with_effect
from tvmtile.errors import InvalidOperand, warn
from tvmtile.frontend.kernel import kernel_of
from tvmtile.frontend.tracer import current_tracer
from tvmtile.ir.annotations import MAY_ALIAS
from tvmtile.ir.types import Index
from tvmtile.tileop.hints import annotate_layout, pdl_sync, pdl_trigger

__all__ = [
    "annotate_compile_flags",
    "annotate_consumer_reg_alloc",
    "annotate_l2_hit_ratio",
    "annotate_layout",
    "annotate_min_blocks_per_sm",
    "annotate_pass_configs",
    "annotate_persistent",
    "annotate_producer_reg_dealloc",
    "annotate_restrict_buffers",
    "annotate_warp_specialize",
    "disable_warp_group_reg_alloc",
    "import_source",
    "no_set_max_nreg",
    "pdl_sync",
    "pdl_trigger",
    "use_swizzle",
]


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


def annotate_compile_flags(flags: Any) -> None:
    """Accepted with a warning: the flags for the compiler of generated CUDA source are fixed."""
    warn_without_effect({PassConfigKey.TL_DEVICE_COMPILE_FLAGS: flags})


def annotate_consumer_reg_alloc(reg_count: int = 240) -> None:
    """Accepted with a warning: registers of a thread that consumes tiles."""
    warn_ignored("T.annotate_consumer_reg_alloc", reg_count=reg_count)


def annotate_l2_hit_ratio(l2_hit_ratio_map: dict[Any, float]) -> None:
    """Accepted with a warning: how much of a tensor to keep in a GPU's L2 cache."""
    if l2_hit_ratio_map:
        warn("T.annotate_l2_hit_ratio has no effect: what the L2 cache keeps is left to the GPU")


def annotate_pass_configs(configs: Mapping[Any, Any]) -> None:
    """Options of TileLang's own passes, for this kernel; see `tvmtile.PassConfigKey`.

    Parameters
    ----------
    configs : mapping
        Options by key. One of TVM's passes is a whole compilation's, and has no effect here: a warning
        says so.

    Raises
    ------
    InvalidValue
        For a key of `tl.*` that there is not.
    """
    warn_without_effect(configs)
    tracer = current_tracer()
    for name in with_effect(configs):
        if name not in EFFECTS:
            warn(
                f"T.annotate_pass_configs: {name} has no effect: it is for the whole compilation, "
                "pass_configs= of tvmtile.compile"
            )
        elif tracer is not None:
            tracer.attributes[name] = True


def annotate_producer_reg_dealloc(reg_count: int = 24) -> None:
    """Accepted with a warning: registers of a thread that copies tiles."""
    warn_ignored("T.annotate_producer_reg_dealloc", reg_count=reg_count)


def annotate_restrict_buffers(*buffers: object) -> None:
    """Say that tensors may share memory with each other, as slices of one tensor may.

    A program means the same then whether they do or not: what a block has stored by one of the names it
    reads by another, in the order in which it is written. So no copy runs ahead of such a store,
    and no pointer of the program is `__restrict__` on CUDA. Blocks, and iterations of `T.Parallel`,
    have no order here either.

    Parameters
    ----------
    *buffers : buffer
        Parameters. One alone may share memory with any other.
    """
    tracer = current_tracer()
    if buffers and tracer is not None:
        known: Any = tracer.attributes.get(MAY_ALIAS, [])
        names = [str(getattr(buffer, "name", "")) for buffer in buffers]
        tracer.attributes[MAY_ALIAS] = [*known, *names]
