"""Barriers: which threads wait for each other at one, and what it says about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.ir.annotations import ARRIVE_COUNT, ARRIVES_ONLY, CLUSTER_STEP
from tvmtile.ir.calls import op_name
from tvmtile.ir.operands import constant

_NAMES = {
    "warp": "sync_warp",
    "shared": "sync_threads",
    "cluster": "cluster_sync",
    "grid": "sync_grid",
}
"""Kernels' names of barriers, by the threads that wait for each other."""


SERIAL = "serial"
"""The scope of barriers where a CPU runs threads one after the other: of those that come there."""
UNNAMED_BARRIER = 15
"""The barrier of CUDA for some of the threads where the user names none; 0 is `__syncthreads`'."""


def sync(scope: str = "shared", attrs: Mapping[str, object] | None = None) -> tirx.Evaluate:
    """Make a barrier of a scope: a warp, the block (`shared`), a cluster or the grid."""
    call = T.tvm_storage_sync(scope)
    return tirx.Evaluate(ir.Call(call.op, call.args, attrs, ret_ty=call.ty) if attrs else call)


def is_barrier(stmt: tirx.Stmt) -> TypeGuard[tirx.Evaluate]:
    """Tell whether threads wait for each other at a statement."""
    return type(stmt) is tirx.Evaluate and op_name(stmt.value) == "tirx.tvm_storage_sync"


def scope_of(stmt: tirx.Evaluate) -> str:
    """The scope of a barrier: which threads wait for each other."""
    return str(stmt.value.args[0].value)


def attributes_of(stmt: tirx.Evaluate) -> dict[str, Any]:
    """The attributes of a barrier, which are about the threads that come to it."""
    attrs = stmt.value.attrs
    return {} if attrs is None else dict(attrs.items())


def arrivals(stmt: tirx.Evaluate) -> int | None:
    """The number of threads that a barrier waits for; 0: all of the block, None: not known."""
    attrs = attributes_of(stmt)
    is_part = ARRIVES_ONLY in attrs or CLUSTER_STEP in attrs
    return None if is_part else constant(attrs.get(ARRIVE_COUNT, 0))


def is_grid_barrier(stmt: tirx.Stmt) -> TypeGuard[tirx.Evaluate]:
    """Tell whether the blocks of a grid wait for each other at a statement."""
    return is_barrier(stmt) and scope_of(stmt) == "grid"


def is_cluster_barrier(stmt: tirx.Stmt) -> TypeGuard[tirx.Evaluate]:
    """Tell whether the blocks of a cluster wait for each other at a statement, or arrive there."""
    return is_barrier(stmt) and scope_of(stmt) == "cluster"


def is_barrier_of_blocks(stmt: tirx.Stmt) -> TypeGuard[tirx.Evaluate]:
    """Tell whether blocks wait for each other at a statement, or arrive there."""
    return is_grid_barrier(stmt) or is_cluster_barrier(stmt)


def barrier_name(stmt: tirx.Evaluate) -> str:
    """The name of a barrier in a kernel: `sync_threads`."""
    attrs = attributes_of(stmt)
    if CLUSTER_STEP in attrs:
        return f"cluster_{attrs[CLUSTER_STEP]}"
    return "named_barrier_arrive" if ARRIVES_ONLY in attrs else _NAMES[scope_of(stmt)]
