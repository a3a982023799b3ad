"""Cases that move rows: normalisations, gathered rows, copies."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gpu_case import Case, Tensors, configurations, matrix


def row_cases() -> Iterator[Case]:
    """The cases that move rows."""
    yield row_case("softmax")
    yield row_case("rms_norm")
    yield moe_case(8192, 2048, 7168, experts=1, top=1)
    yield moe_case(4096, 4096, 4096, experts=8, top=2)
    yield compaction_case(1 << 18, 1 << 17, 512)
    yield copy_case(1 << 28)


ROWS = configurations(
    "block_M threads", (1, 128), (1, 256), (1, 512), (1, 1024), (2, 256), (2, 512)
)
ROWS_TRITON = [{"num_warps": 4}, {"num_warps": 8}, {"num_warps": 16}]


def row_case(program: str, M: int = 8192, N: int = 8192) -> Case:
    is_norm = program == "rms_norm"
    norm = torch.nn.functional.rms_norm

    def reference(x: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
        wide = x.double()
        return norm(wide, (N,), weight[0].double(), 1e-6) if is_norm else torch.softmax(wide, 1)

    def rival(*tensors: torch.Tensor) -> object:
        if is_norm:
            return norm(tensors[0], (N,), tensors[1], 1e-6)
        return torch.softmax(tensors[0], 1, out=tensors[1])

    return Case(
        name=f"{program} float16 {M} x {N}",
        program=program,
        arguments={"M": M, "N": N},
        configurations=ROWS,
        inputs=lambda: (matrix(M, N), matrix(N)) if is_norm else (matrix(M, N),),
        out=lambda x, *weight: torch.empty_like(x),
        reference=reference,
        tolerance=2e-3,
        work=2.0 * 2 * M * N,
        unit="GB/s",
        rivals={
            "torch": rival,
            "torch copy": lambda x, *rest: rest[-1].copy_(x),
        },
        others={"torch copy": 1.0},
        triton=(program, ROWS_TRITON),
        goals={"torch copy": 0.85},
    )


MOE_TILE = 128
MOE = configurations(
    "block_M block_N block_K num_stages threads panel persist",
    (MOE_TILE, 128, 64, 4, 256, 8, None),
    (MOE_TILE, 256, 64, 4, 256, 8, None),
    (MOE_TILE, 256, 64, 4, 256, 16, None),
    (MOE_TILE, 256, 64, 4, 256, 8, True),
    (MOE_TILE, 256, 64, 4, 256, 16, True),
)


def moe_case(M: int, N: int, K: int, experts: int, top: int) -> Case:
    """Each of M tokens goes to `top` experts, in any order; an expert's rows are padded to tiles."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand(M, experts, generator=generator).topk(top, dim=1).indices
    tokens, expert_of = [], []
    for expert in range(experts):
        own = (chosen == expert).any(dim=1).nonzero().flatten().int()
        own = own[torch.randperm(len(own), generator=generator)]
        count = -(-len(own) // MOE_TILE)
        tokens += [own, torch.full((count * MOE_TILE - len(own),), -1, dtype=torch.int32)]
        expert_of += [expert] * count
    rows = torch.cat(tokens)
    spans = [expert_of.count(expert) * MOE_TILE for expert in range(experts)]

    def by_torch(
        a: torch.Tensor, b: torch.Tensor, tokens: torch.Tensor, of: torch.Tensor, c: torch.Tensor
    ) -> torch.Tensor:
        parts = a.index_select(0, tokens.clamp_min(0)).split(spans)
        for part, weights, out in zip(parts, b, c.split(spans), strict=True):
            torch.mm(part, weights.T, out=out)
        return c

    def expected(
        a: torch.Tensor, b: torch.Tensor, tokens: torch.Tensor, of: torch.Tensor
    ) -> torch.Tensor:
        out = torch.empty(len(rows), N, dtype=torch.float64, device=a.device)
        return by_torch(a.double(), b.double(), tokens, of, out) * (tokens >= 0)[:, None]

    return Case(
        name=f"moe gather + gemm {M} x {N} x {K}, {experts} experts, top {top}",
        program="moe_gemm",
        arguments={"M": M, "N": N, "K": K, "experts": experts, "row_tiles": len(expert_of)},
        configurations=MOE,
        inputs=lambda: (
            matrix(M, K, dtype="bfloat16"),
            matrix(experts, N, K, dtype="bfloat16"),
            rows.cuda(),
            torch.tensor(expert_of, dtype=torch.int32, device="cuda"),
        ),
        out=lambda a, *rest: a.new_empty(len(rows), N),
        reference=expected,
        tolerance=1e-2,
        work=2.0 * M * top * N * K,
        unit="TFLOP/s",
        rivals={"index_select + matmul": by_torch},
        others={"index_select + matmul": 1.0},  # its rows of padding are not zero
        goals={"index_select + matmul": 1.15},
    )


def compaction_case(rows: int, kept: int, width: int) -> Case:
    def inputs() -> Tensors:
        places = torch.randperm(rows)[:kept].sort().values.int().cuda()
        return matrix(rows, width, dtype="bfloat16"), places

    def copied(x: torch.Tensor, places: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of as many bytes."""
        return y.copy_(x[:kept])

    return Case(
        name=f"compaction of {kept >> 10} Ki rows of {2 * width} bytes",
        program="compact",
        arguments={"rows": rows, "kept": kept, "width": width},
        configurations=configurations(
            "block threads", (4, 128), (8, 128), (8, 256), (16, 256), (16, 512), (32, 512)
        ),
        inputs=inputs,
        out=lambda x, places: x.new_empty(kept, width),
        reference=lambda x, places: x[places.long()].double(),
        tolerance=0.0,
        work=4.0 * kept * width,
        unit="GB/s",
        rivals={
            "contiguous copy": copied,
            "index_select": lambda x, places, y: torch.index_select(x, 0, places, out=y),
        },
        others={"contiguous copy": 1.0},
        goals={"contiguous copy": 0.9},
    )


def copy_case(size: int) -> Case:
    return Case(
        name=f"copy float16 {size >> 20} Mi",
        program="copy",
        arguments={"size": size},
        configurations=configurations(
            "block threads", (1024, 128), (2048, 256), (4096, 256), (8192, 256), (4096, 128)
        ),
        inputs=lambda: (matrix(size),),
        out=torch.empty_like,
        reference=lambda x: x.double(),
        tolerance=0.0,
        work=4.0 * size,
        unit="GB/s",
        rivals={"torch copy": lambda x, y: y.copy_(x)},
    )
