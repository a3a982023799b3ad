"""Functions of floats on NVIDIA GPUs: rules for what TVM has no name for, or none for every dtype.

CUDA has functions of float32 and float64. Narrower floats are computed with in float32, and rounded
once. Where a kernel asks for a fast function, CUDA's approximation takes the place of the exact one.
"""

from __future__ import annotations

from tvm import ir
from tvm.tirx.script import builder as T

from tvmtile.codegen.cuda import FAST_TANH, value
from tvmtile.codegen.float_functions import NAMES, OTHER_NAMES, Rule, calling, scaling
from tvmtile.ir.annotations import FAST

__all__ = ["RULES"]

_OWN_NAMES = ("erf", "hypot", "log1p", "rsqrt", "tanh")
_APPROXIMATIONS = ("cos", "exp", "exp10", "log", "log10", "pow", "sin", "tan", "tanh")


def _or_fast(name: str, exact: Rule) -> Rule:
    """The approximation of a function where a call of float32 asks for it."""

    def lowered(call: ir.Call) -> ir.Expr:
        is_fast = call.attrs is not None and FAST in call.attrs.keys()  # noqa: SIM118
        if not is_fast or str(call.ty.dtype) != "float32":
            return exact(call)
        if name == "tanh":
            return value("float32", FAST_TANH, *call.args)
        return T.call_pure_extern("float32", f"__{name}f", *call.args)

    return lowered


def _rules() -> dict[str, Rule]:
    names = {name: name for name in (*NAMES, *_OWN_NAMES)} | OTHER_NAMES
    rules = {name: calling({"float32": f"{own}f", "float64": own}) for name, own in names.items()}
    rules |= {name: _or_fast(name, rules[name]) for name in _APPROXIMATIONS}
    rules["ldexp"] = scaling({"float32": "ldexpf", "float64": "ldexp"})
    return rules


RULES = _rules()
"""How each function is called, by the name of TVM's intrinsic."""
