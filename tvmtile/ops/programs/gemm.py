"""A product of matrices with an epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx

import tvmtile.language as T
from tvmtile.errors import InvalidValue
from tvmtile.frontend.dtypes import DTypeLike, Extent, as_dtype
from tvmtile.ops.configurations import matmul_configuration
from tvmtile.target import TargetLike

__all__ = ["ACTIVATIONS", "matmul"]


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + T.erf(x * 0.7071067811865476))


def _gelu_tanh(x: Any) -> Any:
    return x * T.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


ACTIVATIONS: Mapping[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": lambda x: T.max(x, 0.0),
    "silu": lambda x: x * T.sigmoid(x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
"""What is done to an element of the sum; `gelu_tanh` is torch's gelu(approximate="tanh")."""


def matmul(
    M: Extent,
    N: Extent,
    K: Extent,
    dtype: DTypeLike,
    *,
    target: TargetLike,
    batch: Extent | None = None,
    transpose_A: bool = False,
    transpose_B: bool = False,
    bias: bool = False,
    activation: str | None = None,
    out_dtype: DTypeLike | None = None,
    configuration: Mapping[str, int] | None = None,
) -> tirx.PrimFunc:
    """The tile program of `activation(A @ B + bias)`.

    Its parameters are A, B, the bias if there is one, and the result.

    Parameters
    ----------
    M, N, K : int or Expr
        Extents; a `T.dynamic` variable stands for one that the arguments of a call bind. A copy goes by
        TMA where the rows of its tensor have a constant length.
    dtype : dtype
        Of A, B and the bias. Sums are of float32, of float64 for float64 and of int32 for int8.
    target : str, dict or Target
        Where it runs; it chooses the configuration.
    batch : int or Expr, optional
        Products of as many pairs of matrices; the bias is one for all of them.
    transpose_A, transpose_B : bool
        A is stored as (K, M), B as (N, K), as the weight of a linear layer is.
    bias : bool
        Whether there is a bias, of shape (N,).
    activation : str, optional
        One of `ACTIVATIONS`.
    out_dtype : dtype, optional
        Of the result; `dtype` where absent.
    configuration : mapping, optional
        Values for `block_M`, `block_N`, `block_K`, `stages`, `threads`, `panel`,
        in place of the table's.

    Raises
    ------
    InvalidValue
        If there is no such activation.
    """
    if activation not in ACTIVATIONS:
        known = ", ".join(repr(name) for name in ACTIVATIONS if name)
        raise InvalidValue(
            f"matmul: activation={activation!r} is not known", help=f"the activations are {known}"
        )
    dtype = as_dtype(dtype)
    out_dtype = as_dtype(out_dtype or dtype)
    c = {
        **matmul_configuration(target, M, N, K, str(dtype), batch),
        **(configuration or {}),
    }
    block_M, block_N, block_K = c["block_M"], c["block_N"], c["block_K"]
    act = ACTIVATIONS[activation]
    accum_dtype = _ACCUMULATORS.get(str(dtype), "float32")
    lead = () if batch is None else (batch,)
    shape_A = (*lead, K, M) if transpose_A else (*lead, M, K)
    shape_B = (*lead, N, K) if transpose_B else (*lead, K, N)
    tile_A = (block_K, block_M) if transpose_A else (block_M, block_K)
    tile_B = (block_N, block_K) if transpose_B else (block_K, block_N)
    grid = (T.ceildiv(N, block_N), T.ceildiv(M, block_M), *(lead or (1,)))

    def at(b: Any, row: Any, column: Any, transposed: bool = False) -> tuple[Any, ...]:
        place = (column, row) if transposed else (row, column)
        return (b, *place) if lead else place

    @T.macro
    def compute(A, B, added, C):
        with T.Kernel(*grid, threads=c["threads"]) as (bx, by, bz):
            A_shared = T.alloc_shared(tile_A, dtype)
            B_shared = T.alloc_shared(tile_B, dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            if c["panel"]:
                T.use_swizzle(c["panel"])
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=c["stages"]):
                T.copy(A[at(bz, by * block_M, k * block_K, transpose_A)], A_shared)
                T.copy(B[at(bz, k * block_K, bx * block_N, transpose_B)], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_A, transpose_B)
            if bias:
                bias_local = T.alloc_fragment((block_N,), accum_dtype)
                T.copy(added[bx * block_N], bias_local)
                for i, j in T.Parallel(block_M, block_N):
                    C_local[i, j] = act(C_local[i, j] + bias_local[j])
            elif activation:
                for i, j in T.Parallel(block_M, block_N):
                    C_local[i, j] = act(C_local[i, j])
            T.copy(C_local, C[at(bz, by * block_M, bx * block_N)])

    if bias:

        @T.prim_func
        def matmul_bias(
            A: T.Tensor(shape_A, dtype),
            B: T.Tensor(shape_B, dtype),
            bias: T.Tensor((N,), dtype),
            C: T.Tensor((*lead, M, N), out_dtype),
        ):
            compute(A, B, bias, C)

        return matmul_bias

    @T.prim_func
    def matmul(
        A: T.Tensor(shape_A, dtype),
        B: T.Tensor(shape_B, dtype),
        C: T.Tensor((*lead, M, N), out_dtype),
    ):
        compute(A, B, None, C)

    return matmul


_ACCUMULATORS = {"float64": "float64", "int8": "int32", "uint8": "int32"}
