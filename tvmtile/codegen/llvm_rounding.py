"""Arithmetic with a chosen rounding on a CPU, as functions in LLVM's intermediate language.

A directed rounding is a mode of the processor: a function sets it, computes, and sets it back to
nearest. It is neither inlined nor computed at compile time, since LLVM takes the mode for constant in
code that is not marked `strictfp`. To nearest, it is the plain instruction, in a function so that TVM's
simplifier, for which floats are real numbers, leaves it alone.
"""

from __future__ import annotations

from functools import cache

_TYPES = {"float32": ("float", "f32"), "float64": ("double", "f64")}
_MODES = {"rz": 0, "ru": 2, "rd": 3}
"""The numbers that `llvm.set.rounding` takes."""
_OPERATIONS = {
    "add": "fadd",
    "sub": "fsub",
    "mul": "fmul",
    "div": "fdiv",
    "fma": "fma",
    "sqrt": "sqrt",
}
_OPERANDS = {"fma": 3, "sqrt": 1}
_FUNCTION = """\
declare void @llvm.set.rounding(i32)
declare {type} @llvm.experimental.constrained.{operation}.{suffix}({types}, metadata, metadata)

define {type} @{name}({parameters}) noinline strictfp {{
  call void @llvm.set.rounding(i32 {mode}) strictfp
  %result = call {type} @llvm.experimental.constrained.{operation}.{suffix}({parameters}, \
metadata !"round.dynamic", metadata !"fpexcept.ignore") strictfp
  call void @llvm.set.rounding(i32 1) strictfp
  ret {type} %result
}}
"""


_NEAREST = {
    **{name: f"{name} {{type}} %x0, %x1" for name in ("fadd", "fsub", "fmul", "fdiv")},
    "fma": "call {type} @llvm.fma.{suffix}({parameters})",
    "sqrt": "call {type} @llvm.sqrt.{suffix}({parameters})",
}
_FUNCTION_TO_NEAREST = """\
declare {type} @llvm.fma.{suffix}({type}, {type}, {type})
declare {type} @llvm.sqrt.{suffix}({type})

define {type} @{name}({parameters}) {{
  %result = {instruction}
  ret {type} %result
}}
"""


@cache
def rounding_function(operation: str, dtype: str, rounding: str) -> tuple[str, str]:
    """The name and the text of an operation on float32 or float64 with a rounding, as a function."""
    name = f"tvmtile_{operation}_{dtype}_{rounding}"
    kind, suffix = _TYPES[dtype]
    count = _OPERANDS.get(operation, 2)
    llvm = _OPERATIONS[operation]
    words = {
        "name": name,
        "type": kind,
        "suffix": suffix,
        "operation": llvm,
        "types": ", ".join([kind] * count),
        "parameters": ", ".join(f"{kind} %x{i}" for i in range(count)),
    }
    if rounding == "rn":
        instruction = _NEAREST[llvm].format(**words)
        return name, _FUNCTION_TO_NEAREST.format(instruction=instruction, **words)
    return name, _FUNCTION.format(mode=_MODES[rounding], **words)
