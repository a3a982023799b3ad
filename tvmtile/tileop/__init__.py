"""Tile operators: each module holds one, from its user-facing function to its lowerings.

Importing this package registers them all, with their lowerings.
"""

from tvmtile.tileop import (
    atomic,
    copy,
    dp4a,
    fill,
    fp8_scaled_matmul,
    gather,
    gemm,
    gemm_sp,
    hints,
    im2col,
    import_source,
    printing,
    quantifier,
    reduce,
    reducer,
    rounded,
    scan,
    transpose,
)
from tvmtile.tileop import copy_ldmatrix as _copy_ldmatrix  # noqa: F401
from tvmtile.tileop import copy_matrices as _copy_matrices  # noqa: F401
from tvmtile.tileop.gemm import cpu as _gemm_cpu  # noqa: F401 - its lowerings register themselves
from tvmtile.tileop.gemm import elements as _gemm_elements  # noqa: F401
from tvmtile.tileop.gemm import matmul2d as _gemm_matmul2d  # noqa: F401
from tvmtile.tileop.gemm import mma as _gemm_mma  # noqa: F401
from tvmtile.tileop.gemm import simdgroup as _gemm_simdgroup  # noqa: F401
from tvmtile.tileop.gemm_sp import mma as _gemm_sp_mma  # noqa: F401
from tvmtile.tileop.reduce import cpu as _reduce_cpu  # noqa: F401
from tvmtile.tileop.reduce import registers as _reduce_registers  # noqa: F401
from tvmtile.tileop.scan import cpu as _scan_cpu  # noqa: F401
from tvmtile.tileop.scan import gpu as _scan_gpu  # noqa: F401

__all__ = [
    "atomic",
    "copy",
    "dp4a",
    "fill",
    "fp8_scaled_matmul",
    "gather",
    "gemm",
    "gemm_sp",
    "hints",
    "im2col",
    "import_source",
    "printing",
    "quantifier",
    "reduce",
    "reducer",
    "rounded",
    "scan",
    "transpose",
]
