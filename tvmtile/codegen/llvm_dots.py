"""Dot products of a CPU's instructions, as functions in LLVM's intermediate language.

A lane of the accumulator, of 32 bits, gets the products of two or four neighbours added, which lie in
32 bits of each operand: `acc[i] += sum(a[i * depth + d] * b[i * depth + d] for d in range(depth))`.
TVM knows no such instruction, but it links text that a function brings with it and inlines what is
called of it. Operands are vectors of 32-bit words there.

Sums of bfloat16 are in float32, and subnormal numbers are taken for zero on x86. Those of integers are
modulo 2^32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class DotProduct:
    """An instruction."""

    name: str
    """In the assembler of its processor."""
    a: str
    b: str
    """Dtypes of what is multiplied."""
    sums: str
    """Dtype of the accumulator."""
    intrinsic: str
    """LLVM's name, `{bits}` and `{lanes}` standing for the width of a vector and its accumulators.
    """
    element: str
    """LLVM's type of the elements of the operands, `i32` where it takes words."""
    widths: tuple[int, ...]
    """The widths in bits that the instruction has."""

    def __post_init__(self) -> None:
        if {self.sums} - set(_TYPES) or {self.a, self.b} - set(_ELEMENT_BITS):
            raise ValueError(f"{self.name}: dtypes {self.a}, {self.b}, {self.sums}")
        if _ELEMENT_BITS[self.a] != _ELEMENT_BITS[self.b]:
            raise ValueError(f"{self.name}: operands of different widths")

    @property
    def depth(self) -> int:
        """Products that one lane sums."""
        return 32 // _ELEMENT_BITS[self.a]


_TYPES = {"float32": "float", "int32": "i32"}
_ELEMENT_BITS = {"bfloat16": 16, "int8": 8, "uint8": 8}
_X86 = (128, 256, 512)
_VPDPBUSD = "llvm.x86.avx512.vpdpbusd.{bits}"
_VNNI_INT8 = "llvm.x86.avx2.vpdpb{}d.{{bits}}"
_DOT = "llvm.aarch64.neon.{name}.v4i32.v16i8"

DOT_PRODUCTS = {
    dot.name: dot
    for dot in (
        DotProduct(
            "vdpbf16ps",
            "bfloat16",
            "bfloat16",
            "float32",
            "llvm.x86.avx512bf16.dpbf16ps.{bits}",
            "bfloat",
            _X86,
        ),
        DotProduct("vpdpbusd", "uint8", "int8", "int32", _VPDPBUSD, "i32", _X86),
        DotProduct("vpdpbssd", "int8", "int8", "int32", _VNNI_INT8.format("ss"), "i8", _X86[:2]),
        DotProduct("vpdpbuud", "uint8", "uint8", "int32", _VNNI_INT8.format("uu"), "i8", _X86[:2]),
        DotProduct(
            "bfdot",
            "bfloat16",
            "bfloat16",
            "float32",
            "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
            "bfloat",
            (128,),
        ),
        DotProduct("sdot", "int8", "int8", "int32", _DOT.format(name="sdot"), "i8", (128,)),
        DotProduct("udot", "uint8", "uint8", "int32", _DOT.format(name="udot"), "i8", (128,)),
        DotProduct("usdot", "uint8", "int8", "int32", _DOT.format(name="usdot"), "i8", (128,)),
    )
}
"""The instructions by name; a is the first operand of those whose operands differ."""

_MATRIX = "llvm.aarch64.neon.{name}.v4i32.v16i8"
MATRIX_PRODUCTS = {
    product.name: product
    for product in (
        DotProduct(
            *("bfmmla", "bfloat16", "bfloat16", "float32", "llvm.aarch64.neon.bfmmla", "bfloat"),
            widths=(128,),
        ),
        *(
            DotProduct(name, a, b, "int32", _MATRIX.format(name=name), "i8", (128,))
            for name, a, b in (
                ("smmla", "int8", "int8"),
                ("ummla", "uint8", "uint8"),
                ("usmmla", "uint8", "int8"),
            )
        ),
    )
}
"""Instructions that add the products of two rows and two columns of 64 bits to 2 x 2 sums."""

_DOT_TEXT = """\
declare {sums} @{intrinsic}({sums}, {operand}, {operand})

define {sums} @{name}({sums} %sums, {words} %a, {words} %b) alwaysinline {{
  %a.elements = bitcast {words} %a to {operand}
  %b.elements = bitcast {words} %b to {operand}
  %result = call {sums} @{intrinsic}({sums} %sums, {operand} %a.elements, {operand} %b.elements)
  ret {sums} %result
}}
"""
_NARROW_TEXT = """\
declare <4 x {element}> @{widened}(<4 x {element}>, <4 x i32>, <4 x i32>)

define {sums} @{name}({sums} %sums, {words} %a, {words} %b) alwaysinline {{
  %sums.1 = bitcast {sums} %sums to <{lanes} x {element}>
  %a.1 = bitcast {words} %a to <{lanes} x i32>
  %b.1 = bitcast {words} %b to <{lanes} x i32>
  %sums.4 = shufflevector <{lanes} x {element}> %sums.1, <{lanes} x {element}> zeroinitializer, {wide}
  %a.4 = shufflevector <{lanes} x i32> %a.1, <{lanes} x i32> zeroinitializer, {wide}
  %b.4 = shufflevector <{lanes} x i32> %b.1, <{lanes} x i32> zeroinitializer, {wide}
  %all = call <4 x {element}> @{widened}(<4 x {element}> %sums.4, <4 x i32> %a.4, <4 x i32> %b.4)
  %first = shufflevector <4 x {element}> %all, <4 x {element}> poison, {narrow}
  %result = bitcast <{lanes} x {element}> %first to {sums}
  ret {sums} %result
}}
"""


@cache
def dot_function(name: str, lanes: int) -> tuple[str, tuple[str, ...]]:
    """An instruction as a function of accumulators and two vectors of words (uint32).

    `name` is a key of `DOT_PRODUCTS`, or of `MATRIX_PRODUCTS` for 4 lanes; `lanes` are of 32 bits: 1 or
    2, of which the narrowest form makes four, or of a form that there is. Returned are the function's
    name, and texts.
    """
    dot, function = (DOT_PRODUCTS | MATRIX_PRODUCTS)[name], f"tvmtile_{name}_{lanes}"
    element = _TYPES[dot.sums]
    kinds = {"sums": _vector(element, lanes), "words": _vector("i32", lanes), "name": function}
    if lanes < 4:
        widened, texts = dot_function(name, 4)
        text = _NARROW_TEXT.format(
            **kinds,
            lanes=lanes,
            element=element,
            widened=widened,
            wide=_places([*range(lanes), *[lanes] * (4 - lanes)]),
            narrow=_places(range(lanes)),
        )
        return function, (*texts, text)
    if 32 * lanes not in dot.widths:
        raise ValueError(f"{name} has no form of {32 * lanes} bits")
    bits = 32 if dot.element == "i32" else _ELEMENT_BITS[dot.a]
    operand = f"<{32 * lanes // bits} x {dot.element}>"
    intrinsic = dot.intrinsic.format(bits=32 * lanes)
    return function, (_DOT_TEXT.format(**kinds, intrinsic=intrinsic, operand=operand),)


def _vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def _places(places: Sequence[int]) -> str:
    numbers = ", ".join(f"i32 {place}" for place in places)
    return f"<{len(places)} x i32> <{numbers}>"


@cache
def wrapping_add(lanes: int) -> tuple[str, str]:
    """The sum of two vectors of int32 modulo 2^32, by name and text: TVM's own may not overflow."""
    name, kind = f"tvmtile_add_int32x{lanes}", _vector("i32", lanes)
    return name, (
        f"define {kind} @{name}({kind} %a, {kind} %b) alwaysinline {{\n"
        f"  %result = add {kind} %a, %b\n  ret {kind} %result\n}}\n"
    )
