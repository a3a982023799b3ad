"""Statements of a kernel in Python code that is not traced: plain functions, lambdas, comprehensions.

`translate` asks these rules about what Python raises there.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import SourceLocation, SyntaxNotSupported, TileError
from tvmtile.frontend.liveness import exposed, stored_names
from tvmtile.frontend.source import parse_definition
from tvmtile.frontend.syntax import TRACER_NAME
from tvmtile.frontend.variables import Reference, is_scalar_variable

if TYPE_CHECKING:
    from tvmtile.frontend.translate import RaisedError


def _function_of(failure: RaisedError) -> str | None:
    """The plain function that a line stands in; None in code that is traced."""
    code = failure.frame.f_code
    return None if TRACER_NAME in code.co_freevars else code.co_name


def _refused(what: str, function: str, failure: RaisedError) -> TileError:
    if function == "<lambda>":
        where, remedy = "a lambda", "write it as a function under @T.macro"
    else:
        where, remedy = f"{function}, a plain Python function", f"put @T.macro over {function}"
    return SyntaxNotSupported(
        f"{what} stands in {where}, whose statements are not traced",
        help=f"{remedy}: its statements are then those of the kernel that calls it",
        location=failure.location,
    )


def loop_in_python(failure: RaisedError) -> TileError | None:
    """`for i in T.Parallel(n)` in a plain function, or any loop of the kernel in a comprehension."""
    loops_over_frame = re.match(
        r"'\w+(Frame|Nest|Loop)' object is not iterable", str(failure.error)
    )
    loops_over_value = "object cannot be interpreted as an integer" in str(failure.error)
    if not isinstance(failure.error, TypeError) or not (loops_over_frame or loops_over_value):
        return None
    function = _function_of(failure)
    for node in failure.nodes():
        if isinstance(node, ast.For) and function is not None:
            return _refused(f"the loop over {ast.unparse(node.iter)}", function, failure)
        if isinstance(node, ast.comprehension):
            return SyntaxNotSupported(
                f"a comprehension runs while the kernel is traced, and {ast.unparse(node.iter)} is a "
                "loop of the running kernel",
                help="write a `for` statement in the kernel, or loop over a number that is known: "
                "`range(4)`",
                location=failure.location,
            )
    return None


def store_in_function(failure: RaisedError) -> TileError | None:
    """`tile[i] = x` in a plain function."""
    function = _function_of(failure)
    if not isinstance(failure.error, TypeError) or function is None:
        return None
    if "does not support item assignment" not in str(failure.error):
        return None
    for node in failure.nodes():
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Subscript) and is_buffer_var(failure.value(target.value)):
                return _refused(f"the assignment to {ast.unparse(target)}", function, failure)
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
            return _refused(f"`{word} {ast.unparse(node.test)}`", function, failure)
        if isinstance(node, ast.BoolOp) or (isinstance(node, ast.Compare) and len(node.ops) > 1):
            return _refused(f"`{ast.unparse(node)}`", function, failure)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _refused(f"`{ast.unparse(node)}`", function, failure)
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
        if not (is_scalar_variable(value) or isinstance(value, Reference)):
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
