"""Rules for CPUs: LLVM, or TVM's generator for it, gets these wrong, or a CPU has no such operation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import DataType, ir, tirx
from tvm.target.codegen import llvm_get_intrinsic_name
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, indices_of, mapped, nodes_in
from tvmtile.codegen.cpu_math import exp2_float32, exp_float32, tanh_float32
from tvmtile.codegen.intrinsics import NAMES
from tvmtile.codegen.llvm_integers import divisor_function, wrapping_function
from tvmtile.ir.calls import op_name
from tvmtile.ir.divisions import DIVISIONS, divides_integers
from tvmtile.ir.extents import is_power_of_two
from tvmtile.ir.kernels import bound_target
from tvmtile.ir.operands import constant, integer_range, is_scalar, literal
from tvmtile.ir.rewriting import contains, mentions, replace_loop, variables_of
from tvmtile.ir.types import COMPARISONS, Binary, is_integer
from tvmtile.passes.legalize.rules import Rule, Scope
from tvmtile.target import cpu

_EXTREMA = {tirx.Max: "llvm.maxnum", tirx.Min: "llvm.minnum"}
_WRAPPING = {tirx.Add: "add", tirx.Sub: "sub", tirx.Mul: "mul"}


def _number_of_two(node: Binary, _: Scope) -> ir.Expr:
    """IEEE's maxNum or minNum, which GPUs have; of floats of 8 and 16 bits as float32."""
    dtype = str(node.ty.dtype)
    if "float" not in dtype or _is_number(node.b):
        return node
    if _is_number(node.a):
        return type(node)(node.b, node.a)
    kind, _sep, lanes = dtype.partition("x")
    bits = "64" if kind == "float64" else "32"
    wide = dtype if kind == "float64" else f"float32x{lanes}" if lanes else "float32"
    operands = [x if wide == dtype else tirx.Cast(wide, x) for x in (node.a, node.b)]
    name = f"{_EXTREMA[type(node)]}.{f'v{lanes}' if lanes else ''}f{bits}"
    result: ir.Expr = tirx.call_llvm_pure_intrin(wide, name, *operands)
    return result if wide == dtype else tirx.Cast(dtype, result)


def _is_number(value: ir.Expr) -> bool:
    if isinstance(value, tirx.Cast | tirx.Broadcast):
        return _is_number(value.value)
    return isinstance(value, tirx.IntImm) or (
        isinstance(value, tirx.FloatImm) and not math.isnan(value.value)
    )


def _of_bytes(node: Binary, _: Scope) -> ir.Expr:
    """A comparison of booleans, or the larger of two, by integers of 8 bits."""
    dtype = str(node.a.ty.dtype)
    if dtype.partition("x")[0] != "bool":
        return node
    wide = dtype.replace("bool", "int8")
    result: ir.Expr = type(node)(tirx.Cast(wide, node.a), tirx.Cast(wide, node.b))
    return tirx.Cast(dtype, result) if type(node) in _EXTREMA else result


def _modular(node: Any, scope: Scope) -> ir.Expr:
    dtype = str(node.ty.dtype)
    if not dtype.startswith(("uint32", "uint64")):
        return node
    name, text = wrapping_function(_WRAPPING[type(node)], dtype)
    scope.imports.append(text)
    return tirx.call_pure_extern(dtype, name, node.a, node.b)


def _branch(node: tirx.And | tirx.Or, _: Scope) -> Any:
    if int(node.ty.dtype.lanes) > 1 or not contains(node.b, ir.TensorLoad):
        return node
    if isinstance(node, tirx.And):
        return tirx.if_then_else(node.a, node.b, tirx.const(False, "bool"))
    return tirx.if_then_else(node.a, tirx.const(True, "bool"), node.b)


_FLOAT32 = {"tirx.exp": exp_float32, "tirx.exp2": exp2_float32, "tirx.tanh": tanh_float32}
_NARROW = ("float16", "bfloat16")
# In the C library; TVM has no rule for them, or one that loses small arguments.
_IN_LIBRARY = {
    f"tirx.{name}": {"float32": f"{name}f", "float64": name}
    for name in ("acosh", "asinh", "atanh", "fmod", "tanh")
}
_FUNCTIONS = {f"tirx.{name}" for name in (*NAMES, "erf", "hypot", "ldexp", "log1p", "tanh")}


def _function(call: ir.Call, _: Scope) -> ir.Expr:
    """A function of float32 as arithmetic (`tvmtile.codegen.cpu_math`), or a call of the C library.

    Functions of floats of 16 bits are computed in float32 and rounded once.
    """
    name = op_name(call)
    if name not in _FUNCTIONS:
        return call
    dtype = str(call.ty.dtype)
    if dtype not in _NARROW:
        return _computed(call, name, dtype)
    wide = [
        tirx.Cast("float32", arg) if str(arg.ty.dtype) == dtype else arg  # ldexp takes an integer
        for arg in call.args
    ]
    widened = ir.Call(call.op, wide, attrs=call.attrs, span=call.span, ret_ty="float32")
    return tirx.Cast(dtype, _computed(widened, name, "float32"))


def _computed(call: ir.Call, name: str, dtype: str) -> ir.Expr:
    if name in _FLOAT32 and dtype == "float32":
        return _FLOAT32[name](*call.args)
    function = _IN_LIBRARY.get(name, {}).get(dtype)
    return call if function is None else T.call_pure_extern(dtype, function, *call.args)


def _guarded_division(division: Binary, scope: Scope) -> ir.Expr:
    """A division by 1 where the divisor is 0, or where it is -1 and would divide the least integer.

    So `x // 0` is x, `x % 0` is 0, and `least // -1`, which has no value in its dtype, wraps around.
    """
    if not divides_integers(division):
        return division
    divisor = _divisor(division.a, division.b, scope)
    return type(division)(division.a, divisor, division.span)


def _divisor(a: Any, b: Any, scope: Scope) -> Any:
    dtype = str(b.ty.dtype)
    low, _ = integer_range(str(DataType(dtype).with_lanes(1)))
    least_divisor, _ = scope.bounds(b)
    if least_divisor >= 0:
        return b if least_divisor > 0 else tirx.max(b, tirx.const(1, dtype))
    name, text = divisor_function(dtype)
    scope.imports.append(text)
    may_be_least = scope.bounds(a)[0] <= low
    return tirx.call_pure_extern(dtype, name, a if may_be_least else tirx.const(0, dtype), b)


_BITWISE = (tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor)
_REORDERED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, *_BITWISE)
_MOST_REORDERED = 50
"""With more of these operators a name is one that Python's large expressions are cut into."""
_FEW = 16
"""Iterations, of which a loop has to have as many for LLVM to vectorise it without masks."""


def _opaque_part(bind: tirx.Bind, scope: Scope) -> tirx.Bind:
    """A name of a large expression of integers, in an exclusive `or` with an unknown zero."""
    if scope.launch is None or not _is_large(bind):
        return bind
    zero = scope.zeros.of(str(bind.value.ty.dtype))
    return tirx.Bind(bind.var, bind.value ^ zero, bind.span)


def _opaque_extent(loop: tirx.For, scope: Scope) -> tirx.For:
    """A loop of few iterations, or maybe few, whose number is combined with an unknown zero."""
    if scope.launch is None or not _takes_few_extrema(loop):
        return loop
    zero = scope.zeros.of(str(loop.extent.ty.dtype))
    return replace_loop(loop, extent=loop.extent ^ zero)


def _takes_few_extrema(loop: tirx.For) -> bool:
    extent = literal(loop.extent)
    return (
        loop.kind == tirx.ForKind.SERIAL
        and (extent is None or (1 < extent < _FEW and not is_power_of_two(extent)))
        and contains(loop.body, ir.Call, _is_extremum)
    )


def _is_extremum(call: ir.Call) -> bool:
    is_intrinsic = op_name(call) == "tirx.call_llvm_pure_intrin"
    return is_intrinsic and llvm_get_intrinsic_name(int(call.args[0])) in _EXTREMA.values()


def _is_large(bind: tirx.Bind) -> bool:
    value = bind.value
    is_number = is_integer(value) and is_scalar(value)
    return is_number and len(list(nodes_in(value, _REORDERED))) > _MOST_REORDERED


def _divides(func: tirx.PrimFunc) -> bool:
    return contains(func.body, DIVISIONS, divides_integers)


def _opaque_store(store: tirx.BufferStore, scope: Scope) -> tirx.Stmt:
    """A store of an integer that may have been truncated, in an exclusive `or` with an unknown zero."""
    if scope.launch is None or not _may_be_truncated(store.value):
        return store
    value = store.value ^ scope.zeros.of(str(store.value.ty.dtype))
    return tirx.BufferStore(buffer_of(store), value, indices_of(store), span=store.span)


def _may_be_truncated(value: ir.Expr) -> bool:
    """Tell whether LLVM may compute a value in more bits than it has.

    Of 8 and 16 bits, all that is computed: the machine multiplies and shifts in more of them.
    """
    dtype = DataType(str(value.ty.dtype))
    if dtype.lanes != 1 or not is_integer(value):
        return False
    if dtype.bits > 16:
        return dtype.bits == 32 and contains(value, tirx.Cast, _narrows)
    return not isinstance(value, ir.TensorLoad | tirx.IntImm)


def _narrows(cast: tirx.Cast) -> bool:
    return DataType(str(cast.value.ty.dtype)).bits > DataType(str(cast.ty.dtype)).bits


def _truncates_masked(func: tirx.PrimFunc) -> bool:
    target = bound_target(func)
    return target is not None and cpu(target).truncates_masked


def _opaque_load_index(load: ir.TensorLoad, scope: Scope) -> ir.Expr:
    return tirx.BufferLoad(buffer_of(load), _opaque_remainders(indices_of(load), scope), load.span)


def _opaque_store_index(store: tirx.BufferStore, scope: Scope) -> tirx.Stmt:
    indices = _opaque_remainders(indices_of(store), scope)
    return tirx.BufferStore(buffer_of(store), store.value, indices, span=store.span)


def _opaque_remainders(indices: Sequence[ir.Expr], scope: Scope) -> list[ir.Expr]:
    """Indices in which what is divided by a power of two is combined with an unknown zero."""
    if scope.launch is None:
        return list(indices)

    def remainder(node: tirx.FloorMod) -> Any:
        divisor = constant(node.b)
        if divisor is None or not is_power_of_two(divisor):
            return node
        return tirx.floormod(opaque(node.a), node.b)

    def masked(node: tirx.BitwiseAnd) -> Any:
        mask = constant(node.b)
        if mask is None or not is_power_of_two(mask + 1):
            return node
        return tirx.bitwise_and(opaque(node.a), node.b)

    def opaque(value: ir.Expr) -> ir.Expr:
        dtype = str(value.ty.dtype)
        if not dtype.startswith("int") or "x" in dtype or not variables_of(value):
            return value
        zero = scope.zeros.of(dtype)
        return value if mentions(value, zero) else value ^ zero

    visits = (tirx.FloorMod, remainder), (tirx.BitwiseAnd, masked)
    return [mapped(index, *visits) for index in indices]


def _has_remainders(func: tirx.PrimFunc) -> bool:
    return contains(func.body, (tirx.FloorMod, tirx.BitwiseAnd))


EXTREMA = Rule(
    "maxima and minima of floats",
    tuple(_EXTREMA),
    _number_of_two,
    "TVM's generator for LLVM",
    "it gives the second operand where either is NaN, and not the number",
)

OPERATIONS = (
    Rule(
        "comparisons of booleans",
        (*COMPARISONS, *_EXTREMA),
        _of_bytes,
        "TVM's generator for LLVM",
        "it takes what is neither a signed nor an unsigned integer for a float",
    ),
    Rule(
        "arithmetic of unsigned integers",
        tuple(_WRAPPING),
        _modular,
        "TVM's generator for LLVM",
        "it says that nothing overflows: a hash, or `T.max(a + b, b)`, gets a wrong value",
    ),
    Rule(
        "`and` and `or` whose right side loads",
        (tirx.And, tirx.Or),
        _branch,
        "TVM's generator for LLVM",
        "it computes both sides; the left one may be what keeps the index of the right one inside",
    ),
    Rule(
        "functions of floats",
        (ir.Call,),
        _function,
        "LLVM",
        "it does not vectorise a loop around a call; TVM has no rule for some functions, loses small "
        "arguments of others, and the C library has none of 16 bits",
    ),
    Rule(
        "divisions of integers by run-time values",
        DIVISIONS,
        _guarded_division,
        "processors",
        "they end the process at a zero, and where the least integer is divided by -1",
        _divides,
        asks=True,
    ),
)

MEMORY = (
    Rule(
        "few extrema of floats",
        (tirx.For,),
        _opaque_extent,
        "LLVM 22, its vectoriser",
        "where the last iterations of a vector are masked, as in loops of fewer than 16, it leaves the "
        "loop behind the first vector",
        lambda func: contains(func.body, tirx.For, _takes_few_extrema),
        asks=True,
    ),
    Rule(
        "names of large expressions of integers",
        (tirx.Bind,),
        _opaque_part,
        "LLVM 22, its SLP vectoriser",
        "it may take integers in any order, so a sum of sums is one: of 4,000 it takes minutes",
        lambda func: contains(func.body, tirx.Bind, _is_large),
        asks=True,
    ),
    Rule(
        "stores of truncated integers",
        (tirx.BufferStore,),
        _opaque_store,
        "LLVM 22 for AVX-512",
        "it joins a truncation and a masked store into a store of the wider element, where the mask is "
        "known and leaves one: memory behind it is overwritten",
        _truncates_masked,
        asks=True,
    ),
    *(
        Rule(
            f"remainders in indices of {name}",
            (node,),
            rewrite,
            "LLVM 22, its vectoriser",
            "it sees that `j * 3 % 32` grows by 3 and forgets that it wraps around: it loads a vector "
            "of neighbours, some of which lie behind the row",
            _has_remainders,
            asks=True,
        )
        for name, node, rewrite in (
            ("loads", ir.TensorLoad, _opaque_load_index),
            ("stores", tirx.BufferStore, _opaque_store_index),
        )
    ),
)
