"""Cases that `gpu.py` measures: problems with inputs, references, contenders and configurations."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_case import Case
from gpu_cases_attention import attention_cases
from gpu_cases_fp8 import fp8_cases
from gpu_cases_gemm import decoding_cases, gemm_cases
from gpu_cases_rows import row_cases

__all__ = ["Case", "cases"]


def cases() -> Iterator[Case]:
    """Every problem, in the order of the table."""
    yield from gemm_cases()
    yield from decoding_cases()
    yield from fp8_cases()
    yield from attention_cases()
    yield from row_cases()
