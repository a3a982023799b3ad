"""Rules for NVIDIA's GPUs: TVM's generator or ptxas gets these wrong, or PTX has them otherwise."""

from __future__ import annotations

import math
import struct
from typing import Any

from tvm import DataType, ir, tirx
from tvm.tirx.script import builder as T
from tvm_ffi import structural_equal

from tvmtile._tvm import mapped
from tvmtile.codegen import cuda
from tvmtile.codegen.intrinsics import APPROXIMATIONS
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.annotations import (
    ARRIVE_COUNT,
    ARRIVES_ONLY,
    BARRIER_ID,
    CLUSTER_STEP,
    FAST,
    FAST_MATH,
    LAUNCH_BOUNDS_BLOCKS,
)
from tvmtile.ir.barriers import (
    UNNAMED_BARRIER,
    attributes_of,
    is_barrier,
    is_cluster_barrier,
    scope_of,
)
from tvmtile.ir.calls import op_name
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.kernels import Launch, is_kernel, with_launch_body
from tvmtile.ir.operands import as_int32, constant, integer_range, wrapped
from tvmtile.ir.options import options_of
from tvmtile.ir.rewriting import contains, mentions, reads_no_memory, seq
from tvmtile.ir.types import Binary, is_integer
from tvmtile.passes.legalize.assertions import STOPPED
from tvmtile.passes.legalize.narrow_integers import narrow_integers, without_cast
from tvmtile.passes.legalize.rules import Rule, Scope


def _is_fast(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and bool(func.attrs.get(FAST_MATH, False))


def _fast_kernel(loop: tirx.For, _: Scope) -> tirx.For:
    """A kernel whose source says that all of its arithmetic may be fast."""
    if not is_kernel(loop):
        return loop
    ask = tirx.Evaluate(cuda.function_call("void", cuda.FAST_MATH))
    return with_launch_body(loop, seq([ask, Launch(loop).body]))


def _fast_function(call: ir.Call, _: Scope) -> ir.Call:
    """A function as the approximation that NVIDIA's `--use_fast_math` takes: `T.log` as `T.__log`.

    A power is left exact, but for `T.exp10`: the approximation has no value for a base below zero.
    """
    if op_name(call) == "tirx.pow" and _is_ten(call.args[0]):
        call = tirx.exp10(call.args[1])
    dialect, _sep, name = op_name(call).rpartition(".")
    if dialect not in ("tirx", "prim") or name not in APPROXIMATIONS:
        return call
    return ir.Call(call.op, call.args, attrs={FAST: True}, span=call.span, ret_ty=call.ty)


def _is_ten(value: ir.Expr) -> bool:
    if isinstance(value, tirx.Cast):
        return _is_ten(value.value)
    return isinstance(value, tirx.FloatImm) and float(value.value) == 10


def _launch_bounds(loop: tirx.For, _: Scope) -> tirx.For:
    """A kernel with the attribute by which TVM's generator prints the second number of the bounds."""
    blocks = options_of(loop).blocks_per_multiprocessor if is_kernel(loop) else None
    if blocks is None:
        return loop

    def plain(node: tirx.AttrStmt) -> tirx.Stmt:
        return node.body if node.attr_key == LAUNCH_BOUNDS_BLOCKS else node

    body = mapped(Launch(loop).body, (tirx.AttrStmt, plain))  # `T.set_max_nreg` asks for one block
    node, count = (tirx.const(value, "int32") for value in (0, blocks))
    return with_launch_body(loop, tirx.AttrStmt(node, LAUNCH_BOUNDS_BLOCKS, count, body))


_MANTISSA_BITS = {"float16": 10, "bfloat16": 7}
_EXPONENT_OF_ONE = {"float16": 15, "bfloat16": 127}


def _float_by_bits(cast: tirx.Cast, scope: Scope) -> ir.Expr:
    """A float of 16 bits of an integer of a small range, by the integer's bits.

    A float between 2**m and 2**(m + 1), where m is the number of bits of its mantissa, holds an integer
    in these bits: the integer is put there, and what is too much is subtracted. Both are exact.
    """
    dtype = str(cast.ty.dtype)
    if not _is_to_narrow_float(cast):
        return cast
    bits = _MANTISSA_BITS[dtype]
    least, greatest = _bounds(cast.value, scope)
    lowest = min(0, least)
    if greatest - lowest >= 1 << bits or lowest < -(1 << bits):
        return cast
    offset = cast.value
    if lowest:
        offset = scope.analyzer.simplify(tirx.Cast("int32", offset) - lowest)
    one = (_EXPONENT_OF_ONE[dtype] + bits) << bits
    held = tirx.Cast("uint16", offset) | tirx.const(one, "uint16")
    return tirx.reinterpret(dtype, held) - tirx.const(float((1 << bits) - lowest), dtype)


def _converts_integers(func: tirx.PrimFunc) -> bool:
    return contains(func.body, tirx.Cast, _is_to_narrow_float)


def _is_to_narrow_float(cast: tirx.Cast) -> bool:
    return str(cast.ty.dtype) in _MANTISSA_BITS and is_integer(cast.value)


def _bounds(value: ir.Expr, scope: Scope) -> tuple[int, int]:
    """The least and greatest value; to TVM's analyzer no conversion wraps around."""

    def wraps(cast: tirx.Cast) -> bool:
        if not is_integer(cast) or not is_integer(cast.value):
            return False
        least, greatest = scope.bounds(cast.value)
        low, high = integer_range(str(cast.ty.dtype))
        return least < low or greatest > high

    if contains(value, tirx.Cast, wraps):
        return integer_range(str(value.ty.dtype))
    return scope.bounds(value)


_BARRIERS = {"warp": T.cuda.warp_sync, "grid": T.cuda.grid_sync}
_CLUSTER_STEPS = {
    "arrive": "barrier.cluster.arrive.release.aligned",
    "arrive_relaxed": "barrier.cluster.arrive.relaxed.aligned",
    "wait": "barrier.cluster.wait.acquire.aligned",
}


def _barrier(node: tirx.Evaluate, _: Scope) -> tirx.Stmt:
    if not is_barrier(node):
        return node
    if scope_of(node) in _BARRIERS:
        return tirx.Evaluate(_BARRIERS[scope_of(node)]())
    attrs = attributes_of(node)
    if is_cluster_barrier(node):
        steps = [attrs[CLUSTER_STEP]] if CLUSTER_STEP in attrs else ["arrive", "wait"]
        return seq([tirx.Evaluate(ptx(_CLUSTER_STEPS[step])()) for step in steps])
    if BARRIER_ID not in attrs and ARRIVE_COUNT not in attrs:
        return node
    operands = [attrs.get(BARRIER_ID, UNNAMED_BARRIER)]
    if ARRIVE_COUNT in attrs:
        operands.append(attrs[ARRIVE_COUNT])
    name = "bar.arrive" if ARRIVES_ONLY in attrs else "bar.sync"
    return tirx.Evaluate(ptx(name)(*(tirx.Cast("uint32", as_int32(o)) for o in operands)))


_ARRIVE = "mbarrier.arrive.shared.b64"


def _predicated_arrival(branch: tirx.IfThenElse, scope: Scope) -> tirx.Stmt:
    """An arrival at an mbarrier whose instruction has the iteration's condition itself.

    Where consumers release the tiles of the iteration before, the first one has none. What is asked of
    the thread remains a branch.
    """
    address = _arrives_at(branch.then_case)
    if address is None or scope.launch is None or branch.else_case is not None:
        return branch
    threads = [loop.loop_var for loop in scope.launch.threads]
    asked = conjuncts(branch.condition)
    of_threads = [c for c in asked if any(mentions(c, thread) for thread in threads)]
    others = [c for c in asked if c not in of_threads]
    if not of_threads or not others or not all(map(reads_no_memory, of_threads)):
        return branch  # what is asked before a load may be what keeps its index inside
    arrival = tirx.Evaluate(ptx(_ARRIVE)(address, pred=tirx.all(*others)))
    return tirx.IfThenElse(tirx.all(*of_threads), arrival, None, branch.span)


def _arrives_at(stmt: tirx.Stmt) -> ir.Expr | None:
    """The address of the mbarrier that a statement arrives at, if it does nothing else."""
    call: Any = stmt.value if isinstance(stmt, tirx.Evaluate) else None
    some = ptx(_ARRIVE)(tirx.Var("address", "uint32"))
    if not isinstance(call, ir.Call) or not call.op.same_as(some.op):
        return None
    address, *modifiers = call.args
    return address if structural_equal(modifiers, list(some.args[1:])) else None


def _arrives(func: tirx.PrimFunc) -> bool:
    return contains(
        func.body, tirx.IfThenElse, lambda node: _arrives_at(node.then_case) is not None
    )


_CASTS = {"int8": "(signed char)", "uint8": "(uchar)", "int16": "(short)", "uint16": "(ushort)"}
_NEGATED = ("int8", "int16", "int32", "uint8", "uint16", "uint32")


def _negation(node: Any, _: Scope) -> Any:
    """`~b + 1` for the negative of b, as a function of assembly. ptxas does not recognise it."""
    dtype = str(node.ty.dtype)
    if dtype not in _NEGATED:
        return node
    b = _negated(node)
    if b is not None:
        return _in_assembly(dtype, "tvmtile_negate", b)
    return _hidden(node) if dtype == "int16" else node


def _negated(node: Any) -> Any:
    """The value that one is the negative of, as NVRTC finds out; None of others."""
    if isinstance(node, tirx.Mul | tirx.Div):
        return node.a if constant(node.b) == wrapped(-1, str(node.ty.dtype)) else None
    if isinstance(node, tirx.Add):
        return _flipped(node.a) if constant(node.b) == 1 else None
    if not isinstance(node, tirx.Sub):
        before: Any = without_cast(_flipped(node), _CASTS)
        is_sum = isinstance(before, tirx.Sub | tirx.Add)
        least = 1 if isinstance(before, tirx.Sub) else wrapped(-1, str(node.ty.dtype))
        return before.a if is_sum and constant(before.b) == least else None
    a: Any = without_cast(node.a, _CASTS)
    b: Any = without_cast(node.b, _CASTS)
    if constant(a) == 0:
        return b
    if isinstance(a, tirx.Sub) and structural_equal(a.a, b):
        return a.b
    sides = [(b.a, b.b), (b.b, b.a)] if isinstance(b, tirx.Add) else []
    return next((other for term, other in sides if structural_equal(a, term)), None)


def _flipped(value: Any) -> Any:
    """The value whose bits are all flipped in one; None of others."""
    value = without_cast(value, _CASTS)
    if isinstance(value, ir.prim.BitwiseNot):
        return value.a
    is_flip = isinstance(value, tirx.BitwiseXor)
    return value.a if is_flip and constant(value.b) == wrapped(-1, str(value.ty.dtype)) else None


def _in_assembly(dtype: str, function: str, *operands: ir.Expr) -> ir.Expr:
    found = cuda.value("int32", function, *(tirx.Cast("int32", each) for each in operands))
    return found if dtype == "int32" else tirx.Cast(dtype, found)


_DERIVED = {tirx.Sub: "tvmtile_difference", tirx.Mul: "tvmtile_product"}


def _hidden(value: Any) -> Any:
    """A difference or product of which NVRTC may make a negative, as a function of assembly.

    It does where an operand becomes a constant, as the number of an iteration that it unrolls.
    """
    plain: Any = without_cast(value, _CASTS)
    if type(plain) not in _DERIVED or any(
        constant(each) is not None for each in (plain.a, plain.b)
    ):
        return value
    return _in_assembly(str(value.ty.dtype), _DERIVED[type(plain)], plain.a, plain.b)


def _extremum(node: tirx.Max | tirx.Min, _: Scope) -> ir.Expr:
    if str(node.ty.dtype) not in _NEGATED:
        return node
    return type(node)(_hidden(node.a), _hidden(node.b), node.span)


_FORMATS = {"float32": "<f", "float64": "<d"}


def _constant(number: tirx.FloatImm, scope: Scope) -> ir.Expr:
    dtype, value = str(number.ty.dtype), float(number.value)
    if dtype in ("float16", "bfloat16"):
        return tirx.Cast(dtype, _constant(tirx.FloatImm("float32", value), scope))
    is_lost = {
        "float32": 0 < abs(value) < 2.0**-126,
        "float64": math.isfinite(value) and float(f"{value:.15f}") != value,
    }
    if not is_lost.get(dtype, False):
        return number
    return tirx.reinterpret(dtype, _bits(number))


def _bits(number: tirx.FloatImm | tirx.IntImm) -> tirx.IntImm:
    """A constant's bits, without a sign."""
    dtype = DataType(str(number.ty.dtype))
    if isinstance(number, tirx.FloatImm):
        bits = int.from_bytes(struct.pack(_FORMATS[str(dtype)], float(number.value)), "little")
    else:
        bits = wrapped(int(number.value), f"uint{dtype.bits}")
    return tirx.const(bits, f"uint{dtype.bits}")


def _reinterpretation(call: ir.Call, _: Scope) -> ir.Expr:
    is_bits = op_name(call) == "tirx.reinterpret" and ir.is_prim_expr(call)  # and no pointer
    if not is_bits or not isinstance(call.args[0], tirx.FloatImm | tirx.IntImm):
        return call
    bits, dtype = _bits(call.args[0]), str(call.ty.dtype)
    if is_integer(call):
        return tirx.const(wrapped(int(bits.value), dtype), dtype)
    return ir.Call(call.op, [bits], span=call.span, ret_ty=call.ty)


_EXTREMES = {tirx.Max: "__hmax", tirx.Min: "__hmin"}


def _number_of_two(node: Binary, _: Scope) -> ir.Expr:
    dtype = str(node.ty.dtype)
    if dtype not in ("float16", "bfloat16"):
        return node
    return tirx.call_pure_extern(dtype, _EXTREMES[type(node)], node.a, node.b)


def _by_float32(cast: tirx.Cast, _: Scope) -> ir.Expr:
    """A conversion of a float of 16 bits by way of float32, which holds all of both."""
    to, of = DataType(str(cast.ty.dtype)), DataType(str(cast.value.ty.dtype))
    is_narrow = {str(to.with_lanes(1))} <= _MANTISSA_BITS.keys() | _CASTS.keys()
    if str(of.with_lanes(1)) not in _MANTISSA_BITS or not is_narrow or to == of:
        return cast
    return tirx.Cast(to, tirx.Cast(DataType("float32").with_lanes(to.lanes), cast.value))


OPERATIONS = (
    Rule(
        "kernels that ask for blocks on a multiprocessor",
        (tirx.For,),
        _launch_bounds,
        "NVIDIA's compiler",
        "it gives a thread as many registers as one block leaves it",
    ),
    Rule(
        "kernels that ask for fast arithmetic",
        (tirx.For,),
        _fast_kernel,
        "NVIDIA's compiler",
        "quotients, square roots and subnormals are those of IEEE unless the source says otherwise",
        _is_fast,
    ),
    Rule(
        "functions in kernels that ask for fast arithmetic",
        (ir.Call,),
        _fast_function,
        "NVIDIA's compiler",
        "so are the functions",
        _is_fast,
    ),
    Rule(
        "conversions of small integers to floats of 16 bits",
        (tirx.Cast,),
        _float_by_bits,
        "the GPU",
        "it converts at an eighth of the rate of its arithmetic (CUDA C++ Programming Guide, "
        '"Throughput of Native Arithmetic Instructions"): dequantisation would wait for it',
        _converts_integers,
        asks=True,
    ),
    Rule(
        "arrivals at mbarriers under a condition on the iteration",
        (tirx.IfThenElse,),
        _predicated_arrival,
        "ptxas",
        "the products of wgmma in a small loop wait for each other beside such a branch (C7514)",
        _arrives,
        asks=True,
    ),
    Rule(
        "barriers of warps, of some threads, of clusters and of the grid",
        (tirx.Evaluate,),
        _barrier,
        "TVM's generator for CUDA",
        "it prints nothing for a barrier of a warp or of the grid, and takes no number and no count of "
        "threads",
    ),
    STOPPED,
)

SOURCE = (
    Rule(
        "negations of integers",
        (tirx.Sub, tirx.Mul, tirx.Div, tirx.Add, tirx.BitwiseXor, ir.prim.BitwiseNot),
        _negation,
        "ptxas of CUDA 12.8 to 13.3",
        "for sm_90 and sm_100 it makes one instruction, VIMNMX3, of `min(min(a, -b), c)`, and leaves "
        "the sign of b out; the values may come from registers that were written long before, the "
        "minima from comparisons, and a negative that has no sign may be taken for one that has. And "
        "what it widens of 16 bits it negates in 32: the least int16, its own negative, becomes 32768",
    ),
    Rule(
        "differences and products in extremes",
        (tirx.Max, tirx.Min),
        _extremum,
        "ptxas of CUDA 12.8 to 13.3",
        "so it does with negatives that NVRTC makes, as of `k - b` in the first of the iterations that "
        "it unrolls",
    ),
    Rule(
        "constants of floats in CUDA",
        (tirx.FloatImm,),
        _constant,
        "TVM's generator for CUDA",
        "it prints an infinity of 16 bits as `inff`, other constants by functions whose header it "
        "includes only where it prints the type, and 15 decimals of a float64, of 1e-16 none; NVRTC "
        "refuses literals of float32 below the least normal number",
    ),
    Rule(
        "reinterpretations of constants",
        (ir.Call,),
        _reinterpretation,
        "TVM's generator for CUDA",
        "it takes the address of its operand, `*(float *)(&(5))`; a number without a cast has none",
    ),
    Rule(
        "maxima and minima of floats of 16 bits",
        tuple(_EXTREMES),
        _number_of_two,
        "TVM's generator for CUDA",
        "its `max` and `min` give the second operand where either is NaN, and not the number",
    ),
    Rule(
        "conversions of floats of 16 bits",
        (tirx.Cast,),
        _by_float32,
        "ptxas of CUDA 12 and 13",
        "it makes one instruction of a conversion from one to the other and one of the result to an "
        "integer, takes the bits of the first for those of the second, and rounds to nearest. And of a "
        "float of 16 bits it makes an integer of 16 whose sign is lost where it is widened to 32",
    ),
    *narrow_integers(_CASTS),
)
