"""Measuring kernels and comparing them with a reference: `kernel.get_profiler()`, `do_bench`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import tvm
from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import ArgumentError, InvalidOperand, import_optional, warn
from tvmtile.ir.packed import has_float4
from tvmtile.testing import torch_assert_close

if TYPE_CHECKING:
    import torch

    from tvmtile.jit.kernel import Kernel

__all__ = [
    "Profiler",
    "TensorSupplyType",
    "as_list",
    "compare",
    "do_bench",
    "filled",
    "make_inputs",
]


class TensorSupplyType(Enum):
    """What a profiler fills a kernel's inputs with, where it is given none."""

    Integer = 1
    """Small whole numbers, which every float dtype holds exactly."""
    Uniform = 2
    """Uniform between -1 and 1."""
    Normal = 3
    """Normal with mean -1 and deviation 1, as TileLang's."""
    Randn = 4
    """Normal with mean 0 and deviation 1."""
    Zero = 5
    """Zeros."""
    One = 6
    """Ones."""
    Auto = 7
    """Uniform for floats of 16 bits or more, small whole numbers for the others."""


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    _n_warmup: int = 0,
    _n_repeat: int = 0,
    quantiles: Sequence[float] | None = None,
    fast_flush: bool = True,
    backend: str = "event",
    return_mode: str = "mean",
    early_stop_baseline: float | None = None,
    **_tilelang_options: object,
) -> Any:
    """Measure how long a function takes, in milliseconds.

    Where torch works on an NVIDIA GPU, that is the time between two events of the GPU around the call,
    with its L2 cache overwritten before; elsewhere it is wall-clock time, until an Apple GPU is done.

    Parameters
    ----------
    fn : callable
        Called without arguments.
    warmup, rep : float
        Milliseconds to spend before measuring, and measuring. There is one call at least.
    _n_warmup, _n_repeat : int
        Numbers of calls in place of these times.
    quantiles : sequence of float, optional
        Return these quantiles of the times.
    fast_flush, backend
        Accepted for TileLang's callers.
    return_mode : {"mean", "median", "min", "max"}
        What to return where no quantiles are asked for.
    early_stop_baseline : float, optional
        Milliseconds. Where a first call takes longer, and two more do, the least of them is the answer.

    Returns
    -------
    float or list of float
        Milliseconds a call.
    """
    import numpy as np

    del fast_flush, backend
    if return_mode not in ("mean", "median", "min", "max"):
        raise InvalidOperand(
            f"do_bench: return_mode={return_mode!r}", help="use mean, median, min or max"
        )
    milliseconds = _timer()
    estimate = max(milliseconds(fn), 1e-3)
    if early_stop_baseline is not None and estimate > early_stop_baseline:
        estimate = min(estimate, milliseconds(fn), milliseconds(fn))
        if estimate > early_stop_baseline:
            return [estimate] * len(quantiles) if quantiles is not None else estimate
    for _ in range(_n_warmup or int(warmup / estimate)):
        fn()
    times = [milliseconds(fn) for _ in range(_n_repeat or max(1, int(rep / estimate)))]
    if quantiles is not None:
        return [float(value) for value in np.quantile(times, quantiles)]
    return float(getattr(np, return_mode)(times))


def _timer() -> Callable[[Callable[[], Any]], float]:
    """What measures one call, in milliseconds."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return _event_timer(torch)
    return _wall_clock()


def _wall_clock() -> Callable[[Callable[[], Any]], float]:
    waits = _waits()

    def milliseconds(fn: Callable[[], Any]) -> float:
        start = time.perf_counter()
        fn()
        for wait in waits:
            wait()
        return (time.perf_counter() - start) * 1e3

    return milliseconds


_MORE_THAN_L2 = 256 << 20
"""Bytes; the largest L2 cache so far has half of that."""


def _event_timer(torch: Any) -> Callable[[Callable[[], Any]], float]:
    cache = torch.empty(_MORE_THAN_L2, dtype=torch.int8, device="cuda")

    def milliseconds(fn: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.zero_()  # it also keeps the GPU busy while the call is launched
        start.record()
        fn()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return milliseconds


def _waits() -> list[Callable[[], Any]]:
    """What waits for the GPUs that TVM's tensors, or torch's on an Apple GPU, may be on."""
    waits: list[Callable[[], Any]] = [
        device.sync for device in (tvm.cuda(0), tvm.metal(0)) if device.exist
    ]
    torch = sys.modules.get("torch")
    if torch is not None and torch.backends.mps.is_available():
        waits.append(torch.mps.synchronize)
    return waits


class Profiler:
    """Runs a kernel on inputs of its own making, to measure it or to compare it with a reference.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    supply : TensorSupplyType
        What its inputs hold.
    """

    def __init__(self, kernel: Kernel, supply: TensorSupplyType = TensorSupplyType.Auto) -> None:
        self.func = kernel
        self._supply = supply

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """Call the kernel."""
        return self.func(*args, **kwargs)

    def inputs(self, dynamic_symbolic_constraints: Mapping[str, int] | None = None) -> list[Any]:
        """Tensors for the parameters that are not results: torch's where it is installed.

        Elsewhere they are arrays of numpy on a CPU, and TVM's on a GPU or where numpy lacks the dtype.

        Parameters
        ----------
        dynamic_symbolic_constraints : mapping of str to int, optional
            The values of dynamic extents, by name.

        Raises
        ------
        ArgumentError
            If a dynamic extent has no value, or a parameter is no tensor.
        """
        params = [
            param
            for index, param in enumerate(self.func.prim_func.params)
            if index not in self.func.out_idx
        ]
        sizes = dynamic_symbolic_constraints or {}
        return make_inputs(params, self._supply, self.func.adapter.device, sizes)

    def _get_inputs(self, **options: Any) -> list[Any]:
        """TileLang's name of `inputs`."""
        return self.inputs(**options)

    def assert_allclose(
        self,
        reference_program: Callable[..., object],
        input_tensors: Sequence[Any] | None = None,
        atol: float = 1e-2,
        rtol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
    ) -> None:
        """Compare what the kernel returns with what a reference returns for the same inputs.

        Parameters
        ----------
        reference_program : callable
            Takes the kernel's inputs; None among its results is not compared.
        input_tensors : sequence, optional
            The inputs; made by `inputs` where absent.
        atol, rtol, max_mismatched_ratio : float
            As of `tvmtile.testing.torch_assert_close`.

        Raises
        ------
        AssertionError
            If results differ, or there are not as many.
        """
        args = list(input_tensors) if input_tensors is not None else self.inputs()
        expected = as_list(reference_program(*args))
        compare(as_list(self.func(*args)), expected, rtol, atol, max_mismatched_ratio)

    def manual_assert_close(
        self,
        reference_program: Callable[..., object],
        input_tensors: Sequence[Any] | None = None,
        manual_check_prog: Callable[[list[Any], list[Any]], Any] | None = None,
    ) -> None:
        """Compare the kernel with a reference by a function of the two lists of results."""
        if manual_check_prog is None:
            self.assert_allclose(reference_program, input_tensors)
            return
        args = list(input_tensors) if input_tensors is not None else self.inputs()
        expected = as_list(reference_program(*args))
        manual_check_prog(as_list(self.func(*args)), expected)

    def assert_consistent(self, repeat: int = 10) -> None:
        """Run the kernel several times and check that its results stay the same, bit for bit."""
        args = self.inputs()
        first = [_bits(result) for result in as_list(self.func(*args))]
        for _ in range(repeat):
            now = [_bits(result) for result in as_list(self.func(*args))]
            assert first == now, "the kernel's results differ from run to run"

    def run_once(self, func: Callable[..., object] | None = None) -> Any:
        """Call the kernel, or another function, on inputs of the profiler's making."""
        return (func or self.func)(*self.inputs())

    def do_bench(
        self,
        func: Callable[..., object] | None = None,
        warmup: float = 25,
        rep: float = 100,
        n_warmup: int = 0,
        n_repeat: int = 0,
        input_tensors: Sequence[Any] | None = None,
        backend: str = "event",
        quantiles: Sequence[float] | None = None,
        return_mode: str = "mean",
        dynamic_symbolic_constraints: Mapping[str, int] | None = None,
        **_tilelang_options: object,
    ) -> Any:
        """Measure the kernel, or another function of the same inputs; see `do_bench`.

        Metal's emulator is measured as well, with a warning: its times say nothing about a GPU. What it
        counts, `kernel.adapter.statistics`, does.
        """
        args = (
            list(input_tensors)
            if input_tensors is not None
            else self.inputs(dynamic_symbolic_constraints)
        )
        target = func or self.func
        if func is None and hasattr(self.func.adapter, "launch_statistics"):
            warn(
                "these are times of the emulator, which say nothing about a GPU; "
                "kernel.adapter.statistics has what a call did"
            )
        return do_bench(
            lambda: target(*args), warmup, rep, n_warmup, n_repeat, quantiles,
            backend=backend, return_mode=return_mode,
        )  # fmt: skip


def make_inputs(
    params: Sequence[ir.Var],
    supply: TensorSupplyType,
    device: str,
    sizes: Mapping[str, int] | None = None,
) -> list[Any]:
    """Tensors for parameters of a program, of the kinds that `Profiler.inputs` tells.

    Parameters
    ----------
    params : sequence of Var
        The parameters.
    supply : TensorSupplyType
        What the tensors hold.
    device : str
        Where they are.
    sizes : mapping of str to int, optional
        The values of dynamic extents, by name.

    Raises
    ------
    ArgumentError
        If a dynamic extent has no value, or a parameter is no tensor.
    """
    tensors: list[Any] = []
    for param in params:
        if not is_buffer_var(param):
            raise ArgumentError(
                f"the profiler makes tensors; {param.name} is a scalar",
                help="give the arguments by input_tensors=[...]",
            )
        shape = [_extent(param.name, extent, sizes or {}) for extent in param.ty.shape]
        tensors.append(_made(param, shape, supply, device))
    return tensors


def _made(param: ir.Var, shape: list[int], supply: TensorSupplyType, device: str) -> Any:
    """A tensor of torch where that is installed; else an array on a CPU, and TVM's tensor elsewhere."""
    if has_float4(param):
        return _filled_pairs([*shape[:-1], shape[-1] // 2], supply).to(device)
    dtype = str(param.ty.dtype)
    try:
        import torch
    except ImportError:
        array = _filled_array(shape, dtype, supply)
        is_plain = device == "cpu" and array.dtype.isbuiltin == 1
        return array if is_plain else tvm.runtime.tensor(array, tvm.device(device))
    return filled(shape, getattr(torch, dtype), supply).to(device)


def compare(
    actual: Sequence[Any],
    expected: Sequence[Any],
    rtol: float = 1e-2,
    atol: float = 1e-2,
    max_mismatched_ratio: float = 0.01,
) -> None:
    """Compare a kernel's results with a reference's; None is not compared.

    Parameters
    ----------
    actual, expected : sequence
        Tensors.
    rtol, atol, max_mismatched_ratio : float
        As of `tvmtile.testing.torch_assert_close`.

    Raises
    ------
    AssertionError
        If they differ, or there are not as many.
    """
    assert len(actual) == len(expected), (
        f"the kernel returns {len(actual)} tensors, the reference {len(expected)}"
    )
    for ours, theirs in zip(actual, expected, strict=True):
        if ours is None or theirs is None:
            continue
        torch_assert_close(
            ours, theirs, rtol, atol, max_mismatched_ratio,
            base_name="the kernel", ref_name="the reference",
        )  # fmt: skip


def _extent(name: str, extent: ir.Expr, sizes: Mapping[str, int]) -> int:
    if isinstance(extent, int | tirx.IntImm):
        return int(extent)
    if isinstance(extent, ir.Var) and extent.name in sizes:
        return sizes[extent.name]
    raise ArgumentError(
        f"the extent {extent} of {name} is not known",
        help="give dynamic extents by dynamic_symbolic_constraints={name: value}",
    )


def _filled_pairs(shape: list[int], supply: TensorSupplyType) -> torch.Tensor:
    """Bytes of two floats of 4 bits: all codes but where zeros or ones are asked for."""
    torch = import_optional("torch", "torch", "tvmtile.profiler")
    codes = {TensorSupplyType.Zero: 0x00, TensorSupplyType.One: 0x22}
    if supply in codes:
        pairs = torch.full(shape, codes[supply], dtype=torch.uint8)
    else:
        pairs = torch.randint(256, shape, dtype=torch.uint8)
    return pairs.view(torch.float4_e2m1fn_x2)


def filled(shape: list[int], dtype: torch.dtype, supply: TensorSupplyType) -> torch.Tensor:
    """A tensor on the CPU, filled as a supply says."""
    torch = import_optional("torch", "torch", "tvmtile.profiler")

    if supply is TensorSupplyType.Zero:
        return torch.zeros(shape).to(dtype)
    if supply is TensorSupplyType.One:
        return torch.ones(shape).to(dtype)
    wide = dtype.is_floating_point and dtype.itemsize > 1
    if supply is TensorSupplyType.Integer or (supply is TensorSupplyType.Auto and not wide):
        low, high = (-2, 3) if dtype.is_signed else (0, 2 if dtype == torch.bool else 3)
        return torch.randint(low, high, shape).to(dtype)
    if supply in (TensorSupplyType.Auto, TensorSupplyType.Uniform):
        return torch.empty(shape).uniform_(-1, 1).to(dtype)
    mean = -1.0 if supply is TensorSupplyType.Normal else 0.0
    return (torch.randn(shape) + mean).to(dtype)


def _filled_array(shape: list[int], dtype: str, supply: TensorSupplyType) -> Any:
    """The same as an array of numpy, which has narrow floats from ml_dtypes."""
    import ml_dtypes  # noqa: F401
    import numpy as np

    random = np.random.default_rng()
    is_float = "float" in dtype
    if supply in (TensorSupplyType.Zero, TensorSupplyType.One):
        array = np.full(shape, supply is TensorSupplyType.One)
    elif supply is TensorSupplyType.Integer or (
        supply is TensorSupplyType.Auto and not (is_float and tvm.DataType(dtype).bits > 8)
    ):
        is_signed = is_float or dtype.startswith("int")
        low, high = (-2, 3) if is_signed else (0, 2 if dtype == "bool" else 3)
        array = random.integers(low, high, shape)
    elif supply in (TensorSupplyType.Auto, TensorSupplyType.Uniform):
        array = random.uniform(-1, 1, shape)
    else:
        array = random.normal(-1 if supply is TensorSupplyType.Normal else 0, 1, shape)
    return array.astype(np.dtype(dtype))


def _bits(tensor: Any) -> bytes:
    """What a tensor holds."""
    if hasattr(tensor, "untyped_storage"):  # torch's
        torch = import_optional("torch", "torch", "tvmtile.profiler")
        return bytes(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return bytes((tensor.numpy() if hasattr(tensor, "numpy") else tensor).tobytes())


def as_list(results: Any) -> list[Any]:
    """What a kernel or a reference returned, as a list."""
    if results is None:
        return []
    return list(results) if isinstance(results, tuple | list) else [results]
