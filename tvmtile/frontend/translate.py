"""Errors of Python and TVM in the middle of a kernel, as a `TileError` that says what to write.

Python's own messages name types that a user never wrote ("unsupported operand type(s) for +: 'Var' and
'int'"), and TVM's name its sources. The rules here look at the line that failed and at the values of
the names on it. What no rule knows keeps its type and its text: an exception of the user's own code is
theirs, and one of ours is a defect.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import linecache
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import (
    DIVISION_BY_ZERO,
    InvalidOperand,
    InvalidValue,
    SourceLocation,
    SyntaxNotSupported,
    TileError,
    is_internal,
    is_tvm,
    reason_of,
)
from tvmtile.frontend.expressions import OF_LANGUAGE
from tvmtile.frontend.mistakes import (
    condition_in_function,
    length_of_tensor,
    loop_in_python,
    not_in_language,
    store_in_function,
    undefined,
    unknown_attribute,
)
from tvmtile.frontend.syntax import OPERATORS
from tvmtile.ir.operands import describe

_SYMBOLS: dict[type[ast.AST], str] = {
    **{node: symbol for node, (_, symbol) in OPERATORS.items()},
    ast.USub: "-",
    ast.UAdd: "+",
    ast.Invert: "~",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


class translate_errors:  # noqa: N801 - used as a function: `with translate_errors():`
    """Turn what Python and TVM raise in the middle of a kernel into a `TileError` with its line."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, traceback: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, TileError):
            return
        failure = _failure(error, traceback)
        if failure is None:
            return
        for kind, pattern, rule in _BY_TVM if failure.by_tvm else _BY_PYTHON:
            text = re.search(pattern, str(error)) if isinstance(error, kind) else None
            translated = None if text is None else rule(failure, text)
            if translated is not None:
                translated.location = failure.location
                raise translated from error


@dataclass
class RaisedError:
    """An exception, and the user's line in which it was raised."""

    error: Exception
    """The exception."""
    location: SourceLocation
    """The innermost line of the user's."""
    frame: types.FrameType
    """Of that line."""
    by_tvm: bool
    """Whether TVM raised it, called from that line or by tvmtile; else Python did."""

    def nodes(self) -> Iterator[ast.AST]:
        """The syntax of the statements that hold the line; of a loop or a branch, its head only."""
        try:
            tree = ast.parse("".join(linecache.getlines(self.location.file)))
        except SyntaxError:  # such as a cell of a notebook that begins with a command
            return
        line = self.location.line
        around = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or line)
        ]
        # Several: `if s > 0: T.copy(s, A)`, `T.copy(A, s); T.clear(s)`.
        last = max((node.lineno for node in around), default=0)
        for statement in around:
            if statement.lineno == last:
                yield statement
                for child in ast.iter_child_nodes(statement):
                    if not isinstance(child, ast.stmt):
                        yield from ast.walk(child)

    def value(self, node: ast.AST) -> Any:
        """The value of a name on the line, None for any other expression."""
        if not isinstance(node, ast.Name):
            return None
        return self.frame.f_locals.get(node.id, self.frame.f_globals.get(node.id))

    def tile(self, node: ast.AST) -> str | None:
        """A whole buffer or a part of one, described; None for any other expression."""
        value = self.value(node)
        if isinstance(value, ir.TensorRegion) or is_buffer_var(value):
            return describe(value)
        if isinstance(node, ast.Subscript) and is_buffer_var(buffer := self.value(node.value)):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            is_region = any(isinstance(index, ast.Slice) for index in indices)
            if is_region or len(indices) < len(buffer.ty.shape):
                return f"{ast.unparse(node)} of {describe(buffer)}"
        return None


def _failure(error: Exception, traceback: Any) -> RaisedError | None:
    """The origin of an exception; None where no line of the user's is involved, or it is ours."""
    found: RaisedError | None = None
    while traceback is not None:
        frame = traceback.tb_frame
        filename = frame.f_code.co_filename
        if not is_internal(filename):
            location = SourceLocation(filename, traceback.tb_lineno)
            found = RaisedError(error, location, frame, by_tvm=False)
        elif found is not None:
            found.by_tvm = is_tvm(filename)
        if frame.f_code is not OF_LANGUAGE:
            innermost = frame
        traceback = traceback.tb_next
    if found is None:
        return None
    is_theirs = innermost is found.frame or found.by_tvm or isinstance(error, RecursionError)
    # A module of ours, and a function that is declared (`tileop/elementwise_operator.py`), raise it.
    is_for_user = innermost.f_code.co_name in ("__getattr__", "declared")
    return found if is_theirs or is_for_user else None


_Rule = Callable[[RaisedError, re.Match[str]], TileError | None]
_Row = tuple[type[Exception], str, _Rule]


_ALTERNATIVES = {"float": "T.cast(x, 'float32')", "int": "T.cast(x, 'int32')", "round": "T.round"}


def _endless_recursion(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`return n * fact(n - 1)`, which a condition of the running kernel should end."""
    name = failure.frame.f_code.co_name
    return SyntaxNotSupported(
        f"{name} calls itself without end: functions run while the kernel is traced, both branches of "
        "a condition that only the running kernel knows, too",
        help="write a loop; a recursion ends at a condition on Python values",
    )


def _python_function(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`math.sqrt(A[i])`, `float(A[i])`: a function of Python's numbers on a value of the kernel."""
    for node in failure.nodes():
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Attribute):
            module = failure.value(function.value)
            if getattr(module, "__name__", None) not in ("math", "numpy", "torch"):
                continue
            remedy = f"T.{function.attr}"
        elif isinstance(function, ast.Name) and function.id in _ALTERNATIVES:
            remedy = _ALTERNATIVES[function.id]
        else:
            continue
        return SyntaxNotSupported(
            f"{ast.unparse(function)} is called on a value that only the running kernel has",
            help=f"use the language's function: {remedy}",
        )
    return None


def _operator_on_tile(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`C_local + 1`: arithmetic and comparisons are of elements."""
    for node in failure.nodes():
        if isinstance(node, ast.BinOp | ast.AugAssign):
            target = node.target if isinstance(node, ast.AugAssign) else node.left
            symbol = _SYMBOLS[type(node.op)]
            operands = [target, node.right if isinstance(node, ast.BinOp) else node.value]
        elif isinstance(node, ast.Compare):
            symbol = _SYMBOLS.get(type(node.ops[0]), "comparison")
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.UnaryOp) and type(node.op) in _SYMBOLS:
            symbol, operands = _SYMBOLS[type(node.op)], [node.operand]
        else:
            continue
        tiles = [tile for operand in operands if (tile := failure.tile(operand)) is not None]
        if tiles:
            return _elements_wanted(f"`{symbol}`", tiles)
    return None


def _wrong_arguments(failure: RaisedError, text: re.Match[str]) -> TileError | None:
    """`T.Kernel(1, thread=64)`: arguments that a function of the language does not take."""
    for node in failure.nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        function = getattr(failure.value(node.func.value), node.func.attr, None)
        module = str(getattr(function, "__module__", "")).partition(".")[0]
        has_keyword = text[2] is None or text[2] in {keyword.arg for keyword in node.keywords}
        if not inspect.isfunction(function) and not inspect.isclass(function):
            continue
        if module not in ("tvmtile", "tvm") or not has_keyword:
            continue
        signature = inspect.signature(function)
        near = difflib.get_close_matches(text[2] or "", list(signature.parameters), n=1)
        parameters = ", ".join(signature.parameters)
        return InvalidOperand(
            f"{ast.unparse(node.func)} {text[1].partition('. Did you mean')[0]}",
            help=f"did you mean {near[0]!r}?" if near else f"its parameters are {parameters}",
        )
    return None


def _unlike_operands(_: RaisedError, text: re.Match[str]) -> TileError | None:
    """`A[i] + "1"`: arithmetic between a value of the kernel and something that is none."""
    foreign = [name for name in text.groups()[1:] if not _is_value_type(name)]
    if len(foreign) != 1:
        return None
    return InvalidOperand(
        f"`{text[1]}` between a value of the kernel and a {foreign[0]}",
        help="a value of the kernel goes with numbers and with other values of the kernel",
    )


_LACKING = {"** or pow()": ("**", "T.pow(x, y), or a product"), "@": ("@", "T.gemm, of tiles")}


def _lacking_operator(_: RaisedError, text: re.Match[str]) -> TileError | None:
    """`A[i] ** 2`: an operator that values of the kernel don't have."""
    if text[1] not in _LACKING or not any(map(_is_value_type, text.groups()[1:])):
        return None
    symbol, remedy = _LACKING[text[1]]
    return SyntaxNotSupported(f"values of the kernel have no `{symbol}`", help=f"use {remedy}")


def _is_value_type(name: str) -> bool:
    return hasattr(tirx, name) or hasattr(ir, name)


def _python_container(_: RaisedError, text: re.Match[str]) -> TileError | None:
    """`table[i]`: a Python list has no element that only the running kernel can tell."""
    if not _is_value_type(text[2]):
        return None
    return SyntaxNotSupported(
        f"a Python {text[1]} is indexed with a value that only the running kernel has",
        help="loop over the Python list itself, `for x in table:`, or pass the table as a tensor",
    )


def _no_expression(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`T.call_extern("handle", "f", descriptor)`: an object of Python is no argument."""
    for node in failure.nodes():
        if not isinstance(node, ast.Call):
            continue
        for operand in node.args:
            value = failure.value(operand)
            if value is not None and not isinstance(value, ir.Node | str | int | float | list):
                return InvalidOperand(
                    f"{ast.unparse(node.func)}: {ast.unparse(operand)} is a {type(value).__name__}, "
                    "which is no value that a function in the kernel takes",
                    help="give elements, addresses and numbers; what T.create_tma_descriptor returns "
                    "is for T.tma_load",
                )
    return None


def _function_of_tile(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`T.exp(C_local)`: TVM's functions are of elements."""
    for node in failure.nodes():
        if not isinstance(node, ast.Call):
            continue
        tiles = [tile for operand in node.args if (tile := failure.tile(operand)) is not None]
        if tiles:
            return _elements_wanted(ast.unparse(node.func), tiles)
    return None


def _elements_wanted(what: str, tiles: list[str]) -> TileError:
    return InvalidOperand(
        f"{what} works on elements, not on whole tiles: {', '.join(tiles)}",
        help="index the tile, `tile[i, j]`, in a loop over T.Parallel",
    )


def _truth_value(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`max(x, 0)`, `sorted(...)`: Python asks for a truth value that only the running kernel has."""
    in_function = condition_in_function(failure)
    if in_function is not None:
        return in_function
    calls = [
        ast.unparse(node.func)
        for node in failure.nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    called = f" ({calls[0]})" if calls else ""
    return SyntaxNotSupported(
        f"Python code{called} needs to know now a condition that only the running kernel knows",
        help="use T.max, T.min or T.if_then_else, or an `if` statement in the kernel itself",
    )


_INTEGERS_ONLY = (
    "convert it first, T.cast(x, 'int32'); T.reinterpret(x, 'uint32') has the bits of a float"
)
_REASONS: tuple[tuple[str, type[TileError], str, str], ...] = (
    (
        "multiple types of integer division",  # TVM leaves it undefined
        InvalidOperand,
        "`/` has no meaning between integers of the kernel",
        "use `//` to round down, T.ceildiv(a, b) to round up, or T.cast(a, 'float32') / b",
    ),
    (
        r"Literal value (-?\d+) exceeds \w+ of (\w+)",
        InvalidValue,
        r"\1 is no \2",
        "give a number that the dtype holds, or use a wider one",
    ),
    (
        r"cannot make uint from negative value (-?\d+)",
        InvalidValue,
        r"\1 is no unsigned integer",
        "use a signed dtype, or add 2 to the power of its bits",
    ),
    ("Divide by zero", InvalidValue, *DIVISION_BY_ZERO),
    (
        r"Expected integer argument as .HS of (\S+) operator .*, but received (.*) of type T\.(\w+)",
        InvalidOperand,
        r"`\1` is for integers, not for the \3 \2",
        _INTEGERS_ONLY,
    ),
    (
        "Cannot use ~ operator on float",
        InvalidOperand,
        "`~` is for integers, not for floats",
        _INTEGERS_ONLY,
    ),
    (
        r"a\.ty\(\)\.MatchesCode\(DLDataTypeCode::kDLInt, .*\) is false: (.*)",
        InvalidOperand,
        r"`//` and `%` are for integers, not for the float \1",
        "T.floor(a / b) rounds down, T.fmod(a, b) is what remains",
    ),
)
"""Messages of TVM, and what each means in a kernel, with a remedy."""


def _known_reason(kind: type[TileError], message: str, help: str) -> _Rule:
    """A check of TVM's that has a remedy in the language."""
    return lambda _, text: kind(text.expand(message), help=help)


def _refused_by_tvm(failure: RaisedError, _: re.Match[str]) -> TileError:
    kind = InvalidValue if isinstance(failure.error, ValueError) else InvalidOperand
    return kind(
        f"TVM does not take this: {reason_of(failure.error)}",
        help="set TVM_BACKTRACE=1 to see where in TVM",
    )


_OPERATOR = r"^unsupported operand type\(s\) for (.+?)=?: '(\w+)' and '(\w+)'"
_ARGUMENTS = (
    r"^(?:\w+\.)*\w+\(\) (got an unexpected keyword argument '(\w+)'|"
    r"got multiple values .*|missing .*|takes .*)"
)
_LOOP = r"^'\w+(Frame|Nest|Loop)' object is not iterable|object cannot be interpreted as an integer"
_BY_PYTHON: tuple[_Row, ...] = (
    (RecursionError, "", _endless_recursion),
    (NameError, "", undefined),
    (AttributeError, "", not_in_language),
    (AttributeError, "", unknown_attribute),
    (TypeError, r"has no len\(\)", length_of_tensor),
    (TypeError, _ARGUMENTS, _wrong_arguments),
    (TypeError, "", _operator_on_tile),
    (TypeError, _OPERATOR, _lacking_operator),
    (TypeError, _OPERATOR.replace(".+?)=?", r"\S+)"), _unlike_operands),
    (TypeError, r"^(\w+) indices must be integers or slices, not (\w+)", _python_container),
    (TypeError, "", _python_function),
    (TypeError, _LOOP, loop_in_python),
    (TypeError, "does not support item assignment", store_in_function),
)
_BY_TVM: tuple[_Row, ...] = (
    (RecursionError, "", _endless_recursion),
    (Exception, "Cannot use and / or / not operator to Expr", _truth_value),
    (TypeError, "", _operator_on_tile),
    (Exception, "Mismatched type on argument .*OpaquePyObject", _no_expression),
    (Exception, "Mismatched type on argument", _function_of_tile),
    (TypeError, "", _python_function),
    *((Exception, text, _known_reason(kind, said, help)) for text, kind, said, help in _REASONS),
    (Exception, "", _refused_by_tvm),
)
"""Kinds of errors, what is found in their texts, and what says it in our words, or None."""
