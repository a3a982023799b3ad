"""Run Metal kernels on any machine with a C++ compiler, and find what a GPU hides.

`compile_msl` takes the text of a Metal source, by whatever it was written, and compiles it for the
host. Calling a kernel runs every thread of its grid and checks every access to memory: races, bounds,
alignment, memory never written, barriers that not all threads reach.

```
module = compile_msl(source)
module.kernel("add")(a, b, out, grid=(8, 1, 1), threads=(64, 1, 1))
```

What would end the process, a division by zero or a stack that overflows, is an error of the launch, and
so is a threadgroup that takes more than a minute of processor time (`MetalKernel.__call__`, `seconds`).

The emulator follows the Metal Shading Language Specification. It is strict where hardware forgives,
and knows nothing of speed. What it can't show: the rounding of Apple's matrix units and fast
mathematics (it computes in float32), threads that wait for each other by spinning on atomics, and
functions that only some lanes of a simdgroup call on purpose, which it reports.
"""

from typing import Any

from tvmtile.compat import moved_name
from tvmtile.emulator.metal.module import MetalKernel, MetalModule, MetalStatistics, compile_msl

__all__ = ["MetalKernel", "MetalModule", "MetalStatistics", "compile_msl"]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
