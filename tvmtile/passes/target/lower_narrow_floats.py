"""LowerNarrowFloatsOnCpu, ...OnMetal, ...OnCuda: narrow floats become integers with their bits."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import walk
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

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "bfloat16"), B: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            tile = T.alloc_buffer((32,), "bfloat16")
            for i in range(32):
                tile[i] = A[i]
            for i in range(32):
                B[i] = T.Cast("float32", tile[i])
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "bfloat16"), B: T.Buffer((32,), "float32")):
        A_bits = T.decl_buffer((32,), "uint16", data=A.data)
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            tile = T.alloc_buffer((32,), "uint16")
            for i in range(32):
                tile[i] = A_bits[i]
            for i in range(32):
                B[i] = T.reinterpret("float32", T.Cast("uint32", tile[i]) << T.uint32(16))
    ```
    """
    return lowered(func, "llvm")


@prim_func_pass("LowerNarrowFloatsOnMetal")
def LowerNarrowFloatsOnMetal(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep values of floats of 8 bits as their bits, and compute with them in float32.

    Metal has bfloat16. The conversions are functions in the source of the kernel
    (`tvmtile.codegen.metal_floats`).

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float8_e5m2"), B: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                B[tx] = T.Cast("float32", A[tx])
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float8_e5m2"), B: T.Buffer((32,), "float32")):
        A_bits = T.decl_buffer((32,), "uint8", data=A.data)
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                B[tx] = T.call_pure_extern("float32", "tvmtile_decode_float8_e5m2", A_bits[tx])
    ```

    Raises
    ------
    UnsupportedDtype
        If bfloat16 is accessed by vectors.
    """
    walk(
        func.body,
        (ir.TensorLoad, lambda load: _refuse_vector(load.source, load)),
        (tirx.BufferStore, lambda store: _refuse_vector(store.buffer, store)),
    )
    return lowered(func, "metal")


def _refuse_vector(buffer: ir.Var, access: ir.TensorLoad | tirx.BufferStore) -> None:
    """Refuse vector accesses that TVM's Metal generator prints as scalar ones."""
    if str(buffer.ty.dtype) == "bfloat16" and isinstance(access.indices[-1], tirx.Ramp):
        raise UnsupportedDtype(
            f"{describe(buffer)} is accessed by vectors, and Metal has none of bfloat16",
            help="access its elements in a loop over T.vectorized",
            location=location_of(access),
        )


@prim_func_pass("LowerNarrowFloatsOnCuda")
def LowerNarrowFloatsOnCuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep values of floats of 8 bits as their bits, and compute with them in float32.

    TVM's generator knows two of their dtypes, has no arithmetic on them and no vectors of eight. The
    conversions are functions in the source of the kernel (`tvmtile.codegen.cuda_floats`). What an
    unrolled loop converts of registers, one an iteration, is decoded before it, four at once.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float8_e5m2"), B: T.Buffer((32,), "float8_e5m2")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                B[tx] = A[31 - tx]
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float8_e5m2"), B: T.Buffer((32,), "float8_e5m2")):
        A_bits = T.decl_buffer((32,), "uint8", data=A.data)
        B_bits = T.decl_buffer((32,), "uint8", data=B.data)
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                B_bits[tx] = A_bits[31 - tx]
    ```
    """
    return lowered(func, "cuda")
