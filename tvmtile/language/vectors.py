"""Neighbouring elements at once: arithmetic on pairs, and words of `T.ldg128`, `T.sts64`, ...

The width of a word is a promise of how many bytes one instruction moves, not of a cache: the elements
are read as a vector, which the target moves at once where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import DataType, ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of
from tvmtile.errors import InvalidOperand, InvalidValue, ShapeMismatch
from tvmtile.frontend.emit import check_operand
from tvmtile.frontend.proxy import vector_of
from tvmtile.frontend.values import as_expr
from tvmtile.ir.operands import constant, describe, dtype_of, extents_of, origin_of
from tvmtile.ir.spans import current_span
from tvmtile.ir.types import TileOperand, Value
from tvmtile.language.math import max as largest
from tvmtile.language.math import min as smallest
from tvmtile.language.rounding import rounded
from tvmtile.tileop.vectors import ramp, splat

__all__ = [
    "__ldg",
    "abs2",
    "add2",
    "fma2",
    "ldg32",
    "ldg64",
    "ldg128",
    "ldg256",
    "lds32",
    "lds64",
    "lds128",
    "lds256",
    "max2",
    "min2",
    "mul2",
    "stg32",
    "stg64",
    "stg128",
    "stg256",
    "sts32",
    "sts64",
    "sts128",
    "sts256",
    "sub2",
]


_PAIRS = ("float32x2", "float16x2", "bfloat16x2")


def add2(x: Value, y: Value) -> ir.Expr:
    """`x + y`, element by element.

    Parameters
    ----------
    x, y : Expr
        Of one dtype: float32x2, float16x2 or bfloat16x2, as `A[i : i + 2]` or `A[T.Ramp(i, 1, 2)]`.

    Raises
    ------
    InvalidValue
        If the dtypes differ, or are others.
    """
    a, b = _pairs("add2", x, y)
    return a + b


def sub2(x: Value, y: Value) -> ir.Expr:
    """`x - y`, element by element; see `add2`."""
    a, b = _pairs("sub2", x, y)
    return a - b


def mul2(x: Value, y: Value) -> ir.Expr:
    """`x * y`, element by element; see `add2`."""
    a, b = _pairs("mul2", x, y)
    return a * b


def fma2(x: Value, y: Value, z: Value) -> ir.Expr:
    """`x * y + z`, element by element, each rounded once; see `add2`."""
    values = _pairs("fma2", x, y, z)
    lanes = [[tirx.Shuffle([value], [lane]) for value in values] for lane in range(2)]
    return tirx.Shuffle([rounded("fma", "fma2", "rn", *scalars) for scalars in lanes], [0, 1])


def max2(x: Any, y: Any) -> ir.Expr:
    """The larger of two, as `T.max`, element by element; see `add2`."""
    return largest(*_pairs("max2", x, y))


def min2(x: Any, y: Any) -> ir.Expr:
    """The smaller of two, as `T.min`, element by element; see `add2`."""
    return smallest(*_pairs("min2", x, y))


def abs2(x: Value) -> ir.Expr:
    """Each element without its sign; see `add2`."""
    (value,) = _pairs("abs2", x)
    bits = DataType(str(value.ty.dtype)).bits
    mask = tirx.Broadcast(tirx.const((1 << (bits - 1)) - 1, f"uint{bits}"), 2)
    magnitude = tirx.reinterpret(f"uint{bits}x2", value) & mask
    return tirx.reinterpret(str(value.ty.dtype), magnitude)


def _pairs(name: str, *values: Value) -> list[ir.Expr]:
    expressions = [as_expr(vector_of(v) if isinstance(v, ir.TensorRegion) else v) for v in values]
    kinds = [str(expression.ty.dtype) for expression in expressions]
    if any(kind not in _PAIRS for kind in kinds):
        raise InvalidValue(
            f"T.{name}: Expected dtype in {list(_PAIRS)}, got {', '.join(kinds)}",
            help="give two neighbouring elements, as `A[i : i + 2]`",
        )
    if len(set(kinds)) > 1:
        raise InvalidValue(
            f"T.{name}: the operands need the same dtype, and have {', '.join(kinds)}",
            help="cast them to one",
        )
    return expressions


_WORD = 32


_WIDEST_OF_CUDA = 128


_SPACES = {"g": ("global", "global"), "s": ("shared", "shared.dyn")}


_NAMES = {"g": "global", "s": "shared"}


def _words(bits: int) -> str:
    return "uint32" if bits == _WORD else f"uint32x{bits // _WORD}"


def _place(name: str, bits: int, tile: Any) -> tuple[ir.Var, list[Any], int]:
    """The buffer, the indices of the elements, and how many there are."""
    operand = check_operand(name, "elements", tile)
    buffer, dtype = buffer_of(operand), dtype_of(operand)
    space = name[2]
    if str(buffer.ty.storage_scope) not in _SPACES[space]:
        raise InvalidOperand(
            f"T.{name}: {describe(operand)} does not lie in {_NAMES[space]} memory",
            help=f"use T.{name[:2]}{'gs'[space == 'g']}{bits}, or index it: `tile[i]`",
        )
    width = int(DataType(dtype).bits)
    lanes = bits // width
    extents = extents_of(operand)
    if extents is not None and not isinstance(operand, ir.Var):
        counts = [constant(extent) for extent in extents]
        if any(count != 1 for count in counts[:-1]) or counts[-1] != lanes:
            raise ShapeMismatch(
                f"T.{name}: {describe(operand)} is not {lanes} neighbouring elements of {dtype}",
                help=f"give the first element, or a slice of {lanes} along the last axis",
            )
    if not lanes or bits % width:
        raise InvalidOperand(
            f"T.{name}: an element of {describe(operand)} is wider than {bits} bits"
        )
    *outer, last = origin_of(operand)
    return buffer, [*outer, ramp(last, lanes)], lanes


def _load(name: str, bits: int, tile: TileOperand, pred: ir.Expr | None = None) -> ir.Expr:
    buffer, indices, _ = _place(name, bits, tile)
    value = tirx.BufferLoad(buffer, indices, span=current_span())
    words = value if str(value.ty.dtype) == _words(bits) else tirx.reinterpret(_words(bits), value)
    if pred is None:
        return words
    return tirx.if_then_else(as_expr(pred), words, _zero(bits))


def _zero(bits: int) -> ir.Expr:
    if bits <= _WIDEST_OF_CUDA:
        return splat(tirx.const(0, "uint32"), bits // _WORD)
    # TVM's generator for CUDA has a vector of 4 longs for 8 words, and fills it as if it had 8.
    return tirx.reinterpret(_words(bits), splat(tirx.const(0, "uint64"), bits // 64))


def _store(name: str, bits: int, tile: Any, value: Value, pred: Any = None) -> None:
    buffer, indices, lanes = _place(name, bits, tile)
    words = as_expr(value)
    given = DataType(str(words.ty.dtype))
    if given.bits * given.lanes != bits:
        raise InvalidOperand(
            f"T.{name}: the value has the dtype {given}, not {bits} bits",
            help=f"T.ldg{bits} gives such a value, as T.reinterpret(value, {_words(bits)!r}) does",
        )
    element = dtype_of(buffer)
    dtype = element if lanes == 1 else f"{element}x{lanes}"
    elements = words if str(given) == dtype else tirx.reinterpret(dtype, words)

    def store() -> None:
        T.buffer_store(buffer, elements, indices)

    if pred is None:
        store()
        return
    with T.If(as_expr(pred)), T.Then():
        store()


def _loader(space: str, bits: int) -> Callable[..., ir.Expr]:
    name = f"ld{space}{bits}"

    def load(src: TileOperand, pred: ir.Expr | None = None) -> ir.Expr:
        return _load(name, bits, src, pred)

    load.__name__ = load.__qualname__ = name
    load.__doc__ = f"""{bits} bits of {_NAMES[space]} memory, as `{_words(bits)}`.

    Parameters
    ----------
    src : element, region or buffer
        The first element, or a slice of as many along the last axis as make {bits} bits; they begin
        at a multiple of {bits // 8} bytes.
    pred : Expr, optional
        Where it is false, nothing is read and the value is 0.

    Raises
    ------
    InvalidOperand
        If `src` lies elsewhere, or its elements are wider.
    ShapeMismatch
        If it is a region of another size.
    """
    return load


def _storer(space: str, bits: int) -> Callable[..., None]:
    name = f"st{space}{bits}"

    def store(dst: Any, value: Any, pred: Any = None) -> None:
        _store(name, bits, dst, value, pred)

    store.__name__ = store.__qualname__ = name
    store.__doc__ = f"""Write {bits} bits of {_NAMES[space]} memory.

    Parameters
    ----------
    dst : element, region or buffer
        The first element, or a slice of as many along the last axis as make {bits} bits; they begin
        at a multiple of {bits // 8} bytes.
    value : Expr
        Of {bits} bits, as `T.ld{space}{bits}` gives it.
    pred : Expr, optional
        Where it is false, nothing is written.

    Raises
    ------
    InvalidOperand
        If `dst` lies elsewhere, its elements are wider, or `value` has another width.
    ShapeMismatch
        If it is a region of another size.
    """
    return store


ldg32, ldg64, ldg128, ldg256 = (_loader("g", bits) for bits in (32, 64, 128, 256))


lds32, lds64, lds128, lds256 = (_loader("s", bits) for bits in (32, 64, 128, 256))


stg32, stg64, stg128, stg256 = (_storer("g", bits) for bits in (32, 64, 128, 256))


sts32, sts64, sts128, sts256 = (_storer("s", bits) for bits in (32, 64, 128, 256))


def __ldg(src: Any, index: Any = None) -> ir.Expr:
    """An element of a tensor that the kernel does not write.

    The compilers of GPUs see themselves that a tensor is only read, and read it through the cache for
    that.

    Parameters
    ----------
    src : element or buffer
        `A[i]`, or `A` with an index.
    index : int or Expr, optional
        Of the element of a buffer of one dimension.
    """
    if index is not None:
        src = src[index[0] if isinstance(index, tuple | list) else index]
    return as_expr(src)
