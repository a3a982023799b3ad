"""Annotations of a kernel: hints that change no result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmtile.compat.ignored import warn_ignored
from tvmtile.compat.transform import EFFECTS, PassConfigKey, warn_without_effect, with_effect
from tvmtile.errors import warn
from tvmtile.frontend.tracer import current_tracer
from tvmtile.ir.annotations import MAY_ALIAS
from tvmtile.language.kernel_options import (
    annotate_min_blocks_per_sm,
    annotate_persistent,
    annotate_warp_specialize,
    disable_warp_group_reg_alloc,
    import_source,
    no_set_max_nreg,
    use_swizzle,
)
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
