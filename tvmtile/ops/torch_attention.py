"""`tvmtile.ops.attention`, an operator of torch's with a gradient. Imported only where it is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import tvmtile.language as T
from tvmtile.errors import ArgumentError, hide_internal_frames
from tvmtile.ir.types import Precision
from tvmtile.jit import Kernel
from tvmtile.ops import programs
from tvmtile.ops.checks import check_attention, check_same_kind, check_tensor, described
from tvmtile.ops.configurations import (
    attention_backward_configuration,
    attention_configuration,
)
from tvmtile.ops.kernels import (
    call_in_parts,
    compiled,
    float32_precision,
    is_plain,
    size_class,
    sum_dtype,
    target_for,
)
from tvmtile.ops.torch_matmul import matmul_operator
from tvmtile.ops.torch_rows import softmax_operator

_ALIGNED = 128
_FOLDED = 64


@hide_internal_frames
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """`softmax(q @ k.mT * scale) @ v` of each head, without ever storing the scores.

    Products of float32 are of all bits; on CUDA they are those of TF32 where torch's are, as `matmul`
    says, forward and backward.

    The tensors may lie as (batch, length, heads, dim) with the axes 1 and 2 swapped; the result lies as
    `q` does. Other strides are copied first. Its gradient comes without the scores too where
    `configurations.ATTENTION_BACKWARD` has a row for the device and the dtype; on a GPU the last bits
    of that of `q` then differ from run to run. Elsewhere it is computed by products and softmaxes of
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
        scale = 1 / math.sqrt(max(1, q.shape[-1]))
    if is_plain(q, k, v):
        return _attention(q, k, v, causal, scale, None)
    result: Tensor = _operator(q, k, v, causal, scale)[0]
    return result


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


def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, lse: Tensor | None
) -> Tensor:
    """The result; `lse`, if there is one, is written."""
    _check(q, k, v, scale)
    batch, heads, queries, dim = q.shape
    kv_heads, keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    if not causal and heads > kv_heads and queries < _FOLDED and q.is_contiguous():
        # The queries of the heads that share keys are as many queries of one head.
        folded = q.view(batch, kv_heads, heads // kv_heads * queries, dim)
        sums = None if lse is None else lse.view(batch, 2, kv_heads, -1)
        return _attention(folded, k, v, False, scale, sums).view(batch, heads, queries, value_dim)
    out = _result(q, v)
    if not out.numel() or not keys:
        return out.zero_()
    swapped = _is_swapped(q)
    of_queries = _class_of(queries, q.device.type)
    of_keys = of_queries if keys == queries else (size_class(keys), False)
    kernel = _kernel(
        size_class(batch), heads, of_queries, dim, q.dtype, of_keys, kv_heads, value_dim,
        causal, scale, "blhd" if swapped else "bhld", lse is not None, float32_precision(q.dtype),
        q.device.type,
    )  # fmt: skip
    if swapped:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    written = out.transpose(1, 2) if swapped else out
    sums = () if lse is None else (lse,)
    call_in_parts(kernel, q.contiguous(), k.contiguous(), v.contiguous(), written, *sums)
    return out


def _is_swapped(q: Tensor) -> bool:
    """Tell whether a tensor lies as (batch, length, heads, dim)."""
    return not q.is_contiguous() and q.transpose(1, 2).is_contiguous()


def _result(q: Tensor, v: Tensor) -> Tensor:
    """The tensor of results: it lies as `q` does."""
    return _lying_as(q, q.shape[1], q.shape[2], v.shape[3], q.dtype)


def _lying_as(q: Tensor, heads: int, length: int, dim: int, dtype: torch.dtype) -> Tensor:
    """A new tensor (batch, heads, length, dim) with the axes in memory in the order of those of `q`."""
    if _is_swapped(q):
        return q.new_empty(q.shape[0], length, heads, dim, dtype=dtype).transpose(1, 2)
    return q.new_empty(q.shape[0], heads, length, dim, dtype=dtype)


def _class_of(extent: int, device: str) -> tuple[int, bool]:
    """Their size class, or their number and True if a kernel is made for it alone.

    A kernel for one number of queries, and of keys, is quicker than one for all
    (`benchmarks/h200/decisions.md`); numbers that blocks divide are few and return. A batch of any
    number costs nothing there.
    """
    is_own = device != "cpu" and extent % _ALIGNED == 0
    return (extent, True) if is_own else (size_class(extent), False)


def _own(*classes: tuple[int, bool]) -> list[int | None]:
    """The numbers that a kernel is made for alone; None of the others."""
    return [extent if is_own else None for extent, is_own in classes]


def _lengths(extents: Sequence[int | None]) -> Iterator[T.dtypes.Extent]:
    """Queries and keys of a program, those that the call decides as variables."""
    for name, extent in zip(("queries", "keys"), extents, strict=True):
        yield T.dynamic(name) if extent is None else extent


@lru_cache(maxsize=4096)
def _kernel(
    batch: int,
    heads: int,
    queries: tuple[int, bool],
    dim: int,
    dtype: torch.dtype,
    keys: tuple[int, bool],
    kv_heads: int,
    value_dim: int,
    causal: bool,
    scale: float,
    layout: str,
    lse: bool,
    precision: Precision,
    device: str,
) -> Kernel:
    target, name = target_for(device), str(dtype).removeprefix("torch.")
    configuration = attention_configuration(
        target, queries[0], keys[0], max(dim, value_dim), name, causal, heads, batch
    )
    options: dict[str, Any] = {
        "kv_heads": kv_heads, "value_dim": value_dim, "causal": causal, "scale": scale,
        "layout": layout, "lse": lse, "precision": precision,
    }  # fmt: skip
    extents = _own(queries, keys)

    def program() -> Any:
        rows, columns = _lengths(extents)
        return programs.attention(
            T.dynamic("batch"), heads, rows, dim, name, target=target, keys=columns,
            configuration=configuration, **options,
        )  # fmt: skip

    key = ("attention", heads, *extents, dim, name, *options.values(), *configuration.values())
    return compiled(key, program, target)


# As an operator of torch's ---------------------------------------------------------------------------


@torch.library.custom_op(
    "tvmtile::attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor, Tensor)",
)
def _operator(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """The result, and of each query the largest score and the sum of its weights, as `lse`."""
    lse = _lse(q)
    return _attention(q, k, v, causal, scale, lse), lse


@_operator.register_fake
def _fake(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    del causal
    _check(q, k, v, scale)
    return _result(q, v), _lse(q)


def _lse(q: Tensor) -> Tensor:
    return q.new_empty((q.shape[0], 2, *q.shape[1:3]), dtype=sum_dtype(q))


def _keep(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse = ctx.saved_tensors
    of_all = _backward_operator(q, k, v, out, gradient, lse, ctx.causal, ctx.scale)
    return (*of_all, None, None)


_operator.register_autograd(_gradients, setup_context=_keep)


# Backward --------------------------------------------------------------------------------------------


@torch.library.custom_op(
    "tvmtile::attention_backward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor out, Tensor gradient, Tensor lse, bool causal, "
    "float scale) -> (Tensor, Tensor, Tensor)",
)
def _backward_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    gradient: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    (heads, queries, dim), (kv_heads, keys) = q.shape[1:], k.shape[1:3]
    swapped = _is_swapped(q)
    if not out.numel() or not keys:
        of_q, of_k, of_v = (x.zero_() for x in _backward_fake(q, k, v))
        return of_q, of_k, of_v
    if _backward_blocks(max(dim, v.shape[3]), q.dtype, q.device.type) is None:
        found = _by_products(q, k, v, gradient, causal, scale)
        if not swapped:
            return found
        of_q, of_k, of_v = map(torch.Tensor.copy_, _backward_fake(q, k, v), found)
        return of_q, of_k, of_v
    kernel = _backward_kernel(
        heads, _class_of(queries, q.device.type), dim, q.dtype, _class_of(keys, q.device.type),
        kv_heads, v.shape[3], causal, scale, "blhd" if swapped else "bhld",
        float32_precision(q.dtype), q.device.type,
    )  # fmt: skip
    of_q, of_k, of_v = _backward_fake(q, k, v)
    if heads > kv_heads:  # one of each head of q
        of_k, of_v = (_lying_as(q, heads, keys, x.shape[3], lse.dtype) for x in (k, v))
    tensors = [q, k, v, out, gradient, of_q, of_k, of_v]
    if swapped:
        tensors = [x.transpose(1, 2) for x in tensors]
    read = (x.contiguous() for x in (*tensors[:5], lse))
    call_in_parts(kernel, *read, torch.empty_like(lse[:, 0]), lse.new_empty(q.shape), *tensors[5:])
    if heads > kv_heads:
        of_k, of_v = (x.unflatten(1, (kv_heads, -1)).sum(2).to(q.dtype) for x in (of_k, of_v))
    return of_q, of_k, of_v


def _by_products(
    q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by whole matrices of scores."""
    group = q.shape[1] // k.shape[1]
    shared = [x.repeat_interleave(group, dim=1) if group > 1 else x for x in (k, v)]
    scores = _product(q, shared[0].mT, sum_dtype(q)) * scale
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    weights = softmax_operator(scores)
    of_weights = _product(gradient, shared[1].mT, sum_dtype(q))
    mean = (weights * of_weights).sum(-1, keepdim=True)
    of_scores = (weights * (of_weights - mean) * scale).to(q.dtype)
    of_q = _product(of_scores, shared[0]).contiguous()
    of_k, of_v = _product(of_scores.mT, q), _product(weights.to(q.dtype).mT, gradient)
    if group > 1:
        of_k, of_v = (x.unflatten(1, (-1, group)).sum(2) for x in (of_k, of_v))
    return of_q, of_k, of_v


def _product(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    return matmul_operator(a, b, None, None, out_dtype)


@_backward_operator.register_fake
def _backward_fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    shapes = [x.shape[1:] for x in (q, k, v)]
    of_q, of_k, of_v = (_lying_as(q, h, n, d, q.dtype) for h, n, d in shapes)
    return of_q, of_k, of_v


@lru_cache(maxsize=256)
def _backward_blocks(dim: int, dtype: torch.dtype, device: str) -> dict[str, int] | None:
    name = str(dtype).removeprefix("torch.")
    return attention_backward_configuration(target_for(device), dim, name)


@lru_cache(maxsize=4096)
def _backward_kernel(
    heads: int,
    queries: tuple[int, bool],
    dim: int,
    dtype: torch.dtype,
    keys: tuple[int, bool],
    kv_heads: int,
    value_dim: int,
    causal: bool,
    scale: float,
    layout: str,
    precision: Precision,
    device: str,
) -> Kernel:
    target, name = target_for(device), str(dtype).removeprefix("torch.")
    configuration = _backward_blocks(max(dim, value_dim), dtype, device)
    options: dict[str, Any] = {
        "kv_heads": kv_heads, "value_dim": value_dim, "causal": causal, "scale": scale,
        "layout": layout, "precision": precision,
    }  # fmt: skip
    extents = _own(queries, keys)

    def program() -> Any:
        rows, columns = _lengths(extents)
        return programs.attention_backward(
            T.dynamic("batch"), heads, rows, dim, name, target=target, keys=columns,
            configuration=configuration, **options,
        )  # fmt: skip

    key = ("attention_backward", heads, *extents, dim, name, *options.values())
    return compiled(key, program, target)
