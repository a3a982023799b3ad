"""T.copy by the tensor memory accelerator of NVIDIA's GPUs: one thread begins it, all wait."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.analysis.kernel_info import info_of
from tvmtile.ir.asynchronous import BULK_STORE, wait
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.operators import operators_in, values_outside
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import MBARRIER_SCOPE, is_shared
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.elementwise import moving_axes
from tvmtile.tileop.mbarrier import InitMbarriers, Mbarrier
from tvmtile.tileop.registry import ON_MBARRIER, Decline, LoweringContext, lowering
from tvmtile.tileop.tma.boxes import BoxCopy
from tvmtile.tileop.tma.copies import by_leader, check_fits, check_stores, fence, load, store
from tvmtile.tileop.tma.instructions import has_bulk_copies


def _fits(op: Copy, context: LoweringContext) -> None:
    src, dst = buffer_of(op.src), buffer_of(op.dst)
    scopes = {buffer.ty.storage_scope: buffer for buffer in (src, dst)}
    if is_shared(src) == is_shared(dst) or "global" not in scopes:
        raise Decline("it does not copy between global and shared memory")
    body, tensor = context.launch.body, scopes["global"]
    others = info_of(body).effects_on(tensor)
    if tensor.same_as(src) and any(access.writes for access in others):
        raise Decline(f"the kernel writes {describe(tensor)}")
    if tensor.same_as(dst) and any(access.reads for access in others):
        raise Decline(f"the kernel reads {describe(tensor)}")
    if src in _values_outside(body):
        raise Decline(f"outside of {describe(src)} there are other values than zero")
    _check_rows(op.dst if is_shared(dst) else op.src)
    has_bulk_copies(op, context)
    (check_fits if is_shared(dst) else check_stores)(op.src, op.dst, context)


def _check_rows(tile: ir.TensorRegion) -> None:
    """Whatever layout the tile gets, its rows move whole."""
    last = len(ranges_of(tile)) - 1
    row = constant(buffer_of(tile).ty.shape[last])
    if moving_axes(tile)[-1:] != [last] or constant(ranges_of(tile)[last].extent) != row:
        raise Decline(f"{describe(tile)} has no whole rows of the tile")


def _values_outside(body: tirx.Stmt) -> set[ir.Var]:
    return {tensor for op in operators_in(body) for tensor in values_outside(op)}


@lowering(
    Copy,
    target="cuda",
    variant="tma",
    priority=-10,
    fits=_fits,
    completion=ON_MBARRIER,
)
def copy_tma(op: Copy, context: LoweringContext) -> tirx.Stmt:
    """A load has an mbarrier of its own, which all threads wait at; its phase changes each time.

    It is taken where a call asks for it: one copy at a time is no faster than by the threads.
    """
    copy = BoxCopy.of(op.src, op.dst, context.analyzer, op.eviction)
    if not is_shared(buffer_of(op.dst)):
        stored = [*store(copy, context), wait(BULK_STORE.name, 0)]
        return seq([*fence(buffer_of(op.src), context), by_leader(stored, context)])
    barriers: ir.Var = tirx.decl_buffer((1,), "uint64", name="arrived", scope=MBARRIER_SCOPE)
    parity: ir.Var = tirx.decl_buffer((1,), "int32", name="parity", scope="local")
    context.setup += [
        tirx.AllocBuffer(barriers),
        tirx.Evaluate(InitMbarriers(barriers, [1]).to_call()),
        tirx.AllocBuffer(parity),
        tirx.BufferStore(parity, tirx.const(0, "int32"), [0]),
    ]
    barrier, phase = tirx.BufferLoad(barriers, [0]), tirx.BufferLoad(parity, [0])
    return seq(
        [
            *fence(buffer_of(op.dst), context),
            by_leader(load(copy, barrier, context, arrives=True), context),
            tirx.Evaluate(Mbarrier(barrier, phase, "wait").to_call()),
            tirx.BufferStore(parity, 1 - phase, [0]),
        ]
    )
