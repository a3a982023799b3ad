"""Kernels in code that torch.compile traces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

Result = TypeVar("Result")

_MESSAGE = (
    "a kernel of tvmtile is no operator of torch's, and is called outside of the graph; "
    "@tvmtile.torch_op over the kernel, or kernel.as_torch_op(name), keeps it in the graph"
)


def is_traced() -> bool:
    """Tell whether Dynamo traces the caller, or would trace what that calls."""
    torch = sys.modules.get("torch")
    if torch is None or "torch._dynamo" not in sys.modules:
        return False
    return torch.compiler.is_dynamo_compiling() or frame_callback(torch)() is not None


def frame_callback(torch: ModuleType) -> Callable[[], object]:
    """A function that tells what Dynamo does with new frames: nothing with a torch that can't."""
    return getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)


def untraced(
    function: Callable[..., Result], args: tuple[Any, ...], named: Mapping[str, Any]
) -> Result:
    """Call a function where Dynamo traces the caller: its graph ends before, and goes on behind.

    Of what the function does nothing is traced. A graph that is to stay whole is an error of Dynamo's,
    which says how the kernel gets into it.
    """
    global _call_untraced
    import torch

    torch._dynamo.graph_break(msg=_MESSAGE)  # nothing, where the caller is not traced itself
    if _call_untraced is None:
        # Not compiled for each kind of kernel either, of which Dynamo keeps a few.
        torch._dynamo.eval_frame.skip_code(untraced.__code__)
        _call_untraced = torch._dynamo.disable(_call)
    return _call_untraced(function, args, named)


_call_untraced: Any = None
"""`_call`, for which Dynamo steps aside: made when it is first needed, since that imports Dynamo."""


def _call(
    function: Callable[..., Result], args: tuple[Any, ...], named: Mapping[str, Any]
) -> Result:
    return function(*args, **named)
