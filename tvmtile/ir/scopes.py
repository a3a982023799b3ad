"""The memory scopes of tiles."""

from __future__ import annotations

from tvm import ir

__all__ = ["FRAGMENT_SCOPE", "SHARED_SCOPE", "SIMDGROUP_SCOPE", "is_fragment", "is_shared"]

SHARED_SCOPE = "shared.dyn"
"""Memory that the threads of a block share."""
FRAGMENT_SCOPE = "local.fragment"
"""A tile in the registers of a block's threads."""
SIMDGROUP_SCOPE = "metal.simdgroup"
"""A fragment that is held in 8x8 matrices of simdgroups."""


def is_fragment(buffer: ir.Var) -> bool:
    """Tell whether the elements of a buffer lie in the registers of a block's threads."""
    return buffer.ty.storage_scope in (FRAGMENT_SCOPE, SIMDGROUP_SCOPE)


def is_shared(buffer: ir.Var) -> bool:
    """Tell whether the threads of a block share a buffer."""
    return buffer.ty.storage_scope in (SHARED_SCOPE, "shared")
