"""Mistakes in kernels: names that nothing has, and statements in Python code that is not traced.

`translate` asks these rules about what Python raises there: for a name or an attribute that a kernel
uses, in a plain function, a lambda or a comprehension.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import re
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvm import ir

from tvmtile._tvm import is_buffer_var
from tvmtile.compat.absent import first_match, instead_of
from tvmtile.errors import (
    InvalidOperand,
    SourceLocation,
    SyntaxNotSupported,
    TileError,
    UndefinedName,
)
from tvmtile.frontend.expressions import is_variable
from tvmtile.frontend.syntax import TRACER_NAME, exposed, parse_definition, stored_names
from tvmtile.ir.operands import describe

if TYPE_CHECKING:
    from tvmtile.frontend.translate import RaisedError


_LANGUAGE = "tvmtile.language"


def undefined(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """A name that nothing binds."""
    error = failure.error
    assert isinstance(error, NameError)
    quoted = re.search(r"'(\w+)'", str(error))
    name = error.name or (quoted[1] if quoted else str(error))
    names = {**vars(builtins), **failure.frame.f_globals, **failure.frame.f_locals}
    return UndefinedName(f"{name!r} is not defined", help=_near(name, names))


def _near(name: str, names: Mapping[str, object]) -> str:
    language = next(
        (key for key, value in names.items() if getattr(value, "__name__", None) == _LANGUAGE), None
    )
    if language is not None and name in dir(names[language]):
        return f"did you mean {language}.{name}?"
    near = difflib.get_close_matches(name, [key for key in names if not key.startswith("__")], n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "check the spelling; a kernel sees its own names and those around its definition"


def not_in_language(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`T.copi`: an attribute that the language, or another module of ours, does not have."""
    error = failure.error
    assert isinstance(error, AttributeError)
    if not isinstance(error.obj, types.ModuleType):
        return None
    module, name = error.obj.__name__, str(error.name)
    if module.partition(".")[0] != "tvmtile":
        return None
    near = difflib.get_close_matches(name, dir(error.obj), n=1)
    return UndefinedName(
        f"{name!r} is not a name of {module}",
        help=instead_of("T", name)
        or (f"did you mean {near[0]!r}?" if near else "see dir(T) for the names of the language"),
    )


def unknown_attribute(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`A.size(0)`, `A[i].to("float16")`: an attribute of torch's tensors, or of none."""
    error = failure.error
    assert isinstance(error, AttributeError)
    if not isinstance(error.obj, ir.Expr):
        return None
    value, name = error.obj, str(error.name)
    if is_buffer_var(value):
        what = describe(value)
        help = first_match(_OF_TENSORS, name) or "it has .shape and .dtype, and elements, A[i, j]"
    else:
        what = f"{value}, a value of the running kernel,"
        help = (
            first_match(_OF_VALUES, name)
            or "T has the functions of values: T.exp(x), T.cast(x, dtype)"
        )
    return InvalidOperand(f"{what} has no attribute {name!r}", help=help)


_CAST = "T.cast(x, dtype) converts a value"


_OF_TENSORS = {
    r"size|numel|dim|ndim|ndimension": "its extents are A.shape[0], A.shape[1], ...",
    r"stride": "declare strides by T.StridedTensor(shape, strides, dtype)",
    r"to|type|half|float|bfloat16|int|long|bool": "T.copy(A, B) converts to the dtype of B; "
    "T.cast(A[i], dtype) converts an element",
    r"reshape|view|flatten": "T.reshape(tile, shape) and T.view(tile, shape, dtype) are other names of "
    "the same memory",
    r"T|t|mT|transpose|permute": "T.gemm takes transpose_A=True and transpose_B=True; "
    "T.transpose(A, B) copies",
    r"sum|max|min|mean|amax|amin": "T.reduce_sum(tile, out, dim=1), T.reduce_max, ... reduce a tile",
    r"copy_|clone|contiguous": "T.copy(A, B) copies a tile",
    r"fill_|zero_": "T.fill(tile, value) and T.clear(tile) fill a tile",
    r"item": "an element is A[0]",
}


_OF_VALUES = {
    r"to|type|half|float|bfloat16|int|long|bool": _CAST,
    r"item": "it is known when the kernel runs, and used as it is",
    r"shape|size": "it is one element",
}


def length_of_tensor(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`len(A)`."""
    tensors = [tile for node in failure.nodes() if (tile := failure.tile(node)) is not None]
    if not tensors:
        return None
    return InvalidOperand(
        f"len() of {tensors[0]}",
        help="its extents are A.shape[0], A.shape[1], ...",
    )


def _function_of(failure: RaisedError) -> str | None:
    """The plain function that a line stands in; None in code that is traced."""
    code = failure.frame.f_code
    return None if TRACER_NAME in code.co_freevars else code.co_name


def _refused(what: str, function: str) -> TileError:
    if function == "<lambda>":
        where, remedy = "a lambda", "write it as a function under @T.macro"
    else:
        where, remedy = f"{function}, a plain Python function", f"put @T.macro over {function}"
    return SyntaxNotSupported(
        f"{what} stands in {where}, whose statements are not traced",
        help=f"{remedy}: its statements are then those of the kernel that calls it",
    )


def loop_in_python(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`for i in T.Parallel(n)` in a plain function, or any loop of the kernel in a comprehension."""
    function = _function_of(failure)
    for node in failure.nodes():
        if isinstance(node, ast.For) and function is not None:
            return _refused(f"the loop over {ast.unparse(node.iter)}", function)
        if isinstance(node, ast.comprehension):
            return SyntaxNotSupported(
                f"a comprehension runs while the kernel is traced, and {ast.unparse(node.iter)} is a "
                "loop of the running kernel",
                help="write a `for` statement in the kernel, or loop over a number that is known: "
                "`range(4)`",
            )
    return None


def store_in_function(failure: RaisedError, _: re.Match[str]) -> TileError | None:
    """`tile[i] = x` in a plain function."""
    function = _function_of(failure)
    if function is None:
        return None
    for node in failure.nodes():
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Subscript) and is_buffer_var(failure.value(target.value)):
                return _refused(f"the assignment to {ast.unparse(target)}", function)
    return None


_WORDS = {"If": "if", "While": "while", "Assert": "assert", "IfExp": "if"}


def condition_in_function(failure: RaisedError) -> TileError | None:
    """`if x > 0` in a plain function, of a value that only the running kernel has."""
    function = _function_of(failure)
    if function is None:
        return None
    for node in failure.nodes():
        if isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp):
            word = _WORDS[type(node).__name__]
            return _refused(f"`{word} {ast.unparse(node.test)}`", function)
        if isinstance(node, ast.BoolOp) or (isinstance(node, ast.Compare) and len(node.ops) > 1):
            return _refused(f"`{ast.unparse(node)}`", function)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _refused(f"`{ast.unparse(node)}`", function)
    return None


def refuse_lost_assignment(function: object, given: Mapping[int | str, object]) -> None:
    """Refuse `k = 3` in a plain function that is given a variable of the kernel as `k`.

    It gives Python's name another value. What nothing reads then was meant for the variable.

    Parameters
    ----------
    function : object
        What a statement of the kernel calls, whose result is not used.
    given : mapping
        Arguments, by position or by name.
    """
    if not isinstance(function, types.FunctionType) or TRACER_NAME in function.__code__.co_freevars:
        return
    code = function.__code__
    for place, value in given.items():
        if not is_variable(value):
            continue
        if isinstance(place, int) and place >= code.co_argcount:
            continue
        name = code.co_varnames[place] if isinstance(place, int) else place
        lost = None if name in code.co_cellvars else _lost_assignment(code, name)
        if lost is not None:
            raise SyntaxNotSupported(
                f"`{ast.unparse(lost)}` stands in {code.co_name}, a plain Python function, which gets "
                "the value of a variable: the variable stays as it is",
                help=f"put @T.macro over {code.co_name} and annotate the parameter, `{name}: T.Ref`; "
                "or return the value, and assign it in the kernel",
                location=SourceLocation(code.co_filename, lost.lineno),
            )


def _lost_assignment(code: types.CodeType, name: str) -> ast.stmt | None:
    try:
        definition = parse_definition(code)
    except SyntaxNotSupported:
        return None
    return _unread(definition.body, name, [])


def _unread(body: Sequence[ast.stmt], name: str, after: Sequence[ast.stmt]) -> ast.stmt | None:
    """The assignment to a name that no statement reads."""
    for place, statement in enumerate(body):
        rest = [*body[place + 1 :], *after]
        if isinstance(statement, ast.If):
            found = _unread(statement.body, name, rest) or _unread(statement.orelse, name, rest)
            if found is not None:
                return found
        elif (
            isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
            and name in stored_names([statement])
            and name not in exposed(rest)
        ):
            return statement
    return None
