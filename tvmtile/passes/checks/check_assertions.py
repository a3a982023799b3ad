"""CheckAssertions: a kernel stops with an error only where the target can stop it."""

from __future__ import annotations

from tvm import tirx

from tvmtile._tvm import walk
from tvmtile.errors import NoLowering
from tvmtile.ir.kernels import target_of
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.spans import location_of


@prim_func_pass("CheckAssertions")
def CheckAssertions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse assertions of kernels on Metal, which has no way to stop one. The program is not changed.

    ```
    T.device_assert(n > 0, "n > 0")       # refused for Metal
    ```

    Raises
    ------
    NoLowering
        If there is such an assertion.
    """
    if target_of(func).kind.name == "metal":
        walk(func.body, (tirx.AssertStmt, _refuse))
    return func


def _refuse(node: tirx.AssertStmt) -> None:
    raise NoLowering(
        "T.device_assert: a kernel on Metal can't stop with an error",
        help="show what is wrong by T.print, or check it before the launch",
        location=location_of(node),
    )
