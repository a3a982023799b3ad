"""Expressions of narrow floats as expressions of the integers that hold their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import DataType, ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import Mutator, buffer_of, indices_of, is_buffer_var, mutated, nodes_in
from tvmtile.codegen import cuda
from tvmtile.codegen.float_conversions import HALVES, name_of
from tvmtile.codegen.narrow_floats import NARROW_FLOATS, decode, encode
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import contains, for_loop, retyped, seq
from tvmtile.ir.scopes import is_private
from tvmtile.ir.types import COMPARISONS, Binary

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.Min, tirx.Max)
_BYTE_OFFSET = "tirx.ptr_byte_offset"
_MOVES_BITS = ("prim.if_then_else", "tirx.reinterpret", "tirx.address_of", _BYTE_OFFSET)
_TOGETHER = 4
"""Codes in a word."""


def _no_direct_way(dtype: str, operand: ir.Expr) -> Any:
    """A conversion between a dtype and float16 by way of float32."""
    del dtype, operand


_Conversion: TypeAlias = Callable[[str, Any], Any]


@dataclass(frozen=True)
class _Conversions:
    """The floats that a kind of target lacks, and how their bits become wider ones, and back."""

    dtypes: tuple[str, ...]
    """The floats."""
    decode: _Conversion
    encode: _Conversion
    """`(dtype, operand) -> Expr`, to float32 and from it."""
    decode_half: _Conversion = _no_direct_way
    encode_half: _Conversion = _no_direct_way
    """To float16 and from it; None of a dtype without a direct way."""
    decode_halves: Callable[[str, Any, Any], Any] | None = None
    """`(dtype, halves, codes) -> Call`, four codes at once to float16, of addresses."""
    stores_between: bool = False
    """A value that an operation takes from another one is stored in between."""


def _on_gpu(
    call: Callable[..., ir.Call], halves: tuple[str, ...] = (), **more: Any
) -> _Conversions:
    """Functions of the kernel's source, which `call` calls; `halves` are also decoded to float16."""

    def half(dtype: str, code: ir.Expr) -> ir.Call | None:
        return call("float16", name_of("half", dtype), code) if dtype in halves else None

    def encode_half(dtype: str, value: ir.Expr) -> ir.Call | None:
        has_nan = NARROW_FLOATS[dtype].has_nan
        return None if has_nan else call("uint8", name_of("encode_half", dtype), value)

    return _Conversions(
        tuple(dtype for dtype in NARROW_FLOATS if dtype != "bfloat16"),
        lambda dtype, code: call("float32", name_of("decode", dtype), code),
        lambda dtype, value: call("uint8", name_of("encode", dtype), value),
        half,
        encode_half,
        **more,
    )


def _decode_halves(dtype: str, halves: ir.Expr, codes: ir.Expr) -> ir.Call:
    return cuda.function_call("void", name_of("halves", dtype), halves, codes)


_CONVERSIONS = {
    "llvm": _Conversions(tuple(NARROW_FLOATS), decode, encode, stores_between=True),
    "metal": _on_gpu(T.call_pure_extern),
    "cuda": _on_gpu(cuda.value, HALVES, decode_halves=_decode_halves),
}


def lowered(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """A function whose narrow floats are integers with their bits, for a kind of target."""
    lowering = _Lowering(_CONVERSIONS[kind])
    narrow = [p for p in func.params if is_buffer_var(p) and lowering.narrow(p.ty.dtype)]
    if not narrow and not lowering.has_work(func.body):
        return func
    views = [tirx.DeclBuffer(lowering.storage(p, f"{p.name}_bits"), data=p.data) for p in narrow]
    body = lowering.lower(func.body)
    return with_body(func, seq([*views, body]) if views else body)


def _like(dtype: str, wide: str) -> str:
    """The dtype `wide` with the lanes of `dtype`."""
    lanes = int(DataType(str(dtype)).lanes)
    return wide if lanes == 1 else f"{wide}x{lanes}"


def _converted_registers(loop: tirx.For) -> list[ir.Var]:
    """The registers, one an iteration, whose elements a loop converts and does not write."""
    found: dict[ir.Var, None] = {}
    for cast in nodes_in(loop.body, tirx.Cast):
        load = cast.value
        if isinstance(load, ir.TensorLoad) and loop.loop_var.same_as(indices_of(load)[-1]):
            extents = [constant(extent) for extent in buffer_of(load).ty.shape]
            if is_private(buffer_of(load)) and extents == [constant(loop.extent)]:
                found[buffer_of(load)] = None
    written = {buffer_of(store) for store in nodes_in(loop.body, tirx.BufferStore)}
    return [buffer for buffer in found if buffer not in written]


class _Lowering:
    """Rewrites expressions of a narrow float into expressions of the integer that holds its bits."""

    def __init__(self, target: _Conversions) -> None:
        self._target, self._stores_between = target, target.stores_between
        # What the loop at hand reads at its variable, decoded before it.
        self._halves: dict[ir.Var, tuple[ir.Var, ir.Var]] = {}
        # What goes before the store at hand; None where nothing may, as it would run unconditionally.
        self._before: list[tirx.Stmt] | None = None
        self._variables: dict[ir.Var, ir.Var] = {}

    def narrow(self, dtype: Any) -> str | None:
        """The name of a narrow float dtype without its lanes; None for any other."""
        name = str(dtype)
        scalar = name if name in self._target.dtypes else name.partition("x")[0]
        return scalar if scalar in self._target.dtypes else None

    def _narrow_type(self, node: ir.Expr) -> str | None:
        """The narrow float that an expression has, if it has one."""
        return self.narrow(node.ty.dtype) if ir.is_prim_expr(node) else None

    def has_work(self, body: tirx.Stmt) -> bool:
        """Tell whether a body declares buffers of narrow floats, or makes such values."""
        return contains(
            body,
            (tirx.AllocBuffer, tirx.DeclBuffer),
            lambda node: self.narrow(buffer_of(node).ty.dtype),
        ) or contains(body, (tirx.Cast, tirx.FloatImm, ir.Call), self._narrow_type)

    def lower(self, body: tirx.Stmt) -> tirx.Stmt:
        return mutated(
            body,
            (ir.Var, self._variable),
            (ir.TensorLoad, self._load),
            (tirx.FloatImm, self._constant),
            (tirx.Cast, self._cast),
            (_ARITHMETIC, self._arithmetic),
            (COMPARISONS, self._comparison),
            (tirx.Select, self._select),
            (tirx.Broadcast, self._broadcast),
            (tirx.Shuffle, self._shuffle),
            (tirx.Let, self._let),
            ((tirx.And, tirx.Or), self._logical),
            (ir.Call, self._call),
            (tirx.Bind, self._bind),
            (tirx.BufferStore, self._store),
            (tirx.For, self._loop),
        )

    def storage(self, buffer: ir.Var, name: str) -> ir.Var:
        """The buffer that holds the bits of a buffer of narrow floats."""
        if buffer not in self._variables:
            scalar = self.narrow(buffer.ty.dtype)
            assert scalar is not None, buffer
            stored = _like(buffer.ty.dtype, NARROW_FLOATS[scalar].storage)
            self._variables[buffer] = retyped(buffer, dtype=stored, name=name)
        return self._variables[buffer]

    def _variable(self, var: ir.Var, _: Mutator) -> ir.Expr:
        if not is_buffer_var(var):
            return self._variables.get(var, var)
        return var if self.narrow(var.ty.dtype) is None else self.storage(var, var.name)

    def _defined(self, var: ir.Var) -> ir.Var:
        """The variable that takes the place of one that a Bind or a Let defines."""
        narrow = self._narrow_type(var)
        if narrow is not None:
            bits = _like(var.ty.dtype, NARROW_FLOATS[narrow].storage)
            self._variables[var] = tirx.Var(var.name, bits)
        return self._variables.get(var, var)

    def _value(self, node: ir.Expr, mutator: Mutator) -> ir.Expr:
        """An operand as its value, in float32 where it is a narrow float."""
        half = self._decoded_before(node)
        if half is not None:
            return tirx.Cast("float32", half)
        narrow, lowered = self._narrow_type(node), mutator.mutate(node)
        return lowered if narrow is None else self._target.decode(narrow, self._stored(lowered))

    def _stored(self, code: ir.Expr) -> ir.Expr:
        """The code of a rounded number, stored before the statement where that is possible."""
        if self._before is None or not contains(code, tirx.Let):
            return code
        buffer = tirx.decl_buffer((1,), str(code.ty.dtype), name="rounded")
        self._before += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, code, [0])]
        return tirx.BufferLoad(buffer, [0])

    @contextmanager
    def _storing(self, before: list[tirx.Stmt] | None) -> Iterator[None]:
        """Collect what goes before a statement; None for an expression that may not be evaluated."""
        outer, self._before = self._before, before
        try:
            yield
        finally:
            self._before = outer

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        """The lanes of a vector have no variables of their own."""
        outer = self._stores_between, self._halves
        self._stores_between = outer[0] and loop.kind != tirx.ForKind.VECTORIZED
        before = self._decode_before(loop) if self._target.decode_halves is not None else []
        lowered = mutator.default_mutate(loop)
        self._stores_between, self._halves = outer
        return seq([*before, lowered])

    def _decode_before(self, loop: tirx.For) -> list[tirx.Stmt]:
        """Decode registers that an unrolled loop converts one by one, four at a time."""
        assert self._target.decode_halves is not None
        extent = constant(loop.extent)
        if loop.kind != tirx.ForKind.UNROLLED or extent is None or extent % _TOGETHER:
            return []
        statements: list[tirx.Stmt] = []
        for codes in _converted_registers(loop):
            narrow = self._narrow_type(tirx.BufferLoad(codes, [0]))
            if narrow not in HALVES:
                continue
            halves = tirx.decl_buffer(
                (extent,), "float16", name="halves", scope=codes.ty.storage_scope
            )
            self._halves = {**self._halves, codes: (loop.loop_var, halves)}
            bits, four = self.storage(codes, codes.name), tirx.Var("four", "int32")
            places = (tirx.BufferLoad(b, [four * _TOGETHER]) for b in (halves, bits))
            call = self._target.decode_halves(narrow, *map(tirx.address_of, places))
            decode = for_loop(four, extent // _TOGETHER, tirx.Evaluate(call), tirx.ForKind.UNROLLED)
            statements += [tirx.AllocBuffer(halves), decode]
        return statements

    def _decoded_before(self, node: ir.Expr) -> ir.TensorLoad | None:
        """The float16 of a code that was decoded before the loop; None for anything else."""
        if not isinstance(node, ir.TensorLoad) or buffer_of(node) not in self._halves:
            return None
        variable, halves = self._halves[buffer_of(node)]
        return (
            tirx.BufferLoad(halves, [variable]) if variable.same_as(indices_of(node)[0]) else None
        )

    def _load(self, load: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        if self._narrow_type(load) is None:
            return mutator.default_mutate(load)
        indices = [mutator.mutate(index) for index in indices_of(load)]
        return tirx.BufferLoad(mutator.mutate(buffer_of(load)), indices)

    def _store(self, store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        indices = [mutator.mutate(index) for index in indices_of(store)]
        before: list[tirx.Stmt] = []
        is_scalar = int(DataType(str(store.value.ty.dtype)).lanes) == 1
        with self._storing(before if self._stores_between and is_scalar else None):
            buffer, value = mutator.mutate(buffer_of(store)), mutator.mutate(store.value)
        return seq([*before, tirx.BufferStore(buffer, value, indices, store.span)])

    def _constant(self, number: tirx.FloatImm, _: Mutator) -> ir.Expr:
        narrow = self._narrow_type(number)
        return (
            number
            if narrow is None
            else self._target.encode(narrow, tirx.const(number.value, "float32"))
        )

    def _cast(self, cast: tirx.Cast, mutator: Mutator) -> ir.Expr:
        source, target = self._narrow_type(cast.value), self._narrow_type(cast)
        if source is None and target is None:
            return mutator.default_mutate(cast)
        dtype = str(cast.ty.dtype)
        half = self._decoded_before(cast.value)
        if half is not None and dtype == "float16":
            return half
        if source is not None and dtype == "float16":
            code = self._stored(mutator.mutate(cast.value))
            half = self._target.decode_half(source, code)
            if half is not None:
                return half
            value = self._target.decode(source, code)
        else:
            value = self._value(cast.value, mutator)
        if target is None:
            return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)
        wide = _like(dtype, "float32")
        if str(value.ty.dtype) == "float16":
            code = self._target.encode_half(target, value)
            if code is not None:
                return code
        return self._target.encode(
            target, value if str(value.ty.dtype) == wide else tirx.Cast(wide, value)
        )

    def _arithmetic(self, node: Binary, mutator: Mutator) -> ir.Expr:
        narrow = self._narrow_type(node)
        if narrow is None:
            return mutator.default_mutate(node)
        a, b = self._value(node.a, mutator), self._value(node.b, mutator)
        return self._target.encode(narrow, type(node)(a, b, node.span))

    def _comparison(self, node: Binary, mutator: Mutator) -> ir.Expr:
        if self._narrow_type(node.a) is None:
            return mutator.default_mutate(node)
        return type(node)(self._value(node.a, mutator), self._value(node.b, mutator), node.span)

    def _select(self, node: tirx.Select, mutator: Mutator) -> ir.Expr:
        parts = (node.condition, node.true_value, node.false_value)
        condition, true_value, false_value = map(mutator.mutate, parts)
        return tirx.Select(condition, true_value, false_value, node.span)

    def _broadcast(self, node: tirx.Broadcast, mutator: Mutator) -> ir.Expr:
        return tirx.Broadcast(mutator.mutate(node.value), node.lanes, node.span)

    def _shuffle(self, node: tirx.Shuffle, mutator: Mutator) -> ir.Expr:
        vectors = [mutator.mutate(vector) for vector in node.vectors]
        return tirx.Shuffle(vectors, [mutator.mutate(index) for index in node.indices], node.span)

    def _let(self, node: tirx.Let, mutator: Mutator) -> ir.Expr:
        value = mutator.mutate(node.value)
        with self._storing(None):
            return tirx.Let(self._defined(node.var), value, mutator.mutate(node.body), node.span)

    def _logical(self, node: Binary, mutator: Mutator) -> ir.Expr:
        a = mutator.mutate(node.a)
        with self._storing(None):
            return type(node)(a, mutator.mutate(node.b), node.span)

    def _bind(self, node: tirx.Bind, mutator: Mutator) -> tirx.Stmt:
        value = mutator.mutate(node.value)
        return tirx.Bind(self._defined(node.var), value, node.span)

    def _call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        operands = [arg for arg in call.args if self._narrow_type(arg) is not None]
        result = self._narrow_type(call)
        name = op_name(call)
        if not operands and result is None:
            with self._storing(None if name == "prim.if_then_else" else self._before):
                return mutator.default_mutate(call)
        if name in _MOVES_BITS:
            return self._moved_call(call, name, mutator)
        args = [self._value(arg, mutator) for arg in call.args]
        dtype = call.ty.dtype if result is None else _like(call.ty.dtype, "float32")
        computed = ir.Call(call.op, args, attrs=call.attrs, span=call.span, ret_ty=str(dtype))
        return computed if result is None else self._target.encode(result, computed)

    def _moved_call(self, call: ir.Call, name: str, mutator: Mutator) -> ir.Expr:
        if name == _BYTE_OFFSET:
            start, offset, element = call.args
            storage = NARROW_FLOATS[str(element.ty.dtype)].storage
            return T.ptr_byte_offset(mutator.mutate(start), mutator.mutate(offset), storage)
        args = [mutator.mutate(call.args[0])]
        with self._storing(None if name == "prim.if_then_else" else self._before):
            args += [mutator.mutate(arg) for arg in call.args[1:]]
        if name == "tirx.address_of":
            return ir.Call(call.op, args, attrs=call.attrs, span=call.span, ret_ty=call.ty)
        if name == "prim.if_then_else":
            return tirx.if_then_else(*args, call.span)
        narrow, dtype = self._narrow_type(call), str(call.ty.dtype)
        wanted = dtype if narrow is None else _like(dtype, NARROW_FLOATS[narrow].storage)
        if narrow is None and str(args[0].ty.dtype) == wanted:
            return args[0]
        return ir.Call(call.op, args, span=call.span, ret_ty=wanted)  # see `_unknown` of legalize
