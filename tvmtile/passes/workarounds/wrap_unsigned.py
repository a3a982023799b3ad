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
