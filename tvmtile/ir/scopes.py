"""The memory scopes of tiles."""

from __future__ import annotations

from tvm import ir

from tvmtile._tvm import is_buffer_var

SHARED_SCOPE = "shared.dyn"
"""Memory that the threads of a block share."""
MBARRIER_SCOPE = "shared.barrier"
"""Mbarriers, which lie in shared memory as long as the block runs."""
CLUSTER_BARRIER_SCOPE = "shared.cluster_barrier"
"""Mbarriers at which blocks of a cluster arrive at each other's."""
FRAGMENT_SCOPE = "local.fragment"
"""A tile in the registers of a block's threads."""
REDUCER_SCOPE = "local.reducer."
"""Totals that iterations contribute to, less the name of the way to combine."""
SIMDGROUP_SCOPE = "metal.simdgroup"
"""A fragment that is held in 8x8 matrices of simdgroups."""


def is_fragment(buffer: ir.Var) -> bool:
    """Tell whether the elements of a buffer lie in the registers of a block's threads."""
    return is_by_elements(buffer) or is_by_matrices(buffer)


def is_by_elements(buffer: ir.Var) -> bool:
    """Tell whether a fragment is held element by element, by a layout."""
    return bool(buffer.ty.storage_scope == FRAGMENT_SCOPE)


def is_by_matrices(buffer: ir.Var) -> bool:
    """Tell whether a fragment is held in matrices of simdgroups."""
    return bool(buffer.ty.storage_scope == SIMDGROUP_SCOPE)


def is_global(buffer: ir.Var) -> bool:
    """Tell whether a buffer lies in global memory: tensors, and `T.alloc_global`."""
    return bool(buffer.ty.storage_scope == "global")


def is_tensor(var: ir.Var) -> bool:
    """Tell whether a variable of any kind is a buffer in global memory."""
    return is_buffer_var(var) and is_global(var)


def is_shared(buffer: ir.Var) -> bool:
    """Tell whether a buffer lies in memory that the threads of a block share."""
    return buffer.ty.storage_scope in (SHARED_SCOPE, "shared") or is_mbarrier(buffer)


def is_mbarrier(buffer: ir.Var) -> bool:
    """Tell whether a buffer holds mbarriers."""
    return buffer.ty.storage_scope in (MBARRIER_SCOPE, CLUSTER_BARRIER_SCOPE)


def is_cluster_mbarrier(buffer: ir.Var) -> bool:
    """Tell whether other blocks of the cluster may arrive at the mbarriers of a buffer."""
    return bool(buffer.ty.storage_scope == CLUSTER_BARRIER_SCOPE)


def is_private(buffer: ir.Var) -> bool:
    """Tell whether every thread has a copy of its own: `T.alloc_local` and `T.alloc_var`."""
    return buffer.ty.storage_scope in ("local", "local.var")


def is_local_array(buffer: ir.Var) -> bool:
    """Tell whether every thread has an array of its own: `T.alloc_local`."""
    return bool(buffer.ty.storage_scope == "local")


def is_in_registers(buffer: ir.Var) -> bool:
    """Tell whether threads hold a buffer: each a copy of its own, or each some of the elements."""
    return is_private(buffer) or is_fragment(buffer)


def is_of_block(buffer: ir.Var) -> bool:
    """Tell whether a block has one of a tile: in shared memory, in fragments, of reducers."""
    return not is_global(buffer) and not is_private(buffer)
