"""Functions of floats on NVIDIA GPUs: rules for what TVM has no name for, or none for every dtype.

CUDA has functions of float32 and float64. Narrower floats are computed with in float32, and rounded
once. Where a kernel asks for a fast function, CUDA's approximation takes the place of the exact one.
"""

from __future__ import annotations

from tvm import DataType, ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.codegen.cuda import FAST_EXP2, FAST_TANH, value
from tvmtile.codegen.float_functions import NAMES, OTHER_NAMES, Rule, calling, scaling, widened
from tvmtile.ir.annotations import FAST

_OWN_NAMES = ("erf", "hypot", "log1p", "rsqrt", "tanh")
APPROXIMATIONS = ("cos", "exp", "exp10", "exp2", "log", "log10", "log2", "sin", "tan", "tanh")
"""The functions of which CUDA has fast ones, by the name of TVM's intrinsic."""


_OURS = {"exp2": FAST_EXP2, "tanh": FAST_TANH}
"""Those that are functions of ours, of one lane."""


def _or_fast(name: str, exact: Rule) -> Rule:
    """The approximation of a function where a call of float32, or of less, asks for it."""
    fast = _calling_ours(_OURS[name]) if name in _OURS else calling({"float32": f"__{name}f"})

    def lowered(call: ir.Call) -> ir.Expr:
        is_fast = call.attrs is not None and FAST in call.attrs.keys()  # noqa: SIM118
        dtype = DataType(str(call.ty.dtype))
        has_fast = dtype.bits <= 32 and (name not in _OURS or dtype.lanes == 1)
        return fast(call) if is_fast and has_fast else exact(call)

    return lowered


def _calling_ours(name: str) -> Rule:
    return widened(lambda call: value("float32", name, *call.args))


def _popcount(call: ir.Call) -> ir.Expr:
    """CUDA counts the bits of 32 and 64 without a sign."""
    (operand,) = call.args
    dtype = DataType(str(operand.ty.dtype))
    lanes = "" if dtype.lanes == 1 else f"x{dtype.lanes}"
    bits, function = (64, "__popcll") if dtype.bits == 64 else (32, "__popc")
    own = tirx.Cast(f"uint{dtype.bits}{lanes}", operand)
    wide = tirx.Cast(f"uint{bits}{lanes}", own)
    return tirx.Cast(str(call.ty.dtype), T.call_pure_extern(f"int32{lanes}", function, wide))


def _rules() -> dict[str, Rule]:
    names = {name: name for name in (*NAMES, *_OWN_NAMES)} | OTHER_NAMES
    rules = {name: calling({"float32": f"{own}f", "float64": own}) for name, own in names.items()}
    rules |= {name: _or_fast(name, rules[name]) for name in APPROXIMATIONS}
    rules["ldexp"] = scaling({"float32": "ldexpf", "float64": "ldexp"})
    rules["popcount"] = _popcount
    return rules


RULES = _rules()
"""How each function is called, by the name of TVM's intrinsic."""
