"""Random tensors, and what numpy computes with."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import tvmtile
from tests.gpu.machine import by_way_of_gpu


class Tensors:
    """Makes tensors whose values depend on the test's seed only."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, shape, dtype, low=-9, high=9):
        """Normal floats, integers in [low, high) (in [0, high) if unsigned), or random booleans."""
        if dtype == "bool":
            return torch.rand(shape, generator=self._generator) < 0.5
        if "int" in dtype:
            low = 0 if dtype.startswith("uint") else low
            values = torch.randint(low, high, shape, generator=self._generator)
        else:
            values = 2 * torch.randn(shape, generator=self._generator, dtype=torch.float64)
        return values.to(getattr(torch, dtype))

    @staticmethod
    def wide(tensor):
        """The same values in float64 or int64, for numpy."""
        if tensor.dtype.is_floating_point:
            return tensor.double().numpy()
        return tensor.numpy().astype(np.int64)


@pytest.fixture
def tensors():
    return Tensors(seed=0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what Metal lacks, before it is chosen which parameters run."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or callspec.params.get("compiled") != "metal":
            continue
        if "float64" in callspec.params.values():
            item.add_marker(pytest.mark.skip(reason="Metal has no float64"))


_TARGETS = ("llvm", "metal", pytest.param("cuda", marks=pytest.mark.gpu))


@pytest.fixture(params=_TARGETS)
def compiled(request):
    """Compile a program for the CPU, an NVIDIA GPU, or Metal, where the emulator looks for races too.

    Cases with a dtype that Metal lacks are skipped there.
    """
    return _compiler(request.param)


@pytest.fixture(params=[*_TARGETS, "sm_80", "sm_90a"])
def compiled_everywhere(request):
    """The same, or for NVIDIA's GPUs of an architecture in the emulator."""
    return _compiler(request.param)


def _compiler(name):
    if name == "llvm":
        return tvmtile.compile
    if name == "cuda":
        return by_way_of_gpu
    target = name if name == "metal" else {"kind": "cuda", "arch": name}
    return partial(tvmtile.compile, target=target, execution_backend="emulator")


@pytest.fixture
def close():
    """Compare a result with a reference in float64, to what its dtype can hold."""
    tolerance = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5, "float64": 1e-12}

    def compare(result, expected):
        name = str(result.dtype).removeprefix("torch.")
        if name not in tolerance:
            np.testing.assert_array_equal(result.numpy(), np.asarray(expected).astype(name))
            return
        bound = tolerance[name]
        np.testing.assert_allclose(result.double().numpy(), expected, rtol=bound, atol=4 * bound)

    return compare
