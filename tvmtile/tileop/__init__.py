"""Tile operators: each module holds one, from its user-facing function to its lowerings.

Importing this package registers them all. Lowerings in modules of their own are imported where a
program is lowered (`tvmtile.tileop.lowerings`).
"""

from tvmtile.tileop import (
    atomic,
    copy,
    cp_async,
    dp4a,
    fill,
    fp8_scaled_matmul,
    gather,
    gemm,
    gemm_sp,
    hints,
    im2col,
    mbarrier,
    partial_reduce,
    printing,
    quantifier,
    reduce,
    reducer,
    registers,
    rounded,
    scan,
    tma,
    transpose,
)

__all__ = [
    "atomic",
    "copy",
    "cp_async",
    "dp4a",
    "fill",
    "fp8_scaled_matmul",
    "gather",
    "gemm",
    "gemm_sp",
    "hints",
    "im2col",
    "mbarrier",
    "partial_reduce",
    "printing",
    "quantifier",
    "reduce",
    "reducer",
    "registers",
    "rounded",
    "scan",
    "tma",
    "transpose",
]
