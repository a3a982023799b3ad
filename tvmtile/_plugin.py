"""What TVM calls when it is imported (entry point group `tvm.backends`).

It must be cheap and must not import the compiler: it names the operators, so that printed programs
can be read back, and the pipeline, which imports the rest when it is used.
"""

from __future__ import annotations

from functools import partial
from typing import Any

PIPELINE_NAME = "tvmtile"

OPERATORS = (
    "annotate_layout",
    "annotate_safe_value",
    "atomic",
    "atomic_load",
    "atomic_tile",
    "await_phase",
    "block_rank_in_cluster",
    "bulk_group",
    "bulk_load",
    "bulk_store",
    "commit_wgmma",
    "copy",
    "copy_to_block",
    "cp_async",
    "cp_async_group",
    "dependent_launch",
    "dp4a",
    "end_phase",
    "fence_proxy",
    "fill",
    "finalize_reducer",
    "fixed_registers",
    "fp8_scaled_matmul",
    "gemm",
    "gemm_sp",
    "im2col",
    "import_source",
    "init_mbarriers",
    "join_cluster",
    "mbarrier",
    "min_blocks",
    "move_rows",
    "multicast",
    "partial_reduce",
    "persistence",
    "print",
    "print_tile",
    "quantifier",
    "reduce",
    "reducer_init",
    "reducer_update",
    "remote_arrival",
    "remote_copy",
    "remote_store",
    "rounded",
    "rounded_cast",
    "scan",
    "set_max_registers",
    "tma_copy",
    "tma_load",
    "transpose",
    "use_swizzle",
    "wait_wgmma",
    "warp_specialization",
)
"""Names of the tile operators; each is defined in a module of `tvmtile.tileop`."""

_ASYNCHRONOUS = ("async_issue", "async_multiply", "async_signal", "async_wait")
"""Statements of a thread about asynchronous work (`tvmtile.ir.asynchronous`)."""

_VALUES = ("may_share", "tensor_map")
"""What is an address to a kernel: of a tensor that may share memory (`tvmtile.analysis.aliases`), of a
tensor map (`tvmtile.ir.tensor_maps`)."""

_PURE = ("block_rank_in_cluster", "rounded", "rounded_cast", *_VALUES)
"""Those that only compute a value."""


_names = {*OPERATORS, *_ASYNCHRONOUS, *_VALUES}
"""What TVM knows as `tvmtile.<name>`: those of users come to it."""


class ScriptNamespace:
    """`T.tvmtile` of TVMScript: `T.tvmtile.copy(...)` is a call of the intrinsic `tvmtile.copy`."""

    def __getattr__(self, name: str) -> Any:
        if name not in _names:
            raise AttributeError(f"there is no tile operator {name!r}")
        return partial(_call, name)


def _call(name: str, *args: Any, **options: Any) -> Any:
    """The call of an operator, with the dtype of what it returns."""
    from tvm.ir import Call

    import tvmtile.tileop  # noqa: F401 - defines the operators
    from tvmtile.ir.operators import operator_of

    ret_ty: Any = "handle" if name in _VALUES else "void"
    if name == "may_share":
        ret_ty = args[-1].ty
    call = Call(f"tvmtile.{name}", list(args), attrs=options or None, ret_ty=ret_ty)
    op = operator_of(call)
    return call if op is None else op.to_call()


_registered = False


def register() -> None:
    """Add tvmtile's operators, script namespace and pipeline to TVM. Idempotent."""
    global _registered
    if _registered:
        return
    _registered = True
    from tvm_ffi import register_global_func

    for name in ("show_value", "show_tile", "report_out_of_bounds"):
        register_global_func(f"tvmtile.{name}", partial(_called, name))
    if not _is_runtime_alone():
        _register_with_compiler()


def _is_runtime_alone() -> bool:
    """Tell whether this is TVM without its compiler, which calls kernels and makes none."""
    import tvm.base

    return bool(tvm.base._RUNTIME_ONLY)


def _register_with_compiler() -> None:
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP, register_tir_pipeline

    from tvmtile._tvm import register_op_attr, register_script_namespace

    for name in _names:
        _register_operator(name)
    register_script_namespace("tvmtile", ScriptNamespace())
    register_tir_pipeline(PIPELINE_NAME, _pipeline)
    for name in ("s_tir", "tirx"):  # the first is the default
        register_tir_pipeline(name, partial(_with_tile_programs, PIPELINE_MAP[name]))
    register_op_attr("relax.call_tir", "RequiresArgumentShapes", False)
    register_op_attr("relax.call_tir", "FLegalize", _legalize_call)


def add_operator(name: str) -> None:
    """Add an operator of a user's to TVM."""
    if name not in _names:
        _names.add(name)
        _register_operator(name)


def _register_operator(name: str) -> None:
    from tvmtile._tvm import OPAQUE, PURE, register_op, register_op_attr

    register_op(f"tvmtile.{name}", f"Tile operator {name}.")
    effect = PURE if name in _PURE else OPAQUE
    register_op_attr(f"tvmtile.{name}", "TCallEffectKind", effect)
    register_op_attr(f"tvmtile.{name}", "TScriptPrinterName", f"tvmtile.{name}")
    register_op_attr(f"tvmtile.{name}", "default.FLowerIntrinsic", _refuse_to_generate)


def _called(function: str, *args: Any) -> None:
    """For compiled kernels, which call it by its name."""
    from tvmtile import callbacks

    getattr(callbacks, function)(*args)


def _pipeline(**options: Any) -> Any:
    from tvmtile.pipeline import tvm_pipeline

    return tvm_pipeline(**options)


def _with_tile_programs(factory: Any) -> Any:
    from tvmtile.tvm_flows import with_tile_programs

    return with_tile_programs(factory)


def _legalize_call(builder: Any, call: Any) -> Any:
    from tvmtile.tvm_flows import legalize_call

    return legalize_call(builder, call)


def _refuse_to_generate(call: Any) -> Any:
    from tvmtile.tvm_flows import refuse_to_generate

    return refuse_to_generate(call)
