"""LowerMathOnCpu: elementary functions become arithmetic that vectorises."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile.codegen.cpu_math import exp2_float32, exp_float32
from tvmtile.passes.kernels import prim_func_pass

__all__ = ["LowerMathOnCpu"]

_FLOAT32 = {"tirx.exp": exp_float32, "tirx.exp2": exp2_float32}
_NARROW = ("float16", "bfloat16")


@prim_func_pass("LowerMathOnCpu")
def LowerMathOnCpu(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Write out `exp` and `exp2` of 32-bit and narrower floats (see `tvmtile.codegen.cpu_math`).

    As calls of the C library they would keep LLVM from vectorising the loop around them. Narrower
    floats are computed in float32. Other functions and dtypes are left to TVM.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(32):
                A[i] = T.exp2(A[i])
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(32):
                x = T.float32()
                t = T.float32()
                e = T.int32()
                n = T.float32()
                r = T.float32()
                h = T.int32()
                A[i] = T.Let(T.Let(T.Let(T.Let(T.Let(T.Let(
                    (((((T.float32(0.0013814539415761828)
                    * r + T.float32(0.0083687454462051392))
                    * r + T.float32(0.041668388992547989))
                    * r + T.float32(0.1666652113199234))
                    * r + T.float32(0.49999994039535522))
                    * (r * r) + r + T.float32(1))
                    * T.reinterpret("float32", h + 127 << 23)
                    * T.reinterpret("float32", e - h + 127 << 23),
                    where={h: e >> 1}),
                    where={r: (x - n) * T.float32(0.69314718055994529)}),
                    where={n: T.Cast("float32", e)}),
                    where={e: T.reinterpret("int32", t) - 1262485504}),
                    where={t: x + T.float32(12582912.0)}),
                    where={x: T.min(T.float32(129.0), T.max(T.float32(-151.0), A[i]))})
    ```
    """
    del context
    return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, _lower)))


def _lower(call: ir.Call) -> Any:
    function = _FLOAT32.get(call.op.name) if isinstance(call.op, ir.Op) else None
    if function is None:
        return call
    dtype = str(call.ty.dtype)
    if dtype in _NARROW:
        return tirx.Cast(dtype, function(tirx.Cast("float32", call.args[0])))
    return function(call.args[0]) if dtype == "float32" else call
