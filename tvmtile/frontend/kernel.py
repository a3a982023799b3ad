"""`T.Kernel`: the grid and the threads of a kernel, and what belongs to one: launches, memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand, InvalidValue, NestingError
from tvmtile.frontend.dtypes import DType, DTypeLike, Shape, as_dtype
from tvmtile.frontend.proxy import Indices
from tvmtile.frontend.tracer import current_tracer
from tvmtile.frontend.values import as_count
from tvmtile.ir.annotations import CLUSTER_ANNOTATION, KERNEL_ANNOTATION
from tvmtile.ir.operands import literal
from tvmtile.ir.rewriting import launch_loop
from tvmtile.ir.spans import current_span
from tvmtile.ir.types import Index

if TYPE_CHECKING:

    class Tile(ir.Var):
        """A buffer of a kernel, whose elements the kernel reads and assigns."""

        shape: Any
        dtype: Any

        def __getitem__(self, indices: object) -> Any: ...

        def __setitem__(self, indices: object, value: object) -> None: ...

else:  # assignments are rewritten before Python sees them
    Tile = ir.Var


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


LAUNCH_TAGS = tuple(f"{place}.{axis}" for place in ("blockIdx", "threadIdx") for axis in AXES)
"""The axes of a launch, outermost first."""


_ALWAYS = ("blockIdx.x", "threadIdx.x")
"""The axes that each launch has."""


def axis_variable(tag: str, extent: Any) -> ir.Var:
    """The index along an axis such as `blockIdx.y`, in the dtype of its extent."""
    return tirx.Var(tag[0] + tag[-1], extent.ty.dtype if isinstance(extent, ir.Expr) else "int32")


def with_launch(marker: tirx.For, bound: Mapping[str, tuple[ir.Var, Any]]) -> tirx.Stmt:
    """The loops of a launch around the body of a kernel that was written by hand."""
    loop = marker.body
    for tag in reversed(LAUNCH_TAGS):
        if tag not in bound and tag not in _ALWAYS:
            continue
        variable, extent = bound.get(tag) or (axis_variable(tag, 1), 1)
        notes = marker.annotations if tag == LAUNCH_TAGS[0] else None
        loop = launch_loop(variable, extent, tag, loop, notes, marker.span)
    return loop


def allocate(function: str, shape: Shape, dtype: DTypeLike, scope: str) -> Tile:
    """Allocate memory of a kernel.

    Parameters
    ----------
    function : str
        What a user has called, as messages show it.
    shape, dtype, scope
        As of `alloc_shared`.

    Raises
    ------
    NestingError
        Outside `T.Kernel`.
    InvalidOperand
        If the shape is text.
    """
    kernel_of(function, OF_BLOCKS)
    if isinstance(shape, str):
        raise InvalidOperand(
            f"{function}: the shape is {shape!r}", help=f"the order is {function}(shape, dtype)"
        )
    name: DType = as_dtype(dtype)
    tile = T.alloc_buffer(checked_shape(function, shape), str(name), scope=scope)
    tracer = current_tracer()
    if tracer is not None:
        tracer.name_spans[tile] = current_span()
    return tile


OF_BLOCKS = "tiles belong to a block: allocate them inside `with T.Kernel(...)`"


def checked_shape(function: str, shape: Shape) -> list[Any]:
    """The extents of what is allocated; `InvalidOperand` of what is no shape."""
    extents = list(shape) if isinstance(shape, list | tuple | ir.Array) else [shape]
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int | ir.Expr):
            raise InvalidOperand(
                f"{function}: the extent {extent!r} is not an integer",
                help="use //; in Python, `/` makes a float",
            )
        if isinstance(extent, int) and extent < 0:
            raise InvalidOperand(f"{function}: the extent {extent} is negative")
    return extents
