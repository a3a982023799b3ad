"""Passes over the kernels' code after TVM has split it from the host's.

TVM's last passes and its generators see all functions of a module. Ours are marked, so that what we
rewrite for the generators' sake is rewritten in them only.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

_MARK = "tvmtile.device_code"

DeviceRule = Callable[[tirx.PrimFunc, str], tirx.PrimFunc]
"""Rewrites a kernel for the kind of target that it is for."""


def marked(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function that came of a tile program, for `device_pass` to know."""
    return func.with_attr(_MARK, True)


def device_pass(name: str) -> Callable[[DeviceRule], ir.transform.Pass]:
    """Make a pass over the kernels of tile programs of a function `(func, kind) -> func`."""

    def decorate(rule: DeviceRule) -> ir.transform.Pass:
        def run(func: tirx.PrimFunc, mod: ir.IRModule, context: object) -> tirx.PrimFunc:
            del mod, context
            if func.attrs is None or func.attrs.get(_MARK) is None:
                return func
            return rule(func, func.attrs["target"].kind.name)

        return tirx.transform.prim_func_pass(run, opt_level=0, name=f"tvmtile.{name}")

    return decorate
