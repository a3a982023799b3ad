"""Attention without ever storing the scores, forward and backward."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from tvm import tirx

import tvmtile.language as T
from tvmtile.errors import InvalidValue
from tvmtile.ir.combiners import accumulator_dtype
from tvmtile.ir.types import Precision
from tvmtile.ops.checks import check_attention
from tvmtile.ops.configurations import (
    attention_backward_configuration,
    attention_configuration,
)
from tvmtile.ops.programs.online_softmax import OnlineSoftmax, normalized_weight
from tvmtile.target import TargetLike, gpu, resolve

__all__ = ["attention", "attention_backward"]


def attention(
    batch: T.dtypes.Extent,
    heads: int,
    queries: T.dtypes.Extent,
    dim: int,
    dtype: T.dtypes.DTypeLike,
    *,
    target: TargetLike,
    keys: T.dtypes.Extent | None = None,
    kv_heads: int | None = None,
    value_dim: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bhld",
    lse: bool = False,
    precision: Precision = "tf32",
    configuration: Mapping[str, int] | None = None,
) -> tirx.PrimFunc:
    """The tile program of `softmax(Q @ K.T * scale) @ V`; its parameters are Q, K, V and the result.

    A block keeps the maximum and the sum of each of its rows of scores while it walks over tiles of K
    and V (`OnlineSoftmax`). It visits the last keys first, since only these need a mask. Heads whose
    elements matrix units do not divide are padded with zeros in the block's tiles.

    Parameters
    ----------
    batch, queries, keys : int or Expr
        Extents; a `T.dynamic` variable stands for one that the arguments of a call bind. There are as
        many keys as queries where `keys` is absent.
    heads, dim : int
        Heads of Q, and elements of a head of Q and K.
    dtype : dtype
        Of all tensors. Scores and sums are of float32, for float64 of float64.
    target : str, dict or Target
        Where it runs; it chooses the configuration.
    kv_heads : int, optional
        Heads of K and V, each shared by `heads // kv_heads` consecutive ones of Q.
    value_dim : int, optional
        Elements of a head of V; `dim` where absent.
    causal : bool
        Query i sees the keys 0 to i, as for torch's `is_causal`.
    scale : float, optional
        Positive; 1 / sqrt(dim) where absent.
    layout : str
        Order of the axes: "bhld" (batch, heads, length, dim) or "blhd".
    lse : bool
        There is one more result, as `attention_backward` takes it: of each query the largest score,
        and the logarithm to base 2 of the sum of the weights relative to it. It is of shape (batch, 2,
        heads, queries), of the scores' dtype.
    precision : "tf32" or "ieee"
        Of products of float32, as `T.gemm` takes it.
    configuration : mapping, optional
        Values for `block_M`, `block_N`, `stages`, `threads`, and `persistent`, 1 where blocks are asked
        to persist, in place of the table's.

    Raises
    ------
    InvalidValue
        If `kv_heads` does not divide the heads, the scale is not positive, or there is no such layout.
    """
    keys = queries if keys is None else keys
    kv_heads, value_dim = kv_heads or heads, value_dim or dim
    scale = 1 / math.sqrt(dim) if scale is None else scale
    check_attention(heads, kv_heads, scale, layout)
    dtype = T.as_dtype(dtype)
    width, value_width = (_width(extent, dtype, target) for extent in (dim, value_dim))
    c = {
        **attention_configuration(
            target, queries, keys, max(dim, value_dim), str(dtype), causal, heads, batch
        ),
        **(configuration or {}),
    }
    block_M, block_N = c["block_M"], c["block_N"]
    accum = accumulator_dtype(dtype, dtype)
    rows = T.GemmWarpPolicy.FullRow  # a warp has whole rows, so it finds their maximum itself
    masked = _masked_tiles(block_M, block_N, keys, causal)
    group = heads // kv_heads

    is_cuda = resolve(target).kind.name == "cuda"

    move = _mover(layout)
    gemm = functools.partial(T.gemm, precision=precision)

    @T.macro
    def compute(Q, K, V, Output, sums):
        blocks = T.ceildiv(queries, block_M)
        with T.Kernel(blocks, heads, batch, threads=c["threads"]) as (started, by, bz):
            if c["persistent"]:
                T.annotate_persistent()
            # Those that visit most keys begin first, so that no block is left over at the end.
            bx = blocks - 1 - started if causal else started
            Q_shared = T.alloc_shared((block_M, width), dtype)
            K_shared = T.alloc_shared((block_N, width), dtype)
            V_shared = T.alloc_shared((block_N, value_width), dtype)
            scores = T.alloc_fragment((block_M, block_N), accum)
            weights = T.alloc_fragment((block_M, block_N), dtype)
            output = T.alloc_fragment((block_M, value_width), accum)

            move(Q, bz, by, bx * block_M, Q_shared)
            T.fill(output, 0)
            softmax = OnlineSoftmax(block_M, scale, accum, fused=is_cuda)
            end = T.min((bx + 1) * block_M, keys) if causal else keys
            tiles = T.ceildiv(end, block_N)
            for step in T.Pipelined(tiles, num_stages=c["stages"]):
                k = (tiles - 1 - step) * block_N
                move(K, bz, by // group, k, K_shared)
                gemm(Q_shared, K_shared, scores, transpose_B=True, policy=rows, clear_accum=True)
                move(V, bz, by // group, k, V_shared)
                if masked:
                    if step < masked:
                        for i, j in T.Parallel(block_M, block_N):
                            last = T.min(bx * block_M + i, keys - 1) if causal else keys - 1
                            scores[i, j] = T.if_then_else(
                                k + j <= last, scores[i, j], -T.infinity(accum)
                            )
                softmax.weigh(scores)
                T.copy(scores, weights)
                softmax.rescale(output)
                gemm(weights, V_shared, output, policy=rows)
            softmax.normalize(output)
            move(Output, bz, by, bx * block_M, output, stores=True)
            if lse:
                softmax.to_logarithms()
                T.copy(softmax.largest, sums[bz, 0, by, bx * block_M])
                T.copy(softmax.total, sums[bz, 1, by, bx * block_M])

    Q_tensor, K_tensor, V_tensor, Output_tensor = (
        _tensor(layout, batch, *extents, dtype)
        for extents in (
            (heads, queries, dim),
            (kv_heads, keys, dim),
            (kv_heads, keys, value_dim),
            (heads, queries, value_dim),
        )
    )

    if lse:

        @T.prim_func
        def attention_lse(
            Q: Q_tensor,
            K: K_tensor,
            V: V_tensor,
            Output: Output_tensor,
            lse: T.Tensor((batch, 2, heads, queries), accum),
        ):
            compute(Q, K, V, Output, lse)

        return attention_lse

    @T.prim_func
    def attention(Q: Q_tensor, K: K_tensor, V: V_tensor, Output: Output_tensor):
        compute(Q, K, V, Output, None)

    return attention


def _tensor(
    layout: str, batch: Any, heads: int, length: T.dtypes.Extent, dim: int, dtype: Any
) -> Any:
    """A parameter of a program: the heads of a tensor."""
    shape = (heads, length, dim) if layout == "bhld" else (length, heads, dim)
    return T.Tensor((batch, *shape), dtype)


def _mover(layout: str) -> Any:
    """A macro that copies rows of a head, from row `at` on, to a tile, or back if it `stores`."""

    def place(tensor: Any, b: Any, head: Any, at: Any, rows: Any) -> Any:
        return tensor[b, head, at, 0] if layout == "bhld" else tensor[b, at : at + rows, head, :]

    @T.macro
    def move(tensor, b, head, at, tile, stores=False):
        rows, width = tile.shape
        if layout == "blhd" and width != tensor.shape[3]:  # a region would reach outside
            for i, j in T.Parallel(rows, width):
                if stores:
                    tensor[b, at + i, head, j] = tile[i, j]
                else:
                    tile[i, j] = tensor[b, at + i, head, j]
        elif stores:
            T.copy(tile, place(tensor, b, head, at, rows))
        else:
            T.copy(place(tensor, b, head, at, rows), tile)

    return move


def _width(dim: int, dtype: T.dtypes.DType, target: TargetLike) -> int:
    """Elements of a head in a tile, zeros behind its own: matrix units multiply 32 bytes along K."""
    step = 1 if gpu(resolve(target)) is None else 256 // dtype.bits
    return -(-dim // step) * step


_PREPARED = 32
"""Rows of a block of the kernels before and after the one with the products."""
_PRODUCT_HIDES = 64
"""Queries of a step, up to which stores under dV's product cost less than those in front of it
(`benchmarks/h200/decisions.md`).
"""


def _backward_blocks(
    target: TargetLike, dim: int, dtype: str, given: Mapping[str, int]
) -> dict[str, int]:
    """The table's configuration, with the values that are given."""
    blocks = {**(attention_backward_configuration(target, dim, dtype) or {}), **given}
    if not blocks:
        raise InvalidValue(
            f"attention_backward: nothing is known of {dtype} with {dim} elements a head on this "
            "target",
            help="make the program with configuration={...}",
        )
    return blocks


def attention_backward(
    batch: T.dtypes.Extent,
    heads: int,
    queries: T.dtypes.Extent,
    dim: int,
    dtype: T.dtypes.DTypeLike,
    *,
    target: TargetLike,
    keys: T.dtypes.Extent | None = None,
    kv_heads: int | None = None,
    value_dim: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bhld",
    precision: Precision = "tf32",
    configuration: Mapping[str, int] | None = None,
) -> tirx.PrimFunc:
    """The tile program of the gradients of `attention`.

    Its parameters are Q, K, V, the result of the forward pass, its gradient, the `lse` of the forward
    pass; scratch tensors of the scores' dtype, (batch, heads, queries) and (batch, heads, queries,
    dim); and the gradients of Q, K and V. Where heads of Q share one of K and V, each has a gradient of
    its own, in the scores' dtype.

    A block owns a tile of keys and walks over tiles of queries. It computes their weights again, and
    from the gradient of the result that of the scores. What it contributes to the gradients of the
    queries it adds to memory, in an order that no two runs have in common: their last bits differ.

    Parameters
    ----------
    batch, heads, queries, dim, dtype, target, keys, kv_heads, value_dim, causal, scale
        As of `attention`.
    layout, precision
        As of `attention`; scratch tensors and `lse` have one layout.
    configuration : mapping, optional
        Values for `block_M` (keys), `block_N` (queries), `stages` and `threads`, in place of the
        table's.

    Raises
    ------
    InvalidValue
        As `attention`; or if the table has no configuration, and none is given.
    """
    keys = queries if keys is None else keys
    kv_heads, value_dim = kv_heads or heads, value_dim or dim
    scale = 1 / math.sqrt(dim) if scale is None else scale
    check_attention(heads, kv_heads, scale, layout)
    dtype = T.as_dtype(dtype)
    width, value_width = (_width(extent, dtype, target) for extent in (dim, value_dim))
    c = _backward_blocks(target, max(dim, value_dim), str(dtype), configuration or {})
    block_M, block_N = c["block_M"], c["block_N"]
    group, rows = heads // kv_heads, T.GemmWarpPolicy.FullRow
    accum = accumulator_dtype(dtype, dtype)
    of_shared = dtype if group == 1 else accum
    gemm, move = functools.partial(T.gemm, precision=precision), _mover(layout)
    keys_end, queries_end = (
        not (isinstance(extent, int) and extent % block == 0)
        for extent, block in ((keys, block_M), (queries, block_N))
    )

    masked = _masked_tiles(block_M, block_N, keys, causal)
    heads_first = causal and _heads_fit(
        heads, queries, (width + value_width) * dtype.bits // 8, target
    )
    tensor = functools.partial(_tensor, layout, batch)
    stores_first = block_N > _PRODUCT_HIDES  # the gradients of the scores, before dV's product

    @T.prim_func
    def attention_backward(
        Q: tensor(heads, queries, dim, dtype),
        K: tensor(kv_heads, keys, dim, dtype),
        V: tensor(kv_heads, keys, value_dim, dtype),
        Output: tensor(heads, queries, value_dim, dtype),
        dOutput: tensor(heads, queries, value_dim, dtype),
        lse: T.Tensor((batch, 2, heads, queries), accum),
        delta: T.Tensor((batch, heads, queries), accum),
        sums: T.Tensor((batch, heads, queries, dim), accum),
        dQ: tensor(heads, queries, dim, dtype),
        dK: tensor(heads, keys, dim, of_shared),
        dV: tensor(heads, keys, value_dim, of_shared),
    ):
        blocks = T.ceildiv(queries, _PREPARED)
        with T.Kernel(blocks, heads, batch, threads=128) as (bx, by, bz):
            products = T.alloc_fragment((_PREPARED, value_dim), accum)
            gradient = T.alloc_fragment((_PREPARED, value_dim), accum)
            total = T.alloc_fragment((_PREPARED,), accum)
            move(Output, bz, by, bx * _PREPARED, products)
            move(dOutput, bz, by, bx * _PREPARED, gradient)
            for i, j in T.Parallel(_PREPARED, value_dim):
                products[i, j] *= gradient[i, j]
            T.reduce_sum(products, total, dim=1)
            T.copy(total, delta[bz, by, bx * _PREPARED])
            for i, j in T.Parallel(_PREPARED, dim):
                sums[bz, by, bx * _PREPARED + i, j] = 0

        tiles = T.ceildiv(keys, block_M)
        grid = (heads, tiles) if heads_first else (tiles, heads)
        with T.Kernel(*grid, batch, threads=c["threads"]) as (fast, slow, bz):
            bx, by = (slow, fast) if heads_first else (fast, slow)
            k = T.alloc_shared((block_M, width), dtype)
            v = T.alloc_shared((block_M, value_width), dtype)
            q = T.alloc_shared((block_N, width), dtype)
            do = T.alloc_shared((block_N, value_width), dtype)
            largest = T.alloc_shared((block_N,), accum)
            logarithm = T.alloc_shared((block_N,), accum)
            delta_of_query = T.alloc_shared((block_N,), accum)
            d_scores_shared = T.alloc_shared((block_M, block_N), dtype)
            scores = T.alloc_fragment((block_M, block_N), accum)
            d_scores = T.alloc_fragment((block_M, block_N), accum)
            weights = T.alloc_fragment((block_M, block_N), dtype)
            rounded = T.alloc_fragment((block_M, block_N), dtype)
            dk = T.alloc_fragment((block_M, width), accum)
            dv = T.alloc_fragment((block_M, value_width), accum)
            dq = T.alloc_fragment((block_N, width), accum)
            move(K, bz, by // group, bx * block_M, k)
            move(V, bz, by // group, bx * block_M, v)
            T.clear(dk)
            T.clear(dv)
            first = bx * block_M // block_N if causal else 0
            steps = T.max(T.ceildiv(queries, block_N) - first, 0)
            for step in T.Pipelined(steps, num_stages=c["stages"]):
                at = (first + step) * block_N
                move(Q, bz, by, at, q)
                T.copy(lse[bz, 0, by, at], largest)
                T.copy(lse[bz, 1, by, at], logarithm)
                move(dOutput, bz, by, at, do)
                T.copy(delta[bz, by, at], delta_of_query)
                # Keys by queries, so that both products with them have the weights in registers.
                gemm(k, q, scores, transpose_B=True, policy=rows, clear_accum=True)
                gemm(v, do, d_scores, transpose_B=True, policy=rows, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] = normalized_weight(scores[i, j], largest[j], logarithm[j], scale)
                if causal or keys_end or queries_end:
                    if step < (steps if keys_end or queries_end else masked):
                        for i, j in T.Parallel(block_M, block_N):
                            last = T.min(at + j, keys - 1) if causal else keys - 1
                            if queries_end:  # behind it are zeros: the product with infinity is NaN
                                last = T.if_then_else(at + j < queries, last, -1)
                            scores[i, j] = T.if_then_else(bx * block_M + i <= last, scores[i, j], 0)
                T.copy(scores, weights)
                for i, j in T.Parallel(block_M, block_N):
                    d_scores[i, j] = scores[i, j] * (d_scores[i, j] - delta_of_query[j])
                T.copy(d_scores, rounded)
                if stores_first:
                    T.copy(rounded, d_scores_shared)
                gemm(weights, do, dv, policy=rows)
                if not stores_first:
                    T.copy(rounded, d_scores_shared)
                gemm(d_scores_shared, k, dq, transpose_A=True, clear_accum=True)
                gemm(rounded, q, dk, policy=rows)
                T.atomic_add(sums[bz, by, at, 0], dq)
            for i, j in T.Parallel(block_M, width):
                dk[i, j] *= scale
            move(dK, bz, by, bx * block_M, dk, stores=True)
            move(dV, bz, by, bx * block_M, dv, stores=True)

        with T.Kernel(blocks, heads, batch, threads=128) as (bx, by, bz):
            gradient = T.alloc_fragment((_PREPARED, dim), accum)
            T.copy(sums[bz, by, bx * _PREPARED, 0], gradient)
            for i, j in T.Parallel(_PREPARED, dim):
                gradient[i, j] *= scale
            move(dQ, bz, by, bx * _PREPARED, gradient, stores=True)

    return attention_backward


def _heads_fit(heads: int, queries: T.dtypes.Extent, size: int, target: TargetLike) -> bool:
    """Tell whether rows of such a size of all queries of a batch stay in a GPU's L2 cache.

    Then blocks of all heads that visit most queries may begin first.
    """
    is_known = isinstance(queries, int) and gpu(resolve(target)) is not None
    return is_known and heads * queries * size <= _CACHE


_CACHE = 32 << 20
"""Bytes that stay in the L2 cache beside all else."""


def _masked_tiles(block_M: int, block_N: int, keys: T.dtypes.Extent, causal: bool) -> int:
    """The number of a block's first tiles that may have keys that a query does not see."""
    if causal:
        aligned = block_M % block_N == 0 or block_N % block_M == 0
        return -(-block_M // block_N) + (0 if aligned else 1)
    return 0 if isinstance(keys, int) and keys % block_N == 0 else 1
