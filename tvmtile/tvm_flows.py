"""Tile programs in the flows of TVM that know nothing of them: its default pipelines, and Relax.

TVM calls these through its own registries. For a module without tile programs they do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import ir, relax

from tvmtile.ir.kernels import in_root_block, is_tile_program, without_root_block

__all__ = ["legalize_call", "with_tile_programs"]


def with_tile_programs(factory: Callable[[], Any]) -> tuple[Any, Any, Any]:
    """A pipeline of TVM's that lowers tile programs too, where a module has some.

    Parameters
    ----------
    factory : callable
        Makes TVM's pipeline, which all other functions go through.

    Returns
    -------
    tuple
        As of `tvmtile.tvm_pipeline.tvm_pipeline`.
    """
    chosen = factory()

    @tvm.transform.module_pass(opt_level=0, name="tvmtile.with_tile_programs")
    def run(mod: ir.IRModule, context: Any) -> ir.IRModule:
        nonlocal chosen
        del context
        if any(map(is_tile_program, mod.functions.values())):
            from tvmtile.tvm_pipeline import (
                tvm_pipeline,  # the compiler, which others need not load
            )

            chosen = tvm_pipeline(others=factory)
        return chosen[0](mod)

    def finalize_host() -> Any:
        return chosen[1]()

    def finalize_on_device() -> Any:
        return chosen[2]()

    return run, finalize_host, finalize_on_device


def legalize_call(builder: relax.BlockBuilder, call: relax.Call) -> relax.Call:
    """Put the body of a tile program that Relax calls into a block, which its later passes insist on.

    Parameters
    ----------
    builder : tvm.relax.BlockBuilder
        Of LegalizeOps, with the module.
    call : tvm.relax.Call
        A `relax.call_tir` of any function.

    Returns
    -------
    tvm.relax.Call
        The same call.
    """
    name = call.args[0]
    func = builder.get()[name]
    if is_tile_program(func):
        builder.update_func(name, in_root_block(without_root_block(func)))
    return call
