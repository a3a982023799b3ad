"""Names of TileLang, and of Triton, that are not here: why, and what to write instead.

`AttributeError`s and the messages of wrong kernels say it. A test holds the names of a TileLang wheel
to this table and to what there is.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping

__all__ = ["first_match", "instead_of", "no_attribute"]

_COMPILER = "it is a part of TileLang's own compiler"
_COPIES = "T.copy(A[start], tile) copies a tile in, T.copy(tile, A[start]) out; there is no mask"
_SWIZZLES = (
    "T.annotate_layout takes tvmtile.layout.make_swizzled_layout(tile), which knows the target"
)

_ABSENT = {
    "T": {
        r"tma_load_\w+|tma_store|ptx_cp_async_bulk": "use T.tma_copy(A[y, x], tile, barrier=bar), "
        "which describes the tensor by itself",
        r"ptx_cp_async_barrier": "use T.cp_async_barrier_noinc",
        r"ptx_\w*barrier\w*|create_barriers": "use T.alloc_barrier, T.mbarrier_arrive and "
        "T.mbarrier_wait_parity",
        r"\w*wgmma_desc\w*|ptx_wgmma\w*|wgmma_mma|compute_gmma_descriptor|increase_descriptor_offset"
        r"|alloc_descriptor|WGMMA\w+": "use T.wgmma_gemm(A, B, C): the compiler writes descriptors",
        r"wgmma_gemm_sp": "use T.gemm_sp(A, E, B, C)",
        r"clc_\w+": "blocks go on to other tiles by T.Persistent, or by T.PersistentTileScheduler",
        r"BaseTileScheduler": "T.PersistentTileScheduler is one; another one is a class under "
        "T.meta_class, whose state is T.alloc_var",
        r"(is_)?float4_e2m1_unpacked": "T.float4_e2m1fn lies in pairs in bytes everywhere; T.cast "
        "decodes it, and T.gemm takes what comes of that",
        r"tfloat32x\d+": "T.tfloat32 is a dtype of operands of T.gemm; other code is of float32",
        r"(ptx_|initialize_)?tcgen05\w*|\w*TCGEN05\w*|alloc_tcgen05\w*desc|(de)?alloc(ate)?_tmem"
        r"|compute_umma_descriptor": "tensor memory is not part of "
        "the language yet; T.gemm runs there by mma.sync",
        r"ws_op|annotate_ws_\w+|WS[A-Z]\w*|ProducerLoad": "T.Pipelined gives copies warps of their own "
        "where that fits; T.annotate_warp_specialize(True) asks for it, T.ws(0) writes groups by hand",
        r"\w*gemm_blockscaled|ptx_mma_block_scale|make_blockscaled_gemm_layout|is_f8f6f4_family": "use "
        "T.fp8_scaled_matmul, where T.BlockScaledLayout tells how the scales lie",
        r"ptx_(mma|ldmatrix)\w*|mma_(fill|store)\w*|\w*TensorCoreIntrin\w*|get_ldmatrix_offset"
        r"|get_mma_micro_size": "T.gemm writes these instructions; kernel.choices tells which",
        r"get_swizzle_layout|make_mma_swizzle_layout": _SWIZZLES,
        r"PartialFragment": "the compiler lays out what T.alloc_reducer allocates",
        r"allocate": "use T.alloc_shared, T.alloc_fragment, T.alloc_local or T.alloc_global",
        r"ret": "`return` ends a program, T.thread_return() a thread; results are written into tensors",
        r"(has|get)_let_value": "a name that stands for an expression is used as the expression is",
        r"AnyDType|Any|JITFunc|KernelLaunchFrame|WarpSpecializeFrame|SizeVar|StringImm"
        r"|validate_gemm_ab_dtypes": _COMPILER,
        r"atomic|builtin|common|copy_op|customize|eager|experimental|fill_op|frame|gemm_op|kernel|logical"
        r"|loop|math_intrinsics|meta|overrides|proxy|reduce_op|scan_op|symbolics|tile_schedule|tir|utils"
        r"|warp_specialize": "it is one of TileLang's modules, whose names are here those of "
        "tvmtile.language",
        # Triton's.
        r"program_id": "the index of a block is the variable of `with T.Kernel(blocks) as bx:`",
        r"num_programs": "the number of blocks is what T.Kernel is given",
        r"load|store|make_block_ptr|make_tensor_descriptor": _COPIES,
        r"arange": "the index of an element is the variable of `for i in T.Parallel(n):`",
        r"dot|matmul|mma": "use T.gemm(A, B, C), which adds the product of two tiles to C",
        r"zeros|zeros_like|full": "allocate a tile by T.alloc_fragment(shape, dtype); then "
        "T.clear(tile) or T.fill(tile, value)",
        r"(sum|mean|softmax|argmax|argmin)": "tiles are reduced by T.reduce_sum(tile, out, dim=1), "
        "T.reduce_max, ...",
        r"static_range": "use T.unroll(n); a Python loop over a list is unrolled too",
    },
    "Kernel": {
        r"from_database": "tvmtile.compile loads what the cache holds",
        r"from_tilelang_function": "tvmtile.compile(program) makes a kernel",
        r"torch_function": "a kernel is called itself: kernel(a, b)",
        r"update_tuner_result": "the autotuner writes latency, config and ref_latency",
        r"execution_backend_spec": "kernel.execution_backend names it",
    },
    "tvmtile": {
        r"ascend|rocm|webgpu": "the targets are llvm, cuda and metal",
        r"backend|cpu|metal": f"{_COMPILER}; see tvmtile.target and tvmtile.passes",
        r"analysis|instrumentation|deprecated": f"{_COMPILER}; kernel.show_lowering() shows each pass",
        r"ir|dtypes": f"{_COMPILER}; tvmtile.language has the names that kernels use",
        r"libinfo|\w*library_dirs|prepend_dll_search_path|path|build_date": "there is no library "
        "beside TVM's; tvmtile.__version__ is the version",
        r"logger": 'it is logging.getLogger("tvmtile")',
        r"register_(c|hip)_postproc\w*": "kernels are compiled to LLVM's language, CUDA's or Metal's: "
        "tvmtile.register_cuda_postproc",
    },
    "env": {
        r"CU\w+|ROCM_HOME|TILELANG_TEMPLATE_PATH": "NVRTC compiles, whose headers its package brings; "
        "TVM_CUDA_NVRTC_EXTRA_OPTS adds to its options",
    },
}
"""For each owner, patterns of names."""


def instead_of(owner: str, name: str) -> str | None:
    """The remedy for a name that an owner lacks; None where the name means nothing.

    Parameters
    ----------
    owner : {"T", "Kernel", "tvmtile", "env"}
        The language, a kernel, the package, or its settings.
    name : str
        What it was asked for.
    """
    return first_match(_ABSENT[owner], name)


def first_match(table: Mapping[str, str], name: str) -> str | None:
    """The entry of the first pattern of a table that is all of a name."""
    return next((said for names, said in table.items() if re.fullmatch(names, name)), None)


def no_attribute(owner: str, holder: types.ModuleType | object, name: str) -> AttributeError:
    """The error for a name that a module or an object lacks.

    Told the name and where it was looked for, Python offers the nearest name.
    """
    shown = f"{type(holder).__name__!r} object"
    if isinstance(holder, types.ModuleType):
        shown = f"module {holder.__name__!r}"
    reason = instead_of(owner, name)
    text = f"{shown} has no attribute {name!r}" + (f": {reason}" if reason else "")
    return AttributeError(text, name=name, obj=holder)
