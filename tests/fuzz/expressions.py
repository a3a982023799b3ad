"""Expressions of a tile program, evaluated by numpy for all lanes of a `T.Parallel` at once."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.memory import Buffer, Lanes
from tests.fuzz.operators import Access, Region
from tests.fuzz.values import (
    EPSILON,
    Invalid,
    Value,
    binary,
    cast,
    compare,
    held,
    is_float,
    literal,
    logical,
    monotone,
    negate_bool,
    rounded,
    select,
    storage,
)

__all__ = ["Expressions"]

_BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_COMPARED = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
# Growing and falling functions, and the units of float32 by which a target may miss them: what CUDA
# says of its own; the CPU and the emulators are within 1.25. Of two, the steps are narrow where the
# dtype is.
_IN_NARROW_STEPS = ("rsqrt", "sigmoid")
_MONOTONE = {
    "exp": (np.exp, 2),
    "exp2": (np.exp2, 2),
    "log": (np.log, 1),
    "log2": (np.log2, 1),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2),
    "tanh": (np.tanh, 2),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3),
    "sqrt": (lambda x: np.sqrt(np.maximum(x, 0)), 1),
    "floor": (np.floor, 0),
    "ceil": (np.ceil, 0),
    "trunc": (np.trunc, 0),
    "round": (np.rint, 0),
    "nearbyint": (np.rint, 0),
    "ties-away-from-zero": (lambda x: np.trunc(x + np.copysign(0.5, x)), 0),
}
# Functions of numbers that are exact; of narrow floats, too, they are computed in float32.
_FUNCTIONS = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "exp10": lambda x: 10.0**x,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "ldexp": lambda x, power: x * 2.0**power,
    "log10": np.log10,
    "log1p": np.log1p,
    "nextafter": lambda x, _: x,  # within its error
    "pow": np.power,
    "sin": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
}


class Expressions:
    """Evaluates expressions; `Interpreter` adds statements.

    Attributes
    ----------
    names : dict
        What the names in scope stand for: a `Value`, a `Buffer`, or a macro's definition.
    lanes : Lanes
        Who evaluates.
    block : int
        The number of the block.
    """

    names: dict[str, Any]
    lanes: Lanes
    block: int

    @contextmanager
    def within(self, lanes: Lanes) -> Iterator[None]:
        """Let fewer lanes evaluate."""
        outer, self.lanes = self.lanes, lanes
        try:
            yield
        finally:
            self.lanes = outer

    def value(self, node: ast.expr) -> Value:
        """The value of an expression in each lane."""
        match node:
            case ast.Constant(value=bool(constant)):
                return literal(constant, "bool")
            case ast.Constant(value=constant):
                return literal(constant)
            case ast.Name(id=name):
                return self._named(name)
            case ast.IfExp(test=test, body=then, orelse=otherwise):
                return self._chosen(test, then, otherwise)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._negated(self.value(operand))
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                value = self.value(operand)
                return binary("^", value, literal(-1, value.dtype))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return negate_bool(self.condition(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(_BINARY[type(op)], left, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return compare(_COMPARED[type(op)], self.value(left), self.value(right))
            case ast.Compare(left=left, ops=ops, comparators=rights):
                steps = zip([left, *rights[:-1]], ops, rights, strict=True)
                parts: list[ast.expr] = [ast.Compare(a, [op], [b]) for a, op, b in steps]
                return self._logical("and", parts)
            case ast.BoolOp(op=op, values=values):
                return self._logical("and" if isinstance(op, ast.And) else "or", values)
            case ast.Subscript():
                return self._element(node)
            case ast.Call(func=ast.Attribute(attr=function), args=args):
                return self._call(function, args)
        raise Invalid(f"the interpreter does not know {ast.unparse(node)}")

    def condition(self, node: ast.expr) -> Value:
        """A condition in each lane: a number does that is not zero."""
        return cast(self.value(node), "bool")

    def integer(self, node: ast.expr) -> int:
        """An integer that is the same in all lanes."""
        value = self.value(node)
        if value.data.size != 1 or not value.exact:
            raise Invalid(f"{ast.unparse(node)} differs from lane to lane")
        return int(value.data.reshape(-1)[0])

    def region(self, node: ast.expr) -> Region:
        """A tile operand: a buffer, a region of it or an element at which a tile begins."""
        if isinstance(node, ast.Name):
            return Region.whole(self.names[node.id])
        if isinstance(node, ast.Call) and (made := self.allocated("", node)):
            return Region.whole(made)
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            raise Invalid(f"{ast.unparse(node)} is no tile")
        buffer = self.names[node.value.id]
        indices = self._indices(node)
        spans = [self._span(i, n) for i, n in zip(indices, buffer.shape, strict=True)]
        is_element = not any(isinstance(i, ast.Slice) for i in indices)
        extents = None if is_element else tuple(extent for _, extent in spans)
        return Region(buffer, tuple(low for low, _ in spans), extents)

    def _span(self, index: ast.expr, size: int) -> tuple[int, int]:
        if not isinstance(index, ast.Slice):
            return self.integer(index), 1
        low = self.integer(index.lower) if index.lower else 0
        return low, (self.integer(index.upper) if index.upper else size) - low

    @staticmethod
    def _indices(node: ast.Subscript) -> list[ast.expr]:
        return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]

    def _named(self, name: str) -> Value:
        found = self.names[name]
        if isinstance(found, Buffer):  # a variable
            return self._loaded(found, np.zeros((), np.int64))
        return found

    @staticmethod
    def _negated(value: Value) -> Value:
        if not value.dtype or is_float(value.dtype):
            return Value(-value.data, value.error, value.dtype)
        return binary("-", literal(0, value.dtype), value)

    def _binary(self, operator: str, left: ast.expr, right: ast.expr) -> Value:
        a, b = self.value(left), self.value(right)
        if a.dtype or b.dtype:
            return binary(operator, self._present(a), self._present(b))
        # Two Python numbers are Python's.
        numbers = (ast.Constant(value.data.item()) for value in (a, b))
        expression = ast.Expression(ast.BinOp(next(numbers), _OPERATOR[operator], next(numbers)))
        return literal(eval(compile(ast.fix_missing_locations(expression), "", "eval")))

    def _present(self, value: Value) -> Value:
        """A value with 0 in place of what lanes that do not run would have."""
        if value.data.shape != self.lanes.runs.shape or self.lanes.runs.all():
            return value
        runs = self.lanes.runs
        error = np.where(runs, value.error, 0.0)
        return Value(np.where(runs, value.data, value.data.dtype.type(1)), error, value.dtype)

    def _logical(self, operator: str, nodes: list[ast.expr]) -> Value:
        result = self.condition(nodes[0])
        for node in nodes[1:]:
            # The right side is evaluated where the left one does not decide.
            with self.within(self.lanes.where(result, operator == "and")):
                right = self.condition(node)
            result = logical(operator, result, right)
        return result

    def offsets(self, node: ast.Subscript) -> tuple[Buffer, np.ndarray, np.ndarray]:
        """The buffer of an element, its flat offset and whether it exists, in each lane."""
        if not isinstance(node.value, ast.Name):
            raise Invalid(f"{ast.unparse(node)} is no element")
        buffer = self.names[node.value.id]
        offset, inside = np.zeros((), np.int64), self.lanes.runs
        for index, size in zip(map(self.value, self._indices(node)), buffer.shape, strict=True):
            if not index.exact or is_float(index.dtype):
                raise Invalid(f"an index of {buffer.name} is not exact")
            inside = inside & (index.data >= 0) & (index.data < size)
            offset = offset * size + np.clip(index.data, 0, size - 1)
        if buffer.scope != "global" and not inside[self.lanes.runs].all():
            raise Invalid(f"an index lies outside of {buffer.name}")
        return buffer, np.broadcast_to(offset, inside.shape), inside

    def _element(self, node: ast.Subscript) -> Value:
        buffer, offset, inside = self.offsets(node)
        return self._loaded(buffer, offset, inside)

    def _loaded(self, buffer: Buffer, offset: np.ndarray, inside: Any = None) -> Value:
        inside = self.lanes.runs if inside is None else inside
        flat = self.placed(buffer, offset)[inside]
        found = buffer.load(flat)
        self.own(buffer, "read", flat, inside)
        data, error = np.zeros(inside.shape, found.data.dtype), np.zeros(inside.shape)
        data[inside], error[inside] = found.data, found.error
        return Value(data, error, buffer.dtype)

    def placed(self, buffer: Buffer, offset: np.ndarray) -> np.ndarray:
        """Flat offsets in a buffer, of which each lane may have its own."""
        offset = np.broadcast_to(offset, self.lanes.runs.shape)
        if buffer.private:
            return np.arange(offset.size) * buffer.size + offset
        return offset

    def allocated(self, name: str, call: ast.Call) -> Buffer | None:
        """The tile, variable or view that a call makes: `Interpreter` does."""
        raise NotImplementedError

    def thread(self, axis: int) -> Value:
        """The index of each thread: `Interpreter` knows."""
        raise NotImplementedError

    def own(self, buffer: Buffer, how: str, offsets: np.ndarray, lanes: np.ndarray) -> None:
        """Note who touches elements: `Interpreter` does."""
        raise NotImplementedError

    def _call(self, function: str, args: list[ast.expr]) -> Value:
        if function in ("if_then_else", "Select"):
            return self._chosen(*args)
        if function == "get_thread_binding":
            return self.thread(self.integer(args[0]) if args else 0)
        if function in ("infinity", "max_value", "min_value"):
            return _end(function, ast.literal_eval(args[0]))
        if function == "cast":
            return cast(self._present(self.value(args[0])), ast.literal_eval(args[1]))
        if function == "reinterpret":
            return reinterpreted(self.value(args[0]), ast.literal_eval(args[1]))
        if function in ("And", "Or"):
            return self._logical(function.lower(), args)
        if function == "Not":
            return negate_bool(self.condition(args[0]))
        if function == "round" and len(args) == 2:
            function, args = ast.literal_eval(args[1]), args[:1]
        if function in ("any_of", "all_of"):
            return self._quantified(function, args[0])
        values = [self._present(self.value(arg)) for arg in args]
        return called(function, values)

    def _quantified(self, function: str, node: ast.expr) -> Value:
        found = Access(self.block).read(self.region(node))
        if not found.exact:
            raise Invalid(f"{ast.unparse(node)} is not exact")
        return literal(
            (found.data != 0).any() if function == "any_of" else found.data.all(), "bool"
        )

    def _chosen(self, test: ast.expr, then: ast.expr, otherwise: ast.expr) -> Value:
        condition = self.condition(test)
        with self.within(self.lanes.where(condition)):
            a = self._present(self.value(then))
        with self.within(self.lanes.where(condition, wanted=False)):
            b = self._present(self.value(otherwise))
        return select(condition, a, b)


_OPERATOR = {text: kind() for kind, text in _BINARY.items()}


def called(function: str, values: list[Value]) -> Value:
    """A function of numbers, `T.<function>`."""
    first = values[0]
    if function in ("max", "min"):
        return functools.reduce(functools.partial(binary, function), values)
    if function == "clamp":
        return binary("min", binary("max", first, values[1]), values[2])
    if function in ("truncdiv", "truncmod"):
        return binary(function, *values)
    if function == "ceildiv":
        return _ceildiv(first, values[1])
    if function == "align_up":
        return binary("*", _ceildiv(first, values[1]), values[1])
    if function == "abs":
        return rounded(np.abs(first.data), first.error, first.dtype)
    if function in _FUNCTIONS and all(value.exact for value in values):
        return _computed(_FUNCTIONS[function], values)
    if function in _MONOTONE:
        return monotone(*_arguments(function, first))
    if function in ("isinf", "isnan", "isfinite"):
        return Value(getattr(np, function)(first.data), np.zeros(()), "bool")
    if function == "bool" or is_float(function) or np.issubdtype(storage(function), np.integer):
        return cast(first, function)
    raise Invalid(f"the interpreter does not know T.{function}")


def _computed(function: Any, values: list[Value]) -> Value:
    dtype = next(value.dtype for value in values if value.dtype)
    with np.errstate(divide="ignore"):
        result = function(*(cast(value, dtype).data for value in values))
    none = functools.reduce(np.logical_or, (np.isnan(value.data) for value in values))
    known = np.where(none, 0.0, result)
    found = rounded(known, 4 * min(EPSILON[dtype], EPSILON["float32"]) * np.abs(known), dtype)
    return Value(np.where(none, np.nan, found.data), found.error, dtype)


def _end(which: str, dtype: str) -> Value:
    """The largest or smallest number of a dtype; integers have no infinity, and end there."""
    if which == "infinity" and is_float(dtype):
        return literal(np.inf, dtype)
    limits = ml_dtypes.finfo(storage(dtype)) if is_float(dtype) else np.iinfo(dtype)
    number = limits.min if which == "min_value" else limits.max
    return literal(float(number) if is_float(dtype) else number, dtype)


def reinterpreted(value: Value, dtype: str) -> Value:
    """A number whose bits are those of another one."""
    if not value.exact:
        raise Invalid("the bits of a number are not known")
    bits = np.ascontiguousarray(value.data.astype(storage(value.dtype))).reshape(-1)
    data = bits.view(storage(dtype)).reshape(value.data.shape).astype(held(dtype))
    return Value(data, np.zeros(()), dtype)


def _arguments(function: str, value: Value) -> tuple[Any, Value, float]:
    compute, units = _MONOTONE[function]
    value = value if value.dtype else cast(value, "float32")
    unit = EPSILON[value.dtype]
    if function not in _IN_NARROW_STEPS:
        unit = min(unit, EPSILON["float32"])
    return compute, value, units * unit


def _ceildiv(a: Value, b: Value) -> Value:
    if not a.dtype and not b.dtype:
        return literal(-(-int(a.data) // int(b.data)))
    return binary("//", binary("-", binary("+", a, b), literal(1)), b)
