"""Launches written by hand: `for bx in T.thread_binding(8, thread="blockIdx.x")` without `T.Kernel`.

They are tile programs as those of `T.Kernel`: every target runs them, and tiles and tile operators
may stand in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidOperand, InvalidValue
from tvmtile.frontend.constructs import LoopNest
from tvmtile.frontend.kernel import AXES, Kernel, current_kernel
from tvmtile.frontend.tracer import current_tracer
from tvmtile.ir.annotations import KERNEL_ANNOTATION
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import launch_loop

_TAGS = tuple(f"{place}.{axis}" for place in ("blockIdx", "threadIdx") for axis in AXES)
"""The axes of a launch, outermost first."""
_ALWAYS = ("blockIdx.x", "threadIdx.x")
"""Those that each launch has."""


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
        variable = _index(tag, extent)
        indices[dim], extents[dim] = variable, extent
        self._bound[tag] = variable, extent


def _index(tag: str, extent: Any) -> ir.Var:
    return tirx.Var(tag[0] + tag[-1], extent.ty.dtype if isinstance(extent, ir.Expr) else "int32")


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
    if current_tracer() is None or thread not in _TAGS or annotations:
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
    if current_tracer() is None or not isinstance(thread, str) or thread not in _TAGS:
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


def with_launch(marker: tirx.For, bound: Mapping[str, tuple[ir.Var, Any]]) -> tirx.Stmt:
    """The loops of a launch around the body of a kernel that was written by hand."""
    loop = marker.body
    for tag in reversed(_TAGS):
        if tag not in bound and tag not in _ALWAYS:
            continue
        variable, extent = bound.get(tag) or (_index(tag, 1), 1)
        notes = marker.annotations if tag == _TAGS[0] else None
        loop = launch_loop(variable, extent, tag, loop, notes, marker.span)
    return loop
