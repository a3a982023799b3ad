"""The lowerings that are in modules of their own; importing this one registers them."""

import tvmtile.tileop.atomic.instructions
import tvmtile.tileop.atomic.tma
import tvmtile.tileop.copy_ldmatrix
import tvmtile.tileop.copy_matrices
import tvmtile.tileop.copy_tma
import tvmtile.tileop.copy_tma_store
import tvmtile.tileop.gemm.amx
import tvmtile.tileop.gemm.cpu
import tvmtile.tileop.gemm.fma
import tvmtile.tileop.gemm.matmul2d
import tvmtile.tileop.gemm.mma
import tvmtile.tileop.gemm.mmla
import tvmtile.tileop.gemm.simdgroup
import tvmtile.tileop.gemm.vectors
import tvmtile.tileop.gemm.wgmma
import tvmtile.tileop.gemm_sp.mma
import tvmtile.tileop.reduce.cpu
import tvmtile.tileop.reduce.registers
import tvmtile.tileop.scan.cpu
import tvmtile.tileop.scan.gpu  # noqa: F401
