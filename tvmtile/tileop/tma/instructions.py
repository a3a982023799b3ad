"""Instructions of one thread for copies of boxes: loads, stores, and the groups of stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import emit
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.asynchronous import BULK_STORE, signal, wait
from tvmtile.ir.operators import VARARGS, OperatorEffects, TileOp, ValueOp, tile_operator
from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import Index
from tvmtile.target import gpu
from tvmtile.tileop.registry import Decline, Lacking, LoweringContext, lowering, needs


@dataclass(frozen=True, eq=False)
class _BulkCopy(ValueOp):
    """A copy of a box: a tensor map's address, an element of a tile, and the box's coordinates."""


@tile_operator
class BulkLoad(_BulkCopy):
    """Begin to copy a box of a tensor into a tile; an mbarrier counts the bytes that have come."""

    name = "bulk_load"
    outputs = ("tile",)

    tensor_map: ir.Expr
    tile: ir.TensorLoad
    barrier: ir.TensorLoad
    coordinates: tuple[ir.Expr, ...] = field(metadata=VARARGS)
    box: Any = ()
    gathers: bool = False
    """The coordinates are a column and four rows."""
    blocks: int = 0
    """The blocks of the cluster that get the box, each at its own mbarrier; 0: this one."""
    eviction: str | None = None
    """How long the cache keeps it (`tvmtile.tileop.eviction`)."""

    def effects(self) -> OperatorEffects:
        members = [rank for rank in range(self.blocks.bit_length()) if self.blocks >> rank & 1]
        ranks = [tirx.const(rank, "int32") for rank in members] or None
        return super().effects()._replace(completes_on=self.barrier, ranks=ranks)


@tile_operator
class BulkStore(_BulkCopy):
    """Begin to copy a box of a tile into a tensor; the thread waits for groups of them."""

    name = "bulk_store"
    inputs = ("tile",)

    tensor_map: ir.Expr
    tile: ir.TensorLoad
    coordinates: tuple[ir.Expr, ...] = field(metadata=VARARGS)
    box: Any = ()
    scatters: bool = False
    """The coordinates are a column and four rows."""
    eviction: str | None = None
    combining: str = ""
    """How elements are combined with those of the tensor; they replace them where it is empty."""

    def effects(self) -> OperatorEffects:
        return super().effects()._replace(token=BULK_STORE.name)


@tile_operator
class BulkGroup(ValueOp):
    """`end` the group of a thread's bulk stores, or `wait` for all of its groups but `behind`.

    The wait is for the tiles, which may be written again; with `arrived`, for the tensors too.
    """

    name = "bulk_group"

    action: str = "wait"
    behind: int = 0
    arrived: bool = False

    def expanded(self, target: Target | None) -> tirx.Stmt:
        """Statements about a token; nothing where there are no such copies."""
        capability = gpu(target)
        if capability is None or not capability.has_bulk_copies:
            return seq([])
        if self.action == "end":
            return signal(BULK_STORE.name)
        instruction = ptx("cp.async.bulk.wait_group")(self.behind)
        arrival = [tirx.Evaluate(instruction)] if self.arrived else []
        return seq([wait(BULK_STORE.name, self.behind), *arrival])


def tma_store_arrive() -> None:
    """End a group of the stores that `T.tma_copy` has begun; it ends one of its own already."""
    emit(BulkGroup("end"))


def tma_store_wait(count: Index = 0, read: bool = True) -> None:
    """Wait for the stores that `T.tma_copy` has begun.

    Parameters
    ----------
    count : int
        How many groups, the latest ones, need not be over.
    read : bool
        Wait until the tiles may be written again; otherwise until the tensors are written.

    Raises
    ------
    InvalidOperand
        If the count is not a number from 0 to 7.
    """
    if not isinstance(count, int) or not 0 <= count <= _MOST_BEHIND:
        raise InvalidOperand(
            f"T.tma_store_wait: count={count!r}", help=f"give a number from 0 to {_MOST_BEHIND}"
        )
    emit(BulkGroup("wait", count, not read))


_MOST_BEHIND = BULK_STORE.max_behind


has_bulk_copies = needs(
    lambda gpu: gpu.has_bulk_copies,
    "NVIDIA's GPUs from compute capability 9.0 on copy boxes by tensor maps",
)


def _moves_rows(op: TileOp, context: LoweringContext) -> None:
    has_bulk_copies(op, context)
    if not context.gpu.moves_rows:
        raise Lacking(
            "NVIDIA's GPUs of compute capability 10.0 move four rows at once (sm_100a); T.gather4 and "
            "T.scatter4 run everywhere"
        )


def _boxes_only(op: BulkLoad | BulkStore, context: LoweringContext) -> None:
    has_bulk_copies(op, context)
    if getattr(op, "gathers", False) or getattr(op, "scatters", False):
        raise Decline("it moves four rows")


def _rows_only(op: BulkLoad | BulkStore, context: LoweringContext) -> None:
    if not (getattr(op, "gathers", False) or getattr(op, "scatters", False)):
        raise Decline("it moves a box")
    _moves_rows(op, context)


@lowering(BulkLoad, target="cuda", variant="gather4", priority=10, fits=_rows_only)
def _(op: BulkLoad, _: LoweringContext) -> tirx.Stmt:
    """One instruction, of a column and four rows."""
    name = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
    places = (T.address_of(op.tile), op.tensor_map, *op.coordinates, T.address_of(op.barrier))
    return tirx.Evaluate(ptx(name)(*places))


@lowering(BulkStore, target="cuda", variant="scatter4", priority=10, fits=_rows_only)
def _(op: BulkStore, _: LoweringContext) -> tirx.Stmt:
    """One instruction, of a column and four rows."""
    name = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
    return tirx.Evaluate(ptx(name)(op.tensor_map, *op.coordinates, T.address_of(op.tile)))


@lowering(BulkLoad, target="cuda", variant="tma", fits=_boxes_only)
def _(op: BulkLoad, _: LoweringContext) -> tirx.Stmt:
    """One instruction; its coordinates begin with the innermost."""
    name = (
        f"cp.async.bulk.tensor.{len(op.coordinates)}d.shared::cluster.global"
        ".mbarrier::complete_tx::bytes"
    )
    mask = [tirx.const(op.blocks, "uint16")] if op.blocks else []
    places = (*_places(op.coordinates), T.address_of(op.barrier), *mask)
    name += ".multicast::cluster" * len(mask)
    return _hinted(name, op.eviction, T.address_of(op.tile), op.tensor_map, *places)


@lowering(BulkStore, target="cuda", variant="tma", fits=_boxes_only)
def _(op: BulkStore, _: LoweringContext) -> tirx.Stmt:
    """One instruction; what lies outside of the tensor is not written."""
    axes = f"tensor.{len(op.coordinates)}d.global.shared::cta"
    name = f"cp.async.bulk.{axes}.tile.bulk_group"
    if op.combining:
        name = f"cp.reduce.async.bulk.{axes}.{op.combining}.tile.bulk_group"
    places = _places(op.coordinates)
    return _hinted(name, op.eviction, op.tensor_map, *places, T.address_of(op.tile))


def _hinted(name: str, eviction: str | None, *operands: ir.Expr) -> tirx.Stmt:
    """A copy, with how long the L2 cache keeps what it moves."""
    if eviction is None:
        return tirx.Evaluate(ptx(name)(*operands))
    policies: ir.Var = tirx.decl_buffer((1,), "uint64", name="policy", scope="local")
    policy = tirx.BufferLoad(policies, [0])
    made = ptx(f"createpolicy.fractional.L2::{eviction}.b64")(policy)
    copied = ptx(f"{name}.L2::cache_hint")(*operands, policy)
    return seq([tirx.AllocBuffer(policies), tirx.Evaluate(made), tirx.Evaluate(copied)])


def _places(coordinates: Sequence[ir.Expr]) -> list[ir.Expr]:
    return [tirx.Cast("int32", place) for place in reversed(coordinates)]
