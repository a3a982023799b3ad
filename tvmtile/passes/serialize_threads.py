"""SerializeThreads: a CPU runs the threads of a block one after the other."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvmtile.passes.kernels import Launch, is_kernel, prim_func_pass
from tvmtile.rewriting import with_children

__all__ = ["SerializeThreads"]


@prim_func_pass("SerializeThreads")
def SerializeThreads(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Remove the thread loops of a kernel whose body does not depend on the thread."""
    del context

    def serialize(loop: tirx.For, mutator: Any) -> Any:
        if not is_kernel(loop):
            return mutator.default_mutate(loop)
        launch = Launch(loop)
        body = launch.body
        for block in reversed(launch.blocks):
            body = with_children(block, body=body)
        return body

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, serialize)]))
