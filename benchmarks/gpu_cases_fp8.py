"""Products of matrices of floats of 8 bits with scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from gpu_case import Case, Tensors, configurations, matrix

FP8 = configurations(
    "block_M block_N block_K stages threads panel",
    (128, 128, 128, 4, 256, 8),
    (128, 256, 128, 4, 256, 8),
    (128, 256, 128, 4, 256, 16),
    (256, 128, 128, 4, 256, 8),
    (256, 128, 128, 4, 256, 16),
)
FEW_ROWS = configurations(
    "block_M block_N block_K stages threads panel",
    (64, 64, 128, 4, 128, 1),
    (64, 64, 256, 3, 128, 1),
    (64, 32, 256, 3, 128, 1),
    (32, 64, 256, 3, 128, 1),
)
BLOCKS = configurations(
    "block_M stages threads panel parts persist",
    (256, 4, 256, 8, 2, True),
    (256, 4, 256, 16, 2, True),
    (256, 4, 256, 4, 2, True),
    (256, 3, 256, 8, 2, True),
    (192, 4, 384, 8, 1, True),
)
GROUPED = configurations(
    "block_N block_K stages threads panel persist",
    (256, 128, 4, 256, 4, None),
    (256, 128, 4, 256, 8, None),
    (256, 128, 4, 256, 16, None),
    (256, 128, 4, 256, 32, None),
    (256, 128, 4, 256, 8, True),
    (256, 128, 4, 256, 16, True),
)
SHAPES = (
    *((4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 2048)),
    *((4096, 7168, 2112), (64, 7168, 4096)),
)
GROUP_SIZES = (1536, 512, 2048, 256, 1024, 768, 1600, 448)


def fp8_cases() -> Iterator[Case]:
    """Products with scales of tensors, of rows, of blocks, and of groups of rows."""
    for scales in ("tensor", "row"):
        for M, N, K in SHAPES:
            yield fp8_case(M, N, K, scales, FP8 if M > 64 else FEW_ROWS)
    for shape in SHAPES[:3]:
        yield blocks_case(*shape)
    yield grouped_case(GROUP_SIZES, 7168, 4096)


def _tolerance(K: int) -> float:
    """The most that sums of an H200's tensor cores may be wrong by, of results in bfloat16.

    Each step of 32 products cuts off bits of the sum so far below 2^-14 of it.
    """
    return K / 32 * 2**-14 + 2**-9


def _operands(M: int, N: int, K: int, *scales: tuple[int, ...]) -> Tensors:
    a, b = (matrix(rows, K, dtype="float8_e4m3fn") for rows in (M, N))
    a_scale, b_scale = (torch.rand(shape, device="cuda") for shape in scales)
    return a, a_scale, b, b_scale


def _rivals(view: Any) -> dict[str, Any]:
    """Torch's function, of scales as `view` makes them, with sums of all bits and with fewer."""

    def rival(fast: bool) -> Any:
        def call(a: Any, sa: Any, b: Any, sb: Any, c: Any) -> object:
            options = {"out_dtype": torch.bfloat16, "use_fast_accum": fast, "out": c}
            return torch._scaled_mm(a, b.T, *view(sa, sb), **options)

        return call

    return {"torch._scaled_mm": rival(False), "torch._scaled_mm, fast sums": rival(True)}


def fp8_case(M: int, N: int, K: int, scales: str, configurations: list[dict[str, Any]]) -> Case:
    def view(sa: torch.Tensor, sb: torch.Tensor) -> Tensors:
        return (sa, sb) if scales == "tensor" else (sa[:, None], sb[None, :])

    shapes = ((1,), (1,)) if scales == "tensor" else ((M,), (N,))
    return Case(
        name=f"fp8 gemm, scales of {scales}s, {M} x {N} x {K}",
        program="fp8_gemm",
        arguments={"M": M, "N": N, "K": K, "scales": scales},
        configurations=configurations,
        inputs=lambda: _operands(M, N, K, *shapes),
        out=lambda a, sa, b, sb: torch.empty(M, N, dtype=torch.bfloat16, device="cuda"),
        reference=lambda a, sa, b, sb: (
            (a.double() * sa.double()[:, None]) @ (b.double() * sb.double()[:, None]).T
        ),
        tolerance=_tolerance(K),
        work=2.0 * M * N * K,
        unit="TFLOP/s",
        rivals=_rivals(view),
        goals={"torch._scaled_mm": 1.0},
    )


def blocks_case(M: int, N: int, K: int) -> Case:
    """A scale for 1 x 128 elements of A and for 128 x 128 of B."""

    def reference(a: Any, sa: Any, b: Any, sb: Any) -> torch.Tensor:
        wide = a.double() * sa.double().T.repeat_interleave(128, dim=1)
        scales = sb.double().repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
        return wide @ (b.double() * scales).T

    rivals = _rivals(lambda sa, sb: (sa.T, sb.T))
    return Case(
        name=f"fp8 gemm, scales of blocks, {M} x {N} x {K}",
        program="fp8_gemm_blocks",
        arguments={"M": M, "N": N, "K": K},
        configurations=BLOCKS,
        inputs=lambda: _operands(M, N, K, (K // 128, M), (N // 128, K // 128)),
        out=lambda a, sa, b, sb: torch.empty(M, N, dtype=torch.bfloat16, device="cuda"),
        reference=reference,
        tolerance=1e-2,
        work=2.0 * M * N * K,
        unit="TFLOP/s",
        rivals={"torch._scaled_mm": rivals["torch._scaled_mm"]},
        goals={"torch._scaled_mm": 1.05},
    )


def grouped_case(sizes: tuple[int, ...], N: int, K: int, tile: int = 128) -> Case:
    """Each group's rows of A times a matrix of its own, all with scales of rows."""
    M, groups = sum(sizes), len(sizes)
    ends = torch.tensor(sizes).cumsum(0).int()
    table = [
        (group, first, end)
        for group, (size, end) in enumerate(zip(sizes, ends.tolist(), strict=True))
        for first in range(end - size, end, tile)
    ]

    def inputs() -> Tensors:
        a, sa, b, sb = _operands(M, groups * N, K, (M,), (groups, N))
        return a, sa, b.view(groups, N, K), sb, torch.tensor(table, dtype=torch.int32).cuda()

    def reference(a: Any, sa: Any, b: Any, sb: Any, table: Any) -> torch.Tensor:
        parts = (a.double() * sa.double()[:, None]).split(sizes)
        pairs = zip(parts, b, sb, strict=True)
        return torch.cat([x @ (w.double() * s.double()[:, None]).T for x, w, s in pairs])

    def rival(a: Any, sa: Any, b: Any, sb: Any, table: Any, c: Any) -> torch.Tensor:
        grouped = torch._scaled_grouped_mm
        return grouped(a, b.mT, sa, sb, offs=on_gpu, out_dtype=torch.bfloat16)

    on_gpu = ends.cuda() if torch.cuda.is_available() else ends
    return Case(
        name=f"grouped fp8 gemm {M} x {N} x {K}, {groups} experts of {min(sizes)} to {max(sizes)} rows",
        program="grouped_gemm_fp8",
        arguments={
            "total": M,
            "row_tiles": len(table),
            "groups": groups,
            "N": N,
            "K": K,
            "block_M": tile,
        },
        configurations=GROUPED,
        inputs=inputs,
        out=lambda a, *rest: torch.empty(M, N, dtype=torch.bfloat16, device="cuda"),
        reference=reference,
        tolerance=_tolerance(K),
        work=2.0 * M * N * K,
        unit="TFLOP/s",
        rivals={"torch._scaled_grouped_mm": rival},
        goals={"torch._scaled_grouped_mm": 1.2},
    )
