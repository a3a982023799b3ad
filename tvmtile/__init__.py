"""tvmtile: tile-level GPU kernels as a plugin for Apache TVM.

`import tvmtile.language as T` is the language; `tvmtile.jit` and `tvmtile.compile` make kernels that
torch tensors can be given to; `tvmtile.passes.LowerTilePrograms` lowers tile programs in any TVM flow.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from tvmtile._loading import spare_the_driver

if TYPE_CHECKING:
    import tvm
    from tvm import DataType

    from tvmtile._version import __version__
    from tvmtile.autotuner import autotune
    from tvmtile.cache import clear_cache, disable_cache, enable_cache, is_cache_enabled
    from tvmtile.engine.callback import register_cuda_postproc
    from tvmtile.jit import CompiledArtifact, JITKernel, Kernel, compile, jit, lower, par_compile  # noqa: A004 - TileLang calls it so too
    from tvmtile.jit.torch_op import torch_op
    from tvmtile.layout import Fragment, Layout
    from tvmtile.layout.plot import plot_layout
    from tvmtile.library import load
    from tvmtile.math import cdiv, next_power_of_2
    from tvmtile.profiler import Profiler, TensorSupplyType
    from tvmtile.transform import PassConfigKey
    from tvmtile.utils.log import set_log_level

__all__ = [
    "CompiledArtifact",
    "DataType",
    "Fragment",
    "JITKernel",
    "Kernel",
    "Layout",
    "PassConfigKey",
    "Profiler",
    "TensorSupplyType",
    "__version__",
    "autotune",
    "cdiv",
    "clear_cache",
    "compile",
    "disable_cache",
    "enable_cache",
    "is_cache_enabled",
    "jit",
    "load",
    "lower",
    "next_power_of_2",
    "par_compile",
    "plot_layout",
    "register_cuda_postproc",
    "set_log_level",
    "torch_op",
    "tvm",
]

STARTED = time.time()
"""When this process read the first of tvmtile's sources."""

spare_the_driver()

_LAZY = {
    "CompiledArtifact": "jit",
    "DataType": "frontend.dtypes",
    "Fragment": "layout",
    "JITKernel": "jit",
    "Kernel": "jit",
    "Layout": "layout",
    "PassConfigKey": "transform",
    "Profiler": "profiler",
    "TensorSupplyType": "profiler",
    "__version__": "_version",
    "autotune": "autotuner",
    "cdiv": "math",
    "compile": "jit",
    "clear_cache": "cache",
    "disable_cache": "cache",
    "enable_cache": "cache",
    "is_cache_enabled": "cache",
    "load": "library",
    "lower": "jit",
    "next_power_of_2": "math",
    "par_compile": "jit",
    "plot_layout": "layout.plot",
    "register_cuda_postproc": "engine.callback",
    "set_log_level": "utils.log",
    "torch_op": "jit.torch_op",
}
_SUBMODULES = (
    "autotuner",
    "cache",
    "carver",
    "contrib",
    "cuda",
    "engine",
    "env",
    "errors",
    "jit",
    "language",
    "layout",
    "math",
    "ops",
    "passes",
    "profiler",
    "relax",
    "target",
    "testing",
    "tileop",
    "tools",
    "torch",
    "transform",
    "utils",
)


def __getattr__(name: str) -> Any:
    # TVM loads this package while it is being imported itself (see _plugin), so that nothing of it
    # can be imported here.
    import importlib

    if name == "tvm":
        return importlib.import_module("tvm")
    if name in _LAZY:
        return getattr(importlib.import_module(f"tvmtile.{_LAZY[name]}"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"tvmtile.{name}")
    from tvmtile.absent import no_attribute

    raise no_attribute("tvmtile", sys.modules[__name__], name)


def __dir__() -> list[str]:
    """What completion offers: the public names, loaded or not."""
    return sorted({*__all__, *_SUBMODULES})
