"""Measuring kernels and comparing them with a reference: `kernel.get_profiler()`, `do_bench`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvmtile.errors import import_optional, warn
from tvmtile.profiler.bench import do_bench
from tvmtile.profiler.inputs import TensorSupplyType, filled, make_inputs
from tvmtile.testing import torch_assert_close

if TYPE_CHECKING:
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


def _bits(tensor: Any) -> bytes:
    """The bytes of a tensor."""
    if hasattr(tensor, "untyped_storage"):  # torch's
        torch = import_optional("torch", "torch", "tvmtile.profiler")
        return bytes(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return bytes((tensor.numpy() if hasattr(tensor, "numpy") else tensor).tobytes())


def as_list(results: Any) -> list[Any]:
    """The results of a kernel or of a reference, as a list."""
    if results is None:
        return []
    return list(results) if isinstance(results, tuple | list) else [results]
