"""Make a failing program smaller: delete and simplify parts of its text while it fails alike."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

from tests.fuzz.program import Program
from tests.fuzz.values import Invalid

__all__ = ["shrink"]


def shrink(program: Program, fails: Callable[[Program], bool], tries: int = 400) -> Program:
    """A program in which no single change that is tried leaves the failure.

    Parameters
    ----------
    program : Program
        It fails.
    fails : callable
        Tells whether another one fails in the same way.
    tries : int
        How many programs may be run.

    Returns
    -------
    Program
        It has a meaning, and fails.
    """
    found = True
    while found and tries > 0:
        found = False
        for candidate in _candidates(program):
            if not _has_meaning(candidate):
                continue
            tries -= 1
            if fails(candidate):
                program, found = candidate, True
                break
            if tries <= 0:
                break
    return program


def _has_meaning(program: Program) -> bool:
    try:
        for call in (0, 1):
            program.meaning(call)
    except (Invalid, AssertionError, LookupError, TypeError, ValueError, StopIteration):
        return False
    return True


def _candidates(program: Program) -> Iterator[Program]:
    """Smaller programs: those without many statements first."""
    tree = ast.parse(program.source)
    for change in (_without_statements, _without_branches, _without_operands, _without_parameters):
        for smaller in change(tree):
            text = ast.unparse(ast.fix_missing_locations(smaller))
            if text != program.source:
                yield Program(text + "\n", program.seed)


def _bodies(tree: ast.AST) -> list[list[ast.stmt]]:
    """All statement lists of functions, in an order that a copy of the tree has too."""
    found = []
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list) and not isinstance(node, ast.Module):
                found.append(body)
    return found


def _without_statements(tree: ast.Module) -> Iterator[ast.Module]:
    """Halves, quarters, ... and single statements of a list left out; the last ones first."""
    for number, body in enumerate(_bodies(tree)):
        size = len(body)
        while size:
            for start in range(len(body) - size, -1, -size):
                if size == len(body) and size > 1:
                    continue
                smaller = copy.deepcopy(tree)
                kept = _bodies(smaller)[number]
                del kept[start : start + size]
                if not kept:
                    kept.append(ast.Pass())
                yield smaller
            size //= 2


def _without_branches(tree: ast.Module) -> Iterator[ast.Module]:
    """A loop, a branch or `T.Persistent` replaced by what it holds."""
    for number, body in enumerate(_bodies(tree)):
        for position, statement in enumerate(body):
            if isinstance(statement, ast.If):
                smaller = copy.deepcopy(tree)
                branch = _bodies(smaller)[number][position]
                assert isinstance(branch, ast.If)
                _bodies(smaller)[number][position : position + 1] = branch.body
                yield smaller


def _without_operands(tree: ast.Module) -> Iterator[ast.Module]:
    """An expression replaced by one of its operands."""
    places = [node for node in ast.walk(tree) if list(_operands(node))]
    for number, place in enumerate(places):
        for choice in range(len(list(_operands(place)))):
            smaller = copy.deepcopy(tree)
            nodes = [node for node in ast.walk(smaller) if list(_operands(node))]
            yield _Replacement(nodes[number], list(_operands(nodes[number]))[choice]).visit(smaller)


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(left=left, right=right):
            yield from (left, right)
        case ast.BoolOp(values=values):
            yield from values
        case ast.Call(
            func=ast.Attribute(attr="if_then_else" | "Select"), args=[_, then, otherwise]
        ):
            yield from (then, otherwise)
        case ast.Call(func=ast.Attribute(attr=name), args=args) if name in _FUNCTIONS:
            yield from args


_FUNCTIONS = ("max", "min", "abs", "exp", "sqrt", "tanh", "sigmoid", "floor", "ceil", "trunc")
_FUNCTIONS += ("round", "clamp", "truncdiv", "truncmod")


class _Replacement(ast.NodeTransformer):
    def __init__(self, place: ast.AST, operand: ast.expr) -> None:
        self._place, self._operand = place, operand

    def visit(self, node: ast.AST) -> ast.AST:
        return self._operand if node is self._place else super().visit(node)


def _without_parameters(tree: ast.Module) -> Iterator[ast.Module]:
    """A parameter that nothing uses left out."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for position, function in enumerate(tree.body):
        if isinstance(function, ast.FunctionDef) and function.name == "main":
            kept = [arg for arg in function.args.args if arg.arg in names]
            if len(kept) < len(function.args.args) and kept:
                smaller = copy.deepcopy(tree)
                smaller.body[position].args.args = copy.deepcopy(kept)  # type: ignore[attr-defined]
                yield smaller
