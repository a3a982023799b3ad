"""The source of a kernel: where it is, pieces of trees that it becomes, which names it reads.

Python finds the text of what stands in a file; notebooks keep theirs in `linecache`, and so does Python
3.13 what is typed. The text of `python -c` is among the arguments, that of `python < file` in the file.
Other text may have the same name, so that one counts as a function's only if it compiles to it.

What is read counts wherever it may be read; what is written counts only where it is written on every
path, so that a name is never taken for dead while its value may be needed. A loop may do nothing.
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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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
    """The text behind `-c`, which may follow other letters: `python -ic text`."""
    for option, text in itertools.pairwise(sys.orig_argv):
        if option.startswith("-") and option.endswith("c"):
            yield text + "\n"


def _of_input() -> Iterator[str]:
    """The text of a file on standard input, wherever it is read; that of a pipe is gone."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            yield os.pread(0, status.st_size, 0).decode()


def _functions(text: str, name: str) -> list[types.CodeType]:
    try:
        module = compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return []
    return list(nested(module))


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """The codes of the functions in a code, and in those."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from nested(constant)


def _without_source(code: types.CodeType) -> SyntaxNotSupported:
    return SyntaxNotSupported(
        f"the source of {code.co_name} is not available",
        help="a kernel is compiled from its source text: put it in a file or a notebook, or use "
        "`python -c`; what is typed has its text from Python 3.13 on, and a string of a file by "
        "`exec(compile(text, path, 'exec'))`",
    )


TRACER_NAME = "__tile__"


OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("add", "+"),
    ast.Sub: ("sub", "-"),
    ast.Mult: ("mul", "*"),
    ast.Div: ("truediv", "/"),
    ast.FloorDiv: ("floordiv", "//"),
    ast.Mod: ("mod", "%"),
    ast.Pow: ("pow", "**"),
    ast.LShift: ("lshift", "<<"),
    ast.RShift: ("rshift", ">>"),
    ast.BitAnd: ("and_", "&"),
    ast.BitOr: ("or_", "|"),
    ast.BitXor: ("xor", "^"),
    ast.MatMult: ("matmul", "@"),
}
"""Python's operators of two operands: their functions in the module `operator`, and their signs."""


def plain_arguments(names: list[str]) -> ast.arguments:
    """Parameters of these names, without defaults."""
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[],
        defaults=[],
    )  # fmt: skip


def call_of_tracer(method: str, *args: ast.expr) -> ast.Call:
    """`__tile__.method(...)`."""
    function = ast.Attribute(ast.Name(TRACER_NAME, ast.Load()), method, ast.Load())
    return ast.Call(function, list(args), [])


def load(name: str) -> ast.Name:
    """A name that is read."""
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.Name:
    """A name that is assigned."""
    return ast.Name(name, ast.Store())


def locals_() -> ast.Call:
    """`locals()`."""
    return ast.Call(load("locals"), [], [])


def rebound(method: str, construct: str, name: str) -> ast.stmt:
    """`x = __tile__.escape(construct, "x", locals())`."""
    value = call_of_tracer(method, load(construct), ast.Constant(name), locals_())
    return ast.Assign([store(name)], value)


def where_dynamic(construct: str, statements: list[ast.stmt]) -> list[ast.stmt]:
    """Statements for a construct of the running kernel; one of the tracing needs none."""
    if not statements:
        return []
    return [ast.If(ast.Attribute(load(construct), "dynamic", ast.Load()), statements, [])]


def thunk(value: ast.expr) -> ast.Lambda:
    """`lambda: value`."""
    return ast.Lambda(plain_arguments([]), value)


def locate(node: Any, line: int) -> Any:
    """Place the nodes that have no location on one line.

    `ast.fix_missing_locations` lets them extend over all lines of their parent, and Python reports a
    method call at the last line of its name.
    """
    if "lineno" in node._attributes and getattr(node, "lineno", None) is None:
        node.lineno = node.end_lineno = line
        node.col_offset = node.end_col_offset = 0
    for child in ast.iter_child_nodes(node):
        locate(child, getattr(node, "lineno", line))
    return node


def last_name(node: ast.expr) -> str:
    """The last name of `a.b.name` or `a.b.name(...)`; nothing of what has none."""
    if isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "attr", getattr(node, "id", ""))


def traced_range(iterable: ast.expr) -> ast.expr:
    """A loop over `range(...)` is a loop of the program, unlike a comprehension over it."""
    if (
        isinstance(iterable, ast.Call)
        and isinstance(iterable.func, ast.Name)
        and iterable.func.id == "range"
    ):
        iterable.func = ast.copy_location(
            ast.Attribute(load(TRACER_NAME), "range", ast.Load()), iterable.func
        )
        ast.fix_missing_locations(iterable)
    return iterable


def target_names(target: ast.expr) -> ast.expr | None:
    """The names of a target as a constant of the same structure, or None for other targets."""
    if isinstance(target, ast.Name):
        return ast.Constant(target.id)
    if isinstance(target, ast.Tuple | ast.List):
        names = [target_names(element) for element in target.elts]
        if all(name is not None for name in names):
            return ast.Tuple([name for name in names if name is not None], ast.Load())
    return None


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that pieces of syntax mention."""
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


OWN_SCOPE = (
    ast.FunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def exposed(statements: Sequence[ast.stmt]) -> set[str]:
    """The names that some path reads before it has written them."""
    return _flow(statements)[0]


def written(statements: Sequence[ast.stmt]) -> set[str]:
    """The names that every path writes."""
    return _flow(statements)[1]


def stored_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that some path binds, in the scope of the nodes themselves."""
    names: set[str] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if isinstance(node, OWN_SCOPE):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        pending.extend(ast.iter_child_nodes(node))
    return names


def loop_targets(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that loops among the nodes count with."""
    loops = [n for node in nodes for n in ast.walk(node) if isinstance(n, ast.For)]
    return stored_names([loop.target for loop in loops])


def _flow(statements: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    read: set[str] = set()
    written: set[str] = set()
    for statement in statements:
        reads, writes = _flow_of(statement)
        read |= reads - written
        written |= writes
    return read, written


def _flow_of(stmt: ast.stmt) -> tuple[set[str], set[str]]:
    if isinstance(stmt, ast.If):
        then, otherwise = _flow(stmt.body), _flow(stmt.orelse)
        return _loaded([stmt.test]) | then[0] | otherwise[0], then[1] & otherwise[1]
    if isinstance(stmt, ast.For):
        inside = exposed(stmt.body) - stored_names([stmt.target])
        return _loaded([stmt.iter, stmt.target]) | inside, set()
    if isinstance(stmt, ast.While):
        return _loaded([stmt.test]) | exposed(stmt.body), set()
    if isinstance(stmt, ast.With):
        bound = stored_names(i.optional_vars for i in stmt.items if i.optional_vars is not None)
        reads, writes = _flow(stmt.body)
        return _loaded(item.context_expr for item in stmt.items) | (reads - bound), writes | bound
    if isinstance(stmt, ast.AugAssign):
        return _loaded([stmt]) | stored_names([stmt.target]), stored_names([stmt.target])
    if isinstance(stmt, ast.FunctionDef | ast.ClassDef):
        return _loaded([stmt]), {stmt.name}
    if isinstance(stmt, ast.Assign | ast.AnnAssign):
        return _loaded([stmt]), stored_names([stmt])
    return _loaded([stmt]), set()


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are read in nodes, in functions of theirs too."""
    return {
        name.id
        for node in nodes
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
    }
