"""PlanSharedMemory: the shared tiles of a block fit into what the target has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import mapped, mutated
from tvmtile.analysis.aliases import Aliases
from tvmtile.errors import OutOfSharedMemory
from tvmtile.ir.kernels import Launch, with_kernels, with_launch_body
from tvmtile.ir.operands import describe
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.spans import location_of
from tvmtile.passes.memory.shared_sizes import allocated_bytes
from tvmtile.passes.tile.lower_tile_op import target_of
from tvmtile.target import GpuCapability, gpu

__all__ = ["PlanSharedMemory"]


@prim_func_pass(
    "PlanSharedMemory",
    requires=(Property.NO_FRAGMENTS,),
    establishes=(Property.SHARED_MEMORY_FITS,),
)
def PlanSharedMemory(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Let tiles share memory where a block would otherwise need more than the target has.

    Two tiles can share memory where one is last used before the other is first used; several smaller
    ones lie side by side in the memory of a larger one. They are left apart where all fit, because
    sharing costs barriers.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((6144,), "float32")):
        T.func_attr({"target": T.target("metal")})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                x = T.alloc_buffer((6144,), "float32", scope="shared")
                x[tx] = A[tx]
                y = T.alloc_buffer((6144,), "float32", scope="shared")
                y[tx] = A[tx + 32]
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((6144,), "float32")):
        T.func_attr({"target": T.target("metal")})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                tiles = T.alloc_buffer((6144,), "uint32", scope="shared")
                x = T.decl_buffer((6144,), "float32", data=tiles.data, scope="shared")
                x[tx] = A[tx]
                y = T.decl_buffer((6144,), "float32", data=tiles.data, scope="shared")
                y[tx] = A[tx + 32]
    ```

    Raises
    ------
    OutOfSharedMemory
        If the tiles that are in use at once don't fit; the message lists them.
    """
    del context
    capability = gpu(target_of(func))
    if capability is None:
        return func
    return with_kernels(func, lambda kernel: _planned(kernel, capability))


@dataclass(eq=False)
class _Tile:
    """A shared tile and when it is in use."""

    buffer: ir.Var
    size: int
    allocated_in: tuple[int, ...]
    first: int = -1
    last: int = -1


@dataclass
class _Slot:
    """Memory that several tiles have, one after the other or side by side."""

    size: int
    offsets: dict[_Tile, int] = field(default_factory=dict)

    def place_of(self, tile: _Tile) -> int | None:
        """The first place where a tile fits beside those that are in use at the same time."""
        taken = sorted(
            (offset, offset + other.size)
            for other, offset in self.offsets.items()
            if not (tile.last < other.first or other.last < tile.first)
        )
        place = 0
        for first, last in taken:
            if place + tile.size <= first:
                break
            place = max(place, last)
        return place if place + tile.size <= self.size else None


def _planned(kernel: tirx.For, capability: GpuCapability) -> tirx.For:
    tiles = _Lifetimes(kernel, capability).tiles
    if sum(tile.size for tile in tiles) <= capability.shared_memory:
        return kernel
    slots: list[_Slot] = []
    for tile in sorted(tiles, key=lambda tile: -tile.size):
        places = [(slot, slot.place_of(tile)) for slot in slots]
        free = [(slot, place) for slot, place in places if place is not None]
        slot, place = min(free, key=lambda item: (item[1], item[0].size), default=(None, 0))
        if slot is None:
            slot = _Slot(tile.size)
            slots.append(slot)
        slot.offsets[tile] = place
    if sum(slot.size for slot in slots) > capability.shared_memory:
        raise _too_large(kernel, slots, capability)
    return _Sharing([slot for slot in slots if len(slot.offsets) > 1]).apply(kernel)


def _too_large(
    kernel: tirx.For, slots: list[_Slot], capability: GpuCapability
) -> OutOfSharedMemory:
    needed = sum(slot.size for slot in slots)
    table = "".join(
        f"\n  {describe(tile.buffer)}: {tile.size / 1024:g} KB"
        for slot in slots
        for tile in list(slot.offsets)[:1]
    )
    return OutOfSharedMemory(
        f"T.Kernel: the shared tiles need {needed / 1024:g} KB at once, with the versions that "
        f"pipelined loops give them; a block of {capability.name} has "
        f"{capability.shared_memory / 1024:g} KB{table}",
        help="make the tiles smaller, use fewer stages (num_stages), or keep a tile in a fragment",
        location=location_of(kernel),
    )


class _Lifetimes:
    """The shared tiles of a kernel, with the first and the last statement that uses each.

    A tile that is used in a loop, and allocated outside of it, is in use during all of the loop.
    """

    def __init__(self, kernel: tirx.For, capability: GpuCapability) -> None:
        self.tiles: list[_Tile] = []
        self._capability = capability
        self._by_buffer: dict[ir.Var, _Tile] = {}
        self._aliases = Aliases()
        self._time = 0
        self._loops: list[int] = []
        self._pending: list[list[_Tile]] = []
        mutated(
            kernel,
            ((tirx.For, tirx.While), self._loop),
            (tirx.AllocBuffer, self._allocate),
            (tirx.DeclBuffer, self._view),
            (ir.Var, self._use),
            ((tirx.BufferStore, tirx.Evaluate, tirx.Bind), self._statement),
        )

    def _statement(self, node: Any, mutator: Any) -> Any:
        self._time += 1
        return mutator.default_mutate(node)

    def _loop(self, loop: Any, mutator: Any) -> Any:
        self._time += 1
        start = self._time
        self._loops.append(start)
        self._pending.append([])
        mutator.default_mutate(loop)
        self._loops.pop()
        self._time += 1
        for tile in self._pending.pop():
            tile.first = min(tile.first, start)
            tile.last = self._time
        return loop

    def _allocate(self, node: tirx.AllocBuffer, mutator: Any) -> Any:
        del mutator
        if is_shared(node.buffer):
            size = allocated_bytes(node.buffer, self._capability)
            tile = _Tile(node.buffer, size, tuple(self._loops))
            self._by_buffer[node.buffer] = tile
            self.tiles.append(tile)
        return node

    def _view(self, node: tirx.DeclBuffer, mutator: Any) -> Any:
        del mutator

        self._aliases.add(node)
        return node

    def _use(self, var: ir.Var, mutator: Any) -> ir.Var:
        del mutator
        tile = self._by_buffer.get(self._aliases.root(var))
        if tile is None:
            return var
        tile.first = self._time if tile.first < 0 else tile.first
        tile.last = self._time
        for depth, pending in enumerate(self._pending):
            if depth >= len(tile.allocated_in):
                pending.append(tile)
        return var


class _Sharing:
    """Replaces the allocations of tiles that share memory by views of it."""

    def __init__(self, slots: list[_Slot]) -> None:
        self._memory: dict[ir.Var, tuple[ir.Var, int]] = {}
        self._allocations: list[tirx.Stmt] = []
        for slot in slots:
            words = tirx.decl_buffer((slot.size // 4,), "uint32", name="tiles", scope="shared")
            self._allocations.append(tirx.AllocBuffer(words))
            places = slot.offsets.items()
            self._memory.update({tile.buffer: (words, offset) for tile, offset in places})

    def apply(self, kernel: tirx.For) -> tirx.For:
        body = mapped(Launch(kernel).body, (tirx.AllocBuffer, self._view))
        return with_launch_body(kernel, seq([*self._allocations, body]))

    def _view(self, node: tirx.AllocBuffer) -> tirx.Stmt:
        if node.buffer not in self._memory:
            return node
        words, offset = self._memory[node.buffer]
        data = words.data
        if offset:
            data = T.ptr_byte_offset(data, offset, str(node.buffer.ty.dtype))
        return tirx.DeclBuffer(node.buffer, data=data)
