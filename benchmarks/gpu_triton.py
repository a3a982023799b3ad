"""Triton's side of `gpu.py`: the kernels of its tutorials' kinds, written for this comparison."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _matmul(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PANEL: tl.constexpr,
):  # fmt: skip
    # Blocks that run together take PANEL rows of tiles of C: what they read stays in L2.
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (PANEL * columns) * PANEL
    height = min(rows - first, PANEL)
    within = pid % (PANEL * columns)
    row, column = first + within % height, within // height

    m = (row * BM + tl.arange(0, BM)) % M
    n = (column * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a_tile = a + m[:, None] * stride_am + k[None, :] * stride_ak
    b_tile = b + k[:, None] * stride_bk + n[None, :] * stride_bn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(K, BK)):
        left = K - step * BK
        x = tl.load(a_tile, mask=k[None, :] < left, other=0.0)
        y = tl.load(b_tile, mask=k[:, None] < left, other=0.0)
        total = tl.dot(x, y, total)
        a_tile += BK * stride_ak
        b_tile += BK * stride_bk

    m = row * BM + tl.arange(0, BM)
    n = column * BN + tl.arange(0, BN)
    inside = (m[:, None] < M) & (n[None, :] < N)
    c_tile = c + m[:, None] * stride_cm + n[None, :] * stride_cn
    tl.store(c_tile, total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def _matmul_persistent(
    a, b, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PANEL: tl.constexpr,
    TRANSPOSED_A: tl.constexpr, TRANSPOSED_B: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=True):
        first = tile // (PANEL * columns) * PANEL
        height = min(rows - first, PANEL)
        within = tile % (PANEL * columns)
        m, n = (first + within % height) * BM, within // height * BN
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(tl.cdiv(K, BK)):
            k = step * BK
            x = a.load([k, m]).T if TRANSPOSED_A else a.load([m, k])
            y = b.load([n, k]).T if TRANSPOSED_B else b.load([k, n])
            total = tl.dot(x, y, total)
        c.store([m, n], total.to(c.dtype))


def gemm(a, b, c, BM, BN, BK, num_warps, num_stages, persistent=False, PANEL=8):
    """c = a @ b; a and b may be transposed views. Persistent blocks copy by tensor maps."""
    (M, K), N = a.shape, b.shape[1]
    tiles = triton.cdiv(M, BM) * triton.cdiv(N, BN)
    options = {"PANEL": PANEL, "num_warps": num_warps, "num_stages": num_stages}
    if not persistent:
        strides = (*a.stride(), *b.stride(), *c.stride())
        _matmul[(tiles,)](a, b, c, M, N, K, *strides, BM=BM, BN=BN, BK=BK, **options)
        return
    sizes = (BM, BK), (BK, BN), (BM, BN)
    maps = [_tensor_map(*pair) for pair in zip((a, b, c), sizes, strict=True)]
    blocks = torch.cuda.get_device_properties(a.device).multi_processor_count
    _matmul_persistent[(min(blocks, tiles),)](
        *maps, M, N, K, BM=BM, BN=BN, BK=BK,
        TRANSPOSED_A=not a.is_contiguous(), TRANSPOSED_B=not b.is_contiguous(), **options,
    )  # fmt: skip


def _tensor_map(x, block):
    """The descriptor of a matrix, or of one that it is a transposed view of, for copies of boxes."""
    if not x.is_contiguous():
        x, block = x.T, block[::-1]
    return TensorDescriptor.from_tensor(x, list(block))


@triton.jit
def _attend(
    acc, total, largest, q, k_base, v_base, rows, start, end, scale, length,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BN)
    dims = tl.arange(0, D)
    for first in range(start, end, BN):
        first = tl.multiple_of(first, BN)
        keys = first + columns
        k = tl.load(k_base + dims[:, None] + keys[None, :] * D)
        scores = tl.dot(q, k)
        if MASKED:
            scores = scores * scale + tl.where(rows[:, None] >= keys[None, :], 0, -1.0e6)
            new = tl.maximum(largest, tl.max(scores, 1))
            scores -= new[:, None]
        else:
            new = tl.maximum(largest, tl.max(scores, 1) * scale)
            scores = scores * scale - new[:, None]
        weights = tl.math.exp2(scores)
        rescale = tl.math.exp2(largest - new)
        total = total * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None]
        v = tl.load(v_base + keys[:, None] * D + dims[None, :])
        acc = tl.dot(weights.to(v.dtype), v, acc)
        largest = new
    return acc, total, largest


@triton.jit
def _attention(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, length,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * length * D
    rows = block * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + dims[None, :])
    acc = tl.zeros((BM, D), dtype=tl.float32)
    total = tl.zeros((BM,), dtype=tl.float32)
    largest = tl.full((BM,), -float("inf"), dtype=tl.float32)
    # Only the tiles on the diagonal need a mask.
    unmasked = block * BM if CAUSAL else length
    acc, total, largest = _attend(
        acc, total, largest, q, k_ptr + base, v_ptr + base, rows, 0, unmasked, scale, length,
        D, BM, BN, False,
    )  # fmt: skip
    if CAUSAL:
        acc, total, largest = _attend(
            acc, total, largest, q, k_ptr + base, v_ptr + base, rows, unmasked,
            (block + 1) * BM, scale, length, D, BM, BN, True,
        )  # fmt: skip
    out = o_ptr + base + rows[:, None] * D + dims[None, :]
    tl.store(out, (acc / total[:, None]).to(o_ptr.dtype.element_ty))


def attention(q, k, v, out, causal, BM, BN, num_warps, num_stages):
    """Flash attention of [batch, heads, length, dim]; BM and BN divide the length, BN divides BM."""
    batch, heads, length, dim = q.shape
    assert length % BM == 0
    assert BM % BN == 0
    _attention[(length // BM, batch * heads)](
        q, k, v, out, math.log2(math.e) / math.sqrt(dim), length,
        D=dim, BM=BM, BN=BN, CAUSAL=causal, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


@triton.jit
def _softmax(x_ptr, y_ptr, N: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    x = tl.load(x_ptr + offsets).to(tl.float32)
    x = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + offsets, (x / tl.sum(x, 0)).to(y_ptr.dtype.element_ty))


def softmax(x, y, num_warps):
    """Softmax of the rows, whose length is a power of 2."""
    _softmax[(x.shape[0],)](x, y, N=x.shape[1], num_warps=num_warps)


@triton.jit
def _rms_norm(x_ptr, w_ptr, y_ptr, N: tl.constexpr):
    columns = tl.arange(0, N)
    offsets = tl.program_id(0).to(tl.int64) * N + columns
    x = tl.load(x_ptr + offsets).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / N + 1e-6)
    w = tl.load(w_ptr + columns).to(tl.float32)
    tl.store(y_ptr + offsets, (x * scale * w).to(y_ptr.dtype.element_ty))


def rms_norm(x, w, y, num_warps):
    """The rows divided by the root of their mean square, times w; a power of 2 long."""
    _rms_norm[(x.shape[0],)](x, w, y, N=x.shape[1], num_warps=num_warps)


VERSION = triton.__version__
