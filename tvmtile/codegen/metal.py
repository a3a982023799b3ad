"""The Metal source of a kernel: TVM's text, and what TVM's generator and its runtime lack.

TVM calls `tvm_callback_metal_compile` with the source of every kernel. Ours adds the functions that
the kernel calls and hands the source on.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvmtile._tvm import codegen_build
from tvmtile.codegen import atomics, float_conversions, intrinsics, rounding
from tvmtile.ir.kernels import launched_with

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
"""The start of the names of functions that multiply by `matmul2d`."""


def _matmul2d_name(transpose_a: bool, transpose_b: bool) -> str:
    return "nt"[transpose_a] + "nt"[transpose_b]


_MATMUL2DS = {
    f"{MATMUL2D}{_matmul2d_name(a, b)}": _MATMUL2D.format(
        name=_matmul2d_name(a, b), transpose_a=str(a).lower(), transpose_b=str(b).lower()
    )
    for a in (False, True)
    for b in (False, True)
}

# A macro, so that a barrier stands in the line of the kernel that waits, not in one function for all.
_BARRIER = """\
#define tvmtile_{group}_barrier() {group}_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)
"""
_GROUPS = ("threadgroup", "simdgroup")
_BARRIERS = {f"tvmtile_{group}_barrier": _BARRIER.format(group=group) for group in _GROUPS}

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
    **intrinsics.METAL_FUNCTIONS,
    **_BARRIERS,
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
    float_conversions.metal_definition,
    intrinsics.shuffle_definition,
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
    simplify = Analyzer().simplify
    matrix = tirx.BufferLoad(matrices, [simplify(tirx.floordiv(register, ELEMENTS_PER_LANE))])
    return matrix, simplify(tirx.floormod(register, ELEMENTS_PER_LANE))


def device_barrier(group: str) -> tirx.Stmt:
    """A barrier of a `threadgroup` or `simdgroup` that orders device memory and threadgroup memory."""
    assert group in _GROUPS
    return tirx.Evaluate(T.call_extern("void", f"tvmtile_{group}_barrier"))


# Sources ------------------------------------------------------------------------------------------

_CALLBACK = "tvm_callback_metal_compile"  # TVM calls it with the source of each kernel

_SCALARS = "char|uchar|half|bfloat|short|ushort|int|uint|float|long|ulong"

_UNION = "union __TVMArgUnion {\n int v_int[2];\n};\n"

_CAST = re.compile(r"\(thread \w+\s*\*\)\(*(?!thread\b)(\w+)")
_ARRAY = re.compile(
    rf"^( *)(thread \w+ (\w+)\[\d+\];|threadgroup (?:{_SCALARS}) \w+\[\d+\];)", re.MULTILINE
)
_MOST_THREADS = "max_total_threads_per_threadgroup"
_KERNEL = re.compile(r"\bkernel void (\w+)\(")
_LONG_LONG = re.compile(r"\b(\d+)(U?)LL\b")
UNROLL_NEXT = "tvmtile_unroll_next"
"""A call of this name becomes a pragma for the loop behind it."""


def complete(source: str, threads: int | None = None) -> str:
    """Make what TVM's generator printed for one kernel a text that compiles by itself.

    With the number of its threads, Apple's compiler leaves registers for as many.
    """
    if threads is not None and _MOST_THREADS not in source:
        source = _KERNEL.sub(rf"[[{_MOST_THREADS}({threads})]] \g<0>", source)
    source = source.replace(UNROLL_NEXT + "();", '_Pragma("clang loop unroll(full)")')
    # Metal has no long long; its long has 64 bits.
    source = _LONG_LONG.sub(r"\1\2L", _aligned(with_functions(source)))
    return source.replace(_UNION, "").strip() + "\n"  # no kernel has a scalar that is read by it


def _aligned(source: str) -> str:
    """Align arrays that are accessed as vectors too, and all that the threads of a block share.

    An array of half has the alignment of a half, so a move of four by one `uint2` would be undefined,
    and an atomic operation on the word around one of its elements might reach out of it.
    """
    viewed = set(_CAST.findall(source))

    def align(array: re.Match[str]) -> str:
        indent, declaration, name = array.groups()
        aligned = name is None or name in viewed
        return f"{indent}alignas(16) {declaration}" if aligned else array.group()

    return _ARRAY.sub(align, source)


def complete_what_tvm_builds(kernels: Iterable[tirx.PrimFunc]) -> None:
    """Have TVM's own Metal module of this thread's next build made of complete sources.

    The kernels are those of a module that was split. TVM hands over the kernels of others too. A
    callback that somebody registered before, to compile kernels ahead of time, is left in place.
    """
    threads = {str(f.attrs["global_symbol"]): launched_with(f, "threadIdx") for f in kernels}
    _EXPECTED.threads = _expected() | threads
    if _expected() and tvm.get_global_func(_CALLBACK, allow_missing=True) is None:
        tvm_ffi.register_global_func(_CALLBACK, _complete_if_ours)


_EXPECTED = threading.local()


def _expected() -> dict[str, int | None]:
    return getattr(_EXPECTED, "threads", {})


def _complete_if_ours(source: str, target: Target) -> tuple[str, str]:
    """The hook that TVM calls with each kernel's source."""
    del target
    (name,) = _KERNEL.findall(source)
    if name not in _expected():
        return source, "metal"
    return complete(source, _expected().pop(name)), "metal"


def kernel_source(name: str, kernel: tirx.PrimFunc, target: Target) -> str:
    """The Metal source of a kernel, which compiles by itself."""
    module = codegen_build(ir.IRModule({name: kernel}), target)
    return complete(str(module.inspect_source("metal")), launched_with(kernel, "threadIdx"))


_LATER = (
    (r"\w*bfloat\w*", "bfloat16, of Metal 3.1"),
    (r"atomic_float", "atomic addition to float32, of Metal 3"),
    (r"atomic_thread_fence", "memory orders other than relaxed, of Metal 3.2"),
    (r"os_log_default", "messages from kernels, of Metal 3.2"),
    (r"nextafter", "nextafter, of Metal 3.1"),
    (r"MetalPerformancePrimitives", "matmul2d, of Metal 4"),
    (r"INFINITY", "infinities, which fast mathematics takes for impossible"),
)
"""A name in a kernel's source, and what it stands for that TVM's runtime, of Metal 2.3, has not."""


def lacking_in_tvm(source: str) -> list[str]:
    """The needs of a kernel's source that TVM's runtime does not meet, in words."""
    return [words for name, words in _LATER if re.search(rf"\b{name}\b", source)]
