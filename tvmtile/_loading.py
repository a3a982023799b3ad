"""Load `tvm_ffi`, where tvmtile is imported first, without a question to CUDA's driver.

It asks torch whether there is a GPU. Torch asks the driver, after which no process that this one forks
can use CUDA; where a variable says so, it asks NVML instead, which leaves no trace.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["spare_the_driver"]

STARTED = time.time()
"""When this process read the first of tvmtile's sources: this is one."""

_PACKAGE = "tvm_ffi"
_VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"


def spare_the_driver() -> None:
    """Set torch's variable while `tvm_ffi` is loaded, whenever that is, and at no other time."""
    if _PACKAGE not in sys.modules and _VARIABLE not in os.environ:
        sys.meta_path.insert(0, _PackageFinder())


class _PackageFinder(MetaPathFinder):
    """Finds one package, once."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != _PACKAGE or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            run: Callable[[ModuleType], None] = spec.loader.exec_module
            loader: object = spec.loader  # of this package alone
            vars(loader)["exec_module"] = _with_nvml()(run)
        return spec


@contextmanager
def _with_nvml() -> Iterator[None]:
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
