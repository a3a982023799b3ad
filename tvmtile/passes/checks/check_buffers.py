"""CheckBuffers: a kernel takes no more tensors than its GPU binds."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile._tvm import is_buffer_var, walk
from tvmtile.errors import InvalidOperand, SourceLocation
from tvmtile.ir.kernels import bound_target
from tvmtile.ir.spans import location_of
from tvmtile.target import gpu


def _check_buffers(func: tirx.PrimFunc, mod: ir.IRModule, context: PassContext) -> tirx.PrimFunc:
    del mod, context
    target = bound_target(func)
    capability = gpu(target) if target is not None and target.host is None else None
    if capability is None or capability.max_buffers is None:
        return func
    tensors = sum(map(_is_tensor, func.params))
    scalars = len(func.params) - tensors
    buffers = tensors + (scalars > 0)
    if buffers > capability.max_buffers:
        also = ", and its scalars take one more" if scalars else ""
        raise InvalidOperand(
            f"T.Kernel: the kernel uses {tensors} tensors{also}; "
            f"{capability.name} binds {capability.max_buffers} buffers to a kernel",
            help="pass several tensors of a dtype as one with a leading axis, or use several kernels",
            location=_location(func),
        )
    return func


CheckBuffers = tirx.transform.prim_func_pass(
    _check_buffers, opt_level=0, name="tvmtile.CheckBuffers"
)
"""The pass over the functions of a GPU, after they were split from those of the host.

A tensor that has views, or is used in several places, is one argument of its kernel then. All scalars
of a kernel are one buffer on Metal. The functions are not changed.

Raises
------
InvalidOperand
    If a kernel takes more buffers than the target binds to one.
"""


def _is_tensor(param: ir.Expr) -> bool:
    return is_buffer_var(param) or str(getattr(param.ty, "dtype", "handle")) == "handle"


def _location(func: tirx.PrimFunc) -> SourceLocation | None:
    """The user's first line."""
    found: list[SourceLocation] = []

    def note(node: tirx.Stmt) -> None:
        location = location_of(node)
        if location is not None and not found:
            found.append(location)

    walk(func.body, (tirx.Stmt, note), order="pre")
    return found[0] if found else None
