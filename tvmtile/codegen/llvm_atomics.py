"""Atomic operations of a CPU, as functions in LLVM's intermediate language.

TVM's generator for LLVM has no atomic instructions, but it links text that a function brings with it
(`pragma_import_llvm`) and inlines what is called of it. Each function here is one atomic operation on
one dtype: it gets a pointer and a value, and returns what was there before.

Floats narrower than 32 bits travel as float32 (`carrier_dtype`), which holds them exactly. Their
operations are loops around a compare-and-swap of the 16 bits, written out because LLVM would round
bfloat16 by a call of a library that TVM does not bring.
"""

from __future__ import annotations

from functools import cache

ORDERS = {
    "relaxed": "monotonic",
    "consume": "acquire",
    "acquire": "acquire",
    "release": "release",
    "acq_rel": "acq_rel",
    "seq_cst": "seq_cst",
}
"""LLVM's name for each memory order of C++."""

# A load has no use for releasing; neither has the failing half of a compare-and-swap.
_LOAD_ORDERS = {"release": "monotonic", "acq_rel": "acquire"}

_TYPES = {
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
    "uint16": "i16",
    "int32": "i32",
    "uint32": "i32",
    "int64": "i64",
    "uint64": "i64",
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "bfloat16": "bfloat",
}
_NARROW = ("float16", "bfloat16")
_SIGNED = {"add": "add", "max": "max", "min": "min", "or": "or", "store": "xchg"}
_UNSIGNED = {**_SIGNED, "max": "umax", "min": "umin"}
_FLOAT = {"add": "fadd", "max": "fmax", "min": "fmin", "store": "xchg"}


def supported_dtypes(kind: str) -> tuple[str, ...]:
    """The dtypes that an operation (`add`, `max`, `min`, `or`, `store`, `load`) works on."""
    return tuple(dtype for dtype in _TYPES if kind != "or" or "int" in dtype)


def carrier_dtype(dtype: str) -> str:
    """The dtype in which values of a dtype are passed and returned."""
    return "float32" if dtype in _NARROW else dtype


@cache
def atomic_function(kind: str, dtype: str, order: str) -> tuple[str, str]:
    """The name and the text of an atomic operation as a function; `store` exchanges."""
    name = f"tvmtile_atomic_{kind}_{dtype}_{order}"
    if kind == "load":
        return name, _load(name, dtype, ORDERS[order])
    if dtype in _NARROW:
        return name, _narrow_update(name, kind, dtype, ORDERS[order])
    return name, _update(name, kind, dtype, ORDERS[order])


def _update(name: str, kind: str, dtype: str, order: str) -> str:
    llvm = _TYPES[dtype]
    table = _FLOAT if "float" in dtype else _UNSIGNED if dtype.startswith("uint") else _SIGNED
    return f"""\
define {llvm} @{name}(ptr %p, {llvm} %value) {{
  %old = atomicrmw {table[kind]} ptr %p, {llvm} %value {order}
  ret {llvm} %old
}}
"""


def _load(name: str, dtype: str, order: str) -> str:
    order = _LOAD_ORDERS.get(order, order)
    if dtype in _NARROW:
        return f"""\
define float @{name}(ptr %p) {{
  %bits = load atomic i16, ptr %p {order}, align 2
{_widen(dtype, "%bits", "%value")}
  ret float %value
}}
"""
    llvm, size = _TYPES[dtype], _bytes(dtype)
    return f"""\
define {llvm} @{name}(ptr %p) {{
  %value = load atomic {llvm}, ptr %p {order}, align {size}
  ret {llvm} %value
}}
"""


def _bytes(dtype: str) -> int:
    return int("".join(c for c in dtype if c.isdigit())) // 8


def _narrow_update(name: str, kind: str, dtype: str, order: str) -> str:
    failure = _LOAD_ORDERS.get(order, order)
    return f"""\
declare float @llvm.maxnum.f32(float, float)
declare float @llvm.minnum.f32(float, float)

define float @{name}(ptr %p, float %value) {{
entry:
  %first = load atomic i16, ptr %p monotonic, align 2
  br label %attempt

attempt:
  %bits = phi i16 [ %first, %entry ], [ %seen, %attempt ]
{_widen(dtype, "%bits", "%old")}
  {_NARROW_RESULTS[kind]}
{_round(dtype, "%new", "%stored")}
  %pair = cmpxchg weak ptr %p, i16 %bits, i16 %stored {order} {failure}
  %seen = extractvalue {{ i16, i1 }} %pair, 0
  %done = extractvalue {{ i16, i1 }} %pair, 1
  br i1 %done, label %end, label %attempt

end:
  ret float %old
}}
"""


_NARROW_RESULTS = {
    "add": "%new = fadd float %old, %value",
    "max": "%new = call float @llvm.maxnum.f32(float %old, float %value)",
    "min": "%new = call float @llvm.minnum.f32(float %old, float %value)",
    "store": "%new = fadd float %value, -0.0",
}


def _widen(dtype: str, bits: str, value: str) -> str:
    """Instructions that make a float of the 16 bits of a narrower one."""
    if dtype == "float16":
        return f"""\
  {value}.half = bitcast i16 {bits} to half
  {value} = fpext half {value}.half to float"""
    return f"""\
  {value}.wide = zext i16 {bits} to i32
  {value}.high = shl i32 {value}.wide, 16
  {value} = bitcast i32 {value}.high to float"""


def _round(dtype: str, value: str, bits: str) -> str:
    """Instructions that round a float to the 16 bits of a narrower one, to nearest, ties to even."""
    if dtype == "float16":
        return f"""\
  {bits}.half = fptrunc float {value} to half
  {bits} = bitcast half {bits}.half to i16"""
    return f"""\
  {bits}.all = bitcast float {value} to i32
  {bits}.shifted = lshr i32 {bits}.all, 16
  {bits}.odd = and i32 {bits}.shifted, 1
  {bits}.bias = add i32 {bits}.odd, 32767
  {bits}.sum = add i32 {bits}.all, {bits}.bias
  {bits}.rounded = lshr i32 {bits}.sum, 16
  {bits}.isnan = fcmp uno float {value}, 0.0
  {bits}.chosen = select i1 {bits}.isnan, i32 32704, i32 {bits}.rounded
  {bits} = trunc i32 {bits}.chosen to i16"""
