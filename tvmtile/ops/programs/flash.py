"""Attention without ever storing the scores, forward."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm import tirx

import tvmtile.language as T
from tvmtile.frontend.dtypes import DTypeLike, Extent, as_dtype
from tvmtile.ops.checks import check_attention
from tvmtile.ops.configurations import attention_configuration
from tvmtile.target import TargetLike

__all__ = ["attention"]


def attention(
    batch: Extent,
    heads: int,
    queries: Extent,
    dim: int,
    dtype: DTypeLike,
    *,
    target: TargetLike,
    keys: Extent | None = None,
    kv_heads: int | None = None,
    value_dim: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    layout: str = "bhld",
    configuration: Mapping[str, int] | None = None,
) -> tirx.PrimFunc:
    """The tile program of `softmax(Q @ K.T * scale) @ V`; its parameters are Q, K, V and the result.

    A block keeps the maximum and the sum of each of its rows of scores while it walks over tiles of K
    and V (the online softmax). It visits the last keys first, since only these need a mask.

    Parameters
    ----------
    batch, queries, keys : int or Expr
        Extents; a `T.dynamic` variable stands for one that the arguments of a call bind. There are as
        many keys as queries where `keys` is absent.
    heads, dim : int
        Heads of Q, and elements of a head of Q and K.
    dtype : dtype
        Of all tensors. Scores and sums are of float32.
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
    configuration : mapping, optional
        Values for `block_M`, `block_N`, `stages` and `threads`, in place of the table's.

    Raises
    ------
    InvalidValue
        If `kv_heads` does not divide the heads, the scale is not positive, or there is no such layout.
    """
    keys = queries if keys is None else keys
    kv_heads, value_dim = kv_heads or heads, value_dim or dim
    scale = 1 / math.sqrt(dim) if scale is None else scale
    check_attention(heads, kv_heads, scale, layout)
    dtype = as_dtype(dtype)
    c = {
        **attention_configuration(target, queries, keys, dim, str(dtype), causal, heads),
        **(configuration or {}),
    }
    block_M, block_N = c["block_M"], c["block_N"]
    log2_scale = scale * math.log2(math.e)  # exp2(log2_scale * x) is exp(scale * x)
    rows = T.GemmWarpPolicy.FullRow  # a warp has whole rows, so it finds their maximum itself
    masked = _masked_tiles(block_M, block_N, keys, causal)
    group = heads // kv_heads

    def shape(heads: int, length: Any, dim: int) -> tuple[Any, ...]:
        return (batch, heads, length, dim) if layout == "bhld" else (batch, length, heads, dim)

    def tile(tensor: Any, b: Any, head: Any, start: Any, count: int) -> Any:
        span = slice(start, start + count)
        return tensor[b, head, span, :] if layout == "bhld" else tensor[b, span, head, :]

    @T.prim_func
    def attention(
        Q: T.Tensor(shape(heads, queries, dim), dtype),
        K: T.Tensor(shape(kv_heads, keys, dim), dtype),
        V: T.Tensor(shape(kv_heads, keys, value_dim), dtype),
        Output: T.Tensor(shape(heads, queries, value_dim), dtype),
    ):
        blocks = T.ceildiv(queries, block_M)
        with T.Kernel(blocks, heads, batch, threads=c["threads"]) as (started, by, bz):
            # Those that visit most keys begin first, so that no block is left over at the end.
            bx = blocks - 1 - started if causal else started
            Q_shared = T.alloc_shared((block_M, dim), dtype)
            K_shared = T.alloc_shared((block_N, dim), dtype)
            V_shared = T.alloc_shared((block_N, value_dim), dtype)
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_fragment((block_M, block_N), dtype)
            output = T.alloc_fragment((block_M, value_dim), "float32")
            old_max = T.alloc_fragment((block_M,), "float32")
            row_max = T.alloc_fragment((block_M,), "float32")
            rescale = T.alloc_fragment((block_M,), "float32")
            tile_sum = T.alloc_fragment((block_M,), "float32")
            row_sum = T.alloc_fragment((block_M,), "float32")

            T.copy(tile(Q, bz, by, bx * block_M, block_M), Q_shared)
            T.fill(output, 0)
            T.fill(row_sum, 0)
            T.fill(row_max, -1e30)  # finite: all of a row may be masked in the first tile
            end = T.min((bx + 1) * block_M, keys) if causal else keys
            tiles = T.ceildiv(end, block_N)
            for step in T.Pipelined(tiles, num_stages=c["stages"]):
                k = (tiles - 1 - step) * block_N
                T.copy(tile(K, bz, by // group, k, block_N), K_shared)
                T.gemm(Q_shared, K_shared, scores, transpose_B=True, policy=rows, clear_accum=True)
                T.copy(tile(V, bz, by // group, k, block_N), V_shared)
                if masked:
                    if step < masked:
                        for i, j in T.Parallel(block_M, block_N):
                            last = T.min(bx * block_M + i, keys - 1) if causal else keys - 1
                            scores[i, j] = T.if_then_else(
                                k + j <= last, scores[i, j], -T.infinity("float32")
                            )
                T.copy(row_max, old_max)
                T.reduce_max(scores, row_max, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    rescale[i] = T.exp2((old_max[i] - row_max[i]) * log2_scale)
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] = T.exp2(scores[i, j] * log2_scale - row_max[i] * log2_scale)
                T.copy(scores, weights)
                T.reduce_sum(scores, tile_sum, dim=1)
                for i in T.Parallel(block_M):
                    row_sum[i] = row_sum[i] * rescale[i] + tile_sum[i]
                for i, j in T.Parallel(block_M, value_dim):
                    output[i, j] *= rescale[i]
                T.gemm(weights, V_shared, output, policy=rows)
            for i, j in T.Parallel(block_M, value_dim):
                output[i, j] /= row_sum[i]
            T.copy(output, tile(Output, bz, by, bx * block_M, block_M))

    return attention


def _masked_tiles(block_M: int, block_N: int, keys: Extent, causal: bool) -> int:
    """How many of a block's first tiles may have keys that a query does not see."""
    if causal:
        aligned = block_M % block_N == 0 or block_N % block_M == 0
        return -(-block_M // block_N) + (0 if aligned else 1)
    return 0 if isinstance(keys, int) and keys % block_N == 0 else 1
