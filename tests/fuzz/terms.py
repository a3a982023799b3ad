"""Random expressions for elementwise work, each with a bound on its absolute value.

The bounds keep a program within its dtypes: no overflow, no conversion of a float that an integer can't
hold. Integers narrower than 32 bits are computed with in int32, or by what can't overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["FLOATS", "INTEGERS", "Leaf", "Terms", "limit_of"]

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "int8", "uint8", "int16", "int64")
_HOLDS = {"int8": 100, "uint8": 100, "float8_e4m3fn": 240, "float16": 30000, "int16": 30000}
_ENOUGH = 64


def limit_of(dtype: str) -> float:
    """A number that a dtype holds with room to spare."""
    return _HOLDS.get(dtype, 1e6)


@dataclass(frozen=True)
class Leaf:
    """Something that an expression may read.

    Attributes
    ----------
    text : str
        The expression.
    dtype : str
        Its dtype.
    bound : float
        Its greatest absolute value.
    signed : bool
        It may be negative.
    """

    text: str
    dtype: str
    bound: float
    signed: bool = True


class Terms:
    """Makes expressions from leaves.

    Parameters
    ----------
    rng : Random
        The generator's.
    leaves : sequence of Leaf
        What they read; where none has the dtype that is wanted, one is converted.
    indices : sequence of str
        Integers for conditions, such as loop variables.
    """

    def __init__(self, rng: Random, leaves: Sequence[Leaf], indices: Sequence[str]) -> None:
        self._rng = rng
        self._leaves = list(leaves)
        self._indices = list(indices)

    def stored(self, dtype: str, depth: int, bound: float) -> str:
        """An expression that fits an element of `dtype` and is no larger than `bound`."""
        if dtype == "uint8":
            return self._stored_unsigned(depth, bound)
        wide = "int32" if dtype in ("int8", "int16") and self._rng.random() < 0.8 else dtype
        if wide.startswith("float8") or (wide == "bfloat16" and self._rng.random() < 0.8):
            wide = "float32"
        text, size = self.number(wide, depth)
        if size > bound:
            text = self._clamped(text, wide, bound)
        if wide == dtype or (self._rng.random() < 0.3 and not wide.startswith("int")):
            return text  # a store converts
        return f'T.cast({text}, "{dtype}")'

    def _stored_unsigned(self, depth: int, bound: float) -> str:
        text, _ = self.number("int32", depth)
        return f'T.cast(T.max(T.min({text}, {int(bound)}), 0), "uint8")'

    def _clamped(self, text: str, dtype: str, bound: float) -> str:
        low, high = self._number(-bound, dtype), self._number(bound, dtype)
        if self._rng.random() < 0.3:
            return f"T.clamp({text}, {low}, {high})"
        return f"T.max(T.min({text}, {high}), {low})"

    def _number(self, number: float, dtype: str) -> str:
        plain = str(int(number)) if number == int(number) else str(number)
        if dtype in FLOATS and self._rng.random() < 0.3:
            plain = str(float(number))
        return plain if self._rng.random() < 0.5 else f"T.{dtype}({plain})"

    def number(self, dtype: str, depth: int) -> tuple[str, float]:
        """An expression of a dtype, and its greatest absolute value."""
        if depth <= 0 or self._rng.random() < 0.15:
            return self._leaf(dtype)
        made = self._rng.choice(self._choices(dtype))(dtype, depth - 1)
        text, bound = made
        # Bounds stay small, so that float16 and int32 hold what is made of them.
        return (self._clamped(text, dtype, 4), 4) if bound > _ENOUGH else made

    def _choices(self, dtype: str) -> list[Callable[[str, int], tuple[str, float]]]:
        shared = [self._arithmetic, self._arithmetic, self._extreme, self._chosen, self._converted]
        if dtype in FLOATS:
            return [*shared, self._function, self._divided]
        if dtype in ("int32", "int64"):
            return [*shared, self._bitwise, self._quotient]
        return [self._extreme, self._chosen, self._bitwise]

    def _leaf(self, dtype: str) -> tuple[str, float]:
        same = [leaf for leaf in self._leaves if leaf.dtype == dtype]
        if same and self._rng.random() < 0.75:
            leaf = self._rng.choice(same)
            return self._small(leaf.text, dtype, leaf.bound)
        others = [leaf for leaf in self._leaves if leaf.dtype != dtype and leaf.bound <= 64]
        if others and self._rng.random() < 0.7 and dtype != "uint8":
            leaf = self._rng.choice(others)
            return f'T.cast({leaf.text}, "{dtype}")', leaf.bound
        if dtype == "int32" and self._indices and self._rng.random() < 0.6:
            return f"({self._rng.choice(self._indices)}) % 5", 4
        number = self._rng.choice((1, 2, 3, 0.5) if dtype in FLOATS else (1, 2, 3, 5))
        return f"T.{dtype}({number})", number

    def _small(self, text: str, dtype: str, bound: float) -> tuple[str, float]:
        return (text, bound) if bound <= 16 else (self._clamped(text, dtype, 4), 4)

    def _arithmetic(self, dtype: str, depth: int) -> tuple[str, float]:
        (a, x), (b, y) = self.number(dtype, depth), self.number(dtype, depth)
        operator = self._rng.choice("+-*")
        return f"({a} {operator} {b})", x * y if operator == "*" else x + y

    def _extreme(self, dtype: str, depth: int) -> tuple[str, float]:
        (a, x), (b, y) = self.number(dtype, depth), self.number(dtype, depth)
        if dtype != "uint8" and dtype not in ("int8", "int16") and self._rng.random() < 0.3:
            return f"T.abs({a})", x
        return f"T.{self._rng.choice(('max', 'min'))}({a}, {b})", max(x, y)

    def _chosen(self, dtype: str, depth: int) -> tuple[str, float]:
        (a, x), (b, y) = self.number(dtype, depth), self.number(dtype, depth)
        return f"T.if_then_else({self.condition(depth)}, {a}, {b})", max(x, y)

    def _converted(self, dtype: str, depth: int) -> tuple[str, float]:
        via = self._rng.choice(FLOATS + ("int32",))
        text, bound = self.number(via, depth)
        return f'T.cast({text}, "{dtype}")', bound

    def _function(self, dtype: str, depth: int) -> tuple[str, float]:
        text, bound = self.number(dtype, depth)
        name = self._rng.choice(
            ("exp", "sqrt", "tanh", "sigmoid", "floor", "ceil", "trunc", "round", "abs")
        )
        if name == "exp":
            return f"T.exp(T.min({text}, T.{dtype}(2)))", 8
        if name == "sqrt":
            return f"T.sqrt(T.abs({text}))", max(bound, 1)
        return f"T.{name}({text})", 1 if name in ("tanh", "sigmoid") else bound + 1

    def _divided(self, dtype: str, depth: int) -> tuple[str, float]:
        (a, x), (b, _) = self.number(dtype, depth), self.number(dtype, depth)
        return f"({a} / (T.abs({b}) + T.{dtype}(1)))", x

    def _bitwise(self, dtype: str, depth: int) -> tuple[str, float]:
        (a, x), (b, y) = self.number(dtype, depth), self.number(dtype, depth)
        if dtype == "int32" and self._rng.random() < 0.3:
            return f"({a} >> {self._rng.choice((1, 2))})", x
        return f"({a} {self._rng.choice('&|^')} {b})", 2 * (x + y) + 1

    def _quotient(self, dtype: str, depth: int) -> tuple[str, float]:
        text, bound = self.number(dtype, depth)
        divisor = self._rng.choice((2, 3, 4, 7))
        operator = self._rng.choice(("//", "%"))
        return f"({text} {operator} {divisor})", bound + 1 if operator == "//" else divisor

    def condition(self, depth: int) -> str:
        """A condition on elements or indices."""
        kind = self._rng.random()
        if depth > 0 and kind < 0.15:
            joined = self._rng.choice(("and", "or"))
            return f"({self.condition(depth - 1)} {joined} {self.condition(0)})"
        if depth > 0 and kind < 0.2:
            return f"not ({self.condition(0)})"
        if self._indices and kind < 0.6:
            return self.index_condition()
        dtype = self._rng.choice((*FLOATS, "int32"))
        a, _ = self._leaf(dtype)
        operator = self._rng.choice(("<", "<=", ">", ">=", "==", "!="))
        b = self._leaf(dtype)[0] if self._rng.random() < 0.4 else self._number(1, dtype)
        return f"{a} {operator} {b}"

    def index_condition(self) -> str:
        """A condition on loop variables alone."""
        index = self._rng.choice(self._indices)
        match self._rng.randrange(4):
            case 0:
                return f"({index}) % {self._rng.choice((2, 3))} == {self._rng.randrange(2)}"
            case 1:
                return f"{index} {self._rng.choice(('<', '>=', '!='))} {self._rng.randrange(9)}"
            case 2:
                other = self._rng.choice(self._indices)
                return f"{index} + {self._rng.randrange(3)} {self._rng.choice(('<', '>='))} {other}"
        return f"(({index}) * 5 + 1) % 7 > {self._rng.randrange(7)}"
