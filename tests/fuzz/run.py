"""Compile a program of the fuzzer for a target, call it, and compare with its meaning."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tests.fuzz.interpret import Buffer
from tests.fuzz.program import Program, mismatch
from tests.fuzz.values import storage

__all__ = ["TARGETS", "Outcome", "run"]

_PATIENCE = 10.0
"""Seconds after which a kernel on a GPU hangs."""
_FULL_SPEED = 0.03
"""Seconds of processor time that 400,000 sums of plain Python took on an idle machine (EPYC, Zen 3)."""
_BAND = 1024
_PATTERN = 0x7B  # large as a float of any width, odd as an integer
_MISREAD = {"neg.s16", "abs.s16", "cvt.rzi.s16.f16", "cvt.rzi.s16.bf16", "cvt.rzi.s8.f16"}
"""Instructions of PTX whose results ptxas widens to 32 bits with a wrong sign."""
_ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a")
_HOPPER = {"kind": "cuda", "arch": "sm_90a"}
_ONE_ROLE = {"tl.disable_warp_specialized": True}
TARGETS: dict[str, dict[str, Any]] = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
    "metal4": {"target": "metal4", "execution_backend": "emulator"},
    "cuda": {"execution_backend": "emulator"},  # of one of the architectures
    **{
        arch: {"target": {"kind": "cuda", "arch": arch}, "execution_backend": "emulator"}
        for arch in _ARCHITECTURES
    },
    "nvrtc": {},  # which is compiled and not run
    "gpu": {"target": "cuda"},
    "hopper": {"target": _HOPPER, "execution_backend": "emulator"},
    "hopper-one-role": {
        "target": _HOPPER,
        "execution_backend": "emulator",
        "pass_configs": _ONE_ROLE,
    },
    "gpu-one-role": {"target": "cuda", "pass_configs": _ONE_ROLE},
}
"""The options of `tvmtile.compile` for each target: the CPU, the emulators, the GPU of this machine.

Where it says `one-role`, pipelined loops are not split between a producer and consumers.
"""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program on a target.

    Attributes
    ----------
    kind : str
        "passed"; "refused", by an error of tvmtile; "race", refused for a race, which no program
        has; "wrong" numbers; "internal", an exception of another kind or a crash; "hung", a kernel that
        does not end; "invalid", a program without a meaning; "slow".
    detail : str
        The error, or the first element that is wrong.
    seconds : float
        Of processor time, that compiling, the calls and the comparison took.
    is_split : bool
        The kernel has a producer and consumers.
    """

    kind: str
    detail: str = ""
    seconds: float = 0.0
    is_split: bool = False

    @property
    def is_failure(self) -> bool:
        """A defect, of the compiler or of the fuzzer."""
        return self.kind not in ("passed", "refused")

    @property
    def reason(self) -> str:
        """The first line of the detail, without what differs from program to program."""
        return self.detail.strip().partition("\n")[0][:160]


class Band(Exception):
    """An element outside of a tensor was written."""


class Hung(Exception):
    """A kernel does not end."""


class Guarded:
    """A tensor in the middle of a larger one, whose other bytes nobody may change.

    Where it has strides, those between its elements are among the others.
    """

    def __init__(
        self, elements: np.ndarray, dtype: str, device: str, strides: tuple[int, ...] | None = None
    ) -> None:
        import torch

        self._shape, self._dtype = elements.shape, storage(dtype)
        size = self._dtype.itemsize
        dense = np.empty([max(n, 1) for n in elements.shape], np.uint8).strides
        self._strides = tuple(size * s for s in (dense if strides is None else strides))
        last = sum(max(n - 1, 0) * s for n, s in zip(self._shape, self._strides, strict=True))
        memory = np.full(last + size + 2 * _BAND, _PATTERN, np.uint8)
        self._in(memory)[...] = elements.astype(self._dtype)
        # An allocation of torch is aligned for vectors, and so is the band's end.
        self._memory = torch.empty(memory.size, dtype=torch.uint8, device=device)
        self._memory.copy_(torch.from_numpy(memory))
        inner = self._memory[_BAND:-_BAND].view(getattr(torch, dtype))
        self.tensor = inner.as_strided(self._shape, [s // size for s in self._strides])

    def _in(self, memory: np.ndarray) -> np.ndarray:
        """The tensor in the bytes that hold it."""
        return np.ndarray(self._shape, self._dtype, memory.data, _BAND, self._strides)

    def elements(self, name: str) -> np.ndarray:
        """The elements; `Band` if something beside them has changed."""
        memory = self._memory.cpu().numpy().copy()
        found = self._in(memory).copy()
        self._in(memory)[...] = np.full(self._dtype.itemsize, _PATTERN, np.uint8).view(self._dtype)
        if np.any(memory != _PATTERN):
            raise Band(f"memory outside of {name} was written")
        return found


def loaded(program: Program, directory: Path) -> ModuleType:
    """The module of a program; it is in a file, where the tracer and error messages find its lines."""
    path = directory / f"program_{program.seed}.py"
    path.write_text(program.source)
    spec = importlib.util.spec_from_file_location(f"program_{program.seed}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(program: Program, target: str, directory: Path) -> Any:
    """The kernel of a program."""
    import tvmtile

    function = loaded(program, directory).main
    architectures = program.architectures or _ARCHITECTURES
    arch = architectures[program.seed % len(architectures)]
    options = {"target": {"kind": "cuda", "arch": arch}, **TARGETS[target], **program.options}
    kernel = tvmtile.compile(function, **options)
    if target == "nvrtc":
        assert kernel.cubin
        assert not _MISREAD & set(kernel.ptx.split()), "ptxas gets it wrong"
    return kernel


def called(kernel: Any, program: Program, call: int, device: str) -> dict[str, np.ndarray]:
    """The contents of the tensors after a call."""
    given = program.arguments(call)
    dtypes = {
        arg.arg: _dtype_of(arg)
        for arg in program.parameters
        if isinstance(given[arg.arg], np.ndarray)
    }
    strides = program.strides(call)
    guarded = {
        name: Guarded(given[name], dtype, device, strides.get(name))
        for name, dtype in dtypes.items()
    }
    kernel(*(guarded[n].tensor if n in guarded else given[n].item() for n in given))
    if device == "cuda":
        _await_gpu()
    return {name: tensor.elements(name) for name, tensor in guarded.items()}


def _await_gpu() -> None:
    """Wait for what was launched; `Hung` if it takes too long."""
    import torch

    done = torch.cuda.Event()
    done.record()
    end = time.monotonic() + _PATIENCE
    while not done.query():
        if time.monotonic() > end:
            raise Hung(f"not done after {_PATIENCE:.0f} s")
        time.sleep(1e-3)


def _dtype_of(arg: Any) -> str:
    return str(arg.annotation.args[-1].value)


def _wrong(results: dict[str, np.ndarray], expected: dict[str, Buffer]) -> str:
    found = (mismatch(expected[name], result) for name, result in results.items())
    return next((message for message in found if message), "")


def _unexpected(program: Program, target: str, kernel: Any) -> str:
    """The text that a kernel's source and choices lack, or have where it begins with "not "."""
    expected = program.expects.get(target, ())
    source = kernel.get_kernel_source() if expected else ""
    for text in expected:
        if text.startswith("not ") and text.removeprefix("not ") in source:
            return f"the kernel's source has it: {text}"
        if not text.startswith("not ") and text not in source and text not in str(kernel.choices):
            return f"neither the kernel's source nor its choices have it: {text}"
    return ""


def _miscounted(program: Program, target: str, kernel: Any) -> str:
    """Of what the emulator counted in the last call, what is not as it has to be."""
    condition = program.counts.get(target)
    if condition is None:
        return ""
    counted = kernel.adapter.statistics
    values = {name: getattr(counted, name) for name in dir(counted) if not name.startswith("_")}
    return "" if eval(condition, {}, values) else f"not {condition}: {counted}"


def _checked(program: Program, target: str, kernel: Any, expected: list[dict[str, Buffer]]) -> str:
    """The mistake in a kernel's results: each call, and the first one again."""
    device = "cuda" if target.startswith("gpu") else "cpu"
    earlier: list[dict[str, np.ndarray]] = []
    for call in (*range(len(expected)), 0):
        kernel.adapter.seed = len(earlier)  # by which emulators order copies in the background
        results = called(kernel, program, call, device)
        if message := _wrong(results, expected[call]):
            return f"call {len(earlier)}: {message}"
        earlier.append(results)
    for name, first in earlier[0].items():
        # Atomic additions of floats come in any order.
        again = earlier[-1][name]
        if "atomic_add" not in program.source and first.tobytes() != again.tobytes():
            return f"{name} differs when the call is repeated"
    return ""


def for_target(program: Program, target: str) -> Program:
    """A generated program with dtypes that a target has: for Metal its float64 is float32."""
    if not target.startswith("metal"):
        return program
    return replace(program, source=program.source.replace("float64", "float32"))


def run(program: Program, target: str, directory: Path, limit: float = 10.0) -> Outcome:
    """Compile a program, call it and compare.

    Parameters
    ----------
    program : Program
        The program; it is found invalid before it is compiled.
    target : str
        One of `TARGETS`.
    directory : Path
        Where its file is written.
    limit : float
        Seconds after which it is slow, of a machine that runs at full speed.
    """
    from tests.fuzz.values import Invalid

    try:
        expected = [program.meaning(call) for call in range(len(program.sizes))]
    except Invalid as error:
        return Outcome("invalid", str(error))
    _prepare(target)
    start = _processor_time()
    outcome = _tried(program, target, directory, expected)
    seconds = _processor_time() - start
    if outcome.kind == "passed" and seconds > limit and seconds > limit * _slowness():
        return Outcome("slow", f"{seconds:.1f} s", seconds)
    return replace(outcome, seconds=seconds)


@functools.cache
def _prepare(target: str) -> None:
    """Compile the emulator itself, which no program is charged with."""
    from tvmtile.emulator.cuda import compile_cuda
    from tvmtile.emulator.metal import compile_msl

    if target.startswith("metal"):
        compile_msl("#include <metal_stdlib>\nkernel void nothing() {}")
    elif "execution_backend" in TARGETS[target]:
        compile_cuda('extern "C" __global__ void nothing() {}')


def _slowness() -> float:
    """The time that this machine takes now, in times that it takes at full speed; at least 1.

    What shares its caches and clocks, other machines too, makes processor time longer.
    """
    times = []
    for _ in range(10):
        start = time.process_time()
        sum(number * number % 7 for number in range(400_000))
        times.append(time.process_time() - start)
    return max(1.0, sum(times) / len(times) / _FULL_SPEED)


def _processor_time() -> float:
    """Seconds of this process and of the compilers that it started, on however busy a machine."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _tried(
    program: Program, target: str, directory: Path, expected: list[dict[str, Buffer]]
) -> Outcome:
    from tvmtile.errors import (
        CudaCompileError,
        CudaEmulationError,
        DataRace,
        MetalCompileError,
        MetalEmulationError,
        TileError,
        TileWarning,
        VerifyError,
    )

    # What a valid program must never meet, although tvmtile raises it.
    defects = (
        CudaCompileError,
        CudaEmulationError,
        MetalCompileError,
        MetalEmulationError,
        VerifyError,
    )
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", TileWarning)
            stack.enter_context(verified())
            kernel = compiled(program, target, directory)
            message = _unexpected(program, target, kernel)
        if not message and target != "nvrtc":
            message = _checked(program, target, kernel, expected) or _miscounted(
                program, target, kernel
            )
    except defects as error:
        return Outcome("internal", f"{type(error).__name__}: {error}")
    except DataRace as error:
        return Outcome("race", f"DataRace: {error}")
    except TileError as error:
        kind = "internal" if "TVM can't compile" in str(error) else "refused"
        return Outcome(kind, f"{type(error).__name__}: {error}")
    except Band as error:
        return Outcome("wrong", str(error))
    except Hung as error:
        return Outcome("hung", str(error))
    except Exception as error:  # noqa: BLE001 - whatever comes is a finding
        where = "".join(traceback.format_exception(error)[-6:])
        return Outcome("internal", f"{type(error).__name__}: {error}\n{where}")
    if message:
        return Outcome("wrong", message)
    return Outcome("passed", is_split=_is_split(program, kernel))


def _is_split(program: Program, kernel: Any) -> bool:
    return "annotate_warp_specialize" in program.source and "mbarrier" in kernel.get_kernel_source()


def verified() -> Any:
    """The invariants between tvmtile's passes are checked."""
    import tvm

    from tvmtile.passes import Verifier

    return tvm.transform.PassContext(instruments=[Verifier()])
