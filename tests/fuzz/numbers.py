"""Random programs of extreme numbers: NaN, infinities, ends of ranges, conversions, wrapping integers.

What they may hold is little: tiles of some rows a block, copies that convert, elementwise nests, and
reductions of rows. A statement stays where it has a meaning for the inputs: no integer of 32 or 64 bits
with a sign overflows, none is divided by zero, no float is converted to an integer that can't hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.program import Program
from tests.fuzz.values import Invalid, is_float

__all__ = ["NumberMaker"]

_FLOATS = ("float32", "float16", "bfloat16")
_BYTES = ("float8_e4m3fn", "float8_e5m2")
_NARROW = ("int8", "uint8", "int16", "uint16")
_SIGNED = ("int32", "int64")
_UNSIGNED = ("uint32", "uint64")
_DTYPES = (*_FLOATS, *_FLOATS, *_BYTES, *_NARROW, *_SIGNED, *_UNSIGNED, "bool")
_BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32}
_LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32640), "uint16": (0, 65280)}
_LIMITS |= {"int32": (-2147483648, 2147483392), "uint32": (0, 4294967040)}
_LIMITS |= {"int64": (-(2**63), 2**63 - 2**40), "uint64": (0, 2**64 - 2**41)}
_WIDE = (*_SIGNED, *_UNSIGNED)
_SAME_BITS = {"float32": ("int32", "uint32"), "float16": ("int16", "uint16")}
_HEAD = '''"""Extreme numbers: seed {seed}."""

import tvmtile.language as T

INPUTS = "extreme"

@T.prim_func
def main(
{parameters}
):
    with T.Kernel({blocks}, threads={threads}) as bx:
'''


def _converts(source: str, target: str) -> bool:
    """A conversion rounds once: one of a long integer to few bits may go by way of float32."""
    return not (source in _WIDE and target in ("bfloat16", *_BYTES))


class NumberMaker:
    """Writes a program.

    Parameters
    ----------
    seed : int
        Of the program and of its inputs.
    size : int
        How many statements are tried.
    """

    def __init__(self, seed: int, size: int) -> None:
        self._seed, self._size, self._rng = seed, size, Random(seed)
        rng = self._rng
        self._rows, self._columns = rng.choice((1, 2, 4, 5, 8)), rng.choice((4, 8, 16, 32, 5, 64))
        self._blocks = rng.choice((1, 2, 3))
        self._threads = rng.choice((32, 64, 128, 256))
        self._count = 0
        self._parameters: list[str] = []
        self._lines: list[str] = []
        self._tensors: list[tuple[str, str]] = []  # names and dtypes, of inputs
        self._tiles: list[tuple[str, str, int]] = []  # and the number of axes

    def make(self) -> Program:
        """A program in which every statement has a meaning."""
        for _ in range(3):
            self._tensor("A", self._rng.choice(_DTYPES))
        for _ in range(self._size):
            self._try(
                self._rng.choice((self._loaded, self._nest, self._nest, self._nest, self._reduced))
            )
        for name, dtype, axes in list(self._tiles):
            self._try(lambda name=name, dtype=dtype, axes=axes: self._stored(name, dtype, axes))
        return self._program()

    def _program(self) -> Program:
        head = _HEAD.format(
            seed=self._seed,
            parameters="\n".join(self._parameters),
            blocks=self._blocks,
            threads=self._threads,
        )
        body = [" " * 8 + line for line in self._lines] or ["        pass"]
        return Program(head + "\n".join(body) + "\n", self._seed)

    def _try(self, statement: Callable[[], Any]) -> None:
        before = [list(x) for x in (self._parameters, self._lines, self._tensors, self._tiles)]
        statement()
        try:
            for call in (0, 1):
                self._program().meaning(call)
        except Invalid:
            self._parameters, self._lines, self._tensors, self._tiles = before  # type: ignore[assignment]

    # Statements ----------------------------------------------------------------------------------

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _tensor(self, prefix: str, dtype: str, axes: int = 2) -> str:
        name, rows = self._name(prefix), self._rows * self._blocks
        shape = f"{rows}, {self._columns}" if axes == 2 else f"{rows},"
        self._parameters.append(f'    {name}: T.Tensor(({shape}), "{dtype}"),')
        if prefix == "A":
            self._tensors.append((name, dtype))
        return name

    def _tile(self, dtype: str, axes: int = 2) -> str:
        scope = self._rng.choice(("shared", "fragment"))
        name = self._name(scope[0])
        shape = f"{self._rows}, {self._columns}" if axes == 2 else f"{self._rows},"
        self._lines.append(f'{name} = T.alloc_{scope}(({shape}), "{dtype}")')
        return name

    def _in_tensor(self, name: str, axes: int = 2) -> str:
        return f"{name}[bx * {self._rows}" + (", 0]" if axes == 2 else "]")

    def _loaded(self) -> None:
        """A copy from a tensor, which may convert."""
        source, dtype = self._rng.choice(self._tensors)
        wanted = self._rng.choice([d for d in (*_DTYPES, dtype, dtype) if _converts(dtype, d)])
        tile = self._tile(wanted)
        self._lines.append(f"T.copy({self._in_tensor(source)}, {tile})")
        self._tiles.append((tile, wanted, 2))

    def _stored(self, name: str, dtype: str, axes: int) -> None:
        """A copy to a tensor, which may convert."""
        wanted = self._rng.choice([d for d in (*_DTYPES, *[dtype] * 9) if _converts(dtype, d)])
        target = self._tensor("O", wanted, axes)
        self._lines.append(f"T.copy({name}, {self._in_tensor(target, axes)})")

    def _reduced(self) -> None:
        """A row's greatest or smallest element, or the bits of all."""
        tiles = [t for t in self._tiles if t[2] == 2 and t[1] not in (*_BYTES, "bool")]
        if not tiles:
            self._loaded()
            return
        source, dtype, _ = self._rng.choice(tiles)
        kinds = ["max", "min", *([] if dtype.startswith("u") else ["absmax"])]
        kinds += [] if is_float(dtype) else ["bitand", "bitor", "bitxor"]
        kind = self._rng.choice(kinds)
        option = ""
        if dtype in ("float16", "bfloat16") and kind != "absmax" and self._rng.random() < 0.4:
            option = ", nan_propagate=True"
        target = self._tile(dtype, 1)
        self._lines.append(f"T.reduce_{kind}({source}, {target}, dim=1{option})")
        self._tiles.append((target, dtype, 1))

    def _nest(self) -> None:
        """Expressions for each element, to a new tile or to a tensor."""
        rng, dtype = self._rng, self._rng.choice(_DTYPES)
        goes_out = rng.random() < 0.4
        target = self._tensor("O", dtype) if goes_out else self._tile(dtype)
        place = f"{target}[bx * {self._rows} + i, j]" if goes_out else f"{target}[i, j]"
        self._lines.append(f"for i, j in T.Parallel({self._rows}, {self._columns}):")
        if rng.random() < 0.3:
            self._lines += [
                f"    if {self._number('bool', 2)}:",
                f"        {place} = {self._number(dtype, 2)}",
                "    else:",
                f"        {place} = {self._number(dtype, 2)}",
            ]
        else:
            self._lines.append(f"    {place} = {self._number(dtype, rng.choice((1, 2, 3, 4)))}")
        if not goes_out:
            self._tiles.append((target, dtype, 2))

    # Expressions ---------------------------------------------------------------------------------

    def _number(self, dtype: str, depth: int) -> str:
        if depth <= 0 or self._rng.random() < 0.1:
            return self._leaf(dtype)
        shared = [self._converted, self._converted, self._chosen]
        if dtype == "bool":
            forms = [self._compared, self._compared, self._tested, self._joined]
        elif dtype in _BYTES:
            forms = shared
        elif dtype in _FLOATS:
            forms = [*shared, self._extreme, self._extreme, self._unary, self._rounded, self._sum]
        elif dtype in _SIGNED:
            forms = [
                *shared,
                self._extreme,
                self._bitwise,
                self._divided,
                self._tame,
                self._shifted,
            ]
        else:
            forms = [*shared, self._extreme, self._bitwise, self._divided, self._arithmetic]
            forms += [self._arithmetic, self._shifted, self._unary]
        return self._rng.choice(forms)(dtype, depth - 1)

    def _leaf(self, dtype: str) -> str:
        leaves = [
            (f"{name}[i, j]" if axes == 2 else f"{name}[i]")
            for name, d, axes in self._tiles
            if d == dtype
        ]
        leaves += [f"{n}[bx * {self._rows} + i, j]" for n, d in self._tensors if d == dtype]
        if leaves and self._rng.random() < 0.9:
            return self._rng.choice(leaves)
        known = {
            d for _, d, *_ in (*self._tensors, *self._tiles) if d != dtype and _converts(d, dtype)
        }
        if known and self._rng.random() < 0.9:
            return self._cast(self._rng.choice(sorted(known)), dtype, 0)
        return (
            f'T.cast({self._constant("int32")}, "{dtype}")'
            if dtype not in _BITS
            else self._constant(dtype)
        )

    def _constant(self, dtype: str) -> str:
        low, high = _LIMITS.get(dtype, (-8, 8))
        return f"T.{dtype}({self._rng.choice((low, high, 1, 3, 7, 100))})"

    def _cast(self, source: str, dtype: str, depth: int) -> str:
        text = self._number(source, depth)
        if is_float(source) and dtype in _LIMITS:
            if source in _BYTES:
                source, text = "float32", f'T.cast({text}, "float32")'
            low, high = _LIMITS[dtype]
            if source == "float16":
                low, high = max(low, -65504), min(high, 65504)
            if source == "bfloat16" and dtype != "uint8":
                high = min(high, 127)
            forms = (f"T.clamp({text}, {low}, {high})", f"T.max(T.min({text}, {high}), {low})")
            text = self._rng.choice(forms)
        return f'T.cast({text}, "{dtype}")'

    def _converted(self, dtype: str, depth: int) -> str:
        if dtype in _SAME_BITS and self._rng.random() < 0.1:
            return f'T.reinterpret({self._leaf(self._rng.choice(_SAME_BITS[dtype]))}, "{dtype}")'
        return self._cast(
            self._rng.choice([d for d in _DTYPES if _converts(d, dtype)]), dtype, depth
        )

    def _chosen(self, dtype: str, depth: int) -> str:
        function = self._rng.choice(("if_then_else", "Select"))
        a, b = self._number(dtype, depth), self._number(dtype, depth)
        return f"T.{function}({self._number('bool', depth)}, {a}, {b})"

    def _extreme(self, dtype: str, depth: int) -> str:
        a, b = self._number(dtype, depth), self._number(dtype, depth)
        if self._rng.random() < 0.3:
            return f"T.clamp({a}, {0 if dtype.startswith('u') else -5}, 100)"
        return f"T.{self._rng.choice(('max', 'min'))}({a}, {b})"

    def _unary(self, dtype: str, depth: int) -> str:
        if dtype.startswith("u"):
            return self._number(dtype, depth)
        return self._rng.choice(("T.abs({})", "(-{})")).format(self._number(dtype, depth))

    def _rounded(self, dtype: str, depth: int) -> str:
        function = self._rng.choice(("floor", "ceil", "trunc", "round"))
        return f"T.{function}({self._number(dtype, depth)})"

    def _sum(self, dtype: str, depth: int) -> str:
        """One operation of elements: its result is rounded once."""
        if dtype == "bfloat16":
            return self._number(dtype, depth)
        return f"({self._leaf(dtype)} {self._rng.choice('+-*')} {self._leaf(dtype)})"

    def _arithmetic(self, dtype: str, depth: int) -> str:
        a, b = self._number(dtype, depth), self._number(dtype, depth)
        return f"({a} {self._rng.choice('+-*')} {b})"

    def _tame(self, dtype: str, depth: int) -> str:
        """Arithmetic of numbers that can't overflow."""
        a, b = (
            f"({self._number(dtype, depth)} {self._rng.choice((f'% T.{dtype}(1000)', '>> 17'))})"
            for _ in "ab"
        )
        return f"({a} {self._rng.choice('+-*')} {b})"

    def _divided(self, dtype: str, depth: int) -> str:
        a, b = self._number(dtype, depth), f"({self._number(dtype, depth)} | 1)"
        if self._rng.random() < 0.5:
            divisors = (2, 3, 7, 8, 100, *(() if dtype.startswith("u") else (-1, -3)))
            b = f"T.{dtype}({self._rng.choice(divisors)})"
        if self._rng.random() < 0.25:
            return f"T.{self._rng.choice(('truncdiv', 'truncmod'))}({a}, {b})"
        return f"({a} {self._rng.choice(('//', '%'))} {b})"

    def _bitwise(self, dtype: str, depth: int) -> str:
        return (
            f"({self._number(dtype, depth)} {self._rng.choice('&|^')} {self._number(dtype, depth)})"
        )

    def _shifted(self, dtype: str, depth: int) -> str:
        bits = _BITS.get(dtype, 64)
        if dtype in _UNSIGNED and self._rng.random() < 0.4:
            return f"({self._number(dtype, depth)} << {self._rng.randrange(bits)})"
        return f"({self._number(dtype, depth)} >> {self._rng.randrange(bits)})"

    def _compared(self, dtype: str, depth: int) -> str:
        kind = self._rng.choice([d for d in _DTYPES if d != "bool"])
        operator = self._rng.choice(("<", "<=", ">", ">=", "==", "!="))
        b = "0" if self._rng.random() < 0.2 else self._number(kind, depth)
        return f"({self._number(kind, depth)} {operator} {b})"

    def _tested(self, dtype: str, depth: int) -> str:
        function = self._rng.choice(("isnan", "isinf", "isfinite"))
        return f"T.{function}({self._number(self._rng.choice(_FLOATS), depth)})"

    def _joined(self, dtype: str, depth: int) -> str:
        a, b = self._number("bool", depth), self._number("bool", depth)
        return self._rng.choice((f"({a} and {b})", f"({a} or {b})", f"(not {a})"))
