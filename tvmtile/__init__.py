"""tvmtile: tile-level GPU kernels as a plugin for Apache TVM.

`import tvmtile.language as T` is the language; `tvmtile.jit` and `tvmtile.compile` make kernels that
torch tensors can be given to; `tvmtile.passes.LowerTilePrograms` lowers tile programs in any TVM flow.

Glossary
--------
block
    The threads that share memory and wait for each other: a CUDA block, a Metal threadgroup.
choice
    Which lowering an operator takes, with the reasons of those that declined: `kernel.choices`.
decline
    A lowering, or a schedule, says why it does not fit: `Decline`.
effect
    What a statement does to a buffer: it reads or writes a region, under guards, in loops: `Effect`.
element operator
    An operator on one element, such as an atomic, which stands in expressions.
emulator
    The text of a GPU kernel, compiled for this machine, with races, bounds and initial values checked.
fragment
    A tile that the threads of a block hold in registers, by its layout.
group
    Whole warps that do a region of a program together; a block has one unless branches make more.
guard
    The condition that keeps an access inside of a tensor: zero is read and nothing written outside.
handover
    What a group leaves in memory for another one, in an order that mbarriers ensure.
kernel
    One `T.Kernel`: a loop over blocks, marked by an annotation; a program may have several.
kernel options
    What an author asks of the compiler for a whole kernel, which changes no result: `KernelOptions`.
launch
    The start of a kernel's blocks; in TIR, the loops that are bound to blocks and threads: `Launch`.
layout
    Where the elements of a tile lie: in shared memory, or in which thread and register.
lowering
    One implementation of an operator on one kind of target, with what it declares: `Lowering`.
mbarrier
    NVIDIA's barrier in shared memory: threads arrive at it and copies complete on it, in phases.
name
    A variable for a value that is computed where it is bound, as `x = a + b`: TVM's `Bind`.
nest
    Elementwise loops whose iterations have no order, before they are distributed.
opaque
    Written so that TVM or LLVM does not look into it; costs nothing.
panel
    Columns that are taken together: of a swizzled tile 128 bytes a row at most, of a packed operand.
parity
    The lowest bit of the number of an mbarrier's phase, by which threads wait for its end.
persistent block
    One of as many blocks as run at once, which loops over the blocks of the grid.
phase (of an mbarrier)
    The time until all have arrived that it counts; the next one begins then.
phase (of the lowering)
    A part of the passes, with a form that comes out of it: `tvmtile.pipeline.PHASES`.
piece
    16 contiguous bytes of a shared tile's row, which a swizzle moves as one.
region
    A box of a buffer: the operand of a tile operator.
ring
    The copies of a tile, one a stage, which a pipelined loop fills and reads in turn.
role
    What the warps of a group do in a specialised kernel: producers copy, consumers compute.
rule
    A construct that a tool gets wrong, or a target lacks, and its other form: `passes.legalize`.
schedule
    In which order roles go through the units of a pipelined loop, and the rings between: `Schedule`.
slot
    One of the copies of a tile in a ring: iteration `k` has slot `k % n`.
stage
    How many iterations ahead a statement of a pipelined loop runs.
swizzle
    A layout of shared memory, or an order of blocks, that spreads neighbours.
tensor map
    The host's description of a tensor for bulk copies (TMA).
tile
    A part of a tensor that a block works on: in shared memory, in registers, or private to a thread.
tile operator
    An intrinsic of TIR on tiles, `tvmtile.copy`; `TileOp` is its protocol.
tile program
    A `PrimFunc` with a kernel in it: what users write and the passes lower.
token
    What names asynchronous work between its issue, its signal and the wait for it.
unit
    A statement of a pipelined loop, with what it reads and writes, which a schedule moves as one.
view
    Another name, shape or dtype for the memory of a buffer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tvmtile._loading import spare_the_driver
from tvmtile.compat import PATHS, install

if TYPE_CHECKING:
    import tvm
    from tvm import DataType

    from tvmtile._version import __version__
    from tvmtile.autotuner import autotune
    from tvmtile.cache import clear_cache, disable_cache, enable_cache, is_cache_enabled
    from tvmtile.compat.engine import register_cuda_postproc
    from tvmtile.compat.transform import PassConfigKey
    from tvmtile.compat.utils import set_log_level
    from tvmtile.jit import CompiledArtifact, JITKernel, Kernel, compile, jit, lower, par_compile  # noqa: A004 - TileLang calls it so too
    from tvmtile.jit.torch_op import torch_op
    from tvmtile.layout import Fragment, Layout
    from tvmtile.layout.plot import plot_layout
    from tvmtile.library import load
    from tvmtile.math import cdiv, next_power_of_2
    from tvmtile.profiler import Profiler, TensorSupplyType

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

spare_the_driver()
install()

_LAZY = {
    "CompiledArtifact": "jit",
    "DataType": "frontend.dtypes",
    "Fragment": "layout",
    "JITKernel": "jit",
    "Kernel": "jit",
    "Layout": "layout",
    "PassConfigKey": "compat.transform",
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
    "register_cuda_postproc": "compat.engine",
    "set_log_level": "compat.utils",
    "torch_op": "jit.torch_op",
}
_SUBMODULES = (
    "autotuner",
    "cache",
    "carver",
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
    "torch",
    *(path for path in PATHS if "." not in path),
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
    from tvmtile.compat.absent import no_attribute

    raise no_attribute("tvmtile", sys.modules[__name__], name)


def __dir__() -> list[str]:
    """The names that completion offers: the public ones, loaded or not."""
    return sorted({*__all__, *_SUBMODULES})
