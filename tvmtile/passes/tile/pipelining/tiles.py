"""The buffers of a kernel, their views, and who uses them."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var, mutated
from tvmtile.analysis.accesses import accesses_of
from tvmtile.analysis.aliases import Aliases, allocations_in
from tvmtile.ir.kernels import Launch
from tvmtile.ir.operators import operator_of

__all__ = [
    "KernelTiles",
]


class KernelTiles(Aliases):
    """The buffers of a kernel.

    Attributes
    ----------
    allocated : dict of Var to AllocBuffer
        What the kernel allocates.
    accesses : list of Access
        All uses, views resolved.
    bound_loops : list of For
        The loops that are bound to blocks and threads.
    """

    def __init__(self, kernel: tirx.For) -> None:
        super().__init__(kernel)
        self.allocated = {each.buffer: each for each in allocations_in(kernel)}
        launch = Launch(kernel)
        self.bound_loops = [*launch.blocks, *launch.threads]
        self.accesses = accesses_of(kernel)
        self._named = _names_outside_of_accesses(kernel)

    def escapes(self, buffer: ir.Var) -> bool:
        """Tell whether a buffer, or its address, is handed to something as a whole."""
        return any(name in self._named for name in (buffer, *self.views_of(buffer)))


def _names_outside_of_accesses(kernel: tirx.For) -> set[ir.Var]:
    """The buffers that stand somewhere else than in a load, a store, a region or a declaration."""
    named: set[ir.Var] = set()

    def children(nodes: Any, mutator: Any) -> None:
        for node in nodes:
            mutator.mutate(node)

    def load(node: ir.TensorLoad, mutator: Any) -> Any:
        children(node.indices, mutator)
        return node

    def store(node: tirx.BufferStore, mutator: Any) -> Any:
        children([node.value, *node.indices], mutator)
        return node

    def region(node: ir.TensorRegion, mutator: Any) -> Any:
        children([part for r in node.region for part in (r.min, r.extent)], mutator)
        return node

    def call(node: ir.Call, mutator: Any) -> Any:
        op = operator_of(node)
        own = [] if op is None else list(op.fixed_layouts())
        rest = [arg for arg in node.args if not any(arg.same_as(buffer) for buffer in own)]
        children(rest, mutator)
        return node

    def variable(node: ir.Var, mutator: Any) -> Any:
        del mutator
        if is_buffer_var(node):
            named.add(node)
        return node

    def declaration(node: Any, mutator: Any) -> Any:
        del mutator
        return node

    mutated(
        kernel,
        (ir.TensorLoad, load),
        (tirx.BufferStore, store),
        (ir.TensorRegion, region),
        (ir.Call, call),
        ((tirx.AllocBuffer, tirx.DeclBuffer), declaration),
        (ir.Var, variable),
    )
    return named
