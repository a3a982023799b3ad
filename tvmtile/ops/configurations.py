"""Configurations of operators' programs, for a target and a problem: what was measured.

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
from tvmtile.carver.templates import BaseTemplate, Hint
from tvmtile.errors import InvalidValue
from tvmtile.target import TargetLike, compute_capability, gpu, resolve

__all__ = [
    "ANY",
    "ATTENTION",
    "ATTENTION_BACKWARD",
    "MATMUL",
    "ROWS",
    "Row",
    "attention_backward_configuration",
    "attention_configuration",
    "matmul_configuration",
    "rows_configuration",
]

ANY = "any"
_UNKNOWN = 4096
"""The value for an extent that the arguments bind."""


@dataclass(frozen=True)
class Row:
    """A configuration, where it is taken, and why."""

    device: str
    """An NVIDIA architecture without its letter, "sm_90", "llvm", "metal", or `ANY`."""
    values: Mapping[str, int]
    """The configuration."""
    measured: str
    """The measurement that chose it."""
    bits: tuple[int, ...] = ()
    """Width of the elements; any where empty."""
    at_least: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    """Bounds of the problem's extents, by their names; both included."""

    def fits(self, device: str, bits: int, extents: Mapping[str, int]) -> bool:
        """Tell whether the row is for a problem."""
        return (
            self.device in (device, ANY)
            and (not self.bits or bits in self.bits)
            and all(extents[name] >= least for name, least in self.at_least.items())
            and all(extents[name] <= most for name, most in self.at_most.items())
        )


def _matmul(
    block_M: int,
    block_N: int,
    block_K: int,
    stages: int = 1,
    threads: int = 128,
    panel: int = 0,
    splits: int = 1,
    swapped: int = 0,
) -> dict[str, int]:
    return {
        "block_M": block_M,
        "block_N": block_N,
        "block_K": block_K,
        "stages": stages,
        "threads": threads,
        "panel": panel,
        "splits": splits,
        "swapped": swapped,
    }


_H200 = "H200, 2026-11-22, benchmarks/h200/gpu.md"
_H200_OPS = "H200, 2026-11-22, benchmarks/h200/ops.md"
_CPU = "one core of a znver5, 2026-11-22, N = K = 1024, float32, bfloat16, float16: best of 16"
_CPU_ATTENTION = (
    "one core of a znver5, 2026-11-22, 8 heads, float32 d 64, bfloat16 d 128: best of 16"
)
_METAL = "nothing measured: what 32 KiB of shared memory hold"

_LONG = 2048
"""From which K on splitting was measured to gain."""
_SHORTEST_PART = 512
_H200_BLOCKS = "H200, 2026-11-23, benchmarks/h200/ops.md, what chose the blocks"


def _few_rows(
    values: Mapping[str, int],
    measured: str,
    at_most: Mapping[str, int],
    at_least: Mapping[str, int] | None = None,
) -> Row:
    chosen = f"{_H200_BLOCKS}: {measured}"
    return Row("sm_90", values, chosen, (16,), at_least or {}, at_most)


MATMUL = (
    Row("llvm", _matmul(1, 256, 256), _CPU, at_most={"M": 2}),
    Row("llvm", _matmul(4, 256, 256), _CPU, at_most={"M": 8}),
    Row("llvm", _matmul(16, 256, 256), _CPU, at_most={"M": 32}),
    Row("llvm", _matmul(64, 128, 256), _CPU, at_most={"M": 128}),
    Row("llvm", _matmul(256, 256, 256), _CPU),
    _few_rows(
        _matmul(16, 64, 256, 5, splits=8, swapped=1),
        "16 x 1024 x 4096 10.0 us, cuBLAS 9.2; 16 x 2048 x 8192 15.6, 15.0",
        at_least={"K": _LONG},
        at_most={"M": 16, "N": 2048},
    ),
    _few_rows(
        _matmul(16, 64, 256, 5, swapped=1),
        "16 x 4096 x 4096 13.5 us, cuBLAS 14.7; 16 x 4096 x 14336 32.6, 32.3; "
        "16 x 8192 x 8192 35.9, 35.7",
        at_most={"M": 16, "N": 8192},
    ),
    _few_rows(
        _matmul(16, 128, 128, 5, 256, swapped=1),
        "16 x 14336 x 4096 31.3 us, cuBLAS 32.5",
        at_most={"M": 16},
    ),
    _few_rows(
        _matmul(32, 64, 256, 4, splits=8, swapped=1),
        "32 x 1024 x 4096 10.6 us, cuBLAS 9.4",
        at_least={"K": _LONG},
        at_most={"M": 32, "N": 2048},
    ),
    _few_rows(
        _matmul(32, 64, 256, 4, swapped=1),
        "32 x 4096 x 4096 14.2 us, cuBLAS 14.7; 32 x 4096 x 14336 33.2, 32.8",
        at_most={"M": 32},
    ),
    _few_rows(
        _matmul(64, 64, 128, 6, splits=8, swapped=1),
        "64 x 1024 x 4096 10.8 us, cuBLAS 9.7",
        at_least={"K": _LONG},
        at_most={"M": 64, "N": 2048},
    ),
    _few_rows(
        _matmul(64, 128, 128, 4, splits=4),
        "64 x 4096 x 4096 16.5 us, cuBLAS 14.3; 64 x 4096 x 14336 35.0, 35.8",
        at_least={"K": _LONG},
        at_most={"M": 64, "N": 4096},
    ),
    _few_rows(
        _matmul(64, 64, 128, 6),
        "64 x 4096 x 4096 16.5 us, cuBLAS 14.3",
        at_most={"M": 64, "N": 4096},
    ),
    _few_rows(
        _matmul(64, 128, 128, 4),
        "64 x 8192 x 8192 37.9 us, cuBLAS 38.4; 64 x 14336 x 4096 31.9, 34.7",
        at_most={"M": 64},
    ),
    _few_rows(
        _matmul(128, 64, 128, 4, splits=8, swapped=1),
        "128 x 1024 x 4096 11.6 us, cuBLAS 10.0; 128 x 4096 x 4096 17.2, 15.6; "
        "128 x 4096 x 14336 38.5, 36.8",
        at_least={"K": _LONG},
        at_most={"M": 128, "N": 4096},
    ),
    _few_rows(
        _matmul(128, 64, 128, 4, swapped=1),
        "128 x 4096 x 4096 18.0 us, cuBLAS 15.6",
        at_most={"M": 128, "N": 4096},
    ),
    _few_rows(
        _matmul(128, 64, 64, 8, 128, 8),
        "128 x 8192 x 8192 415 TFLOP/s, cuBLAS 432, of 128 x 128 in two parts 403",
        at_least={"N": 4097},
        at_most={"M": 128, "N": 8192},
    ),
    _few_rows(
        _matmul(128, 128, 64, 6, 256, 8, splits=8),
        "200 x 1024 x 4096 13.9 us, cuBLAS 12.0; 200 x 4096 x 4096 21.8, 20.2; "
        "256 x 4096 x 14336 48.8, 47.4; 256 x 2048 x 8192 22.4, 24.7; 512 x 1024 x 4096 16.9, 12.8; "
        "512 x 4096 x 4096, not split, 26.8, 26.3",
        at_least={"K": _LONG},
        at_most={"elements": 100 * 128 * 256},
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
"""Of `matmul`. The extents are M, N, K, and the elements of the result.

`splits` is into how many parts K is split at most: into a power of two, such that all blocks run
at once.
"""


def _attention(
    block_M: int,
    block_N: int,
    stages: int = 1,
    threads: int = 128,
    persistent: int = 0,
) -> dict[str, int]:
    return {
        "block_M": block_M, "block_N": block_N, "stages": stages, "threads": threads,
        "persistent": persistent,
    }  # fmt: skip


_H200_ATTENTION = "benchmarks/h200/decisions.md, TFLOP/s"
ATTENTION = (
    Row("llvm", _attention(1, 256), _CPU_ATTENTION, at_most={"queries": 2}),
    Row("llvm", _attention(4, 256), _CPU_ATTENTION, at_most={"queries": 15}),
    Row("llvm", _attention(64, 64), _CPU_ATTENTION, at_most={"queries": 127}),
    Row("llvm", _attention(64, 64), _CPU_ATTENTION, at_least={"causal": 1}),
    Row("llvm", _attention(128, 128), _CPU_ATTENTION),
    Row(
        "sm_90",
        _attention(128, 128, 2, 256, persistent=1),
        f"{_H200_ATTENTION}: causal, d 128, length 1024: 484, a block each 388; d 64: 315, 268",
        bits=(16,),
        at_least={"queries": 128, "heads": 128, "causal": 1},
        at_most={"queries": 2047, "dim": 128},
    ),
    Row(
        "sm_90",
        _attention(192, 128, 2, 384, persistent=1),
        f"{_H200_ATTENTION}: causal, d 64, length 2048 and 4096: 409 and 474, a block each 380 and "
        "453, of 128 x 128 383 and 431; fewer heads are shared out unequally",
        bits=(16,),
        at_least={"queries": 2048, "heads": 64, "causal": 1},
        at_most={"queries": 8191, "dim": 64},
    ),
    Row(
        "sm_90",
        _attention(128, 128, 2, 256, persistent=1),
        f"{_H200_ATTENTION}: causal, d 128, length 2048 and 4096: 587 and 635, a block each 504 and "
        "609; fewer heads are shared out unequally",
        bits=(16,),
        at_least={"queries": 2048, "heads": 64, "causal": 1},
        at_most={"queries": 8191, "dim": 128},
    ),
    Row(
        "sm_90",
        _attention(192, 128, 2, 384),
        f"{_H200_ATTENTION}: causal, d 64, length 16384: 512, persistent 414, of 128 x 128 449",
        bits=(16,),
        at_least={"queries": 2048, "causal": 1},
        at_most={"dim": 64},
    ),
    Row(
        "sm_90",
        _attention(128, 128, 2, 256),
        f"{_H200_ATTENTION}: causal, d 128, length 16384: 659, persistent 411",
        bits=(16,),
        at_least={"queries": 128, "causal": 1},
        at_most={"dim": 128},
    ),
    Row(
        "sm_90",
        _attention(192, 128, 2, 384, persistent=1),
        f"{_H200_ATTENTION}: full, d 64, length 1024 to 16384: 447, 512, 512, 536; a block each, "
        "16384: 535, of 4 stages 536",
        bits=(16,),
        at_least={"queries": 192},
        at_most={"dim": 64},
    ),
    Row(
        "sm_90",
        _attention(128, 128, 2, 256, persistent=1),
        f"{_H200_ATTENTION}: full, d 128, length 1024 to 16384: 660, 698, 674, 669; a block each, "
        "16384: 642",
        bits=(16,),
        at_least={"queries": 128},
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
    Row("metal", _attention(16, 16, 1, 64), _METAL, at_most={"dim": 256}),
)
"""Of `attention`. The extents are queries, dim, heads (all of the batch), and causal, 0 or 1."""


ATTENTION_BACKWARD = (
    Row(
        "llvm",
        _attention(128, 64),
        "2 threads of a znver5, 2026-11-23, 8 heads, float32 d 64, bfloat16 d 128: best of 4",
    ),
    Row(
        "sm_90",
        _attention(128, 128, 2, 256),
        f"{_H200_ATTENTION}, gradients: length 4096, d 64: 459, causal 406; of 64 queries 396, 357",
        bits=(16,),
        at_most={"dim": 64},
    ),
    Row(
        "sm_90",
        _attention(128, 64, 2, 256),
        f"{_H200_ATTENTION}, gradients: length 4096, d 128: full 515, causal 476",
        bits=(16,),
        at_most={"dim": 128},
    ),
)
"""Of the gradients of `attention`: `block_M` keys, `block_N` queries. The extent is dim."""


def _rows(block_M: int, threads: int = 128, block_N: int = 0) -> dict[str, int]:
    return {"block_M": block_M, "block_N": block_N, "threads": threads}


_H200_ROWS = "H200, 2026-11-22, bfloat16"
_H200_ROWS_2 = "H200, 2026-11-23, benchmarks/h200/ops.md: 8192 rows, beside a copy: softmax, norms"
_WIDE = "nothing measured: more than the registers of a block hold"
ROWS = (
    Row("llvm", _rows(1, block_N=1 << 14), _WIDE, at_least={"N": 1 << 17}),
    Row("llvm", _rows(4), "2 threads of a znver5, 2026-11-21, benchmarks/results/cpu.md"),
    Row("sm_90", _rows(8), f"{_H200_ROWS}: softmax of 128, 1.6 of torch", at_most={"N": 256}),
    Row("sm_90", _rows(4), f"{_H200_ROWS}: softmax of 1024, 1.7 of torch", at_most={"N": 1024}),
    Row("sm_90", _rows(1), f"{_H200_ROWS_2} of 2048 to 8192, 0.98 to 1.02", at_most={"N": 8192}),
    Row("sm_90", _rows(1, 256), f"{_H200_ROWS_2} of 16384, 0.95 to 0.99", at_most={"N": 16384}),
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
    target: TargetLike,
    M: Any,
    N: Any,
    K: Any,
    dtype: str,
    batch: Any = None,
    *,
    may_split: bool = False,
) -> dict[str, int]:
    """The blocks of a product of matrices; an extent that is no number is taken for a large one.

    K is split where `may_split` says that there will be memory for the partial sums.
    """
    m, n, k = map(_size, (M, N, K))
    matrices = _size(1 if batch is None else batch)
    elements = m * n * matrices
    rows = [row for row in MATMUL if may_split or row.values["splits"] == 1]
    row = _first(rows, target, dtype, {"M": m, "N": n, "K": k, "elements": elements})
    if row is not None:
        c = dict(row.values)
        if row.device == "llvm":  # no larger than the problem
            c["block_N"] = min(c["block_N"], _rounded(n))
            c["block_K"] = min(c["block_K"], _rounded(k))
        tiles = -(-m // c["block_M"]) * -(-n // c["block_N"]) * matrices
        return {**c, "splits": _splits(c["splits"], tiles, k, target)}
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
    target: TargetLike,
    queries: Any,
    keys: Any,
    dim: int,
    dtype: str,
    causal: bool,
    heads: Any,
    batch: Any,
) -> dict[str, int]:
    """The blocks of attention; an extent that is no number is taken for a large one."""
    dim = -(-dim // 16) * 16  # of a block's tiles
    extents = {
        "queries": _size(queries), "dim": dim, "causal": int(causal),
        "heads": _size(heads) * _size(batch),
    }  # fmt: skip
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


def attention_backward_configuration(
    target: TargetLike, dim: int, dtype: str
) -> dict[str, int] | None:
    """The blocks of attention's gradients; None where nothing was tried."""
    row = _first(ATTENTION_BACKWARD, target, dtype, {"dim": dim})
    return None if row is None else dict(row.values)


def rows_configuration(target: TargetLike, M: Any, N: int, dtype: str) -> dict[str, int]:
    """The blocks of an operator on whole rows; an extent that is no number is taken for a large one."""
    extents = {"M": _size(M), "N": N}
    row = _first(ROWS, target, dtype, extents)
    if row is not None:
        return dict(row.values)
    template = carver.GeneralReductionTemplate("SR", [_size(M), N], "float32", keeps=True)
    hint = _proposal(template, target)
    (block_M,) = hint.block
    return _rows(block_M, hint.threads)


def _splits(most: int, tiles: int, K: int, target: TargetLike) -> int:
    """Into how many parts K is split, as a power of two."""
    if most == 1:
        return 1
    capability = gpu(resolve(target))
    room = capability.multiprocessors // tiles if capability else most
    fits = max(1, min(most, room, K // _SHORTEST_PART))
    return 1 << (fits.bit_length() - 1)


def _rounded(extent: int) -> int:
    """An extent up to whole vectors, of 16 elements of float32 at most."""
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
    """The best configuration by the model."""
    hints = template.with_arch(carver.get_arch(target)).recommend_hints(topk=1)
    if hints:
        return hints[0]
    raise InvalidValue(
        f"no blocks of {template} fit a {resolve(target).kind.name} device",
        help="make the program with configuration={...}, of smaller blocks than 16 x 16",
    )
