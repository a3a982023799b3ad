"""A program of the fuzzer: its text, its parameters, and what it is called with.

The text is a Python module: `SIZES`, the values of its dynamic extents in each call; macros; and
`@T.prim_func def main`. It can be run, read and shrunk without the generator that wrote it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tests.fuzz.interpret import Interpreter
from tests.fuzz.memory import Buffer
from tests.fuzz.values import is_float, round_trip

__all__ = ["Program", "mismatch"]


@dataclass(frozen=True)
class Program:
    """The text of a program, and the seed of its inputs."""

    source: str
    seed: int

    @cached_property
    def sizes(self) -> list[dict[str, int]]:
        """The dynamic extents of each call."""
        for node in ast.parse(self.source).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SIZES":
                return ast.literal_eval(node.value)
        return [{}, {}]

    @cached_property
    def parameters(self) -> list[ast.arg]:
        """The parameters of `main`."""
        functions = [f for f in ast.parse(self.source).body if isinstance(f, ast.FunctionDef)]
        return next(f for f in functions if f.name == "main").args.args

    def arguments(self, call: int) -> dict[str, Any]:
        """For each parameter of a call, the elements of a tensor or a number."""
        rng = np.random.default_rng([self.seed, call])
        sizes = self.sizes[call]
        return {arg.arg: _argument(arg.annotation, sizes, rng) for arg in self.parameters}

    def meaning(self, call: int) -> dict[str, Buffer]:
        """What the tensors hold after a call; `Invalid` where that is not defined."""
        interpreter = Interpreter(self.source, self.sizes[call], self.arguments(call))
        return interpreter.run()


def _argument(note: ast.expr | None, sizes: dict[str, int], rng: np.random.Generator) -> Any:
    if isinstance(note, ast.Attribute):
        return elements((), note.attr, rng)[()]
    assert isinstance(note, ast.Call)
    extents = note.args[0]
    assert isinstance(extents, ast.Tuple)
    shape = tuple(int(eval(ast.unparse(e), {"T": _Arithmetic}, sizes)) for e in extents.elts)
    return elements(shape, ast.literal_eval(note.args[1]), rng)


class _Arithmetic:
    """What the extents of a parameter may call."""

    @staticmethod
    def ceildiv(a: int, b: int) -> int:
        return -(-a // b)


def elements(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Random elements: floats up to 4, as often as not multiples of a quarter; small integers."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if not is_float(dtype):
        return rng.integers(0 if dtype.startswith("u") else -8, 8, shape)
    if rng.random() < 0.6:
        numbers = rng.integers(-16, 17, shape) / 4
    else:
        numbers = np.clip(rng.standard_normal(shape), -4, 4)
    return round_trip(np.asarray(numbers, np.float64), dtype)


def mismatch(expected: Buffer, found: np.ndarray) -> str:
    """How a tensor differs from what it should hold, or "" where it does not."""
    got = found.astype(expected.data.dtype).reshape(-1)
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(got.astype(np.float64) - expected.data) <= expected.error)
    if not far.any():
        return ""
    first = int(np.flatnonzero(far)[0])
    where = [int(i) for i in np.unravel_index(first, expected.shape)]
    return (
        f"{expected.name}{where} is {got[first]}, not {expected.data[first]} "
        f"(+-{expected.error[first]:.1e}); {int(far.sum())} of {far.size} elements differ"
    )
