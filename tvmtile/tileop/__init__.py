"""Tile operators: each module holds one, from its user-facing function to its lowerings.

Importing this package registers them all. Lowerings in modules of their own are imported where a
program is lowered (`tvmtile.tileop.lowerings`).
"""

from tvmtile.tileop import (  # noqa: F401
    atomic,
    copy,
    copy_cluster,
    cp_async,
    dp4a,
    fp8_scaled_matmul,
    gather,
    gemm,
    gemm_sp,
    hints,
    mbarrier,
    moves,
    printing,
    quantifier,
    reduce,
    reducer,
    rounded,
    scan,
    tma,
)
from tvmtile.tileop.gemm import background  # noqa: F401
from tvmtile.tileop.tma import descriptors  # noqa: F401
