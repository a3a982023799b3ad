"""Programs of the catalogue in tests by hand, and how kernels are run on emulators and compared.

An emulator looks for races, accesses outside of tensors, divergent barriers and elements that were
never written in every kernel that it runs; each is an error.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import tvmtile
from tests.fuzz.run import loaded
from tests.programs import catalogue

_DIRECTORY = tempfile.TemporaryDirectory()  # error messages show lines of its files
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


def traced(name: str, **given: Any) -> Any:
    """A program of the catalogue with these values, and the first ones of its other parameters."""
    return loaded(catalogue()[name].case(**given), Path(_DIRECTORY.name)).main


def gemm(
    *extents: Any,
    dtypes: tuple[str, str, str] = ("float16", "float32", "float32"),
    transposes: tuple[bool, bool] = (False, False),
    name: str = "gemm",
    **given: Any,
) -> Any:
    """A product tile by tile, of dtypes of A and B, of the sums and of C."""
    usual = {"block": (64, 64, 32), "threads": 128, "stages": 0}
    of_operands = {"transpose_A": transposes[0], "transpose_B": transposes[1]}
    given = {"extents": extents, "dtypes": (dtypes[0], *dtypes), **usual, **of_operands, **given}
    return traced(name, **given)


def operands(
    M: int, N: int, K: int, dtype: str = "float16", transposes: tuple[bool, bool] = (False, False)
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random A and B for `gemm`, and their product in float64."""
    a, b = random(M, K, dtype=dtype), random(K, N, dtype=dtype)
    product = a.double() @ b.double()
    transpose_A, transpose_B = transposes
    return a.T.contiguous() if transpose_A else a, b.T.contiguous() if transpose_B else b, product
