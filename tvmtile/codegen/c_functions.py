"""An expression of scalars as a function in C: in Metal's words, or in CUDA's."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile.ir.calls import op_name

_TYPES = {"uint8": "uchar", "uint16": "ushort", "uint32": "uint", "int32": "int"}
_TYPES |= {"float16": "half", "float32": "float"}
_OPERATORS = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.BitwiseAnd: "&",
    tirx.BitwiseOr: "|",
    tirx.BitwiseXor: "^",
    tirx.LShift: "<<",
    tirx.RShift: ">>",
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
    tirx.And: "&&",
    tirx.Or: "||",
}
_SIMPLE = (ir.Var, tirx.IntImm)
_FUNCTIONS = {tirx.Min: "min", tirx.Max: "max"}
_IN_CUDA = {
    "inline ": "__device__ __forceinline__ ",
    "as_type<float>": "__uint_as_float",
    "as_type<uint>": "__float_as_uint",
    "as_type<ushort>": "__half_as_ushort",
    "uint": "unsigned int",
    "uchar": "unsigned char",
    "ushort": "unsigned short",
}


def c_function(name: str, parameters: Sequence[ir.Var], value: ir.Expr) -> str:
    """A function of Metal that gives the value of an expression; each Let in it is a variable.

    The expression is one that may be computed wholly: both sides of a selection have a value.
    """
    printer = _Printer(parameters)
    result = printer.text(value)
    listed = ", ".join(f"{_type(var)} {var.name}" for var in parameters)
    lines = [*printer.variables, f"return {_without_parentheses(result)};"]
    body = "".join(f"  {line}\n" for line in lines)
    return f"inline {_type(value)} {name}({listed}) {{\n{body}}}\n"


def in_cuda(text: str) -> str:
    """The text of such a function in CUDA's words."""
    words = re.compile(r"inline |as_type<\w+>|\b(?:uint|uchar|ushort)\b")
    return words.sub(lambda word: _IN_CUDA[word.group()], text)


def _type(value: ir.Expr) -> str:
    return _TYPES[str(value.ty.dtype)]


class _Printer:
    def __init__(self, parameters: Sequence[ir.Var]) -> None:
        self._names = {var: var.name for var in parameters}
        self._taken = set(self._names.values())
        self._chosen: dict[ir.Expr, str] = {}
        self.variables: list[str] = []

    def text(self, value: Any) -> str:
        """The value in C; what the Lets in it bind becomes variables in front of it."""
        if isinstance(value, ir.Var):
            return self._names[value]
        if isinstance(value, tirx.IntImm):
            return _integer(value)
        if isinstance(value, tirx.FloatImm):
            return f"as_type<float>({struct.unpack('<I', struct.pack('<f', value.value))[0]:#x}u)"
        if isinstance(value, tirx.Let):
            return self._bound(value)
        if isinstance(value, tirx.Cast):
            return f"({_type(value)}){self.text(value.value)}"
        if isinstance(value, tirx.Not):
            return f"!{self.text(value.a)}"
        if isinstance(value, tirx.Select):
            return self._selected(value)
        if isinstance(value, ir.Call):
            assert op_name(value) == "tirx.reinterpret", value
            return f"as_type<{_type(value)}>({_without_parentheses(self.text(value.args[0]))})"
        a, b = self.text(value.a), self.text(value.b)
        if type(value) in _FUNCTIONS:
            return f"{_FUNCTIONS[type(value)]}({a}, {b})"
        return f"({a} {_OPERATORS[type(value)]} {b})"

    def _selected(self, value: tirx.Select) -> str:
        """A variable that is set once more under the condition: compilers make of that a selection."""
        parts = (value.condition, value.true_value)
        if isinstance(value.false_value, _SIMPLE) or not isinstance(value.true_value, _SIMPLE):
            return "({} ? {} : {})".format(*map(self.text, (*parts, value.false_value)))
        if value in self._chosen:
            return self._chosen[value]
        name = self.text(value.false_value)
        if self._chosen.pop(value.false_value, None) is None:
            name = self._variable("chosen", _type(value), name)
        condition, chosen = map(self.text, parts)
        self.variables.append(f"if {condition} {name} = {chosen};")
        self._chosen[value] = name
        return name

    def _bound(self, let: tirx.Let) -> str:
        self._names[let.var] = self._variable(let.var.name, _type(let.var), self.text(let.value))
        return self.text(let.body)

    def _variable(self, name: str, dtype: str, value: str) -> str:
        """The name of a new variable of such a value."""
        names = (name + str(n or "") for n in range(len(self._taken) + 1))
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        self.variables.append(f"{dtype} {name} = {_without_parentheses(value)};")
        return name


def _integer(number: tirx.IntImm) -> str:
    if "uint" not in str(number.ty.dtype):
        return str(number.value)
    return f"{number.value}u" if number.value < 64 else f"{number.value:#x}u"


def _without_parentheses(text: str) -> str:
    """A text without the parentheses around all of it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if place == len(text) - 1 and text[0] == "(" else text
    return text
