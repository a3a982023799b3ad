"""How the passes recognise tile programs: the loops that `T.Kernel` writes."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile.language.kernel import KERNEL_ANNOTATION

__all__ = ["Launch", "is_kernel", "is_tile_program", "launch_of", "prim_func_pass"]


def is_kernel(node: Any) -> bool:
    """Tell whether a statement is the outermost loop of a `T.Kernel`."""
    return isinstance(node, tirx.For) and KERNEL_ANNOTATION in node.annotations


def is_tile_program(func: Any) -> bool:
    """Tell whether a function of a module holds a `T.Kernel`."""
    if not isinstance(func, tirx.PrimFunc):
        return False
    found = tvm_ffi.structural_walk(
        func.body,
        (tirx.For, lambda loop: tvm_ffi.VisitInterrupt(True) if is_kernel(loop) else None),
        order="pre",
    )
    return found is not None


class Launch:
    """The loops of a `T.Kernel`, taken apart.

    Attributes
    ----------
    blocks, threads : list of tirx.For
        The loops bound to `blockIdx` and `threadIdx`, outermost first.
    body : Stmt
        What a block does.
    """

    def __init__(self, loop: tirx.For) -> None:
        self.blocks: list[tirx.For] = []
        self.threads: list[tirx.For] = []
        node: Any = loop
        while isinstance(node, tirx.For) and node.thread_binding is not None:
            tag = node.thread_binding.thread_tag
            (self.blocks if tag.startswith("blockIdx") else self.threads).append(node)
            node = node.body
        self.body: tirx.Stmt = node

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        count = 1
        for loop in self.threads:
            count *= int(loop.extent)
        return count


launch_of = Launch


def prim_func_pass(name: str) -> Any:
    """Decorate a rewriting `(func, context) -> func` as a pass over the tile programs of a module."""

    def decorate(function: Any) -> Any:
        def transform(func: tirx.PrimFunc, mod: ir.IRModule, context: Any) -> tirx.PrimFunc:
            del mod
            return function(func, context) if is_tile_program(func) else func

        transform.__doc__ = function.__doc__
        return tirx.transform.prim_func_pass(transform, opt_level=0, name=f"tvmtile.{name}")

    return decorate
