"""Targets: what one is, and what it can do.

No other package asks for an architecture, a vendor or a feature string.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from tvm.target import Target, codegen

from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import UnknownTarget, reason_of
from tvmtile.ir.threads import MAX_THREADS, WARP_SIZE
from tvmtile.target.capabilities import (
    ARCHITECTURES,
    CUDA_MOST_BLOCKS,
    CUDA_NAMED_BARRIERS,
    HALF_BYTES,
    METAL4_KEY,
    CpuCapability,
    GpuCapability,
    compute_capability,
    cpu,
    gpu,
    no_gpu,
)

__all__ = [
    "CUDA_MOST_BLOCKS",
    "CUDA_NAMED_BARRIERS",
    "HALF_BYTES",
    "HOW_WRITTEN",
    "TORCH_DEVICES",
    "CpuCapability",
    "GpuCapability",
    "TargetLike",
    "compute_capability",
    "cpu",
    "gpu",
    "host_target",
    "parse",
    "require_lowering",
    "resolve",
    "runs_here",
    "target_kinds",
    "with_host",
]

TargetLike: TypeAlias = str | Mapping[str, Any] | Target
"""A target as one may write it."""

TORCH_DEVICES = {"llvm": "cpu", "metal": "mps", "cuda": "cuda"}
"""The kinds of targets, and where torch has the tensors of their kernels."""
# TVM's own numbers for `metal`, 16 and 256, are those of GPUs before Apple's.
_APPLE = {
    "kind": "metal",
    "thread_warp_size": WARP_SIZE,
    "max_threads_per_block": MAX_THREADS,
    "max_num_threads": MAX_THREADS,
}
_ALIASES: dict[str, Any] = {
    "cpu": "llvm",
    "c": "llvm",
    "metal": _APPLE,
    "mps": _APPLE,
    "metal4": {**_APPLE, "keys": [METAL4_KEY, "metal", "gpu"]},
    **{arch: {"kind": "cuda", "arch": arch} for arch in ARCHITECTURES},
}
HOW_WRITTEN = (
    "llvm (this machine), metal, metal4, cuda (the GPU that is here), an architecture as sm_90a, "
    'or all of it as {"kind": "cuda", "arch": "sm_90a"}'
)
"""The ways to name a target, in words."""


def target_kinds() -> tuple[str, ...]:
    """The kinds of target that tile programs can be lowered for."""
    return tuple(TORCH_DEVICES)


@lru_cache(maxsize=1)
def host_target() -> Target:
    """The machine this runs on, with all instructions that its processor has."""
    return _optimised(Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()}))


def _optimised(target: Target) -> Target:
    """A CPU's target with the level of optimisation that LLVM is right at, where none is asked for.

    At its third level LLVM 22 drops the mask of an index like `j * 5 % 16` in some loops for CPUs with
    AVX-512. The second one is as fast.
    """
    if "opt-level" in target.attrs or not cpu(target).truncates_masked:
        return target
    return Target({**json.loads(str(target)), "opt-level": 2})


def resolve(target: TargetLike | None) -> Target:
    """Understand a target however it is written.

    Parameters
    ----------
    target : str, dict, Target or None
        None, "cpu", "llvm" and "auto" mean the machine this runs on, and so does "c", for which
        TileLang makes C where this makes machine code. "metal" and "mps" are Apple's GPUs,
        "metal4" those from M5 on, as `{"kind": "metal", "keys": ["metal4", "metal", "gpu"]}` does.
        "cuda" is this machine's NVIDIA GPU; "sm_90a", or `{"kind": "cuda", "arch": "sm_90a"}`, one that
        may be elsewhere, with the letter that gives access to instructions of this one architecture.
        `{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}` is a CPU that may be elsewhere.
        A GPU's target without a host gets this machine as its host. A CPU with AVX-512 gets LLVM's
        second level of optimisation, unless it has an `opt-level`.

    Raises
    ------
    UnknownTarget
        If TVM has no such target, or tile programs can't be lowered for it, or there is no GPU for
        "cuda", or the addresses of its CPU have 32 bits.
    """
    if target is None or target in ("cpu", "llvm", "auto"):
        return host_target()
    resolved = parse(target)
    if resolved.kind.name == "c":
        return host_target()
    if resolved.kind.name in ("metal", "cuda") and resolved.host is None:
        return resolved.with_host(host_target())
    require_lowering(resolved)
    return _optimised(resolved)


def with_host(target: Target) -> Target:
    """A target with a host: that of this machine where it names none."""
    if target.kind.name == "llvm":
        return target.with_host(target)
    return target if target.host is not None else target.with_host(host_target())


def require_lowering(target: Target) -> None:
    """Refuse a target that tile programs can't be lowered for.

    Raises
    ------
    UnknownTarget
        For its kind, or since the addresses of its CPU have 32 bits.
    """
    if target.kind.name not in TORCH_DEVICES:
        raise UnknownTarget(
            f"tile programs can't be lowered for {target.kind.name!r}",
            help=f"the targets of tile programs are {HOW_WRITTEN}",
        )
    architecture = _machine(target)[0]
    if "64" not in architecture or architecture.startswith("wasm"):
        raise UnknownTarget(
            f"tile programs can't be lowered for {architecture}",
            help="they need a CPU with 64-bit addresses and threads, as x86_64, aarch64 and riscv64",
        )


_SAME_ARCHITECTURE = {"arm64": "aarch64", "arm64e": "aarch64", "amd64": "x86_64"}
_SYSTEMS = ("linux", "darwin", "macos", "windows", "ios", "android")
_SAME_SYSTEM = {"macos": "darwin"}


def runs_here(target: Target) -> bool:
    """Tell whether this machine's CPU can run what is compiled for a target, or for its host."""
    return _machine(target) == _machine(host_target())


def _machine(target: Target) -> tuple[str, str]:
    """The architecture and the system of a target's CPU, or of its host's."""
    cpu = target if target.kind.name == "llvm" else target.host or host_target()
    triple = str(cpu.attrs.get("mtriple") or codegen.llvm_get_system_triple()).lower()
    architecture, *others = triple.split("-")
    systems = (name for part in others for name in _SYSTEMS if part.startswith(name))
    system = next(systems, "")
    return _SAME_ARCHITECTURE.get(architecture, architecture), _SAME_SYSTEM.get(system, system)


def parse(target: TargetLike) -> Target:
    """A target that TVM knows, whether or not tile programs can be lowered for it.

    Raises
    ------
    UnknownTarget
        If TVM does not know it, or it is CUDA without an architecture on a machine without a GPU.
    """
    if isinstance(target, str):
        target = _ALIASES.get(target, target)
    if _leaves_architecture_open(target) and not has_gpu():
        raise no_gpu()
    try:
        return Target(target)
    except Exception as error:  # TVM raises several kinds
        near = _nearest(target)
        last = str(error).strip().splitlines()[-1].partition(" Target creation from ")[0]
        reason = reason_of(ValueError(last))
        raise UnknownTarget(
            f"there is no target {target!r}: {reason}",
            help=(f"did you mean {near}? " if near else "")
            + f"The targets of tile programs are {HOW_WRITTEN}",
        ) from error


def _nearest(target: TargetLike) -> str:
    """The target that may have been meant, as it is written; "" where nothing is near."""
    mapping = target if isinstance(target, Mapping) else {}
    kind, arch = str(mapping.get("kind", "")), str(mapping.get("arch", ""))
    # An option of the command lines that TVM had is the last word: `cuda -arch=sm_90a`.
    word = arch if kind == "cuda" else kind or str(target).split("=")[-1]
    known = ARCHITECTURES if kind == "cuda" else (*_ALIASES, *TORCH_DEVICES)
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.7)
    return repr(near[0]) if near else ""


def _leaves_architecture_open(target: TargetLike) -> bool:
    """Tell whether it is for the NVIDIA GPU that is here, whichever that is."""
    if isinstance(target, dict):
        return target.get("kind") == "cuda" and "arch" not in target
    return bool(target == "cuda")
