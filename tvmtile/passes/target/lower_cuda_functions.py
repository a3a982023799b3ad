"""LowerCudaFunctions and CallImportedFunctions: functions of CUDA, called by name.

CUDA's own become the same arithmetic on other targets; those of `T.import_source` bring their source.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import Mutator, mutated
from tvmtile.errors import NoLowering, SourceLocation
from tvmtile.ir.calls import is_extern_call
from tvmtile.ir.kernels import kernels_of, target_of, with_body
from tvmtile.ir.operators import operator_for
from tvmtile.ir.options import options_of, sources_in
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.spans import location_of
from tvmtile.target import runs_here


@prim_func_pass("CallImportedFunctions")
def CallImportedFunctions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make calls of functions from `T.import_source` put its text into the CUDA source.

    The first call brings all texts, in their order, because one may call functions that another
    defines; the others bring an empty one.
    """
    sources = sources_in(func)
    if not sources:
        return func
    # One function brings all of it, at each of its calls: TVM keeps one text a name.
    texts: dict[str, str] = {}

    def call(node: ir.Call, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(node)
        if not is_extern_call(result):
            return result
        name, *args = result.args
        if not any(re.search(rf"\b{re.escape(name.value)}\b", source) for source in sources):
            return result
        dtype = str(result.ty.dtype) if hasattr(result.ty, "dtype") else "void"
        text = texts.setdefault(name.value, "" if texts else "\n".join(sources))
        return T.cuda.func_call(name.value, *args, source_code=text, return_type=dtype)

    return with_body(func, mutated(func.body, (ir.Call, call)))


@prim_func_pass("LowerCudaFunctions")
def LowerCudaFunctions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace calls of CUDA's functions by name, `T.call_extern(T.float16, "__float2half_rz", x)`.

    They are conversions and arithmetic with a rounding, and approximate functions, which are exact
    here. Any other function that is called by name has to be one of this process, if it is this
    process that runs the kernel: a call of a missing one would end it.

    Raises
    ------
    NoLowering
        If a kernel for this machine's CPU calls a function that is not there, or a kernel imports
        source text.
    """
    target = target_of(func)
    _refuse_sources(func, str(target.kind.name))
    is_checked = target.kind.name == "llvm" and runs_here(target)

    location: SourceLocation | None = None

    def statement(node: tirx.Stmt, mutator: Mutator) -> tirx.Stmt:
        nonlocal location
        location = location_of(node) or location
        return mutator.default_mutate(node)

    def call(node: ir.Call, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(node)
        if not is_extern_call(result):
            return result
        name, *operands = result.args
        meaning = _MEANINGS.get(str(name.value))
        if meaning is not None:
            return meaning(*operands)
        if is_checked and not _is_in_process(str(name.value)):
            raise _missing(str(name.value), location)
        return result

    statements = (tirx.BufferStore, tirx.Evaluate, tirx.Bind)
    return with_body(func, mutated(func.body, (statements, statement), (ir.Call, call)))


def _refuse_sources(func: tirx.PrimFunc, kind: str) -> None:
    for kernel in kernels_of(func):
        if options_of(kernel).source:
            raise NoLowering(
                f"T.import_source: the text is in CUDA C++, which {kind} does not take",
                help="compile for CUDA, or write the function as a T.macro, which every target takes",
                location=location_of(kernel),
            )


def _is_in_process(name: str) -> bool:
    # Ours come as text with the call.
    return name.startswith("tvmtile_") or hasattr(ctypes.CDLL(None), name)


def _missing(name: str, location: SourceLocation | None) -> NoLowering:
    return NoLowering(
        f"T.call_extern: there is no function {name!r} in this process",
        help="load the library that has it by ctypes.CDLL(path, ctypes.RTLD_GLOBAL) before, or write "
        "the function as a T.macro, which every target takes",
        location=location,
    )


# What they mean ------------------------------------------------------------------------------------

_ROUNDINGS = {"rn": "rn", "rz": "rz", "ru": "rp", "rd": "rm"}


def _cast_to(dtype: str, rounding: str) -> Callable[[Any], ir.Expr]:
    return lambda x: operator_for("cast")((x,), dtype, rounding, saturate=False).to_call()


def _rounded(operation: str, rounding: str) -> Callable[..., ir.Expr]:
    return lambda *operands: operator_for("arithmetic")(operands, operation, rounding).to_call()


def _casts() -> dict[str, Callable[..., ir.Expr]]:
    kinds = {"half": "float16", "bfloat16": "bfloat16"}
    return {
        f"__float2{kind}_{mode}": _cast_to(dtype, rounding)
        for kind, dtype in kinds.items()
        for mode, rounding in _ROUNDINGS.items()
    }


def _arithmetic() -> dict[str, Callable[..., ir.Expr]]:
    names = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "sqrt": "sqrt", "rcp": "rcp"}
    single = {f"__f{name}": operation for name, operation in names.items()}
    double = {f"__d{name}": operation for name, operation in names.items()}
    functions = {**single, **double, "__fmaf": "fma", "__fma": "fma"}
    return {
        f"{name}_{mode}": _rounded(operation, mode)
        for name, operation in functions.items()
        for mode in _ROUNDINGS
    }


_MEANINGS: dict[str, Callable[..., Any]] = {
    **_casts(),
    **_arithmetic(),
    "__float2half": _cast_to("float16", "rn"),
    "__float2bfloat16": _cast_to("bfloat16", "rn"),
    "__half2float": lambda x: tirx.Cast("float32", x),
    "__bfloat162float": lambda x: tirx.Cast("float32", x),
    "__fdividef": lambda a, b: a / b,
    "__expf": tirx.exp,
    "__exp10f": tirx.exp10,
    "__logf": tirx.log,
    "__log2f": tirx.log2,
    "__log10f": tirx.log10,
    "__sinf": tirx.sin,
    "__cosf": tirx.cos,
    "__tanf": tirx.tan,
    "__tanhf": tirx.tanh,
    "__powf": tirx.power,
}
"""CUDA Math API: "Single Precision Intrinsics", "Half Precision Conversion", and their siblings."""
