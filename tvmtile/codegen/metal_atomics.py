"""Atomic operations of Metal, as functions in its shading language.

Metal has atomic operations on 32-bit integers, and the addition of float32 in device memory. Others
are made of those: a loop computes the new value of a 32-bit word and puts it in place of the old one,
until no other thread has changed the word in between. Elements of 8 and 16 bits are parts of such a
word, so a tensor of them must reach to the end of its last word.

All of Metal's atomic operations are relaxed. The other memory orders of C++ are made of fences, which
Metal has since version 3.2.
"""

from __future__ import annotations

import re
from functools import cache

SPACES = {"global": "device", "shared": "threadgroup", "shared.dyn": "threadgroup"}
"""The address space of a scope whose elements several threads reach."""

_TYPES = {
    "int8": ("char", "uchar"),
    "uint8": ("uchar", "uchar"),
    "int16": ("short", "ushort"),
    "uint16": ("ushort", "ushort"),
    "float16": ("half", "ushort"),
    "bfloat16": ("bfloat", "ushort"),
    "int32": ("int", "uint"),
    "uint32": ("uint", "uint"),
    "float32": ("float", "uint"),
}
"""Metal's names of a dtype and of the integer that holds its bits."""

_WIDTH = {"uchar": 8, "ushort": 16, "uint": 32}
_INTEGERS = ("int32", "uint32")
_FETCH = {
    "add": "fetch_add",
    "max": "fetch_max",
    "min": "fetch_min",
    "or": "fetch_or",
    "store": "exchange",
}
_UPDATES = {"add": "a + b", "max": "max(a, b)", "min": "min(a, b)", "or": "a | b", "store": "b"}
_FLOAT_UPDATES = {**_UPDATES, "max": "fmax(a, b)", "min": "fmin(a, b)"}
_FENCE = (
    "  atomic_thread_fence(mem_flags::mem_device | mem_flags::mem_threadgroup,"
    " memory_order_seq_cst, thread_scope_device);\n"
)
_NAME = re.compile(r"tvmtile_atomic_([a-z]+)_([a-z0-9]+)_(device|threadgroup)_([a-z_]+)")


def has_atomic(dtype: str) -> bool:
    """Tell whether elements of a dtype can be updated atomically on Metal."""
    return dtype in _TYPES


def name_of(kind: str, dtype: str, space: str, order: str) -> str:
    """The name of the function for an atomic operation in the space of a device or a threadgroup."""
    return f"tvmtile_atomic_{kind}_{dtype}_{space}_{order}"


@cache
def definition(name: str) -> str | None:
    """The text of the function of a name; None for a name of anything else."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind, dtype, space, order = match.groups()
    body = _body(kind, dtype, space)
    element = _TYPES[dtype][0]
    operand = "" if kind == "load" else f", {element} value"
    if order == "relaxed":
        return f"inline {element} {name}({space} {element}* place{operand}) {{\n{body}}}\n"
    return (
        "#if __METAL_VERSION__ < 320\n"
        f'#error "the memory order {order} needs Metal 3.2"\n'
        "#endif\n"
        f"inline {element} {name}({space} {element}* place{operand}) {{\n"
        f"{_FENCE}{body.replace('  return ', f'  {element} before = ')}{_FENCE}"
        "  return before;\n}\n"
    )


def _body(kind: str, dtype: str, space: str) -> str:
    element, bits = _TYPES[dtype]
    is_native = dtype in _INTEGERS or (dtype == "float32" and kind == "add" and space == "device")
    if is_native and kind == "load":
        word = f"({space} atomic_{element}*)place"
        return f"  return atomic_load_explicit({word}, memory_order_relaxed);\n"
    if is_native:
        word = f"({space} atomic_{element}*)place"
        return f"  return atomic_{_FETCH[kind]}_explicit({word}, value, memory_order_relaxed);\n"
    return _loop(kind, dtype, space) if _WIDTH[bits] == 32 else _loop_in_word(kind, dtype, space)


def _updated(kind: str, dtype: str) -> str:
    """The new value of an element, from its value `before` and the operand `value`."""
    element = _TYPES[dtype][0]
    wide = "float" if "float" in dtype else "int"
    table = _FLOAT_UPDATES if wide == "float" else _UPDATES
    operands = {"a": f"({wide})before", "b": f"({wide})value"}
    update = re.sub(r"\b[ab]\b", lambda match: operands[match.group()], table[kind])
    return f"({element})({update})"


def _loop(kind: str, dtype: str, space: str) -> str:
    element, bits = _TYPES[dtype]
    head = (
        f"  {space} atomic_uint* word = ({space} atomic_uint*)place;\n"
        "  uint seen = atomic_load_explicit(word, memory_order_relaxed);\n"
    )
    if kind == "load":
        return head + f"  return as_type<{element}>(seen);\n"
    update = _updated(kind, dtype).replace("before", f"as_type<{element}>(seen)")
    return head + (
        "  while (!atomic_compare_exchange_weak_explicit(\n"
        f"      word, &seen, as_type<{bits}>({update}), memory_order_relaxed,"
        " memory_order_relaxed)) {\n"
        "  }\n"
        f"  return as_type<{element}>(seen);\n"
    )


def _loop_in_word(kind: str, dtype: str, space: str) -> str:
    element, bits = _TYPES[dtype]
    mask = f"{(1 << _WIDTH[bits]) - 1:#x}u"
    field = f"as_type<{element}>(({bits})(seen >> shift))"
    head = (
        "  uint offset = (uint)((ulong)place & 3);\n"
        "  uint shift = offset * 8;\n"
        f"  {space} atomic_uint* word = ({space} atomic_uint*)(({space} uchar*)place - offset);\n"
        "  uint seen = atomic_load_explicit(word, memory_order_relaxed);\n"
    )
    if kind == "load":
        return head + f"  return {field};\n"
    update = _updated(kind, dtype).replace("before", field)
    return head + (
        f"  while (!atomic_compare_exchange_weak_explicit(\n"
        f"      word, &seen,\n"
        f"      (seen & ~({mask} << shift)) | ((uint)as_type<{bits}>({update}) << shift),\n"
        "      memory_order_relaxed, memory_order_relaxed)) {\n"
        "  }\n"
        f"  return {field};\n"
    )
