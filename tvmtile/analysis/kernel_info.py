"""KernelInfo: the facts about a kernel that passes share, each found when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.ir.kernels import Launch
from tvmtile.ir.nodes import cached_per_node
from tvmtile.ir.rewriting import contains, statements_in, substitute, variables_of


class KernelInfo(Aliases):
    """The facts about a kernel, or about the body of its block.

    Attributes
    ----------
    launch : Launch
        Its loops over blocks and threads, and what is in them.
    threads : set of Var
        The indices of its threads.
    """

    def __init__(self, kernel: tirx.Stmt) -> None:
        super().__init__(kernel)
        self.launch = Launch(kernel)
        self.threads = {loop.loop_var for loop in self.launch.threads}
        self._kernel = kernel

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """Its effects on memory, in program order."""
        return effects_of(self._kernel)

    @cached_property
    def allocated(self) -> dict[ir.Var, tirx.AllocBuffer]:
        """The buffers that it allocates."""
        nodes = statements_in(self.launch.body, tirx.AllocBuffer)
        return {buffer_of(node): node for node in nodes}

    @cached_property
    def values(self) -> dict[ir.Var, ir.Expr]:
        """The values of the names that it binds."""
        return let_values(self.launch.body)

    @cached_property
    def variance(self) -> ThreadVariance:
        """The analysis of the values that differ between its threads."""
        return ThreadVariance(self.launch.body, self.threads)

    @cached_property
    def written(self) -> set[ir.Var]:
        """The buffers that it writes, by whichever of their names."""
        return {effect.root for effect in self.effects if effect.writes}

    @cached_property
    def names_threads(self) -> bool:
        """Tell whether the kernel uses the index of a thread, and so says what each thread does."""
        return contains(self.launch.body, ir.Var, self.threads.__contains__)

    def effects_on(self, buffer: ir.Var) -> list[Effect]:
        """Its effects on a buffer that is no view, by whichever name."""
        return [effect for effect in self.effects if effect.root.same_as(buffer)]

    def escapes(self, buffer: ir.Var) -> bool:
        """Tell whether a buffer, or its address, is handed to something as a whole."""
        return any(effect.is_whole for effect in self.effects_on(buffer))

    def behind(self, expressions: Iterable[ir.Expr] | None) -> set[ir.Var]:
        """The variables and the read buffers that expressions depend on, through names too."""
        used = {var for each in expressions or () for var in variables_of(each)}
        names = used & self.values.keys()
        return (used - names).union(*(variables_of(self.values[name]) for name in names))


info_of = cached_per_node(KernelInfo)


def let_values(
    stmt: tirx.Stmt,
    known: Mapping[ir.Var, Any] = MappingProxyType({}),
    wanted: Callable[[ir.Expr], bool] = lambda _: True,
) -> dict[ir.Var, Any]:
    """The values of the names that `T.let` and assignments in a statement bind, without such names.

    `known` are values of others, and `wanted` tells which values may stand for their names.
    """
    values = dict(known)
    for bind in statements_in(stmt, tirx.Bind):
        if wanted(bind.value):
            values[bind.var] = substitute(bind.value, values)
    return values
