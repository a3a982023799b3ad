"""Kernels: where a thread is in one, groups of threads, launches by hand and of CUDA's source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, is_buffer_var
from tvmtile.errors import InvalidOperand, InvalidValue, NestingError
from tvmtile.frontend.constructs import LoopNest
from tvmtile.frontend.kernel import (
    AXES,
    LAUNCH_TAGS,
    Kernel,
    axis_variable,
    current_kernel,
    kernel_of,
)
from tvmtile.frontend.tracer import current_tracer
from tvmtile.ir.annotations import KERNEL_ANNOTATION
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import variables_of
from tvmtile.ir.threads import WARPGROUP, Group
from tvmtile.ir.types import Index
from tvmtile.language.options import import_source

__all__ = [
    "CUDASourceCodeKernel",
    "ClusterKernel",
    "WarpSpecialize",
    "get_block_binding",
    "get_block_bindings",
    "get_block_extent",
    "get_block_extents",
    "get_cluster_dims",
    "get_cluster_extent",
    "get_cluster_extents",
    "get_cluster_id",
    "get_cluster_ids",
    "get_cluster_size",
    "get_thread_binding",
    "get_thread_bindings",
    "get_thread_extent",
    "get_thread_extents",
    "launch_thread",
    "thread_binding",
    "ws",
]


def ClusterKernel(
    *blocks: Index, cluster_dims: int | Sequence[int], threads: int | Sequence[int] | None = None
) -> Kernel:
    """`T.Kernel` whose blocks come in clusters: `with T.ClusterKernel(8, cluster_dims=2) as bx:`.

    Parameters
    ----------
    *blocks, threads
        As of `T.Kernel`.
    cluster_dims : int or sequence of int
        Blocks of a cluster along x, y and z.
    """
    return Kernel(*blocks, threads=threads, cluster_dims=cluster_dims)


def get_thread_binding(dim: int = 0) -> Any:
    """The thread index along an axis (0: x, 1: y, 2: z); 0 along an axis of one thread."""
    return kernel_of("T.get_thread_binding").axis(f"threadIdx.{AXES[dim]}")[0]


def get_thread_bindings() -> list[Any]:
    """The thread indices along x, y and z."""
    return [get_thread_binding(dim) for dim in range(3)]


def get_thread_extent(dim: int = 0) -> int:
    """Threads along an axis."""
    return kernel_of("T.get_thread_extent").axis(f"threadIdx.{AXES[dim]}")[1]


def get_thread_extents() -> list[int]:
    """Threads along x, y and z."""
    return list(kernel_of("T.get_thread_extents").thread_extents)


def thread_index() -> Any:
    """The number of a thread in its block: `threadIdx.x` counts fastest."""
    x, y, z = get_thread_bindings()
    width, height, _ = get_thread_extents()
    return x + width * (y + height * z)


def get_block_binding(dim: int = 0) -> Any:
    """The block index along an axis of the grid (0: x, 1: y, 2: z); 0 along an axis that it lacks."""
    return kernel_of("T.get_block_binding").axis(f"blockIdx.{AXES[dim]}")[0]


def get_block_bindings() -> list[Any]:
    """The block indices along the axes of the grid."""
    return list(kernel_of("T.get_block_bindings").blocks)


def get_block_extent(dim: int = 0) -> Any:
    """Blocks along an axis of the grid (0: x, 1: y, 2: z)."""
    return kernel_of("T.get_block_extent").axis(f"blockIdx.{AXES[dim]}")[1]


def get_block_extents() -> list[Any]:
    """Blocks along the axes of the grid."""
    return list(kernel_of("T.get_block_extents").block_extents)


def get_cluster_dims() -> list[int]:
    """Blocks of a cluster along x, y and z; 1 each where a block is alone."""
    return kernel_of("T.get_cluster_dims").cluster_dims


def get_cluster_size() -> int:
    """Blocks of a cluster."""
    return kernel_of("T.get_cluster_size").cluster_size


def get_cluster_id(dim: int = 0) -> Any:
    """The index of the block's cluster along an axis of the grid (0: x, 1: y, 2: z)."""
    return get_block_binding(dim) // get_cluster_dims()[dim]


def get_cluster_ids() -> list[Any]:
    """The indices of the block's cluster along the axes of the grid."""
    return [get_cluster_id(dim) for dim in range(len(get_block_bindings()))]


def get_cluster_extent(dim: int = 0) -> Any:
    """Clusters along an axis of the grid."""
    return get_block_extent(dim) // get_cluster_dims()[dim]


def get_cluster_extents() -> list[Any]:
    """Clusters along x, y and z."""
    return [get_cluster_extent(dim) for dim in range(3)]


class _KernelByHand(Kernel):
    """A kernel whose axes are known one by one, as its statements bind them.

    Its body stands in a loop that marks it, in whose place `with_launch` puts the bound ones.
    """

    def __init__(self) -> None:
        super().__init__(threads=1)
        self._bound: dict[str, tuple[ir.Var, Any]] = {}

    def launch(self) -> None:
        marker = self.open(T.serial(1, annotations={KERNEL_ANNOTATION: True}))
        tracer = current_tracer()
        assert tracer is not None
        tracer.launches[marker] = self._bound

    def bind(self, tag: str, extent: Any) -> None:
        """Give the launch an axis, if it lacks it."""
        if tag in self._bound:
            return
        indices, extents, dim = self.place_of(tag)
        indices += [tirx.const(0, "int32")] * (dim + 1 - len(indices))
        extents += [1] * (dim + 1 - len(extents))
        variable = axis_variable(tag, extent)
        indices[dim], extents[dim] = variable, extent
        self._bound[tag] = variable, extent


class _BoundLoop(LoopNest):
    """A loop bound to an axis of the kernel that it stands in, or of one that it begins."""

    takes_rest = True

    def __init__(self, name: str, tag: str, extent: Any) -> None:
        self._name, self._tag, self._extent = name, tag, extent
        self._begun: Kernel | None = None

    def __enter__(self) -> Any:
        kernel = current_kernel()
        if kernel is None:
            kernel = self._begun = _KernelByHand()
            kernel.__enter__()
        if isinstance(kernel, _KernelByHand):
            kernel.bind(self._tag, self._extent)
        index, extent = kernel.axis(self._tag)
        if constant(extent - self._extent) != 0:
            raise InvalidValue(
                f"{self._name}: {self._extent} along {self._tag}, of which the kernel has {extent}",
                help="an axis has one extent, which `with T.Kernel(*blocks, threads=...)` gives",
            )
        return index

    def __exit__(self, *exception: Any) -> None:
        if self._begun is not None:
            self._begun.__exit__(*exception)


def thread_binding(
    start: Any, stop: Any = None, thread: str | None = None, *, annotations: Any = None
) -> Any:
    """A loop whose iterations are the blocks of a grid, or the threads of a block.

    `for bx in T.thread_binding(8, thread="blockIdx.x")` outside of `T.Kernel` begins a kernel, whose
    other axes are bound inside it. In a kernel that has the axis the loop gives its index: all loops
    over an axis are one. As a statement, `tx = T.thread_binding(0, 128, thread="threadIdx.x")`, it
    holds for the statements after it.

    Parameters
    ----------
    start, stop : int or Expr
        The bounds, from 0. The number of threads is constant.
    thread : str
        The axis, `blockIdx.x` to `threadIdx.z`. TVM's other tags are left to TVM.
    annotations : dict, optional
        Annotations of TVM's loop, which such a loop is left to.

    Raises
    ------
    InvalidOperand
        If the loop does not begin at 0, or the number of threads is not constant.
    InvalidValue
        If the kernel has another extent along the axis.
    """
    if thread is None and isinstance(stop, str):
        stop, thread = None, stop
    if stop is None:
        start, stop = 0, start
    if current_tracer() is None or thread not in LAUNCH_TAGS or annotations:
        return T.thread_binding(start, stop, thread, annotations=annotations)
    if constant(start) != 0:
        raise InvalidOperand(
            f"T.thread_binding: the loop over {thread} begins at {start}, not at 0",
            help="bind the number of iterations, and add the first one in the body",
        )
    return _bound("T.thread_binding", thread, stop)


def launch_thread(thread: Any, extent: Any) -> Any:
    """`T.thread_binding` in another order: `tx = T.launch_thread("threadIdx.x", 128)`.

    Parameters
    ----------
    thread : str
        The axis, `blockIdx.x` to `threadIdx.z`. What `T.env_thread` gives is left to TVM.
    extent : int or Expr
        Blocks or threads along it.
    """
    if current_tracer() is None or not isinstance(thread, str) or thread not in LAUNCH_TAGS:
        return T.launch_thread(thread, extent)
    return _bound("T.launch_thread", thread, extent)


def _bound(name: str, tag: str, extent: Any) -> _BoundLoop:
    known = constant(extent)
    if known is None and tag.startswith("threadIdx"):
        raise InvalidOperand(
            f"{name}: {extent} threads along {tag} are not known when the kernel is compiled",
            help="let the number of blocks vary, and guard the last one with `if`",
        )
    return _BoundLoop(name, tag, extent if known is None else known)


@contextmanager
def ws(*warp_group_idx: int) -> Iterator[None]:
    """Let some warpgroups do what follows: `with T.ws(0):`.

    Parameters
    ----------
    *warp_group_idx : int
        The numbers of the warpgroups, of 128 threads each.

    Notes
    -----
    It is the branch on the index of a thread that one would write by hand, `if tx < 128:` for
    `T.ws(0)`. Tile operators in it are the work of these threads, which must follow each other:
    `T.ws(0, 1)`, not `T.ws(0, 2)`.

    Raises
    ------
    NestingError
        If it stands outside `T.Kernel`.
    InvalidValue
        If the block does not have such a warpgroup.
    """
    kernel, tracer = current_kernel(), current_tracer()
    if kernel is None or tracer is None:
        raise NestingError(
            "T.ws stands outside T.Kernel", help="move it into the body of `with T.Kernel(...)`"
        )
    branch = tracer.branch(_is_of(warp_group_idx, kernel.num_threads))
    with branch.then():
        yield
    tracer.end(branch)


WarpSpecialize = ws


def _is_of(numbers: tuple[int, ...], threads: int) -> ir.Expr | None:
    """The condition that a thread is of one of the warpgroups."""
    have = threads // WARPGROUP
    if not numbers or any(not 0 <= number < have for number in numbers):
        raise InvalidValue(
            f"T.ws({', '.join(map(str, numbers))}): a block of {threads} threads has {have} "
            f"warpgroups of {WARPGROUP}",
            help="name one or more of them, counted from 0, or give T.Kernel more threads",
        )
    groups = (Group(number * WARPGROUP, WARPGROUP) for number in sorted(set(numbers)))
    return tirx.any(*(group.admits(thread_index(), threads) for group in groups))


# `extern "C"` and launch bounds belong to an entry; as a function of the device it has neither.
_ENTRY = re.compile(
    r'(?:extern\s+"C"\s+)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+'
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\("
)


def CUDASourceCodeKernel(
    *blocks: Index,
    threads: Any = None,
    source_code_or_path: str | os.PathLike[str],
    entry_name: str = "main_kernel",
    prelude: str | None = None,
) -> None:
    """Launch a `__global__` function of a CUDA source with the parameters of the program.

    It gets the tensors as pointers and the scalars, in their order, and then the dynamic extents, in
    the order in which the tensors name them first. The text becomes a function of the device that the
    launched kernel calls, so it may not ask for dynamic shared memory.

    Parameters
    ----------
    *blocks : int or Expr
        Up to three grid extents.
    threads : int or sequence of int, optional
        Threads of a block.
    source_code_or_path : str or path
        The source, or the name of a file with it.
    entry_name : str
        Which function of it.
    prelude : str, optional
        Text before the source.

    Raises
    ------
    InvalidOperand
        If the source has no such function.
    NestingError
        Outside a program.
    """
    source = (prelude + "\n" if prelude else "") + _source(source_code_or_path)
    entries = _ENTRY.findall(source)
    if entry_name not in entries:
        raise InvalidOperand(
            f"T.CUDASourceCodeKernel: the source has no entry {entry_name!r}. "
            f"Available entries: {', '.join(entries) or 'none'}",
            help="name a `__global__ void` function of the source by entry_name",
        )
    arguments = _arguments()
    with Kernel(*blocks, threads=threads):
        import_source(_ENTRY.sub(r"__device__ __forceinline__ void \1(", source))
        T.evaluate(tirx.call_extern("void", entry_name, *arguments))


def _source(code_or_path: str | os.PathLike[str]) -> str:
    if isinstance(code_or_path, os.PathLike):
        return Path(code_or_path).read_text(encoding="utf-8")
    is_name = "\n" not in code_or_path and "{" not in code_or_path
    if is_name and Path(code_or_path).is_file():
        return Path(code_or_path).read_text(encoding="utf-8")
    return code_or_path


def _arguments() -> list[ir.Expr]:
    """The parameters of the program being written, and the variables in their extents."""
    program = next((f for f in IRBuilder.current().frames if hasattr(f, "args")), None)
    if program is None:
        raise NestingError(
            "T.CUDASourceCodeKernel stands outside a program", help="use it in a T.prim_func"
        )
    params = list(program.args)
    tensors = [param for param in params if is_buffer_var(param)]
    extents: dict[ir.Var, None] = {}
    for tensor in tensors:
        for extent in tensor.ty.shape:
            extents.update(dict.fromkeys(variables_of(extent)))
    scalars = [var for var in extents if not any(var.same_as(param) for param in params)]
    return [param.data if is_buffer_var(param) else param for param in params] + scalars
