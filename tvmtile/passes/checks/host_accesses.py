"""What a program for a GPU does outside of its kernels: the host does that."""

from __future__ import annotations

from typing import NoReturn

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mutated
from tvmtile.errors import NestingError
from tvmtile.ir.kernels import Launch, is_kernel
from tvmtile.ir.operands import describe
from tvmtile.ir.spans import location_of
from tvmtile.target import GpuCapability


def refuse_host_accesses(func: tirx.PrimFunc, capability: GpuCapability) -> None:
    """Refuse accesses of the host to the memory of a GPU, in the extents of a grid too.

    Raises
    ------
    NestingError
        For one outside of the kernels of a function.
    """

    def loop(node: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if is_kernel(node):
            launch = Launch(node)
            for axis in (*launch.blocks, *launch.threads):
                mutator.mutate(axis.extent)
            return node
        return node if node.thread_binding is not None else mutator.default_mutate(node)

    def attribute(node: tirx.AttrStmt, mutator: Mutator) -> tirx.Stmt:
        return node if node.attr_key == "thread_extent" else mutator.default_mutate(node)

    def refuse(buffer: ir.Var, way: str, node: ir.Node) -> NoReturn:
        raise NestingError(
            f"{describe(buffer)} is {way} outside T.Kernel, by the host, which does not reach the "
            f"memory of {capability.name}",
            help="move the statement into `with T.Kernel(...)`; a number that the grid depends on is a "
            "parameter, `n: T.int32`",
            location=location_of(node) or location_of(func.body),
        )

    mutated(
        func.body,
        (tirx.For, loop),
        (tirx.AttrStmt, attribute),
        (tirx.BufferStore, lambda store, _: refuse(store.buffer, "written", store)),
        (ir.TensorLoad, lambda load, _: refuse(buffer_of(load), "read", load)),
    )
