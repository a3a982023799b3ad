"""Rewrite a kernel's source so that running it records a program.

Statements whose meaning depends on run-time values become calls of the tracer, which is reachable
in the rewritten code under the name `__tile__`. What does not need to change is left alone. (Reading
`A[k]` is `__tile__.elements(A)[k]`, which is left out here.)

```
for k in T.serial(4):              for __tile_0 in __tile__.loop(T.serial(4)):
    x = A[k] * 2                       k = __tile__.bind_item("k", __tile_0)
    if x > 0 and flag:        ->       x = __tile__.assign("x", A[k] * 2, locals())
        C[k] += x                      test = __tile__.logical_and(x > 0, lambda: flag)
                                       __tile_1 = __tile__.branch(test)
                                       if __tile_1.has_then:
                                           with __tile_1.then():
                                               __tile__.augment_item("add", C, __tile__.index[k], x)
                                       __tile__.end(__tile_1)
```

A name that a run-time loop or branch assigns, and that has a value before it and is read after it or
in the next iteration, is a variable from there on: `x = __tile__.carry(__tile_0, "x", locals())` stands
before the construct.

The code keeps the file name and the line numbers of its source.
"""

from __future__ import annotations

import ast
import types
from collections import Counter
from collections.abc import Callable, Set
from functools import lru_cache

from tvmtile.errors import SourceLocation, SyntaxNotSupported
from tvmtile.frontend.syntax import (
    OPERATORS,
    TRACER_NAME,
    call_of_tracer,
    exposed,
    last_name,
    load,
    locals_,
    locate,
    loop_targets,
    names_in,
    parse_definition,
    plain_arguments,
    rebound,
    store,
    stored_names,
    target_names,
    thunk,
    traced_range,
    where_dynamic,
    written,
)

__all__ = ["TRACER_NAME", "traced"]

# Functions under these decorators are rewritten by the decorator itself when it runs.
_OWN_DECORATORS = {"macro", "prim_func", "jit", "inline"}


def traced(func: Callable[..., object], tracer: object) -> Callable[..., object]:
    """Return `func` rewritten to report to `tracer`.

    The rewritten statements call the tracer. The function has the signature, the globals and the very
    closure cells of `func`.

    Raises
    ------
    SyntaxNotSupported
        If the source can't be found, or uses statements that have no meaning in a kernel.
    """
    code = _rewritten_code(func.__code__, func.__code__.co_filename)
    cells = dict(zip(func.__code__.co_freevars, func.__closure__ or (), strict=True))
    cells[TRACER_NAME] = types.CellType(tracer)
    closure = tuple(cells[name] for name in code.co_freevars)
    result = types.FunctionType(code, func.__globals__, func.__name__, func.__defaults__, closure)
    result.__kwdefaults__ = func.__kwdefaults__
    return types.MethodType(result, func.__self__) if isinstance(func, types.MethodType) else result


@lru_cache(maxsize=512)
def _rewritten_code(code: types.CodeType, filename: str) -> types.CodeType:
    """Equal codes may stand in different files."""
    definition = _Rewriter(filename).rewrite(parse_definition(code))
    name = definition.name
    # The name of a function of a module is that of the module in its own body, too.
    scope = [] if name in code.co_freevars else [ast.Global([name])]
    factory = ast.FunctionDef(
        name="__tile_factory__",
        args=plain_arguments([*code.co_freevars, TRACER_NAME]),
        body=[*scope, definition],
        decorator_list=[],
    )
    if hasattr(factory, "type_params"):  # Python 3.12 and later insist on the field
        factory.type_params = []
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(factory, definition)], []))
    factory_code = _inner_code(compile(module, filename, "exec"), "__tile_factory__")
    return _inner_code(factory_code, name)


def _inner_code(code: types.CodeType, name: str) -> types.CodeType:
    return next(
        const
        for const in code.co_consts
        if isinstance(const, types.CodeType) and const.co_name == name
    )


_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.In: "in",
    ast.NotIn: "not_in",
}


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.expr:
    """`a == b` becomes `__tile__.compare("eq", a, b)`: Python's answers about the values themselves."""
    if type(operator) in _COMPARISONS:
        return call_of_tracer("compare", ast.Constant(_COMPARISONS[type(operator)]), left, right)
    has_int = any(isinstance(e, ast.Constant) and isinstance(e.value, int) for e in (left, right))
    if isinstance(operator, ast.Is | ast.IsNot) and has_int:
        same = call_of_tracer("identical", left, right)
        return same if isinstance(operator, ast.Is) else ast.UnaryOp(ast.Not(), same)
    return ast.Compare(left, [operator], [right])


_BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)


def _names_given(call: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """A function that is called by its name, and the arguments that are names; None without any."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    keywords = [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg]
    arguments: list[tuple[int | str, ast.expr]] = [*enumerate(call.args), *keywords]
    given = [(place, value) for place, value in arguments if isinstance(value, ast.Name)]
    if not given or any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    places = ast.Dict([ast.Constant(p) for p, _ in given], [load(v.id) for _, v in given])
    return load(call.func.id), places


class _Rewriter(ast.NodeTransformer):
    """Replaces statements by tracer calls; each method shows its result in its docstring."""

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self._temporaries = 0
        self._inside_helper = False
        self._stores: Counter[str] = Counter()
        self._live: set[str] = set()  # names that may be read after the statement being visited

    def rewrite(self, definition: ast.FunctionDef) -> ast.FunctionDef:
        definition.decorator_list = []
        definition.returns = None
        for argument in ast.walk(definition.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        # Defaults and the closure come from the original function object.
        definition.args.defaults = [ast.Constant(None) for _ in definition.args.defaults]
        definition.args.kw_defaults = [
            None if default is None else ast.Constant(None)
            for default in definition.args.kw_defaults
        ]
        if hasattr(definition, "type_params"):
            definition.type_params = []
        self._stores = Counter(
            name.id
            for name in ast.walk(definition)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        )
        definition.body = self._block(definition.body)
        return definition

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        live_after = self._live_after_each(body)
        for statement, self._live in zip(body, live_after, strict=True):
            replaced = self.visit(statement)
            result += [
                locate(ast.copy_location(new, statement), statement.lineno)
                for new in (replaced if isinstance(replaced, list) else [replaced])
            ]
        return result

    def _live_after_each(self, body: list[ast.stmt]) -> list[set[str]]:
        """The names that may be read after each statement of a block: in it, or after the block."""
        live = [self._live]
        for statement in reversed(body[1:]):
            live.append(exposed([statement]) | (live[-1] - written([statement])))
        return live[::-1]

    def _temporary(self) -> str:
        self._temporaries += 1
        return f"__tile_{self._temporaries}"

    def _unsupported(self, node: ast.stmt, what: str, help_text: str) -> SyntaxNotSupported:
        location = SourceLocation(self._filename, node.lineno)
        return SyntaxNotSupported(what, help=help_text, location=location)

    # Definitions inside a kernel -------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        """A helper is an ordinary function whose statements are traced; it returns as Python does."""
        if any(last_name(d) in _OWN_DECORATORS for d in node.decorator_list):
            return node
        outer, self._inside_helper = self._inside_helper, True
        self._live = set()
        node.body = [ast.With([ast.withitem(call_of_tracer("call"))], self._block(node.body))]
        self._inside_helper = outer
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        return node

    # Control flow ----------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        name = self._temporary()
        live = self._live
        assigned = stored_names([*node.body, *node.orelse])
        kept = (assigned & live) - loop_targets([node])
        statements: list[ast.stmt] = [
            ast.Assign([store(name)], call_of_tracer("branch", self.visit(node.test))),
            *self._carries(name, kept),
        ]
        for flag, enter, body in (
            ("has_then", "then", node.body),
            ("has_else", "otherwise", node.orelse),
        ):
            if not body:
                continue
            self._live = live
            context = ast.Call(ast.Attribute(load(name), enter, ast.Load()), [], [])
            guarded = ast.With([ast.withitem(context)], self._block(body))
            statements.append(ast.If(ast.Attribute(load(name), flag, ast.Load()), [guarded], []))
        statements.append(ast.Expr(call_of_tracer("end", load(name))))
        return [*statements, *self._escapes(name, assigned)]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        value = self._temporary()
        iterable = self.visit(traced_range(node.iter))
        target = self._bind_target("bind_item", node.target, value)
        return self._loop(node, "loop", iterable, value, [node.target], target)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        condition = thunk(self.visit(node.test))
        return self._loop(node, "while_loop", condition, self._temporary(), [], [])

    def _loop(
        self,
        node: ast.For | ast.While,
        method: str,
        argument: ast.expr,
        value: str,
        targets: list[ast.AST],
        prologue: list[ast.stmt],
    ) -> list[ast.stmt]:
        if node.orelse:
            raise self._unsupported(
                node,
                "a loop with `else` has no meaning in a kernel",
                "move the statements of the else block after the loop",
            )
        name = self._temporary()
        test = {node.test} if isinstance(node, ast.While) else set()
        counters = stored_names(targets)
        assigned = counters | stored_names(node.body)
        next_reads = (exposed(node.body) | names_in(test)) - counters
        carried = next_reads & assigned
        names = ast.Tuple([ast.Constant(c) for c in sorted(carried)], ast.Load())
        kept = (assigned & (self._live | carried)) - loop_targets([node])
        self._live = self._live | next_reads
        return [
            ast.Assign([store(name)], call_of_tracer(method, argument, names)),
            *self._carries(name, kept),
            ast.For(store(value), load(name), [*prologue, *self._block(node.body)], []),
            *self._escapes(name, assigned, counters),
        ]

    def _carries(self, construct: str, names: set[str]) -> list[ast.stmt]:
        """Statements before a run-time construct: what it changes becomes a variable."""
        statements: list[ast.stmt] = []
        for name in sorted(names):
            is_bound = ast.Compare(ast.Constant(name), [ast.In()], [locals_()])
            statements.append(ast.If(is_bound, [rebound("carry", construct, name)], []))
        return where_dynamic(construct, statements)

    def _escapes(
        self, construct: str, assigned: set[str], counters: Set[str] = frozenset()
    ) -> list[ast.stmt]:
        """Statements after a run-time construct: what was bound inside it is out of reach."""
        statements = [
            ast.Assign([store(name)], call_of_tracer("leave", ast.Constant(name)))
            if name in counters
            else rebound("escape", construct, name)
            for name in sorted(assigned)
        ]
        return where_dynamic(construct, statements)

    def visit_Break(self, node: ast.Break) -> ast.stmt:
        return ast.If(call_of_tracer("break_loop"), [node], [])

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        return ast.If(call_of_tracer("continue_loop"), [node], [])

    def visit_Match(self, node: ast.Match) -> ast.stmt:
        node.subject = call_of_tracer("matched", self.visit(node.subject))
        self._live = self._live | names_in({node})
        for case in node.cases:
            case.guard = None if case.guard is None else self.visit(case.guard)
            case.body = self._block(case.body)
        return node

    def visit_Try(self, node: ast.Try) -> ast.stmt:
        """Names that a handler reads may be written by any statement before it."""
        live = self._live | names_in({node})
        for holder, field in (
            (node, "body"),
            *((handler, "body") for handler in node.handlers),
            (node, "orelse"),
            (node, "finalbody"),
        ):
            self._live, body = live, getattr(holder, field)
            setattr(holder, field, self._block(body) if body else [])
        return node

    visit_TryStar = visit_Try  # noqa: N815 - named as the syntax is

    def visit_With(self, node: ast.With) -> ast.stmt:
        body = self._block(node.body)
        items = []
        prologue: list[ast.stmt] = []
        for item in node.items:
            context = call_of_tracer("context", self.visit(item.context_expr))
            if item.optional_vars is None:
                items.append(ast.withitem(context))
                continue
            value = self._temporary()
            items.append(ast.withitem(context, store(value)))
            prologue += self._bind_target("bind_target", item.optional_vars, value)
        return ast.With(items, [*prologue, *body])

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        value = ast.Constant(None) if node.value is None else self.visit(node.value)
        if self._inside_helper:
            return ast.Return(value)
        return ast.Return(call_of_tracer("returns", value))

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """`assert c, m` becomes `assert __tile__.check(c, lambda: m), m`."""
        if node.msg is not None:
            node.msg = self.visit(node.msg)
        message = ast.Constant(None) if node.msg is None else node.msg
        node.test = call_of_tracer("check", self.visit(node.test), thunk(message))
        return node

    # Names and elements ----------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        if isinstance(node.value, ast.Constant):
            return node
        given = _names_given(node.value)
        evaluated = ast.Expr(call_of_tracer("evaluate", self.visit(node.value)))
        return [ast.Expr(call_of_tracer("gives", *given)), evaluated] if given else evaluated

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        value = self.visit(node.value)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            return [self._assign_name(node.targets[0].id, value)]
        name = self._temporary()
        several = len(node.targets) > 1 or isinstance(node.targets[0], ast.Tuple | ast.List)
        rhs = call_of_tracer("snapshot", value) if several else value
        statements: list[ast.stmt] = [ast.Assign([store(name)], rhs)]
        for target in node.targets:
            statements += self._assign_target(target, load(name))
        return statements

    def _assign_name(self, name: str, value: ast.expr) -> ast.stmt:
        return ast.Assign(
            [store(name)], call_of_tracer("assign", ast.Constant(name), value, locals_())
        )

    def _assign_target(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        if isinstance(target, ast.Name):
            return [self._assign_name(target.id, value)]
        if isinstance(target, ast.Subscript):
            call = call_of_tracer(
                "store", self.visit(target.value), self._index(target.slice), value
            )
            return [ast.Expr(call)]
        if isinstance(target, ast.Tuple | ast.List) and not any(
            isinstance(element, ast.Starred) for element in target.elts
        ):
            names = [self._temporary() for _ in target.elts]
            unpack = ast.Assign([ast.Tuple([store(n) for n in names], ast.Store())], value)
            statements: list[ast.stmt] = [unpack]
            for element, name in zip(target.elts, names, strict=True):
                statements += self._assign_target(element, load(name))
            return statements
        return [ast.Assign([target], value)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        """`x: T.int32 = e` becomes `x = __tile__.declare("x", T.int32, lambda: e, locals())`."""
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.Constant(None) if node.value is None else thunk(self.visit(node.value))
        name = ast.Constant(node.target.id)
        reassigned = ast.Constant(self._stores.get(node.target.id, 0) > 1)
        call = call_of_tracer(
            "declare", name, self.visit(node.annotation), value, locals_(), reassigned
        )
        return ast.Assign([store(node.target.id)], call)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        operator = ast.Constant(OPERATORS[type(node.op)][0])
        value = self.visit(node.value)
        target = node.target
        if isinstance(target, ast.Name):
            name = ast.Constant(target.id)
            call = call_of_tracer("augment", name, operator, load(target.id), value, locals_())
            return ast.Assign([store(target.id)], call)
        if isinstance(target, ast.Subscript):
            base, index = self.visit(target.value), self._index(target.slice)
            return ast.Expr(call_of_tracer("augment_item", operator, base, index, value))
        node.value = value
        return node

    def _index(self, index: ast.expr) -> ast.expr:
        """`i, a:b` becomes `__tile__.index[i, a:b]`, an expression even where it holds slices."""
        holder = ast.Attribute(load(TRACER_NAME), "index", ast.Load())
        return ast.Subscript(holder, self.visit(index), ast.Load())

    def _bind_target(self, method: str, target: ast.expr, value: str) -> list[ast.stmt]:
        names = target_names(target)
        bound = load(value) if names is None else call_of_tracer(method, names, load(value))
        return [ast.Assign([target], bound)]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """`A[i, j]`, where it is read, becomes `__tile__.elements(A)[i, j]`."""
        node.value, node.slice = self.visit(node.value), self.visit(node.slice)
        if isinstance(node.ctx, ast.Load):
            node.value = ast.copy_location(call_of_tracer("elements", node.value), node.value)
        return node

    # Expressions with control flow of their own ----------------------------------------------

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        method = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        *front, result = [self.visit(value) for value in node.values]
        for value in reversed(front):
            result = call_of_tracer(method, value, thunk(result))
        return ast.copy_location(result, node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """`a & b` becomes `__tile__.binary("and_", a, b)`, which makes constants wide enough."""
        left, right = self.visit(node.left), self.visit(node.right)
        if not isinstance(node.op, _BITWISE):
            node.left, node.right = left, right
            return node
        operator = ast.Constant(OPERATORS[type(node.op)][0])
        return ast.copy_location(call_of_tracer("binary", operator, left, right), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return ast.copy_location(call_of_tracer("logical_not", operand), node)
        if isinstance(node.op, ast.UAdd):
            return ast.copy_location(call_of_tracer("positive", operand), node)
        node.operand = operand
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left, *rest = [self.visit(value) for value in (node.left, *node.comparators)]
        parts: list[ast.expr] = []
        for operator, right in zip(node.ops, rest, strict=True):
            parts.append(ast.copy_location(_comparison(left, operator, right), node))
            left = right
        result = parts.pop()
        while parts:
            result = call_of_tracer("logical_and", parts.pop(), thunk(result))
        return ast.copy_location(result, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """`any(...)` becomes `__tile__.quantified(any, ...)`, and `all(...)` likewise."""
        self.generic_visit(node)
        match node.func, node.args:
            case ast.Name("any" | "all"), [argument] if not isinstance(argument, ast.Starred):
                return ast.copy_location(call_of_tracer("quantified", node.func, argument), node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test, then, otherwise = (self.visit(e) for e in (node.test, node.body, node.orelse))
        call = call_of_tracer("if_else", test, thunk(then), thunk(otherwise))
        return ast.copy_location(call, node)
