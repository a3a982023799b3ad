"""What TVM's generator of Metal lacks: MSL functions of ours, and the hook that puts them in.

TVM calls `tvm_callback_metal_compile` with the source of every kernel. Ours adds the functions that
the kernel calls and hands the source on.
"""

from __future__ import annotations

import re

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.codegen import (
    atomics,
    metal_barriers,
    metal_floats,
    metal_math,
    metal_shuffles,
    rounded_floats,
    rounding,
)

ELEMENTS_PER_LANE = 2
"""Elements of an 8x8 simdgroup matrix that a thread holds."""
LOG = "os_log_default.log"
"""Metal's function that writes a line to the log of kernels."""
_MARK = "using namespace metal;\n"
_LOGGING = "#include <metal_logging>\n"

_PRIMITIVES = "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
# The registers of cooperative tensors are those of the arguments, in order. The descriptor is the one
# that MLX uses (steel/gemm/nax.h), down to its relaxed precision, which is about float32 factors:
# what is known of the order is known of this descriptor.
_MATMUL2D = """\
template <typename C, typename T>
inline void tvmtile_matmul2d_{name}(thread C* c, const thread T* a, const thread T* b0,
                                const thread T* b1) {{
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      16, 32, 16, {transpose_a}, {transpose_b}, true,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, metal::execution_simdgroup> multiply;
  auto left = multiply.template get_left_input_cooperative_tensor<T, T, C>();
  auto right = multiply.template get_right_input_cooperative_tensor<T, T, C>();
  auto sum = multiply.template get_destination_cooperative_tensor<
      metal::remove_addrspace_t<decltype(left)>, metal::remove_addrspace_t<decltype(right)>, C>();
  _Pragma("clang loop unroll(full)")
  for (short i = 0; i < 8; ++i) {{
    left[i] = a[i];
    right[i] = b0[i];
    right[8 + i] = b1[i];
  }}
  _Pragma("clang loop unroll(full)")
  for (short i = 0; i < 16; ++i) sum[i] = c[i];
  multiply.run(left, right, sum);
  _Pragma("clang loop unroll(full)")
  for (short i = 0; i < 16; ++i) c[i] = sum[i];
}}
"""


MATMUL2D = "tvmtile_matmul2d_"
"""What the names of functions that multiply by `matmul2d` begin with."""


def _matmul2d_name(transpose_a: bool, transpose_b: bool) -> str:
    return "nt"[transpose_a] + "nt"[transpose_b]


_MATMUL2DS = {
    f"{MATMUL2D}{_matmul2d_name(a, b)}": _MATMUL2D.format(
        name=_matmul2d_name(a, b), transpose_a=str(a).lower(), transpose_b=str(b).lower()
    )
    for a in (False, True)
    for b in (False, True)
}

FUNCTIONS = {
    **_MATMUL2DS,
    "tvmtile_element": """\
template <typename T>
inline T tvmtile_element(thread simdgroup_matrix<T, 8, 8>& matrix, int index) {
  return matrix.thread_elements()[index];
}
""",
    "tvmtile_set_element": """\
template <typename T>
inline void tvmtile_set_element(thread simdgroup_matrix<T, 8, 8>& matrix, int index, T value) {
  matrix.thread_elements()[index] = value;
}
""",
    **metal_math.FUNCTIONS,
}
"""MSL functions by name."""


def with_functions(source: str) -> str:
    """The MSL source of a kernel with the functions that it calls."""
    if f"{LOG}(" in source and _LOGGING not in source:
        source = source.replace(_MARK, _LOGGING + _MARK)
    called = dict.fromkeys(re.findall(r"\b(tvmtile_\w+)\(", source))
    texts = dict.fromkeys(_definition(name) for name in called)
    needed = [text for text in texts if text and text not in source]
    if not needed:
        return source
    head, mark, rest = source.partition(_MARK)
    if _PRIMITIVES not in head and not _MATMUL2DS.keys().isdisjoint(called):
        head += _PRIMITIVES
    return head + mark + "\n" + "\n".join(needed) + rest


def _definition(name: str) -> str | None:
    return FUNCTIONS.get(name) or next(filter(None, (made(name) for made in _MAKERS)), None)


_MAKERS = (
    atomics.metal_definition,
    metal_barriers.definition,
    metal_floats.definition,
    metal_shuffles.definition,
    rounded_floats.definition,
    rounding.definition,
)


def element_of(matrices: ir.Var, register: ir.Expr) -> ir.Expr:
    """An element that a thread holds of an array of simdgroup matrices.

    `register` is the number of the element among those of the thread: two a matrix.
    """
    matrix, element = _split(matrices, register)
    return T.call_pure_extern(str(matrices.ty.dtype), "tvmtile_element", matrix, element)


def set_element(matrices: ir.Var, register: ir.Expr, value: ir.Expr) -> tirx.Stmt:
    """Set an element that a thread holds of an array of simdgroup matrices; see `element_of`."""
    matrix, element = _split(matrices, register)
    return tirx.Evaluate(T.call_extern("void", "tvmtile_set_element", matrix, element, value))


def matmul2d(
    transpose_a: bool, transpose_b: bool, c: ir.Expr, a: ir.Expr, b0: ir.Expr, b1: ir.Expr
) -> tirx.Stmt:
    """Multiply blocks of 16x16 that the threads of a simdgroup hold, in float16 or bfloat16.

    `c` is the address of a thread's 16 registers of [16, 32] sums, float32: two blocks side by side.
    The other addresses are of 8 registers each: of A, of B for the left half of `c`, and for its right
    half.
    """
    name = f"{MATMUL2D}{_matmul2d_name(transpose_a, transpose_b)}"
    return tirx.Evaluate(T.call_extern("void", name, c, a, b0, b1))


def _split(matrices: ir.Var, register: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    from tvm.sym import Analyzer

    simplify = Analyzer().simplify
    matrix = tirx.BufferLoad(matrices, [simplify(tirx.floordiv(register, ELEMENTS_PER_LANE))])
    return matrix, simplify(tirx.floormod(register, ELEMENTS_PER_LANE))
