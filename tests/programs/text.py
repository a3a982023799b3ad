"""The text of a program of the catalogue for one case: a module that stands alone.

Parameters become their values, what is computed from constants is folded, `if` and `for` over constants
are unrolled, and the macros and constants that a program names come along.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Name", "stand_alone"]

_BUILTINS = {
    f.__name__: f
    for f in (abs, enumerate, float, getattr, int, len, max, min, round, str, sum, tuple)
}
_FOLDED = (
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Subscript,
    ast.JoinedStr,
    ast.Call,
    ast.Attribute,
)
_SIMPLE = (bool, int, float, str, tuple, list, dict, type(None))


class Name(str):
    """A value that is text: the name of a dynamic extent, an expression, a statement that is a call."""

    __slots__ = ()


def stand_alone(function: Callable[..., Any], given: Mapping[str, Any], head: str) -> str:
    """The module with `main`: `function`'s text where the names in `given` have these values.

    Parameters
    ----------
    function : callable
        A function that `@program` decorates.
    given : mapping
        The parameters of the case.
    head : str
        What stands before the macros and `main`.
    """
    definitions = _definitions(function.__module__)
    constants = {
        n: v for n, v in vars(sys.modules[function.__module__]).items() if _is_constant(n, v)
    }
    values = {name: _literal(value) for name, value in {**constants, **given}.items()}
    main = copy.deepcopy(definitions[function.__name__])
    inputs = _inputs(main)
    main.name, main.decorator_list = "main", [ast.parse("T.prim_func", mode="eval").body]
    if ast.get_docstring(main) is not None:
        del main.body[0]
    for arg in main.args.args:
        arg.annotation = _tensor(arg.annotation)
    inputs = inputs and _Folder(values).visit(inputs)
    main = _Folder(values).whole(main)
    _dtypes_quoted(main)
    named = _named(definitions, main, *([inputs] if inputs else []))
    macros = [copy.deepcopy(definitions[n]) for n in named]
    parts = [
        head,
        f"INPUTS = {_unparsed(inputs)}" if inputs is not None else "",
        *(ast.unparse(_Folder(values).visit(macro)) for macro in macros),
        ast.unparse(main),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


@functools.cache
def _definitions(module: str) -> dict[str, ast.FunctionDef]:
    """The functions of a module of programs, and those that it has from another one."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests.programs."):
            others = _definitions(str(node.module))
            found.update({a.name: others[a.name] for a in node.names if a.name in others})
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = node
    return found


def _is_constant(name: str, value: Any) -> bool:
    return not name.startswith("__") and isinstance(value, _SIMPLE)


def _tensor(node: ast.expr | None) -> ast.expr | None:
    """`dtype[M, N]` as `T.Tensor((M, N), dtype)`."""
    if not isinstance(node, ast.Subscript):
        return node
    shape = node.slice if isinstance(node.slice, ast.Tuple) else ast.Tuple([node.slice], ast.Load())
    made = ast.parse("T.Tensor(shape, dtype)", mode="eval").body
    made.args = [shape, node.value]
    return made


def _dtypes_quoted(main: ast.FunctionDef) -> None:
    """The name of a dtype that is no parameter stands for itself."""
    for arg in main.args.args:
        match arg.annotation:
            case ast.Call(args=[_, ast.Name(id=dtype)]) as tensor:
                tensor.args[1] = ast.Constant(dtype)


def _inputs(main: ast.FunctionDef) -> ast.expr | None:
    """The value of `inputs=` in the decorator: functions, which are text as well, or a word."""
    calls = [node for node in main.decorator_list if isinstance(node, ast.Call)]
    keywords = [keyword for call in calls for keyword in call.keywords]
    given = [keyword.value for keyword in keywords if keyword.arg == "inputs"]
    assert all(isinstance(node, ast.Dict | ast.Constant) for node in given), main.name
    return copy.deepcopy(given[0]) if given else None


def _unparsed(inputs: ast.expr) -> str:
    return f'"{inputs.value}"' if isinstance(inputs, ast.Constant) else ast.unparse(inputs)


def _named(definitions: dict[str, ast.FunctionDef], *nodes: ast.AST) -> list[str]:
    """The functions that nodes name, and those that these name, in the order of the file."""
    found: set[str] = set()
    left = list(nodes)
    while left:
        names = {n.id for n in ast.walk(left.pop()) if isinstance(n, ast.Name)}
        new = names & definitions.keys() - found
        found |= new
        left += [definitions[name] for name in new]
    return [name for name in definitions if name in found]


def _literal(value: Any) -> ast.expr:
    match value:
        case Name():
            return ast.parse(value, mode="eval").body
        case tuple():
            return ast.Tuple([*map(_literal, value)], ast.Load())
        case list():
            return ast.List([*map(_literal, value)], ast.Load())
        case dict():
            return ast.Dict([*map(_literal, value)], [*map(_literal, value.values())])
    return ast.Constant(value)


class _Folder(ast.NodeTransformer):
    """Puts values in the place of names, and results in the place of what they decide."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = dict(values)

    def whole(self, main: ast.FunctionDef) -> ast.FunctionDef:
        """Fold a program; names that are given constants before its kernel are constants."""
        body = []
        for statement in main.body:
            if isinstance(statement, ast.Assign) and self._binds(statement):
                continue
            body.append(statement)
        main.body = body
        return self.visit(main)

    def _binds(self, statement: ast.Assign) -> bool:
        value = self.visit(copy.deepcopy(statement.value))
        if any(isinstance(n, ast.Call | ast.Attribute) for n in ast.walk(value)):
            return False
        self._bind(statement.targets[0], value)
        return True

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple):
            assert isinstance(value, ast.Tuple | ast.List)
            for name, element in zip(target.elts, value.elts, strict=True):
                self._bind(name, element)
        else:
            assert isinstance(target, ast.Name)
            self._values[target.id] = value

    def generic_visit(self, node: ast.AST) -> Any:
        super().generic_visit(node)
        if isinstance(getattr(node, "body", None), list) and not node.body:  # type: ignore[attr-defined]
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        for elements in (getattr(node, "elts", None), getattr(node, "args", None)):
            if isinstance(elements, list):
                elements[:] = [e for element in elements for e in _unpacked(element)]
        return _folded(node) if isinstance(node, _FOLDED) else node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self._within(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self._within(node)

    def _within(self, node: ast.Lambda | ast.FunctionDef) -> Any:
        """A function's own parameters are no values."""
        outer, own = self._values, {arg.arg for arg in node.args.args}
        self._values = {name: value for name, value in outer.items() if name not in own}
        folded = self.generic_visit(node)
        self._values = outer
        return folded

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._values:
            return node
        assert isinstance(node.ctx, ast.Load), f"{node.id} is a parameter, and is assigned to"
        return copy.deepcopy(self._values[node.id])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        decides, left = isinstance(node.op, ast.Or), []
        for value in map(self.visit, node.values):
            if not isinstance(value, ast.Constant):
                left.append(value)
            elif bool(value.value) == decides:
                left.append(value)
                break
        if not left:
            return ast.Constant(not decides)
        return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))

    def visit_If(self, node: ast.If) -> Any:
        node.test = self.visit(node.test)
        if not isinstance(node.test, ast.Constant):
            return self.generic_visit(node)
        chosen = node.body if node.test.value else node.orelse
        return self._statements(chosen)

    def visit_For(self, node: ast.For) -> Any:
        node.iter = self.visit(node.iter)
        if not isinstance(node.iter, ast.Tuple | ast.List):
            return self.generic_visit(node)
        outer, statements = dict(self._values), []
        for element in node.iter.elts:
            self._bind(node.target, element)
            statements += self._statements(copy.deepcopy(node.body))
        self._values = outer
        return statements

    def _statements(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        results = [self.visit(node) for node in nodes]
        return [s for r in results for s in (r if isinstance(r, list) else [r])]


def _unpacked(node: ast.expr) -> list[ast.expr]:
    """The elements of a tuple behind a star."""
    if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List):
        return node.value.elts
    return [node]


def _folded(node: ast.expr) -> ast.expr:
    """The value of an expression of constants, in its place."""
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name))]):
            return ast.Attribute(owner, name, ast.Load())
        case ast.Compare(left, [ast.Is() | ast.IsNot() as test], [ast.Constant(value=None)]):
            if isinstance(left, ast.Name):
                return node
            is_none = isinstance(left, ast.Constant) and left.value is None
            return ast.Constant(is_none == isinstance(test, ast.Is))
        case ast.Subscript(value=ast.Tuple(elts=elements), slice=ast.Constant(value=int(index))):
            return elements[index]
        case ast.Subscript(value=ast.Tuple() | ast.List() | ast.Dict() | ast.Constant()):
            pass
        case ast.Subscript():
            return node
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    if not names <= {"math", *_BUILTINS}:
        return node
    if isinstance(node, ast.Attribute) and not names:  # a method, which is called next
        return node
    text = ast.fix_missing_locations(ast.Expression(copy.deepcopy(node)))
    value = eval(compile(text, "", "eval"), {"__builtins__": _BUILTINS, "math": math})
    return _literal(value) if isinstance(value, _SIMPLE) else node
