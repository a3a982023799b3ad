"""Loops over tiles by the blocks that run at once: `T.Persistent`, and the scheduler of tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, buffer_of
from tvmtile.errors import InvalidOperand, InvalidValue
from tvmtile.frontend.constructs import LoopNest, loop_bound
from tvmtile.frontend.kernel import kernel_of
from tvmtile.frontend.proxy import Indices
from tvmtile.frontend.values import as_expr
from tvmtile.ir.annotations import (
    BLOCKS_ANNOTATION,
)
from tvmtile.ir.operands import constant
from tvmtile.ir.types import Index
from tvmtile.language.math import ceildiv
from tvmtile.language.math import max as largest
from tvmtile.language.math import min as smallest
from tvmtile.language.tensors import alloc_var

__all__ = ["Persistent", "PersistentTileScheduler"]


class _PersistentNest(LoopNest):
    """Waves of tiles over the blocks; tiles outside the domain are skipped."""

    def __init__(self, domain: Sequence[Any], wave_size: Any, index: Any, group_size: int) -> None:
        self._domain = [loop_bound("T.Persistent", d) for d in domain]
        self._wave_size, self._index, self._group = wave_size, index, group_size
        self._frames: list[Any] = []

    def __enter__(self) -> Any:
        total: Any = 1
        for extent in self._domain:
            total = total * extent
        count = tirx.ceildiv(total, self._wave_size)
        waves = T.serial(count, annotations={BLOCKS_ANNOTATION: True})
        wave = self._enter(waves)
        IRBuilder.name("wave", wave)
        tile = T.Bind(wave * self._wave_size + self._index)
        IRBuilder.name("tile", tile)
        self._enter(T.If(tile < total))
        self._enter(T.Then())
        return Indices(T.Bind(coordinate) for coordinate in self._coordinates(tile))

    def _enter(self, frame: Any) -> Any:
        self._frames.append(frame)
        return frame.__enter__()

    def _coordinates(self, tile: Any) -> list[Any]:
        """Tiles in groups of `group_size` along the first axis, so that a wave shares operands."""
        domain = [1 if constant(extent) == 0 else extent for extent in self._domain]  # no tile asks
        rest: Any = 1
        for extent in domain[1:]:
            rest = rest * extent
        first, rows, within = tirx.const(0, "int32"), domain[0], tile
        if (constant(rows) or self._group + 1) > self._group:  # there may be several groups
            group_tiles = self._group * rest
            first = tirx.floordiv(tile, group_tiles) * self._group
            rows = tirx.min(domain[0] - first, self._group)
            if constant(domain[0]) is None:
                rows = tirx.max(rows, 1)  # of a tile that there is: what divides by it is positive
            within = tirx.floormod(tile, group_tiles)
        coordinates = [first + tirx.floormod(within, rows)]
        remainder = tirx.floordiv(within, rows)
        inner = []
        for extent in reversed(domain[1:]):
            inner.append(tirx.floormod(remainder, extent))
            remainder = tirx.floordiv(remainder, extent)
        coordinates += reversed(inner)
        if None in map(constant, domain):
            # Analyses that do not know the extents see no other way that these are not negative.
            coordinates = [tirx.max(coordinate, 0) for coordinate in coordinates]
        return coordinates

    def __exit__(self, *exception: Any) -> None:
        while self._frames:
            self._frames.pop().__exit__(*exception)


def Persistent(domain: Sequence[Any], wave_size: Any, index: Any, group_size: int = 8) -> LoopNest:
    """Let a fixed number of blocks walk over all tiles of a domain, wave by wave.

    Which tiles a block visits, and in which order, is the compiler's choice.

    Parameters
    ----------
    domain : sequence of int or Expr
        Extents of the domain of tiles; the loop yields one variable for each.
    wave_size : int or Expr
        How many blocks there are.
    index : Expr
        The index of this block.
    group_size : int
        Tiles along the first axis that are visited together, for reuse in a cache.
    """
    if not domain:
        raise InvalidOperand("T.Persistent needs a domain of at least one extent")
    return _PersistentNest(domain, wave_size, index, group_size)


class PersistentTileScheduler:
    """Hands the tiles of a matrix out to a fixed number of blocks, one after the other.

    Tiles have numbers along one axis of the matrix, then along the other one; worker `w` of `n`
    visits those of the numbers `w`, `w + n`, and so on. Workers that run at the same time share
    operands in the GPU's cache where tiles of successive numbers are neighbours along both axes:
    `swizzle_size` is the width of the panels in which they are numbered.

    Parameters
    ----------
    num_m_tiles, num_n_tiles : int or Expr
        Tiles along the rows and along the columns.
    num_workers : int or Expr, optional
        The workers; by default the blocks of the grid, or its clusters of `cluster_size`.
    swizzle_size : int
        Columns of tiles in a panel (rows, with `column_major=False`).
    column_major : bool
        Neighbours along M have successive numbers; otherwise those along N.
    cluster_size : int
        Tiles along M that the blocks of a cluster visit together: `m_idx` is then the number of such a
        group, and the block's tile is `m_idx * cluster_size + T.block_rank_in_cluster()`.
    stateful : bool
        Keep the tile that is visited; without it there is `coord` only.
    name : str, optional
        Begins the names of the variables in the program.

    Raises
    ------
    InvalidValue
        If a width, or the size of a cluster, is not positive.
    NestingError
        If it is made outside T.Kernel.

    Examples
    --------
    ```
    with T.Kernel(132, threads=128) as block:
        tiles = T.PersistentTileScheduler(T.ceildiv(M, 128), T.ceildiv(N, 128), swizzle_size=8)
        tiles.init(block)
        while tiles.valid():
            by, bx = tiles.m_idx, tiles.n_idx
            ...
            tiles.next_tile()
    ```
    """

    def __init__(
        self,
        num_m_tiles: Index,
        num_n_tiles: Index,
        num_workers: Any = None,
        swizzle_size: int = 1,
        column_major: bool = True,
        cluster_size: int = 1,
        stateful: bool = True,
        name: str | None = None,
    ) -> None:
        widths: tuple[tuple[str, Any], ...] = (
            ("swizzle_size", swizzle_size),
            ("cluster_size", cluster_size),
        )
        for what, value in widths:
            if not isinstance(value, int) or value < 1:
                raise InvalidValue(
                    f"T.PersistentTileScheduler: {what}={value!r}", help="give a positive number"
                )
        outside = "make it inside `with T.Kernel(...)`"
        kernel = kernel_of("T.PersistentTileScheduler", outside)
        groups = ceildiv(num_m_tiles, cluster_size)
        if num_workers is None:
            num_workers = math.prod(kernel.block_extents, start=1) // cluster_size
        self.num_workers = num_workers
        self.cluster_size = cluster_size
        self.swizzle_size = swizzle_size
        self._column_major = column_major
        self._tiles = groups * num_n_tiles
        self._along, self._across = (groups, num_n_tiles) if column_major else (num_n_tiles, groups)
        self._state: dict[str, ir.Var] = {}
        if stateful:
            for part in ("m_idx", "n_idx", "linear_idx", "current_iter"):
                self._state[part] = _variable(part if name is None else f"{name}_{part}")

    def coord(self, tile_id: Any) -> tuple[Any, Any]:
        """The place of a tile along M and N, by its number."""
        panel = self._along * self.swizzle_size
        first = tile_id // panel * self.swizzle_size
        # The last panel may be narrower; a number behind the last tile divides by 1, not by 0.
        width = largest(1, smallest(self.swizzle_size, self._across - first))
        inside = tile_id % panel
        along, across = inside // width, first + inside % width
        return (along, across) if self._column_major else (across, along)

    def init(self, worker_id: Any) -> None:
        """Begin with the first tile of a worker."""
        self._store("current_iter", 0)
        self._visit(worker_id)

    def next_tile(self) -> None:
        """Go on to the worker's next tile."""
        self._store("current_iter", self.current_iter + 1)
        self._visit(self.linear_idx + self.num_workers)

    def valid(self) -> ir.Expr:
        """Tell whether there is such a tile."""
        return self.linear_idx < self._tiles

    @property
    def m_idx(self) -> ir.Expr:
        """The place of the tile along M."""
        return self._load("m_idx")

    @property
    def n_idx(self) -> ir.Expr:
        """The place of the tile along N."""
        return self._load("n_idx")

    @property
    def linear_idx(self) -> ir.Expr:
        """The number of the tile."""
        return self._load("linear_idx")

    @property
    def current_iter(self) -> ir.Expr:
        """The number of tiles that the worker has visited before."""
        return self._load("current_iter")

    def _visit(self, tile_id: Any) -> None:
        self._store("linear_idx", tile_id)
        m, n = self.coord(self.linear_idx)
        self._store("m_idx", m)
        self._store("n_idx", n)

    def _load(self, part: str) -> ir.Expr:
        return tirx.BufferLoad(self._variable(part), [0])

    def _store(self, part: str, value: Any) -> None:
        T.buffer_store(self._variable(part), tirx.Cast("int32", as_expr(value)), [0])

    def _variable(self, part: str) -> ir.Var:
        if part not in self._state:
            raise InvalidValue(
                f"T.PersistentTileScheduler: with stateful=False there is no {part}",
                help="use coord(tile_id), or leave out stateful=False",
            )
        return self._state[part]


def _variable(name: str) -> ir.Var:
    variable: ir.Var = buffer_of(alloc_var("int32").scalar)
    IRBuilder.name(name, variable)
    return variable
