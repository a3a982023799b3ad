"""The autotuner: measure configurations of a kernel, and keep the best.

`@tvmtile.autotune(configs=...)` over `@tvmtile.jit`, or `AutoTuner.from_kernel(...).run()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmtile.autotuner.decorator import TunedFunction, autotune
    from tvmtile.autotuner.measuring import get_autotune_inputs, set_autotune_inputs
    from tvmtile.autotuner.result import AutotuneResult, Trial
    from tvmtile.autotuner.tuner import AutoTuner

__all__ = [
    "AutoTuner",
    "AutotuneResult",
    "Trial",
    "TunedFunction",
    "autotune",
    "get_autotune_inputs",
    "set_autotune_inputs",
]

_LAZY = {
    "AutoTuner": "tuner",
    "AutotuneResult": "result",
    "Trial": "result",
    "TunedFunction": "decorator",
    "autotune": "decorator",
    "get_autotune_inputs": "measuring",
    "set_autotune_inputs": "measuring",
}


def __getattr__(name: str) -> Any:
    # A child imports this package, and needs little of it.
    import importlib

    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
