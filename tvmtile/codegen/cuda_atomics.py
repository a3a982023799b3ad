"""Atomic operations of NVIDIA GPUs, as functions in CUDA C++.

CUDA has atomic operations on integers of 32 and 64 bits and additions of floats. The others are loops
around a compare-and-swap of the bits, of 16 at least: an element of 8 bits is half of what is swapped,
so a tensor of them must reach to the end of its last 16 bits.

All of these are relaxed. The other memory orders of C++ are made of fences.
"""

from __future__ import annotations

import re
from functools import cache

_TYPES = {
    "int8": ("signed char", 8),
    "uint8": ("unsigned char", 8),
    "int16": ("short", 16),
    "uint16": ("unsigned short", 16),
    "float16": ("__half", 16),
    "bfloat16": ("__nv_bfloat16", 16),
    "int32": ("int", 32),
    "uint32": ("unsigned int", 32),
    "float32": ("float", 32),
    "int64": ("long long", 64),
    "uint64": ("unsigned long long", 64),
    "float64": ("double", 64),
}
"""CUDA's name of a dtype, and its width."""

_WORDS = {16: "unsigned short", 32: "unsigned int", 64: "unsigned long long"}
_HEADERS = {"float16": "#include <cuda_fp16.h>\n", "bfloat16": "#include <cuda_bf16.h>\n"}
# The value of some bits, and the bits of a value.
_FLOATS = {
    "float16": ("__ushort_as_half({})", "__half_as_ushort({})"),
    "bfloat16": ("__ushort_as_bfloat16({})", "__bfloat16_as_ushort({})"),
    "float32": ("__uint_as_float({})", "__float_as_uint({})"),
    "float64": ("__longlong_as_double({})", "__double_as_longlong({})"),
}
_NARROW = {
    "float16": ("__half2float({})", "__float2half({})"),
    "bfloat16": ("__bfloat162float({})", "__float2bfloat16({})"),
}
_FUNCTIONS = {
    "add": "atomicAdd",
    "max": "atomicMax",
    "min": "atomicMin",
    "or": "atomicOr",
    "store": "atomicExch",
}
_UPDATES = {"add": "{0} + {1}", "or": "{0} | {1}"}
_PAIRS = {
    "float16": ("__half2", "__halves2half2"),
    "bfloat16": ("__nv_bfloat162", "__halves2bfloat162"),
}
_VECTOR_ARCH = 90  # has vectors of float32 in global memory

_FENCED_BEFORE = ("release", "acq_rel", "seq_cst")
_FENCED_AFTER = ("consume", "acquire", "acq_rel", "seq_cst")
_NAME = re.compile(r"tvmtile_atomic_([a-z]+)_([a-z]+\d+)(?:x(\d)(_global)?(_aligned)?)?_([a-z_]+)")


def name_of(kind: str, dtype: str, order: str) -> str:
    """The name of the function for an atomic operation; `store` exchanges, `order` is one of C++."""
    return f"tvmtile_atomic_{kind}_{dtype}_{order}"


def vector_name_of(
    dtype: str, lanes: int, *, is_global: bool, order: str, aligned: bool = False
) -> str:
    """The name of the function that adds to neighbouring elements, and returns nothing.

    `is_global`: they certainly lie in global memory; `aligned`: the first certainly lies at a multiple
    of the size of all.
    """
    known = "_global" * is_global + "_aligned" * aligned
    return f"tvmtile_atomic_add_{dtype}x{lanes}{known}_{order}"


@cache
def definition(name: str) -> str:
    """The text of the function of a name."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    kind, dtype, lanes, space, aligned, order = match.groups()
    header = _HEADERS.get(dtype, "")
    before = "  __threadfence();\n" * (order in _FENCED_BEFORE)
    after = "  __threadfence();\n" * (order in _FENCED_AFTER)
    if lanes is not None:
        body = _vector_body(
            dtype, int(lanes), is_global=space is not None, aligned=aligned is not None
        )
        parameters = "".join(f", {_TYPES[dtype][0]} v{lane}" for lane in range(int(lanes)))
        head = f"__device__ __forceinline__ void {name}(void* place{parameters}) {{\n"
        return f"{header}{head}{before}{body}{after}}}\n"
    element = _TYPES[dtype][0]
    operand = "" if kind == "load" else f", {element} value"
    head = f"__device__ __forceinline__ {element} {name}(const void* place{operand}) {{\n"
    result = _body(kind, dtype)
    return f"{header}{head}{before}{result}{after}  return old;\n}}\n"


def _body(kind: str, dtype: str) -> str:
    """Statements that leave the former value in `old`."""
    element, width = _TYPES[dtype]
    if kind == "load":
        return _load(dtype)
    native = _native(kind, dtype)
    if native is not None:
        call = f"{_FUNCTIONS[kind]}(({native}*)place, ({native})value)"
        return f"  {element} old = ({element}){call};\n"
    return _loop(kind, dtype) if width >= 16 else _loop_in_word(kind, dtype)


def _native(kind: str, dtype: str) -> str | None:
    """The type with which CUDA's own function does it; None where it has none."""
    element, width = _TYPES[dtype]
    if dtype in _FLOATS:
        adds = kind == "add" or (kind, dtype) == ("store", "float32")
        return element if adds else None
    if width < 32:
        return None
    if width == 64 and kind in ("add", "or", "store"):
        return _WORDS[64]
    return element


def _load(dtype: str) -> str:
    element, width = _TYPES[dtype]
    if dtype not in _NARROW:
        return f"  {element} old = *(const volatile {element}*)place;\n"
    bits = f"*(const volatile {_WORDS[width]}*)place"
    return f"  {element} old = {_FLOATS[dtype][0].format(bits)};\n"


def _updated(kind: str, dtype: str) -> str:
    """The new value of an element, from `old` and `value`."""
    if kind == "store":
        return "value"
    operands = ["old", "value"]
    if dtype not in _FLOATS:
        operator = ">" if kind == "max" else "<"
        chosen = f"({{0}} {operator} {{1}} ? {{0}} : {{1}})"
        update = _UPDATES.get(kind, chosen).format(*operands)
        return f"({_TYPES[dtype][0]})({update})"
    widen, narrow = _NARROW.get(dtype, ("{}", "{}"))
    a, b = (widen.format(operand) for operand in operands)
    suffix = "" if dtype == "float64" else "f"
    return narrow.format(f"f{kind}{suffix}({a}, {b})")


def _loop(kind: str, dtype: str) -> str:
    element, width = _TYPES[dtype]
    value, bits = _FLOATS.get(dtype, (f"({element}){{}}", "{}"))
    word = _WORDS[width]
    return (
        f"  {word}* word = ({word}*)place;\n"
        f"  {word} seen = *(volatile {word}*)word, expected;\n"
        f"  {element} old;\n"
        "  do {\n"
        "    expected = seen;\n"
        f"    old = {value.format('expected')};\n"
        f"    seen = atomicCAS(word, expected, ({word}){bits.format(_updated(kind, dtype))});\n"
        "  } while (seen != expected);\n"
    )


def _loop_in_word(kind: str, dtype: str) -> str:
    element = _TYPES[dtype][0]
    word = _WORDS[16]
    return (
        "  int shift = (int)((size_t)place & 1) * 8;\n"
        f"  {word}* word = ({word}*)((size_t)place & ~(size_t)1);\n"
        f"  {word} seen = *(volatile {word}*)word, expected;\n"
        f"  {element} old;\n"
        "  do {\n"
        "    expected = seen;\n"
        f"    old = ({element})(expected >> shift);\n"
        f"    unsigned int updated = (unsigned char){_updated(kind, dtype)};\n"
        f"    updated = (expected & ~(0xffu << shift)) | (updated << shift);\n"
        f"    seen = atomicCAS(word, expected, ({word})updated);\n"
        "  } while (seen != expected);\n"
    )


def _vector_body(dtype: str, lanes: int, *, is_global: bool, aligned: bool) -> str:
    """Additions of pairs or of a vector where the address allows, else one by one."""
    element = _TYPES[dtype][0]
    values = [f"v{lane}" for lane in range(lanes)]
    single = "".join(
        f"    atomicAdd(({element}*)place + {lane}, {value});\n"
        for lane, value in enumerate(values)
    )
    if dtype in _PAIRS:
        pair, make = _PAIRS[dtype]
        together = "".join(
            f"    atomicAdd(({pair}*)place + {lane // 2}, {make}(v{lane}, v{lane + 1}));\n"
            for lane in range(0, lanes, 2)
        )
        return together if aligned else _if_aligned(4, together, single)
    vector = f"float{lanes}"
    together = f"    atomicAdd(({vector}*)place, make_{vector}({', '.join(values)}));\n"
    body = together if aligned else _if_aligned(4 * lanes, together, single)
    if not is_global:
        return single
    return f"#if __CUDA_ARCH__ >= {_VECTOR_ARCH}0\n{body}#else\n{single}#endif\n"


def _if_aligned(size: int, together: str, single: str) -> str:
    return f"  if (((size_t)place & {size - 1}) == 0) {{\n{together}  }} else {{\n{single}  }}\n"
