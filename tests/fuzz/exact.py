"""The meaning of programs whose numbers are extreme: numpy's arithmetic in the dtypes themselves.

Other kinds keep their numbers within their dtypes and compare within bounds of rounding. These have
NaN, infinities, negative zero and the ends of integers' ranges; each step is exact or rounded once, and
results are equal or wrong. A tile is held for all blocks at once: the first axis is that of the rows of
all of them.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.memory import Buffer
from tests.fuzz.values import Invalid, is_float, storage

__all__ = ["ExactInterpreter", "extremes"]

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARED: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ROUNDED = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}
_ROUNDED["sqrt"] = np.sqrt
_TESTED = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}
_OF_NOTHING = {"max": -np.inf, "min": np.inf, "absmax": 0}
_REDUCED: dict[str, Any] = {"max": np.max, "min": np.min, "absmax": np.max}
_REDUCED |= {f"bit{n}": getattr(np, f"bitwise_{n}").reduce for n in ("and", "or", "xor")}


def extremes(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Random elements: ends of the range and what lies beside them, special values, any bits."""
    kind = storage(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    bits = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind).reshape(shape)
    small = rng.integers(0 if dtype.startswith("u") else -9, 10, shape).astype(kind)
    if is_float(dtype):
        limits = ml_dtypes.finfo(kind)
        chosen = [np.nan, 0.0, -0.0, 0.5, 1.5, -2.5, float(limits.max), -float(limits.max)]
        chosen += [float(limits.tiny), -float(limits.tiny), 127.5, -128.5, 448.0, 464.0, 255.0]
        chosen += [] if dtype == "float8_e4m3fn" else [np.inf, -np.inf]
        chosen += [] if dtype.startswith("float8") else [65504.0, 65520.0, 57344.0, 61440.0, 1e-7]
    else:
        ends = np.iinfo(kind)
        chosen = [ends.min, ends.min + 1, ends.max, ends.max - 1, 0, 1, ends.max // 2, 127, 100]
        chosen += [-1, -128] if ends.min else [128]
    with np.errstate(over="ignore"):
        special = np.array(chosen, np.float64 if is_float(dtype) else object).astype(kind)
    drawn = special[rng.integers(0, len(special), shape)]
    which = rng.integers(0, 3, shape)
    found = np.where(which == 0, bits, np.where(which == 1, small, drawn))
    if is_float(dtype):  # of a signalling NaN a maximum may be NaN
        found = np.where(np.isnan(_wide(found)), kind.type(np.nan), found)
    if dtype == "float32":  # targets may take the smallest numbers for zero
        found = np.where(np.abs(found) < limits.tiny, np.float32(0), found)
    return found


def converted(x: np.ndarray, dtype: str) -> np.ndarray:
    """Elements in another dtype: floats are rounded once, without infinity they end."""
    kind = storage(dtype)
    if x.dtype == kind:
        return x
    if dtype == "bool":
        return _wide(x) != 0
    x = _wide(x)
    if not is_float(dtype):
        if x.dtype.kind == "f":
            limits = np.iinfo(kind)
            cut = np.trunc(x.astype(np.float64))
            if not np.all((cut >= float(limits.min)) & (cut < float(limits.max) + 1)):
                raise Invalid(f"an {dtype} can't hold a float")
            x = cut
        return x.astype(kind)
    return _rounded(x, kind)


def _rounded(x: np.ndarray, kind: np.dtype) -> np.ndarray:
    if kind.name.startswith("float8") and kind.name != "float8_e5m2":
        limit = float(ml_dtypes.finfo(kind).max)
        x = np.clip(x.astype(np.float32), -limit, limit)
    return x.astype(kind)


def _wide(x: np.ndarray) -> np.ndarray:
    """Floats of 16 and 8 bits in float32, which holds them all."""
    return x if x.dtype.kind in "biu" or x.dtype.itemsize > 2 else x.astype(np.float32)


def _computed(compute: Callable[..., Any], *operands: np.ndarray) -> np.ndarray:
    """A function of operands of one dtype, in that dtype; integers of 8 and 16 bits wrap around."""
    kind = operands[0].dtype
    if kind.kind in "iu":
        found = np.asarray(compute(*(x.astype(object) for x in operands)), object)
        limits = np.iinfo(kind)
        if kind.kind == "i" and kind.itemsize > 2:
            if np.any((found < limits.min) | (found > limits.max)):
                raise Invalid(f"an {kind} overflows")
        low = np.asarray(found & (2 ** (8 * kind.itemsize) - 1), object)
        return low.astype(f"u{kind.itemsize}").view(kind)
    if kind.kind == "b":
        return compute(*operands)
    return _rounded(compute(*map(_wide, operands)), kind)


class ExactInterpreter:
    """One call of a program; see `tests.fuzz.numbers` for what it may hold."""

    def __init__(self, source: str, arguments: Mapping[str, np.ndarray]) -> None:
        self._functions = {
            f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)
        }
        self._dtypes: dict[str, str] = {}
        self._held: dict[str, np.ndarray] = {}
        for arg in self._functions["main"].args.args:
            assert isinstance(arg.annotation, ast.Call)
            self._dtypes[arg.arg] = ast.literal_eval(arg.annotation.args[1])
            self._held[arg.arg] = arguments[arg.arg].copy()
        self._parameters = list(self._held)
        self._rows = len(self._held[self._parameters[0]])
        self._names: dict[str, np.ndarray] = {}

    def run(self) -> dict[str, Buffer]:
        """Run the program; the result has its tensors."""
        kernel = self._functions["main"].body[0]
        assert isinstance(kernel, ast.With)
        with np.errstate(all="ignore"):
            for statement in kernel.body:
                self._statement(statement)
        found = {}
        for name in self._parameters:
            found[name] = Buffer(name, self._held[name].shape, self._dtypes[name], "global")
            found[name].data = self._held[name].reshape(-1)
        return found

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[shape, dtype])):
                _, *columns = ast.literal_eval(shape)
                self._dtypes[name] = ast.literal_eval(dtype)
                self._held[name] = np.zeros((self._rows, *columns), storage(self._dtypes[name]))
            case ast.For(target=target, iter=ast.Call(args=args), body=body):
                indices = target.elts if isinstance(target, ast.Tuple) else [target]
                self._parallel(indices, [ast.literal_eval(arg) for arg in args], body)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="copy"), args=[source, target])):
                self._write(target, self._whole(source))
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[source, target])):
                assert isinstance(node.value, ast.Call)
                options = [k.arg for k in node.value.keywords]
                kind = name.removeprefix("reduce_")
                self._write(target, _reduced(kind, self._whole(source), "nan_propagate" in options))
            case ast.Pass():
                pass
            case _:
                raise Invalid(f"the interpreter does not know {ast.unparse(node)}")

    def _parallel(self, indices: list[ast.expr], extents: list[int], body: list[ast.stmt]) -> None:
        match body:
            case [ast.For(target=ast.Name() as inner, iter=ast.Call(args=[extent]), body=body)]:
                indices, extents = [*indices, inner], [*extents, ast.literal_eval(extent)]
        self._names, self._axes = {}, len(indices)
        if extents[0] == self._rows:  # of a single block
            grid = np.ogrid[tuple(slice(np.int32(n)) for n in extents)]
            self._names = dict(zip(map(_name, indices), grid, strict=True))
        for node in body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._names[name] = self.value(value)
                case ast.Assign(targets=[target], value=value):
                    self._write(target, self.value(value))
                case ast.If(test=test, body=[then], orelse=[otherwise]):
                    assert isinstance(then, ast.Assign)
                    assert isinstance(otherwise, ast.Assign)
                    dtype = self._dtypes[_name(then.targets[0])]
                    a, b = (converted(self.value(n.value), dtype) for n in (then, otherwise))
                    self._write(then.targets[0], np.where(self.value(test), a, b))
                case _:
                    raise Invalid(f"the interpreter does not know {ast.unparse(node)}")

    def _whole(self, node: ast.expr) -> np.ndarray:
        return self._held[_name(node)]

    def _write(self, node: ast.expr, value: np.ndarray) -> None:
        name = _name(node)
        found, held = converted(value, self._dtypes[name]), self._held[name]
        match node:
            case ast.Subscript(slice=ast.Tuple(elts=[ast.Constant(value=row), *_])):
                held[row] = found  # one of several results in one tensor
            case _:
                self._held[name] = np.broadcast_to(found, held.shape)

    def value(self, node: ast.expr) -> np.ndarray:
        """The value of an expression in each iteration."""
        match node:
            case ast.Name(id=name):
                return self._names[name]
            case ast.Subscript(value=ast.Name(id=name)):
                held = self._held[name]
                return held if held.ndim == self._axes else held[:, None]
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                a, b = self._pair(left, right)
                return _COMPARED[type(op)](_wide(a), _wide(b))
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self._pair(left, right)
                if isinstance(op, ast.FloorDiv | ast.Mod) and np.any(b == 0):
                    raise Invalid("a division by zero")
                return _computed(_BINARY[type(op)], a, b)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _computed(operator.neg, self.value(operand))
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
                return ~self.value(operand)
            case ast.BoolOp(op=op, values=[left, right]):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return join(self.value(left), self.value(right))
            case ast.Call(func=ast.Attribute(attr=function), args=args):
                return self._called(function, args)
        raise Invalid(f"the interpreter does not know {ast.unparse(node)}")

    def _pair(self, *nodes: ast.expr) -> tuple[np.ndarray, np.ndarray]:
        """Two operands, of which a Python number takes the dtype of the other one."""
        constants = [_number(n) for n in nodes]
        known = [
            None if c is not None else self.value(n) for c, n in zip(constants, nodes, strict=True)
        ]
        kind = next((x.dtype for x in known if x is not None), np.dtype(np.float32))
        a, b = (
            np.asarray(c).astype(kind) if x is None else x
            for c, x in zip(constants, known, strict=True)
        )
        assert a.dtype == b.dtype, ast.unparse(nodes[0])
        return a, b

    def _called(self, function: str, args: list[ast.expr]) -> np.ndarray:
        if function == "cast":
            number = _number(args[0])
            found = self.value(args[0]) if number is None else np.asarray(number)
            return converted(found, ast.literal_eval(args[1]))
        if function == "reinterpret":
            return self.value(args[0]).view(storage(ast.literal_eval(args[1])))
        if function in ("if_then_else", "Select"):
            a, b = self._pair(*args[1:])
            return np.where(self.value(args[0]), a, b)
        if function in ("max", "min"):
            return _computed(np.fmax if function == "max" else np.fmin, *self._pair(*args))
        if function == "clamp":
            low, high = (self._pair(args[0], n)[1] for n in args[1:])
            x = _computed(np.fmax, self.value(args[0]), low)
            return _computed(np.fmin, x, np.broadcast_to(high, x.shape))
        if function in _TESTED:
            return _TESTED[function](_wide(self.value(args[0])))
        if function in _ROUNDED:
            return _computed(_ROUNDED[function], self.value(args[0]))
        if function == "abs":  # the smallest integer has none
            found = self.value(args[0])
            return np.abs(found) if found.dtype.kind in "iu" else _computed(np.abs, found)
        if function == "popcount":
            found = self.value(args[0])
            return np.bitwise_count(found.view(f"u{found.itemsize}")).astype(found.dtype)
        if function in ("truncdiv", "truncmod"):
            a, b = self._pair(*args)
            if np.any(b == 0):
                raise Invalid("a division by zero")
            return _computed(_truncdiv if function == "truncdiv" else _truncmod, a, b)
        if _number(args[0]) is not None:
            return np.asarray(_number(args[0])).astype(storage(function))
        raise Invalid(f"the interpreter does not know T.{function}")


def _number(node: ast.expr) -> Any:
    """A Python number, or None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
        return -node.operand.value
    return node.value if isinstance(node, ast.Constant) else None


def _truncdiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _truncmod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - b * _truncdiv(a, b)


def _reduced(kind: str, x: np.ndarray, propagates: bool) -> np.ndarray:
    """The last axis combined: NaN where there is one, or without it, as if it were not there."""
    wide = _wide(_computed(np.abs, x) if kind == "absmax" else x)
    if wide.dtype.kind == "f" and not propagates:
        wide = np.where(np.isnan(wide), wide.dtype.type(_OF_NOTHING[kind]), wide)
    return _REDUCED[kind](wide, axis=-1).astype(x.dtype)


def _name(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    assert isinstance(node, ast.Name)
    return node.id
