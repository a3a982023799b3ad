"""Helpers for tests of kernels, under the names that TileLang's tests use."""

from __future__ import annotations

import importlib.util
import operator
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtile.errors import InvalidValue, import_optional

if TYPE_CHECKING:
    import torch

__all__ = [
    "PerfResult",
    "main",
    "process_func",
    "regression",
    "requires_cuda",
    "requires_cuda_compute_version",
    "requires_cuda_compute_version_eq",
    "requires_cuda_compute_version_ge",
    "requires_cuda_compute_version_gt",
    "requires_cuda_compute_version_le",
    "requires_cuda_compute_version_lt",
    "requires_llvm",
    "requires_metal",
    "requires_package",
    "set_random_seed",
    "torch_assert_close",
]


def torch_assert_close(
    tensor_a: torch.Tensor,
    tensor_b: torch.Tensor,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    max_mismatched_ratio: float = 0.001,
    verbose: bool = False,
    equal_nan: bool = True,
    check_device: bool = True,
    check_dtype: bool = True,
    base_name: str = "LHS",
    ref_name: str = "RHS",
) -> bool:
    """Compare two tensors and allow a small share of elements to differ.

    Parameters
    ----------
    tensor_a, tensor_b : torch.Tensor, numpy.ndarray or tvm.runtime.Tensor
        What to compare, and with what.
    rtol, atol : float
        Two elements are close if `|a - b| <= atol + rtol * |b|`.
    max_mismatched_ratio : float
        The share of elements that need not be close.
    verbose : bool
        Print how many are not.
    equal_nan : bool
        NaN is close to NaN.
    check_device, check_dtype : bool
        Device and dtype must be equal too.
    base_name, ref_name : str
        What the message calls the tensors.

    Returns
    -------
    bool
        True.

    Raises
    ------
    AssertionError
        If the tensors differ; the message has the first and the greatest difference.
    """
    what = f"{base_name} and {ref_name}"
    shapes = list(tensor_a.shape), list(tensor_b.shape)
    assert shapes[0] == shapes[1], f"{what}: {shapes[0]} and {shapes[1]}"
    if check_dtype:
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in (tensor_a, tensor_b)]
        assert dtypes[0] == dtypes[1], f"{what}: {dtypes[0]} and {dtypes[1]}"
    if check_device and _is_torch(tensor_a) and _is_torch(tensor_b):
        assert tensor_a.device == tensor_b.device, (
            f"{what}: {tensor_a.device} and {tensor_b.device}"
        )
    a, b = _as_doubles(tensor_a), _as_doubles(tensor_b)
    far = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)
    count, allowed = int(far.sum()), int(a.size * max_mismatched_ratio)
    if verbose:
        sys.stdout.write(f"{what}: {count} of {a.size} elements differ, {allowed} may\n")
    if count > allowed:
        first = tuple(int(i) for i in np.argwhere(far)[0])
        with np.errstate(invalid="ignore"):  # of infinities
            greatest = np.abs(a - b).max()
        raise AssertionError(
            f"{what} differ in {count} of {a.size} elements, of which {allowed} may differ; "
            f"first at {list(first)}: {a[first].item()} and {b[first].item()}; "
            f"greatest difference {greatest}"
        )
    return True


def _is_torch(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "untyped_storage")


def _as_doubles(tensor: torch.Tensor) -> np.ndarray:
    """The elements of a tensor of torch, TVM or numpy."""
    if _is_torch(tensor):
        return tensor.detach().cpu().double().resolve_neg().numpy()
    return np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor, np.float64)


def set_random_seed(seed: int = 42) -> None:
    """Seed the generators of Python, numpy and torch."""
    torch = import_optional("torch", "torch", "tvmtile.testing")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what tests draw from is not ours to choose
    torch.manual_seed(seed)


def requires_cuda(test: Any) -> Any:
    """Mark a test that needs a CUDA GPU; it is skipped where there is none."""
    import pytest

    torch = import_optional("torch", "torch", "tvmtile.testing")
    return pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")(test)


def requires_cuda_compute_version(
    major_version: int, minor_version: int = 0, mode: str = "ge"
) -> Callable[[Any], Any]:
    """Mark a test that needs a CUDA GPU of some compute capabilities; it is skipped elsewhere.

    Parameters
    ----------
    major_version, minor_version : int
        What the capability is compared with.
    mode : {"ge", "gt", "eq", "le", "lt"}
        How: at least, above, just, at most, below.
    """
    import pytest

    torch = import_optional("torch", "torch", "tvmtile.testing")
    wanted = (major_version, minor_version)
    have = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    fits = have is not None and getattr(operator, mode)(tuple(have), wanted)
    reason = f"needs a CUDA GPU of a compute capability {mode} {major_version}.{minor_version}"
    mark: Callable[[Any], Any] = pytest.mark.skipif(not fits, reason=reason)
    return mark


requires_cuda_compute_version_ge = partial(requires_cuda_compute_version, mode="ge")
requires_cuda_compute_version_gt = partial(requires_cuda_compute_version, mode="gt")
requires_cuda_compute_version_eq = partial(requires_cuda_compute_version, mode="eq")
requires_cuda_compute_version_le = partial(requires_cuda_compute_version, mode="le")
requires_cuda_compute_version_lt = partial(requires_cuda_compute_version, mode="lt")


def requires_metal(test: Any) -> Any:
    """Mark a test that needs an Apple GPU that torch can use; it is skipped where there is none."""
    import pytest

    torch = import_optional("torch", "torch", "tvmtile.testing")
    return pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs an Apple GPU")(
        test
    )


def requires_llvm(test: Any) -> Any:
    """Mark a test that needs TVM's LLVM code generator; it is skipped where TVM lacks it."""
    import pytest
    import tvm

    present = bool(tvm.runtime.enabled("llvm"))
    return pytest.mark.skipif(not present, reason="TVM was built without LLVM")(test)


def requires_package(*packages: str) -> Callable[[Any], Any]:
    """Mark a test that needs packages; it is skipped where one is not installed.

    Parameters
    ----------
    *packages : str
        What the test imports.
    """
    import pytest

    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    reason = f"needs {', '.join(missing)}"
    mark: Callable[[Any], Any] = pytest.mark.skipif(bool(missing), reason=reason)
    return mark


def main() -> None:
    """Run the tests of the calling script with pytest, and exit with its status."""
    import pytest

    script = sys._getframe(1).f_globals["__file__"]
    sys.exit(pytest.main([script]))


# Times of a script's kernels, printed so that two runs can be compared ------------------------------
#
#     def regression_gemm():
#         tvmtile.testing.process_func(measure_gemm, M=1024)
#
#     if __name__ == "__main__":
#         tvmtile.testing.regression()

_PREFIX = "regression_"
_TRIES = 5


@dataclass(frozen=True)
class PerfResult:
    """A measurement of a function."""

    name: str
    """The function's."""
    latency: float
    """The time that it returned, in its own unit."""
    case: str | None = None
    """The case of `regression` that called it."""


_results: list[PerfResult] = []
_case: str | None = None


def process_func(func: Callable[..., float], name: str | None = None, /, **kwargs: object) -> None:
    """Call a function that returns a time, and note it.

    Parameters
    ----------
    func : callable
        Returns a positive number; it is called again where a timer was too coarse for that.
    name : str, optional
        What the result is called; the function's module where absent.
    **kwargs
        What it is called with.

    Raises
    ------
    InvalidValue
        If it returns no positive number.
    """
    called = (func.__module__ if name is None else name).removeprefix(_PREFIX)
    for _ in range(_TRIES):
        latency = float(func(**kwargs))
        if latency > 0:
            _results.append(PerfResult(called, latency, _case))
            return
    raise InvalidValue(f"{called} returned a time of {latency}", help="return a positive number")


def regression(prefixes: Sequence[str] = (_PREFIX,), verbose: bool = True) -> list[PerfResult]:
    """Call the caller's functions by their prefix, in the order of their names, and print the times.

    Parameters
    ----------
    prefixes : sequence of str
        With which the names of the functions begin.
    verbose : bool
        Print which one is called.

    Returns
    -------
    list of PerfResult
        What they noted.
    """
    global _case
    names = sys._getframe(1).f_globals
    _results.clear()
    for name in sorted(n for n in names if n.startswith(tuple(prefixes)) and callable(names[n])):
        _case = name.removeprefix(_PREFIX)
        if verbose:
            sys.stderr.write(f"{_case}\n")
        try:
            names[name]()
        finally:
            _case = None
    for result in _results:
        sys.stdout.write(f"{result.name}: {result.latency}\n")
    return list(_results)
