"""Which target a kernel without one is compiled for."""

from __future__ import annotations

from typing import Any

from tvmtile.jit.following import best_target, chosen_target
from tvmtile.target import TargetLike, resolve


def determine_target(target: TargetLike = "auto", return_object: bool = False) -> Any:
    """A target, where "auto" is what `TVMTILE_TARGET` names or else the best device of this machine.

    Parameters
    ----------
    target : str, dict or Target
        As of `tvmtile.compile`.
    return_object : bool
        Return TVM's `Target` in place of what was written.
    """
    if target == "auto":
        target = chosen_target() or best_target()
    return resolve(target) if return_object else target
