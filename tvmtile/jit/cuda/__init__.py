"""CUDA programs: how NVRTC compiles them without a toolkit, and how TVM's runtime runs them.

A kernel can be compiled and looked at on any machine; running it takes a GPU.
"""

from tvmtile.jit.cuda.adapter import CudaAdapter
from tvmtile.jit.cuda.compilation import Compilation, compiling
from tvmtile.jit.cuda.nvrtc import Binary, compile_source

__all__ = [
    "Binary",
    "Compilation",
    "CudaAdapter",
    "compile_source",
    "compiling",
]
