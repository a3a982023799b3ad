"""The entry point of TVM's group `tvm.backends`, which TVM calls when it is imported.

It must be cheap and must not import the compiler: it names `T.tvmtile`, by which printed programs are
read back, and the pipeline; both import the rest when they are used.
"""

from __future__ import annotations

from functools import partial
from typing import Any

PIPELINE_NAME = "tvmtile"


class ScriptNamespace:
    """`T.tvmtile` of TVMScript: `T.tvmtile.copy(...)` is a call of the intrinsic `tvmtile.copy`."""

    def __getattr__(self, name: str) -> Any:
        from tvmtile.ir.registration import is_registered

        if not name.startswith("_"):
            import tvmtile.tileop  # noqa: F401 - defines the operators
        if not is_registered(name):
            raise AttributeError(f"there is no tile operator {name!r}")
        return partial(_call, name)


def _call(name: str, *args: Any, **options: Any) -> Any:
    """The call of an operator, with the dtype of what it returns."""
    from tvm.ir import Call

    from tvmtile.ir.operators import operator_of
    from tvmtile.ir.registration import VALUES

    ret_ty: Any = "handle" if name in VALUES else "void"
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

    for name in ("show_value", "show_tile", "report_out_of_bounds", "report_division_by_zero"):
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
    from tvmtile.ir.registration import register_operators

    register_operators()
    register_script_namespace("tvmtile", ScriptNamespace())
    register_tir_pipeline(PIPELINE_NAME, _pipeline)
    for name in ("s_tir", "tirx"):  # the first is the default
        register_tir_pipeline(name, partial(_with_tile_programs, PIPELINE_MAP[name]))
    register_op_attr("relax.call_tir", "RequiresArgumentShapes", False)
    register_op_attr("relax.call_tir", "FLegalize", _legalize_call)


def _called(function: str, *args: Any) -> None:
    """A function that compiled kernels call by its name."""
    from tvmtile import callbacks

    getattr(callbacks, function)(*args)


def _pipeline(**options: Any) -> Any:
    from tvmtile.tvm_pipeline import tvm_pipeline

    return tvm_pipeline(**options)


def _with_tile_programs(factory: Any) -> Any:
    from tvmtile.tvm_flows import with_tile_programs

    return with_tile_programs(factory)


def _legalize_call(builder: Any, call: Any) -> Any:
    from tvmtile.tvm_flows import legalize_call

    return legalize_call(builder, call)
