"""Where the source of a function is, which a kernel is made of.

Python finds the text of what stands in a file; notebooks keep theirs in `linecache`, and so does Python
3.13 what is typed. The text of `python -c` is among the arguments, that of `python < file` in the file.
Other text may have the same name, so that one counts as a function's only if it compiles to it.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import linecache
import os
import stat
import sys
import textwrap
import tokenize
import types
from collections.abc import Iterator

from tvmtile.errors import SourceLocation, SyntaxNotSupported

_TYPED = ("<string>", "<stdin>")
"""The names that Python gives to text without a file."""


def parse_definition(code: types.CodeType) -> ast.FunctionDef:
    """The syntax tree of a function, with the line numbers of its file.

    Raises
    ------
    SyntaxNotSupported
        If its source can't be found, or it is not written with `def`.
    """
    keep_source(code)
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError) as error:
        raise _without_source(code) from error
    ast.increment_lineno(tree, first - 1)
    definition = tree.body[0]
    if code.co_name == "<lambda>" or isinstance(definition, ast.AsyncFunctionDef):
        raise SyntaxNotSupported(
            "a kernel is written with `def`",
            location=SourceLocation(code.co_filename, first),
        )
    # Python 3.13 gives the text of `python -c` for what `exec` makes of a string in it.
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        raise _without_source(code)
    return definition


def parameter_location(code: types.CodeType, name: str) -> SourceLocation:
    """The line of a parameter; that of the function where it can't be found."""
    try:
        definition = parse_definition(code)
    except SyntaxNotSupported:
        return SourceLocation(code.co_filename, code.co_firstlineno)
    lines = [
        node.lineno
        for node in ast.walk(definition.args)
        if isinstance(node, ast.arg) and node.arg == name
    ]
    return SourceLocation(code.co_filename, lines[0] if lines else definition.lineno)


def keep_source(code: types.CodeType) -> None:
    """Let `inspect` find what this process was given to run by `-c`, or from a file on its input.

    Nothing changes unless the code stands in that text.
    """
    name = code.co_filename
    if name not in _TYPED or name in linecache.cache:
        return
    for text in _of_arguments() if name == "<string>" else _of_input():
        if code in _functions(text, name):
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _of_arguments() -> Iterator[str]:
    """What stands behind `-c`, which may follow other letters: `python -ic text`."""
    for option, text in itertools.pairwise(sys.orig_argv):
        if option.startswith("-") and option.endswith("c"):
            yield text + "\n"


def _of_input() -> Iterator[str]:
    """What a file on standard input holds, wherever it is read; what came through a pipe is gone."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            yield os.pread(0, status.st_size, 0).decode()


def _functions(text: str, name: str) -> list[types.CodeType]:
    try:
        module = compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return []
    return list(_nested(module))


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _without_source(code: types.CodeType) -> SyntaxNotSupported:
    return SyntaxNotSupported(
        f"the source of {code.co_name} is not available",
        help="a kernel is compiled from its source text: put it in a file or a notebook, or use "
        "`python -c`; what is typed has its text from Python 3.13 on, and a string of a file by "
        "`exec(compile(text, path, 'exec'))`",
    )
