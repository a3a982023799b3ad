"""Loops: `T.Parallel`, `T.Pipelined`, `T.Persistent`, `T.unroll`, ..., and schedulers of tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T
from tvm.tirx.script.builder.frame import ForFrame

from tvmtile._tvm import IRBuilder, buffer_of
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand, InvalidValue, NestingError
from tvmtile.frontend.constructs import LoopNest, bounded_loop, loop_bound, serial
from tvmtile.frontend.kernel import current_kernel, kernel_of
from tvmtile.frontend.proxy import Indices
from tvmtile.frontend.tracer import current_tracer
from tvmtile.frontend.values import as_expr
from tvmtile.ir.annotations import (
    BLOCKS_ANNOTATION,
    ORDER_ANNOTATION,
    STAGE_ANNOTATION,
    STAGES_ANNOTATION,
    UNROLL_BY_TVM,
    UNROLL_FACTOR,
)
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import contains
from tvmtile.ir.types import Index
from tvmtile.language.math import ceildiv
from tvmtile.language.math import max as largest
from tvmtile.language.math import min as smallest
from tvmtile.language.tensors import alloc_var

__all__ = [
    "Parallel",
    "Persistent",
    "PersistentTileScheduler",
    "Pipelined",
    "Serial",
    "Unroll",
    "Vectorized",
    "grid",
    "loop_break",
    "unroll",
    "vectorized",
]


class _ParallelNest(LoopNest):
    """Nested loops of TVM's parallel kind, which in a tile program mean elementwise work."""

    is_parallel = True

    def __init__(self, extents: Sequence[Index], annotations: Mapping[str, object]) -> None:
        self._extents = extents
        self._annotations = annotations
        self._frames: list[Any] = []

    def __enter__(self) -> Any:
        outside = "elementwise work is done by the blocks of `with T.Kernel(...)`"
        kernel = kernel_of("T.Parallel", outside)
        if kernel.parallel_depth and not self._continues(kernel.parallel_variables):
            raise _nested()
        kernel.parallel_depth += 1
        variables = []
        for position, extent in enumerate(self._extents):
            frame = T.parallel(extent, annotations=self._annotations if position == 0 else None)
            variables.append(frame.__enter__())
            self._frames.append(frame)
        kernel.parallel_variables += variables
        return variables[0] if len(variables) == 1 else Indices(variables)

    def _continues(self, outer: list[ir.Var]) -> bool:
        """Tell whether the loops make one nest with those that they stand in."""
        around = IRBuilder.current().frames[-1]
        is_first = isinstance(around, ForFrame) and around.vars[0].same_as(outer[-1])
        return (
            is_first
            and not around.stmts
            and not self._annotations
            and not contains(list(self._extents), ir.Var, lambda var: any(map(var.same_as, outer)))
        )

    def __exit__(self, *exception: Any) -> None:
        kernel = current_kernel()
        if kernel is not None:
            kernel.parallel_depth -= 1
            del kernel.parallel_variables[-len(self._extents) :]
        body = self._frames[-1].stmts
        if len(body) > 1 and not any(exception) and any(map(is_parallel, body)):
            raise _nested()
        while self._frames:
            self._frames.pop().__exit__(*exception)


def _nested() -> NestingError:
    return NestingError(
        "T.Parallel stands inside another T.Parallel and is not all that it does",
        help="write one T.Parallel with all extents, `for i, j in T.Parallel(M, N)`, or make the inner "
        "loop T.serial",
    )


def Parallel(
    *extents: Index,
    coalesced_width: int | None = None,
    loop_layout: Any = None,
    prefer_async: bool | None = None,
    annotations: Mapping[str, object] | None = None,
) -> LoopNest:
    """Elementwise work on tiles: all iterations are independent and share the block's threads.

    A loop whose body is another one, of extents that do not depend on it, makes one nest with it.

    Parameters
    ----------
    *extents : int or Expr
        The extent of each axis; the loop yields as many variables.
    coalesced_width, loop_layout, prefer_async
        Accepted with a warning: the compiler shares the iterations out.
    annotations : dict, optional
        Annotations of the outermost loop.

    Raises
    ------
    NestingError
        Outside `T.Kernel`, or inside another `T.Parallel` beside other statements.
    """
    if not extents:
        raise InvalidOperand("T.Parallel needs at least one extent")
    hints = {"coalesced_width": coalesced_width, "loop_layout": loop_layout}
    warn_ignored("T.Parallel", **hints, prefer_async=prefer_async)
    return _ParallelNest([loop_bound("T.Parallel", e) for e in extents], dict(annotations or {}))


def Pipelined(
    start: Any,
    stop: Any = None,
    num_stages: Any = 0,
    order: Sequence[int] | None = None,
    stage: Sequence[int] | None = None,
    sync: Any = None,
    group: Any = None,
    annotations: Mapping[str, object] | None = None,
) -> Any:
    """A serial loop whose copies may run ahead of the work that uses them.

    Parameters
    ----------
    start, stop : int or Expr
        `T.Pipelined(n)` runs from 0 to n, `T.Pipelined(a, b)` from a to b.
    num_stages : int
        How many buffer copies of a tile there are: copies from global memory into shared tiles run
        `num_stages - 1` iterations ahead of what uses them. None runs ahead for 0 or 1. The result
        does not depend on it.
    order, stage : sequence of int, optional
        A schedule of your own: the order in which the statements of the body are issued, and the stage
        of each; a stage runs an iteration ahead of the next one. Names whose value can be computed
        again in each stage have no entries.
    sync, group
        Accepted with a warning: the compiler finds the dependences.
    annotations : dict, optional
        Further annotations of the loop.
    """
    warn_ignored("T.Pipelined", sync=sync, group=group)
    if not isinstance(num_stages, int) or num_stages < 0:
        raise InvalidOperand(
            f"T.Pipelined: num_stages={num_stages!r}", help="num_stages is an integer of 0 or more"
        )
    for name, entries in (("order", order), ("stage", stage)):
        if entries is not None and not isinstance(entries, Sequence):
            raise InvalidOperand(
                f"T.Pipelined: {name}={entries!r} is no list of numbers",
                help="the arguments are start, stop and num_stages; a pipelined loop has no step",
            )
    orders = [] if order is None else list(order)
    stages = [] if stage is None else list(stage)
    if len(orders) != len(stages):
        raise InvalidOperand(
            "T.Pipelined: order and stage go together and have one entry a statement",
            help="give both with the same length, or neither",
        )
    merged = dict(annotations or {})
    merged[STAGES_ANNOTATION] = num_stages
    if orders:
        merged[ORDER_ANNOTATION] = orders
        merged[STAGE_ANNOTATION] = stages
    return serial(start, stop, annotations=merged)


def loop_break() -> None:
    """Leave the innermost loop, as `break` does: TileLang's name for it.

    Raises
    ------
    NestingError
        If it stands in no loop of the running kernel.
    """
    tracer = current_tracer()
    if tracer is None or not tracer.loops or not tracer.loops[-1].dynamic:
        raise NestingError(
            "T.loop_break() stands in no loop of the running kernel",
            help="write it in a T.serial or `while`, and `break` in a loop over Python values",
        )
    tracer.break_loop()


def unroll(
    start: Any,
    stop: Any = None,
    step: Any = None,
    *,
    explicit: bool = False,
    unroll_factor: int | None = None,
    annotations: Mapping[str, object] | None = None,
) -> Any:
    """A serial loop that the compiler unrolls.

    Parameters
    ----------
    start, stop, step : int or Expr
        Bounds, as of `range`. A loop whose number of iterations only a call knows stays a loop, which
        the target's compiler may unroll.
    explicit : bool
        Unroll in the program itself rather than in the code generator.
    unroll_factor : int, optional
        How many iterations to unroll at a time: the loop becomes one over so many copies of its body.
    annotations : dict, optional
        Annotations of the loop.
    """
    if explicit and unroll_factor is not None:
        raise InvalidOperand("T.unroll: explicit and unroll_factor exclude each other")
    merged = dict(annotations or {})
    if explicit:
        merged[UNROLL_BY_TVM] = True
    if unroll_factor is not None:
        _check_factor(unroll_factor)
        merged[UNROLL_FACTOR] = unroll_factor
    is_known = all(constant(bound) is not None for bound in (start, stop) if bound is not None)
    return bounded_loop("T.unroll", T.unroll if is_known else T.serial, start, stop, step, merged)


def _check_factor(factor: Any) -> None:
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise InvalidOperand(
            f"T.unroll: unroll_factor={factor!r}", help="unroll_factor is a positive integer"
        )


def vectorized(
    start: Any, stop: Any = None, *, annotations: Mapping[str, object] | None = None
) -> Any:
    """A loop of constant extent that runs as one vector operation.

    Parameters
    ----------
    start, stop : int
        Bounds, as of `range`.
    annotations : dict, optional
        Annotations of the loop.
    """
    return bounded_loop("T.vectorized", T.vectorized, start, stop, None, annotations)


def grid(*extents: Index) -> Any:
    """Nested serial loops, one for each extent."""
    return T.grid(*(loop_bound("T.grid", extent) for extent in extents))


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


Serial = serial


Unroll = unroll


Vectorized = vectorized


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
