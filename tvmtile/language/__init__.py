"""The tile language: `import tvmtile.language as T`.

Everything of TVMScript's `T` (TVM's `tvm.script.tirx`), and over it the tile language, with the names
and the meanings of TileLang's public language: `T.Kernel`, `T.alloc_shared`, `T.copy`, `T.gemm`,
`T.Pipelined`, `T.Parallel`, ...
"""

# ruff: noqa: F401, F403 - TVM's names come first, ours replace those of the same name
from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

from tvm.script.tirx import *
from tvm.tirx import PrimFunc

from tvmtile.frontend import dtypes
from tvmtile.frontend.constructs import serial
from tvmtile.frontend.dtypes import as_dtype, dtype_names, is_float4
from tvmtile.frontend.dtypes import as_dtype as get_tvm_dtype
from tvmtile.frontend.dtypes import is_float4 as is_float4_e2m1fn
from tvmtile.frontend.expressions import seen_by_kernels
from tvmtile.frontend.kernel import Kernel, current_kernel
from tvmtile.frontend.parameters import OutputTensor, TensorSpec, ptr
from tvmtile.frontend.proxy import Ref
from tvmtile.frontend.values import if_then_else
from tvmtile.ir.scopes import FRAGMENT_SCOPE, SHARED_SCOPE
from tvmtile.language.debug import *
from tvmtile.language.launches import *
from tvmtile.language.loops import *
from tvmtile.language.math import *
from tvmtile.language.options import *
from tvmtile.language.persistence import *
from tvmtile.language.random import *
from tvmtile.language.rounding import *
from tvmtile.language.tensors import *
from tvmtile.language.vectors import *
from tvmtile.language.views import *
from tvmtile.language.votes import *
from tvmtile.language.warps import *
from tvmtile.layout import Fragment, Layout
from tvmtile.tileop.atomic import (
    atomic_add,
    atomic_addx2,
    atomic_addx4,
    atomic_load,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_store,
)
from tvmtile.tileop.block_scales import *
from tvmtile.tileop.cluster import block_rank_in_cluster
from tvmtile.tileop.copy import async_copy, copy
from tvmtile.tileop.copy_cluster import copy_cluster
from tvmtile.tileop.cp_async import access_ptr, ptx_commit_group, ptx_cp_async, ptx_wait_group
from tvmtile.tileop.dp4a import dp4a
from tvmtile.tileop.fp8_scaled_matmul import fp8_scaled_matmul
from tvmtile.tileop.gather import gather4, gather_rows, scatter4, scatter_rows
from tvmtile.tileop.gemm import GemmWarpPolicy, gemm
from tvmtile.tileop.gemm.background import (
    wait_wgmma,
    warpgroup_arrive,
    warpgroup_commit_batch,
    warpgroup_fence_operand,
    warpgroup_wait,
    wgmma_gemm,
)
from tvmtile.tileop.gemm_sp import gemm_sp
from tvmtile.tileop.hints import annotate_safe_value, dec_max_nreg, inc_max_nreg, set_max_nreg
from tvmtile.tileop.mbarrier import (
    alloc_barrier,
    alloc_cluster_barrier,
    barrier_arrive,
    barrier_wait,
    cp_async_barrier_noinc,
    fence_proxy_async,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_wait_parity,
)
from tvmtile.tileop.moves import *
from tvmtile.tileop.printing import print
from tvmtile.tileop.quantifier import all_of, any_of
from tvmtile.tileop.reduce import (
    reduce,
    reduce_absmax,
    reduce_abssum,
    reduce_bitand,
    reduce_bitor,
    reduce_bitxor,
    reduce_max,
    reduce_min,
    reduce_sum,
)
from tvmtile.tileop.reducer import alloc_reducer, finalize_reducer, reducer_init, reducer_update
from tvmtile.tileop.scan import cummax, cumsum
from tvmtile.tileop.tma import tma_copy
from tvmtile.tileop.tma.descriptors import create_tma_descriptor, tma_load
from tvmtile.tileop.tma.instructions import tma_store_arrive, tma_store_wait
from tvmtile.tileop.tma.rows import tma_gather4, tma_gather4_bytes, tma_scatter4

globals().update({name: as_dtype(name) for name in dtype_names()})

if TYPE_CHECKING:
    # To a type checker, a kernel's annotations are no types, and its statements not Python's.
    from typing import no_type_check as macro
    from typing import no_type_check as prim_func

    from tvmtile.language.scripted import *
else:
    globals().update(
        {
            name: seen_by_kernels(function)
            for name, function in globals().items()
            if isinstance(function, FunctionType)
        }
    )

    from tvmtile.frontend import macro, prim_func

    def __getattr__(name: str) -> object:
        import sys

        from tvmtile.compat.absent import no_attribute

        raise no_attribute("T", sys.modules[__name__], name)
