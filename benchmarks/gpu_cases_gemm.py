"""Products of matrices of 16-bit floats, and with weights of 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from gpu_case import Case, Tensors, configurations, matrix
from gpu_programs import GROUP, MXFP4_BITS

GEMM = configurations(
    "block_M block_N block_K stages threads panel",
    (128, 128, 64, 4, 256, 8),
    (128, 256, 64, 4, 256, 8),
    (128, 256, 64, 4, 256, 16),
    (256, 128, 64, 4, 256, 8),
    (256, 128, 64, 4, 256, 16),
)
# As in TileLang's own benchmark of GEMMs, the fastest of which its tuner looks for among these.
GEMM_TILELANG = configurations(
    "block_M block_N block_K stages threads panel through_shared",
    (128, 128, 64, 3, 128, 10, True),
    (128, 128, 64, 3, 256, 10, True),
    (128, 256, 64, 3, 256, 10, True),
    (256, 128, 64, 3, 256, 10, True),
)
GEMM_TRITON = configurations(
    "BM BN BK num_warps num_stages persistent",
    (128, 256, 64, 8, 3, False),
    (128, 256, 64, 8, 3, True),
    (128, 128, 64, 8, 4, True),
)
SHAPES = (
    *((8192, 8192, depth) for depth in (512, 1024, 2048, 4096, 8192, 16384)),
    *((4096, 4096, 4096), (2048, 2048, 2048), (4000, 4112, 4048)),
)


def gemm_cases() -> Iterator[Case]:
    """Products of matrices of 16-bit floats, alone, with an epilogue, of few rows, of some blocks."""
    for layout in ("nn", "nt", "tn"):
        for dtype in ("float16", "bfloat16"):
            for shape in SHAPES:
                yield gemm_case(*shape, dtype, layout)
    yield epilogue_case(8192, 8192, 4096)
    for rows in (1, 16, 64):
        yield few_rows_case(rows, 8192, 8192)
    yield block_sparse_case(8192, 8192, 8192)


def gemm_case(M: int, N: int, K: int, dtype: str, layout: str) -> Case:
    def right(*tensors: torch.Tensor) -> Tensors:
        factors = (x.T if letter == "t" else x for x, letter in zip(tensors, layout, strict=False))
        return (*factors, *tensors[2:])

    def inputs() -> Tensors:
        stored = right(matrix(M, K, dtype=dtype), matrix(K, N, dtype=dtype))
        return tuple(x.contiguous() for x in stored)

    def cublas(*tensors: torch.Tensor) -> object:
        a, b, c = right(*tensors)
        return torch.mm(a, b, out=c)

    return Case(
        name=f"gemm {dtype} {M} x {N} x {K} {layout}",
        program="gemm",
        arguments={"M": M, "N": N, "K": K, "dtype": dtype, "layout": layout},
        configurations=GEMM,
        inputs=inputs,
        out=lambda a, b: a.new_empty(M, N),
        reference=lambda *factors: torch.mm(*(x.double() for x in right(*factors))),
        tolerance=2e-3 if dtype == "float16" else 1e-2,
        work=2.0 * M * N * K,
        unit="TFLOP/s",
        rivals={"cuBLAS": cublas},
        triton=("gemm", GEMM_TRITON),
        triton_views=right,
        tilelang=GEMM_TILELANG,
        goals={"cuBLAS": 1.0, "TileLang": 1.05},
    )


BARE = "cuBLAS, the product alone"
EPILOGUE = configurations(
    "block_M block_N block_K stages threads panel",
    (128, 256, 64, 4, 256, 8),
    (128, 256, 64, 4, 256, 16),
    (256, 128, 64, 4, 256, 8),
    (128, 128, 64, 3, 256, 16),
    (128, 128, 64, 3, 128, 16),
)


def epilogue_case(M: int, N: int, K: int) -> Case:
    gelu = partial(torch.nn.functional.gelu, approximate="tanh")
    return Case(
        name=f"gemm + bias + gelu float16 {M} x {N} x {K}",
        program="gemm_epilogue",
        arguments={"M": M, "N": N, "K": K, "activation": "gelu"},
        configurations=EPILOGUE,
        inputs=lambda: (matrix(M, K), matrix(K, N), matrix(N)),
        out=lambda a, b, bias: a.new_empty(M, N),
        reference=lambda a, b, bias: gelu(a.double() @ b.double() + bias.double()),
        tolerance=2e-3,
        work=2.0 * M * N * K,
        unit="TFLOP/s",
        rivals={
            "torch, two kernels": lambda a, b, bias, c: gelu(torch.addmm(bias, a, b)),
            BARE: lambda a, b, bias, c: torch.mm(a, b, out=c),
        },
        others={BARE: 1.0},
        goals={BARE: 0.97},
    )


FEW_ROWS = configurations(
    "block_M block_N block_K stages",
    (8, 64, 256, 6),
    (8, 64, 512, 3),
    (16, 64, 64, 12),
    (16, 64, 128, 5),
    (16, 64, 128, 8),
    (16, 64, 256, 5),
    (64, 64, 64, 12),
    (64, 64, 128, 6),
)
COPY = "torch copy of 1 GB"


def few_rows_case(M: int, N: int, K: int) -> Case:
    """Bytes of weights a second; a copy of 8 times as many bytes reads half of them."""
    large = torch.empty(0)

    def copy(a: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> object:
        nonlocal large
        if not len(large):
            large = torch.empty(2, 4 * N, K, dtype=w.dtype, device=w.device)
        return large[1].copy_(large[0])

    return Case(
        name=f"gemm bfloat16 {M} x {N} x {K} nt",
        program="gemm_few_rows",
        arguments={"M": M, "N": N, "K": K},
        configurations=[c for c in FEW_ROWS if M <= c["block_M"] <= max(16, M)],
        inputs=lambda: (matrix(M, K, dtype="bfloat16"), matrix(N, K, dtype="bfloat16")),
        out=lambda a, w: a.new_empty(M, N),
        reference=lambda a, w: a.double() @ w.double().T,
        tolerance=1e-2,
        work=2.0 * N * K,
        unit="GB/s",
        rivals={"cuBLAS": lambda a, w, c: torch.mm(a, w.T, out=c), COPY: copy},
        others={COPY: 8.0},
        goals={"cuBLAS": 1.25, COPY: 0.9},
    )


SPARSE = configurations(
    "stages panel persist",
    (4, 8, None),
    (4, 16, None),
    (4, 8, True),
)


def block_sparse_case(M: int, N: int, K: int) -> Case:
    """Half of the blocks of 128 x 256 x 64, chosen at random."""
    blocks = {"block_M": 128, "block_N": 256, "block_K": 64}
    grid = [extent // size for extent, size in zip((M, N, K), blocks.values(), strict=True)]
    mask = torch.rand(grid, generator=torch.Generator().manual_seed(0)) < 0.5
    places = torch.argsort(mask.int(), dim=-1, descending=True, stable=True).int()
    dense = "cuBLAS, dense"

    def reference(a: torch.Tensor, b: torch.Tensor, *lists: torch.Tensor) -> torch.Tensor:
        c = torch.empty(M, N, dtype=torch.float64, device=a.device)
        wide, kept = b.double(), mask.to(a.device).repeat_interleave(64, dim=2)
        for y, rows in enumerate(a.double().split(128)):
            for x, columns in enumerate(wide.split(256, dim=1)):
                c[y * 128 : y * 128 + 128, x * 256 : x * 256 + 256] = rows * kept[y, x] @ columns
        return c

    return Case(
        name=f"block-sparse gemm float16 {M} x {N} x {K}, half of the blocks",
        program="block_sparse_gemm",
        arguments={"M": M, "N": N, "K": K, **blocks, "threads": 256},
        configurations=SPARSE,
        inputs=lambda: (matrix(M, K), matrix(K, N), mask.sum(-1).int().cuda(), places.cuda()),
        out=lambda a, *rest: a.new_empty(M, N),
        reference=reference,
        tolerance=2e-3,
        work=2.0 * M * N * K * float(mask.float().mean()),
        unit="TFLOP/s",
        rivals={dense: lambda a, b, counts, places, c: torch.mm(a, b, out=c)},
        others={dense: 1.0},
        goals={dense: 1.6},
    )


def decoding_cases() -> Iterator[Case]:
    """Products with weights of 4 bits."""
    yield int4_case(16, 8192, 8192, FOUR_BITS, 2.0)
    yield int4_case(4096, 8192, 8192, INT4_MANY_ROWS, 0.9)
    yield mxfp4_case(16, 8192, 8192)


FOUR_BITS = configurations(
    "block_N block_K stages groups threads",
    (64, 256, 3, 4, 128),
    (64, 256, 2, 4, 128),
    (64, 512, 3, 2, 128),
    (64, 256, 6, 2, 128),
)
INT4_MANY_ROWS = configurations(
    "block_M block_N stages threads panel",
    (256, 128, 3, 256, 8),
    (256, 128, 4, 256, 8),
    (256, 128, 3, 256, 16),
    (128, 128, 4, 256, 8),
)


def _decoded_case(
    kind: str,
    problem: tuple[int, int, int],
    configurations: list[dict[str, Any]],
    inputs: Callable[[], Tensors],
    decoded: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    dtype: str,
    tolerance: float,
    goal: float = 2.0,
) -> Case:
    """A product with weights of four bits; cuBLAS has them in 16, and reads four times as much."""
    M, N, K = problem
    weights: dict[str, torch.Tensor] = {}

    def cublas(
        a: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, c: torch.Tensor
    ) -> object:
        if not weights:
            weights["w"] = decoded(words, scales)
        return torch.mm(a, weights["w"].T, out=c)

    return Case(
        name=f"{kind} gemm {M} x {N} x {K}",
        program=f"{kind}_gemm" if M < 64 else f"{kind}_gemm_many_rows",
        arguments={"M": M, "N": N, "K": K},
        configurations=configurations,
        inputs=inputs,
        out=lambda a, words, scales: a.new_empty(M, N),
        reference=lambda a, words, scales: a.double() @ decoded(words, scales).double().T,
        tolerance=tolerance,
        work=2.0 * M * N * K,
        unit="TFLOP/s",
        rivals={f"cuBLAS {dtype}": cublas},
        goals={f"cuBLAS {dtype}": goal},
    )


INT4_BITS = tuple(tuple(range(first, first + 4)) for first in range(0, 16, 4))


def _half_bytes(
    words: torch.Tensor, bits: Sequence[Sequence[int]], *, by_thread: bool
) -> torch.Tensor:
    """The bytes of words of four pairs, along K; `bits` says where a half word has its elements.

    A word holds eight neighbours, or what a thread multiplies: of 256 columns those of eight words.
    """
    places = torch.tensor([[b + half for b in own] for own in bits for half in (0, 16)])
    found = (words.to(torch.int64)[..., None, None] >> places.to(words.device)) & 1
    found = (found << torch.arange(4, device=words.device)).sum(-1)
    if by_thread:  # thread, word of it, pair, element
        found = found.view(len(words), -1, 4, 8, 4, 2).permute(0, 1, 3, 4, 2, 5)
    return found.flatten(1)


def int4_case(M: int, N: int, K: int, configurations: list[dict[str, Any]], goal: float) -> Case:
    def inputs() -> Tensors:
        words = torch.randint(1 << 32, (N, K // 8), dtype=torch.int64, device="cuda")
        scales = torch.rand(N, K // GROUP, device="cuda").half() / 8
        return matrix(M, K), words.to(torch.uint32), scales if M < 64 else scales.T.contiguous()

    def decoded(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        nibbles = _half_bytes(words, INT4_BITS, by_thread=M < 64)
        by_rows = scales if len(scales) == N else scales.T
        return (nibbles.to(scales.dtype) - 8) * by_rows.repeat_interleave(GROUP, dim=1)

    return _decoded_case("int4", (M, N, K), configurations, inputs, decoded, "float16", 2e-3, goal)


E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def mxfp4_case(M: int, N: int, K: int) -> Case:
    def inputs() -> Tensors:
        words = torch.randint(1 << 32, (N, K // 8), dtype=torch.int64, device="cuda")
        codes = torch.randint(118, 128, (N, K // 32), dtype=torch.uint8, device="cuda")
        return matrix(M, K, dtype="bfloat16"), words.to(torch.uint32), codes.view(torch.uint32)

    def decoded(words: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        nibbles = _half_bytes(words, MXFP4_BITS, by_thread=True)
        values = torch.tensor([*E2M1, *(-x for x in E2M1)], device=words.device)
        scales = torch.exp2(codes.view(torch.uint8).float() - 127)
        return (values[nibbles] * scales.repeat_interleave(32, dim=1)).bfloat16()

    return _decoded_case("mxfp4", (M, N, K), FOUR_BITS, inputs, decoded, "bfloat16", 1e-2)
