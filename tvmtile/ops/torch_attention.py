"""`tvmtile.ops.attention`, an operator of torch's with a gradient. Imported only where it is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import tvmtile.language as T
from tvmtile.errors import ArgumentError, hide_internal_frames
from tvmtile.jit import Kernel
from tvmtile.ops import programs
from tvmtile.ops.checks import check_attention, check_same_kind, check_tensor, described
from tvmtile.ops.configurations import attention_configuration
from tvmtile.ops.kernels import compiled, is_plain, size_class, target_for
from tvmtile.ops.torch_matmul import matmul_operator
from tvmtile.ops.torch_rows import softmax_operator

__all__ = ["attention"]

_ALIGNED = 128
_FOLDED = 64


@hide_internal_frames
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """`softmax(q @ k.mT * scale) @ v` of each head, without ever storing the scores.

    The tensors may lie as (batch, length, heads, dim) with the axes 1 and 2 swapped; the result lies as
    `q` does. Other strides are copied first. The gradient is computed by products and softmaxes of
    whole matrices of scores, which takes memory for these.

    Parameters
    ----------
    q : torch.Tensor
        Of shape (batch, heads, queries, dim).
    k, v : torch.Tensor
        Of shape (batch, kv_heads, keys, dim), with another dim for v if need be; each of their heads is
        shared by `heads // kv_heads` consecutive heads of q.
    causal : bool
        Query i sees the keys 0 to i, as for torch's `is_causal`.
    scale : float, optional
        Positive; 1 / sqrt(dim) where absent.

    Raises
    ------
    ArgumentError
        For a tensor that does not fit; the message says which.
    InvalidValue
        If the heads of k do not divide those of q, or the scale is not positive.
    """
    if scale is None:
        check_tensor("attention", "q", q, 4)
        scale = 1 / math.sqrt(q.shape[-1])
    if is_plain(q, k, v):
        return _attention(q, k, v, causal, scale)
    return _operator(q, k, v, causal, scale)


def _check(q: Tensor, k: Tensor, v: Tensor, scale: float) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor("attention", name, tensor, 4)
    check_same_kind("attention", ("q", q), ("k", k), ("v", v))
    fits = q.dim() == k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ArgumentError(
            f"attention: q is {described(q)}, k is {described(k)}, v is {described(v)}",
            help="q is of shape (batch, heads, queries, dim), k and v of (batch, kv_heads, keys, dim)",
        )
    check_attention(q.shape[1], k.shape[1], scale, "bhld")


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    _check(q, k, v, scale)
    batch, heads, queries, dim = q.shape
    kv_heads, keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    if not causal and heads > kv_heads and queries < _FOLDED and q.is_contiguous():
        # The queries of the heads that share keys are as many queries of one head.
        folded = q.view(batch, kv_heads, heads // kv_heads * queries, dim)
        return _attention(folded, k, v, False, scale).view(batch, heads, queries, value_dim)
    out = _result(q, v)
    if not out.numel() or not keys:
        return out.zero_()
    swapped = not q.is_contiguous() and q.transpose(1, 2).is_contiguous()
    kernel = _kernel(
        heads, _queries(queries, q.device.type), dim, q.dtype, size_class(keys), kv_heads, value_dim,
        causal, scale, "blhd" if swapped else "bhld", q.device.type,
    )  # fmt: skip
    if swapped:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    kernel(q.contiguous(), k.contiguous(), v.contiguous(), out.transpose(1, 2) if swapped else out)
    return out


def _result(q: Tensor, v: Tensor) -> Tensor:
    """What is written: it lies as `q` does."""
    batch, heads, queries, _ = q.shape
    if not q.is_contiguous() and q.transpose(1, 2).is_contiguous():
        return q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    return q.new_empty(batch, heads, queries, v.shape[3])


def _queries(extent: int, device: str) -> tuple[int, bool]:
    """Their size class, or their number and True if a kernel is made for it alone.

    On an H200 a kernel for one number of queries is up to 13% quicker than one for all; numbers that
    blocks divide are few and return. Batches and keys of any number cost nothing there.
    """
    is_own = device != "cpu" and extent % _ALIGNED == 0
    return (extent, True) if is_own else (size_class(extent), False)


@lru_cache(maxsize=4096)
def _kernel(
    heads: int,
    queries: tuple[int, bool],
    dim: int,
    dtype: torch.dtype,
    keys: int,
    kv_heads: int,
    value_dim: int,
    causal: bool,
    scale: float,
    layout: str,
    device: str,
) -> Kernel:
    target, name = target_for(device), str(dtype).removeprefix("torch.")
    configuration = attention_configuration(
        target, queries[0], keys, max(dim, value_dim), name, causal, heads
    )
    options: dict[str, Any] = {
        "kv_heads": kv_heads, "value_dim": value_dim, "causal": causal, "scale": scale,
        "layout": layout,
    }  # fmt: skip
    rows, is_own = queries

    def program() -> Any:
        return programs.attention(
            T.dynamic("batch"), heads, rows if is_own else T.dynamic("queries"), dim, name,
            target=target, keys=T.dynamic("keys"), configuration=configuration, **options,
        )  # fmt: skip

    own = rows if is_own else None
    key = ("attention", heads, own, dim, name, *options.values(), *configuration.values())
    return compiled(key, program, target)


# As an operator of torch's ---------------------------------------------------------------------------


@torch.library.custom_op(
    "tvmtile::attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> Tensor",
)
def _operator(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    return _attention(q, k, v, causal, scale)


@_operator.register_fake
def _fake(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    del causal
    _check(q, k, v, scale)
    return _result(q, v)


def _keep(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    del output
    *tensors, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v = ctx.saved_tensors
    group = q.shape[1] // k.shape[1]
    shared = [x.repeat_interleave(group, dim=1) if group > 1 else x for x in (k, v)]
    scores = _product(q * ctx.scale, shared[0].mT)
    if ctx.causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    weights = softmax_operator(scores)
    of_weights = _product(gradient, shared[1].mT)
    mean = (weights * of_weights).sum(-1, keepdim=True)
    of_scores = weights * (of_weights - mean) * ctx.scale
    of_q = _product(of_scores, shared[0])
    of_k, of_v = _product(of_scores.mT, q), _product(weights.mT, gradient)
    if group > 1:
        of_k, of_v = (x.unflatten(1, (-1, group)).sum(2) for x in (of_k, of_v))
    return of_q, of_k, of_v, None, None


def _product(a: Tensor, b: Tensor) -> Tensor:
    return matmul_operator(a, b, None, None, None)


_operator.register_autograd(_gradients, setup_context=_keep)
