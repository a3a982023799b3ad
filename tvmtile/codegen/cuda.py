"""CUDA functions of ours in a kernel's source, for what TVM has no instruction.

A kernel calls them by name through an intrinsic of ours. TVM's generator asks what it stands for, and
puts the text of each function into the source once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir
from tvm.backend.cuda.codegen.registry import CODEGEN_REGISTRY
from tvm.tirx.script import builder as T

from tvmtile._tvm import OPAQUE, PURE, register_op, register_op_attr
from tvmtile.codegen import atomics, float_conversions

ASSERT_FAIL = "tvmtile_assert_fail"
"""Stops all kernels with an error: takes a message, a file and a line."""
LOG = "printf"
"""CUDA's function that writes a line to the standard output of the host."""
FAST_TANH = "tvmtile_fast_tanh"
"""`__tanhf`, which toolkits before CUDA 13 lack: about 11 bits of a float32's hyperbolic tangent."""

FAST_EXP2 = "tvmtile_fast_exp2"
"""`ex2.approx.ftz`: what `exp2f` is where results below the least normal number may be 0."""
FAST_MATH = "tvmtile_fast_math"
"""Does nothing: a source that has it is compiled with fast quotients and roots, without subnormals."""

_INTRINSIC = "tvmtile.cuda_function"
_PURE_INTRINSIC = "tvmtile.cuda_value"

# NVRTC has only the function that the driver looks for, the toolkit's headers only the one of C.
_FUNCTIONS = {
    ASSERT_FAIL: """\
__device__ __noinline__ void tvmtile_assert_fail(const char* message, const char* file, int line) {
#ifdef __CUDACC_RTC__
  __assertfail(message, file, line, "kernel", 1);
#else
  __assert_fail(message, file, line, "kernel");
#endif
}
""",
    # See "negations of integers" in `passes.legalize.cuda`.
    "tvmtile_negate": """\
__device__ __forceinline__ int tvmtile_negate(int x) {
  int result;
  asm("{ .reg .b32 flipped; not.b32 flipped, %1; add.s32 %0, flipped, 1; }" : "=r"(result) : "r"(x));
  return result;
}
""",
    "tvmtile_difference": """\
__device__ __forceinline__ int tvmtile_difference(int x, int y) {
  int result;
  asm("{ .reg .b32 last; not.b32 last, %2; add.s32 last, last, %1; add.s32 %0, last, 1; }"
      : "=r"(result) : "r"(x), "r"(y));
  return result;
}
""",
    "tvmtile_product": """\
__device__ __forceinline__ int tvmtile_product(int x, int y) {
  int result;
  asm("{ .reg .b32 more, last; mad.lo.s32 more, %1, %2, %1; not.b32 last, %1; "
      "add.s32 last, last, more; add.s32 %0, last, 1; }"
      : "=r"(result) : "r"(x), "r"(y));
  return result;
}
""",
    FAST_EXP2: """\
__device__ __forceinline__ float tvmtile_fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
""",
    FAST_MATH: """\
// Compiled with --ftz=true --prec-div=false --prec-sqrt=false.
__device__ __forceinline__ void tvmtile_fast_math() {}
""",
    FAST_TANH: """__device__ __forceinline__ float tvmtile_fast_tanh(float x) {
#if __CUDA_ARCH__ >= 750
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return tanhf(x);
#endif
}
""",
}


def function_call(dtype: str, name: str, *args: ir.Expr) -> ir.Call:
    """The call of one of our functions, also of those of `atomics` and `float_conversions`."""
    return ir.Call(_INTRINSIC, [ir.StringImm(name), *args], ret_ty=dtype)


def value(dtype: str, name: str, *args: object) -> ir.Call:
    """The call of one of our functions that only computes a value; see `function_call`."""
    return ir.Call(_PURE_INTRINSIC, [ir.StringImm(name), *args], ret_ty=dtype)


def _generated(args: Sequence[Any]) -> tuple[ir.Call, list[str]]:
    """The answer to TVM's generator: the call with the text of the function, and TVM's tags."""
    name, *operands = args
    return T.cuda.func_call(name.value, *operands, source_code=_definition(name.value)), []


def _definition(name: str) -> str:
    made = (_FUNCTIONS.get, float_conversions.cuda_definition, atomics.cuda_definition)
    return next(text for make in made if (text := make(name)))


def _register(name: str, effect: int) -> None:
    register_op(name, "A function of tvmtile's in the CUDA source, by its name.")
    register_op_attr(name, "TCallEffectKind", effect)
    register_op_attr(name, "TScriptPrinterName", name.replace("tvmtile", "tile"))
    CODEGEN_REGISTRY[name] = _generated


_register(_INTRINSIC, OPAQUE)
_register(_PURE_INTRINSIC, PURE)
