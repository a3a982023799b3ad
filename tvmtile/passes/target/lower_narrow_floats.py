"""LowerNarrowFloatsOnCpu, ...OnMetal, ...OnCuda: narrow floats become integers with their bits."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, walk
from tvmtile.errors import UnsupportedDtype
from tvmtile.ir.operands import describe
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.spans import location_of
from tvmtile.passes.target.narrow_floats import lowered


@prim_func_pass("LowerNarrowFloatsOnCpu", requires=(Property.HOST_MEMORY,))
def LowerNarrowFloatsOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep values of narrow floats as their bits, and compute with them in float32.

    Every operation rounds its result to its dtype, as torch does, a store and a cast among them; copies
    move bits. TVM's own legalisation rounds at stores into tensors only, keeps tiles of narrow floats
    in float32, decodes no subnormals, and overlooks what a Bind or a Let holds.

    What an operation takes from another one is stored in between, in a variable of one element. TVM's
    code generator simplifies a Let in the value of another one several times: eight roundings in each
    other would cost it half a minute. LLVM keeps the variable in a register.
    """
    return lowered(func, "llvm")


@prim_func_pass("LowerNarrowFloatsOnMetal")
def LowerNarrowFloatsOnMetal(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep values of floats of 8 bits as their bits, and compute with them in float32.

    Metal has bfloat16. The conversions are functions in the source of the kernel
    (`tvmtile.codegen.float_conversions`).

    Raises
    ------
    UnsupportedDtype
        If bfloat16 is accessed by vectors.
    """
    walk(func.body, ((ir.TensorLoad, tirx.BufferStore), _refuse_vector))
    return lowered(func, "metal")


def _refuse_vector(access: ir.TensorLoad | tirx.BufferStore) -> None:
    """Refuse vector accesses that TVM's Metal generator prints as scalar ones."""
    buffer = buffer_of(access)
    if str(buffer.ty.dtype) == "bfloat16" and isinstance(indices_of(access)[-1], tirx.Ramp):
        raise UnsupportedDtype(
            f"{describe(buffer)} is accessed by vectors, and Metal has none of bfloat16",
            help="access its elements in a loop over T.vectorized",
            location=location_of(access),
        )


@prim_func_pass("LowerNarrowFloatsOnCuda")
def LowerNarrowFloatsOnCuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep values of floats of 8 bits as their bits, and compute with them in float32.

    TVM's generator knows two of their dtypes, has no arithmetic on them and no vectors of eight. The
    conversions are functions in the source of the kernel (`tvmtile.codegen.float_conversions`). What an
    unrolled loop converts of registers, one an iteration, is decoded before it, four at once.
    """
    return lowered(func, "cuda")
