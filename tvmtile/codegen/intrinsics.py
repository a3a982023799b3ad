"""Which function of its language computes each of TVM's intrinsics in a kernel of ours."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.codegen import cuda_math, metal_math, metal_shuffles
from tvmtile.codegen.device import device_pass
from tvmtile.codegen.float_functions import Rule, operator
from tvmtile.codegen.opaque import shown_if_cheap
from tvmtile.ir.kernels import with_body


@device_pass("LowerIntrinsics")
def LowerIntrinsics(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Call the functions of a GPU's language where TVM has no rule for an intrinsic, or another one.

    TVM's own pass of this purpose takes its rules from a table of the process, which the kernels of
    others are lowered with too.
    """
    rules = {**_RULES[kind], "tvmtile.opaque": shown_if_cheap}

    def lowered(call: ir.Call) -> ir.Expr:
        rule = rules.get(getattr(call.op, "name", ""))
        return call if rule is None else rule(call)

    return with_body(func, mapped(func.body, (ir.Call, lowered)))


def _by_operator(rules: dict[str, Rule]) -> dict[str, Rule]:
    return {operator(name).name: rule for name, rule in rules.items()}


_RULES = {
    "cuda": _by_operator(cuda_math.RULES),
    "metal": _by_operator({**metal_math.RULES, **metal_shuffles.RULES}),
}
