"""Kernels without a target: they run where the tensors are that they are called with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from tvm import ir, tirx

from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import ArgumentError
from tvmtile.jit.backends import mps_is_available
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.signature import KernelSignature
from tvmtile.target import TORCH_DEVICES

_TARGETS = {**{device: kind for kind, device in TORCH_DEVICES.items()}, "metal": "metal"}
"""Of devices of torch, and of TVM's, whose name for Apple's GPU is the last."""
_SEEN: dict[object, str] = {}
"""The targets of devices that tensors were on. A cache of functools would make torch.compile warn."""


def chosen_target() -> Any:
    """The target that `TVMTILE_TARGET` names for kernels without one, or None.

    It is what `tvmtile.compile` takes: a name, or a dictionary as JSON.
    """
    written = os.environ.get("TVMTILE_TARGET", "")
    return json.loads(written) if written.startswith("{") else written or None


def best_target() -> str:
    """The target of this machine's GPU, of its CPU where it has none that tile programs run on."""
    if has_gpu():
        return "cuda"
    return "metal" if sys.platform == "darwin" and mps_is_available() else "llvm"


def target_of(arguments: Iterable[object]) -> str | None:
    """The target of the GPU that a tensor is on, else of the CPU; None where there is no tensor."""
    target = None
    for argument in arguments:
        device = getattr(argument, "device", None)
        if device is not None or hasattr(argument, "shape"):
            target = target_on(device)
            if target != "llvm":
                break
    return target


def target_on(device: object) -> str:
    """The target of a device of torch's, numpy's or TVM's; numpy before its second version has none."""
    target = _SEEN.get(device)
    if target is None:
        target = _SEEN[device] = _TARGETS.get(str(device).partition(":")[0], "llvm")
    return target


class FollowingKernel(Kernel):
    """A kernel that is built for the kind of device of its tensors, once for each kind.

    Its attributes are those of the build that was called last, before any call of the best one that
    this machine has.
    """

    def __init__(
        self,
        prim_func: tirx.PrimFunc,
        out_idx: tuple[int, ...],
        compile_for: Callable[[str], Kernel],
    ) -> None:
        self.prim_func = prim_func
        self.out_idx = out_idx
        self.signature = KernelSignature.of(prim_func, out_idx)
        self.name = self.signature.name
        self._compile_for = compile_for
        self._builds: dict[str, Kernel] = {}
        self._on_devices: dict[object, Kernel] = {}
        self._last: Kernel | None = None

    def __call__(self, *args: Any, **named: object) -> Any:
        """Run the kernel where its tensors are; see `Kernel.__call__`."""
        if named:
            placed = self.signature.bind(args, named)
            if isinstance(placed, ArgumentError):
                raise placed  # here, so that no frames of ours follow
            args = placed
        # A tensor on a GPU decides; of the others, a later one may be on a GPU.
        device = getattr(args[0], "device", None) if args else None
        kernel = self._on_devices.get(device)
        if kernel is None:
            target = target_of(args) or best_target()
            kernel = self._build(target)
            if device is not None and target_on(device) != "llvm":
                self._on_devices[device] = kernel
        self._last = kernel
        return kernel(*args)

    def _build(self, target: str) -> Kernel:
        kernel = self._builds.get(target)
        if kernel is None:
            kernel = self._builds[target] = self._compile_for(target)
        return kernel

    def __getattr__(self, name: str) -> Any:
        if name not in ("adapter", "artifact", "target"):
            raise AttributeError(f"a kernel has no {name!r}")
        return getattr(self._last or self._build(best_target()), name)

    def _where(self) -> str:
        return "the device of its tensors"

    @property
    def module(self) -> Any:
        """What TVM built."""
        return (self._last or self._build(best_target())).module

    @property
    def lowering(self) -> list[tuple[str, ir.IRModule]]:
        """Each pass that the program went through, with the module after it."""
        return (self._last or self._build(best_target())).lowering
