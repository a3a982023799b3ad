"""`T.ldg128`, `T.sts64`, ...: neighbouring elements read and written as the words of one access.

The width is a promise to the user of how many bytes one instruction moves, not of a cache: the
elements are read as a vector, which the target moves at once where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import DataType, ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of
from tvmtile.errors import InvalidOperand, ShapeMismatch
from tvmtile.frontend.emit import check_operand
from tvmtile.frontend.math import as_expr
from tvmtile.ir.operands import constant, describe, dtype_of, extents_of, origin_of
from tvmtile.ir.spans import current_span
from tvmtile.ir.types import TileOperand, Value
from tvmtile.tileop.vectors import ramp, splat

__all__ = [
    "__ldg",
    "ldg32",
    "ldg64",
    "ldg128",
    "ldg256",
    "lds32",
    "lds64",
    "lds128",
    "lds256",
    "stg32",
    "stg64",
    "stg128",
    "stg256",
    "sts32",
    "sts64",
    "sts128",
    "sts256",
]

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
