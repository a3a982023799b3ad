"""The intrinsics of TVM that tile operators are, by name.

A leaf of the package, which imports nothing before it is needed: TVM has it called while TVM is being
imported itself, perhaps by `tvmtile.errors`.
"""

from __future__ import annotations

from typing import Any, NoReturn

_ASYNCHRONOUS = ("async_issue", "async_multiply", "async_signal", "async_wait")
"""Statements of a thread about asynchronous work (`tvmtile.ir.asynchronous`)."""

VALUES = ("may_share", "tensor_map")
"""Addresses for kernels: of a tensor that may share memory (`tvmtile.analysis.aliases`), of a
tensor map (`tvmtile.ir.tensor_maps`)."""

_PURE = ("block_rank_in_cluster", "rounded", "rounded_cast", *VALUES)
"""Operators that only compute a value."""


_registered: set[str] = set()


def is_registered(name: str) -> bool:
    """Tell whether `T.tvmtile` has an operator of that name."""
    return name in _registered


def register_operators() -> None:
    """Add the operators that no class declares to TVM; a class adds its own. Idempotent."""
    for name in (*_ASYNCHRONOUS, *VALUES):
        register_operator(name)


def register_operator(name: str) -> None:
    """Add the operator `tvmtile.<name>` to TVM. Idempotent."""
    if name in _registered:
        return
    from tvmtile._tvm import OPAQUE, PURE, register_op, register_op_attr

    _registered.add(name)
    intrinsic = f"tvmtile.{name}"
    register_op(intrinsic, f"Tile operator {name}.")
    register_op_attr(intrinsic, "TCallEffectKind", PURE if name in _PURE else OPAQUE)
    register_op_attr(intrinsic, "TScriptPrinterName", intrinsic)
    register_op_attr(intrinsic, "default.FLowerIntrinsic", _refuse_to_generate)


def _refuse_to_generate(call: Any) -> NoReturn:
    """Say what to do where a pipeline leaves a tile operator to TVM's code generator."""
    from tvmtile.errors import NoLowering
    from tvmtile.ir.calls import op_name
    from tvmtile.ir.spans import location_of

    raise NoLowering(
        f"the tile operator {op_name(call)} has come to TVM's code generator",
        help='compile with tir_pipeline="tvmtile", or run tvmtile.passes.LowerTilePrograms(target) on '
        "the module before the pipeline of your own",
        location=location_of(call),
    )
