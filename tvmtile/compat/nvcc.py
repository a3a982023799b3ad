"""TileLang's `contrib.nvcc`, which kernels ask for the instructions of an NVIDIA GPU."""

from __future__ import annotations

from tvm.target import Target

from tvmtile.compat.utils import determine_target
from tvmtile.errors import InvalidValue
from tvmtile.target import TargetLike, compute_capability


def get_target_compute_version(target: TargetLike | None = None) -> str:
    """The compute capability of a target, as "9.0".

    Parameters
    ----------
    target : str, dict or Target, optional
        TVM's current target where absent, then the best device of this machine.

    Returns
    -------
    str
        "0.0" for what is no NVIDIA GPU.
    """
    number = _number(target)
    return f"{number // 10}.{number % 10}"


def parse_compute_version(compute_version: str) -> tuple[int, int]:
    """The two numbers of a compute capability: (9, 0) of "9.0".

    Raises
    ------
    InvalidValue
        For anything else.
    """
    major, dot, minor = compute_version.partition(".")
    if not (dot and major.isdigit() and minor.isdigit()):
        raise InvalidValue(
            f"{compute_version!r} is no compute capability", help='write it as "9.0"'
        )
    return int(major), int(minor)


def have_bf16(compute_version: str) -> bool:
    """Tell whether a GPU multiplies matrices of bfloat16."""
    return parse_compute_version(compute_version) >= (8, 0)


def have_fp8(compute_version: str) -> bool:
    """Tell whether a GPU multiplies matrices of float8."""
    return parse_compute_version(compute_version) >= (8, 9)


def have_tma(target: TargetLike) -> bool:
    """Tell whether a target has bulk copies of tensors by a copy engine."""
    return _number(target) >= 90


def is_hopper(target: TargetLike) -> bool:
    """Tell whether a target is of compute capability 9.0."""
    return _number(target) == 90


def _number(target: TargetLike) -> int:
    resolved = determine_target(target or Target.current() or "auto", return_object=True)
    return compute_capability(resolved) if resolved.kind.name == "cuda" else 0
