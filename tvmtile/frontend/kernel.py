"""`T.Kernel`: the grid and the threads of a kernel, and the bindings inside it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand, InvalidValue, NestingError
from tvmtile.frontend.proxy import Indices
from tvmtile.frontend.tracer import current_tracer
from tvmtile.frontend.values import as_count
from tvmtile.ir.annotations import CLUSTER_ANNOTATION, KERNEL_ANNOTATION
from tvmtile.ir.operands import literal
from tvmtile.ir.types import Index

__all__ = [
    "ClusterKernel",
    "Kernel",
    "current_kernel",
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
]


AXES = "xyz"
_DEFAULT_THREADS = 128
_MAX_CLUSTER = 8
"""CUDA C++ Programming Guide, "Thread Block Clusters": the largest size that all GPUs have."""
_STATE = threading.local()


def current_kernel() -> Kernel | None:
    """The `T.Kernel` being written on this thread, or None."""
    return getattr(_STATE, "kernel", None)


class Kernel:
    """The launch of a kernel: `with T.Kernel(grid_x, grid_y, threads=128) as (bx, by):`.

    Parameters
    ----------
    *blocks : int or Expr
        Up to three grid extents, in the order x, y, z; one block where there are none.
    threads : int or sequence of int, optional
        Threads of a block, up to three extents; 128 where absent. A CPU has no threads: there a
        block is one task.
    is_cpu : bool
        Accepted for TileLang's kernels; the target decides.
    prelude : str, optional
        Accepted for TileLang's kernels with one warning: the code before a kernel is generated.
    cluster_dims : int or sequence of int, optional
        Blocks of a cluster along x, y and z, at most 8: neighbours that an NVIDIA GPU from Hopper on
        runs at the same time, next to each other. It changes no result; other targets say once that
        they have no clusters.

    Attributes
    ----------
    block_extents, thread_extents : list
        Blocks along the axes of the grid; threads along x, y and z.
    blocks, threads : list
        The indices along them; 0 along an axis of one thread other than x.

    Returns
    -------
    Var or list of Var
        The block indices: one variable for one axis, else a list.

    Raises
    ------
    NestingError
        If the kernel is written inside another one, or outside of a program.
    InvalidOperand
        If there are no or more than three axes, or extents that are not positive integers.
    InvalidValue
        If the grid does not consist of whole clusters.
    """

    def __init__(
        self,
        *blocks: Index,
        threads: int | Sequence[int] | None = None,
        is_cpu: bool = False,
        prelude: str | None = None,
        cluster_dims: int | Sequence[int] | None = None,
    ) -> None:
        del is_cpu
        warn_ignored("T.Kernel", prelude=prelude)
        if len(blocks) > 3:
            raise InvalidOperand(
                f"T.Kernel takes up to three grid extents, not {len(blocks)}",
                help="fold further axes into one of the three and split its index in the kernel",
            )
        self._has_grid = bool(blocks)
        self.block_extents = [_grid_extent(extent) for extent in blocks or (1,)]
        self.thread_extents = _thread_extents(threads)
        self._cluster = _cluster(cluster_dims, self.block_extents)
        self._frames: list[Any] = []
        self.blocks: list[Any] = []
        self.threads: list[Any] = []
        self.parallel_depth = 0
        self.parallel_variables: list[ir.Var] = []
        self.random_state: Any = None  # of `T.rng_init`
        self.options: dict[str, Any] = {}  # by the names of `KernelOptions`

    def __enter__(self) -> Any:
        if current_kernel() is not None:
            raise NestingError(
                "T.Kernel stands inside another T.Kernel",
                help="write the kernels one after the other in the function",
            )
        if not IRBuilder.is_in_scope():
            raise NestingError(
                "T.Kernel stands outside of a program",
                help="write it in a function under @T.prim_func or @tvmtile.jit",
            )
        tracer = current_tracer()
        if tracer is not None:
            tracer.enter_kernel(self.options)
        self.launch()
        _STATE.kernel = self
        if not self._has_grid:
            return []
        return self.blocks[0] if len(self.blocks) == 1 else Indices(self.blocks)

    def launch(self) -> None:
        """Open the loops over blocks and threads."""
        for axis, extent in zip(AXES, self.block_extents, strict=False):
            annotations: dict[str, object] = {KERNEL_ANNOTATION: True} if axis == "x" else {}
            if axis == "x" and self._cluster is not None:
                annotations[CLUSTER_ANNOTATION] = self._cluster
            self.blocks.append(self._bind(extent, f"blockIdx.{axis}", f"b{axis}", annotations))
        for axis, count in zip(AXES, self.thread_extents, strict=True):
            alone = axis != "x" and count == 1
            self.threads.append(
                tirx.const(0, "int32")
                if alone
                else self._bind(count, f"threadIdx.{axis}", f"t{axis}", None)
            )

    def open(self, frame: Any) -> Any:
        """Enter a frame of TVM's builder that ends with the kernel."""
        value = frame.__enter__()
        self._frames.append(frame)
        return value

    def _bind(self, extent: Any, tag: str, name: str, annotations: Any) -> ir.Var:
        variable = self.open(T.thread_binding(extent, thread=tag, annotations=annotations))
        IRBuilder.name(name, variable)
        return variable

    def axis(self, tag: str) -> tuple[Any, Any]:
        """The index and the extent along an axis, such as `blockIdx.y`; 0 and 1 where it is lacking."""
        indices, extents, dim = self.place_of(tag)
        return (indices[dim], extents[dim]) if dim < len(indices) else (tirx.const(0, "int32"), 1)

    def place_of(self, tag: str) -> tuple[list[Any], list[Any], int]:
        """The indices and extents of blocks or of threads, and where in them an axis is."""
        place, _, axis = tag.partition(".")
        is_block = place == "blockIdx"
        indices = self.blocks if is_block else self.threads
        extents = self.block_extents if is_block else self.thread_extents
        return indices, extents, AXES.index(axis)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        _STATE.kernel = None
        tracer = current_tracer()
        if tracer is not None:
            tracer.in_kernel = False
        while self._frames:
            self._frames.pop().__exit__(kind, error, traceback)

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.thread_extents)

    @property
    def cluster_dims(self) -> list[int]:
        """Blocks of a cluster along x, y and z."""
        return list(self._cluster or [1, 1, 1])

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return math.prod(self.cluster_dims)


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


def _cluster(dims: Any, grid: Sequence[Any]) -> list[int] | None:
    """The blocks of a cluster along x, y and z; None where each is alone."""
    if dims is None:
        return None
    given = [dims] if isinstance(dims, int) else list(dims)
    if not 1 <= len(given) <= 3 or any(type(n) is not int or n < 1 for n in given):
        raise InvalidOperand(
            f"T.Kernel: cluster_dims={dims!r} is no number of blocks",
            help="cluster_dims is a positive integer, or up to three of them",
        )
    cluster = given + [1] * (3 - len(given))
    if math.prod(cluster) > _MAX_CLUSTER:
        raise InvalidValue(
            f"T.Kernel: cluster_dims={dims!r} are {math.prod(cluster)} blocks",
            help=f"a cluster has at most {_MAX_CLUSTER}",
        )
    for axis, (blocks, size) in enumerate(zip([*grid, 1, 1], cluster, strict=False)):
        count = blocks if isinstance(blocks, int) else literal(blocks)
        if count is not None and count % size:
            raise InvalidValue(
                f"T.Kernel: the grid extent {count} along {AXES[axis]} is no multiple of "
                f"cluster_dims={dims!r}",
                help="round the grid up, and let the blocks beyond do nothing",
            )
    return cluster if math.prod(cluster) > 1 else None


def _grid_extent(extent: Any) -> Any:
    if isinstance(extent, bool) or not isinstance(extent, int | ir.Expr):
        raise InvalidOperand(
            f"T.Kernel: a grid extent is an integer, not a {type(extent).__name__}",
            help="use T.ceildiv(M, block_M); in Python, `/` makes a float",
        )
    if isinstance(extent, int) and extent < 0:
        raise InvalidValue(
            f"T.Kernel: the grid extent {extent} is negative",
            help="use T.ceildiv(M, block_M), which is 0 where there is nothing to do",
        )
    return as_count(extent)


def _thread_extents(threads: Any) -> list[int]:
    if threads is None:
        threads = _DEFAULT_THREADS
    extents = list(threads) if isinstance(threads, Sequence) else [threads]
    if not 1 <= len(extents) <= 3 or any(not isinstance(e, int) or e < 1 for e in extents):
        raise InvalidValue(
            f"T.Kernel: threads={threads!r} is no number of threads",
            help="threads is a positive integer, or up to three of them",
        )
    return extents + [1] * (3 - len(extents))


def kernel_of(
    function: str, help: str = "move it into the body of `with T.Kernel(...) as ...:`"
) -> Kernel:
    """The kernel that a function of its body belongs to; `NestingError` outside of one."""
    kernel = current_kernel()
    if kernel is None:
        raise NestingError(f"{function} stands outside T.Kernel", help=help)
    return kernel


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
