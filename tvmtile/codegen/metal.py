"""What TVM's generator of Metal lacks: MSL functions of ours, and the hook that puts them in.

TVM calls `tvm_callback_metal_compile` with the source of every kernel. Ours adds the functions that
the kernel calls and hands the source on.
"""

from __future__ import annotations

import re
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.codegen import metal_atomics, metal_barriers, metal_floats, metal_math

__all__ = ["ELEMENTS_PER_LANE", "FUNCTIONS", "element_of", "set_element", "with_functions"]

ELEMENTS_PER_LANE = 2
"""Elements of an 8x8 simdgroup matrix that a thread holds."""
_MARK = "using namespace metal;\n"

FUNCTIONS = {
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
    called = dict.fromkeys(re.findall(r"\b(tvmtile_\w+)\(", source))
    needed = [text for name in called if (text := _definition(name)) and text not in source]
    if not needed:
        return source
    head, mark, rest = source.partition(_MARK)
    return head + mark + "\n" + "\n".join(needed) + rest


def _definition(name: str) -> str | None:
    others = (metal_atomics.definition, metal_barriers.definition, metal_floats.definition)
    return FUNCTIONS.get(name) or next(filter(None, (find(name) for find in others)), None)


def _shuffle_xor(call: ir.Call) -> ir.Expr:
    _, value, distance, *_ = call.args
    return T.call_pure_extern(str(call.ty.dtype), "simd_shuffle_xor", value, distance)


# TVM lowers the other shuffles.
tirx.register_intrin_lowering("tirx.tvm_warp_shuffle_xor", target="metal", f=_shuffle_xor)


def element_of(matrices: ir.Var, register: Any) -> ir.Expr:
    """An element that a thread holds of an array of simdgroup matrices.

    Parameters
    ----------
    matrices : Var
        Buffer of scope `metal.simdgroup`.
    register : Expr
        The number of the element among those of the thread: two a matrix.
    """
    matrix, element = _split(matrices, register)
    return T.call_extern(str(matrices.ty.dtype), "tvmtile_element", matrix, element)


def set_element(matrices: ir.Var, register: Any, value: Any) -> tirx.Stmt:
    """Set an element that a thread holds of an array of simdgroup matrices; see `element_of`."""
    matrix, element = _split(matrices, register)
    return tirx.Evaluate(T.call_extern("void", "tvmtile_set_element", matrix, element, value))


def _split(matrices: ir.Var, register: Any) -> tuple[Any, Any]:
    from tvm.sym import Analyzer

    simplify = Analyzer().simplify
    matrix = tirx.BufferLoad(matrices, [simplify(tirx.floordiv(register, ELEMENTS_PER_LANE))])
    return matrix, simplify(tirx.floormod(register, ELEMENTS_PER_LANE))
