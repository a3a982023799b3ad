"""HideTruncationsOnCpu: LLVM does not merge the conversion of narrow values into their stores."""

from __future__ import annotations

from tvm import DataType, ir, tirx

from tvmtile._tvm import mapped
from tvmtile.ir.kernels import bound_target
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains
from tvmtile.passes.cpu.unknown_zeros import Zeros, with_unknown_zeros
from tvmtile.target import cpu


@prim_func_pass("HideTruncationsOnCpu", requires=(Property.HOST_MEMORY,))
def HideTruncationsOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    r"""Hide stores of narrow integers so that LLVM can't turn them into truncating stores.

    LLVM 22 joins a truncation and a masked store. For AVX-512 it makes a store of the whole wider
    element of that, where the mask is known and leaves one element: memory behind it is overwritten.
    Masks come from conditions, and from loops whose iterations do not fill the last vector. So an
    integer that may have been truncated is combined with a zero that LLVM does not know to be one.
    """
    target = bound_target(func)
    if target is None or not cpu(target).truncates_masked:
        return func
    return with_unknown_zeros(func, _hidden)


def _hidden(body: tirx.Stmt, zeros: Zeros) -> tirx.Stmt:
    def visit(store: tirx.BufferStore) -> tirx.BufferStore:
        if not _may_be_truncated(store.value):
            return store
        value = store.value ^ zeros.of(str(store.value.ty.dtype))
        return tirx.BufferStore(store.buffer, value, store.indices, span=store.span)

    return mapped(body, (tirx.BufferStore, visit))


def _may_be_truncated(value: ir.Expr) -> bool:
    """Tell whether LLVM may compute a value in more bits than it has.

    Of 8 and 16 bits, all that is computed: the machine multiplies and shifts in more of them.
    """
    dtype = DataType(str(value.ty.dtype))
    if dtype.lanes != 1 or not str(dtype).startswith(("int", "uint")):
        return False
    if dtype.bits > 16:
        return dtype.bits == 32 and contains(value, tirx.Cast, _narrows)
    return not isinstance(value, ir.TensorLoad | tirx.IntImm)


def _narrows(cast: tirx.Cast) -> bool:
    return DataType(str(cast.value.ty.dtype)).bits > DataType(str(cast.ty.dtype)).bits
