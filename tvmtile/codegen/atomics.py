"""Atomic operations as functions in the language of each backend: LLVM's, CUDA's and Metal's.

A dtype is a row of `_ELEMENTS`, an operation one of `_OPERATIONS`: what a backend calls them. What it
has no instruction for is a loop around a compare-and-swap of the smallest word that it swaps. So an
element of fewer bits is a part of such a word (16 bits of CUDA, 32 of Metal), and a tensor of them must
reach to the end of its last word.

LLVM's functions are text that TVM links into the module (`pragma_import_llvm`). Floats of 16 bits are
float32 there (`carrier_dtype`), and rounded by bits: LLVM would call a library for bfloat16 that TVM
does not bring. GPUs' operations are relaxed; other orders are made of fences, in Metal since 3.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tvm import DataType

from tvmtile.codegen.float_conversions import llvm_rounded, llvm_widened

ORDERS = {
    "relaxed": "monotonic",
    "consume": "acquire",
    **{order: order for order in ("acquire", "release", "acq_rel", "seq_cst")},
}
"""LLVM's name for each memory order of C++."""
SPACES = {"global": "device", "shared": "threadgroup", "shared.dyn": "threadgroup"}
"""Metal's address space of a scope whose elements several threads reach."""


@dataclass(frozen=True)
class _Element:
    """The backends' names of a dtype."""

    llvm: str
    cuda: str
    metal: str | None = None
    """None: Metal has no such elements, or updates none atomically."""
    short: str = ""
    """CUDA's name of a float in the names of conversions."""
    header: str = ""
    """CUDA's, that has the dtype."""


@dataclass(frozen=True)
class _Operation:
    """The backends' names of an update, and the new value of an element `{0}` by a value `{1}`."""

    llvm: tuple[str, str, str]
    """Of `atomicrmw`, for signed and unsigned integers and for floats."""
    cuda: str
    metal: str
    value: str
    """The new value of integers and, of sums and exchanges, of floats."""
    metal_value: str = ""
    """The same in Metal, where it differs; the functions of floats begin with an `f`."""
    narrow: str = ""
    """The new value of a float of 16 bits in LLVM, in float32."""


# fmt: off
_ELEMENTS = {
    "int8": _Element("i8", "signed char", "char"),
    "uint8": _Element("i8", "unsigned char", "uchar"),
    "int16": _Element("i16", "short", "short"),
    "uint16": _Element("i16", "unsigned short", "ushort"),
    "int32": _Element("i32", "int", "int"),
    "uint32": _Element("i32", "unsigned int", "uint"),
    "int64": _Element("i64", "long long"),
    "uint64": _Element("i64", "unsigned long long"),
    "float32": _Element("float", "float", "float", "float"),
    "float64": _Element("double", "double", None, "double"),
    "float16": _Element("half", "__half", "half", "half", "#include <cuda_fp16.h>\n"),
    "bfloat16": _Element("bfloat", "__nv_bfloat16", "bfloat", "bfloat16", "#include <cuda_bf16.h>\n"),
}
_OPERATIONS = {
    "add": _Operation(
        ("add", "add", "fadd"), "atomicAdd", "fetch_add", "{0} + {1}",
        narrow="fadd float %old, %value",
    ),
    "max": _Operation(
        ("max", "umax", "fmax"), "atomicMax", "fetch_max", "({0} > {1} ? {0} : {1})",
        "max({0}, {1})", "call float @llvm.maxnum.f32(float %old, float %value)",
    ),
    "min": _Operation(
        ("min", "umin", "fmin"), "atomicMin", "fetch_min", "({0} < {1} ? {0} : {1})",
        "min({0}, {1})", "call float @llvm.minnum.f32(float %old, float %value)",
    ),
    "or": _Operation(("or", "or", ""), "atomicOr", "fetch_or", "{0} | {1}"),
    "store": _Operation(
        ("xchg", "xchg", "xchg"), "atomicExch", "exchange", "{1}",
        narrow="fadd float %value, -0.0",
    ),
}
"""By kind; "load" is none. The former value is what each gives."""
# fmt: on
_NARROW = ("float16", "bfloat16")


def supported_dtypes(kind: str) -> tuple[str, ...]:
    """The dtypes that an operation (`add`, `max`, `min`, `or`, `store`, `load`) works on."""
    return tuple(dtype for dtype in _ELEMENTS if kind != "or" or "int" in dtype)


def is_on_metal(dtype: str) -> bool:
    """Tell whether elements of a dtype can be updated atomically on Metal."""
    return dtype in _ELEMENTS and _ELEMENTS[dtype].metal is not None


def name_of(kind: str, dtype: str, order: str, space: str | None = None) -> str:
    """The name of the function for an operation; of Metal in an address space of `SPACES`."""
    return "_".join(filter(None, ("tvmtile_atomic", kind, dtype, space, order)))


def vector_name_of(
    dtype: str, lanes: int, *, is_global: bool, order: str, aligned: bool = False
) -> str:
    """The name of CUDA's function that adds to neighbouring elements, and returns nothing.

    `is_global`: they certainly lie in global memory; `aligned`: the first certainly lies at a multiple
    of the size of all.
    """
    known = "_global" * is_global + "_aligned" * aligned
    return name_of("add", f"{dtype}x{lanes}{known}", order)


def _bits(dtype: str) -> int:
    return int(DataType(dtype).bits)


# LLVM ---------------------------------------------------------------------------------------------

# A load has no use for releasing; neither has the failing half of a compare-and-swap.
_LOAD_ORDERS = {"release": "monotonic", "acq_rel": "acquire"}


def carrier_dtype(dtype: str) -> str:
    """The dtype in which LLVM's functions take and return values of a dtype."""
    return "float32" if dtype in _NARROW else dtype


@cache
def llvm_function(kind: str, dtype: str, order: str) -> tuple[str, str]:
    """The name and the text of an atomic operation as a function."""
    name, order = name_of(kind, dtype, order), ORDERS[order]
    if kind == "load":
        return name, _llvm_load(name, dtype, _LOAD_ORDERS.get(order, order))
    if dtype in _NARROW:
        return name, _llvm_narrow_update(name, kind, dtype, order)
    llvm, names = _ELEMENTS[dtype].llvm, _OPERATIONS[kind].llvm
    instruction = names[2 if "float" in dtype else dtype.startswith("uint")]
    return name, (
        f"define {llvm} @{name}(ptr %p, {llvm} %value) {{\n"
        f"  %old = atomicrmw {instruction} ptr %p, {llvm} %value {order}\n"
        f"  ret {llvm} %old\n}}\n"
    )


def _llvm_load(name: str, dtype: str, order: str) -> str:
    llvm = _ELEMENTS[carrier_dtype(dtype)].llvm
    load = f"load atomic {{}}, ptr %p {order}, align {_bits(dtype) // 8}"
    body = f"  %value = {load.format(llvm)}"
    if dtype in _NARROW:
        body = f"  %bits = {load.format('i16')}\n{llvm_widened(dtype, '%bits', '%value')}"
    return f"define {llvm} @{name}(ptr %p) {{\n{body}\n  ret {llvm} %value\n}}\n"


def _llvm_narrow_update(name: str, kind: str, dtype: str, order: str) -> str:
    return f"""\
declare float @llvm.maxnum.f32(float, float)
declare float @llvm.minnum.f32(float, float)

define float @{name}(ptr %p, float %value) {{
entry:
  %first = load atomic i16, ptr %p monotonic, align 2
  br label %attempt

attempt:
  %bits = phi i16 [ %first, %entry ], [ %seen, %attempt ]
{llvm_widened(dtype, "%bits", "%old")}
  %new = {_OPERATIONS[kind].narrow}
{llvm_rounded(dtype, "%new", "%stored")}
  %pair = cmpxchg weak ptr %p, i16 %bits, i16 %stored {order} {_LOAD_ORDERS.get(order, order)}
  %seen = extractvalue {{ i16, i1 }} %pair, 0
  %done = extractvalue {{ i16, i1 }} %pair, 1
  br i1 %done, label %end, label %attempt

end:
  ret float %old
}}
"""


# CUDA ---------------------------------------------------------------------------------------------

_WORDS = {16: "unsigned short", 32: "unsigned int", 64: "unsigned long long"}
_BITS = {16: "ushort", 32: "uint", 64: "longlong"}
"""CUDA's names of words, as types and in the names of conversions."""
_VECTOR_ARCH = 90  # has vectors of float32 in global memory
_FENCED_BEFORE = ("release", "acq_rel", "seq_cst")
_FENCED_AFTER = ("consume", "acquire", "acq_rel", "seq_cst")
_CUDA_NAME = re.compile(
    r"tvmtile_atomic_([a-z]+)_([a-z]+\d+)(?:x(\d)(_global)?(_aligned)?)?_([a-z_]+)"
)


@cache
def cuda_definition(name: str) -> str | None:
    """The text of CUDA's function of a name; None for a name of anything else."""
    match = _CUDA_NAME.fullmatch(name)
    if match is None:
        return None
    kind, dtype, lanes, space, aligned, order = match.groups()
    element = _ELEMENTS[dtype]
    before = "  __threadfence();\n" * (order in _FENCED_BEFORE)
    after = "  __threadfence();\n" * (order in _FENCED_AFTER)
    head = f"{element.header}__device__ __forceinline__"
    if lanes is not None:
        body = _cuda_vector(dtype, int(lanes), space is not None, aligned is not None)
        parameters = "".join(f", {element.cuda} v{lane}" for lane in range(int(lanes)))
        return f"{head} void {name}(void* place{parameters}) {{\n{before}{body}{after}}}\n"
    operand = "" if kind == "load" else f", {element.cuda} value"
    head = f"{head} {element.cuda} {name}(const void* place{operand}) {{\n"
    return f"{head}{before}{_cuda_body(kind, dtype)}{after}  return old;\n}}\n"


def _cuda_body(kind: str, dtype: str) -> str:
    """Statements that leave the former value in `old`."""
    element, width = _ELEMENTS[dtype], _bits(dtype)
    native = _cuda_native(kind, dtype)
    if kind == "load" and dtype in _NARROW:
        old = _from_bits(dtype, f"*(const volatile {_WORDS[width]}*)place")
    elif kind == "load":
        old = f"*(const volatile {element.cuda}*)place"
    elif native is not None:
        old = f"({element.cuda}){_OPERATIONS[kind].cuda}(({native}*)place, ({native})value)"
    else:
        return _cuda_loop(kind, dtype)
    return f"  {element.cuda} old = {old};\n"


def _cuda_native(kind: str, dtype: str) -> str | None:
    """The type with which CUDA's own function does it; None where it has none."""
    element, width = _ELEMENTS[dtype], _bits(dtype)
    if element.short:
        return element.cuda if kind == "add" or (kind, dtype) == ("store", "float32") else None
    has_no_sign = width == 64 and kind in ("add", "or", "store")
    return None if width < 32 else _WORDS[64] if has_no_sign else element.cuda


def _cuda_updated(kind: str, dtype: str) -> str:
    """The new value of an element, from `old` and `value`."""
    element = _ELEMENTS[dtype]
    if kind == "store":
        return "value"
    if not element.short:
        return f"({element.cuda})({_OPERATIONS[kind].value.format('old', 'value')})"
    if dtype in _NARROW:
        a, b = (f"__{element.short}2float({operand})" for operand in ("old", "value"))
        return f"__float2{element.short}(f{kind}f({a}, {b}))"
    return f"f{kind}{'f' * (dtype == 'float32')}(old, value)"


def _from_bits(dtype: str, bits: str) -> str:
    element = _ELEMENTS[dtype]
    if not element.short:
        return f"({element.cuda}){bits}"
    return f"__{_BITS[_bits(dtype)]}_as_{element.short}({bits})"


def _cuda_loop(kind: str, dtype: str) -> str:
    """A compare-and-swap of the element's bits, or of the 16 bits that it is half of."""
    element, updated = _ELEMENTS[dtype], _cuda_updated(kind, dtype)
    word = _WORDS[max(16, _bits(dtype))]
    if _bits(dtype) < 16:
        place = (
            "  int shift = (int)((size_t)place & 1) * 8;\n"
            f"  {word}* word = ({word}*)((size_t)place & ~(size_t)1);\n"
        )
        old = f"({element.cuda})(expected >> shift)"
        merged = (
            f"    unsigned int updated = (unsigned char){updated};\n"
            "    updated = (expected & ~(0xffu << shift)) | (updated << shift);\n"
        )
        swapped = "updated"
    else:
        place, merged = f"  {word}* word = ({word}*)place;\n", ""
        old, short = _from_bits(dtype, "expected"), element.short
        swapped = f"__{short}_as_{_BITS[_bits(dtype)]}({updated})" if short else updated
    return (
        f"{place}  {word} seen = *(volatile {word}*)word, expected;\n"
        f"  {element.cuda} old;\n"
        "  do {\n"
        "    expected = seen;\n"
        f"    old = {old};\n"
        f"{merged}    seen = atomicCAS(word, expected, ({word}){swapped});\n"
        "  } while (seen != expected);\n"
    )


def _cuda_vector(dtype: str, lanes: int, is_global: bool, aligned: bool) -> str:
    """Additions of pairs or of a vector where the address allows, else one by one."""
    element, values = _ELEMENTS[dtype], [f"v{lane}" for lane in range(lanes)]
    single = "".join(
        f"    atomicAdd(({element.cuda}*)place + {lane}, {value});\n"
        for lane, value in enumerate(values)
    )
    if dtype in _NARROW:
        size, make = 4, f"__halves2{element.short}2"
        together = "".join(
            f"    atomicAdd(({element.cuda}2*)place + {lane // 2}, {make}(v{lane}, v{lane + 1}));\n"
            for lane in range(0, lanes, 2)
        )
    else:
        size, vector = 4 * lanes, f"float{lanes}"
        together = f"    atomicAdd(({vector}*)place, make_{vector}({', '.join(values)}));\n"
    test = f"  if (((size_t)place & {size - 1}) == 0) {{\n{together}  }} else {{\n{single}  }}\n"
    body = together if aligned else test
    if dtype in _NARROW or not is_global:
        return body if dtype in _NARROW else single
    return f"#if __CUDA_ARCH__ >= {_VECTOR_ARCH}0\n{body}#else\n{single}#endif\n"


# Metal --------------------------------------------------------------------------------------------

_METAL_BITS = {8: "uchar", 16: "ushort", 32: "uint"}
_METAL_NAME = re.compile(r"tvmtile_atomic_([a-z]+)_([a-z0-9]+)_(device|threadgroup)_([a-z_]+)")
_FENCE = (
    "  atomic_thread_fence(mem_flags::mem_device | mem_flags::mem_threadgroup,"
    " memory_order_seq_cst, thread_scope_device);\n"
)


@cache
def metal_definition(name: str) -> str | None:
    """The text of Metal's function of a name; None for a name of anything else."""
    match = _METAL_NAME.fullmatch(name)
    if match is None:
        return None
    kind, dtype, space, order = match.groups()
    body, element = _metal_body(kind, dtype, space), _ELEMENTS[dtype].metal
    operand = "" if kind == "load" else f", {element} value"
    head = f"inline {element} {name}({space} {element}* place{operand}) {{\n"
    if order == "relaxed":
        return f"{head}{body}}}\n"
    return (
        "#if __METAL_VERSION__ < 320\n"
        f'#error "the memory order {order} needs Metal 3.2"\n'
        f"#endif\n{head}"
        f"{_FENCE}{body.replace('  return ', f'  {element} before = ')}{_FENCE}"
        "  return before;\n}\n"
    )


def _metal_body(kind: str, dtype: str, space: str) -> str:
    element = _ELEMENTS[dtype].metal
    is_added = (dtype, kind, space) == ("float32", "add", "device")
    if not is_added and dtype not in ("int32", "uint32"):
        return _metal_loop(kind, dtype, space)
    word = f"({space} atomic_{element}*)place"
    function, value = ("load", "") if kind == "load" else (_OPERATIONS[kind].metal, "value, ")
    return f"  return atomic_{function}_explicit({word}, {value}memory_order_relaxed);\n"


def _metal_loop(kind: str, dtype: str, space: str) -> str:
    """A compare-and-swap of the element's bits, or of the 32 bits that it is a part of."""
    element, width = _ELEMENTS[dtype].metal, _bits(dtype)
    bits, pointer = _METAL_BITS[width], f"({space} atomic_uint*)"
    if width == 32:
        place = f"  {space} atomic_uint* word = {pointer}place;\n"
        old = f"as_type<{element}>(seen)"
    else:
        place = (
            "  uint offset = (uint)((ulong)place & 3);\n"
            "  uint shift = offset * 8;\n"
            f"  {space} atomic_uint* word = {pointer}(({space} uchar*)place - offset);\n"
        )
        old = f"as_type<{element}>(({bits})(seen >> shift))"
    head = f"{place}  uint seen = atomic_load_explicit(word, memory_order_relaxed);\n"
    if kind == "load":
        return f"{head}  return {old};\n"
    new = f"as_type<{bits}>({_metal_updated(kind, dtype, old)})"
    orders = "memory_order_relaxed, memory_order_relaxed"
    swapped = f"word, &seen, {new}, {orders}"
    if width < 32:
        merged = f"(seen & ~({(1 << width) - 1:#x}u << shift)) | ((uint){new} << shift)"
        swapped = f"word, &seen,\n      {merged},\n      {orders}"
    loop = f"  while (!atomic_compare_exchange_weak_explicit(\n      {swapped})) {{\n  }}\n"
    return f"{head}{loop}  return {old};\n"


def _metal_updated(kind: str, dtype: str, old: str) -> str:
    """The new value of an element, from its value and the operand `value`."""
    wide = "float" if "float" in dtype else "int"
    new = _OPERATIONS[kind].metal_value or _OPERATIONS[kind].value
    new = f"f{new}" if wide == "float" and kind in ("max", "min") else new
    return f"({_ELEMENTS[dtype].metal})({new.format(f'({wide}){old}', f'({wide})value')})"
