"""Options that TileLang's kernels give and that change nothing here, each with the reason."""

from __future__ import annotations

import re

from tvmtile.errors import warn

_REGISTERS = "how many registers a thread of each role has follows from what it holds"
_CHOSEN = "tiles are added so where that is possible; `kernel.choices` says why not"

IGNORED: tuple[tuple[str, str, str], ...] = (
    ("T.Kernel", "prelude", "T.CUDASourceCodeKernel takes source text of one's own"),
    (
        "T.Parallel",
        "coalesced_width|loop_layout|prefer_async",
        "the compiler shares the iterations out, by the layouts of the fragments in the loop",
    ),
    ("T.Pipelined", "sync|group", "the compiler finds what depends on what"),
    ("T.alloc_reducer", "replication", "the compiler decides which threads hold totals"),
    ("T.annotate_(consumer|producer)_reg_(de)?alloc", "reg_count", _REGISTERS),
    ("T.atomic_add", "use_tma", _CHOSEN),
    ("T.copy", ".*", "the compiler chooses the instructions and shares the elements out"),
    ("T.copy_cluster", ".*", "the compiler chooses the instructions"),
    ("T.finalize_reducer", "batch", "the compiler decides how threads exchange their totals"),
    ("T.gemm_sp", "k_pack", "it is of the matrix units of AMD's GPUs"),
    ("T.gemm(_sp)?", "wg_wait|mbar", "the product is complete when the next statement begins"),
    ("T.im2col", "eviction_policy", "what a cache keeps is left to the GPU"),
    (
        "T.print",
        "warp_group_id|warp_id",
        "a tile and a value of the block are printed once a block, others by each thread",
    ),
    ("T.reduce_.*", "batch", "the compiler decides how threads exchange their results"),
    ("T.sync_warp", "mask", "all threads of a warp wait"),
    ("T.tma_copy", ".*", "it is none of the hints that there are"),
    ("T.tma_(gather|scatter)4", ".*", "the rows of the tile are plain"),
    ("T..*", "annotations", "these are options of TileLang's own lowering"),
    (
        "AutoTuner.run",
        "enable_grouped_compile|benchmark_multi_gpu",
        "configurations are compiled and measured singly",
    ),
    (
        "set_compile_args",
        "verbose",
        "a line a configuration goes to the log `tvmtile.autotuner`",
    ),
    (".*", "verbose|debug_root_path", "kernel.lowering holds the program after each pass"),
    (".*", "target_host", "the host is that of the target"),
)
"""Patterns of functions as users call them, patterns of options, and why they change nothing."""


def warn_ignored(function: str, **given: object) -> None:
    """Warn of the options of a function that change nothing.

    Parameters
    ----------
    function : str
        As the user calls it.
    **given
        The values of options, each of which has a row; None, false or an empty dictionary is not given.
    """
    for option, value in given.items():
        if value is not None and value is not False and value != {}:
            reason = next(
                reason
                for functions, options, reason in IGNORED
                if re.fullmatch(functions, function) and re.fullmatch(options, option)
            )
            warn(f"{function}: {option} has no effect: {reason}")
