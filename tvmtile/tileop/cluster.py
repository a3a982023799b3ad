"""Work of a block with the others of its cluster: `T.block_rank_in_cluster`, and their memory.

The memory of another block is there from when that block runs until it ends. So a kernel that reaches
it has barriers of the cluster where it begins and where it ends (`join_blocks`). An address there is
that of the same element in the block's own memory, mapped by `mapa`.

PTX ISA, "Cluster of Cooperative Thread Arrays", "mapa", "mbarrier.arrive", "cp.async.bulk".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from tvm import DataType, ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidOperand
from tvmtile.frontend.kernel import current_kernel
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.barriers import is_cluster_barrier, sync
from tvmtile.ir.operators import VARARGS, OperatorEffects, TileOp, ValueOp, tile_operator
from tvmtile.ir.rewriting import seq
from tvmtile.ir.spans import current_span
from tvmtile.tileop.registry import LoweringContext, lowering, needs


def block_rank_in_cluster() -> ir.Call:
    """The number of a block in its cluster, from 0, with x fastest; 0 where each block is alone.

    Returns
    -------
    Call
        An int32, the same in all threads of the block.
    """
    return BlockRank().to_call(current_span())


def check_rank(operator: str, rank: int) -> None:
    """Raise `InvalidOperand` where the clusters of the kernel have no block of that number."""
    kernel = current_kernel()
    size = 1 if kernel is None else kernel.cluster_size
    if not 0 <= rank < size:
        raise InvalidOperand(
            f"T.{operator}: there is no block {rank} in a cluster of {size}",
            help="give T.Kernel a larger `cluster_dims=`, or name a block from 0 on",
        )


@tile_operator
class BlockRank(ValueOp):
    """The number of a block in its cluster."""

    name = "block_rank_in_cluster"
    role = "block rank"

    def result_dtype(self) -> str:
        return "int32"


@tile_operator
class JoinCluster(TileOp):
    """Wait here, and where the kernel ends, for the other blocks of the cluster."""

    name = "join_cluster"


@tile_operator
class RemoteArrival(ValueOp):
    """Arrive at the mbarrier of another block; with `bytes`, which its phase then waits for.

    `after` is an element of a tile there, with the extents of what the block has written of it: the
    arrival is behind the writes of all threads. One that is `of_cluster` publishes what they wrote
    elsewhere than in the block's own memory, too: that costs a fence of the whole GPU.
    """

    name = "remote_arrival"

    barrier: ir.TensorLoad
    rank: ir.Expr
    after: tuple[ir.Expr, ...] = field(default=(), metadata=VARARGS)
    bytes: int = 0
    box: Any = ()
    of_cluster: bool = True

    def effects(self) -> OperatorEffects:
        return (
            super()
            .effects()
            ._replace(reads=self.after, is_atomic=True, arrives_at=self.barrier, ranks=[self.rank])
        )


@tile_operator
class RemoteStore(ValueOp):
    """Store a value to an element of a tile of another block."""

    name = "remote_store"
    outputs = ("target",)

    target: ir.TensorLoad
    value: ir.Expr
    rank: ir.Expr

    def effects(self) -> OperatorEffects:
        return super().effects()._replace(ranks=[self.rank])


@tile_operator
class RemoteCopy(ValueOp):
    """Begin to copy a run of a tile to another block, where an mbarrier counts the bytes."""

    name = "remote_copy"
    inputs = ("source",)
    outputs = ("target",)

    target: ir.TensorLoad
    source: ir.TensorLoad
    barrier: ir.TensorLoad
    rank: ir.Expr
    bytes: int = 0
    box: Any = ()

    def effects(self) -> OperatorEffects:
        return super().effects()._replace(completes_on=self.barrier, ranks=[self.rank])


# Code ----------------------------------------------------------------------------------------------


has_clusters = needs(
    lambda gpu: gpu.has_clusters, "NVIDIA's GPUs from compute capability 9.0 on have clusters"
)


def join_blocks(context: LoweringContext) -> None:
    """Let the blocks of a cluster wait for each other behind the setup, and at the kernel's end."""
    barrier = _barrier(context)
    context.setup[:] = [step for step in context.setup if not is_cluster_barrier(step)] + [barrier]


def _barrier(context: LoweringContext) -> tirx.Stmt:
    """A barrier of the cluster, of which there is one at the kernel's end, too."""
    barrier = sync("cluster")
    if not any(map(is_cluster_barrier, context.teardown)):
        context.teardown.append(barrier)
    return barrier


@lowering(BlockRank, target="cuda", variant="register", fits=has_clusters)
def _(_op: BlockRank, _context: LoweringContext) -> ir.Expr:
    """A special register."""
    return T.cuda.mov_sreg(32, "cluster_ctarank")


@lowering(JoinCluster, target="cuda", variant="barrier", fits=has_clusters)
def _(_op: JoinCluster, context: LoweringContext) -> tirx.Stmt:
    """A barrier of the cluster, and one where the kernel ends."""
    return _barrier(context)


@lowering(RemoteArrival, target="cuda", variant="mbarrier", fits=has_clusters)
def _(op: RemoteArrival, _: LoweringContext) -> tirx.Stmt:
    """One instruction; what it publishes is seen by who waits there."""
    expect, count = (".expect_tx", [tirx.const(op.bytes, "uint32")]) if op.bytes else ("", [])
    order = ".release.cluster" if op.of_cluster else ""
    name = f"mbarrier.arrive{expect}{order}.shared::cluster.b64"
    return _mapped([op.barrier], op.rank, lambda barrier: ptx(name)(barrier, *count))


@lowering(RemoteStore, target="cuda", variant="st", fits=has_clusters)
def _(op: RemoteStore, _: LoweringContext) -> tirx.Stmt:
    """One instruction, of the element's bits."""
    bits = int(DataType(str(op.value.ty.dtype)).bits)
    value = tirx.reinterpret(f"uint{bits}", op.value)
    store = ptx(f"st.shared::cluster.b{bits}")
    return _mapped([op.target], op.rank, lambda target: store(target, value))


@lowering(RemoteCopy, target="cuda", variant="bulk", fits=has_clusters)
def _(op: RemoteCopy, _: LoweringContext) -> tirx.Stmt:
    """One instruction."""
    copy = ptx("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes")
    source, size = T.address_of(op.source), tirx.const(op.bytes, "uint32")
    return _mapped(
        [op.target, op.barrier],
        op.rank,
        lambda target, barrier: copy(target, source, size, barrier),
    )


def _mapped(
    elements: Sequence[ir.TensorLoad], rank: ir.Expr, call: Callable[..., ir.Expr]
) -> tirx.Stmt:
    """A call that takes the addresses of elements in the memory of another block."""
    there: ir.Var = tirx.decl_buffer((len(elements),), "uint32", name="there", scope="local")
    places = [tirx.BufferLoad(there, [index]) for index in range(len(elements))]
    block = tirx.Cast("uint32", rank)
    maps = [
        ptx("mapa.shared::cluster.u32")(
            place, T.cuda.cvta_generic_to_shared(T.address_of(element)), block
        )
        for place, element in zip(places, elements, strict=True)
    ]
    return seq([tirx.AllocBuffer(there), *map(tirx.Evaluate, [*maps, call(*places)])])
