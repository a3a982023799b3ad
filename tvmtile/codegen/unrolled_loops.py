"""Loops that the compiler of a kernel's source is to unroll.

TVM's generator for CUDA asks for that; its generator for Metal prints a loop like any other.
"""

from __future__ import annotations

from tvm import tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.device import device_pass
from tvmtile.ir.kernels import with_body
from tvmtile.ir.rewriting import seq

UNROLL_NEXT = "tvmtile_unroll_next"
"""What is called in front of a loop, for `metal_source.complete` to write a pragma instead."""


@device_pass("MarkUnrolled")
def MarkUnrolled(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Mark the loops that are still to be unrolled in kernels for Metal."""
    if kind != "metal":
        return func

    def marked(loop: tirx.For) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.UNROLLED:
            return loop
        return seq([tirx.Evaluate(tirx.call_extern("void", UNROLL_NEXT)), loop])

    return with_body(func, mapped(func.body, (tirx.For, marked)))
