"""WrapUnsignedOnCpu: sums, differences and products of unsigned integers wrap."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.codegen.llvm_integers import WRAPPING, wrapping_function
from tvmtile.ir.kernels import importing_llvm, with_body
from tvmtile.ir.passes import prim_func_pass

_OPERATIONS = {tirx.Add: "add", tirx.Sub: "sub", tirx.Mul: "mul"}


@prim_func_pass("WrapUnsignedOnCpu")
def WrapUnsignedOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    r"""Compute with uint32 and uint64 modulo 2^32 and 2^64, as GPUs do.

    TVM tells LLVM that such arithmetic does not overflow: a hash, or `T.max(a + b, b)`, gets a wrong
    value. Indices, which are signed, are not touched.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "uint64")):
        for bx in T.thread_binding(32, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            A[bx] = A[bx] * T.uint64(3)
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((32,), "uint64")):
        with T.attr(
            T.int32(0),
            "pragma_import_llvm",
            "define i64 @tvmtile_mul_uint64(i64 %a, i64 %b) alwaysinline {\n"
            "  %result = mul i64 %a, %b\n  ret i64 %result\n}\n",
        ):
            for bx in T.thread_binding(
                32, thread="blockIdx.x", annotations={"tvmtile.kernel": True}
            ):
                A[bx] = T.call_pure_extern("uint64", "tvmtile_mul_uint64", A[bx], T.uint64(3))
    ```
    """
    texts: list[str] = []

    def wrapped(node: Any, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(node)
        dtype = str(result.ty.dtype)
        if dtype not in WRAPPING:
            return result
        name, text = wrapping_function(_OPERATIONS[type(result)], dtype)
        texts.append(text)
        return tirx.call_pure_extern(dtype, name, result.a, result.b)

    body = mutated(func.body, (tuple(_OPERATIONS), wrapped))
    return with_body(func, importing_llvm(body, texts))
