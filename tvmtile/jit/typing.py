"""Types of kernels: how they are made, and what a call of one returns.

A kernel returns tensors of the kind that it is given. Of `Kernel[One]`, which `out_idx=-1` makes, it is
one tensor. A function under `@tvmtile.jit` has the type of what it is decorated on: one that returns a
function makes kernels, one that returns what `T.empty` made is a kernel itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    overload,
)

from tvm import tirx

from tvmtile.errors import hide_internal_frames
from tvmtile.frontend.kernel import Tile
from tvmtile.target import TargetLike

if TYPE_CHECKING:
    from tvmtile.jit.kernel import Kernel

Program: TypeAlias = tirx.PrimFunc | Callable[..., Any]
"""A tile program; to a type checker, what `T.prim_func` decorates stays a function."""


class JitOptions(TypedDict, total=False):
    """Options of `tvmtile.jit` besides `out_idx`."""

    target: TargetLike | None
    execution_backend: str | None
    pass_configs: Mapping[str, Any] | None
    scope: Mapping[str, Any] | None
    target_host: TargetLike | None
    verbose: bool | None
    debug_root_path: str | None
    compile_flags: Any


class One:
    """A kernel's results: one tensor."""


class Unstated:
    """A kernel's results, where nothing but its program says how many there are."""


class Unknown:
    """A type of nothing: an overload for it is taken for what has none, and says as little."""


class _HasShape(Protocol):
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...


Array = TypeVar("Array", bound=_HasShape)
"""Tensors of torch, numpy or TVM."""

Argument: TypeAlias = Array | float | str | None
"""Of a call: numbers, and names of dtypes, say nothing of its results."""

Results = TypeVar("Results")
"""Of a kernel: `One`, or `Unstated`."""

Parameters = ParamSpec("Parameters")

Makes = TypeVar("Makes", covariant=True)  # noqa: PLC0105
"""The result of a decorated function."""


class CalledWhenCompiled(ABC, Generic[Parameters, Makes, Results]):
    """A function whose call gives the kernel in the lazy style, and runs it in the eager style."""

    @overload
    def __call__(
        self: CalledWhenCompiled[Parameters, Unknown, One], *args: Any, **kwargs: Any
    ) -> Kernel[One]: ...  # only the lazy style has out_idx
    @overload
    def __call__(
        self: CalledWhenCompiled[Parameters, Unknown, Any], *args: Any, **kwargs: Any
    ) -> Any: ...
    @overload
    def __call__(
        self: CalledWhenCompiled[Parameters, Tile, Any],
        *args: Argument[Array],
        **kwargs: Argument[Array],
    ) -> Array: ...
    @overload
    def __call__(
        self: CalledWhenCompiled[Parameters, tuple[Tile, ...], Any],
        *args: Argument[Array],
        **kwargs: Argument[Array],
    ) -> list[Array]: ...
    @overload
    def __call__(
        self: CalledWhenCompiled[Parameters, Program, Results],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Kernel[Results]: ...
    @overload
    def __call__(
        self: CalledWhenCompiled[Parameters, None, Any], *args: Any, **kwargs: Any
    ) -> None: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    @hide_internal_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Lazy style: the compiled kernel for these values. Eager style: run it on these arguments."""
        return self._call(args, kwargs)

    @abstractmethod
    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
