"""Shuffles on Metal: which function of a simdgroup moves values of a dtype between its lanes.

Metal's take half, float and integers of 32 bits at most. Wider integers are moved as two halves of 32
bits, bfloat by its bits, and bool as an integer.
"""

from __future__ import annotations

from functools import cache

from tvm import ir
from tvm.tirx.script import builder as T

from tvmtile.codegen.float_functions import Rule

_FUNCTIONS = {
    "tvm_warp_shuffle": "simd_shuffle",
    "tvm_warp_shuffle_up": "simd_shuffle_up",
    "tvm_warp_shuffle_down": "simd_shuffle_down",
    "tvm_warp_shuffle_xor": "simd_shuffle_xor",
}
_AS_BITS = "as_type<{own}>({function}(as_type<{moved}>(value), lane))"
_FORMS = {
    "int64": _AS_BITS.format(own="long", moved="uint2", function="{function}"),
    "uint64": _AS_BITS.format(own="ulong", moved="uint2", function="{function}"),
    "bfloat16": _AS_BITS.format(own="bfloat", moved="ushort", function="{function}"),
    "bool": "(bool){function}((ushort)(value), lane)",
}
"""How a dtype that Metal's shuffles do not take is moved."""
_ACTIVE_LANES = "tvmtile_active_lanes"


@cache
def definition(name: str) -> str | None:
    """The text of the macro of a name; None for a name of anything else.

    A macro, so that a shuffle stands in the line of the kernel where the lanes meet.
    """
    if name == _ACTIVE_LANES:
        return f"#define {name}() (uint)((simd_vote::vote_t)simd_active_threads_mask())\n"
    function, _, dtype = name.removeprefix("tvmtile_").rpartition("_")
    if dtype not in _FORMS or function not in _FUNCTIONS.values():
        return None
    return f"#define {name}(value, lane) {_FORMS[dtype].format(function=function)}\n"


def _rule(function: str) -> Rule:
    def lowered(call: ir.Call) -> ir.Expr:
        _, value, lane, *_ = call.args
        dtype = str(call.ty.dtype)
        name = f"tvmtile_{function}_{dtype}" if dtype in _FORMS else function
        return T.call_pure_extern(dtype, name, value, lane)

    return lowered


RULES = {
    **{name: _rule(function) for name, function in _FUNCTIONS.items()},
    "tvm_warp_activemask": lambda call: T.call_extern(str(call.ty.dtype), _ACTIVE_LANES),
}
"""How what lanes do together is called, by the name of TVM's intrinsic."""
