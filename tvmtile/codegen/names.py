"""Names of a kernel's variables in the languages that TVM's generators for GPUs print."""

from __future__ import annotations

import re

from tvm import ir, tirx

from tvmtile._tvm import buffer_var, is_buffer_var, mapped
from tvmtile.codegen.intrinsics import NAMES, OTHER_NAMES

# fmt: off
_KEYWORDS = (
    # Of C++14, where TVM does not reserve them.
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "catch",
    "char16_t", "char32_t", "class", "compl", "const", "const_cast", "constexpr", "decltype",
    "delete", "dynamic_cast", "explicit", "export", "extern", "false", "final", "friend", "inline",
    "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or",
    "or_eq", "override", "private", "protected", "public", "reinterpret_cast", "signed", "sizeof",
    "static", "static_assert", "static_cast", "template", "this", "thread_local", "throw", "true",
    "try", "typeid", "typename", "using", "virtual", "volatile", "wchar_t", "xor", "xor_eq",
    # Of Metal, and names of its address spaces and templates.
    "constant", "device", "fragment", "kernel", "metal", "object_data", "ray_data", "sampler",
    "texture", "thread", "threadgroup", "threadgroup_imageblock", "vec", "packed_vec", "matrix",
    "vertex", "simdgroup_matrix", "simdgroup_half8x8", "simdgroup_float8x8", "simdgroup_bfloat8x8",
    "mem_flags", "memory_order", "atomic", "atomic_int", "atomic_uint", "atomic_float",
    "atomic_bool",
)
_SCALARS = (
    "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float",
    "double", "bfloat", "longlong", "ulonglong", "half_t", "bfloat16_t", "size_t", "ptrdiff_t",
)
# What expressions call, and macros.
_FUNCTIONS = (
    *NAMES, *OTHER_NAMES.values(), "abs", "absdiff", "all", "any", "as_type", "clamp", "clz", "ctz",
    "cross", "distance", "dot", "exp10", "extract_bits", "fast", "fdim", "fma", "fmax", "fmin",
    "fract", "isfinite", "isinf", "isnan", "ldexp", "length", "max", "max3", "min", "min3", "mix",
    "modf", "mulhi", "normalize", "popcount", "powr", "precise", "rotate", "round", "rsqrt",
    "saturate", "select", "sign", "signbit", "step", "simd_shuffle", "simd_shuffle_down",
    "simd_shuffle_up", "simd_shuffle_xor", "simdgroup_load", "simdgroup_store",
    "simdgroup_multiply_accumulate", "make_filled_simdgroup_matrix", "simdgroup_barrier",
    "threadgroup_barrier", "atomic_thread_fence", "os_log_default", "INFINITY", "NAN", "HUGE_VALF",
    "MAXFLOAT", "MAXHALF", "NULL", "assert", "errno", "linux", "unix", "threadIdx", "blockIdx",
    "blockDim", "gridDim", "warpSize",
    *(f"{t}_{end}" for t in ("CHAR", "SHRT", "INT", "LONG", "FLT", "HALF") for end in ("MAX", "MIN")),
)
# fmt: on
_NAMES = frozenset(
    (
        *_KEYWORDS,
        *_FUNCTIONS,
        *_SCALARS,
        *(f"{scalar}{lanes}" for scalar in _SCALARS for lanes in (1, 2, 3, 4)),
        *(f"packed_{scalar}{lanes}" for scalar in _SCALARS for lanes in (2, 3, 4)),
        *(f"{scalar}{m}x{n}" for scalar in ("half", "float") for m in (2, 3, 4) for n in (2, 3, 4)),
        *(f"{scalar}{bits}_t" for scalar in ("int", "uint") for bits in (8, 16, 32, 64)),
    )
)
"""Keywords and names of types and functions in the languages of GPUs: a variable would hide them."""


def without_keywords(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rename what a kernel calls `new`, `uint4`, `select` or the like: an underscore follows.

    Letters that C lacks become their numbers: `ü` is `ufc`.

    The function is of the host or of the GPU, after these were split: nobody calls their parameters by
    name any more.
    """
    renamed: dict[ir.Var, ir.Var] = {}

    def rename(var: ir.Var) -> ir.Expr:
        if var.name not in _NAMES and var.name.isascii():
            return var
        if var not in renamed:
            name = f"{var.name}_" if var.name in _NAMES else in_c(var.name)
            renamed[var] = buffer_var(name, var.ty) if is_buffer_var(var) else ir.Var(name, var.ty)
        return renamed[var]

    return mapped(func, (ir.Var, rename))


def in_c(name: str) -> str:
    """A name in the letters and digits of C: other characters become their numbers."""
    return re.sub(r"[^A-Za-z0-9_]", lambda c: f"u{ord(c[0]):x}", name)
