"""How an operator's program is cut into blocks, for a target and a problem: what was measured.

A row says for which device, dtypes and extents it is the best that was tried, and the measurement. A
problem takes the first row that fits; where none does, the model of `tvmtile.carver` proposes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import DataType
from tvm.target import Target

from tvmtile import carver
from tvmtile.carver.roller import Hint
from tvmtile.carver.template import BaseTemplate
from tvmtile.errors import InvalidValue
from tvmtile.target import TargetLike, compute_capability, resolve

__all__ = [
    "ANY",
    "ATTENTION",
    "MATMUL",
    "ROWS",
    "Row",
    "attention_configuration",
    "matmul_configuration",
    "rows_configuration",
]

ANY = "any"
_UNKNOWN = 4096
"""What an extent that the arguments bind is taken for."""


@dataclass(frozen=True)
class Row:
    """A configuration, where it is taken, and why.

    Attributes
    ----------
    device : str
        "llvm", "metal", an NVIDIA architecture without its letter, "sm_90", or `ANY`.
    values : mapping
        The configuration.
    measured : str
        What chose it.
    bits : tuple of int
        Width of the elements; any where empty.
    at_least, at_most : mapping
        Bounds of the problem's extents, by their names; both included.
    """

    device: str
    values: Mapping[str, int]
    measured: str
    bits: tuple[int, ...] = ()
    at_least: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)

    def fits(self, device: str, bits: int, extents: Mapping[str, int]) -> bool:
        """Tell whether the row is for a problem."""
        return (
            self.device in (device, ANY)
            and (not self.bits or bits in self.bits)
            and all(extents[name] >= least for name, least in self.at_least.items())
            and all(extents[name] <= most for name, most in self.at_most.items())
        )


def _matmul(
    block_M: int, block_N: int, block_K: int, stages: int = 1, threads: int = 128, panel: int = 0
) -> dict[str, int]:
    return {
        "block_M": block_M,
        "block_N": block_N,
        "block_K": block_K,
        "stages": stages,
        "threads": threads,
        "panel": panel,
    }


_H200 = "H200, 2026-11-22, benchmarks/h200/gpu.md"
_H200_OPS = "H200, 2026-11-22, benchmarks/h200/ops.md"
_CPU = "one core of a znver5, 2026-11-22, N = K = 1024, float32, bfloat16, float16: best of 16"
_CPU_ATTENTION = (
    "one core of a znver5, 2026-11-22, 8 heads, float32 d 64, bfloat16 d 128: best of 16"
)
_METAL = "nothing measured: what 32 KiB of shared memory hold"

MATMUL = (
    Row("llvm", _matmul(1, 256, 256), _CPU, at_most={"M": 2}),
    Row("llvm", _matmul(4, 256, 256), _CPU, at_most={"M": 8}),
    Row("llvm", _matmul(16, 256, 256), _CPU, at_most={"M": 32}),
    Row("llvm", _matmul(64, 128, 256), _CPU, at_most={"M": 128}),
    Row("llvm", _matmul(256, 256, 256), _CPU),
    Row(
        "sm_90",
        _matmul(16, 64, 256, 3),
        f"{_H200_OPS}: 16 x 8192 x 8192 43.4 us, cuBLAS 43.2",
        bits=(16,),
        at_most={"M": 16},
    ),
    Row(
        "sm_90",
        _matmul(64, 64, 128, 4),
        f"{_H200_OPS}: 64 x 8192 x 8192 44.4 us, cuBLAS 45.9",
        bits=(16,),
        at_most={"M": 64},
    ),
    Row(
        "sm_90",
        _matmul(128, 64, 64, 4, 128, 8),
        f"{_H200_OPS}: 256 x 2048 x 8192 42.3 us, of 128 x 128 43.7, cuBLAS 25.0",
        bits=(16,),
        at_most={"elements": 200 * 4096 - 1},
    ),
    Row(
        "sm_90",
        _matmul(128, 128, 64, 6, 256, 8),
        f"{_H200_OPS}: 200 and 512 x 4096 x 4096 25.4 and 27.3 us, cuBLAS 19.3 and 26.0; "
        "of 128 x 64 31.1 and 31.2",
        bits=(16,),
        at_most={"elements": 100 * 128 * 256},
    ),
    Row(
        "sm_90",
        _matmul(128, 256, 64, 4, 256, 8),
        f"{_H200_OPS}: 2048 cubed 27.6 us, cuBLAS 27.4; 1024 x 4096 x 4096 47.9 us, 47.0",
        bits=(16,),
        at_most={"elements": 1 << 23},
    ),
    Row(
        "sm_90",
        _matmul(128, 256, 64, 4, 256, 16),
        f"{_H200}: 4096 cubed, float16, 758 TFLOP/s, cuBLAS 759",
        bits=(16,),
    ),
    Row("metal", _matmul(64, 64, 16, 2), _METAL, bits=(32,), at_least={"M": 33}),
    Row("metal", _matmul(64, 64, 32, 2), _METAL, bits=(16,), at_least={"M": 33}),
)
"""Of `matmul`. The extents are M, N, K, and the elements of the result."""


def _attention(block_M: int, block_N: int, stages: int = 1, threads: int = 128) -> dict[str, int]:
    return {"block_M": block_M, "block_N": block_N, "stages": stages, "threads": threads}


ATTENTION = (
    Row("llvm", _attention(1, 256), _CPU_ATTENTION, at_most={"queries": 2}),
    Row("llvm", _attention(4, 256), _CPU_ATTENTION, at_most={"queries": 15}),
    Row("llvm", _attention(64, 64), _CPU_ATTENTION, at_most={"queries": 127}),
    Row("llvm", _attention(64, 64), _CPU_ATTENTION, at_least={"causal": 1}),
    Row("llvm", _attention(128, 128), _CPU_ATTENTION),
    Row(
        "sm_90",
        _attention(128, 128, 2, 256),
        f"{_H200}: causal, length 4096, d 128: 538 TFLOP/s, SDPA 534; d 64: 386, SDPA 412",
        bits=(16,),
        at_least={"queries": 128, "causal": 1},
        at_most={"dim": 128},
    ),
    Row(
        "sm_90",
        _attention(192, 128, 2, 384),
        f"{_H200}: full, length 4096, d 128: 648 TFLOP/s, SDPA 638; d 64: 489, SDPA 478",
        bits=(16,),
        at_least={"queries": 192},
        at_most={"dim": 128},
    ),
    Row(
        "sm_90",
        _attention(64, 128, 2, 128),
        "H200, 2026-11-22, 32 x 32 heads of 1 query that share 4096 keys by fours: 132 us, SDPA 133",
        bits=(16,),
        at_most={"dim": 128},
    ),
    Row("metal", _attention(32, 16), _METAL, bits=(16,), at_most={"dim": 128}),
    Row("metal", _attention(32, 16), _METAL, at_most={"dim": 64}),
    Row("metal", _attention(16, 16, 1, 64), _METAL, at_most={"dim": 128}),
)
"""Of `attention`. The extents are queries, dim, and causal, which is 0 or 1."""


def _rows(block_M: int, threads: int = 128, block_N: int = 0) -> dict[str, int]:
    return {"block_M": block_M, "block_N": block_N, "threads": threads}


_H200_ROWS = "H200, 2026-11-22, bfloat16"
_WIDE = "nothing measured: more than the registers of a block hold"
ROWS = (
    Row("llvm", _rows(1, block_N=1 << 14), _WIDE, at_least={"N": 1 << 17}),
    Row("llvm", _rows(4), "2 threads of a znver5, 2026-11-21, benchmarks/results/cpu.md"),
    Row("sm_90", _rows(8), f"{_H200_ROWS}: softmax of 128, 1.6 of torch", at_most={"N": 256}),
    Row("sm_90", _rows(4), f"{_H200_ROWS}: softmax of 1024, 1.7 of torch", at_most={"N": 2048}),
    Row(
        "sm_90", _rows(1), f"{_H200_ROWS}: norms of 4096, 1.2 and 1.5 of torch", at_most={"N": 4096}
    ),
    Row("sm_90", _rows(1, 256), f"{_H200}: softmax of 8192, 3.7 of torch", at_most={"N": 16384}),
    Row(
        "sm_90",
        _rows(1, 512),
        f"{_H200_ROWS}: softmax of 32768, 1.5 of torch",
        at_most={"N": 32768},
    ),
    Row(ANY, _rows(1, 512, 8192), _WIDE, at_least={"N": 16385}),
)
"""Of softmax and the norms. The extents are M and N."""


def matmul_configuration(
    target: TargetLike, M: Any, N: Any, K: Any, dtype: str, batch: Any = None
) -> dict[str, int]:
    """How a product of matrices is cut; an extent that is no number is taken for a large one."""
    m, n, k = map(_size, (M, N, K))
    elements = m * n * _size(1 if batch is None else batch)
    row = _first(MATMUL, target, dtype, {"M": m, "N": n, "K": k, "elements": elements})
    if row is not None and row.device == "llvm":  # no larger than the problem
        widths = {"block_N": min(row.values["block_N"], _rounded(n))}
        return {**row.values, **widths, "block_K": min(row.values["block_K"], _rounded(k))}
    if row is not None:
        return dict(row.values)
    accum_dtype = "float64" if dtype == "float64" else "float32"
    template = carver.MatmulTemplate(
        M=m, N=n, K=k, in_dtype=dtype, out_dtype=dtype, accum_dtype=accum_dtype
    )
    hint = _proposal(template, target)
    (block_M, block_N), (block_K,) = hint.block, hint.rstep
    panel = hint.rasterization_plan.panel_width
    return _matmul(
        block_M, block_N, block_K, hint.pipeline_stage, hint.threads, panel if panel > 1 else 0
    )


def attention_configuration(
    target: TargetLike, queries: Any, keys: Any, dim: int, dtype: str, causal: bool, heads: Any
) -> dict[str, int]:
    """How attention is cut; an extent that is no number is taken for a large one."""
    extents = {"queries": _size(queries), "dim": dim, "causal": int(causal)}
    row = _first(ATTENTION, target, dtype, extents)
    if row is not None:
        return dict(row.values)
    template = carver.FlashAttentionTemplate(
        num_heads=_size(heads), head_dim=dim, is_causal=causal,
        seq_length=max(64, _size(queries)), seq_kv_length=_size(keys),
        in_dtype=dtype, out_dtype=dtype, accum_dtype="float32",
    )  # fmt: skip
    hint = _proposal(template, target)
    block_M, block_N = hint.block
    return _attention(block_M, block_N, hint.pipeline_stage, hint.threads)


def rows_configuration(target: TargetLike, M: Any, N: int, dtype: str) -> dict[str, int]:
    """How an operator on whole rows is cut; an extent that is no number is taken for a large one."""
    extents = {"M": _size(M), "N": N}
    row = _first(ROWS, target, dtype, extents)
    if row is not None:
        return dict(row.values)
    template = carver.GeneralReductionTemplate("SR", [_size(M), N], "float32", keeps=True)
    hint = _proposal(template, target)
    (block_M,) = hint.block
    return _rows(block_M, hint.threads)


def _rounded(extent: int) -> int:
    """Up to whole vectors, of 16 elements of float32 at most."""
    return -(-extent // 16) * 16


def _size(extent: Any) -> int:
    return extent if isinstance(extent, int) else _UNKNOWN


def _first(
    rows: Sequence[Row], target: TargetLike, dtype: str, extents: Mapping[str, int]
) -> Row | None:
    """The first row that is for a problem."""
    device, bits = _device(resolve(target)), DataType(dtype).bits
    return next((row for row in rows if row.fits(device, bits, extents)), None)


def _device(target: Target) -> str:
    kind = str(target.kind.name)
    return f"sm_{compute_capability(target)}" if kind == "cuda" else kind


def _proposal(template: BaseTemplate, target: TargetLike) -> Hint:
    """What the model takes for the best."""
    hints = template.with_arch(carver.get_arch(target)).recommend_hints(topk=1)
    if hints:
        return hints[0]
    raise InvalidValue(
        f"no blocks of {template} fit a {resolve(target).kind.name} device",
        help="make the program with configuration={...}, of smaller blocks than 16 x 16",
    )
