"""What functions of the threads of a block share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tvm import ir, tirx

from tvmtile.frontend.emit import require_program
from tvmtile.ir.spans import current_span
from tvmtile.ir.threads import ALL_LANES

_Function = TypeVar("_Function", bound=Callable[..., Any])


def of_threads(function: _Function) -> _Function:
    """A function whose work is statements: an error outside of a program, before they are made."""

    @functools.wraps(function)
    def checked(*args: object, **kwargs: object) -> object:
        require_program(function.__name__)
        return function(*args, **kwargs)

    return cast(_Function, checked)


def located(call: ir.Call) -> ir.Call:
    """The call, with the line of the kernel."""
    return ir.Call(call.op, call.args, call.attrs, span=current_span(), ret_ty=call.ty)


def lanes_of(mask: Any) -> Any:
    """The lanes of a mask, as the bits of a `uint32`."""
    is_known = isinstance(mask, int)  # -1 for all lanes is a habit of CUDA
    return tirx.const(mask & ALL_LANES, "uint32") if is_known else tirx.Cast("uint32", mask)
