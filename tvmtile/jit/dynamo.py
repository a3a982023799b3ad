"""Kernels in code that torch.compile traces."""

from __future__ import annotations

import sys

DYNAMO = "torch._dynamo"
"""The module that is there before anything is traced."""

_MESSAGE = (
    "a kernel of tvmtile is no operator of torch's, and is called outside of the graph; "
    "@tvmtile.torch_op over the kernel, or kernel.as_torch_op(name), keeps it in the graph"
)


def break_graph() -> None:
    """Where Dynamo traces the caller, end its graph before the call, and say how to keep it whole."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break(msg=_MESSAGE)
