"""`configs="auto"`: what a model proposes for a function, by the names of its parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tvm import tirx

from tvmtile.carver.arch import TileDevice
from tvmtile.carver.recognition import template_of
from tvmtile.carver.roller import Hint, NoRasterization
from tvmtile.errors import InvalidValue

__all__ = ["proposals", "tunable"]

_BLOCK = r"(block|blk|tile|b)_?"
_ROLES = {
    "M": _BLOCK + r"(m|q|rows?)",
    "N": _BLOCK + r"(n|kv|cols?|columns?)",
    "K": _BLOCK + r"k",
    "size": r"(block|blk|tile)(_?size)?",
    "stages": r"(num_?|n_?)?(pipeline_)?stages?",
    "threads": r"(num_?|n_?)?threads?(_num|_count)?",
    "panels": r"enable_raster\w*|(use_|enable_)?swizzle",
}
"""What a parameter is, by its name in any case."""
_PROBE = {"M": 64, "N": 64, "K": 32, "size": 64, "stages": 2, "threads": 128, "panels": False}


def tunable(parameters: Iterable[str]) -> dict[str, object]:
    """The parameters that a model can choose, by name, with values that most kernels take."""
    return {name: _PROBE[role] for name, role in _roles(parameters).items()}


def proposals(
    trace: Callable[[Mapping[str, Any]], tirx.PrimFunc],
    parameters: Iterable[str],
    device: TileDevice,
    topk: int = 20,
) -> list[dict[str, Any]]:
    """The best guesses for a function, the best first.

    Parameters
    ----------
    trace : callable
        Makes the program of a configuration.
    parameters : iterable of str
        Those of the function that have no value yet.
    device : TileDevice
        Where it runs.
    topk : int
        How many, at most.

    Raises
    ------
    InvalidValue
        If none of the parameters is one that a model can choose.
    """
    roles = _roles(parameters)
    if not roles:
        raise InvalidValue("configs='auto' finds nothing to choose", help=_KNOWN)
    template = template_of(trace(tunable(roles))).with_arch(device)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for hint in template.recommend_hints(topk=1 << 16):
        config = {name: _value(role, hint, device) for name, role in roles.items()}
        found.setdefault(tuple(config.values()), config)
        if len(found) == topk:
            break
    return list(found.values())


_KNOWN = (
    "it knows parameters by names like block_M, block_N, block_K, block, num_stages, threads and "
    "enable_rasterization"
)


def _roles(parameters: Iterable[str]) -> dict[str, str]:
    found = {name: _role_of(name) for name in parameters}
    return {name: role for name, role in found.items() if role is not None}


def _role_of(name: str) -> str | None:
    return next(
        (role for role, names in _ROLES.items() if re.fullmatch(names, name, re.IGNORECASE)), None
    )


def _value(role: str, hint: Hint, device: TileDevice) -> Any:
    if role == "threads":
        return hint.threads
    if role == "panels":
        return not isinstance(hint.rasterization_plan, NoRasterization)
    if role == "stages":
        return 0 if device.platform == "CPU" or hint.pipeline_stage == 1 else hint.pipeline_stage
    if role == "K":
        return hint.rstep[0] if hint.rstep else hint.block[-1]
    if role == "N":
        return hint.block[1] if len(hint.block) > 1 else (hint.rstep or hint.block)[0]
    return hint.block[-1 if role == "size" and not hint.rstep else 0]
