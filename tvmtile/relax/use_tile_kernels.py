"""UseTileKernels: tuned tile kernels for operators of Relax."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

from tvmtile.errors import InvalidValue, TileError
from tvmtile.relax.attention import find_attention
from tvmtile.relax.found import Found, Left
from tvmtile.relax.graph import Graph, handle, is_same_shape, shape_of
from tvmtile.relax.products import find_product
from tvmtile.relax.rows import find_rows
from tvmtile.target import TargetLike, parse, require_lowering

_LOG = logging.getLogger("tvmtile.relax")
_FINDERS: tuple[Callable[[Graph, Any], Found | None], ...] = (
    find_attention,
    find_product,
    find_rows,
)
_NAMED = (
    "relax.matmul",
    "relax.nn.softmax",
    "relax.nn.layer_norm",
    "relax.nn.rms_norm",
    "relax.nn.attention",
    "relax.nn.attention_bias",
)
"""Operators of which the report says what became of them."""


@dataclass(frozen=True)
class Choice:
    """The choice for an operator: a kernel, or the reason for none."""

    function: str
    """Where it stands."""
    operator: str
    """The operator: with its epilogue where a kernel computes it, such as "matmul, bias, relu"."""
    kernel: str | None
    """The function that computes it; None where it was left as it was."""
    reason: str = ""
    """Why it was left."""

    def __str__(self) -> str:
        became = f"by {self.kernel}" if self.kernel else f"left as it was: {self.reason}"
        return f"{self.function}: {self.operator} {became}"


@tvm.transform.module_pass(opt_level=0, name="tvmtile.UseTileKernels")
class UseTileKernels:
    """Put tile kernels in the place of products, softmax, norms and attention.

    A product takes its bias, its activation (relu, silu, gelu) and its cast with it. What no kernel
    computes stays as it is, for the passes that follow, such as LegalizeOps, which this pass precedes.
    What became of each operator is in the log `tvmtile.relax`, and in `choices` of the pass.

    Parameters
    ----------
    target : str, dict or Target, optional
        Where the model will run; the current target where absent.

    Raises
    ------
    InvalidValue
        If there is no target.
    UnknownTarget
        If tile programs can't be lowered for it.
    """

    def __init__(self, target: TargetLike | None = None) -> None:
        target = target if target is not None else Target.current(allow_none=True)
        if target is None:
            raise InvalidValue(
                "UseTileKernels: for which target?",
                help='UseTileKernels("llvm"), or apply it under `with target:`',
            )
        self.target = parse(target)
        require_lowering(self.target)
        self.choices: list[Choice] = []

    if TYPE_CHECKING:  # of what the decorator makes of the class

        def __call__(self, mod: ir.IRModule) -> ir.IRModule: ...

    def transform_module(self, mod: ir.IRModule, context: PassContext) -> ir.IRModule:
        """Rewrite every function of Relax of a module."""
        del context
        replacer = _Replacer(mod)
        self.choices.clear()
        for name, func in mod.functions.items():
            if isinstance(func, relax.Function):
                plan = _Plan(name.name_hint, func, self.target)
                self.choices += replacer.replaced(name, func, plan)
        for choice in self.choices:
            _LOG.info("%s", choice)
        rewritten = relax.transform.CanonicalizeBindings()(replacer.builder_.get())
        return relax.transform.DeadCodeElimination()(rewritten)


class _Plan:
    """The replacements of a function's calls, and why other calls stay."""

    def __init__(self, function: str, func: relax.Function, target: Target) -> None:
        self.function = function
        self.programs: dict[int, tuple[Found, tirx.PrimFunc]] = {}
        self.reasons: dict[int, str] = {}
        self._taken: set[int] = set()
        self._target = target
        self._graph = Graph(func)
        self.calls = self._graph.calls
        for call in reversed(self.calls):  # an epilogue before the product that it is of
            if handle(call) not in self._taken:
                self._look_at(call)

    def _look_at(self, call: ir.Call) -> None:
        for find in _FINDERS:
            try:
                found = find(self._graph, call)
                if found is not None:
                    self._take(call, found)
                    return
            except (Left, TileError) as reason:
                self.reasons.setdefault(handle(call), str(reason).splitlines()[0])

    def _take(self, call: ir.Call, found: Found) -> None:
        if not self._graph.is_private(found.inside, call):
            raise Left("a value within it is used elsewhere")
        self.programs[handle(call)] = found, found.make(self._target)
        self._taken |= {handle(part) for part in found.inside}

    def left(self) -> Iterator[Choice]:
        """The calls that stay, of the operators that kernels compute."""
        for call in self.calls:
            name = getattr(call.op, "name", "")
            if name in _NAMED and handle(call) not in self._taken:
                reason = self.reasons.get(handle(call), "no kernel computes it")
                yield Choice(self.function, name.removeprefix("relax."), None, reason)


@relax.expr_functor.mutator
class _Replacer(relax.PyExprMutator):
    """Writes functions anew, with calls of programs in the places of a plan."""

    def __init__(self, mod: ir.IRModule) -> None:
        super().__init__(mod)
        self._plan: _Plan
        self._chosen: list[Choice] = []

    def replaced(self, name: ir.GlobalVar, func: relax.Function, plan: _Plan) -> list[Choice]:
        self._plan, self._chosen = plan, list(plan.left())
        if plan.programs:
            self.builder_.update_func(name, self.visit_expr(func))
        return self._chosen

    def visit_call_(self, call: ir.Call) -> ir.Expr:
        planned = self._plan.programs.get(handle(call))
        if planned is None:
            return super().visit_call_(call)
        found, program = planned
        title = found.name.replace(", ", "_")
        function = self.builder_.add_func(program.without_attr("global_symbol"), title)
        self._chosen.append(Choice(self._plan.function, found.name, function.name_hint))
        arguments = [self._shaped(self.visit_expr(arg), shape) for arg, shape in found.arguments]
        result = relax.TensorType(relax.ShapeExpr(list(found.shape)), str(call.ty.dtype))
        computed = self.builder_.emit(relax.call_tir(function, arguments, result))
        return self._shaped(computed, shape_of(call))

    def _shaped(self, value: ir.Expr, shape: Any) -> ir.Expr:
        if is_same_shape(shape_of(value), shape):
            return value
        return self.builder_.emit(relax.op.reshape(value, relax.ShapeExpr(list(shape))))
