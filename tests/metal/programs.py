"""Programs that tests on several targets run, and how they are run on emulators and compared.

An emulator looks for races, accesses outside of tensors, divergent barriers and elements that were
never written in every kernel that it runs; each is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import tvmtile
import tvmtile.language as T

# What rounding explains, relative to the largest element of the reference.
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def emulated(program: Any, **options: Any) -> Any:
    """Compile a program for Metal; the kernel runs on the emulator."""
    return tvmtile.compile(program, target="metal", execution_backend="emulator", **options)


def runnable(program: Any, target: Any, **options: Any) -> Any:
    """Compile a program for a target; the kernels of a GPU run on its emulator."""
    backend = "auto" if target == "llvm" else "emulator"
    return tvmtile.compile(program, target=target, execution_backend=backend, **options)


def random(*shape: int, dtype: str = "float32") -> torch.Tensor:
    """A tensor of normal numbers, or of integers from -8 to 7 (from 0 if unsigned)."""
    if "int" in dtype:
        low = 0 if dtype.startswith("uint") else -8
        return torch.randint(low, 8, shape).to(getattr(torch, dtype))
    return torch.randn(shape, dtype=torch.float64).to(getattr(torch, dtype))


def assert_close(result: torch.Tensor, reference: torch.Tensor, precision: str = "") -> None:
    """Compare a result with a reference in float64 or int64.

    Parameters
    ----------
    result, reference : Tensor
        Of one shape.
    precision : str
        The narrowest dtype that the result went through (its own by default).
    """
    assert result.shape == reference.shape
    if not result.is_floating_point():
        assert torch.equal(result.long(), reference.long())
        return
    assert reference.dtype == torch.float64
    tolerance = TOLERANCE[precision or str(result.dtype).removeprefix("torch.")]
    largest = float(reference.abs().max()) or 1.0
    error = float((result.double() - reference).abs().max()) / largest
    assert error <= tolerance, f"relative error {error:.1e}"  # NaN is an error too


def gemm(
    M: Any,
    N: Any,
    K: int,
    *,
    block: tuple[int, int, int] = (64, 64, 32),
    dtypes: tuple[str, str, str] = ("float16", "float32", "float32"),
    transposes: tuple[bool, bool] = (False, False),
    policy: Any = T.GemmWarpPolicy.Square,
    threads: int = 128,
    stages: int = 0,
    prologue: Callable[[], Any] | None = None,
    epilogue: Callable[[Any], Any] | None = None,
    roles: bool | None = None,
    tensor_copies: bool = True,
) -> Any:
    """C = epilogue(A @ B), tile by tile.

    Parameters
    ----------
    M, N, K : int
        Extents; M and N may be dynamic.
    block : tuple of int
        Extents of the tile of C and of a step along K.
    dtypes : tuple of str
        Of A and B, of the accumulator, of C.
    transposes : tuple of bool
        Whether A is [K, M], and whether B is [N, K].
    policy : GemmWarpPolicy
        How simdgroups share the accumulator.
    threads : int
        Of a block.
    stages : int
        Of the pipeline along K.
    prologue : callable, optional
        Writes what stands first in the kernel, such as annotations.
    epilogue : callable, optional
        What happens to an element of the accumulator at the end.
    roles : bool, optional
        Whether warps of their own copy tiles; left open where absent.
    tensor_copies : bool
        Whether tensor maps may copy the tile of C.
    """
    block_M, block_N, block_K = block
    dtype, accum_dtype, out_dtype = dtypes
    transpose_A, transpose_B = transposes

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if transpose_A else (M, K), dtype),
        B: T.Tensor((N, K) if transpose_B else (K, N), dtype),
        C: T.Tensor((M, N), out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            if roles is not None:
                T.annotate_warp_specialize(roles)
            if prologue is not None:
                prologue()
            A_shared = T.alloc_shared(
                (block_K, block_M) if transpose_A else (block_M, block_K), dtype
            )
            B_shared = T.alloc_shared(
                (block_N, block_K) if transpose_B else (block_K, block_N), dtype
            )
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                if transpose_A:
                    T.copy(A[k * block_K, by * block_M], A_shared)
                else:
                    T.copy(A[by * block_M, k * block_K], A_shared)
                if transpose_B:
                    T.copy(B[bx * block_N, k * block_K], B_shared)
                else:
                    T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_A, transpose_B, policy)
            if epilogue is not None:
                for i, j in T.Parallel(block_M, block_N):
                    C_local[i, j] = epilogue(C_local[i, j])
            T.copy(C_local, C[by * block_M, bx * block_N], disable_tma=not tensor_copies)

    return main


def operands(
    M: int, N: int, K: int, dtype: str = "float16", transposes: tuple[bool, bool] = (False, False)
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random A and B for `gemm`, and their product in float64."""
    a, b = random(M, K, dtype=dtype), random(K, N, dtype=dtype)
    product = a.double() @ b.double()
    transpose_A, transpose_B = transposes
    return a.T.contiguous() if transpose_A else a, b.T.contiguous() if transpose_B else b, product


def flash_attention(
    batch: int,
    heads: int,
    length: int,
    dim: int,
    causal: bool,
    *,
    block_M: int,
    block_N: int,
    threads: int,
    stages: int,
    policy: Any,
    dtype: str,
    roles: bool | None = None,
    tensor_copies: bool = True,
) -> Any:
    """TileLang's kernel: [batch, length, heads, dim], masked before the product."""
    shape = (batch, length, heads, dim)
    scale = math.log2(math.e) / math.sqrt(dim)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        Output: T.Tensor(shape, dtype),
    ):
        with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=threads) as (bx, by, bz):
            if roles is not None:
                T.annotate_warp_specialize(roles)
            Q_shared = T.alloc_shared((block_M, dim), dtype)
            K_shared = T.alloc_shared((block_N, dim), dtype)
            V_shared = T.alloc_shared((block_N, dim), dtype)
            acc_s = T.alloc_fragment((block_M, block_N), "float32")
            acc_s_cast = T.alloc_fragment((block_M, block_N), dtype)
            acc_o = T.alloc_fragment((block_M, dim), "float32")
            scores_max = T.alloc_fragment((block_M,), "float32")
            scores_max_prev = T.alloc_fragment((block_M,), "float32")
            scores_scale = T.alloc_fragment((block_M,), "float32")
            scores_sum = T.alloc_fragment((block_M,), "float32")
            logsum = T.alloc_fragment((block_M,), "float32")

            T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity("float32"))
            end = T.min((bx + 1) * block_M, length) if causal else length
            for k in T.Pipelined(T.ceildiv(end, block_N), num_stages=stages):
                T.copy(K[bz, k * block_N : (k + 1) * block_N, by, :], K_shared)
                for i, j in T.Parallel(block_M, block_N):
                    last = bx * block_M + i if causal else length - 1
                    acc_s[i, j] = T.if_then_else(k * block_N + j <= last, 0, -T.infinity("float32"))
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=policy)
                T.copy(V[bz, k * block_N : (k + 1) * block_N, by, :], V_shared)
                T.copy(scores_max, scores_max_prev)
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    scores_scale[i] = T.exp2((scores_max_prev[i] - scores_max[i]) * scale)
                for i, j in T.Parallel(block_M, dim):
                    acc_o[i, j] *= scores_scale[i]
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2((acc_s[i, j] - scores_max[i]) * scale)
                T.copy(acc_s, acc_s_cast)
                T.gemm(acc_s_cast, V_shared, acc_o, policy=policy)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_M):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= logsum[i]
            rows = Output[bz, bx * block_M : (bx + 1) * block_M, by, :]
            T.copy(acc_o, rows, disable_tma=not tensor_copies)

    return main
