"""A product of matrices with an epilogue."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx

import tvmtile.language as T
from tvmtile.errors import InvalidValue
from tvmtile.ir.types import Precision
from tvmtile.ops.configurations import matmul_configuration
from tvmtile.target import TargetLike

__all__ = ["ACTIVATIONS", "matmul"]


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + T.erf(x * 0.7071067811865476))


def _sigmoid(x: Any) -> Any:
    # The exact quotient takes eight instructions an element on CUDA: a third of a product's time.
    return T.fast_rcp(1 + T.exp(-x))


def _gelu_tanh(x: Any) -> Any:
    return x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


ACTIVATIONS: Mapping[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": lambda x: T.if_then_else(x < 0, 0.0, x),  # NaN stays NaN
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
"""Functions of an element of the sum; `gelu_tanh` is torch's gelu(approximate="tanh")."""


def check_activation(activation: str | None) -> None:
    """Refuse an activation that `matmul` does not know.

    Raises
    ------
    InvalidValue
        The message names those that it knows.
    """
    if activation not in ACTIVATIONS:
        known = ", ".join(repr(name) for name in ACTIVATIONS if name)
        raise InvalidValue(
            f"matmul: activation={activation!r} is not known", help=f"the activations are {known}"
        )


def matmul(
    M: T.dtypes.Extent,
    N: T.dtypes.Extent,
    K: T.dtypes.Extent,
    dtype: T.dtypes.DTypeLike,
    *,
    target: TargetLike,
    batch: T.dtypes.Extent | None = None,
    transpose_A: bool = False,
    transpose_B: bool = False,
    bias: bool = False,
    activation: str | None = None,
    out_dtype: T.dtypes.DTypeLike | None = None,
    precision: Precision = "tf32",
    configuration: Mapping[str, int] | None = None,
) -> tirx.PrimFunc:
    """The tile program of `activation(A @ B + bias)`.

    Its parameters are A, B, the bias if there is one, the result, and where the configuration splits K
    the partial sums, a scratch tensor of shape (splits, M, N), or (splits, batch, M, N). Blocks for
    each part of K write theirs, and a second kernel adds them in order, so that a result is the same
    in every run.

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
    precision : "tf32" or "ieee"
        Of products of float32, as `T.gemm` takes it.
    configuration : mapping, optional
        Values for `block_M`, `block_N`, `block_K`, `stages`, `threads`, `panel`, `splits` and
        `swapped`, in place of the table's. A block whose operands are swapped computes the transposed
        tile, with as many rows as C has columns: matrix instructions have at least 64 rows.

    Raises
    ------
    InvalidValue
        If there is no such activation.
    """
    check_activation(activation)
    dtype = T.as_dtype(dtype)
    c = {
        **matmul_configuration(target, M, N, K, str(dtype), batch),
        **(configuration or {}),
    }
    problem = _Problem(
        M, N, K, dtype, _ACCUMULATORS.get(str(dtype), "float32"), batch,
        (transpose_A, transpose_B), bias, activation, precision, c,
    )  # fmt: skip
    multiply, add = _multiply(problem), _add(problem)
    lead = problem.lead
    A_tensor = T.Tensor((*lead, K, M) if transpose_A else (*lead, M, K), dtype)
    B_tensor = T.Tensor((*lead, N, K) if transpose_B else (*lead, K, N), dtype)
    bias_tensor = T.Tensor((N,), dtype)
    C_tensor = T.Tensor((*lead, M, N), T.as_dtype(out_dtype or dtype))
    partial_tensor = T.Tensor((c["splits"], *lead, M, N), problem.accum_dtype)

    if c["splits"] > 1 and bias:

        @T.prim_func
        def matmul_split_bias(
            A: A_tensor, B: B_tensor, bias: bias_tensor, C: C_tensor, partial: partial_tensor
        ):
            multiply(A, B, None, partial)
            add(partial, bias, C)

        return matmul_split_bias

    if c["splits"] > 1:

        @T.prim_func
        def matmul_split(A: A_tensor, B: B_tensor, C: C_tensor, partial: partial_tensor):
            multiply(A, B, None, partial)
            add(partial, None, C)

        return matmul_split

    if bias:

        @T.prim_func
        def matmul_bias(A: A_tensor, B: B_tensor, bias: bias_tensor, C: C_tensor):
            multiply(A, B, bias, C)

        return matmul_bias

    @T.prim_func
    def matmul(A: A_tensor, B: B_tensor, C: C_tensor):
        multiply(A, B, None, C)

    return matmul


@dataclass(frozen=True)
class _Problem:
    """A product, and how it is computed: the parameters of `matmul`, with the configuration."""

    M: T.dtypes.Extent
    N: T.dtypes.Extent
    K: T.dtypes.Extent
    dtype: T.dtypes.DTypeLike
    accum_dtype: str
    batch: T.dtypes.Extent | None
    transposed: tuple[bool, bool]
    bias: bool
    activation: str | None
    precision: Precision
    c: Mapping[str, int]

    @property
    def lead(self) -> tuple[T.dtypes.Extent, ...]:
        """The extents in front of a matrix's."""
        return () if self.batch is None else (self.batch,)

    def at(self, b: Any, row: Any, column: Any, transposed: bool = False) -> tuple[Any, ...]:
        """The place of an element in a tensor."""
        place = (column, row) if transposed else (row, column)
        return (b, *place) if self.lead else place

    def part(self, k: Any, place: tuple[Any, ...]) -> tuple[Any, ...]:
        """The place of a sum among those of all parts of K, if there are several."""
        return (k, *place) if self.c["splits"] > 1 else place

    def total(self, partial: Any, place: tuple[Any, ...]) -> Any:
        """The sum of an element's parts."""
        parts = (partial[self.part(k, place)] for k in range(self.c["splits"]))
        return functools.reduce(operator.add, parts)


def _multiply(p: _Problem) -> Any:
    """The kernel of the products of one part of K, or of all of it with the epilogue."""
    block_M, block_N, block_K = (p.c[name] for name in ("block_M", "block_N", "block_K"))
    splits, swapped = p.c["splits"], bool(p.c["swapped"])
    transpose_A, transpose_B = p.transposed
    tile_A = (block_K, block_M) if transpose_A else (block_M, block_K)
    tile_B = (block_N, block_K) if transpose_B else (block_K, block_N)
    tile_C = (block_N, block_M) if swapped else (block_M, block_N)
    matrices = 1 if p.batch is None else p.batch
    grid = (T.ceildiv(p.N, block_N), T.ceildiv(p.M, block_M), matrices * splits)
    steps = T.ceildiv(T.ceildiv(p.K, block_K), splits)  # of the loop along K, in each block
    epilogue = _epilogue(p, tile_C, swapped)
    gemm = functools.partial(T.gemm, precision=p.precision)

    @T.macro
    def multiply(A, B, added, C):
        with T.Kernel(*grid, threads=p.c["threads"]) as (bx, by, bz):
            matrix, part = (bz // splits, bz % splits) if splits > 1 else (bz, 0)
            A_shared = T.alloc_shared(tile_A, p.dtype)
            B_shared = T.alloc_shared(tile_B, p.dtype)
            C_local = T.alloc_fragment(tile_C, p.accum_dtype)
            if p.c["panel"]:
                T.use_swizzle(p.c["panel"])
            T.clear(C_local)
            for step in T.Pipelined(steps, num_stages=p.c["stages"]):
                k = (part * steps + step) * block_K
                T.copy(A[p.at(matrix, by * block_M, k, transpose_A)], A_shared)
                T.copy(B[p.at(matrix, k, bx * block_N, transpose_B)], B_shared)
                if swapped:
                    gemm(B_shared, A_shared, C_local, not transpose_B, not transpose_A)
                else:
                    gemm(A_shared, B_shared, C_local, transpose_A, transpose_B)
            row, column = by * block_M, bx * block_N
            if splits == 1:
                epilogue(C_local, added, column)
            if swapped:
                for i, j in T.Parallel(block_N, block_M):
                    C[p.part(part, p.at(matrix, row + j, column + i))] = C_local[i, j]
            else:
                T.copy(C_local, C[p.part(part, p.at(matrix, row, column))])

    return multiply


def _add(p: _Problem) -> Any:
    """The kernel of the sum of the parts, in order, and the epilogue."""
    rows, columns = _ADDED
    matrices = 1 if p.batch is None else p.batch
    grid = (T.ceildiv(p.N, columns), T.ceildiv(p.M, rows), matrices)
    epilogue = _epilogue(p, _ADDED)

    @T.macro
    def add(partial, added, C):
        with T.Kernel(*grid, threads=128) as (bx, by, bz):
            C_local = T.alloc_fragment(_ADDED, p.accum_dtype)
            T.pdl_sync()
            for i, j in T.Parallel(*_ADDED):
                C_local[i, j] = p.total(partial, p.at(bz, by * rows + i, bx * columns + j))
            epilogue(C_local, added, bx * columns)
            T.copy(C_local, C[p.at(bz, by * rows, bx * columns)])

    return add


def _epilogue(p: _Problem, shape: tuple[int, int], swapped: bool = False) -> Any:
    """The steps for a tile of sums of this shape, that of the transposed product if `swapped`."""
    act = ACTIVATIONS[p.activation]

    @T.macro
    def epilogue(C_local, added, column):
        if p.bias:
            bias_local = T.alloc_fragment((shape[0 if swapped else 1],), p.accum_dtype)
            T.copy(added[column], bias_local)
            for i, j in T.Parallel(*shape):
                C_local[i, j] = act(C_local[i, j] + bias_local[i if swapped else j])
        elif p.activation:
            for i, j in T.Parallel(*shape):
                C_local[i, j] = act(C_local[i, j])

    return epilogue


_ADDED = (4, 256)
"""Elements of the result, of which a block adds the partial sums."""
_ACCUMULATORS = {"float64": "float64", "int8": "int32", "uint8": "int32"}
