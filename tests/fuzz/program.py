"""A program of the fuzzer: its text, its parameters, and what it is called with.

The text is a Python module: `SIZES`, the values of its dynamic extents in each call; macros; and
`@T.prim_func def main`. It can be run, read and shrunk without the generator that wrote it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tests.fuzz.exact import ExactInterpreter, extremes
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
        return self._constant("SIZES", [{}, {}])

    @cached_property
    def expects(self) -> dict[str, list[str]]:
        """For a target, texts that the source of its kernel must have."""
        return self._constant("EXPECTS", {})

    @cached_property
    def counts(self) -> dict[str, str]:
        """For a target, a condition on what its emulator counts in a call."""
        return self._constant("COUNTS", {})

    @cached_property
    def options(self) -> dict[str, Any]:
        """Options of `tvmtile.compile`, besides the target."""
        return self._constant("OPTIONS", {})

    @cached_property
    def architectures(self) -> list[str]:
        """CUDA's architectures to compile for where a target names none; empty: all."""
        return self._constant("ARCHITECTURES", [])

    @property
    def inputs(self) -> dict[str, Any]:
        """The elements of tensors, one number for all of them, or functions of (rng, shape)."""
        return {} if self.is_extreme else self._inputs

    @property
    def is_extreme(self) -> bool:
        """Its numbers are what other programs stay away from, and none has an error."""
        return self._inputs == "extreme"

    @cached_property
    def _inputs(self) -> Any:
        functions = [
            n for n in self._body if isinstance(n, ast.FunctionDef) and not n.decorator_list
        ]
        assigned = [n for n in self._body if _is_assignment(n, "INPUTS")]
        scope: dict[str, Any] = {"INPUTS": {}, "np": np, "math": math}
        exec(compile(ast.Module([*functions, *assigned], []), "inputs", "exec"), scope)
        return scope["INPUTS"]

    @cached_property
    def _body(self) -> list[ast.stmt]:
        return ast.parse(self.source).body

    def _constant(self, name: str, otherwise: Any) -> Any:
        found = [node.value for node in self._body if _is_assignment(node, name)]
        return ast.literal_eval(found[0]) if found else otherwise

    @cached_property
    def parameters(self) -> list[ast.arg]:
        """The parameters of `main`."""
        functions = [f for f in self._body if isinstance(f, ast.FunctionDef)]
        return next(f for f in functions if f.name == "main").args.args

    def arguments(self, call: int) -> dict[str, Any]:
        """For each parameter of a call, the elements of a tensor or a number."""
        rng = np.random.default_rng([self.seed, call])
        sizes, make = self.sizes[call], extremes if self.is_extreme else elements
        given = {name: _made_by(elements) for name, elements in self.inputs.items()}
        return {
            a.arg: _argument(a.annotation, sizes, rng, given.get(a.arg, make))
            for a in self.parameters
        }

    def strides(self, call: int) -> dict[str, tuple[int, ...]]:
        """The strides of each `T.StridedTensor` in a call, in elements."""
        notes = {arg.arg: arg.annotation for arg in self.parameters}
        return {
            name: _numbers(note.args[1], self.sizes[call])
            for name, note in notes.items()
            if isinstance(note, ast.Call) and len(note.args) == 3
        }

    def meaning(self, call: int) -> dict[str, Buffer]:
        """The contents of the tensors after a call; `Invalid` where they are not defined."""
        if self.is_extreme:
            return ExactInterpreter(self.source, self.arguments(call)).run()
        interpreter = Interpreter(self.source, self.sizes[call], self.arguments(call))
        return interpreter.run()


def _is_assignment(node: ast.stmt, name: str) -> Any:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name


def _made_by(given: Any) -> Callable[..., np.ndarray]:
    """The entry of `inputs` for a tensor as a function that makes elements of a dtype."""

    def make(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
        made = np.asarray(given(rng, shape) if callable(given) else given)
        assert made.shape in (shape, ()), f"an input of {made.shape}, not {shape}"
        made = np.broadcast_to(made, shape).copy()
        return round_trip(made.astype(np.float64), dtype) if is_float(dtype) else made

    return make


def _argument(
    note: ast.expr | None, sizes: dict[str, int], rng: np.random.Generator, make: Any
) -> Any:
    if isinstance(note, ast.Attribute):
        return make((), note.attr, rng)[()]
    assert isinstance(note, ast.Call)
    return make(_numbers(note.args[0], sizes), ast.literal_eval(note.args[-1]), rng)


def _numbers(node: ast.expr, sizes: dict[str, int]) -> tuple[int, ...]:
    assert isinstance(node, ast.Tuple)
    return tuple(int(eval(ast.unparse(e), {"T": _Arithmetic}, sizes)) for e in node.elts)


class _Arithmetic:
    """Functions that the extents of a parameter may call."""

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
    got, wanted = (x.reshape(-1) for x in (found.astype(expected.data.dtype), expected.data))
    with np.errstate(invalid="ignore"):
        apart = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
        near = (expected.error > 0) & (apart <= expected.error)
        far = ~((got == wanted) | near | ((got != got) & (wanted != wanted)))
    if not far.any():
        return ""
    first = int(np.flatnonzero(far)[0])
    where = [int(i) for i in np.unravel_index(first, expected.shape)]
    return (
        f"{expected.name}{where} is {got[first]}, not {expected.data[first]} "
        f"(+-{expected.error[first]:.1e}); {int(far.sum())} of {far.size} elements differ"
    )
