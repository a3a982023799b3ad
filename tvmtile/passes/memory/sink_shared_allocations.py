"""SinkSharedAllocations: allocate a tile in the loop whose every iteration writes it first."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mutated
from tvmtile.analysis.effects import Effect
from tvmtile.analysis.kernel_info import KernelInfo, info_of
from tvmtile.ir.kernels import Launch, flattened, target_of, with_kernels
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import replace_loop, seq
from tvmtile.ir.scopes import is_shared
from tvmtile.passes.memory.shared_memory import all_bytes
from tvmtile.passes.tile.schedule.body import Coverage, Obstacle, body_of
from tvmtile.target import gpu


@prim_func_pass("SinkSharedAllocations", requires=(Property.PIPELINED,))
def SinkSharedAllocations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Allocate shared tiles in the loops that use them, where a block has no memory for all at once.

    No iteration may read what another one wrote. Tiles of an iteration that are used one after the
    other can share memory (see PlanSharedMemory), as the keys and the values of attention can; those
    that hold a value from one iteration to the next can't. Tiles with views, and those whose address
    is taken, stay where they are.
    """
    capability = gpu(target_of(func))
    if capability is None:
        return func

    def move(kernel: tirx.For) -> tirx.For:
        fits = all_bytes(kernel, capability) <= capability.shared_memory
        return kernel if fits else _Allocations(kernel, info_of(kernel)).moved()

    return with_kernels(func, move)


class _Allocations:
    """The allocations of a kernel that move into a loop."""

    def __init__(self, kernel: tirx.For, tiles: KernelInfo) -> None:
        self._kernel = kernel
        self._tiles = tiles
        self._into: dict[ir.Var, list[tirx.AllocBuffer]] = {}
        self._moved: set[ir.Var] = set()

    def moved(self) -> tirx.For:
        for stmt in flattened(Launch(self._kernel).body):
            if not isinstance(stmt, tirx.AllocBuffer) or not is_shared(buffer_of(stmt)):
                continue
            loop = self._loop_of(buffer_of(stmt))
            if loop is not None:
                self._into.setdefault(loop.loop_var, []).append(stmt)
                self._moved.add(buffer_of(stmt))
        if not self._moved:
            return self._kernel
        return mutated(self._kernel, (tirx.SeqStmt, self._sequence), (tirx.For, self._loop))

    def _loop_of(self, buffer: ir.Var) -> tirx.For | None:
        """The outermost loop around all uses of a tile in which it holds an iteration's own values."""
        if self._tiles.views_of(buffer) or self._tiles.escapes(buffer):
            return None
        for loop in _common_loops(self._tiles.effects_on(buffer)):
            if self._holds_own_values(loop, buffer):
                return loop
        return None

    def _holds_own_values(self, loop: tirx.For, buffer: ir.Var) -> bool:
        if loop.kind != tirx.ForKind.SERIAL:
            return False
        try:
            units = body_of(loop, self._tiles, split=True).units
        except Obstacle:
            return False
        return Coverage(buffer, self._tiles).holds_own_values(units)

    def _sequence(self, node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        kept = [
            child
            for child in node.seq
            if not (isinstance(child, tirx.AllocBuffer) and buffer_of(child) in self._moved)
        ]
        return seq([mutator.mutate(child) for child in kept])

    def _loop(self, node: tirx.For, mutator: Mutator) -> tirx.For:
        loop = mutator.default_mutate(node)
        allocations = self._into.get(node.loop_var, [])
        return replace_loop(loop, body=seq([*allocations, loop.body])) if allocations else loop


def _common_loops(uses: list[Effect]) -> list[tirx.For]:
    """The loops around all of some uses, outermost first."""
    if not uses:
        return []
    first, *others = (list(use.around) for use in uses)
    around = [{loop.loop_var for loop in loops} for loops in others]
    return [loop for loop in first if all(loop.loop_var in other for other in around)]
