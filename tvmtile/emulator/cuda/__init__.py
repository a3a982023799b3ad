"""Run CUDA kernels on any machine with a C++ compiler, and find what a GPU hides.

`compile_cuda` takes the text of a CUDA source, by whatever it was written, and compiles it for the
host. Calling a kernel runs every thread of its grid and checks every access to memory; what copies move
in the background may be touched only by those that have waited for it.

```
module = compile_cuda(source)
module.kernel("add")(a, b, out, grid=8, block=64)
```

`docs/emulator.md` says what is modelled and what is not.
"""

from typing import Any

from tvmtile.compat import moved_name
from tvmtile.emulator.cuda.module import CudaKernel, CudaModule, CudaStatistics, compile_cuda
from tvmtile.emulator.cuda.tensor_map import NO_MAP, EncodedMap, tensor_map

__all__ = [
    "NO_MAP",
    "CudaKernel",
    "CudaModule",
    "CudaStatistics",
    "EncodedMap",
    "compile_cuda",
    "tensor_map",
]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
