"""The shared memory of a block: the bytes of a tile, its lifetime, and its place.

All passes go by these answers: the check of a launch, the number of stages, and the placement of tiles.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mutated
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.kernel_info import info_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import statements_in
from tvmtile.ir.scopes import is_mbarrier, is_shared
from tvmtile.ir.threads import Regions
from tvmtile.layout.shared import bytes_of
from tvmtile.target import GpuCapability

_DEFAULT_ALIGNMENT = 64
"""TVM's alignment of a buffer that asks for none."""


def shared_tiles_in(kernel: tirx.For) -> list[ir.Var]:
    """The shared tiles that a kernel allocates, in program order."""
    return [
        tile for tile in map(buffer_of, statements_in(kernel, tirx.AllocBuffer)) if is_shared(tile)
    ]


def alignment_of(tile: ir.Var, capability: GpuCapability) -> int:
    """Bytes: a tile begins at a multiple of it, the target's or one that the tile asks for."""
    own, least = int(tile.ty.data_alignment), capability.shared_alignment
    return max(own, least) if own > _DEFAULT_ALIGNMENT else least


def allocated_bytes(tile: ir.Var, capability: GpuCapability) -> int:
    """Bytes of shared memory that a tile takes, up to where another one like it may begin.

    An extent that is known only when a kernel runs counts as 0.
    """
    return _aligned(bytes_of(tile), alignment_of(tile, capability))


def _aligned(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment


def all_bytes(kernel: tirx.For, capability: GpuCapability) -> int:
    """Bytes of all shared tiles of a kernel, where none share memory."""
    return sum(allocated_bytes(tile, capability) for tile in shared_tiles_in(kernel))


def one_after_the_other(tiles: Iterable[ir.Var], capability: GpuCapability) -> dict[ir.Var, int]:
    """The starts of tiles in one array: largest alignment first, so that no bytes lie between."""
    offsets: dict[ir.Var, int] = {}
    end = 0
    for tile in sorted(tiles, key=lambda tile: -alignment_of(tile, capability)):
        offsets[tile] = end
        end += allocated_bytes(tile, capability)
    return offsets


# Tiles that share memory --------------------------------------------------------------------------


@dataclass(eq=False)
class LiveTile:
    """A shared tile and when it is in use."""

    buffer: ir.Var
    size: int
    alignment: int
    """Bytes."""
    depth: int
    """The number of regions, those that are one in time, around its allocation."""
    first: int = -1
    last: int = -1
    """The first and the last statement that uses it, by number."""


@dataclass
class Slot:
    """Memory that several tiles share, one after the other or side by side."""

    size: int
    alignment: int
    """Bytes."""
    offsets: dict[LiveTile, int] = field(default_factory=dict)
    """Where each begins, in bytes."""

    def place_of(self, tile: LiveTile) -> int | None:
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
            place = max(place, _aligned(last, tile.alignment))
        return place if place + tile.size <= self.size else None

    def add(self, tile: LiveTile, place: int) -> None:
        """Let a tile have a place."""
        self.offsets[tile] = place
        self.alignment = max(self.alignment, tile.alignment)
        self.size = _aligned(self.size, self.alignment)


def packed(tiles: Iterable[LiveTile]) -> list[Slot]:
    """Slots for tiles, the largest ones first: each in the smallest slot with room at its beginning."""
    slots: list[Slot] = []
    for tile in sorted(tiles, key=lambda tile: -tile.size):
        places = [(slot, slot.place_of(tile)) for slot in slots]
        free = [(slot, place) for slot, place in places if place is not None]
        slot, place = min(free, key=lambda item: (item[1], item[0].size), default=(None, 0))
        if slot is None:
            slot = Slot(tile.size, tile.alignment)
            slots.append(slot)
        slot.add(tile, place)
    return slots


def most_at_once(tiles: Iterable[LiveTile]) -> list[LiveTile]:
    """The tiles in use where these need most memory."""
    used = [tile for tile in tiles if tile.first >= 0]
    at_starts = ([t for t in used if t.first <= each.first <= t.last] for each in used)
    return max(at_starts, key=lambda live: sum(tile.size for tile in live), default=[])


def lifetimes_in(
    kernel: tirx.For, capability: GpuCapability, *, through_loops: bool = True
) -> list[LiveTile]:
    """The shared tiles of a kernel, with when each is in use.

    A tile that a group of threads uses is in use all the time: what the others do meanwhile is not
    known. With `through_loops` a tile that is used in a loop, and allocated outside of it, is in use
    during all of the loop, and one that is used where some threads come alone during all that these
    do there: they can't wait for each other. If not: as if each were allocated where
    SinkSharedAllocations could put it at best.
    """
    return _Lifetimes(kernel, capability, through_loops=through_loops).tiles


@dataclass
class _Region:
    """A loop, or what some threads do alone: one in time for the tiles that are used in it."""

    diverges: bool
    tiles: list[LiveTile] = field(default_factory=list)


class _Lifetimes:
    def __init__(self, kernel: tirx.For, capability: GpuCapability, *, through_loops: bool) -> None:
        self.tiles: list[LiveTile] = []
        self._capability = capability
        self._by_buffer: dict[ir.Var, LiveTile] = {}
        self._aliases = Aliases()
        self._time = 0
        self._groups = Regions()
        self._around: list[_Region] = []
        self._variance = info_of(kernel).variance if through_loops else None
        mutated(
            kernel,
            (tirx.AttrStmt, self._groups.visit),
            ((tirx.For, tirx.While), self._loop),
            (tirx.IfThenElse, self._branch),
            (tirx.AllocBuffer, self._allocate),
            (tirx.DeclBuffer, self._view),
            (ir.Var, self._use),
            ((tirx.BufferStore, tirx.Evaluate, tirx.Bind), self._statement),
        )

    def _statement(
        self, node: tirx.BufferStore | tirx.Evaluate | tirx.Bind, mutator: Mutator
    ) -> tirx.Stmt:
        self._time += 1
        op = operator_of(node.value)
        is_hint = op is not None and not op.reads() and not op.writes()
        return node if is_hint else mutator.default_mutate(node)

    def _loop(self, loop: tirx.For | tirx.While, mutator: Mutator) -> tirx.Stmt:
        if self._variance is None:
            return mutator.default_mutate(loop)
        return self._one_in_time(loop, mutator, _Region(self._variance.is_divergent(loop)))

    def _branch(self, branch: tirx.IfThenElse, mutator: Mutator) -> tirx.Stmt:
        if self._variance is None or not self._variance.may_diverge(branch.condition):
            return mutator.default_mutate(branch)
        return self._one_in_time(branch, mutator, _Region(diverges=True))

    def _one_in_time(self, stmt: tirx.Stmt, mutator: Mutator, region: _Region) -> tirx.Stmt:
        self._time += 1
        start = self._time
        self._around.append(region)
        mutator.default_mutate(stmt)
        self._around.pop()
        self._time += 1
        for tile in region.tiles:
            tile.first = min(tile.first, start)
            tile.last = max(tile.last, self._time)
        return stmt

    def _allocate(self, node: tirx.AllocBuffer, _: Mutator) -> tirx.Stmt:
        if is_shared(buffer_of(node)):
            size = allocated_bytes(buffer_of(node), self._capability)
            alignment = alignment_of(buffer_of(node), self._capability)
            tile = LiveTile(buffer_of(node), size, alignment, len(self._around))
            if is_mbarrier(buffer_of(node)):  # initialised once: nothing else may lie there
                tile.first, tile.last = 0, sys.maxsize
            self._by_buffer[buffer_of(node)] = tile
            self.tiles.append(tile)
        return node

    def _view(self, node: tirx.DeclBuffer, _: Mutator) -> tirx.Stmt:
        self._aliases.add(node)
        return node

    def _use(self, var: ir.Var, _: Mutator) -> ir.Var:
        tile = self._by_buffer.get(self._aliases.root(var))
        if tile is not None:
            tile.first = self._time if tile.first < 0 else tile.first
            tile.last = max(tile.last, self._time)
            if self._groups.group is not None:
                tile.first, tile.last = 0, sys.maxsize
            for depth, region in enumerate(self._around):
                if region.diverges or depth >= tile.depth:
                    region.tiles.append(tile)
        return var
