"""Programs in the emulator, on the CPU: what those for Metal and for CUDA have in common."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import ir

from tvmtile.errors import import_optional
from tvmtile.jit.arguments import strides_of
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.launches import KernelLaunch
from tvmtile.jit.recorded import RecordedAdapter, is_torch


class EmulatorAdapter(RecordedAdapter):
    """Runs a GPU's program on the CPU, with every access to memory checked.

    Attributes
    ----------
    launch_statistics : list of (str, LaunchStatistics)
        What each launch of the last call did, with the kernel's name.
    seconds : float
        Processor time that a threadgroup may take before it counts as endless; 0 is no limit.
    count_conflicts : bool
        Whether conflicts of banks are counted, which takes time.
    """

    backend = "emulator"
    device = "cpu"

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        super().__init__(artifact, params)
        self.launch_statistics: list[tuple[str, Any]] = []
        self.seconds = 60.0
        self.count_conflicts = False

    @property
    def statistics(self) -> Any:
        """What the last call did, summed over its launches; None where nothing was launched."""
        return _total([statistics for _, statistics in self.launch_statistics])

    def accepts(self, tensor: object) -> bool:
        """Whether it is on the CPU."""
        return str(getattr(tensor, "device", "cpu")).startswith("cpu")

    def allocate(self, dtype: str, elements: int) -> Any:
        """An array of numpy, or a torch tensor where numpy does not have the dtype."""
        import numpy as np

        try:
            return np.empty(elements, dtype)
        except TypeError:
            torch = import_optional("torch", "torch", f"scratch memory of {dtype}")
            return torch.empty(elements, dtype=getattr(torch, dtype))

    def run(self, launches: Sequence[KernelLaunch], memory: Mapping[int, Any]) -> None:
        """Emulate kernels.

        Raises
        ------
        EmulationError
            If one of them does what its machine forbids.
        """
        self.launch_statistics = []
        for launch in launches:
            arrays = [memory_of(memory[index]) for index in launch.buffers]
            self.launch_statistics.append((launch.kernel, self._launched(launch, arrays)))

    @abstractmethod
    def _launched(self, launch: KernelLaunch, arrays: Sequence[object]) -> Any:
        """Run one kernel, and say what it did."""


def _total(launches: Sequence[Any]) -> Any:
    """Counts are added; of the memory that blocks hold, the most counts."""
    if not launches:
        return None
    fields = [field.name for field in dataclasses.fields(launches[0])]
    sums = {name: sum(getattr(launch, name) for launch in launches) for name in fields}
    held = next(name for name in fields if name.endswith("_memory"))
    sums[held] = max(getattr(launch, held) for launch in launches)
    return type(launches[0])(**sums)


def memory_of(tensor: object) -> Any:
    """The memory that a tensor spans as a numpy or torch array without gaps; nothing is copied.

    What is no tensor, such as the map of one, is left as it is.
    """
    import numpy as np

    if is_torch(tensor):
        return _flat_torch(tensor)
    if isinstance(tensor, np.ndarray):
        return _flat_numpy(tensor)
    if not hasattr(tensor, "__dlpack__"):
        return tensor
    return _from_tvm(tensor)


def _from_tvm(tensor: Any) -> Any:
    import numpy as np

    try:
        return _flat_numpy(np.from_dlpack(tensor))
    except (RuntimeError, BufferError):  # a dtype that numpy has not, such as bfloat16
        torch = import_optional("torch", "torch", f"a tensor of {tensor.dtype}")
        return _flat_torch(torch.from_dlpack(tensor))


def _flat_torch(tensor: Any) -> Any:
    if tensor.is_contiguous():
        return tensor
    return tensor.as_strided((_span(tensor.shape, tensor.stride()),), (1,))


def _flat_numpy(array: np.ndarray) -> np.ndarray:
    import numpy as np

    if array.flags.c_contiguous:
        return array
    return np.lib.stride_tricks.as_strided(
        array, (_span(array.shape, strides_of(array)),), (array.itemsize,)
    )


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last of a tensor, those that it leaves out between them too."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
