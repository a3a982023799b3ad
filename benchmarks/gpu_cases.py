"""What `gpu.py` measures: problems with their inputs, references, contenders and configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from gpu_programs import GROUP

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A problem.

    Attributes
    ----------
    name : str
        As the table shows it.
    program : str
        The tile program, a key of `gpu_programs.PROGRAMS`.
    arguments : dict
        The problem's arguments of it.
    configurations : list of dict
        The arguments that the fastest is looked for among.
    inputs : callable
        Makes the inputs; the last parameter of a kernel is its result.
    out : callable
        Makes an empty result of the inputs.
    reference : callable
        The result in float64, from the inputs.
    tolerance : float
        The largest error, relative to the largest element.
    work : float
        Operations or bytes of a call.
    unit : str
        "TFLOP/s" or "GB/s".
    rivals : dict of str to callable
        Others' functions of the inputs and the result.
    triton : tuple of (str, list of dict), optional
        The function of `gpu_triton` and its configurations.
    triton_arguments : tuple
        Beside inputs and result.
    goal : tuple of (str, float), optional
        How fast tvmtile is to be, relative to which contender.
    """

    name: str
    program: str
    arguments: dict[str, Any]
    configurations: list[dict[str, Any]]
    inputs: Callable[[], Tensors]
    out: Callable[..., torch.Tensor]
    reference: Callable[..., torch.Tensor]
    tolerance: float
    work: float
    unit: str
    rivals: dict[str, Callable[..., object]] = field(default_factory=dict)
    triton: tuple[str, list[dict[str, Any]]] | None = None
    triton_arguments: tuple[Any, ...] = ()
    goal: tuple[str, float] | None = None

    def rate(self, milliseconds: float) -> float:
        """Work a second, in the case's unit."""
        scale = 1e9 if self.unit == "TFLOP/s" else 1e6
        return self.work / milliseconds / scale


def cases() -> Iterator[Case]:
    """Every problem, in the order of the table."""
    for dtype in ("float16", "bfloat16"):
        for size in (4096, 8192):
            yield gemm_case(size, size, size, dtype, False)
    yield gemm_case(4096, 4096, 4096, "float16", True)
    yield gemm_case(4000, 4112, 4048, "float16", False)
    for dim in (64, 128):
        for causal in (False, True):
            yield attention_case(4, 16, 4096, dim, causal)
    yield row_case("softmax")
    yield row_case("rms_norm")
    yield int4_case(16, 8192, 8192)
    yield fp8_case(4096, 4096, 4096, FP8)
    yield fp8_case(64, 7168, 4096, FP8_FEW_ROWS)
    yield mxfp4_case(16, 8192, 8192)
    yield moe_case(4096, 4096, 4096, experts=8, top=2)
    yield compaction_case(1 << 18, 1 << 17, 512)
    yield copy_case(1 << 28)


def _configurations(names: str, *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    keys = names.split()
    return [dict(zip(keys, row, strict=True)) for row in rows]


GEMM = _configurations(
    "block_M block_N block_K stages threads panel",
    (128, 128, 64, 4, 128, 8),
    (128, 128, 64, 4, 256, 8),
    (128, 256, 64, 3, 256, 8),
    (128, 256, 64, 4, 256, 8),
    (128, 256, 64, 4, 256, 16),
    (256, 128, 64, 3, 256, 8),
    (256, 128, 64, 4, 256, 8),
    (256, 128, 64, 4, 256, 16),
    (192, 192, 64, 4, 384, 8),
    (128, 128, 32, 4, 128, 8),
)
GEMM_TRITON = _configurations(
    "BM BN BK num_warps num_stages",
    (128, 256, 64, 8, 3),
    (128, 256, 64, 8, 4),
    (128, 128, 64, 4, 4),
    (256, 128, 64, 8, 3),
)


def _matrix(*shape: int, dtype: str = "float16") -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def gemm_case(M: int, N: int, K: int, dtype: str, transpose_B: bool) -> Case:
    def inputs() -> Tensors:
        b = _matrix(N, K, dtype=dtype) if transpose_B else _matrix(K, N, dtype=dtype)
        return _matrix(M, K, dtype=dtype), b

    def right(b: torch.Tensor) -> torch.Tensor:
        return b.T if transpose_B else b

    return Case(
        name=f"gemm {dtype} {M} x {N} x {K} {'nt' if transpose_B else 'nn'}",
        program="gemm",
        arguments={"M": M, "N": N, "K": K, "dtype": dtype, "transpose_B": transpose_B},
        configurations=GEMM,
        inputs=inputs,
        out=lambda a, b: a.new_empty(M, N),
        reference=lambda a, b: a.double() @ right(b).double(),
        tolerance=2e-3 if dtype == "float16" else 1e-2,
        work=2.0 * M * N * K,
        unit="TFLOP/s",
        rivals={"cuBLAS": lambda a, b, c: torch.mm(a, right(b), out=c)},
        triton=("gemm", GEMM_TRITON),
        goal=("cuBLAS", 1.0),
    )


ATTENTION = _configurations(
    "block_M block_N stages threads",
    (64, 64, 2, 128),
    (128, 64, 2, 256),
    (128, 128, 2, 256),
    (192, 64, 2, 384),
    (192, 128, 2, 384),
)
ATTENTION_TRITON = _configurations(
    "BM BN num_warps num_stages",
    (64, 64, 4, 3),
    (128, 64, 4, 3),
    (128, 64, 8, 3),
    (128, 128, 8, 3),
    (128, 64, 4, 4),
)


def attention_case(batch: int, heads: int, length: int, dim: int, causal: bool) -> Case:
    shape = (batch, heads, length, dim)
    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal)
    return Case(
        name=f"attention d {dim} {'causal' if causal else 'full'} {batch} x {heads} x {length}",
        program="attention",
        arguments={
            "batch": batch,
            "heads": heads,
            "length": length,
            "dim": dim,
            "causal": causal,
        },
        configurations=ATTENTION,
        inputs=lambda: tuple(_matrix(*shape) for _ in range(3)),
        out=lambda q, k, v: torch.empty_like(q),
        # One head at a time: all scores in float64 would be 8 GB.
        reference=lambda q, k, v: torch.stack(
            [attend(*(x[:, head].double() for x in (q, k, v))) for head in range(heads)],
            dim=1,
        ),
        tolerance=4e-3,
        work=4.0 * batch * heads * length * length * dim / (2 if causal else 1),
        unit="TFLOP/s",
        rivals={"torch SDPA": lambda q, k, v, out: attend(q, k, v)},
        triton=("attention", ATTENTION_TRITON),
        triton_arguments=(causal,),
        goal=("torch SDPA", 1.03),
    )


ROWS = _configurations(
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
        inputs=lambda: (_matrix(M, N), _matrix(N)) if is_norm else (_matrix(M, N),),
        out=lambda x, *weight: torch.empty_like(x),
        reference=reference,
        tolerance=2e-3,
        work=2.0 * 2 * M * N,
        unit="GB/s",
        rivals={
            "torch": rival,
            "torch copy": lambda x, *rest: rest[-1].copy_(x),
        },
        triton=(program, ROWS_TRITON),
        goal=("torch copy", 0.85),
    )


INT4 = _configurations(
    "block_N block_K stages groups threads pack",
    (64, 256, 2, 4, 128, 4),
    (32, 256, 2, 4, 64, 4),
    (32, 256, 4, 2, 64, 4),
    (64, 256, 3, 2, 128, 4),
    (64, 256, 2, 4, 128, 8),
    (64, 128, 3, 4, 64, 8),
)


def _decoded_case(
    kind: str,
    problem: tuple[int, int, int],
    configurations: list[dict[str, Any]],
    inputs: Callable[[], Tensors],
    decoded: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    dtype: str,
    tolerance: float,
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
        program=f"{kind}_gemm",
        arguments={"M": M, "N": N, "K": K},
        configurations=configurations,
        inputs=inputs,
        out=lambda a, words, scales: a.new_empty(M, N),
        reference=lambda a, words, scales: a.double() @ decoded(words, scales).double().T,
        tolerance=tolerance,
        work=2.0 * M * N * K,
        unit="TFLOP/s",
        rivals={f"cuBLAS {dtype}": cublas},
        goal=(f"cuBLAS {dtype}", 2.0),
    )


def int4_case(M: int, N: int, K: int) -> Case:
    def inputs() -> Tensors:
        words = torch.randint(1 << 32, (N, K // 8), dtype=torch.int64, device="cuda")
        scales = torch.rand(N, K // GROUP, device="cuda").half() / 8
        return _matrix(M, K), words.to(torch.uint32), scales

    def decoded(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Neighbours 2 i and 2 i + 1 are in the bits from 4 i and from 16 + 4 i on."""
        firsts = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28], device=words.device)
        nibbles = ((words.to(torch.int64)[..., None] >> firsts) & 0xF).flatten(1)
        return (nibbles.to(scales.dtype) - 8) * scales.repeat_interleave(GROUP, dim=1)

    return _decoded_case("int4", (M, N, K), INT4, inputs, decoded, "float16", 2e-3)


FP8 = _configurations(
    "block_M block_N block_K stages threads panel",
    (128, 128, 128, 4, 256, 8),
    (128, 128, 128, 4, 128, 8),
    (128, 256, 128, 3, 256, 8),
    (128, 256, 128, 4, 256, 8),
    (128, 256, 128, 4, 256, 16),
    (256, 128, 128, 4, 256, 8),
    (256, 128, 128, 4, 256, 16),
)
FP8_FEW_ROWS = _configurations(
    "block_M block_N block_K stages threads panel",
    (64, 64, 128, 4, 128, 1),
    (64, 64, 256, 3, 128, 1),
    (64, 32, 256, 3, 128, 1),
    (32, 64, 256, 3, 128, 1),
)


def fp8_case(M: int, N: int, K: int, configurations: list[dict[str, Any]]) -> Case:
    def inputs() -> Tensors:
        a, b = (_matrix(rows, K, dtype="float8_e4m3fn") for rows in (M, N))
        return a, torch.rand(M, device="cuda"), b, torch.rand(N, device="cuda")

    def rival(
        a: torch.Tensor, sa: torch.Tensor, b: torch.Tensor, sb: torch.Tensor, c: torch.Tensor
    ) -> object:
        scaled = torch._scaled_mm
        return scaled(a, b.T, sa[:, None], sb[None, :], out_dtype=torch.bfloat16, out=c)

    return Case(
        name=f"fp8 gemm, scales of rows, {M} x {N} x {K}",
        program="fp8_gemm",
        arguments={"M": M, "N": N, "K": K},
        configurations=configurations,
        inputs=inputs,
        out=lambda a, sa, b, sb: torch.empty(M, N, dtype=torch.bfloat16, device="cuda"),
        reference=lambda a, sa, b, sb: (
            (a.double() * sa.double()[:, None]) @ (b.double() * sb.double()[:, None]).T
        ),
        tolerance=1e-2,
        work=2.0 * M * N * K,
        unit="TFLOP/s",
        rivals={"torch._scaled_mm": rival},
        goal=("torch._scaled_mm", 1.0),
    )


MXFP4 = _configurations(
    "block_N block_K stages groups threads pack",
    (64, 256, 2, 4, 128, 8),
    (32, 256, 4, 2, 64, 4),
    (32, 512, 2, 2, 64, 8),
    (32, 128, 4, 4, 64, 8),
    (64, 256, 3, 2, 128, 4),
)
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def mxfp4_case(M: int, N: int, K: int) -> Case:
    def inputs() -> Tensors:
        words = torch.randint(1 << 32, (N, K // 8), dtype=torch.int64, device="cuda")
        codes = torch.randint(118, 128, (N, K // 32), dtype=torch.uint8, device="cuda")
        return _matrix(M, K, dtype="bfloat16"), words.to(torch.uint32), codes

    def decoded(words: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        pairs = words.view(torch.uint8)
        nibbles = torch.stack([pairs & 0xF, pairs >> 4], dim=-1).flatten(1)
        values = torch.tensor([*E2M1, *(-x for x in E2M1)], device=words.device)
        scales = torch.exp2(codes.float() - 127)
        return (values[nibbles.int()] * scales.repeat_interleave(32, dim=1)).bfloat16()

    return _decoded_case("mxfp4", (M, N, K), MXFP4, inputs, decoded, "bfloat16", 1e-2)


MOE_TILE = 128
MOE = _configurations(
    "block_M block_N block_K stages threads panel",
    (MOE_TILE, 128, 32, 4, 128, 8),
    (MOE_TILE, 128, 64, 4, 128, 8),
    (MOE_TILE, 128, 64, 4, 256, 8),
    (MOE_TILE, 256, 64, 3, 256, 8),
    (MOE_TILE, 256, 64, 4, 256, 8),
    (MOE_TILE, 256, 64, 4, 256, 16),
)


def moe_case(M: int, N: int, K: int, experts: int, top: int) -> Case:
    """Each of M tokens goes to `top` experts; the rows of an expert are padded to whole tiles."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand(M, experts, generator=generator).topk(top, dim=1).indices
    tokens, expert_of = [], []
    for expert in range(experts):
        own = (chosen == expert).any(dim=1).nonzero().flatten().int()
        count = -(-len(own) // MOE_TILE)
        tokens += [own, torch.full((count * MOE_TILE - len(own),), -1, dtype=torch.int32)]
        expert_of += [expert] * count
    rows = torch.cat(tokens)
    spans = [expert_of.count(expert) * MOE_TILE for expert in range(experts)]

    def by_torch(
        a: torch.Tensor, b: torch.Tensor, tokens: torch.Tensor, of: torch.Tensor, c: torch.Tensor
    ) -> torch.Tensor:
        parts = a.index_select(0, tokens.clamp_min(0)).split(spans)
        for part, matrix, out in zip(parts, b, c.split(spans), strict=True):
            torch.mm(part, matrix.T, out=out)
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
            _matrix(M, K, dtype="bfloat16"),
            _matrix(experts, N, K, dtype="bfloat16"),
            rows.cuda(),
            torch.tensor(expert_of, dtype=torch.int32, device="cuda"),
        ),
        out=lambda a, *rest: a.new_empty(len(rows), N),
        reference=expected,
        tolerance=1e-2,
        work=2.0 * M * top * N * K,
        unit="TFLOP/s",
        rivals={"index_select + matmul": by_torch},
        goal=("index_select + matmul", 1.15),
    )


def compaction_case(rows: int, kept: int, width: int) -> Case:
    def inputs() -> Tensors:
        places = torch.randperm(rows)[:kept].sort().values.int().cuda()
        return _matrix(rows, width, dtype="bfloat16"), places

    def copied(x: torch.Tensor, places: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of as many bytes."""
        return y.copy_(x[:kept])

    return Case(
        name=f"compaction of {kept >> 10} Ki rows of {2 * width} bytes",
        program="compact",
        arguments={"rows": rows, "kept": kept, "width": width},
        configurations=_configurations(
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
        goal=("contiguous copy", 0.9),
    )


def copy_case(size: int) -> Case:
    return Case(
        name=f"copy float16 {size >> 20} Mi",
        program="copy",
        arguments={"size": size},
        configurations=_configurations(
            "block threads", (1024, 128), (2048, 256), (4096, 256), (8192, 256), (4096, 128)
        ),
        inputs=lambda: (_matrix(size),),
        out=torch.empty_like,
        reference=lambda x: x.double(),
        tolerance=0.0,
        work=4.0 * size,
        unit="GB/s",
        rivals={"torch copy": lambda x, y: y.copy_(x)},
    )
